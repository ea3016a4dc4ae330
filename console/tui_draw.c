/* tui_draw.c: a whole frame: status line, frames of panels, the line of input, hints and overlays. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/line.h"
#include "console/tui.h"
#include "console/tui_keymap.h"
#include "console/units.h"

struct lines {
    uint32_t h, v, nw, ne, sw, se;
};

static const struct lines *lines_of(const struct tui *t)
{
    static const struct lines unicode = {0x2500, 0x2502, 0x256d, 0x256e, 0x2570, 0x256f}, ascii = {'-', '|', '+', '+', '+', '+'};
    return t->ascii ? &ascii : &unicode;
}

void tui_draw_number(struct tui *t, int y, int x, int w, uint8_t role, double value, int digits, const char *unit)
{
    char text[48];
    bool known = isfinite(value);
    if (known)
        snprintf(text, sizeof text, "%.*f%s", digits, value, unit);
    else
        snprintf(text, sizeof text, "N/A");
    int n = (int)strlen(text);
    grid_str(&t->grid, y, x + (n < w ? w - n : 0), w, known ? role : ROLE_ABSENT, text);
}

void tui_list_fit(struct tui_list *l, int n, int h)
{
    l->n = n;
    l->h = h;
    if (l->selected >= n)
        l->selected = n > 0 ? n - 1 : 0;
    if (l->top > l->selected)
        l->top = l->selected;
    if (l->top < l->selected - h + 1)
        l->top = l->selected - h + 1;
    if (l->top > n - h)
        l->top = n - h;
    if (l->top < 0)
        l->top = 0;
}

/* ---- status line --------------------------------------------------------------------------------------------------------------------- */

/* Parts of the status line: what must stay longest has the lowest number. */
struct part {
    int keep;
    uint8_t role;
    char text[80];
};

#define MAX_PARTS 16

static void add_part(struct part *parts, int *n, int keep, uint8_t role, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void add_part(struct part *parts, int *n, int keep, uint8_t role, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap), *line = text_one_line(text);
    va_end(ap);
    if (*n < MAX_PARTS) {
        parts[*n] = (struct part){.keep = keep, .role = role};
        snprintf(parts[*n].text, sizeof parts[*n].text, "%s", line);
        ++*n;
    }
    free(text);
    free(line);
}

/* What is known of the last answer comes with its end, before the engine's state says so as well. While the next one comes nothing is said: it would be taken
 * for a judgement of that one. */
static void add_verdict(struct part *parts, int *n, const struct con *con)
{
    const json_t *done = con->answer.done;
    const char *verdict = js_str(done != NULL ? done : json_object_get(con->info, "state"), "verdict", NULL);
    if (verdict == NULL || con->answer.running)
        return;
    bool ok = strcmp(verdict, "ok") == 0, bad = strcmp(verdict, "garbage") == 0;
    add_part(parts, n, 2,
             bad  ? ROLE_STATUS_BAD
             : ok ? ROLE_STATUS
                  : ROLE_STATUS_WARN,
             bad  ? "GARBAGE!"
             : ok ? "output ok"
                  : "output %s?",
             verdict);
}

/* Tokens of context in use: of what runs now (the engine announces that only when something begins or ends; the answer's own tokens are counted here), or
 * where nothing runs of the conversation, which comes back with the next question. */
static json_int_t context_used(const struct con *con, const json_t *state)
{
    json_int_t used = js_int(state, "ctx_used", -1), own = con->answer.running ? con->answer.prompt + con->answer.tokens : 0;
    if (used >= 0 && own > used)
        return own;
    if (used == 0 && con->conv.n > 0 && !con->answer.running && con->answer.done != NULL)
        used = js_int(con->answer.done, "prompt_tokens", 0) + js_int(con->answer.done, "tokens", 0);
    return used;
}

static int status_parts(const struct tui *t, struct part *parts)
{
    const struct con *con = t->con;
    const json_t *model = json_object_get(con->info, "model"), *state = json_object_get(con->info, "state");
    const struct rs_snapshot *s = &t->data.snap;
    int n = 0;
    add_part(parts, &n, 6, ROLE_STATUS_STRONG, "%s", js_str(model, "name", "no model"));
    if (con->lost)
        add_part(parts, &n, 0, ROLE_STATUS_BAD, "ENGINE GONE");
    if (!t->data.have)
        return n;
    bool graph = s->mode == 1, armed = js_bool(state, "armed", false);
    add_part(parts, &n, 3, ROLE_STATUS, "%u rank%s%s", s->n_ranks, s->n_ranks == 1 ? "" : "s", s->simulated ? " sim" : "");
    if (con->stopped != NULL)
        add_part(parts, &n, 0, ROLE_STATUS_BAD, "HELD at %s", js_str(con->stopped, "site", "?"));
    add_part(parts, &n, 1, armed ? ROLE_STATUS_WARN : ROLE_STATUS_STRONG, "%s", armed ? "EAGER (armed)" : graph ? "GRAPH" : "EAGER");
    if (isfinite(s->tok_per_s) && s->tok_per_s > 0)
        add_part(parts, &n, 2, ROLE_STATUS, "%.1f tok/s", (double)s->tok_per_s);
    if (isfinite(s->step_p50_us))
        add_part(parts, &n, 5, ROLE_STATUS, "%.2f ms/step", (double)s->step_p50_us / 1e3);
    json_int_t used = context_used(con, state), total = js_int(state, "ctx_total", -1);
    if (used >= 0 && total > 0)
        add_part(parts, &n, 7, ROLE_STATUS, "ctx %lld/%lld", (long long)used, (long long)total);
    size_t patches = json_object_size(json_object_get(state, "patches"));
    if (patches > 0)
        add_part(parts, &n, 2, ROLE_STATUS_WARN, "%zu patch%s", patches, patches == 1 ? "" : "es");
    add_verdict(parts, &n, con);
    int slow = tui_data_slowest(s);
    if (slow >= 0 && s->rank[slow].busy_us > 0 && tui_data_wait_share(&s->rank[slow == 0 ? 1 : 0]) > 0.5)
        add_part(parts, &n, 4, ROLE_STATUS_WARN, "rank %d slow", slow);
    if (t->frozen)
        add_part(parts, &n, 1, ROLE_STATUS_WARN, "FROZEN");
    if (t->read_only || con->only_looks)
        add_part(parts, &n, 4, ROLE_STATUS, "only looking");
    return n;
}

static void draw_status(struct tui *t)
{
    struct part parts[MAX_PARTS];
    int n = status_parts(t, parts), cols = t->layout.status.w;
    grid_fill(&t->grid, t->layout.status, ROLE_STATUS);
    for (;;) {
        int width = 1, least = -1;
        for (int i = 0; i < n; i++) {
            width += grid_columns(parts[i].text, strlen(parts[i].text), t->ascii) + 3;
            if (least < 0 || parts[i].keep > parts[least].keep)
                least = i;
        }
        if (width - 2 <= cols || n <= 1)
            break;
        memmove(parts + least, parts + least + 1, (size_t)(n - least - 1) * sizeof parts[0]);
        n--;
    }
    int x = 1;
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            grid_char(&t->grid, 0, x + 1, ROLE_STATUS, t->ascii ? '|' : 0x00b7);
            x += 3;
        }
        x += grid_str(&t->grid, 0, x, cols - x, parts[i].role, parts[i].text);
    }
}

/* ---- panels -------------------------------------------------------------------------------------------------------------------------- */

static void draw_frame(struct tui *t, int panel)
{
    const struct grid_rect *r = &t->layout.panel[panel];
    const struct lines *l = lines_of(t);
    bool focus = t->focus == panel, boxed = t->layout.boxed;
    uint8_t role = focus ? ROLE_FRAME_FOCUS : ROLE_FRAME, title = focus ? ROLE_TITLE_FOCUS : ROLE_TITLE;
    struct grid *g = &t->grid;
    for (int x = r->x; x < r->x + r->w; x++) {
        grid_char(g, r->y, x, role, l->h);
        if (boxed)
            grid_char(g, r->y + r->h - 1, x, role, l->h);
    }
    for (int y = r->y + 1; y < r->y + r->h && (boxed || r->x > 0); y++) {
        grid_char(g, y, r->x, role, l->v);
        if (boxed)
            grid_char(g, y, r->x + r->w - 1, role, l->v);
    }
    if (boxed) {
        grid_char(g, r->y, r->x, role, l->nw);
        grid_char(g, r->y, r->x + r->w - 1, role, l->ne);
        grid_char(g, r->y + r->h - 1, r->x, role, l->sw);
        grid_char(g, r->y + r->h - 1, r->x + r->w - 1, role, l->se);
    }
    char number[8] = "";
    if (panel < TUI_NUMBERED) /* the others have no key */
        snprintf(number, sizeof number, "%d ", panel + 1);
    grid_printf(g, r->y, r->x + 2, r->w - 3, title, focus ? "[%s%s]" : " %s%s ", number, tui_panel_title(panel));
}

/* A word at the right of a panel's title line. */
static void draw_corner(struct tui *t, int panel, uint8_t role, const char *text)
{
    const struct grid_rect *r = &t->layout.panel[panel];
    int n = grid_columns(text, strlen(text), t->ascii);
    if (n + 24 < r->w)
        grid_str(&t->grid, r->y, r->x + r->w - n - 2, n, role, text);
}

/* Where not all ranks find room: which of them are in sight. */
static void draw_ranks_corner(struct tui *t, int rows)
{
    char text[48];
    const int n = t->data.have ? (int)t->data.snap.n_ranks : 0, top = t->lists[TUI_RANKS].top;
    if (n <= rows)
        return;
    snprintf(text, sizeof text, " %d-%d of %d ", top, top + rows - 1 < n ? top + rows - 1 : n - 1, n);
    draw_corner(t, TUI_RANKS, ROLE_DIM, text);
}

static void draw_panel(struct tui *t, int panel)
{
    struct grid_rect r = t->layout.inner[panel];
    draw_frame(t, panel);
    switch ((enum tui_panel)panel) {
    case TUI_CHAT:
        tui_text_draw(&t->chat, &t->grid, r, ROLE_NOTE);
        if (t->chat.copy.on)
            draw_corner(t, panel, ROLE_CHANGED, t->chat.copy.marked ? " selecting " : " select ");
        else if (t->chat.fold)
            draw_corner(t, panel, ROLE_DIM, " folded ");
        if (t->chat.n == 0)
            grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM,
                     t->read_only ? "This console only looks." : "Say something to the model, or /help.");
        if (t->chat.n == 0 && r.h > 1)
            grid_str(&t->grid, r.y + 1, r.x, r.w, ROLE_DIM, t->con->others);
        break;
    case TUI_RANKS:
        tui_draw_ranks(t, r);
        draw_ranks_corner(t, r.h - 1);
        break;
    case TUI_ALLREDUCE: tui_draw_allreduce(t, r); break;
    case TUI_STEP: tui_draw_step(t, r); break;
    case TUI_OPS:
        tui_draw_ops(t, r);
        if (t->filter[0] != '\0')
            draw_corner(t, panel, ROLE_CHANGED, " filtered ");
        break;
    case TUI_PATCHES: tui_draw_patches(t, r); break;
    case TUI_REQUESTS: tui_draw_requests(t, r); break;
    case TUI_LOG: tui_text_draw(&t->log, &t->grid, r, ROLE_NOTE); break;
    default: t->lists[panel].n = tui_custom_draw(panel - TUI_CUSTOM, &t->grid, &r, &t->lists[panel].top); break;
    }
}

/* ---- the line of input --------------------------------------------------------------------------------------------------------------- */

struct pen {
    struct grid *g; /* NULL: only measure */
    struct grid_rect r;
    int skip; /* rows that scrolled out at the top */
    int row, col;
};

static void pen_char(struct pen *p, uint8_t role, const char *bytes, size_t n, int width)
{
    if (p->col + width > p->r.w) {
        p->row++;
        p->col = 0;
    }
    int y = p->row - p->skip;
    if (p->g != NULL && y >= 0 && y < p->r.h)
        grid_text(p->g, p->r.y + y, p->r.x + p->col, width, role, bytes, n);
    p->col += width;
}

static void pen_text(struct pen *p, uint8_t role, const char *text, size_t len)
{
    bool ascii = p->g != NULL && p->g->ascii;
    for (size_t i = 0; i < len;) {
        unsigned cp = 0;
        int n = text_utf8((const unsigned char *)text + i, len - i, &cp);
        if (n <= 0)
            n = 1;
        if (text[i] == '\n') {
            p->row++;
            p->col = 0;
        } else if (text[i] != '\001' && text[i] != '\002') { /* readline's marks around what has no width */
            pen_char(p, role, text[i] == '\t' ? " " : text + i, (size_t)n, text[i] == '\t' ? 1 : grid_columns(text + i, (size_t)n, ascii));
        }
        i += (size_t)n;
    }
}

/* Draw or measure; returns rows, and where the cursor is in them. */
static int input(struct pen *p, int *cursor_row, int *cursor_col)
{
    size_t point;
    const char *text = line_text(&point), *before = line_prefix();
    pen_text(p, ROLE_KEY, before, strlen(before));
    pen_text(p, ROLE_TEXT, text, point);
    *cursor_row = p->row + (p->col >= p->r.w);
    *cursor_col = p->col >= p->r.w ? 0 : p->col;
    pen_text(p, ROLE_TEXT, text + point, strlen(text + point));
    return (p->row > *cursor_row ? p->row : *cursor_row) + 1;
}

/* On the rule above the input: what is going on. */
static void draw_rule(struct tui *t, struct grid_rect r)
{
    const struct con *con = t->con;
    struct grid *g = &t->grid;
    bool focus = t->focus == TUI_PROMPT;
    uint8_t role = focus ? ROLE_FRAME_FOCUS : ROLE_FRAME;
    for (int x = 0; x < r.w; x++)
        grid_char(g, r.y, x, role, lines_of(t)->h);
    int x = 2 + grid_str(g, r.y, 2, 12, focus ? ROLE_TITLE_FOCUS : ROLE_TITLE, focus ? "[Input]" : " Input ");
    if (t->progress != NULL)
        x += grid_printf(g, r.y, x + 1, r.w - x - 3, ROLE_CHANGED, " %s, Escape gives up ", t->progress) + 1;
    else if (con->stopped != NULL)
        x += grid_str(g, r.y, x + 1, r.w - x - 3, ROLE_WARN, " the engine is held; F7 one op, F6 next layer, F5 on ") + 1;
    else if (con->answer.running)
        x += grid_str(g, r.y, x + 1, r.w - x - 3, ROLE_NOTE, " answering, Ctrl-C stops ") + 1;
    else if (t->running > 0)
        x += grid_str(g, r.y, x + 1, r.w - x - 3, ROLE_NOTE, " working, Ctrl-C stops waiting ") + 1;
    if (t->n_waiting > 0)
        x += grid_printf(g, r.y, x + 1, r.w - x - 3, ROLE_NOTE, " %zu waiting ", t->n_waiting) + 1;
    if (t->message[0] != '\0')
        grid_printf(g, r.y, x + 1, r.w - x - 3, t->message_bad ? ROLE_WARN : ROLE_NOTE, " %s ", t->message);
}

static void draw_prompt(struct tui *t, int *y, int *x)
{
    struct grid_rect r = t->layout.prompt;
    int row, col;
    if (r.h == 0)
        return;
    draw_rule(t, r);
    struct pen measure = {.r = {0, 0, 1, r.w}};
    input(&measure, &row, &col);
    struct pen pen = {.g = &t->grid, .r = {r.y + 1, 0, r.h - 1, r.w}};
    pen.skip = row >= pen.r.h ? row - pen.r.h + 1 : 0;
    input(&pen, &row, &col);
    if (t->focus == TUI_PROMPT && t->asking == TUI_ASKING_NOTHING && t->overlay != TUI_OVERLAY_HELP && t->overlay != TUI_OVERLAY_OP) {
        *y = pen.r.y + row - pen.skip;
        *x = col;
    }
}

/* ---- hints --------------------------------------------------------------------------------------------------------------------------- */

/* The list of what could be completed lies over the panels and takes no keys but Escape. */
static unsigned where(const struct tui *t)
{
    return tui_context(t, t->overlay == TUI_OVERLAY_MATCHES);
}

/* Whether the row's key does here what the row says: another row, or a binding of the person's, may come first. */
static bool has_hint(const struct tui *t, const struct tui_binding *b)
{
    struct tui_key k;
    return b->hint != NULL && tui_key_parse(b->key, &k) && tui_keymap_find(where(t), &k) == b;
}

static int hint_columns(const struct tui_binding *b)
{
    return (int)(strlen(b->key) + strlen(b->hint)) + 3;
}

static void draw_hint(struct tui *t, int *y, int *x)
{
    struct grid_rect r = t->layout.hint;
    struct grid *g = &t->grid;
    int at = 1;
    t->n_hints = 0;
    if (t->asking != TUI_ASKING_NOTHING) {
        at += grid_str(g, r.y, at, r.w - at, ROLE_KEY, t->asking == TUI_ASKING_FILTER ? "show only: " : "search: ");
        at += grid_str(g, r.y, at, r.w - at - 1, ROLE_TEXT, t->asked);
        *y = r.y;
        *x = at;
        return;
    }
    if (t->prompt_hidden && t->message[0] != '\0') {
        grid_str(g, r.y, at, r.w - at, t->message_bad ? ROLE_WARN : ROLE_NOTE, t->message);
        return;
    }
    char right[48];
    snprintf(right, sizeof right, "%s", t->preset_name);
    int room = r.w - (int)strlen(right) - 3, help = 0;
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++)
        if (b->action == TUI_DO_HELP && has_hint(t, b))
            help = hint_columns(b); /* where the other keys stand must be in sight */
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++) {
        if (!has_hint(t, b) || at + hint_columns(b) > room - (b->action == TUI_DO_HELP ? 0 : help))
            continue;
        if (t->n_hints < TUI_HINTS)
            t->hints[t->n_hints++] = (struct tui_hint){b, at, at + hint_columns(b) - 2};
        at += grid_str(g, r.y, at, r.w - at, ROLE_KEY, b->key) + 1;
        at += grid_str(g, r.y, at, r.w - at, ROLE_HINT, b->hint) + 2;
    }
    grid_str(g, r.y, r.w - (int)strlen(right) - 1, (int)strlen(right), ROLE_DIM, right);
}

/* ---- overlays ------------------------------------------------------------------------------------------------------------------------ */

static struct grid_rect window(struct tui *t, int h, int w, const char *title)
{
    const struct lines *l = lines_of(t);
    struct grid *g = &t->grid;
    h = h > t->layout.area.h ? t->layout.area.h : h;
    w = w > g->cols ? g->cols : w;
    struct grid_rect r = {t->layout.area.y + (t->layout.area.h - h) / 2, (g->cols - w) / 2, h, w};
    grid_fill(g, r, ROLE_TEXT);
    for (int x = r.x; x < r.x + w; x++) {
        grid_char(g, r.y, x, ROLE_FRAME_FOCUS, l->h);
        grid_char(g, r.y + h - 1, x, ROLE_FRAME_FOCUS, l->h);
    }
    for (int y = r.y; y < r.y + h; y++) {
        grid_char(g, y, r.x, ROLE_FRAME_FOCUS, y == r.y ? l->nw : y == r.y + h - 1 ? l->sw : l->v);
        grid_char(g, y, r.x + w - 1, ROLE_FRAME_FOCUS, y == r.y ? l->ne : y == r.y + h - 1 ? l->se : l->v);
    }
    grid_printf(g, r.y, r.x + 2, w - 4, ROLE_TITLE_FOCUS, " %s ", title);
    return (struct grid_rect){r.y + 1, r.x + 2, h - 2, w - 4};
}

/* One entry of the help text, in as many lines as it takes, as far as they are in sight. */
static void help_line(struct tui *t, struct grid_rect r, int *row, const char *key, const char *help)
{
    int x = key != NULL ? 21 : 0;
    for (size_t at = 0, len = strlen(help), next = 0, n; at < len; at += next) {
        n = tui_wrap(help + at, len - at, r.w - x, t->ascii, &next);
        int y = (*row)++ - t->overlay_top;
        if (y < 0 || y >= r.h)
            continue;
        if (key != NULL && at == 0)
            grid_str(&t->grid, r.y + y, r.x + 2, 18, ROLE_KEY, key);
        grid_printf(&t->grid, r.y + y, r.x + x, r.w - x, key != NULL ? ROLE_TEXT : ROLE_HEAD, "%.*s", (int)n, help + at);
    }
}

/* Keys of the rows in `places` that have exactly these places, the bound-together keys on one line. */
static void help_section(struct tui *t, struct grid_rect r, int *row, unsigned places)
{
    char name[64];
    snprintf(name, sizeof name, "%s", tui_keymap_where(places));
    bool first = true;
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++) {
        if (b->where != places || b->help == NULL)
            continue;
        char keys[64] = "";
        for (const struct tui_binding *c = b; c->key != NULL && (c == b || c->help == NULL) && c->where == b->where; c++)
            if (tui_keymap_holds(c) && strlen(keys) + strlen(c->key) + 2 < 18)
                snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s", keys[0] != '\0' ? " " : "", c->key);
        if (keys[0] == '\0')
            continue;
        if (first)
            help_line(t, r, row, NULL, name);
        first = false;
        help_line(t, r, row, keys, b->help);
    }
}

/* What a person or a script has bound. */
static void help_added(struct tui *t, struct grid_rect r, int *row)
{
    const struct tui_binding *b;
    for (size_t i = 0; (b = tui_keymap_added(i)) != NULL; i++) {
        char *help = text_one_line(b->help), *line = xasprintf("%s, %s", help, tui_keymap_where(b->where));
        if (i == 0)
            help_line(t, r, row, NULL, "bound by you");
        help_line(t, r, row, b->key, line);
        free(help);
        free(line);
    }
}

/* Keys of the line of input that are no bindings of ours. */
static void help_input(struct tui *t, struct grid_rect r, int *row)
{
    help_line(t, r, row, "Tab", "complete the word: commands, patches, files, sites of ops");
    help_line(t, r, row, "Up Down Ctrl-R", "lines that were typed before; the keys are readline's");
    help_line(t, r, row, "Ctrl-C", "stop what runs, or drop the line");
    help_line(t, r, row, "Ctrl-D", "leave the console");
    help_line(t, r, row, "Ctrl-Z", "suspend");
}

/* The place that keys go to first, then the rest, the most usual first. */
static void draw_help(struct tui *t)
{
    static const unsigned places[] = {TUI_LOOKS, TUI_IN_PROMPT, TUI_ANYWHERE, TUI_IN_PANEL, TUI_HELD, TUI_IN_CHAT, TUI_IN_TEXT, TUI_IN_OPS, TUI_IN_PATCHES, TUI_IN_REQUESTS, TUI_IN_OP, TUI_IN_COPY, TUI_IN_OVERLAY};
    const size_t n = sizeof places / sizeof places[0];
    unsigned here = tui_context(t, true);
    struct grid_rect r = window(t, 100, 84, "Keys");
    int row = 0;
    help_added(t, r, &row);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            bool special = (places[i] & here) != 0 && places[i] != TUI_ANYWHERE && places[i] != TUI_IN_PANEL;
            if (special != (pass == 0) || places[i] == (t->read_only ? TUI_IN_PROMPT : TUI_LOOKS))
                continue;
            help_section(t, r, &row, places[i]);
            if (places[i] == TUI_IN_PROMPT)
                help_input(t, r, &row);
        }
    help_line(t, r, &row, NULL, "/help lists the commands");
    t->overlay_rows = row > r.h ? row - r.h : 0;
    if (t->overlay_top > t->overlay_rows)
        t->overlay_top = t->overlay_rows;
}

static void draw_matches(struct tui *t)
{
    int widest = 1;
    for (size_t i = 0; i < t->n_matches; i++) {
        int w = grid_columns(t->matches[i], strlen(t->matches[i]), t->ascii);
        widest = w > widest ? w : widest;
    }
    int columns = (t->grid.cols - 6) / (widest + 2);
    columns = columns < 1 ? 1 : columns;
    int rows = ((int)t->n_matches + columns - 1) / columns, room = t->layout.area.h - 2;
    int shown = rows < room ? rows : room;
    struct grid_rect r = window(t, shown + 2, columns * (widest + 2) + 2, "Tab: could be");
    for (int i = 0; i < (int)t->n_matches && i < shown * columns; i++)
        grid_str(&t->grid, r.y + i / columns, r.x + i % columns * (widest + 2), widest, ROLE_TEXT, t->matches[i]);
}

static void draw_overlay(struct tui *t)
{
    switch (t->overlay) {
    case TUI_OVERLAY_HELP: draw_help(t); break;
    case TUI_OVERLAY_OP: {
        struct grid_rect r = window(t, t->layout.area.h - 2, t->grid.cols - 8, t->op_site);
        tui_draw_op(t, r);
        break;
    }
    case TUI_OVERLAY_MATCHES: draw_matches(t); break;
    case TUI_OVERLAY_NONE: break;
    }
}

/* ---- all of it ----------------------------------------------------------------------------------------------------------------------- */

static void draw_too_small(struct tui *t)
{
    struct grid *g = &t->grid;
    int y = g->rows / 2 > 0 ? g->rows / 2 - 1 : 0;
    const char *a = "terminal too small";
    char b[48];
    snprintf(b, sizeof b, "have %dx%d, need %dx%d", g->cols, g->rows, t->read_only ? TUI_LOOK_COLS : TUI_MIN_COLS, t->read_only ? TUI_LOOK_ROWS : TUI_MIN_ROWS);
    int xa = (g->cols - (int)strlen(a)) / 2, xb = (g->cols - (int)strlen(b)) / 2;
    grid_str(g, y, xa > 0 ? xa : 0, g->cols, ROLE_WARN, a);
    grid_str(g, y + 1, xb > 0 ? xb : 0, g->cols, ROLE_TEXT, b);
    const char *c = t->read_only ? "q leaves" : "F12: the plain console";
    int xc = (g->cols - (int)strlen(c)) / 2;
    grid_str(g, y + 2, xc > 0 ? xc : 0, g->cols, ROLE_TEXT, c);
}

/* Only what is in sight is asked for. */
static void want(struct tui *t)
{
    const bool *shown = t->layout.shown;
    t->data.wanted[TUI_ASK_STATS] = shown[TUI_STEP];
    t->data.wanted[TUI_ASK_ALLREDUCE] =
        shown[TUI_ALLREDUCE] || (shown[TUI_RANKS] && t->data.have && !isfinite(t->data.snap.rank[0].ar_p50_us));
    t->data.wanted[TUI_ASK_LEDGER] = shown[TUI_OPS] || t->overlay == TUI_OVERLAY_OP;
    t->data.wanted[TUI_ASK_REQUESTS] = shown[TUI_REQUESTS];
    t->data.wanted[TUI_ASK_BREAKS] = t->data.wanted[TUI_ASK_TAPS] = shown[TUI_OPS] || t->overlay == TUI_OVERLAY_OP;
    t->data.wanted[TUI_ASK_PATCHES] = shown[TUI_PATCHES] || shown[TUI_ALLREDUCE];
}

void tui_draw(struct tui *t, int *y, int *x)
{
    struct pen measure = {.r = {0, 0, 1, t->grid.cols}};
    int row, col;
    t->prompt_hidden = t->read_only;
    struct tui_layout_args args = {
        .rows = t->grid.rows,
        .cols = t->grid.cols,
        .prompt_rows = t->prompt_hidden ? 0 : input(&measure, &row, &col),
        .ranks = (t->data.have ? (int)t->data.snap.n_ranks : 1) + 1,
        .zoom = t->zoom,
    };
    tui_layout_compute(&t->tree, &args, &t->layout);
    if (t->layout.too_small) {
        draw_too_small(t);
        return;
    }
    bool visible = t->focus == TUI_PROMPT || t->layout.shown[t->focus];
    if (!visible) /* the focused panel found no room: it gets all of it */
        t->zoom = t->focus;
    if (!visible) {
        args.zoom = t->zoom;
        tui_layout_compute(&t->tree, &args, &t->layout);
    }
    want(t);
    draw_status(t);
    for (int i = 0; i < TUI_PANELS; i++)
        if (t->layout.shown[i])
            draw_panel(t, i);
    draw_prompt(t, y, x);
    const struct tui_text *text = t->focus == TUI_CHAT ? &t->chat : t->focus == TUI_LOG ? &t->log : NULL;
    if (text != NULL && text->copy.on && text->copy.y >= 0 && t->overlay == TUI_OVERLAY_NONE) {
        *y = text->copy.y;
        *x = text->copy.x;
    }
    draw_hint(t, y, x);
    draw_overlay(t);
}
