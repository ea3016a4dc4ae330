/* http.h: the HTTP server, seen from inside.
 *
 * Two threads. One belongs to libmicrohttpd (http_server.c): it reads requests, checks them, and writes what lies in a call's buffer; it never
 * waits. The other is the user interface's thread (http_bridge.c): it alone has the engine's handle, turns calls into submits and events into
 * text. They share the calls, under one lock, held only to move pointers and copy text. The engine waits for neither. */
#ifndef RANKSCOPE_CONSOLE_HTTP_H
#define RANKSCOPE_CONSOLE_HTTP_H

#include <pthread.h>
#include <stdatomic.h>

#include "console/http_api.h"
#include "console/http_logprobs.h"
#include "console/http_metrics.h"
#include "console/opt.h"

struct MHD_Connection;
struct MHD_Daemon;

struct http_limits {
    size_t body;          /* bytes of a request's body */
    size_t calls;         /* requests that run or wait; more get 429 */
    size_t connections;
    size_t unread;        /* bytes that may wait for a client that does not read */
    unsigned read_s;      /* from the first byte of a request to its last */
    unsigned idle_s;      /* without a byte in either direction */
    unsigned drain_s;     /* that running requests get to finish at the end */
};

enum http_phase { HTTP_LOADING, HTTP_READY, HTTP_DRAINING };
enum http_route { HTTP_CHAT, HTTP_COMPLETION, HTTP_TOKENIZE, HTTP_DETOKENIZE, HTTP_METRICS };

/* One answer of a call: an engine stream. The bridge's alone. */
struct http_choice {
    struct http_call *call;
    struct http_choice *next; /* in the bridge's table of streams */
    uint32_t stream;          /* 0: not submitted */
    unsigned tokens;
    bool done;
    char stop[16];            /* why it ended, as the engine calls it */
    const char *finish;       /* and as clients do: "stop", "length" */
    json_t *text, *thinking;  /* strings, or NULL before the end */
    struct buf echo;          /* the prompt, where it is to stand before the answer */
    uint64_t first_us, last_us;
    struct http_logprobs logprobs; /* as far as they were asked for */
};

/* A request of a client. */
struct http_call {
    /* set before it is handed over */
    struct http *http;
    enum http_route route;
    struct api_request api;
    /* under the lock */
    struct MHD_Connection *conn; /* NULL: the connection is done with it */
    int fd;
    bool suspended, gone;        /* gone: nobody will read the answer */
    bool answered;               /* status is set, the header may go out */
    bool finished;               /* nothing will be added to out */
    int status;
    bool sse;
    struct buf out;
    size_t out_at;               /* of out: handed to the network */
    unsigned refs;
    struct http_call *inbox_next;
    /* the bridge's alone */
    struct http_call *next, *prev;
    char id[48];
    struct buf head;             /* of every chunk; empty until the first */
    long created;
    size_t n_choices, n_done;
    struct http_choice *choices;
    bool cancelled, open;        /* open: submits are still to be answered */
    size_t n_replies;            /* that are still to come */
    unsigned prompt_tokens, cached_tokens, out_tokens;
    uint64_t submit_us;
    struct api_error error;
    char *parts[3];              /* metrics: replies of the engine */
};

struct http {
    /* immutable after start */
    struct http_limits limits;
    char *key;                   /* NULL: none is asked for */
    char *alias;                 /* what clients are to call the model; NULL: as its file */
    long started;
    struct con *con;             /* the bridge's */
    struct http_pieces pieces;   /* the bridge's */
    struct MHD_Daemon *daemon;
    int wake_fd;                 /* eventfd: the inbox holds something */
    int end_fd;                  /* eventfd that says to end; -1: signals say so */
    _Atomic int phase;           /* enum http_phase */
    _Atomic long context;        /* tokens; 0 while loading */
    /* under lock */
    pthread_mutex_t lock;
    char *model;                 /* the name that clients use */
    char *path;                  /* of the model file */
    char *held;                  /* why the engine stands still; NULL: it runs */
    struct http_call *inbox, **inbox_last;
    struct http_conn *conns;
    size_t n_calls;              /* handed over, and the engine is not done with them */
    size_t n_open;               /* handed over, and their connections are not done with them */
    uint64_t refused[5];         /* counted for /metrics: 400, 401, 404, 429, 503 */
    /* the bridge's */
    struct http_call *calls;
    struct http_choice *streams[1024];
    struct http_pending *pending, **pending_last;
    struct metrics metrics;
    bool asking;                 /* for info: STATE events that come meanwhile are answered by it too */
};

/* --host, --port, --api-key-file, --alias and the limits. */
extern const struct opt http_table[];

/* con is borrowed. RS_EUSAGE: an address that others can reach, and no key. */
enum rs_result http_init(struct http *h, struct con *con, const struct opt_values *v, struct rs_error *err);
/* Closes what is open. */
void http_fini(struct http *h);
/* What clients may call the model from now on. */
void http_name(struct http *h, const char *path);
/* Unless it is draining. */
void http_phase(struct http *h, enum http_phase phase);
/* Take over what con->info says: context, name, template. */
enum rs_result http_model(struct http *h, struct rs_error *err);
/* The engine stands still, and why; NULL: it goes on. Calls that stream are told. The bridge's thread. */
void http_held(struct http *h, const char *why);

/* Listen and serve; *address gets where ("http://127.0.0.1:8080"), caller frees. RS_EIO: the address cannot be had. */
enum rs_result http_start(struct http *h, const char *host, unsigned port, char **address, struct rs_error *err);
/* Close everything. No connection may be suspended any more. */
void http_stop(struct http *h);

/* The lock is held: the call's connection may go on. */
void http_resume(struct http *h, struct http_call *q);
/* The lock is held: drop a reference. */
void http_unref(struct http *h, struct http_call *q);
/* Close connections that take too long with a request, notice clients that left; called a few times a second. */
void http_sweep(struct http *h);

/* Serve until a signal or end_fd says to end; then let what runs finish, as long as the limits allow. The model is open. When another one is
 * opened, that one is served. */
enum rs_result http_bridge(struct http *h, struct rs_error *err);

/* http_call.c: the bridge's part in one call. */
struct http_pending {
    struct http_pending *next;
    uint32_t id;              /* of the request to the engine */
    struct http_call *call;   /* NULL: no client waits for the reply */
    size_t part;              /* which choice, or which part of the metrics; without a call: enum http_own */
};
enum http_own { HTTP_OWN_NONE, HTTP_OWN_INFO, HTTP_OWN_PIECES };
/* Send what the call needs. false: it failed with q->error set; nothing is under way. */
bool http_call_begin(struct http *h, struct http_call *q, struct rs_error *err);
void http_call_reply(struct http *h, const struct http_pending *p, const struct rs_event *ev);
void http_call_token(struct http *h, const struct rs_event *ev);
void http_call_done(struct http *h, const struct rs_event *ev);
/* End what runs for it; it goes away once the engine has said so. */
void http_call_cancel(struct http *h, struct http_call *q);
/* A line of a stream that clients pass over. */
void http_call_note(struct http *h, struct http_call *q, const char *text);
/* The answer is an error, unless it has begun. */
void http_call_fail(struct http *h, struct http_call *q);
/* Nothing is under way for it any more. */
bool http_call_over(const struct http_call *q);
/* Send a request whose reply goes to part `part` of q (NULL: to nobody). */
enum rs_result http_send(struct http *h, const char *method, const char *args, struct http_call *q, size_t part, struct rs_error *err);

/* ---- http_reply.c: texts; each returns a string that the caller frees ---------------------------------------------------------------------- */

/* Log-probabilities that are due go out with these. */
void http_reply_delta(const struct http *h, struct http_call *q, size_t choice, const char *text, size_t len, bool thinking, bool first,
                      struct buf *out);
void http_reply_finish(const struct http *h, struct http_call *q, size_t choice, struct buf *out);
void http_reply_end(const struct http *h, const struct http_call *q, struct buf *out); /* usage if asked for, [DONE] */
char *http_reply_whole(const struct http *h, struct http_call *q);
char *http_reply_models(const struct http *h);

#endif
