#include "config.h"

#include "console/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "console/text.h"

void grid_resize(struct grid *g, int rows, int cols)
{
    if (rows != g->rows || cols != g->cols || g->cells == NULL)
        g->cells = xreallocarray(g->cells, (size_t)rows * (size_t)cols + 1, sizeof *g->cells);
    g->rows = rows;
    g->cols = cols;
    grid_fill(g, (struct grid_rect){0, 0, rows, cols}, 0);
}

void grid_fini(struct grid *g)
{
    free(g->cells);
    *g = (struct grid){0};
}

static struct grid_cell *cell(struct grid *g, int y, int x)
{
    return &g->cells[(size_t)y * (size_t)g->cols + (size_t)x];
}

static bool inside(const struct grid *g, int y, int x)
{
    return y >= 0 && y < g->rows && x >= 0 && x < g->cols;
}

void grid_fill(struct grid *g, struct grid_rect r, uint8_t role)
{
    for (int y = r.y; y < r.y + r.h; y++)
        for (int x = r.x; x < r.x + r.w; x++)
            if (inside(g, y, x))
                *cell(g, y, x) = (struct grid_cell){.cp = ' ', .role = role, .width = 1};
}

/* Characters that steer others instead of being seen: directions, joiners, invisible marks, the tag plane. They never reach a terminal. */
static bool steers(uint32_t cp)
{
    return (cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2060 && cp <= 0x206f) || cp == 0xfeff ||
           (cp >= 0xfff9 && cp <= 0xfffb) || (cp >= 0xe0000 && cp <= 0xe0fff) || cp == 0x061c || cp == 0x180e || cp == 0xad;
}

int grid_width(uint32_t cp)
{
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
        return -1;
    if (cp < 0x7f)
        return 1;
    if (steers(cp))
        return 0;
    return wcwidth((wchar_t)cp);
}

/* A wide character that loses one half loses the other. */
static void unpair(struct grid *g, int y, int x)
{
    struct grid_cell *c = cell(g, y, x);
    if (c->width == 2 && x + 1 < g->cols)
        *cell(g, y, x + 1) = (struct grid_cell){.cp = ' ', .role = c->role, .width = 1};
    if (c->width == 0 && x > 0)
        *cell(g, y, x - 1) = (struct grid_cell){.cp = ' ', .role = c->role, .width = 1};
}

int grid_char(struct grid *g, int y, int x, uint8_t role, uint32_t cp)
{
    int w = grid_width(cp);
    if (g->ascii && cp >= 0x7f) {
        if (w == 0)
            return 0;
        cp = '?';
        w = 1;
    }
    if (w == 0) {
        struct grid_cell *before = inside(g, y, x - 1) ? cell(g, y, x - 1) : NULL;
        if (before != NULL && before->width == 0 && x >= 2)
            before = cell(g, y, x - 2);
        if (before != NULL && before->mark == 0 && before->cp > ' ' && !steers(cp))
            before->mark = cp;
        return 0;
    }
    if (w < 0) {
        cp = g->ascii ? '?' : 0xfffd;
        w = 1;
    }
    if (!inside(g, y, x) || (w == 2 && !inside(g, y, x + 1)))
        return w;
    unpair(g, y, x);
    if (w == 2)
        unpair(g, y, x + 1);
    *cell(g, y, x) = (struct grid_cell){.cp = cp, .role = role, .width = (uint8_t)w};
    if (w == 2)
        *cell(g, y, x + 1) = (struct grid_cell){.role = role};
    return w;
}

int grid_text(struct grid *g, int y, int x, int columns, uint8_t role, const char *text, size_t len)
{
    int used = 0;
    for (size_t i = 0; i < len;) {
        unsigned cp = 0;
        int n = text_utf8((const unsigned char *)text + i, len - i, &cp);
        if (n <= 0) {
            cp = g->ascii ? '?' : 0xfffd;
            n = 1;
        }
        i += (size_t)n;
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
            /* DEL and C0 as ^X; C1 as what it stands for, ESC and a letter. */
            if (used + 2 > columns)
                break;
            used += grid_char(g, y, x + used, role, '^');
            used += grid_char(g, y, x + used, role, cp < 0x80 ? cp ^ 0x40 : '[');
            continue;
        }
        int w = grid_width(cp);
        if (used + (w == 0 ? 0 : g->ascii || w < 0 ? 1 : w) > columns)
            break;
        used += grid_char(g, y, x + used, role, cp);
    }
    return used;
}

int grid_columns(const char *text, size_t len, bool ascii)
{
    int used = 0;
    for (size_t i = 0; i < len;) {
        unsigned cp = 0;
        int n = text_utf8((const unsigned char *)text + i, len - i, &cp), w = grid_width(cp);
        i += n > 0 ? (size_t)n : 1;
        if (n <= 0)
            used++;
        else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            used += 2;
        else
            used += ascii && cp >= 0x7f ? w != 0 : w < 0 ? 1 : w;
    }
    return used;
}

int grid_str(struct grid *g, int y, int x, int columns, uint8_t role, const char *text)
{
    return grid_text(g, y, x, columns, role, text, strlen(text));
}

int grid_printf(struct grid *g, int y, int x, int columns, uint8_t role, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return grid_str(g, y, x, columns, role, text);
}

void grid_flag(struct grid *g, int y, int x, int columns, uint8_t flags)
{
    for (int i = x; i < x + columns; i++)
        if (inside(g, y, i))
            cell(g, y, i)->flags |= flags;
}

void grid_utf8(struct buf *out, uint32_t cp)
{
    char b[4];
    if (cp < 0x80) {
        buf_char(out, (char)cp);
    } else if (cp < 0x800) {
        b[0] = (char)(0xc0 | cp >> 6);
        b[1] = (char)(0x80 | (cp & 0x3f));
        buf_add(out, b, 2);
    } else if (cp < 0x10000) {
        b[0] = (char)(0xe0 | cp >> 12);
        b[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[2] = (char)(0x80 | (cp & 0x3f));
        buf_add(out, b, 3);
    } else {
        b[0] = (char)(0xf0 | cp >> 18);
        b[1] = (char)(0x80 | (cp >> 12 & 0x3f));
        b[2] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[3] = (char)(0x80 | (cp & 0x3f));
        buf_add(out, b, 4);
    }
}

static void end_line(struct buf *out, size_t from)
{
    while (out->len > from && out->text[out->len - 1] == ' ')
        out->text[--out->len] = '\0';
    buf_char(out, '\n');
}

static char role_char(const struct grid_cell *c)
{
    static const char names[] = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (c->flags & GRID_SELECTED)
        return '#';
    if (c->flags & GRID_MATCH)
        return '*';
    return c->role < sizeof names - 1 ? names[c->role] : '?';
}

void grid_save(const struct grid *g, bool roles, struct buf *out)
{
    for (int y = 0; y < g->rows; y++) {
        size_t from = out->len;
        for (int x = 0; x < g->cols; x++) {
            const struct grid_cell *c = &g->cells[(size_t)y * (size_t)g->cols + (size_t)x];
            if (c->width > 0)
                grid_utf8(out, c->cp);
            if (c->mark != 0)
                grid_utf8(out, c->mark);
        }
        end_line(out, from);
    }
    if (!roles)
        return;
    buf_str(out, "--\n");
    for (int y = 0; y < g->rows; y++) {
        size_t from = out->len;
        for (int x = 0; x < g->cols; x++)
            buf_char(out, role_char(&g->cells[(size_t)y * (size_t)g->cols + (size_t)x]));
        end_line(out, from);
    }
}
