/* tui_requests.c: the panels of requests and of the notebook. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/rcmd_lua.h"
#include "console/tui.h"

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

static const json_t *list_of(const struct tui *t)
{
    return js_at(tui_data_last(&t->data, TUI_ASK_REQUESTS), "requests");
}

static json_int_t stream_at(const struct tui *t, int row)
{
    return js_int(json_array_get(list_of(t), (size_t)row), "stream", 0);
}

/* Rows move up when requests before them end: the selected row is the one of its stream. */
static void follow_stream(struct tui *t)
{
    struct tui_list *l = &t->lists[TUI_REQUESTS];
    int n = (int)json_array_size(list_of(t));
    for (int i = 0; t->request != 0 && i < n; i++)
        if (stream_at(t, i) == t->request) {
            l->selected = i;
            return;
        }
    if (t->request != 0 && t->request == t->stopping)
        t->request = 0; /* as was wanted */
}

void tui_select_request(struct tui *t)
{
    t->request = stream_at(t, t->lists[TUI_REQUESTS].selected);
}

json_int_t tui_selected_request(struct tui *t, bool *gone)
{
    follow_stream(t);
    json_int_t stream = stream_at(t, t->lists[TUI_REQUESTS].selected);
    *gone = t->request != 0 && stream != t->request;
    return stream;
}

/* Columns by worth; each is there if the width has room for all before it. */
enum column { COL_STREAM, COL_PHASE, COL_TOKENS, COL_SPEED, COL_PROMPT, COL_AGE, COL_CLIENT, COL_CACHED, COL_WHY, COLUMNS };

static const struct {
    const char *head;
    int width;
} s_columns[COLUMNS] = {
    [COL_STREAM] = {"stream", 7}, [COL_PHASE] = {"phase", 11}, [COL_TOKENS] = {"tokens", 13}, [COL_SPEED] = {"tok/s", 9}, [COL_PROMPT] = {"prompt", 8},
    [COL_AGE] = {"age s", 8},     [COL_CLIENT] = {"client", 14}, [COL_CACHED] = {"cached", 8}, [COL_WHY] = {"waits for", 30},
};

static bool is_text(enum column c)
{
    return c == COL_PHASE || c == COL_CLIENT || c == COL_WHY;
}

static void text_cell(struct tui *t, int y, int x, int w, uint8_t role, const char *text)
{
    char *line = text_one_line(text);
    grid_str(&t->grid, y, x, w, role, line);
    free(line);
}

static void cell(struct tui *t, const json_t *q, enum column c, int y, int x, int w)
{
    const char *phase = js_str(q, "phase", "?");
    bool waits = strcmp(phase, "waiting") == 0 || strcmp(phase, "preempted") == 0;
    switch (c) {
    case COL_STREAM: grid_printf(&t->grid, y, x, w, ROLE_TEXT, "%*lld", w, (long long)js_int(q, "stream", 0)); break;
    case COL_PHASE: text_cell(t, y, x + 2, w - 2, waits ? ROLE_WARN : ROLE_TEXT, phase); break;
    case COL_TOKENS: {
        char *text = xasprintf("%lld/%lld", (long long)js_int(q, "tokens", 0), (long long)js_int(q, "max_tokens", 0));
        grid_printf(&t->grid, y, x, w, ROLE_TEXT, "%*s", w, text);
        free(text);
        break;
    }
    case COL_SPEED: tui_draw_number(t, y, x, w, ROLE_TEXT, js_num(q, "tok_per_s", NAN), 1, ""); break;
    case COL_PROMPT: tui_draw_number(t, y, x, w, ROLE_TEXT, js_num(q, "prompt_tokens", NAN), 0, ""); break;
    case COL_AGE: tui_draw_number(t, y, x, w, ROLE_TEXT, js_num(q, "age_ms", NAN) / 1e3, 1, ""); break;
    case COL_CLIENT: text_cell(t, y, x + 2, w - 2, ROLE_DIM, js_str(q, "client", "")); break;
    case COL_CACHED: tui_draw_number(t, y, x, w, ROLE_TEXT, js_num(q, "cached_tokens", NAN), 0, ""); break;
    case COL_WHY: text_cell(t, y, x + 2, w - 2, ROLE_WARN, js_str(q, "why", "")); break;
    case COLUMNS: break;
    }
}

/* Ask for those that are in sight or soon will be; those of a large server are not asked for without need. */
static void want_requests(struct tui *t, const struct tui_list *l, int fetched)
{
    int want = l->top + 2 * l->h;
    if (want < TUI_REQUESTS_LEAST)
        want = TUI_REQUESTS_LEAST;
    if (want > t->data.requests && fetched < l->n && fetched < l->top + l->h)
        t->data.asked[TUI_ASK_REQUESTS].next_us = t->next_tick_us = 0;
    t->data.requests = want;
}

/* How many there are, and what the selected one waits for if there is no column that says so. */
static void draw_summary(struct tui *t, struct grid_rect r, const json_t *reply, bool why)
{
    const struct tui_list *l = &t->lists[TUI_REQUESTS];
    const json_t *q = json_array_get(list_of(t), (size_t)l->selected);
    const char *reason = js_str(q, "why", "");
    int used = grid_printf(&t->grid, r.y, r.x, r.w, ROLE_HEAD, "%lld running, %lld waiting", (long long)js_int(reply, "running", 0),
                           (long long)js_int(reply, "waiting", 0));
    if (l->n > l->h && l->h > 0)
        used += grid_printf(&t->grid, r.y, r.x + used, r.w - used, ROLE_HEAD, "; %d-%d here", l->top + 1, l->top + l->h);
    if (!why && *reason != '\0' && t->focus == TUI_REQUESTS) {
        char *text = xasprintf("; %lld waits: %s", (long long)js_int(q, "stream", 0), reason);
        text_cell(t, r.y, r.x + used, r.w - used, ROLE_WARN, text);
        free(text);
    }
}

static void draw_request(struct tui *t, int row, int y, struct grid_rect r, int columns)
{
    const json_t *q = json_array_get(list_of(t), (size_t)row);
    int x = r.x;
    if (q == NULL) {
        grid_str(&t->grid, y, x + 2, r.w - 2, ROLE_DIM, "..."); /* it was asked for just now */
        return;
    }
    for (int c = 0; c < columns; c++) {
        cell(t, q, (enum column)c, y, x, c == COL_WHY ? r.x + r.w - x : s_columns[c].width);
        x += s_columns[c].width;
    }
}

void tui_draw_requests(struct tui *t, struct grid_rect r)
{
    const json_t *reply = tui_data_last(&t->data, TUI_ASK_REQUESTS);
    struct tui_list *l = &t->lists[TUI_REQUESTS];
    int fetched = (int)json_array_size(list_of(t)), columns = 0, used = 0, x = r.x;
    if (reply == NULL || !t->data.have) {
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, t->con->lost ? "the engine is gone; /restart" : "no model is open");
        l->n = 0;
        return;
    }
    int all = (int)(js_int(reply, "running", 0) + js_int(reply, "waiting", 0));
    follow_stream(t);
    tui_list_fit(l, all > fetched ? all : fetched, r.h - 2);
    if (t->focus == TUI_REQUESTS && t->request == 0)
        tui_select_request(t);
    want_requests(t, l, fetched);
    while (columns < COLUMNS && used + s_columns[columns].width <= r.w)
        used += s_columns[columns++].width;
    draw_summary(t, r, reply, columns == COLUMNS);
    for (int c = 0; c < columns && l->n > 0; c++) {
        int w = s_columns[c].width, len = (int)strlen(s_columns[c].head);
        grid_str(&t->grid, r.y + 1, is_text((enum column)c) ? x + 2 : x + w - len, w, ROLE_HEAD, s_columns[c].head);
        x += w;
    }
    for (int i = 0; i < l->h && l->top + i < l->n; i++) {
        draw_request(t, l->top + i, r.y + 2 + i, r, columns);
        if (t->focus == TUI_REQUESTS && l->top + i == l->selected)
            grid_flag(&t->grid, r.y + 2 + i, r.x, r.w, GRID_SELECTED);
    }
}

/* ---- the notebook -------------------------------------------------------------------------------------------------------------------- */

struct keeper {
    struct out out; /* first */
    struct buf text;
};

static void keep(struct out *o, enum out_role role, const char *text, size_t len)
{
    (void)role;
    buf_add(&((struct keeper *)o)->text, text, len);
}

static void no_progress(struct out *o, const char *line)
{
    (void)o;
    (void)line;
}

char *tui_notebook(struct con *con, void *ctx, int rows, int cols)
{
    struct keeper k = {.out = {.write = keep, .progress = no_progress}};
    struct out *was = con->out;
    struct rs_error err = {0};
    (void)ctx;
    (void)rows;
    (void)cols;
    char *patches = json_dumps(json_object_get(json_object_get(con->info, "state"), "patches"), JSON_COMPACT);
    char *code = xasprintf("require('board').notebook([==[%s]==])", patches != NULL ? patches : "{}");
    con->out = &k.out;
    if (rcmd_lua_eval(con, code, &err) != RS_OK)
        buf_printf(&k.text, "%s\n", err.msg);
    con->out = was;
    free(code);
    free(patches);
    return buf_take(&k.text);
}
