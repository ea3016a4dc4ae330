/* See cuda_user.h; cuda_stage.c is the other process's side of it. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/cuda_user.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#if defined(HAVE_CUDA) && CUDART_VERSION >= 12080

#include <limits.h>

#include "engine/cuda_op.h"
#include "engine/cuda_user_int.h"
#include "engine/patch.h"
#include "kernels/type.h"

enum { MOST_Y = 65535 };

/* ---- loading ---- */

void *cuda_user_slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rbe");
    char *data = NULL;
    long len = -1;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (len = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 && (data = malloc((size_t)len + 1)) != NULL &&
        fread(data, 1, (size_t)len, f) != (size_t)len) {
        free(data);
        data = NULL;
    }
    if (f != NULL)
        fclose(f);
    if (data != NULL) {
        data[len] = '\0';
        *n = (size_t)len;
    }
    return data;
}

static bool text_of(cudaLibrary_t lib, const char *name, char *out, size_t cap)
{
    void *at;
    size_t n;
    if (cudaLibraryGetGlobal(&at, &n, lib, name) != cudaSuccess || n > cap || cudaMemcpy(out, at, n, cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    out[n - 1] = '\0';
    return true;
}

/* How the work is cut: what the file says, or a block for every row. */
static enum rs_result read_shape(struct cuda_user *u, struct rs_error *err)
{
    void *at;
    size_t n;
    const uint32_t plain[3] = {256, 1, 0};
    memcpy(u->shape, plain, sizeof u->shape);
    if (cudaLibraryGetGlobal(&at, &n, u->lib, "rankscope_shape") != cudaSuccess) {
        (void)cudaGetLastError(); /* there is none */
        return RS_OK;
    }
    if (n != sizeof u->shape || cudaMemcpy(u->shape, at, n, cudaMemcpyDeviceToHost) != cudaSuccess)
        return error_set(err, RS_EFORMAT, "RANKSCOPE_CUDA_SHAPE cannot be read");
    if (u->shape[0] == 0 || u->shape[0] > 1024 || u->shape[0] % 32 != 0 || u->shape[1] == 0)
        return error_set(err, RS_EFORMAT, "RANKSCOPE_CUDA_SHAPE(%u, %u, %u): threads are 32 to 1024 in steps of 32, rows at least 1", u->shape[0],
                         u->shape[1], u->shape[2]);
    return RS_OK;
}

enum rs_result cuda_user_open(const void *image, struct cuda_user *u, struct cuda_user_info *info, struct rs_error *err)
{
    char kind[32], kinds[300];
    cudaError_t e = cudaLibraryLoadData(&u->lib, image, NULL, NULL, 0, NULL, NULL, 0);
    if (e != cudaSuccess)
        return error_set(err, RS_EFORMAT, "the compiled patch cannot be loaded: %s", cudaGetErrorString(e));
    if (cudaLibraryGetKernel(&u->kernel, u->lib, "rankscope_run") != cudaSuccess)
        return error_set(err, RS_EFORMAT, "no kernel rankscope_run (extern \"C\")");
    if (!text_of(u->lib, "rankscope_name", info->name, sizeof info->name) || !text_of(u->lib, "rankscope_kind", kind, sizeof kind) ||
        !text_of(u->lib, "rankscope_help", info->help, sizeof info->help))
        return error_set(err, RS_EFORMAT, "RANKSCOPE_CUDA_PATCH is missing");
    if (!patch_kind(kind, true, &info->kind))
        return error_set(err, RS_EFORMAT, "kind '%s' is none of those that CUDA C can replace: %s", kind, patch_kinds(true, kinds, sizeof kinds));
    u->kind = info->kind;
    return read_shape(u, err);
}

enum rs_result cuda_user_load(const char *folder, struct cuda_user **out, struct cuda_user_info *info, struct rs_error *err)
{
    char path[PATH_MAX];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, CUDA_USER_MODULE);
    void *image = cuda_user_slurp(path, &n);
    struct cuda_user *u = calloc(1, sizeof *u);
    enum rs_result rc = image == NULL || u == NULL ? error_set(err, RS_EIO, "%s: cannot be read", path) : cuda_user_open(image, u, info, err);
    free(image);
    if (rc != RS_OK) {
        free(u);
        return rc;
    }
    *out = u;
    return RS_OK;
}

/* ---- running ---- */

cudaError_t cuda_user_launch(const struct cuda_user *u, const struct rankscope_cuda_call *c, cudaStream_t stream)
{
    struct rankscope_cuda_call call = *c;
    void *args[] = {&call};
    const uint32_t columns = u->shape[2] == RANKSCOPE_HEAD ? (c->n_heads != 0 ? c->width / c->n_heads : c->width) : u->shape[2];
    const dim3 grid = {(c->rows + u->shape[1] - 1) / u->shape[1], columns != 0 ? (c->width + columns - 1) / columns : 1, 1};
    return c->rows == 0 || c->width == 0 ? cudaSuccess
                                         : cudaLaunchKernel((const void *)u->kernel, grid, (dim3){u->shape[0], 1, 1}, args, 0, stream);
}

static struct rankscope_cuda_matrix matrix(const struct kcu_mat *m)
{
    if (m->w == NULL)
        return (struct rankscope_cuda_matrix){.data = NULL};
    return (struct rankscope_cuda_matrix){.data = m->w, .type = m->type, .rows = m->rows, .k = m->k, .n = m->n_mats, .stride = m->pitch,
                                          .mat_stride = m->mat_pitch};
}

static void fill_weights(const struct cuda_walk *w, const struct cuda_rank *r, struct rankscope_cuda_call *c)
{
    const struct op *op = w->op;
    switch (op->kind) {
    case OP_RMSNORM:
    case OP_KV_STORE: c->w = cuda_op_vec(w, r, op, 0); return;
    case OP_INDEX_STORE:
        c->w = cuda_op_vec(w, r, op, 0);
        c->w2 = cuda_op_vec(w, r, op, 1);
        return;
    case OP_ROUTER:
        c->m[0] = matrix(cuda_op_mat(w, r, op, 0));
        c->w2 = cuda_op_vec(w, r, op, 1);
        return;
    default:
        for (uint32_t i = 0; i < 2 && i < op->n_w; i++)
            c->m[i] = matrix(cuda_op_mat(w, r, op, i));
        if (op->kind == OP_QKV_A && c->m[0].data == NULL) { /* one slot: it is the first */
            c->m[0] = c->m[1];
            c->m[1] = (struct rankscope_cuda_matrix){.data = NULL};
        }
    }
}

static void fill_experts(const struct cuda_walk *w, const struct cuda_rank *r, struct rankscope_cuda_call *c)
{
    const struct hparams *hp = w->c->hp;
    float *choice = r->buf[BUF_CHOICE];
    c->ids = (int *)(void *)choice;
    c->weights = choice + hp->n_used;
    c->ids_stride = cuda_op_pitch_of(w, r, BUF_CHOICE);
    c->n_used = hp->n_used;
    c->first_expert = shard_of(w->c->shard, (uint32_t)w->op->layer, r->rank)->experts.from;
    c->n_experts = hp->n_experts;
    c->n_groups = hp->n_groups;
    c->n_groups_used = hp->n_groups_used;
    c->sigmoid = hp->gating == HP_GATING_SIGMOID;
    c->normalise = hp->expert_norm;
    c->scale = hp->expert_scale;
}

static void fill_attention(const struct cuda_walk *w, const struct cuda_rank *r, struct rankscope_cuda_call *c)
{
    const struct hparams *hp = w->c->hp;
    const struct op *op = w->op;
    const struct shard_range heads = shard_of(w->c->shard, (uint32_t)op->layer, r->rank)->heads;
    const struct kcu_batch b = cuda_op_batch_of(w);
    const bool index = op->kind != OP_ROPE_Q && op->kind != OP_KV_STORE && op->kind != OP_MLA;
    c->pos = b.pos;
    c->table = b.table;
    c->tables = b.tables;
    c->cache_block = b.block;
    c->cos = w->g->rope_cos;
    c->sin = w->g->rope_sin;
    c->rope_dim = hp->rope;
    c->head_dim = index ? hp->index_dim : hp->k_mla;
    c->n_heads = index ? hp->index_heads : heads.to - heads.from;
    c->scale = index ? 1.0f / __builtin_sqrtf((float)hp->index_heads * (float)hp->index_dim) : hp->kq_scale;
    c->cache = index ? r->ik[op->layer] : r->kv[op->layer];
    c->cache_type = (unsigned)cuda_op_cache_of(w);
    c->cache_width = index ? hp->index_dim : hp->kv_lora + hp->rope;
    c->kv_lora = index ? 0 : hp->kv_lora;
    c->v_head = hp->v_head;
    c->top_k = hp->index_topk;
    c->interleaved = hp->index_interleaved;
    if (op->kind == OP_INDEX_STORE)
        c->eps = 1e-6f; /* the models' own; no key carries it */
    if (op->kind == OP_INDEX_SCORES) {
        c->in2 = cuda_op_at(w, r, &op->in[1]);
        c->in2_stride = cuda_op_pitch_of(w, r, op->in[1].buf);
        c->width = w->keys < c->width ? w->keys : c->width;
    }
    if (op->kind == OP_MLA && op->in[1].buf == BUF_ISEL && !w->ch->dense) {
        c->sel = (const int *)(const void *)r->buf[BUF_ISEL];
        c->sel_stride = cuda_op_pitch_of(w, r, BUF_ISEL);
    }
}

/* What the call says of the op at hand. */
static struct rankscope_cuda_call call_of(const struct cuda_walk *w, const struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct op_ref *in = &op->in[0], *out = &op->out[0];
    struct rankscope_cuda_call c = {.out = cuda_op_at(w, r, out),
                                    .out_stride = cuda_op_pitch_of(w, r, out->buf),
                                    .rows = cuda_op_rows_of(w, out->buf) * (op->per_pair ? w->c->hp->n_used : 1),
                                    .width = plan_ref_width(w->prog, op, out, r->rank),
                                    .eps = w->c->hp->eps,
                                    .layer = op->layer,
                                    .accumulate = op->accumulate};
    if (in->buf != BUF_NONE) {
        c.in = cuda_op_at(w, r, in);
        c.in_stride = cuda_op_pitch_of(w, r, in->buf);
        c.in_width = plan_ref_width(w->prog, op, in, r->rank);
    }
    fill_weights(w, r, &c);
    switch (op->kind) {
    case OP_ROUTER:
    case OP_MOE_GATE_UP:
    case OP_MOE_SILU_MUL:
    case OP_MOE_DOWN: fill_experts(w, r, &c); break;
    case OP_ROPE_Q:
    case OP_KV_STORE:
    case OP_MLA:
    case OP_INDEX_Q:
    case OP_INDEX_STORE:
    case OP_INDEX_SCORES:
    case OP_INDEX_TOPK: fill_attention(w, r, &c); break;
    case OP_EMBED:
        c.tokens = w->g->meta + cuda_meta_token();
        c.first_token = plan_view(w->prog, r->rank, op->w[0])->row0;
        break;
    case OP_GATHER: { /* cuda_logits_looks() brings all of them */
        const struct shard_range v = w->c->shard->vocab[r->rank];
        c.out = w->c->full + v.from;
        c.out_stride = w->c->hp->vocab;
        c.width = v.to - v.from;
        break;
    }
    default: break;
    }
    return c;
}

enum rs_result cuda_op_user(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct op_ref *out = &op->out[0];
    const struct cuda_user *u = w->ch->impl->launch;
    const struct rankscope_cuda_call c = call_of(w, r);
    const bool empty = op->kind != OP_EMBED && c.m[0].data == NULL && c.m[1].data == NULL && patch_has_matrices(op->kind);
    w->l.pdl = false; /* it does not take part, nor does what follows it */
    if (w->l.stamp != NULL)
        CUDA_OP_RUN(kcu_stamp(&w->l));
    w->l.pdl = false;
    if (empty && out->layout == OP_PARTIAL && !op->accumulate) /* no part of the weights: zeros are its summand */
        CUDA_OP_RUN(kcu_zero(&w->l, c.out, c.out_stride, c.width, c.rows));
    else if (!empty)
        CUDA_OP_RUN(cuda_user_launch(u, &c, w->l.stream));
    w->l.pdl = false;
    for (uint32_t i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i].buf != BUF_NONE)
            cuda_op_set_q8(w, r, op->out[i].buf, false);
    return RS_OK;
}

/* ---- what can be taken over ---- */

static bool known_type(uint32_t type)
{
    static const uint32_t KNOWN[] = {KRN_F32, KRN_F16, KRN_BF16, KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1, KRN_Q8_0, KRN_Q2_K, KRN_Q3_K, KRN_Q4_K,
                                     KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS}; /* rankscope_values() */
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        if (KNOWN[i] == type)
            return true;
    return false;
}

enum rs_result cuda_user_check(const struct program *p, const struct choice *choices, struct rs_error *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        const struct cuda_user *u = choices[i].impl->launch;
        if (u == NULL)
            continue;
        for (uint32_t r = 0; r < p->n_ranks; r++) {
            const uint32_t width = op->kind == OP_INDEX_SCORES ? 0 : plan_ref_width(p, op, &op->out[0], r);
            if (u->shape[2] != 0 && u->shape[2] != RANKSCOPE_HEAD && (width + u->shape[2] - 1) / u->shape[2] > MOST_Y)
                return error_set(err, RS_EUNSUPPORTED, "op %s has %u columns, and the patch cuts them by %u: more than %d blocks", op->site, width,
                                 u->shape[2], MOST_Y);
            for (uint32_t s = 0; s < op->n_w && patch_has_matrices(op->kind); s++) {
                const struct op_view *v = plan_view(p, r, op->w[s]);
                if (v->rows != 0 && !known_type(v->type))
                    return error_set(err, RS_EUNSUPPORTED, "op %s: %s is %s, which a patch in CUDA C cannot take apart (see engine/patch_cuda.h)",
                                     op->site, v->tensor, krn_type_info(v->type)->name);
            }
        }
    }
    return RS_OK;
}

#else

#ifdef HAVE_CUDA
#include "engine/cuda_op.h"

enum rs_result cuda_op_user(struct cuda_walk *w, struct cuda_rank *r)
{
    (void)r;
    return error_set(w->err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}
#endif

enum rs_result cuda_user_load(const char *folder, struct cuda_user **out, struct cuda_user_info *info, struct rs_error *err)
{
    (void)folder, (void)out, (void)info;
    return error_set(err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}

enum rs_result cuda_user_check(const struct program *p, const struct choice *choices, struct rs_error *err)
{
    (void)p, (void)choices, (void)err;
    return RS_OK; /* none could be loaded */
}

#endif
