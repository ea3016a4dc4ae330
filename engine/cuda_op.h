/* Inside of the launching of ops: the walk over a step's list and what every op family asks of it. Only files cuda_op*.c include this. */
#ifndef RANKSCOPE_ENGINE_CUDA_OP_H
#define RANKSCOPE_ENGINE_CUDA_OP_H

#include "engine/cuda.h"
#include "kernels/quant.h"

/* One walk: a step of one GPU, on that GPU's thread. */
struct cuda_walk {
    struct cuda_gpu *g;
    const struct cuda *c;
    const struct backend_step *s;
    const struct program *prog;
    int p; /* which program */
    uint32_t rows, keys, n_logits;
    struct kcu_launch l;
    uint32_t slot;         /* of the stamp in l */
    uint32_t ordinal;      /* of the next reduce */
    bool fuse;             /* take neighbours together */
    bool rotate;           /* q_rope waits for the attention */
    int rotate_op;         /* which op that is */
    const struct op *norm; /* left to the product that follows, or NULL */
    const struct kcu_mat *query; /* left to the attention that follows: the projection of latent's normed q, or NULL */
    struct kcu_latent latent;
    bool choosing;         /* the choice of experts is left to the projections that follow: route */
    struct kcu_route route;
    bool int8_left;                /* the int8 form of the experts' activations is left to the down projections */
    bool done[2048];               /* ops that were computed with an earlier one */
    uint64_t q8_ok[KCU_MAX_LOCAL]; /* bit per buffer: its int8 form is current */
    uint32_t half_of[2];           /* whose f16 form lies in the GPU's `half`: see cuda_op_half_owner(); 0 nobody's */
    uint32_t next_copy;
    size_t bounce_at;
    const struct op *op;
    const struct choice *ch;
    struct cuda_where where; /* of the launch at hand */
    struct rs_error *err;
};

/* Record what a launch returned; the op's stamp has been used up when this returns. */
enum rs_result cuda_op_after(struct cuda_walk *w, cudaError_t e, uint32_t kernels);

#define CUDA_OP_RUN(call)                                                                                                                  \
    do {                                                                                                                                   \
        w->where = (struct cuda_where){__FILE__, __LINE__};                                                                                \
        enum rs_result rc_ = cuda_op_after(w, (call), 1);                                                                                  \
        if (rc_ != RS_OK)                                                                                                                  \
            return rc_;                                                                                                                    \
    } while (0)

static inline uint32_t cuda_op_rows_of(const struct cuda_walk *w, uint8_t buf)
{
    return buf == BUF_Y || buf == BUF_LOGITS || buf == BUF_FULL ? w->n_logits : w->rows;
}

static inline size_t cuda_op_pitch_of(const struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf)
{
    return w->prog->width[buf][r->rank];
}

static inline float *cuda_op_at(const struct cuda_walk *w, const struct cuda_rank *r, const struct op_ref *ref)
{
    (void)w;
    return r->buf[ref->buf] + ref->col;
}

static inline uint32_t cuda_op_width_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op_ref *ref)
{
    return ref->width != 0 ? ref->width : w->prog->width[ref->buf][r->rank];
}

static inline const struct kcu_mat *cuda_op_mat(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, uint32_t i)
{
    return &r->mat[w->p][op->w[i]];
}

static inline const float *cuda_op_vec(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, uint32_t i)
{
    return (const float *)(const void *)cuda_op_mat(w, r, op, i)->w;
}

static inline bool cuda_op_quantised(const struct kcu_mat *m)
{
    return m->w != NULL && m->type != KRN_F32 && m->type != KRN_F16 && m->type != KRN_BF16;
}

/* The next launch notes its time as the op at hand of this rank. */
void cuda_op_arm(struct cuda_walk *w, const struct cuda_rank *r);

/* What an op's products are made in: on tensor cores (many), or as the int8 form of its input is there or not. */
static inline void cuda_op_note(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, bool many, bool int8)
{
    r->arith[w->p][op->index] = many ? ARITH_F16 : int8 ? ARITH_INT8 : ARITH_F32;
}

/* Noted as from the int8 form: does a kernel of few rows make f16 of it? */
static inline void cuda_op_note_few(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, bool few)
{
    if (few)
        r->arith[w->p][op->index] = ARITH_INT8_F16;
}

/* The op's input of width k, with its int8 form where a matrix can use it; made now if no kernel has made it. */
enum rs_result cuda_op_input(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t k, bool int8, uint32_t n,
                             struct kcu_rows_in *in);

/* The same as f16, for products of many rows. */
enum rs_result cuda_op_halves(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t k, uint32_t n, struct kcu_rows_in *in);

/* Will op take n rows of its input as f16? Then a kernel that makes them may leave that form with them, where halves_for() has room for it, NULL if not: it is the
 * buffer's until cuda_op_set_q8(), and halves_made() says that it is there. */
bool cuda_op_takes_halves(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, uint32_t n);
uint16_t *cuda_op_halves_for(const struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf, const struct op *op, uint32_t n, float **scale);
void cuda_op_halves_made(struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf);

/* Where the f16 form of a buffer lies, and the mark of its owner. */
static inline int cuda_op_half_place(uint8_t buf)
{
    return buf == BUF_MACT;
}
static inline uint32_t cuda_op_half_owner(const struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf)
{
    return 1 + ((uint32_t)(r - w->g->local) << 8 | buf);
}

/* A buffer has new content: is its int8 form that of it? Its f16 form is not. */
void cuda_op_set_q8(struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf, bool ok);

struct kcu_batch cuda_op_batch_of(const struct cuda_walk *w);
struct kcu_rope cuda_op_rope_of(const struct cuda_walk *w);
enum kcu_cache cuda_op_cache_of(const struct cuda_walk *w);

/* The op n places on in the list, or NULL. */
const struct op *cuda_op_ahead(const struct cuda_walk *w, uint32_t n);
bool cuda_op_next_is(const struct cuda_walk *w, uint32_t n, enum op_kind kind);

/* Does an observer copy the op's result? Where observers look at any tensor, all are taken to be looked at: what is left out of memory is not there. */
bool cuda_op_observed(const struct cuda_walk *w, const struct op *op);

/* The op's product adds itself to the residual stream where the reduce n places on has nothing to sum; that and the addition are then done. */
struct cuda_residual {
    float *x; /* NULL: no */
    size_t pitch;
};
struct cuda_residual cuda_op_residual(struct cuda_walk *w, const struct cuda_rank *r, uint32_t n);

/* The norm that was left to the op at hand, as its kernel takes it; x NULL: none was. Its result will have its int8 form. */
struct kcu_norm cuda_op_norm(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *norm);
void cuda_op_normed(struct cuda_walk *w, const struct cuda_rank *r);

/* Is the product of n rows one for tensor cores? int8: the operator wants quantised matrices to be multiplied with less than f32. Where the number of rows
 * must not matter, any number is enough: sums of that kernel run in another order than those for few rows. */
bool cuda_op_many(const struct cuda_walk *w, uint32_t n, const struct op_ref *in, bool int8, const struct kcu_mat *a, const struct kcu_mat *b);

/* cuda_user.c: run the implementation that was loaded for the op at hand. */
enum rs_result cuda_op_user(struct cuda_walk *w, struct cuda_rank *r);
/* Was one loaded for this op? Then no other launch may take it along. */
static inline bool cuda_op_is_user(const struct cuda_walk *w, const struct op *op)
{
    return w->s->choices[op->index].impl->launch != NULL;
}

/* cuda_probe.c: launch the observers that stand behind an op; -1: before the first. */
enum rs_result cuda_probe_at(struct cuda_walk *w, int op);

/* cuda_op_join.c. From the op at hand on, where that begins one: all-reduce, add and norm as far as they follow each other. nccl: a reduce of one rank per GPU. */
bool cuda_op_join_begins(const struct cuda_walk *w);
enum rs_result cuda_op_join(struct cuda_walk *w);
enum rs_result cuda_op_nccl(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref);

/* cuda_op_span.c: the reduce at hand where ranks are on several hosts. */
enum rs_result cuda_op_span(struct cuda_walk *w, const struct op_ref *ref);

/* cuda_logits.c: a rank's part of the logits, to the host or looked at. */
enum rs_result cuda_logits_gather(struct cuda_walk *w, struct cuda_rank *r);
float *cuda_logits_beside(struct cuda_walk *w, const struct cuda_rank *r);

/* cuda_op_linear.c. takes_norm: can the kernel for op (the one after norm) begin with the norm? */
bool cuda_op_slots_takes_norm(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct op *norm);
enum rs_result cuda_op_linear(struct cuda_walk *w, struct cuda_rank *r);
enum rs_result cuda_op_slots(struct cuda_walk *w, struct cuda_rank *r);

/* cuda_op_moe.c */
bool cuda_op_router_takes_norm(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct op *norm);
enum rs_result cuda_op_gate_up(struct cuda_walk *w, struct cuda_rank *r);
enum rs_result cuda_op_moe_gate_up(struct cuda_walk *w, struct cuda_rank *r);
enum rs_result cuda_op_moe_down(struct cuda_walk *w, struct cuda_rank *r);
enum rs_result cuda_op_silu(struct cuda_walk *w, struct cuda_rank *r);
enum rs_result cuda_op_router(struct cuda_walk *w, struct cuda_rank *r);

/* cuda_op_attn.c. The norm of q_a (q) and the cache row (kv) of one layer; either may be NULL. */
enum rs_result cuda_op_latent(struct cuda_walk *w, struct cuda_rank *r, const struct op *q, const struct op *kv);
enum rs_result cuda_op_mla(struct cuda_walk *w, struct cuda_rank *r);
/* Does the op act while the graph is captured instead of becoming a part of it? */
bool cuda_op_aside(const struct cuda_walk *w, const struct op *op);
enum rs_result cuda_op_index(struct cuda_walk *w, struct cuda_rank *r);

#endif
