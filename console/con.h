/* con.h: one console session: a handle on an engine, the conversation, the settings, and where output goes.
 *
 * It knows neither readline nor curses nor stdio: a front end gives it a struct out and a way to wait. Requests look synchronous to a
 * command, but while one waits for its reply every other event is handled as it comes (tokens are printed, states kept, signals noticed).
 * Thread of the user interface only; nothing here may be called from inside con_take_event(). */
#ifndef RANKSCOPE_CONSOLE_CON_H
#define RANKSCOPE_CONSOLE_CON_H

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "console/buf.h"
#include "console/conv.h"
#include "console/out.h"
#include "console/text.h"
#include "engine/rankscope.h"
#include "lua/scr_script.h"
#include "lua/scr_template.h"

enum con_wake {
    CON_WAKE_ENGINE = 1,    /* rs_next() may have something */
    CON_WAKE_INTERRUPT = 2, /* the person wants what runs now to stop (Ctrl-C) */
    CON_WAKE_END = 4,       /* this process is to end: con.end_signal says which signal */
};

enum con_think { CON_THINK_DEFAULT, CON_THINK_ON, CON_THINK_OFF };

struct con;
struct serving;
struct tui;

/* Wait up to timeout_ms (-1: for ever) for engine events or signals and say what came (con_wake bits, 0: nothing). A front end with a
 * screen and keys of its own serves them in here. */
typedef unsigned (*con_wait_fn)(struct con *con, void *ctx, int timeout_ms);

/* See every event of the engine before it is handled; json may be NULL. Nothing may be asked of the session in here. */
typedef void (*con_watch_fn)(struct con *con, void *ctx, const struct rs_event *ev, const json_t *json);

/* An answer that is being generated, or the last one. */
struct con_answer {
    uint32_t stream; /* valid while running */
    bool running;
    bool raw;  /* no template: all text is the answer */
    bool show; /* stream tokens to out */
    bool show_thinking;
    bool in_thinking; /* the part that is on show now */
    bool line_open;   /* something was shown after the last newline */
    struct text_filter filter;
    json_int_t prompt; /* tokens before the answer; 0: not known */
    json_int_t tokens; /* of the answer, so far */
    struct buf text, thinking;
    json_t *done; /* the DONE object; NULL before it came */
};

struct con {
    struct out *out;
    struct rs_engine *engine; /* NULL: none */
    bool remote;              /* it is a process of its own, called engine_name */
    char others[120];         /* "engine 0 runs too (...)", of the time when this console began; "": none did */
    char *engine_name;
    bool only_looks;               /* another client is in control of it */
    bool took_over;                /* control came to this console: what was said meanwhile is to be read */
    bool stop_engine;              /* leaving the console ends it: this console started it */
    struct rs_local_params params; /* how it was started, to start it again; isa is borrowed */
    con_wait_fn wait;
    void *wait_ctx;
    con_watch_fn watch; /* or NULL */
    void *watch_ctx;
    bool watch_logs; /* log events are shown by who watches, not here */
    bool patient; /* a first Ctrl-C during a request only says what is waited for (REPL); else it ends the wait */

    struct tui *tui; /* the panels; NULL: this front end has none */

    json_t *info;              /* the last reply of "info", kept current by STATE events; NULL: never asked */
    json_t *open_args;         /* how the open model was opened, to open it again */
    json_t *slots;             /* patch slots, for completion; NULL: ask again */
    char *template_file;       /* --chat-template, or NULL */
    struct scr_template *tmpl; /* of the open model; NULL until needed */

    struct conv conv;
    json_t *sampling; /* submit arguments that were set; absent ones are the engine's to choose */
    enum con_think think;
    json_int_t session; /* the engine's id for this conversation; 0: none */
    struct con_answer answer;

    uint32_t await_id; /* request that con_request waits for; 0: none */
    bool await_done;
    enum rs_result await_status;
    json_t *await_json;
    void *await_blob;
    size_t await_blob_len;

    struct scr_script *script; /* Lua at the prompt; NULL until it is used */
    char *script_model;        /* what that state was told of the shipped model */

    struct serving *serving; /* HTTP clients are served beside it; NULL: they are not */

    json_t *stopped; /* where a breakpoint or a watchpoint holds the engine; NULL: it runs */
    char again[32];  /* what an empty line stands for while it does: the command before, if that had it run on; "": nothing */
    bool lost;       /* the engine is gone */
    bool quit;       /* leave the REPL */
    int end_signal;  /* a signal ends this process; 0: none */
    unsigned errors; /* commands that failed, for batch mode */
};

/* con->out is borrowed. Waiting is con_wait_plain() until the front end says otherwise. */
void con_init(struct con *con, struct out *out);

/* Lets the engine go and frees everything. */
void con_fini(struct con *con);

/* An engine inside this process; con owns it from now on. */
enum rs_result con_start_local(struct con *con, const struct rs_local_params *params, struct rs_error *err);

/* The handshake; *reply (may be NULL) gets its answer. */
enum rs_result con_hello(struct con *con, json_t **reply, struct rs_error *err);

/* poll() of n descriptors; p[engine] is made the engine's, or one that nothing happens at. Its revents say that rs_next() may have something. Counts
 * neither events nor failures: revents are zero where nothing happened. */
void con_poll(struct con *con, struct pollfd *p, nfds_t n, nfds_t engine, int timeout_ms);

/* Poll signals and the engine. */
unsigned con_wait_plain(struct con *con, void *ctx, int timeout_ms);

/* Wait once and handle the events that came. Returns con_wake bits. */
unsigned con_pump(struct con *con, int timeout_ms);

/* Give scripts that run beside the person their turns. Returns timeout_ms, or less when they want to be called again sooner. con_pump() does this; to be
 * called by who waits otherwise. */
int con_turn(struct con *con, int timeout_ms);

/* Handle an event that somebody else has read from the engine: a script that runs on it. */
void con_take_event(struct con *con, const struct rs_event *ev);

/* Send a request and wait. args is a JSON object that this call consumes, or NULL. reply may be NULL; otherwise it gets a new reference.
 * RS_ECANCELLED: interrupted or ended by a signal; the engine carries the request out all the same. */
enum rs_result con_request(struct con *con, const char *method, json_t *args, json_t **reply, struct rs_error *err);

/* As con_request; *blob is the caller's to free(). */
enum rs_result con_request_blob(struct con *con, const char *method, json_t *args, json_t **reply, void **blob, size_t *blob_len,
                                struct rs_error *err);

/* Open a model (args: those of method "open", consumed) and keep its info. On failure what was open stays open. */
enum rs_result con_open(struct con *con, json_t *args, struct rs_error *err);

/* Another model is open: info is its reply of "info", and con's from now on. */
void con_take_info(struct con *con, json_t *info);

/* Say to who looks only that it does, and how that ends. */
void con_say_control(struct con *con);

/* Ask for "info" again. */
enum rs_result con_refresh(struct con *con, struct rs_error *err);

/* Member of info.state by name, for messages: "graph", "8" and so on; "?" when unknown. Caller frees. */
char *con_state(const struct con *con, const char *name);

/* Ranks that a model gets unless told otherwise: 8 for the shipped one, else 1. */
int con_default_ranks(const char *model);

#endif
