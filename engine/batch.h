/* A batch: the rows of one step. Filled by the scheduler between steps, read by every worker during one. */
#ifndef RANKSCOPE_ENGINE_BATCH_H
#define RANKSCOPE_ENGINE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

/* What a row is, once and for all: under numerics=invariant the form of attention follows it, so that a token computed again (after a rewind,
 * a pre-emption, another chunking) is computed the same way. */
enum batch_kind { BATCH_PROMPT, BATCH_GENERATED };

/* Consecutive rows of one sequence and one kind, at consecutive positions. */
struct batch_seg {
    uint32_t row0, n_rows, pos0;
    enum batch_kind kind;
    const int32_t *table; /* block table of the sequence: position / block size -> block. Block 0 belongs to nobody: padded rows write there */
};

/* What a wanted row's logits are wanted for. A device may look at them where they lie: what comes of it is backend_ops.likeliest. */
struct batch_want {
    bool whole;    /* all of them, to the host */
    float temp;    /* a token will be drawn at this temperature; 0: the largest will do */
    uint32_t list; /* so many candidates at least; 0: none */
};

struct batch {
    uint32_t n_rows, bucket;     /* bucket >= n_rows: what graphs are keyed by */
    uint32_t n_segs, n_logits;
    uint32_t max_keys;           /* largest position + 1 */
    int32_t *token;              /* [cap] */
    int32_t *pos;                /* [cap] */
    int32_t *seg;                /* [cap] index into segs */
    struct batch_seg *segs;      /* [cap] */
    int32_t *logit_row;          /* [cap_logits] rows whose logits are wanted, ascending */
    struct batch_want *want;     /* [cap_logits] or NULL */
    bool wants;                  /* `want` says what is wanted of each row; else all rows whole */
    int32_t *from;               /* NextN steps: the row of the step before whose hidden state goes into row i; NULL in other steps */
    bool chained;                /* NextN steps: the step before was one too */
    uint32_t cap, cap_segs, cap_logits;
};

enum { BATCH_ALSO_WANT = 1, BATCH_ALSO_FROM = 2 };

/* An empty batch with room for so many rows, each a segment of its own, and for so many wanted rows; `also` says which of want and from it has. False
 * when memory is out: nothing is held then. batch_free() leaves an empty batch that holds nothing, and takes one. */
bool batch_alloc(struct batch *b, uint32_t rows, uint32_t logits, unsigned also);
void batch_free(struct batch *b);

#endif
