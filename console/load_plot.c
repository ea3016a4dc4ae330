#include "config.h"

#include "console/load_plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/buf.h"
#include "console/fail.h"

enum { ROWS = 14, COLUMNS = 60 };

/* A round number at or above the largest y. */
static double top_of(const struct load_plot *p)
{
    double most = 0;
    for (size_t s = 0; s < p->n_series; s++)
        for (size_t i = 0; i < p->n; i++)
            if (isfinite(p->y[s][i]) && p->y[s][i] > most)
                most = p->y[s][i];
    if (most <= 0)
        return 1;
    double unit = pow(10, floor(log10(most)));
    static const double steps[] = {1, 1.5, 2, 3, 4, 5, 6, 8, 10};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * unit >= most)
            return steps[i] * unit;
    return most;
}

/* 0 .. 1 along the x axis. */
static double x_at(const struct load_plot *p, double x)
{
    double lo = log2(p->x[0]), hi = log2(p->x[p->n - 1]);
    return hi > lo ? (log2(x) - lo) / (hi - lo) : 0;
}

static void mark(char *cell, char c)
{
    *cell = *cell == ' ' || *cell == '.' || *cell == c ? c : '*';
}

/* Dots between two points, in columns that hold nothing yet. */
static void dots(char grid[ROWS][COLUMNS + 1], int c0, double r0, int c1, double r1)
{
    for (int c = c0 + 1; c < c1; c++) {
        int r = (int)lround(r0 + (r1 - r0) * (c - c0) / (c1 - c0));
        if (grid[r][c] == ' ')
            grid[r][c] = '.';
    }
}

void load_plot_text(const struct load_plot *p, struct out *o)
{
    char grid[ROWS][COLUMNS + 1];
    double top = top_of(p);
    if (p->n == 0)
        return;
    for (int r = 0; r < ROWS; r++) {
        memset(grid[r], ' ', COLUMNS);
        grid[r][COLUMNS] = '\0';
    }
    for (size_t s = 0; s < p->n_series; s++) {
        int before = -1;
        double row_before = 0;
        for (size_t i = 0; i < p->n; i++) {
            if (!isfinite(p->y[s][i]))
                continue;
            int c = (int)lround(x_at(p, p->x[i]) * (COLUMNS - 1));
            double row = (1 - p->y[s][i] / top) * (ROWS - 1);
            if (before >= 0)
                dots(grid, before, row_before, c, row);
            mark(&grid[(int)lround(row)][c], (char)('a' + s));
            before = c;
            row_before = row;
        }
    }
    out_printf(o, OUT_HEADING, "%s\n", p->title);
    for (int r = 0; r < ROWS; r++) {
        size_t len = COLUMNS;
        while (len > 0 && grid[r][len - 1] == ' ')
            len--;
        if (r % 4 == 0 || r == ROWS - 1)
            out_printf(o, OUT_TEXT, "%9.0f |%.*s\n", top * (1 - (double)r / (ROWS - 1)), (int)len, grid[r]);
        else
            out_printf(o, OUT_TEXT, "%9s |%.*s\n", "", (int)len, grid[r]);
    }
    char axis[COLUMNS + 16];
    memset(axis, ' ', sizeof axis);
    size_t end = 0;
    for (size_t i = 0; i < p->n; i++) {
        char num[24];
        int len = snprintf(num, sizeof num, "%.0f", p->x[i]);
        size_t c = (size_t)lround(x_at(p, p->x[i]) * (COLUMNS - 1));
        if ((end > 0 && c <= end) || c + (size_t)len > sizeof axis)
            continue;
        memcpy(axis + c, num, (size_t)len);
        end = c + (size_t)len;
    }
    out_printf(o, OUT_TEXT, "%9s +%.*s\n%9s  %.*s  %s\n", p->y_name, COLUMNS, "------------------------------------------------------------", "", (int)end,
               axis, p->x_name);
    for (size_t s = 0; s < p->n_series; s++)
        out_printf(o, OUT_TEXT, "%9s  %c: %s\n", "", (int)('a' + s), p->name[s]);
}

static void svg_series(const struct load_plot *p, size_t s, double top, FILE *f)
{
    static const char *const colours[LOAD_PLOT_MAX_SERIES] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colours[s]);
    for (size_t i = 0; i < p->n; i++)
        if (isfinite(p->y[s][i]))
            fprintf(f, "%.1f,%.1f ", 90 + 580 * x_at(p, p->x[i]), 360 - 310 * p->y[s][i] / top);
    fprintf(f, "\"/>\n");
    for (size_t i = 0; i < p->n; i++)
        if (isfinite(p->y[s][i]))
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s, %g: %.1f</title></circle>\n", 90 + 580 * x_at(p, p->x[i]),
                    360 - 310 * p->y[s][i] / top, colours[s], p->name[s], p->x[i], p->y[s][i]);
    fprintf(f, "<text x=\"100\" y=\"%zu\" fill=\"%s\">%s</text>\n", 60 + 18 * s, colours[s], p->name[s]);
}

static void svg_write(const struct load_plot *p, FILE *f)
{
    double top = top_of(p);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"700\" height=\"420\" font-family=\"sans-serif\" font-size=\"12\">\n"
               "<rect width=\"700\" height=\"420\" fill=\"white\"/>\n<text x=\"350\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">%s</text>\n", p->title);
    for (int i = 0; i <= 4; i++)
        fprintf(f, "<line x1=\"90\" x2=\"670\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"84\" y=\"%.1f\" text-anchor=\"end\">%.0f</text>\n",
                360 - 77.5 * i, 360 - 77.5 * i, 364 - 77.5 * i, top * i / 4);
    for (size_t i = 0; i < p->n; i++)
        fprintf(f, "<text x=\"%.1f\" y=\"378\" text-anchor=\"middle\">%.0f</text>\n", 90 + 580 * x_at(p, p->x[i]), p->x[i]);
    fprintf(f, "<text x=\"380\" y=\"404\" text-anchor=\"middle\">%s</text>\n<text x=\"20\" y=\"205\" text-anchor=\"middle\" transform=\"rotate(-90 20 205)\">"
               "%s</text>\n", p->x_name, p->y_name);
    for (size_t s = 0; s < p->n_series; s++)
        svg_series(p, s, top, f);
    fprintf(f, "</svg>\n");
}

enum rs_result load_plot_svg(const struct load_plot *p, const char *path, struct rs_error *err)
{
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return fail_set(err, RS_EIO, "cannot write %s: %s", path, strerror(errno));
    svg_write(p, f);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (!bad)
        return RS_OK;
    unlink(path);
    return fail_set(err, RS_EIO, "cannot write %s: %s", path, strerror(errno));
}
