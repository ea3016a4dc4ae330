#include "config.h"

#include "console/tui_custom.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/grid.h"
#include "console/text.h"
#include "console/tui_layout.h"
#include "console/tui_text.h"
#include "console/tui_theme.h"

#define MAX_TEXT (1u << 18) /* bytes of a panel; what goes beyond is dropped */

static struct panel {
    char *name, *title; /* NULL: a free place */
    char *text;
    tui_custom_fn fn;
    void *ctx;
    void (*drop)(void *ctx);
    uint64_t every_us, next_us;
} s_panels[TUI_CUSTOMS];

static struct panel *find(const char *name)
{
    for (int i = 0; i < TUI_CUSTOMS; i++)
        if (s_panels[i].name != NULL && strcmp(s_panels[i].name, name) == 0)
            return &s_panels[i];
    return NULL;
}

static struct panel *place(void)
{
    for (int i = 1; i < TUI_CUSTOMS; i++)
        if (s_panels[i].name == NULL)
            return &s_panels[i];
    return NULL;
}

static bool good_name(const char *name)
{
    size_t n = strlen(name);
    bool good = n > 0 && n <= 24 && isalpha((unsigned char)name[0]);
    for (size_t i = 0; i < n; i++)
        good = good && (isalnum((unsigned char)name[i]) || name[i] == '-');
    return good;
}

static void drop(struct panel *p)
{
    if (p->drop != NULL)
        p->drop(p->ctx);
    p->drop = NULL;
}

enum rs_result tui_custom_add(const struct tui_custom *c, struct rs_error *err)
{
    struct panel *p = find(c->name);
    if (!good_name(c->name))
        return fail_set(err, RS_EUSAGE, "'%s' is no name for a panel: letters, digits and '-', 24 at most, a letter first", c->name);
    if (p == NULL && tui_panel_find(c->name) >= 0)
        return fail_set(err, RS_EUSAGE, "%s is a panel of the program", c->name);
    if (p == NULL && (p = place()) == NULL)
        return fail_set(err, RS_ESTATE, "there are %d panels of scripts already", TUI_CUSTOMS - 1);
    drop(p);
    if (p->name == NULL)
        p->name = xstrdup(c->name);
    free(p->title);
    p->title = text_one_line(c->title != NULL ? c->title : c->name);
    p->fn = c->fn;
    p->ctx = c->ctx;
    p->drop = c->drop;
    p->every_us = 1000 * (uint64_t)(c->every_ms == 0 ? 1000 : c->every_ms < 100 ? 100 : c->every_ms);
    p->next_us = 0;
    return RS_OK;
}

static void set_text(struct panel *p, const char *text, size_t len)
{
    struct buf b = {0};
    struct text_filter f = {0};
    text_clean(&f, text, len < MAX_TEXT ? len : MAX_TEXT, &b);
    text_clean_end(&f, &b);
    free(p->text);
    p->text = buf_take(&b);
}

enum rs_result tui_custom_text(const char *name, const char *text, size_t len, struct rs_error *err)
{
    struct panel *p = find(name);
    if (p == NULL)
        return fail_set(err, RS_ENOTFOUND, "there is no panel '%s'", name);
    set_text(p, text, len);
    return RS_OK;
}

static void clear(struct panel *p)
{
    drop(p);
    free(p->name);
    free(p->title);
    free(p->text);
    *p = (struct panel){0};
}

enum rs_result tui_custom_remove(const char *name, struct rs_error *err)
{
    struct panel *p = find(name);
    if (p == NULL)
        return fail_set(err, RS_ENOTFOUND, "there is no panel '%s'", name);
    clear(p);
    return RS_OK;
}

void tui_custom_clear(void)
{
    for (int i = 0; i < TUI_CUSTOMS; i++)
        clear(&s_panels[i]);
}

/* ---- for the panels -------------------------------------------------------------------------------------------------------------------- */

const char *tui_custom_name(int i)
{
    return s_panels[i].name;
}

const char *tui_custom_title(int i)
{
    return s_panels[i].title;
}

void tui_custom_notebook(tui_custom_fn fn, unsigned every_ms)
{
    s_panels[0].fn = fn;
    s_panels[0].every_us = 1000 * (uint64_t)every_ms;
}

/* Draw rows from `top` on, or only count when g is NULL. */
static int rows(const char *text, struct grid *g, const struct grid_rect *r, bool ascii, int top)
{
    int row = 0;
    for (const char *line = text; *line != '\0';) {
        size_t n = strcspn(line, "\n"), at = 0, next;
        do {
            size_t len = tui_wrap(line + at, n - at, r->w, ascii, &next);
            if (g != NULL && row >= top && row < top + r->h)
                grid_text(g, r->y + row - top, r->x, r->w, ROLE_TEXT, line + at, len);
            row++;
            at += next;
        } while (at < n);
        line += n + (line[n] == '\n');
    }
    return row;
}

int tui_custom_draw(int i, struct grid *g, const struct grid_rect *r, int *top)
{
    const struct panel *p = &s_panels[i];
    if (p->text == NULL || *p->text == '\0') {
        grid_str(g, r->y, r->x, r->w, ROLE_DIM, p->fn != NULL ? "nothing yet" : "its script has not written anything yet");
        *top = 0;
        return 0;
    }
    int n = rows(p->text, NULL, r, g->ascii, 0), last = n - r->h;
    *top = *top > last ? last : *top;
    *top = *top < 0 ? 0 : *top;
    rows(p->text, g, r, g->ascii, *top);
    return n;
}

uint64_t tui_custom_due(int i)
{
    return s_panels[i].fn != NULL ? s_panels[i].next_us : UINT64_MAX;
}

void tui_custom_ask(int i, struct con *con, uint64_t now_us, int h, int w)
{
    struct panel *p = &s_panels[i];
    tui_custom_fn fn = p->fn;
    p->next_us = now_us + p->every_us;
    char *text = fn(con, p->ctx, h, w);
    /* The function may have taken its own panel away. */
    if (text != NULL && p->fn == fn)
        set_text(p, text, strlen(text));
    free(text);
}
