#include "config.h"

#include "console/tui.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "console/chat.h"
#include "console/js.h"
#include "console/line.h"
#include "console/rcmd.h"
#include "console/repl.h"
#include "console/sig.h"

#define CHAT_LINES 20000
#define LOG_LINES 5000
#define MESSAGE_US 6000000
#define IDLE_US 1000000 /* without anything to do it still looks at the clock that often */

uint64_t tui_now_us(const struct tui *t)
{
    struct timespec now;
    if (t->fake_time)
        return t->fake_us;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void tui_log(struct tui *t, const char *level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap), *line = text_one_line(text);
    va_end(ap);
    uint8_t role = strcmp(level, "error") == 0  ? ROLE_ERROR
                   : strcmp(level, "warn") == 0 ? ROLE_WARN
                   : strcmp(level, "info") == 0 ? ROLE_TEXT
                                                : ROLE_DIM;
    char clock[16] = "00:00:00";
    if (!t->fake_time) {
        time_t now = time(NULL);
        struct tm tm;
        if (localtime_r(&now, &tm) != NULL)
            strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    } else {
        unsigned s = (unsigned)(t->fake_us / 1000000);
        snprintf(clock, sizeof clock, "%02u:%02u:%02u", s / 3600 % 100, s / 60 % 60, s % 60);
    }
    tui_text_fresh(&t->log);
    tui_text_add(&t->log, ROLE_DIM, clock, strlen(clock));
    tui_text_add(&t->log, ROLE_DIM, " ", 1);
    tui_text_add(&t->log, role, line, strlen(line));
    tui_text_add(&t->log, role, "\n", 1);
    free(text);
    free(line);
    t->dirty = true;
}

void tui_say(struct tui *t, bool bad, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap), *line = text_one_line(text);
    va_end(ap);
    snprintf(t->message, sizeof t->message, "%s", line);
    free(text);
    free(line);
    t->message_bad = bad;
    t->message_until_us = tui_now_us(t) + MESSAGE_US;
    t->dirty = true;
}

/* ---- what the session writes --------------------------------------------------------------------------------------------------------- */

static void write_chat(struct out *o, enum out_role role, const char *text, size_t len)
{
    static const uint8_t roles[OUT_COUNT] = {
        [OUT_TEXT] = ROLE_TEXT,         [OUT_HEADING] = ROLE_USER, [OUT_ANSWER] = ROLE_ANSWER,
        [OUT_THINKING] = ROLE_THINKING, [OUT_NOTE] = ROLE_NOTE,    [OUT_WARN] = ROLE_WARN,
        [OUT_ERROR] = ROLE_ERROR,       [OUT_GOOD] = ROLE_GOOD,    [OUT_BAD] = ROLE_BAD,
    };
    struct tui *t = (struct tui *)o;
    bool answering = role == OUT_ANSWER || role == OUT_THINKING;
    /* What a command says in the middle of an answer stands on lines of its own, there where it took effect. */
    if (answering != t->answering && t->chat.n > 0)
        tui_text_fresh(&t->chat);
    t->answering = answering;
    tui_text_add(&t->chat, roles[role], text, len);
    if (t->screen == NULL && t->plain != NULL)
        t->plain->write(t->plain, role, text, len);
    t->dirty = true;
}

static void write_progress(struct out *o, const char *line)
{
    struct tui *t = (struct tui *)o;
    free(t->progress);
    t->progress = line != NULL ? xstrdup(line) : NULL;
    if (t->screen == NULL && t->plain != NULL)
        t->plain->progress(t->plain, line);
    t->dirty = true;
}

static size_t chat_columns(struct out *o)
{
    const struct tui *t = (struct tui *)o;
    if (t->screen == NULL)
        return t->plain != NULL ? out_columns(t->plain) : 0;
    /* Another panel may fill the screen, so that the chat is not to be seen now. */
    return (size_t)(t->layout.shown[TUI_CHAT] ? t->layout.inner[TUI_CHAT].w : t->grid.cols);
}

/* ---- what the engine says ------------------------------------------------------------------------------------------------------------ */

static void take_action(struct tui *t)
{
    const struct tui_asked *a = &t->data.asked[TUI_ASK_ACTION];
    if (a->error != NULL) {
        tui_say(t, true, "%s", a->error);
        tui_log(t, "error", "%s: %s", t->action, a->error);
    } else {
        const char *cost = js_str(a->reply, "cost", NULL);
        if (cost != NULL)
            tui_say(t, false, "%s: generation %lld, %s, %.1f ms", t->action, (long long)js_int(a->reply, "generation", 0), cost,
                    js_num(a->reply, "took_ms", 0));
        else
            tui_say(t, false, "%s: done", t->action);
        if (cost != NULL)
            tui_log(t, "info", "%s: generation %lld, %.1f ms", t->action, (long long)js_int(a->reply, "generation", 0),
                    js_num(a->reply, "took_ms", 0));
        else
            tui_log(t, "info", "%s", t->action);
    }
    t->data.asked[TUI_ASK_REQUESTS].next_us = 0;
    t->data.asked[TUI_ASK_PATCHES].next_us = t->data.asked[TUI_ASK_BREAKS].next_us = t->data.asked[TUI_ASK_TAPS].next_us = 0;
    t->next_tick_us = 0;
}

static void take_stop(struct tui *t, const json_t *json)
{
    tui_log(t, "warn", "stopped at %s, rank %lld: %s", js_str(json, "site", "?"), (long long)js_int(json, "rank", -1),
            js_str(json, "reason", ""));
    t->find_held = true;
    if (t->overlay == TUI_OVERLAY_OP) /* steps are followed */
        tui_op_show(t, js_str(json, "site", t->op_site));
    t->next_tick_us = 0;
}

static void watch(struct con *con, void *ctx, const struct rs_event *ev, const json_t *json)
{
    struct tui *t = ctx;
    switch (ev->type) {
    case RS_EVENT_REPLY: {
        enum tui_ask what = tui_data_reply(&t->data, ev, json);
        if (what == TUI_ASK_ACTION)
            take_action(t);
        if (what == TUI_ASK_TENSOR)
            tui_op_take_tensor(t);
        const json_t *slots = what == TUI_ASK_PATCHES ? js_at(tui_data_last(&t->data, what), "slots") : NULL;
        if (slots != NULL) {
            json_decref(con->slots);
            con->slots = json_incref((json_t *)slots);
        }
        t->dirty = t->dirty || what != TUI_ASKS;
        break;
    }
    case RS_EVENT_LOG: tui_log(t, js_str(json, "level", "info"), "%s", js_str(json, "text", "")); break;
    case RS_EVENT_STOPPED: take_stop(t, json); break;
    case RS_EVENT_LOST: tui_log(t, "error", "the engine is gone: %s", js_str(json, "reason", "it closed the connection")); break;
    case RS_EVENT_STATE: t->dirty = true; break;
    case RS_EVENT_TOKEN:
    case RS_EVENT_DONE:
    case RS_EVENT_PROGRESS:
    case RS_EVENT_COUNT: break;
    }
}

/* What a library printed. */
static void take_prints(struct tui *t)
{
    char bytes[4096];
    ssize_t n;
    while ((n = read(t->screen->prints, bytes, sizeof bytes)) > 0) {
        struct buf clean = {0};
        text_clean(&t->prints_filter, bytes, (size_t)n, &clean);
        tui_text_add(&t->log, ROLE_DIM, clean.text != NULL ? clean.text : "", clean.len);
        buf_fini(&clean);
        t->dirty = true;
    }
}

/* ---- frames -------------------------------------------------------------------------------------------------------------------------- */

static void frame(struct tui *t, uint64_t now)
{
    int rows, cols, y = -1, x = 0;
    t->screen->size(t->screen, &rows, &cols);
    grid_resize(&t->grid, rows, cols);
    t->grid.ascii = t->ascii;
    t->dirty = false;
    tui_draw(t, &y, &x);
    t->screen->show(t->screen, &t->grid, y, x, t->repaint);
    t->repaint = false;
    t->last_frame_us = now;
    t->frames++;
    if (t->key_us == 0)
        return;
    uint64_t us = tui_now_us(t) - t->key_us;
    t->key_us = 0;
    size_t slot = us / 2000;
    t->key_ms[slot < 63 ? slot : 63]++;
    t->slowest_key_us = us > t->slowest_key_us ? us : t->slowest_key_us;
}

/* A panel of a script that is in sight and wants to be asked for its text; -1: none. *due: when the next one wants that. */
static int custom_due(const struct tui *t, uint64_t now, uint64_t *due)
{
    *due = UINT64_MAX;
    for (int i = 0; i < TUI_CUSTOMS; i++) {
        uint64_t at = t->layout.shown[TUI_CUSTOM + i] && !t->frozen ? tui_custom_due(i) : UINT64_MAX;
        if (at <= now)
            return i;
        *due = at < *due ? at : *due;
    }
    return -1;
}

/* Timers: figures, keys that wait, messages, the frame. Returns how long nothing else is due. */
static uint64_t timers(struct tui *t)
{
    uint64_t now = tui_now_us(t), due = now + IDLE_US, next;
    if (t->frozen) {
        next = due;
    } else if (now >= t->next_tick_us) {
        t->dirty |= tui_data_tick(&t->data, now, &t->next_tick_us);
        tui_op_ask(t, now);
        /* While steps run, their figures change at the pace of frames; 10 times a second is what an eye reads. */
        if (t->data.have && t->data.snap.running > 0 && t->next_tick_us > now + 100000)
            t->next_tick_us = now + 100000;
        next = t->next_tick_us;
    } else {
        next = t->next_tick_us;
    }
    due = next < due ? next : due;
    next = tui_input_tick(t, now);
    due = next != 0 && next < due ? next : due;
    custom_due(t, now, &next);
    due = next < due ? next : due;
    if (t->message[0] != '\0') {
        if (now >= t->message_until_us) {
            t->message[0] = '\0';
            t->dirty = true;
        } else if (t->message_until_us < due) {
            due = t->message_until_us;
        }
    }
    if (t->dirty) {
        next = t->last_frame_us + TUI_FRAME_US;
        if (now >= next || t->fake_time)
            frame(t, now);
        else
            due = next < due ? next : due;
    }
    now = tui_now_us(t);
    return due > now ? due - now : 0;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------------------------ */

static unsigned take_signals(struct tui *t)
{
    unsigned bits = sig_take(), wake = 0;
    if (bits & SIG_BIT_WINCH)
        t->dirty = t->repaint = true;
    if (bits & SIG_BIT_TSTP && t->screen != NULL) {
        t->screen->suspend(t->screen);
        line_suspend();
        sig_stop();
        line_resume();
        t->screen->resume(t->screen);
        t->dirty = t->repaint = true;
    }
    if (bits & SIG_BIT_INT)
        t->interrupt = true;
    if (bits & (SIG_BIT_TERM | SIG_BIT_HUP)) {
        t->con->end_signal = bits & SIG_BIT_TERM ? SIGTERM : SIGHUP;
        wake |= CON_WAKE_END;
    }
    return wake;
}

/* Keys that can be read now; false: there will be none any more. */
static bool take_keys(struct tui *t)
{
    char bytes[4096];
    ssize_t n = read(t->screen->keys, bytes, sizeof bytes);
    if (n > 0) {
        if (t->key_us == 0)
            t->key_us = tui_now_us(t);
        tui_input_bytes(t, bytes, (size_t)n);
    }
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

/* The command that a line begins with; NULL: none. */
static const struct rcmd_entry *command_of(const char *line)
{
    struct rs_error err;
    char name[32];
    line += strspn(line, " \t");
    size_t n = line[0] == '/' ? strcspn(line + 1, " \t") : 0;
    if (n == 0 || n >= sizeof name)
        return NULL;
    memcpy(name, line + 1, n);
    name[n] = '\0';
    return rcmd_find(name, &err);
}

/* Commands that make sense while an answer is on its way: they take effect between two of its steps. */
static bool is_live(const char *line)
{
    static const char *const names[] = {"help",   "info",   "mode",  "patch",    "set",    "stats", "allreduce",
                                        "ledger", "health", "audit", "snapshot", "layout", "theme", "bind", "copy"};
    const struct rcmd_entry *e = command_of(line);
    for (size_t i = 0; e != NULL && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(e->name, names[i]) == 0)
            return true;
    return false;
}

/* Whether something may run between two events of the answer that is under way. */
static bool between_events(const struct tui *t)
{
    return t->running == 1 && t->con->answer.running && t->con->await_id == 0 && !t->in_line;
}

static bool can_run_live(const struct tui *t)
{
    const struct tui_job *job = &t->waiting[0];
    return t->n_waiting > 0 && between_events(t) && (job->line != NULL ? is_live(job->line) : job->live);
}

static void shown_as_typed(struct tui *t, const char *line)
{
    struct buf shown = {0};
    struct text_filter f = {0};
    text_clean(&f, line, strlen(line), &shown);
    text_clean_end(&f, &shown);
    buf_char(&shown, '\n');
    tui_text_fresh(&t->chat);
    if (line[strspn(line, " \t\n")] != '\0') {
        tui_text_add(&t->chat, ROLE_USER, "> ", 2);
        tui_text_add(&t->chat, ROLE_USER, shown.text, shown.len);
    }
    buf_fini(&shown);
}

/* Whether a line is a command whose output is read from its beginning, as a list is. */
static bool is_list(const char *line)
{
    const struct rcmd_entry *e = command_of(line);
    return e != NULL && e->lists;
}

/* Where the chat is not in sight, what was written there is told above the input: a command's first line, an answer's last one, or what is wrong. */
static void tell_unseen(struct tui *t, uint64_t from, bool good)
{
    const uint64_t end = t->chat.first_id + t->chat.n;
    uint64_t id = good && !t->answering ? from : end - 1;
    size_t len;
    if (t->screen == NULL || t->layout.shown[TUI_CHAT] || end <= from)
        return;
    const char *text = tui_text_line(&t->chat, id, &len);
    if (text == NULL)
        return;
    if (good && end - from > 1)
        tui_say(t, false, "M-1 shows %llu lines: %.*s", (unsigned long long)(end - from), (int)len, text);
    else
        tui_say(t, !good, "%.*s", (int)len, text);
}

static void run_line(struct tui *t, const char *line)
{
    uint64_t from = t->chat.first_id + t->chat.n;
    shown_as_typed(t, line);
    tui_text_end(&t->chat);
    uint64_t output = t->chat.first_id + t->chat.n;
    bool good = rcmd_line(t->con, line);
    if (good && t->running == 1 && is_list(line))
        tui_text_from(&t->chat, from);
    tell_unseen(t, output, good);
}

static void run_job(struct tui *t)
{
    struct tui_job job = t->waiting[0];
    memmove(t->waiting, t->waiting + 1, --t->n_waiting * sizeof t->waiting[0]);
    t->running++;
    if (job.line != NULL)
        run_line(t, job.line);
    else
        job.fn(t->con, job.ctx);
    t->running--;
    t->data.asked[TUI_ASK_PATCHES].next_us = 0;
    t->next_tick_us = 0;
    t->dirty = true;
    free(job.line);
}

static bool can_ask_custom(const struct tui *t)
{
    uint64_t due;
    return (t->running == 0 || between_events(t)) && custom_due(t, tui_now_us(t), &due) >= 0;
}

static void ask_custom(struct tui *t)
{
    uint64_t due, now = tui_now_us(t);
    int i = custom_due(t, now, &due);
    if (i < 0)
        return;
    const struct grid_rect *r = &t->layout.inner[TUI_CUSTOM + i];
    t->running++;
    tui_custom_ask(i, t->con, now, r->h, r->w);
    t->running--;
    t->dirty = true;
}

static bool is_idle(const struct tui *t)
{
    const struct con *con = t->con;
    bool engine = con->engine != NULL && !con->lost;
    return t->running == 0 && t->n_waiting == 0 && (!con->answer.running || con->stopped != NULL) && !tui_data_waiting(&t->data) &&
           !(engine && rs_pending(con->engine)) && !tui_key_waiting(&t->keys);
}

/* Wait for the descriptors; what can be served here is. */
static unsigned serve(struct tui *t, uint64_t wait_us)
{
    struct con *con = t->con;
    struct pollfd p[4] = {
        {.fd = sig_fd(), .events = POLLIN},
        {.fd = -1},
        {.fd = t->in_line ? -1 : t->screen->keys, .events = POLLIN},
        {.fd = t->screen->prints, .events = POLLIN},
    };
    con_poll(con, p, 4, 1, (int)((wait_us + 999) / 1000));
    unsigned wake = 0;
    if (p[1].revents != 0)
        wake |= CON_WAKE_ENGINE;
    if (p[3].revents & POLLIN)
        take_prints(t);
    if (p[0].revents != 0)
        wake |= take_signals(t);
    /* Keys that came with a Ctrl-C were pressed after it (the terminal drops those before), and mean what they mean once it is done. */
    if (p[2].revents != 0 && !t->interrupt && !take_keys(t)) {
        con->end_signal = SIGHUP; /* the terminal is gone */
        wake |= CON_WAKE_END;
    }
    return wake;
}

/* con_wait_fn */
static unsigned tui_wait(struct con *con, void *ctx, int timeout_ms)
{
    struct tui *t = ctx;
    uint64_t end = timeout_ms < 0 ? UINT64_MAX : tui_now_us(t) + (uint64_t)timeout_ms * 1000;
    for (;;) {
        uint64_t wait_us = timers(t), script_us = 0;
        enum tui_script_state s =
            t->script != NULL && !t->in_line && !t->quit ? tui_script_step(t->script, t, is_idle(t), &script_us) : TUI_SCRIPT_WAIT;
        if (s == TUI_SCRIPT_END)
            t->quit = true;
        if (t->interrupt || (t->quit && t->running > 0)) {
            t->interrupt = false;
            return CON_WAKE_INTERRUPT;
        }
        if (t->toggle && t->running > 0) {
            tui_switch(t, false);
            return 0;
        }
        if (can_run_live(t)) {
            run_job(t);
            return 0;
        }
        if (t->running == 1 && can_ask_custom(t)) {
            ask_custom(t);
            return 0;
        }
        if (t->running == 0 && (t->n_waiting > 0 || t->quit || t->toggle || can_ask_custom(t)))
            return 0;
        if (t->script != NULL)
            wait_us = s == TUI_SCRIPT_STEP ? 0 : script_us < wait_us || t->fake_time ? script_us : wait_us;
        uint64_t now = tui_now_us(t);
        if (end != UINT64_MAX && now + wait_us > end)
            wait_us = end > now ? end - now : 0;
        unsigned wake = serve(t, wait_us);
        if (wake != 0 || (end != UINT64_MAX && tui_now_us(t) >= end))
            return wake;
        (void)con;
    }
}

/* Ctrl-C while nothing runs: the line goes; twice in a second asks what was meant. Who only looks has no line, and leaves. */
static void interrupted(struct tui *t)
{
    uint64_t now = tui_now_us(t);
    if (t->read_only) {
        t->quit = true;
        return;
    }
    line_clear();
    chat_interrupted(t->con);
    if (t->last_interrupt_us != 0 && now - t->last_interrupt_us < 1000000)
        tui_say(t, false, "Ctrl-D leaves the console");
    t->last_interrupt_us = now;
    t->dirty = true;
}

static bool turn(struct tui *t)
{
    if (t->n_waiting > 0) {
        run_job(t);
        return !t->con->quit;
    }
    if (can_ask_custom(t))
        ask_custom(t);
    unsigned wake = con_pump(t->con, -1);
    if (wake & CON_WAKE_END)
        return false;
    if (wake & CON_WAKE_INTERRUPT)
        interrupted(t);
    t->running++;
    chat_catch_up(t->con);
    t->running--;
    return !t->quit && !t->toggle && t->con->end_signal == 0;
}

static void attach(struct tui *t)
{
    struct rs_error err = {0};
    json_int_t session = t->attach;
    t->attach = 0;
    if (t->con->only_looks && !t->said_looks)
        con_say_control(t->con);
    t->said_looks = true;
    if (session == 0)
        return;
    t->running++;
    if (chat_attach(t->con, session, &err) != RS_OK)
        out_error(&t->out, "%s", err.msg);
    t->running--;
}

static void show_matches(void *ctx, const char *const *words, size_t n)
{
    struct con *con = ctx;
    struct tui *t = con->tui;
    for (size_t i = 0; i < t->n_matches; i++)
        free(t->matches[i]);
    t->matches = xreallocarray(t->matches, n, sizeof *t->matches);
    for (size_t i = 0; i < n; i++)
        t->matches[i] = text_one_line(words[i]);
    t->n_matches = n;
    t->overlay = TUI_OVERLAY_MATCHES;
    t->overlay_top = 0;
    t->dirty = true;
}

void tui_enter(struct tui *t, struct tui_screen *screen)
{
    struct con *con = t->con;
    char kept[256];
    size_t n;
    t->screen = screen;
    t->dirty = t->repaint = true;
    t->toggle = t->quit = t->interrupt = false;
    t->plain_from = t->chat.first_id + t->chat.n - t->chat.open; /* a line that goes on is shown whole later */
    t->plain_wait = con->wait;
    t->plain_wait_ctx = con->wait_ctx;
    con->wait = tui_wait;
    con->wait_ctx = t;
    con->patient = con->watch_logs = true;
    con->answer.show = con->answer.show_thinking = true;
    screen->mouse(screen, t->mouse);
    line_panels_enter("> ", show_matches);
    while ((n = line_kept(kept, sizeof kept)) > 0)
        tui_input_bytes(t, kept, n);
}

void tui_leave(struct tui *t)
{
    struct con *con = t->con;
    line_panels_leave();
    if (t->screen->prints >= 0)
        take_prints(t);
    t->screen = NULL;
    con->watch_logs = false;
    con->wait = t->plain_wait;
    con->wait_ctx = t->plain_wait_ctx;
}

void tui_switch(struct tui *t, bool panels)
{
    t->toggle = false;
    if (t->desk == NULL || panels == (t->screen != NULL))
        return;
    if (panels && t->desk(t, true)) {
        t->running = t->running > 0 ? t->running : 1;
    } else if (!panels) {
        t->desk(t, false);
        if (t->con->wait == con_wait_plain) /* the command began here: there is no plain loop below */
            repl_during(t->con);
    }
}

void tui_typed(struct tui *t, const char *line)
{
    shown_as_typed(t, line);
}

bool tui_took_over(struct tui *t)
{
    t->running = 0;
    return t->screen != NULL;
}

bool tui_run(struct tui *t)
{
    struct con *con = t->con;
    if (con->wait != tui_wait) { /* entered while a plain command ran, whose loop has ended since */
        t->plain_wait = con->wait;
        t->plain_wait_ctx = con->wait_ctx;
        con->wait = tui_wait;
        con->wait_ctx = t;
    }
    attach(t);
    while (t->screen != NULL && con->end_signal == 0 && !con->quit && turn(t))
        ;
    return (t->toggle || t->screen == NULL) && con->end_signal == 0 && !con->quit && !t->quit;
}

/* ---- beginning and end --------------------------------------------------------------------------------------------------------------- */

struct tui *tui_new(struct con *con, const struct tui_options *o)
{
    struct tui *t = xcalloc(1, sizeof *t);
    struct rs_error err;
    t->out = (struct out){.write = write_chat, .progress = write_progress, .terminal = true, .columns = chat_columns};
    t->plain = con->out;
    t->con = con;
    t->theme = o->theme;
    t->plots = o->plots;
    t->ascii = o->ascii;
    t->read_only = o->read_only;
    t->fake_time = o->fake_time;
    t->zoom = -1;
    t->focus = o->read_only ? TUI_RANKS : TUI_PROMPT;
    tui_text_init(&t->chat, CHAT_LINES);
    tui_text_init(&t->log, LOG_LINES);
    t->chat.fold_role = ROLE_THINKING;
    tui_data_init(&t->data, con);
    if (o->layout == NULL || tui_arrange(t, o->layout, &err) != RS_OK)
        tui_arrange(t, o->read_only ? "watch" : "desk", &err);
    tui_custom_notebook(tui_notebook, 3000);
    con->out = &t->out;
    con->tui = t;
    con->watch = watch;
    con->watch_ctx = t;
    return t;
}

void tui_free(struct tui *t)
{
    if (t == NULL)
        return;
    t->con->out = t->plain;
    t->con->tui = NULL;
    t->con->watch = NULL;
    tui_text_fini(&t->chat);
    tui_text_fini(&t->log);
    tui_data_fini(&t->data);
    json_decref(t->tensors.seen);
    buf_fini(&t->clip);
    tui_key_fini(&t->keys);
    grid_fini(&t->grid);
    for (size_t i = 0; i < t->n_waiting; i++)
        free(t->waiting[i].line);
    for (size_t i = 0; i < t->n_matches; i++)
        free(t->matches[i]);
    free(t->matches);
    free(t->progress);
    free(t);
}

char *tui_unseen(struct tui *t, size_t most)
{
    struct buf b = {0};
    uint64_t end = t->chat.first_id + t->chat.n, from = t->plain_from;
    if (end - from > most)
        from = end - most;
    tui_text_dump(&t->chat, from, &b);
    if (t->chat.open && b.len > 0) /* it goes on there */
        b.text[--b.len] = '\0';
    return buf_take(&b);
}
