/* screen_svg: a saved screen of the panels (save-roles of a key script, on stdin) as a picture (SVG, on stdout): screen_svg [THEME]. Colours are
 * those of the theme; the background is dark, or light for the light theme. */
#include "config.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/grid.h"
#include "console/text.h"
#include "console/tui_theme.h"

#define MAX_ROWS 200
#define MAX_COLS 400
#define CELL_W 8.4
#define CELL_H 17.0
#define MARGIN 10.0

struct cell {
    char text[12];
    char role;
    int width;
};

static struct cell s_cells[MAX_ROWS][MAX_COLS];
static int s_rows, s_cols;

static void read_text(int y, const char *line)
{
    int x = 0;
    size_t len = strlen(line);
    for (size_t i = 0; i < len && x + 1 < MAX_COLS;) {
        unsigned cp = 0;
        int n = text_utf8((const unsigned char *)line + i, len - i, &cp);
        if (n <= 0)
            break;
        int w = grid_width(cp);
        struct cell *c = &s_cells[y][w == 0 && x > 0 ? x - 1 : x];
        strncat(c->text, line + i, (size_t)n);
        c->width = w == 0 ? c->width : w;
        x += w;
        i += (size_t)n;
    }
    s_cols = x > s_cols ? x : s_cols;
}

static void read_roles(int y, const char *line)
{
    for (int x = 0; line[x] != '\0' && x < MAX_COLS; x++)
        s_cells[y][x].role = line[x];
}

static bool read_screen(void)
{
    char *line = NULL;
    size_t cap = 0;
    int y = 0, part = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        if (strcmp(line, "--") == 0) {
            s_rows = y;
            part = 1;
            y = 0;
        } else if (y < MAX_ROWS && part == 0) {
            read_text(y++, line);
        } else if (y < s_rows) {
            read_roles(y++, line);
        }
    }
    free(line);
    return part == 1 && s_rows > 0;
}

static int role_of(char c)
{
    return c >= 'a' && c <= 'z' ? c - 'a' + 1 : c >= 'A' && c <= 'Z' ? c - 'A' + 27 : 0;
}

static void print_escaped(const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '&')
            fputs("&amp;", stdout);
        else if (*p == '<')
            fputs("&lt;", stdout);
        else if (*p == '>')
            fputs("&gt;", stdout);
        else
            putchar(*p);
    }
}

/* Cells of one look in a row: their background, then their text, held to the columns that they have. */
static void print_run(const struct tui_theme *t, uint32_t ink, int y, int from, int to)
{
    char role = s_cells[y][from].role;
    struct tui_look l = role == '#'   ? (struct tui_look){-1, t->selected.bg, -1, -1, TUI_BOLD}
                        : role == '*' ? t->match
                                      : t->look[role_of(role)];
    double x = MARGIN + from * CELL_W, top = MARGIN + y * CELL_H;
    if (t->colours && l.bg >= 0)
        printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#%06x\"/>\n", x, top, (to - from) * CELL_W, CELL_H,
               tui_theme_rgb(l.bg));
    bool blank = true;
    for (int i = from; i < to; i++)
        blank = blank && (s_cells[y][i].text[0] == '\0' || strcmp(s_cells[y][i].text, " ") == 0);
    if (blank)
        return;
    printf("<text x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" fill=\"#%06x\"%s>", x, top + 13, (to - from) * CELL_W,
           t->colours && l.fg >= 0 ? tui_theme_rgb(l.fg) : ink, l.attr & TUI_BOLD ? " font-weight=\"bold\"" : "");
    for (int i = from; i < to; i++)
        if (!(i > from && s_cells[y][i - 1].width == 2))
            print_escaped(s_cells[y][i].text[0] != '\0' ? s_cells[y][i].text : " ");
    puts("</text>");
}

int main(int argc, char **argv)
{
    setlocale(LC_ALL, "C.UTF-8");
    const struct tui_theme *t = tui_theme_find(argc > 1 ? argv[1] : "default");
    if (t == NULL || !read_screen()) {
        fputs("usage: screen_svg [THEME] <SCREEN, as save-roles writes it\n", stderr);
        return 2;
    }
    bool light = strcmp(t->name, "light") == 0;
    uint32_t paper = light ? 0xfdfdfb : 0x16181d, ink = light ? 0x222222 : 0xd8dade;
    double w = s_cols * CELL_W + 2 * MARGIN, h = s_rows * CELL_H + 2 * MARGIN;
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n", w, h, w, h);
    printf("<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"#%06x\"/>\n", paper);
    puts("<g font-family=\"'DejaVu Sans Mono','Cascadia Mono',Menlo,Consolas,monospace\" font-size=\"14\" xml:space=\"preserve\">");
    for (int y = 0; y < s_rows; y++)
        for (int x = 0, to; x < s_cols; x = to) {
            for (to = x + 1; to < s_cols && s_cells[y][to].role == s_cells[y][x].role; to++)
                ;
            print_run(t, ink, y, x, to);
        }
    puts("</g>\n</svg>");
    return 0;
}
