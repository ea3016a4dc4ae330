/* Tokens through the model outside of any stream: logits, layers, likelihood. In a sequence of its own, whose blocks are given back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"

/* Negative log-likelihood of `next` under a row of logits. */
static double row_nll(const float *x, uint32_t vocab, int32_t next)
{
    double m = -INFINITY, z = 0;
    for (uint32_t i = 0; i < vocab; i++)
        m = (double)x[i] > m ? (double)x[i] : m;
    for (uint32_t i = 0; i < vocab; i++)
        z += exp((double)x[i] - m);
    return m + log(z) - (double)x[next];
}

static int32_t argmax(const float *x, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[at])
            at = i;
    return (int32_t)at;
}

/* Copies of the residual stream at the last row: after the embedding, after each layer but the last, after output_norm. */
static uint32_t layer_taps(const struct engine *e, float *dst, struct probe_copy *taps)
{
    const struct program *p = &e->rt->prog;
    uint32_t n = 0, width = e->model->hp.n_embd;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *o = &p->ops[i];
        bool embed = o->kind == OP_ALLREDUCE && o->layer < 0 && o->out[0].buf == BUF_X;
        bool layer = o->kind == OP_ADD && o->layer >= 0 && (uint32_t)o->layer + 1 < e->model->hp.n_layers && strstr(o->site, ".ffn.") != NULL;
        bool last = o->kind == OP_RMSNORM && o->out[0].buf == BUF_Y;
        if (!embed && !layer && !last)
            continue;
        taps[n] = (struct probe_copy){.op = o->index, .rank = 0, .row = UINT32_MAX, .dst = dst + (size_t)n * width, .width = width};
        n++;
    }
    return n;
}

enum rs_result forward_run(struct engine *e, const int32_t *ids, uint32_t n, struct forward_out *out, struct rs_error *err)
{
    struct batch *b = &e->batch;
    struct kv *kv = &e->rt->kv;
    uint32_t vocab = e->model->hp.vocab, n_blocks = (n + kv->block - 1) / kv->block, got = 0, chunk = b->cap < b->cap_logits ? b->cap : b->cap_logits;
    int32_t *table = calloc(n_blocks, sizeof *table);
    struct probe_copy *taps = calloc(e->model->hp.n_layers + 2, sizeof *taps);
    enum rs_result rc = RS_OK;
    double nll = 0, wall;
    if (table == NULL || taps == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for %u tokens", n);
    while (rc == RS_OK && got < n_blocks) {
        table[got] = kv_alloc(kv);
        if (table[got] < 0)
            rc = error_set(err, RS_ESTATE, "%u tokens do not fit in the cache (%u of %u blocks are free)", n, kv_available(kv), kv->n_blocks - 1);
        else
            got++;
    }
    struct probe_set probes = {.copies = taps};
    if (rc == RS_OK && out->layers != NULL)
        probes.n_copies = layer_taps(e, out->layers, taps);
    for (uint32_t at = 0; at < n && rc == RS_OK; at += chunk) {
        uint32_t m = n - at < chunk ? n - at : chunk;
        b->segs[0] = (struct batch_seg){.row0 = 0, .n_rows = m, .pos0 = at, .kind = BATCH_PROMPT, .table = table};
        b->n_segs = 1;
        b->n_rows = b->n_logits = m;
        b->wants = false;
        b->max_keys = at + m;
        for (b->bucket = 1; b->bucket < m; b->bucket *= 2)
            ;
        b->bucket = b->bucket < b->cap ? b->bucket : b->cap;
        for (uint32_t i = 0; i < m; i++) {
            b->token[i] = ids[at + i];
            b->pos[i] = (int32_t)(at + i);
            b->seg[i] = 0;
            b->logit_row[i] = (int32_t)i;
        }
        bool last = at + m == n;
        rc = step_batch(e, last && probes.n_copies != 0 ? &probes : NULL, false, &wall, err);
        for (uint32_t i = 0; i < m && rc == RS_OK; i++) {
            const float *x = e->rt->backend->ops->logits(e->rt->backend, i);
            if (out->argmax != NULL)
                out->argmax[at + i] = argmax(x, vocab);
            if (at + i + 1 < n)
                nll += row_nll(x, vocab, ids[at + i + 1]);
            if (out->logits != NULL && (out->all_logits || at + i + 1 == n))
                memcpy(out->logits + (out->all_logits ? (size_t)(at + i) * vocab : 0), x, vocab * sizeof *x);
        }
    }
    for (uint32_t i = 0; i < got; i++)
        kv_drop(kv, table[i]);
    free(table);
    free(taps);
    out->nll = n > 1 ? nll / (n - 1) : NAN;
    return rc;
}
