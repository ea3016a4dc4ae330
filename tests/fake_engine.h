/* fake_engine.h: an engine that plays a script, for tests of everything above rankscope.h.
 *
 * fake_engine.c and fake_methods.c implement the whole of rankscope.h without a model, a thread or a kernel: what they answer is fixed, or
 * written in the script that RANKSCOPE_FAKE names. Every request is checked against docs/protocol.md (an unknown method or argument fails
 * as in the real engine) and written as "METHOD ARGS" to the file that RANKSCOPE_FAKE_LOG names, so that a test sees what was asked.
 *
 * The script has one directive a line; "#" begins a comment; \n, \t, \\ and \xHH work in TEXT:
 *
 *   answer TEXT            the text of the next answer (several queue up; without any, the answer is "You said: " and the message)
 *   think TEXT             what is thought before answers, where the prompt ends inside a thought
 *   token-us N             time from one token to the next; 0, the default: all at once
 *   gate N FILE            an answer stands still after N tokens until FILE is there: what a test does meanwhile does not race with it
 *   open-us N              how long opening a model takes, with PROGRESS events on the way
 *   done JSON              members to put into every DONE object
 *   model JSON             members to put into info.model
 *   reply METHOD JSON      answer METHOD with this from now on
 *   first N METHOD JSON    but with this the first N times
 *   fail METHOD CODE TEXT  let METHOD fail, CODE as in rs_result_name() with '-' for ' '
 *   lost N TEXT            the engine is gone after N tokens of an answer
 *   log LEVEL TEXT         a log event with the next answer
 *   print TEXT             what a library might print to standard error with the next answer
 *   rank N KEY VALUE       a number in the snapshot of a rank: busy, wait, transfer, p50, p99, util, temp, power, mem, mem-total
 *   live PERCENT           each snapshot that is read has run 3 more steps, and its all-reduce times vary by that much, always the same way */
#ifndef RANKSCOPE_TESTS_FAKE_ENGINE_H
#define RANKSCOPE_TESTS_FAKE_ENGINE_H

#include <jansson.h>

#include "engine/rankscope.h"

struct fake_event {
    uint64_t due_us;
    struct rs_event ev; /* its pointers are the event's own */
    struct fake_event *next;
};

struct rs_engine {
    int fd;                   /* a timer that runs out when the next event is due */
    struct fake_event *queue; /* by time */
    struct fake_event *last;  /* of the queue, while there is one */
    struct fake_event *given; /* the event that rs_next() handed out last */
    uint32_t last_id;
    bool lost;

    json_t *script; /* {"answers":[],"replies":{method: json},"firsts":{method: [n, json]},"fails":{method: [code, text]},...} */
    json_t *info;   /* NULL model: none open */
    json_t *slots, *journal;
    json_t *sessions; /* id: {"data","stream"} */
    json_t *streams;  /* id: {"text","thinking","done"} */
    uint32_t stream;  /* the one that runs, or 0 */
    uint32_t given_tokens; /* of that one */
    uint32_t opening; /* the last request to open */
    struct rs_snapshot snapshot;
    double live; /* how much times vary, 0: they do not */
    uint64_t reads;
};

/* Queue an event; json (consumed) and text may be NULL, blob is copied. */
void fake_post(struct rs_engine *e, enum rs_event_type type, uint32_t id, enum rs_result status, uint64_t after_us, json_t *json,
               const void *blob, size_t blob_len);
void fake_post_token(struct rs_engine *e, uint32_t stream, uint64_t after_us, int32_t token, uint32_t flags, const char *text, size_t len);

/* Take the events of a stream that are still to come out of the queue. */
void fake_drop_stream(struct rs_engine *e, uint32_t stream);

/* Take everything that is still to come of a request out of it. */
void fake_drop_request(struct rs_engine *e, uint32_t id);

/* Carry out a request: posts its reply and whatever follows. args is a JSON object. */
void fake_method(struct rs_engine *e, uint32_t id, const char *method, const json_t *args);

/* A canned reply by method name, or NULL. New reference. */
json_t *fake_canned(const char *method);

uint64_t fake_now_us(void);

#endif
