/* Between the files of the self-test: what a test lays out, and what a kind has to say about it. Only engine/patch_test*.c include this. */
#ifndef RANKSCOPE_ENGINE_PATCH_TEST_INT_H
#define RANKSCOPE_ENGINE_PATCH_TEST_INT_H

#include "engine/patch_test.h"

enum { ROWS = 5, HEADS = 3, HEAD = 32, ROPE = 16, NOPE = HEAD - ROPE, POSITIONS = 40, GUARD = 64 };
enum { LORA = 48, LATENT = LORA + ROPE, V_HEAD = 24, USED = 4, RANKS = 3, AREAS = 3, INDEX_HEADS = 4, INDEX_DIM = 32, TOP_K = 6 };
enum { HERE = 3, PAIRS = 7, FIRST = 20, VOCAB = 192, BESIDE = 8 }; /* experts of a rank, their pairs; tokens of a rank; logits of the others around its own */
enum { MAX_WIDTH = 1536, MAX_OUT = 320, MAX_EXPERTS = 160, CELLS = PAIRS * MAX_WIDTH, WEIGHTS = HERE * MAX_OUT * MAX_WIDTH };

/* Memory that the op writes, with marks on both sides. */
struct area {
    float before[CELLS], cell[GUARD + CELLS + GUARD];
    double want[CELLS]; /* NAN: anything will do */
    uint32_t n;         /* cells that are in use */
};

struct test {
    const char *kind;
    uint32_t variant;
    const struct patch_test_forms *forms;
    struct patch_test_form form;
    float in[PAIRS * MAX_WIDTH], cos[POSITIONS * ROPE / 2], sin[POSITIONS * ROPE / 2];
    float cached[ROWS][POSITIONS][LATENT];
    struct area area[AREAS];
    bool reads;                   /* what stood in the output before matters */
    uint32_t cache_width;         /* of a row for the cache; 0: nothing goes there */
    float stored[ROWS * LATENT];  /* what cache_put was given */
    uint32_t n_stored[ROWS];
    double want_stored[ROWS * LATENT];
    bool sparse;                  /* selected() lists something */
    const char *misuse;           /* a function was called with a row or position that there is not */
    float *ranks[RANKS];
    struct rankscope_call call;
    float w[2][WEIGHTS];                        /* from here on as much is made as is used */
    uint8_t packed[2][WEIGHTS * sizeof(float)]; /* w as the form has it */
};

/* A kind lays out its call and computes what should come out; after the run it may read what an output means, or say what is wrong with it. */
struct patch_test_kind {
    const char *name;
    uint32_t variants;
    void (*expect)(struct test *t);
    const char *(*read)(struct test *t); /* or NULL */
};
extern const struct patch_test_kind PATCH_TEST_KINDS[];
extern const int PATCH_TEST_N_KINDS;

extern const int32_t PATCH_TEST_POS[ROWS];

/* The five positions that one row looks at where a selection is made. */
extern const int32_t PATCH_TEST_CHOSEN[5];

/* What an area holds before the run where nothing is to be read: a NaN that no sum makes. */
float patch_test_poison(void);
bool patch_test_is_poison(float x);

static inline float *patch_test_out(struct test *t, int area)
{
    return t->area[area].cell + GUARD;
}

#endif
