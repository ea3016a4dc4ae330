/* tui_input.c: what keys do. Bytes become keys, keys that the table knows become actions, and what remains is typed into the line of input. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/js.h"
#include "console/line.h"
#include "console/tui.h"
#include "console/tui_keymap.h"

/* ---- moving about -------------------------------------------------------------------------------------------------------------------- */

unsigned tui_context(const struct tui *t, bool below)
{
    static const unsigned panels[TUI_CUSTOM] = {TUI_IN_CHAT, TUI_IN_RANKS,   TUI_IN_ALLREDUCE, TUI_IN_STEP,
                                                TUI_IN_OPS,  TUI_IN_PATCHES, TUI_IN_LOG,       TUI_IN_REQUESTS};
    unsigned held = (t->con->stopped != NULL ? TUI_HELD : 0) | (t->read_only ? TUI_LOOKS : 0);
    if (t->overlay != TUI_OVERLAY_NONE && !below)
        return t->overlay == TUI_OVERLAY_OP ? TUI_IN_OVERLAY | TUI_IN_OP | held : TUI_IN_OVERLAY;
    if (t->focus == TUI_CHAT || t->focus == TUI_LOG)
        held |= (t->focus == TUI_LOG ? &t->log : &t->chat)->copy.on ? TUI_IN_COPY : 0;
    return t->focus == TUI_PROMPT ? TUI_IN_PROMPT : held | (t->focus >= TUI_CUSTOM ? TUI_IN_CUSTOM : panels[t->focus]);
}

static void focus(struct tui *t, int panel)
{
    if (panel != TUI_PROMPT)
        t->last_panel = panel;
    if (panel == TUI_PROMPT && t->read_only) {
        t->zoom = -1;
        tui_say(t, false, "this console only looks; q leaves it");
        return;
    }
    t->focus = panel;
    t->candidate = 1;
    if (t->zoom >= 0 && panel != TUI_PROMPT)
        t->zoom = panel;
}

/* A panel by number. One that is not in this arrangement, or found no room, gets the screen to itself. */
static void focus_number(struct tui *t, int panel)
{
    if (tui_panel_name(panel) == NULL) {
        tui_say(t, true, "there is no such panel any more");
        return;
    }
    focus(t, panel);
    if (!t->layout.shown[panel])
        t->zoom = panel;
}

static void next_panel(struct tui *t, int step)
{
    int at = t->focus == TUI_PROMPT ? (step > 0 ? -1 : TUI_PANELS) : t->focus;
    bool any = t->zoom >= 0;
    for (at += step; at >= 0 && at < TUI_PANELS; at += step) {
        if (any ? tui_panel_name(at) != NULL : t->layout.shown[at]) {
            focus(t, at);
            return;
        }
    }
    if (t->read_only)
        focus(t, step > 0 ? TUI_RANKS : TUI_LOG);
    else
        focus(t, TUI_PROMPT);
}

static struct tui_text *text_of(struct tui *t)
{
    return t->focus == TUI_LOG ? &t->log : &t->chat;
}

static void move_list(struct tui *t, int panel, int by)
{
    struct tui_list *l = &t->lists[panel];
    l->selected += by;
    if (l->selected >= l->n)
        l->selected = l->n - 1;
    if (l->selected < 0)
        l->selected = 0;
    t->candidate = 1;
    if (panel == TUI_REQUESTS)
        tui_select_request(t);
}

void tui_input_scroll(struct tui *t, int panel, int rows)
{
    struct tui_text *text = panel == TUI_LOG ? &t->log : &t->chat;
    if (t->overlay != TUI_OVERLAY_NONE) {
        int last = t->overlay_rows > 0 ? t->overlay_rows : 0;
        t->overlay_top += rows;
        t->overlay_top = t->overlay_top < 0 ? 0 : t->overlay_top > last ? last : t->overlay_top;
    } else if (panel == TUI_PROMPT || panel == TUI_CHAT || panel == TUI_LOG) {
        if (text->copy.on)
            tui_copy_rows(text, rows);
        else
            tui_text_scroll(text, rows);
    } else if (panel >= TUI_CUSTOM) {
        t->lists[panel].top += rows; /* put in range when it is drawn */
    } else {
        move_list(t, panel, rows);
    }
}

static void move(struct tui *t, int rows)
{
    tui_input_scroll(t, t->focus, rows);
}

void tui_input_focus(struct tui *t, int panel)
{
    focus(t, panel);
}

static int page(const struct tui *t)
{
    int h = t->overlay != TUI_OVERLAY_NONE ? t->grid.rows / 2
            : t->focus == TUI_PROMPT       ? t->layout.inner[TUI_CHAT].h
            : t->focus == TUI_REQUESTS     ? t->layout.inner[TUI_REQUESTS].h - 1
                                           : t->layout.inner[t->focus].h;
    return h > 2 ? h - 1 : 1;
}

static void move_far(struct tui *t, bool end)
{
    struct tui_text *text = text_of(t);
    if (t->overlay == TUI_OVERLAY_NONE && (t->focus == TUI_CHAT || t->focus == TUI_LOG)) {
        if (text->copy.on)
            tui_copy_far(text, end ? 1 : -1);
        else if (end)
            tui_text_end(text);
        else
            tui_text_home(text);
    } else {
        move(t, end ? 1000000 : -1000000);
    }
}

/* ---- looking for things -------------------------------------------------------------------------------------------------------------- */

static void ask(struct tui *t, enum tui_asking what)
{
    t->asking = what;
    t->asked[0] = '\0';
}

static void asked(struct tui *t)
{
    if (t->asking == TUI_ASKING_FILTER) {
        snprintf(t->filter, sizeof t->filter, "%s", t->asked);
        t->lists[TUI_OPS].selected = 0;
    } else {
        size_t n = tui_text_find(text_of(t), t->asked);
        if (t->asked[0] != '\0')
            tui_say(t, n == 0, "%zu line%s with '%s'", n, n == 1 ? "" : "s", t->asked);
        if (n > 0 && text_of(t)->copy.on)
            tui_copy_found(text_of(t));
    }
    t->asking = TUI_ASKING_NOTHING;
}

/* A line editor of three keys is enough for a word to look for. */
static void key_while_asking(struct tui *t, const struct tui_key *k)
{
    size_t n = strlen(t->asked);
    if (k->code == TUI_KEY_ENTER) {
        asked(t);
    } else if (k->code == TUI_KEY_ESCAPE) {
        t->asking = TUI_ASKING_NOTHING;
    } else if (k->code == TUI_KEY_BACKSPACE) {
        while (n > 0 && ((unsigned char)t->asked[--n] & 0xc0) == 0x80)
            ;
        t->asked[n] = '\0';
    } else if (k->code < TUI_KEY_NONE && k->mods == 0 && n + k->n < sizeof t->asked) {
        memcpy(t->asked + n, k->bytes, k->n);
        t->asked[n + k->n] = '\0';
    }
}

/* ---- copying ------------------------------------------------------------------------------------------------------------------------- */

static void copy(struct tui *t)
{
    const struct buf *text = &t->con->answer.text;
    if (text->len == 0)
        tui_say(t, true, "there is no answer yet");
    else
        tui_clip(t, text->text, text->len);
}

static void copy_take(struct tui *t)
{
    struct buf b = {0};
    tui_copy_take(text_of(t), &b);
    tui_clip(t, b.text != NULL ? b.text : "", b.len);
    buf_fini(&t->clip);
    t->clip = b;
    tui_copy_end(text_of(t));
}

static void act_on_copy(struct tui *t, const struct tui_binding *b)
{
    struct tui_text *text = text_of(t);
    if (!text->copy.on && b->action != TUI_DO_SELECT)
        return;
    switch (b->action) {
    case TUI_DO_SELECT:
        if (!tui_copy_begin(text))
            tui_say(t, true, "there is nothing to copy yet");
        break;
    case TUI_DO_SELECT_CHAR: tui_copy_chars(text, b->arg); break;
    case TUI_DO_SELECT_WORD: tui_copy_words(text, b->arg); break;
    case TUI_DO_SELECT_EDGE: tui_copy_edge(text, b->arg); break;
    case TUI_DO_SELECT_MARK: tui_copy_mark(text, b->arg != 0); break;
    case TUI_DO_SELECT_TAKE: copy_take(t); break;
    default: tui_copy_end(text); break;
    }
}

/* ---- changing things ----------------------------------------------------------------------------------------------------------------- */

static void add_job(struct tui *t, struct tui_job job)
{
    if (t->n_waiting == TUI_MAX_WAITING) {
        tui_say(t, true, "too many lines wait; this one was dropped");
        free(job.line);
        return;
    }
    t->waiting[t->n_waiting++] = job;
}

/* Changes go out without waiting, so they work in the middle of an answer as well; the reply is told when it comes. */
static void send_action(struct tui *t, const char *method, json_t *args)
{
    if (t->read_only) {
        json_decref(args);
        tui_say(t, true, "this console only looks");
        return;
    }
    if (!tui_data_ask(&t->data, TUI_ASK_ACTION, method, args, tui_now_us(t)))
        tui_say(t, true, t->con->lost ? "the engine is gone" : "the change before is not through yet");
}

static void swap(struct tui *t)
{
    const char *slot, *from, *to;
    if (!tui_selected_patch(t, &slot, &from, &to)) {
        tui_say(t, true, "there is no other implementation");
        return;
    }
    snprintf(t->action, sizeof t->action, "patch %s: %s -> %s", slot, from, to);
    send_action(t, "patch.set", json_pack("{s:s, s:s}", "slot", slot, "impl", to));
}

/* The site that b and t are about: of the op that is open, or selected. NULL: none. */
static const char *site_of(struct tui *t)
{
    const char *site = t->overlay == TUI_OVERLAY_OP ? t->op_site : js_str(tui_selected_op(t), "site", NULL);
    if (site == NULL)
        tui_say(t, true, "no op is selected");
    return site;
}

/* Whether the observer or breakpoint `o` is of this site alone; if it covers others as well, a person should say it by name. */
static bool own(struct tui *t, const json_t *o, const char *site, const char *command)
{
    const char *glob = js_str(o, "site", "");
    if (strcmp(glob, site) == 0)
        return true;
    tui_say(t, true, "%s covers other ops too: %s", glob, command);
    return false;
}

/* Observe the op, or stop observing it. */
static void tap(struct tui *t)
{
    const char *site = site_of(t);
    const json_t *tap = site != NULL ? tui_op_tap(t, site) : NULL;
    if (site == NULL || (tap != NULL && !own(t, tap, site, "/untap takes it away")))
        return;
    snprintf(t->action, sizeof t->action, "%s %s", tap != NULL ? "untap" : "tap", site);
    send_action(t, tap != NULL ? "probe.untap" : "probe.tap",
                tap != NULL ? json_pack("{s:s}", "site", site) : json_pack("{s:s, s:s, s:i}", "site", site, "what", "values", "n", 8));
    t->data.asked[TUI_ASK_PROBE].next_us = 0;
    t->tapping = true;
}

/* Stop after the op from now on, or not any more. */
static void breakpoint(struct tui *t)
{
    const char *site = site_of(t);
    const json_t *b = site != NULL ? tui_op_break(t, site) : NULL;
    if (site == NULL || (b != NULL && !own(t, b, site, "/break del takes it away")))
        return;
    snprintf(t->action, sizeof t->action, b != NULL ? "no breakpoint at %s" : "breakpoint at %s", site);
    send_action(t, b != NULL ? "break.del" : "break.add",
                b != NULL ? json_pack("{s:I}", "id", js_int(b, "id", 0)) : json_pack("{s:s}", "site", site));
}

static void stop_request(struct tui *t)
{
    bool gone;
    json_int_t before = t->request, stream = tui_selected_request(t, &gone);
    if (stream == 0) {
        tui_say(t, true, "no request is selected");
        return;
    }
    if (gone) { /* nothing else is to be stopped in its place */
        tui_say(t, true, "request %lld is over; x again stops %lld", (long long)before, (long long)stream);
        tui_select_request(t);
        return;
    }
    t->stopping = stream;
    snprintf(t->action, sizeof t->action, "stop request %lld", (long long)stream);
    send_action(t, "cancel", json_pack("{s:I}", "stream", stream));
}

static void go_on(struct con *con, void *ctx)
{
    struct rs_error err = {0};
    if (chat_go_on(con, ctx, NULL, &err) != RS_OK)
        out_error(con->out, "%s", err.msg);
}

/* Have a stopped engine run a little, or on. */
static void go(struct tui *t, int how)
{
    static const char *const methods[] = {"step", "next", "continue"};
    if (t->read_only)
        tui_say(t, true, "this console only looks");
    else if (t->con->stopped == NULL)
        tui_say(t, true, "the engine is not stopped; b in Ops sets a breakpoint");
    else
        add_job(t, (struct tui_job){.fn = go_on, .ctx = (void *)(uintptr_t)methods[how]});
}

static void next_preset(struct tui *t)
{
    struct rs_error err;
    int i = t->preset + 1;
    if (tui_presets[i].name == NULL)
        i = 0;
    tui_arrange(t, tui_presets[i].name, &err);
    tui_say(t, false, "arrangement %s: %s", tui_presets[i].name, tui_presets[i].help);
}

static void next_theme(struct tui *t)
{
    const struct tui_theme *next = t->theme + 1;
    struct rs_error err;
    tui_set_theme(t, next->name != NULL ? next->name : tui_themes[0].name, &err);
    tui_say(t, false, "theme %s: %s", t->theme->name, t->theme->help);
}

static void act_on_screen(struct tui *t, enum tui_action action)
{
    static const char *const plots[] = {"braille", "blocks", "ASCII"};
    switch (action) {
    case TUI_DO_ZOOM: t->zoom = t->zoom >= 0 ? -1 : t->focus == TUI_PROMPT ? t->last_panel : t->focus; break;
    case TUI_DO_PRESET: next_preset(t); break;
    case TUI_DO_GROW:
    case TUI_DO_SHRINK:
        if (t->focus != TUI_PROMPT && tui_tree_weigh(&t->tree, (enum tui_panel)t->focus, action == TUI_DO_GROW ? 1.25 : 0.8))
            snprintf(t->preset_name, sizeof t->preset_name, "changed");
        break;
    case TUI_DO_FREEZE:
        t->frozen = !t->frozen;
        tui_say(t, false, t->frozen ? "figures are frozen" : "figures go on");
        break;
    case TUI_DO_THEME: next_theme(t); break;
    case TUI_DO_PLOTS:
        t->plots = (t->plots + 1) % TUI_PLOT_STYLES;
        if (t->ascii)
            t->plots = TUI_PLOT_ASCII;
        tui_say(t, false, "plots in %s", plots[t->plots]);
        break;
    case TUI_DO_FOLD: t->chat.fold = !t->chat.fold; break;
    case TUI_DO_REPAINT: t->repaint = true; break;
    default: break;
    }
}

/* What a person or a script has bound to a key. */
static void run_binding(struct tui *t, const struct tui_binding *b)
{
    struct tui_job job = tui_keymap_job(b);
    if (t->read_only) {
        tui_say(t, true, "this console only looks");
        return;
    }
    job.line = job.line != NULL ? xstrdup(job.line) : NULL;
    add_job(t, job);
}

static void act(struct tui *t, const struct tui_binding *b)
{
    switch (b->action) {
    case TUI_DO_HELP:
        t->overlay = TUI_OVERLAY_HELP;
        t->overlay_top = 0;
        break;
    case TUI_DO_CLOSE: t->overlay = TUI_OVERLAY_NONE; break;
    case TUI_DO_TOGGLE:
        t->toggle = t->desk != NULL;
        if (!t->toggle)
            tui_say(t, true, "there are only panels here");
        break;
    case TUI_DO_PROMPT: focus(t, TUI_PROMPT); break;
    case TUI_DO_QUIT: t->quit = true; break;
    case TUI_DO_COMMAND:
        focus(t, TUI_PROMPT);
        if (!t->read_only)
            line_insert("/");
        break;
    case TUI_DO_PANELS: focus_number(t, t->layout.shown[t->last_panel] ? t->last_panel : TUI_CHAT); break;
    case TUI_DO_NEXT_PANEL: next_panel(t, 1); break;
    case TUI_DO_PREVIOUS_PANEL: next_panel(t, -1); break;
    case TUI_DO_PANEL: focus_number(t, b->arg - 1); break;
    case TUI_DO_MOVE: move(t, b->arg); break;
    case TUI_DO_PAGE: move(t, b->arg * page(t)); break;
    case TUI_DO_HOME: move_far(t, false); break;
    case TUI_DO_END: move_far(t, true); break;
    case TUI_DO_SEARCH: ask(t, TUI_ASKING_SEARCH); break;
    case TUI_DO_FILTER: ask(t, TUI_ASKING_FILTER); break;
    case TUI_DO_NEXT_MATCH:
    case TUI_DO_PREVIOUS_MATCH:
        if (!tui_text_next(text_of(t), b->arg))
            tui_say(t, true, "nothing is searched for, or nothing matches");
        else if (text_of(t)->copy.on)
            tui_copy_found(text_of(t));
        break;
    case TUI_DO_COPY: copy(t); break;
    case TUI_DO_SELECT:
    case TUI_DO_SELECT_CHAR:
    case TUI_DO_SELECT_WORD:
    case TUI_DO_SELECT_EDGE:
    case TUI_DO_SELECT_MARK:
    case TUI_DO_SELECT_TAKE:
    case TUI_DO_SELECT_END: act_on_copy(t, b); break;
    case TUI_DO_OPEN_OP: tui_op_open(t); break;
    case TUI_DO_TAP: tap(t); break;
    case TUI_DO_BREAK: breakpoint(t); break;
    case TUI_DO_GO: go(t, b->arg); break;
    case TUI_DO_STOP_REQUEST: stop_request(t); break;
    case TUI_DO_SORT: t->order = (t->order + 1) % TUI_OPS_ORDERS; break;
    case TUI_DO_OTHER_IMPL: t->candidate += b->arg; break;
    case TUI_DO_SWAP: swap(t); break;
    case TUI_DO_LINE: run_binding(t, b); break;
    case TUI_DO_REVERT:
        snprintf(t->action, sizeof t->action, "revert");
        send_action(t, "patch.revert", NULL);
        break;
    default: act_on_screen(t, b->action); break;
    }
}

void tui_input_act(struct tui *t, const struct tui_binding *b)
{
    act(t, b);
}

/* ---- the line of input --------------------------------------------------------------------------------------------------------------- */

static void type(struct tui *t, const char *bytes, size_t n)
{
    if (t->overlay == TUI_OVERLAY_MATCHES)
        t->overlay = TUI_OVERLAY_NONE;
    t->in_line = true;
    enum line_status s = line_push(bytes, n);
    while (s == LINE_READY) {
        add_job(t, (struct tui_job){.line = line_take()});
        s = line_push("", 0);
    }
    t->in_line = false;
    if (s == LINE_TOGGLE) /* bound to other keys by the person */
        t->toggle = t->desk != NULL;
    if (s == LINE_EOF && t->running > 0 && !t->quit) {
        tui_say(t, false, "something still runs; Ctrl-D again leaves all the same");
        t->quit = t->last_interrupt_us != 0 && tui_now_us(t) - t->last_interrupt_us < 2000000;
        t->last_interrupt_us = tui_now_us(t);
    } else if (s == LINE_EOF) {
        t->quit = true;
    }
}

/* Ctrl-X is the beginning of Ctrl-X Ctrl-A, or of whatever readline makes of it. */
static bool prefix(struct tui *t, const struct tui_key *k)
{
    bool ctrl = k->mods == TUI_CTRL;
    if (t->prefix_cx) {
        t->prefix_cx = false;
        if (ctrl && k->code == 'a') {
            act(t, &(struct tui_binding){.action = TUI_DO_TOGGLE});
            return true;
        }
        if (t->focus == TUI_PROMPT)
            type(t, "\030", 1);
        return false;
    }
    t->prefix_cx = ctrl && k->code == 'x';
    return t->prefix_cx;
}

void tui_input_key(struct tui *t, const struct tui_key *k)
{
    t->dirty = true;
    if (k->code == TUI_KEY_PASTE) {
        struct buf *text = &t->keys.paste;
        if (t->focus == TUI_PROMPT && t->overlay == TUI_OVERLAY_NONE && t->asking == TUI_ASKING_NOTHING && text->len > 0)
            line_insert(text->text);
        return;
    }
    if (k->code == TUI_KEY_WHEEL || k->code == TUI_KEY_CLICK) {
        if (t->mouse)
            tui_mouse_key(t, k);
        return;
    }
    if (k->mods == TUI_CTRL && k->code == 'c') { /* from a script; a terminal sends a signal */
        t->interrupt = true;
        return;
    }
    if (k->code == TUI_KEY_ESCAPE && t->progress != NULL && t->overlay == TUI_OVERLAY_NONE && t->asking == TUI_ASKING_NOTHING) {
        t->interrupt = true; /* what loads can be given up */
        return;
    }
    if (t->asking != TUI_ASKING_NOTHING) {
        key_while_asking(t, k);
        return;
    }
    if (prefix(t, k))
        return;
    /* Half a key sequence or a search in the history goes on in the line editor. */
    bool half = tui_context(t, false) == TUI_IN_PROMPT && line_half_key();
    if (half && k->code == TUI_KEY_ESCAPE) {
        line_escape();
        return;
    }
    if (k->code == TUI_KEY_UNKNOWN && k->n == 1)
        return; /* a byte that is no UTF-8: readline would keep it in mind for the next one */
    if (t->overlay == TUI_OVERLAY_MATCHES && !(k->code == TUI_KEY_ESCAPE)) {
        type(t, k->bytes, k->n);
        return;
    }
    const struct tui_binding *b = half ? NULL : tui_keymap_find(tui_context(t, false), k);
    if (b != NULL)
        act(t, b);
    else if (tui_context(t, false) == TUI_IN_PROMPT)
        type(t, k->bytes, k->n);
    else if (k->code != TUI_KEY_UNKNOWN) {
        char name[24];
        tui_say(t, true, "%s does nothing here; F1 lists the keys, %s", tui_key_name(k, name), t->read_only ? "q leaves" : "Escape goes to the line of input");
    }
}

static void drain(struct tui *t, bool flush)
{
    struct tui_key k;
    while (tui_key_next(&t->keys, flush, &k))
        tui_input_key(t, &k);
}

void tui_input_bytes(struct tui *t, const char *bytes, size_t n)
{
    while (n > 0) {
        size_t used = tui_key_feed(&t->keys, bytes, n);
        bytes += used;
        n -= used;
        drain(t, false);
        if (used == 0)
            drain(t, true);
    }
    t->last_byte_us = tui_now_us(t);
}

uint64_t tui_input_tick(struct tui *t, uint64_t now_us)
{
    if (!tui_key_waiting(&t->keys) || t->keys.in_paste)
        return 0;
    uint64_t due = t->last_byte_us + TUI_ESCAPE_US;
    if (now_us < due)
        return due;
    drain(t, true);
    return 0;
}
