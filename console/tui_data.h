/* tui_data.h: the figures behind the panels: snapshots read without a lock, histories of them, and replies of the engine that are asked for
 * from time to time without waiting. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_TUI_DATA_H
#define RANKSCOPE_CONSOLE_TUI_DATA_H

#include <jansson.h>

#include "console/con.h"

#define TUI_SERIES 512 /* samples of a history: two minutes at 4 a second */
#define TUI_SAMPLE_MS 250

struct tui_series {
    float v[TUI_SERIES]; /* the newest last */
    int n;
};

enum tui_ask {
    TUI_ASK_STATS,
    TUI_ASK_ALLREDUCE,
    TUI_ASK_LEDGER,
    TUI_ASK_PATCHES,
    TUI_ASK_PROGRAM,
    TUI_ASK_PROBE,
    TUI_ASK_BREAKS,
    TUI_ASK_TAPS,
    TUI_ASK_REQUESTS,
    TUI_ASK_TENSOR, /* the reply gets the first values of the blob as "values" */
    TUI_ASK_ACTION,
    TUI_ASKS
};

/* A request that is repeated while somebody looks at its reply. One is under way at a time. */
struct tui_asked {
    uint32_t id; /* 0: none is under way */
    uint64_t sent_us, next_us;
    json_t *reply; /* the last good one, or NULL */
    char *error;   /* why the last one failed, or NULL */
};

#define TUI_REQUESTS_LEAST 100 /* that are asked for, however few are in sight */

struct tui_data {
    struct con *con;
    const struct rs_engine *engine; /* whose figures these are */
    bool have;                      /* a model is open */
    struct rs_snapshot snap;
    uint64_t seen_generation, next_sample_us;
    struct tui_series tok_per_s, step_ms, allreduce_us[RS_MAX_RANKS];
    struct tui_asked asked[TUI_ASKS];
    bool wanted[TUI_ASKS];
    int requests; /* how many of them to ask for */
};

void tui_data_init(struct tui_data *d, struct con *con);
void tui_data_fini(struct tui_data *d);

/* Another model or another number of ranks: histories begin anew. */
void tui_data_reset(struct tui_data *d);

/* Read the snapshot, take samples that are due, send what is due. Returns whether something changed. *next_us: when to call again. */
bool tui_data_tick(struct tui_data *d, uint64_t now_us, uint64_t *next_us);

/* Ask now. args is consumed and may be NULL. False: one is under way, or the engine is gone. */
bool tui_data_ask(struct tui_data *d, enum tui_ask what, const char *method, json_t *args, uint64_t now_us);

/* Called for every reply. Returns what it answers, TUI_ASKS: nothing of ours. */
enum tui_ask tui_data_reply(struct tui_data *d, const struct rs_event *ev, const json_t *json);

/* Whether replies are outstanding. */
bool tui_data_waiting(const struct tui_data *d);

/* The last reply, or NULL. Borrowed. */
const json_t *tui_data_last(const struct tui_data *d, enum tui_ask what);

/* The rank that the others wait for: the one with the most work of its own; -1: no difference worth a mark (under 2 %). */
int tui_data_slowest(const struct rs_snapshot *s);

/* Share of its step that a rank waited; NAN: not known. */
double tui_data_wait_share(const struct rs_rank_snapshot *r);

#endif
