#include "config.h"

#include "console/tui_plot.h"

#include <math.h>

#define LEFT_EIGHTHS 0x2590u  /* minus n: U+258F is one eighth, U+2588 all */
#define LOWER_EIGHTHS 0x2580u /* plus n */
#define BRAILLE 0x2800u

int tui_plot_bar(struct grid *g, int y, int x, int w, uint8_t role, double share, enum tui_plot_style style)
{
    if (!isfinite(share) || share <= 0 || w < 1)
        return 0;
    share = share > 1 ? 1 : share;
    if (style == TUI_PLOT_ASCII) {
        int n = (int)(share * w + 0.5);
        for (int i = 0; i < n; i++)
            grid_char(g, y, x + i, role, '#');
        return n;
    }
    int eighths = (int)(share * w * 8 + 0.5), i = 0;
    for (; i < eighths / 8; i++)
        grid_char(g, y, x + i, role, LOWER_EIGHTHS + 8);
    if (eighths % 8 != 0)
        grid_char(g, y, x + i++, role, LEFT_EIGHTHS - (uint32_t)(eighths % 8));
    return i;
}

bool tui_plot_range(const float *v, int n, double *lo, double *hi)
{
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!isfinite(v[i]))
            continue;
        *lo = !any || v[i] < *lo ? v[i] : *lo;
        *hi = !any || v[i] > *hi ? v[i] : *hi;
        any = true;
    }
    if (any && *hi - *lo <= fabs(*hi) * 1e-6) {
        double half = fabs(*hi) > 0 ? fabs(*hi) / 2 : 1;
        *lo -= half;
        *hi += half;
    }
    return any;
}

/* 0..levels of a value; -1: there is none. A value in sight is never level 0, so that it can be told from a gap. */
static int level(float v, double lo, double hi, int levels)
{
    if (!isfinite(v))
        return -1;
    double share = hi > lo ? (v - lo) / (hi - lo) : 1;
    int k = 1 + (int)(share * (levels - 1) + 0.5);
    return k < 1 ? 1 : k > levels ? levels : k;
}

static float value_at(const float *v, int n, int from_end)
{
    return from_end < n ? v[n - 1 - from_end] : NAN;
}

void tui_plot_spark(struct grid *g, int y, int x, int w, uint8_t role, const float *v, int n, double lo, double hi,
                    enum tui_plot_style style)
{
    static const char ascii[] = "_.-=+*#%@";
    /* Dots of the left and the right half of a cell, from the bottom up. */
    static const unsigned char left[5] = {0, 0x40, 0x44, 0x46, 0x47}, right[5] = {0, 0x80, 0xa0, 0xb0, 0xb8};
    for (int i = 0; i < w; i++) {
        int col = x + w - 1 - i;
        if (style == TUI_PLOT_BRAILLE) {
            int l = level(value_at(v, n, 2 * i + 1), lo, hi, 4), r = level(value_at(v, n, 2 * i), lo, hi, 4);
            if (l > 0 || r > 0)
                grid_char(g, y, col, role, BRAILLE + left[l > 0 ? l : 0] + right[r > 0 ? r : 0]);
            continue;
        }
        int k = level(value_at(v, n, i), lo, hi, 8);
        if (k > 0)
            grid_char(g, y, col, role, style == TUI_PLOT_ASCII ? (uint32_t)ascii[k] : LOWER_EIGHTHS + (uint32_t)k);
    }
}

static uint32_t column_char(double filled, enum tui_plot_style style)
{
    static const unsigned char both[5] = {0, 0xc0, 0xe4, 0xf6, 0xff};
    if (style == TUI_PLOT_ASCII)
        return filled >= 0.75 ? '#' : filled >= 0.25 ? '=' : '_';
    if (style == TUI_PLOT_BRAILLE)
        return BRAILLE + both[(int)ceil(filled * 4)];
    return LOWER_EIGHTHS + (uint32_t)ceil(filled * 8);
}

void tui_plot_histogram(struct grid *g, struct grid_rect r, uint8_t role, const uint32_t *bins, int n, enum tui_plot_style style)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++)
        most = bins[i] > most ? bins[i] : most;
    for (int i = 0; i < n && i < r.w && most > 0; i++) {
        double high = (double)bins[i] / most * r.h;
        for (int row = 0; row < r.h; row++) {
            double filled = high - row;
            if (filled > 0)
                grid_char(g, r.y + r.h - 1 - row, r.x + i, role, column_char(filled > 1 ? 1 : filled, style));
        }
    }
}
