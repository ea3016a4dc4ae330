/* Ops and programs: a forward step as a flat list of named operations.
 *
 * A program is built once per (model, shard plan) by plan.c and is immutable afterwards; any thread may read it. It is the same on every
 * rank: only widths of sharded buffers and the slices of weights differ, and those stand in per-rank tables beside the list. */
#ifndef RANKSCOPE_ENGINE_OP_H
#define RANKSCOPE_ENGINE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OP_SITE_MAX 40
#define OP_MAX_IN 4
#define OP_MAX_OUT 2
#define OP_MAX_W 4

enum op_kind {
    OP_EMBED,     /* look up tokens in this rank's part of the vocabulary, zero elsewhere: in none, out partial */
    OP_ALLREDUCE, /* sum a partial buffer over ranks, in place: partial -> replicated */
    OP_RMSNORM,
    OP_QKV_A,     /* fused down projections: slot 0 q_a, slot 1 kv_a (lite models: slot 1 alone) */
    OP_LINEAR,
    OP_ROPE_Q,    /* rotate the last `rope` values of each local head, in place */
    OP_KV_STORE,  /* norm the latent, rotate k_pe, write the row to the cache */
    OP_MLA,       /* attention over the cache: q -> per-head outputs */
    OP_INDEX_Q,   /* DSA: rotate the indexer queries in place */
    OP_INDEX_STORE, /* DSA: LayerNorm + rotate the indexer key, write it to the index cache */
    OP_INDEX_SCORES,
    OP_INDEX_TOPK,
    OP_ADD,       /* residual: out += in */
    OP_GATE_UP,   /* fused projections of a gated FFN: slot 0 gate, slot 1 up */
    OP_SILU_MUL,
    OP_ROUTER,    /* router logits, selection, weights; groups (row, expert) pairs by expert */
    OP_MOE_GATE_UP,
    OP_MOE_SILU_MUL,
    OP_MOE_DOWN,
    OP_PICK_ROWS, /* keep the rows that want logits */
    OP_GATHER,    /* concatenate logits of all ranks */
    OP_HIDDEN,    /* NextN: the hidden states it starts from, picked from the step before, with that step's last norm or without */
    OP_KIND_COUNT,
};

const char *op_kind_name(enum op_kind k);

/* How a buffer stands across ranks. */
enum op_layout {
    OP_REPLICATED, /* every rank holds the same values */
    OP_SHARDED,    /* every rank holds its own columns; concatenating them in rank order gives the whole */
    OP_PARTIAL,    /* every rank holds a summand of the whole */
};

/* Activation buffers. One set per rank, planned once for the largest batch; rows x width[rank] f32 unless said otherwise. */
enum op_buf {
    BUF_NONE,
    BUF_X,      /* residual stream */
    BUF_H,      /* after attn_norm or ffn_norm */
    BUF_Z,      /* [q_a | kv_a] in slot order */
    BUF_QR,     /* q_a after its norm */
    BUF_Q,      /* queries, local heads x (nope + rope) */
    BUF_O,      /* attention outputs, local heads x v */
    BUF_A,      /* output of attention or FFN, partial until reduced */
    BUF_GU,     /* [gate | up] of the dense or shared FFN, local columns */
    BUF_ACT,    /* silu(gate) * up */
    BUF_ROUTER, /* router scores after the gating function, n_experts */
    BUF_CHOICE, /* chosen experts and weights: n_used int32, then n_used f32 per row */
    BUF_MGU,    /* [gate | up] per (row, expert) pair */
    BUF_MACT,
    BUF_IQ,     /* indexer queries */
    BUF_IK,     /* indexer key before norm */
    BUF_IW,     /* indexer head weights */
    BUF_ISCORE, /* indexer scores, one per cached key */
    BUF_ISEL,   /* selected key positions, int32: n, then positions ascending */
    BUF_E,      /* NextN: token embedding */
    BUF_HID,    /* NextN: hidden state handed over by the main stack */
    BUF_CAT,    /* NextN: [enorm(e) | hnorm(h)] */
    BUF_Y,      /* rows that want logits, after output_norm */
    BUF_LOGITS, /* local part of the vocabulary */
    BUF_FULL,   /* whole vocabulary */
    BUF_COUNT,
};

const char *op_buf_name(enum op_buf b);

struct op_ref {
    uint8_t buf;    /* enum op_buf; BUF_NONE: unused */
    uint8_t layout; /* enum op_layout */
    uint32_t col;   /* first column used within a row */
    uint32_t width; /* columns used; 0: the rank's whole width */
};

/* What a launch may not do inside a captured graph, and the like. */
struct op {
    enum op_kind kind;
    int16_t layer;   /* -1: outside the layers */
    uint16_t index;  /* position in the program */
    char site[OP_SITE_MAX];
    struct op_ref in[OP_MAX_IN], out[OP_MAX_OUT];
    uint16_t w[OP_MAX_W]; /* indices into program.views[rank]; slot i is w[i] */
    uint8_t n_w;
    uint8_t file_slot[OP_MAX_W]; /* fused ops: file_slot[p] is the slot that stands p-th in the file */
    bool accumulate; /* OP_LINEAR: out += */
    bool per_pair;   /* rows are (row, expert) pairs */
};

/* A rank's slice of a weight, where it lies: never a copy on the CPU, a recipe for the upload on a GPU. */
struct op_view {
    const char *tensor;  /* name in the file, owned by the model; NULL: empty */
    uint32_t type;       /* enum krn_type */
    const uint8_t *data; /* first byte of the slice's first row */
    size_t stride;       /* bytes from row to row */
    size_t mat_stride;   /* bytes from matrix to matrix (experts, heads) */
    uint32_t rows, k;    /* of one matrix; rows 0: this rank has no part */
    uint32_t n_mats;
    uint32_t row0, col0, mat0; /* where the slice starts in the whole tensor */
};

#endif
