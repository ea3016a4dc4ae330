/* tui_bind.c: bindings that persons and scripts add, and the names of actions and places. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/text.h"
#include "console/tui_keymap.h"
#include "console/tui_layout.h"

struct added {
    struct tui_binding b; /* first; key and help are ours */
    struct tui_job job;   /* and so is the line */
    void (*drop)(void *ctx);
    struct added *next;
};

static struct added *s_added; /* the newest first */

static const struct {
    const char *name;
    unsigned where;
} s_places[] = {
    {"anywhere", TUI_ANYWHERE}, {"panels", TUI_IN_PANEL},  {"input", TUI_IN_PROMPT},  {"window", TUI_IN_OVERLAY},        {"chat", TUI_IN_CHAT},
    {"log", TUI_IN_LOG},        {"text", TUI_IN_TEXT},     {"ranks", TUI_IN_RANKS},   {"allreduce", TUI_IN_ALLREDUCE}, {"step", TUI_IN_STEP},
    {"ops", TUI_IN_OPS},        {"patches", TUI_IN_PATCHES}, {"custom", TUI_IN_CUSTOM},
    {"held", TUI_HELD},      {"op", TUI_IN_OP},     {"copy", TUI_IN_COPY},
    {"requests", TUI_IN_REQUESTS},
};

static const struct {
    const char *name;
    enum tui_action action;
    int arg;
    const char *help;
} s_actions[] = {
    {"help", TUI_DO_HELP, 0, "the list of keys"},
    {"close", TUI_DO_CLOSE, 0, "close a window such as this"},
    {"plain", TUI_DO_TOGGLE, 0, "to the plain console, and back"},
    {"input", TUI_DO_PROMPT, 0, "to the line of input"},
    {"quit", TUI_DO_QUIT, 0, "leave the console"},
    {"command", TUI_DO_COMMAND, 0, "to the line of input, with a slash in it"},
    {"panels", TUI_DO_PANELS, 0, "to the panel that was used last"},
    {"next-panel", TUI_DO_NEXT_PANEL, 0, "to the next panel"},
    {"previous-panel", TUI_DO_PREVIOUS_PANEL, 0, "to the panel before"},
    {"zoom", TUI_DO_ZOOM, 0, "the panel alone, and back"},
    {"arrange", TUI_DO_PRESET, 0, "next arrangement"},
    {"grow", TUI_DO_GROW, 0, "make the panel larger"},
    {"shrink", TUI_DO_SHRINK, 0, "make the panel smaller"},
    {"freeze", TUI_DO_FREEZE, 0, "freeze the figures, and go on"},
    {"theme", TUI_DO_THEME, 0, "next theme"},
    {"plots", TUI_DO_PLOTS, 0, "plots in braille, blocks or ASCII"},
    {"repaint", TUI_DO_REPAINT, 0, "paint the screen anew"},
    {"down", TUI_DO_MOVE, 1, "a row down"},
    {"up", TUI_DO_MOVE, -1, "a row up"},
    {"page-down", TUI_DO_PAGE, 1, "a page down"},
    {"page-up", TUI_DO_PAGE, -1, "a page up"},
    {"home", TUI_DO_HOME, 0, "to the beginning"},
    {"end", TUI_DO_END, 0, "to the end"},
    {"search", TUI_DO_SEARCH, 0, "search in Chat or Log"},
    {"next-match", TUI_DO_NEXT_MATCH, -1, "next match upwards"},
    {"previous-match", TUI_DO_PREVIOUS_MATCH, 1, "next match downwards"},
    {"fold", TUI_DO_FOLD, 0, "fold or unfold what was thought"},
    {"copy", TUI_DO_COPY, 0, "copy the last answer"},
    {"select", TUI_DO_SELECT, 0, "choose a part of Chat or Log to copy"},
    {"select-begin", TUI_DO_SELECT_MARK, 0, "the part begins at the cursor"},
    {"select-lines", TUI_DO_SELECT_MARK, 1, "it is made of whole lines"},
    {"select-take", TUI_DO_SELECT_TAKE, 0, "copy it"},
    {"select-end", TUI_DO_SELECT_END, 0, "copy nothing"},
    {"right", TUI_DO_SELECT_CHAR, 1, "a character on"},
    {"left", TUI_DO_SELECT_CHAR, -1, "a character back"},
    {"next-word", TUI_DO_SELECT_WORD, 1, "a word on"},
    {"previous-word", TUI_DO_SELECT_WORD, -1, "a word back"},
    {"line-begin", TUI_DO_SELECT_EDGE, -1, "to the beginning of the line"},
    {"line-end", TUI_DO_SELECT_EDGE, 1, "to its end"},
    {"open", TUI_DO_OPEN_OP, 0, "open the op that is selected in Ops"},
    {"tap", TUI_DO_TAP, 0, "observe the output of the op that is open or selected, or stop that"},
    {"break", TUI_DO_BREAK, 0, "stop the engine after that op, or do not any more"},
    {"stop-request", TUI_DO_STOP_REQUEST, 0, "stop the request that is selected in Requests"},
    {"step", TUI_DO_GO, 0, "of a stopped engine: run one op"},
    {"next", TUI_DO_GO, 1, "run to the first op of the next layer"},
    {"continue", TUI_DO_GO, 2, "run on"},
    {"sort", TUI_DO_SORT, 0, "sort the ops by another column"},
    {"filter", TUI_DO_FILTER, 0, "show only ops that hold a word"},
    {"choose-next", TUI_DO_OTHER_IMPL, 1, "choose the next implementation in Patches"},
    {"choose-previous", TUI_DO_OTHER_IMPL, -1, "choose the one before"},
    {"swap", TUI_DO_SWAP, 0, "swap in the chosen implementation"},
    {"revert", TUI_DO_REVERT, 0, "go back one generation of patches"},
};

#define N_PLACES (sizeof s_places / sizeof s_places[0])
#define N_ACTIONS (sizeof s_actions / sizeof s_actions[0])

unsigned tui_keymap_place(const char *name)
{
    for (size_t i = 0; i < N_PLACES; i++)
        if (strcmp(s_places[i].name, name) == 0)
            return s_places[i].where;
    return 0;
}

void tui_keymap_actions(void (*each)(void *ctx, const char *name, const char *help), void *ctx)
{
    for (size_t i = 0; i < N_ACTIONS; i++)
        each(ctx, s_actions[i].name, s_actions[i].help);
    each(ctx, "panel NAME", "to the panel of that name");
    each(ctx, "none", "nothing");
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------------ */

/* The key as it will arrive: "C-m" is Enter to every terminal. */
static bool read_key(const char *name, struct tui_key *out)
{
    struct tui_decoder d = {0};
    struct tui_key k;
    if (!tui_key_parse(name, &k))
        return false;
    tui_key_feed(&d, k.bytes, k.n);
    bool good = tui_key_next(&d, true, out) && out->code != TUI_KEY_UNKNOWN && !tui_key_waiting(&d);
    tui_key_fini(&d);
    return good;
}

static bool types(const struct tui_key *k)
{
    return (k->code < TUI_KEY_NONE && k->mods == 0) || k->code == TUI_KEY_ENTER || k->code == TUI_KEY_BACKSPACE;
}

static bool same_key(const struct tui_binding *b, const struct tui_key *k)
{
    struct tui_key want;
    return tui_key_parse(b->key, &want) && want.code == k->code && want.mods == k->mods;
}

static enum rs_result check_key(const char *name, const char *place, struct tui_key *k, unsigned *where, struct rs_error *err)
{
    if (!read_key(name, k))
        return fail_set(err, RS_EUSAGE, "there is no key '%s'; keys are written F5, C-t (with Ctrl), M-d (with Alt), S-Tab, PageUp, Space, x", name);
    if (k->mods == TUI_CTRL && (k->code == 'c' || k->code == 'd' || k->code == 'z' || k->code == 'x'))
        return fail_set(err, RS_EUSAGE, "%s cannot be bound: it interrupts, ends, suspends, or begins Ctrl-X Ctrl-A", name);
    *where = place != NULL ? tui_keymap_place(place) : types(k) ? TUI_IN_PANEL : TUI_ANYWHERE;
    if (*where == 0) {
        struct buf b = {0};
        for (size_t i = 0; i < N_PLACES; i++)
            buf_printf(&b, "%s%s", i > 0 ? ", " : "", s_places[i].name);
        enum rs_result r = fail_set(err, RS_EUSAGE, "there is no place '%s'; places are %s", place, b.text);
        buf_fini(&b);
        return r;
    }
    if (types(k) && *where & TUI_IN_PROMPT)
        return fail_set(err, RS_EUSAGE, "%s is needed to type; bind it in panels, or take it with Ctrl or Alt", name);
    return RS_OK;
}

/* ---- actions --------------------------------------------------------------------------------------------------------------------------- */

static enum rs_result no_action(const char *name, struct rs_error *err)
{
    struct buf b = {0};
    for (size_t i = 0; i < N_ACTIONS; i++)
        buf_printf(&b, "%s, ", s_actions[i].name);
    enum rs_result r = fail_set(err, RS_EUSAGE, "there is no action '%s'; it is /COMMAND, =LUA, %spanel NAME or none", name, b.text);
    buf_fini(&b);
    return r;
}

static enum rs_result read_action(const struct tui_bind *in, struct tui_binding *out, char **line, struct rs_error *err)
{
    const char *a = in->action;
    if (a == NULL || a[0] == '/' || a[0] == '=') {
        size_t bad;
        if (a == NULL && in->fn == NULL)
            return fail_set(err, RS_EUSAGE, "nothing to bind to %s", in->key);
        if (a != NULL && (!text_valid(a, strlen(a), &bad) || strchr(a, '\n') != NULL))
            return fail_set(err, RS_EUSAGE, "what a key types is one line of UTF-8 text");
        out->action = TUI_DO_LINE;
        *line = a != NULL ? xstrdup(a) : NULL;
        out->help = xstrdup(in->help != NULL ? in->help : a != NULL ? a : "a function of a script");
        return RS_OK;
    }
    if (strcmp(a, "none") == 0) {
        out->action = TUI_DO_NOTHING;
        out->help = xstrdup(in->help != NULL ? in->help : "nothing");
        return RS_OK;
    }
    if (strncmp(a, "panel ", 6) == 0) {
        int panel = tui_panel_find(a + 6);
        if (panel < 0)
            return fail_set(err, RS_EUSAGE, "there is no panel '%s'", a + 6);
        out->action = TUI_DO_PANEL;
        out->arg = panel + 1;
        out->help = in->help != NULL ? xstrdup(in->help) : xasprintf("to the panel %s", tui_panel_title(panel));
        return RS_OK;
    }
    for (size_t i = 0; i < N_ACTIONS; i++) {
        if (strcmp(s_actions[i].name, a) != 0)
            continue;
        out->action = s_actions[i].action;
        out->arg = s_actions[i].arg;
        out->help = xstrdup(in->help != NULL ? in->help : s_actions[i].help);
        return RS_OK;
    }
    return no_action(a, err);
}

/* ---- the list -------------------------------------------------------------------------------------------------------------------------- */

static void free_added(struct added *a)
{
    if (a->drop != NULL)
        a->drop(a->job.ctx);
    free((char *)a->b.key);
    free((char *)a->b.help);
    free(a->job.line);
    free(a);
}

static void told(struct buf *was, const struct tui_binding *b, const char *help)
{
    buf_printf(was, "%s (%s)\n", help, tui_keymap_where(b->where));
}

/* What the key means in these places, before it means something else. */
static void tell(struct buf *was, unsigned where, const struct tui_key *k)
{
    const char *help = "";
    for (const struct added *a = s_added; a != NULL; a = a->next)
        if (a->b.where & where && same_key(&a->b, k))
            told(was, &a->b, a->b.help);
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++) {
        help = b->help != NULL ? b->help : help;
        if (b->where & where && same_key(b, k))
            told(was, b, help);
    }
}

/* Take bindings of the key away that stand in exactly these places (0: in any). */
static size_t take_away(unsigned where, const struct tui_key *k)
{
    size_t n = 0;
    for (struct added **at = &s_added; *at != NULL;) {
        struct added *a = *at;
        if (same_key(&a->b, k) && (where == 0 || a->b.where == where)) {
            *at = a->next;
            free_added(a);
            n++;
        } else {
            at = &a->next;
        }
    }
    return n;
}

enum rs_result tui_keymap_add(const struct tui_bind *in, struct buf *was, struct rs_error *err)
{
    struct tui_key k;
    struct tui_binding b = {0};
    struct tui_job job = {NULL, in->fn, in->ctx, in->live};
    char name[24];
    enum rs_result r = check_key(in->key, in->place, &k, &b.where, err);
    if (r == RS_OK)
        r = read_action(in, &b, &job.line, err);
    if (r != RS_OK)
        return r;
    b.key = xstrdup(tui_key_name(&k, name));
    if (was != NULL)
        tell(was, b.where, &k);
    take_away(b.where, &k);
    struct added *a = xcalloc(1, sizeof *a);
    *a = (struct added){b, job, in->drop, s_added};
    s_added = a;
    return RS_OK;
}

enum rs_result tui_keymap_remove(const char *key, const char *place, struct rs_error *err)
{
    struct tui_key k;
    unsigned where = place != NULL ? tui_keymap_place(place) : 0;
    if (!read_key(key, &k))
        return fail_set(err, RS_EUSAGE, "there is no key '%s'", key);
    if (place != NULL && where == 0)
        return fail_set(err, RS_EUSAGE, "there is no place '%s'", place);
    if (take_away(where, &k) == 0)
        return fail_set(err, RS_ENOTFOUND, "%s has the program's own meaning already", key);
    return RS_OK;
}

struct tui_job tui_keymap_job(const struct tui_binding *b)
{
    return ((const struct added *)b)->job;
}

const struct tui_binding *tui_keymap_added(size_t i)
{
    const struct added *a = s_added;
    while (a != NULL && i-- > 0)
        a = a->next;
    return a != NULL ? &a->b : NULL;
}

void tui_keymap_clear(void)
{
    while (s_added != NULL) {
        struct added *a = s_added;
        s_added = a->next;
        free_added(a);
    }
}

/* ---- looking up ------------------------------------------------------------------------------------------------------------------------ */

const struct tui_binding *tui_keymap_find(unsigned where, const struct tui_key *k)
{
    for (const struct added *a = s_added; a != NULL; a = a->next)
        if (a->b.where & where && same_key(&a->b, k))
            return &a->b;
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++)
        if (b->where & where && same_key(b, k))
            return b;
    return NULL;
}

bool tui_keymap_holds(const struct tui_binding *b)
{
    unsigned left = b->where;
    struct tui_key k;
    if (s_added == NULL || !tui_key_parse(b->key, &k))
        return true;
    for (const struct added *a = s_added; a != NULL; a = a->next)
        if (same_key(&a->b, &k))
            left &= ~a->b.where;
    return left != 0;
}
