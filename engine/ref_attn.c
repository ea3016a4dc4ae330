/* The reference: attention and the indexer, which read the cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/ref.h"

void ref_rotate(const struct hparams *hp, float *x, uint32_t pos, bool interleaved)
{
    uint32_t half = hp->rope / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = pos * hparams_rope_freq(hp, i), cs = cos(angle) * (double)hp->rope_mag, sn = sin(angle) * (double)hp->rope_mag;
        float *a = interleaved ? x + 2 * (size_t)i : x + i, *b = interleaved ? a + 1 : a + half;
        double u = (double)*a, v = (double)*b;
        *a = (float)(u * cs - v * sn);
        *b = (float)(u * sn + v * cs);
    }
}

enum rs_result ref_cache(const struct capture *c, uint32_t rank, uint32_t layer, bool index, uint32_t n, struct tensor *out, struct rs_error *err)
{
    const struct hparams *hp = c->rt->prog.hp;
    uint32_t blocks = (n + RUNTIME_BLOCK - 1) / RUNTIME_BLOCK, width = index ? hp->index_dim : hp->kv_lora + hp->rope;
    struct tensor t;
    enum rs_result rc = ref_make(blocks * RUNTIME_BLOCK, width, &t, err);
    for (uint32_t i = 0; i < blocks && rc == RS_OK; i++)
        rc = c->rt->backend->ops->cache_get(c->rt->backend, rank, layer, index, c->table[i], t.data + (size_t)i * RUNTIME_BLOCK * width, err);
    if (rc != RS_OK) {
        tensor_free(&t);
        return rc;
    }
    t.rows = n;
    *out = t;
    return RS_OK;
}

/* A head's k_b as [latent][nope] and v_b as [v][latent], from the file. */
static enum rs_result head_weights(const struct ref *r, const struct op *o, uint32_t h, float *kb, float *vb, struct rs_error *err)
{
    const struct hparams *hp = &r->hp;
    const struct gguf_tensor *k = ref_find(r, o->layer, "attn_k_b.weight"), *v = ref_find(r, o->layer, "attn_v_b.weight");
    const struct gguf_tensor *both = ref_find(r, o->layer, "attn_kv_b.weight");
    if (k != NULL && v != NULL) {
        for (uint32_t c = 0; c < hp->kv_lora; c++)
            ref_row(k, h, c, kb + (size_t)c * hp->nope);
        for (uint32_t j = 0; j < hp->v_head; j++)
            ref_row(v, h, j, vb + (size_t)j * hp->kv_lora);
        return RS_OK;
    }
    if (both == NULL)
        return error_set(err, RS_ENOTFOUND, "%s: the file has neither attn_k_b and attn_v_b nor attn_kv_b", o->site);
    for (uint32_t d = 0; d < hp->nope; d++) { /* rows of K, the other way round; vb serves as scratch until it is filled */
        ref_row(both, 0, (uint64_t)h * (hp->nope + hp->v_head) + d, vb);
        for (uint32_t c = 0; c < hp->kv_lora; c++)
            kb[(size_t)c * hp->nope + d] = vb[c];
    }
    for (uint32_t j = 0; j < hp->v_head; j++)
        ref_row(both, 0, (uint64_t)h * (hp->nope + hp->v_head) + hp->nope + j, vb + (size_t)j * hp->kv_lora);
    return RS_OK;
}

/* Is attention of this op's rows computed in the latent space, with products through k_b and v_b? */
static bool absorbed(const struct capture *c, const struct op *o)
{
    const char *impl = c->choices[o->index].impl->name;
    return strcmp(impl, "absorbed") == 0 || strcmp(impl, "direct") == 0 || (strcmp(impl, "auto") == 0 && c->e->batch.segs[0].kind == BATCH_GENERATED);
}

struct head {
    bool round_k, round_v;       /* inputs of k_b and v_b are rounded to int8 */
    float *row;                  /* scratch: the longer of nope and latent */
    const float *kb, *vb;
    const struct tensor *kv;
    double *q, *p, *mix; /* [latent], [keys], [latent] */
};

/* Does row i attend to key t? */
static bool attends(const struct ref *r, const struct capture *c, const struct op *o, const struct tensor *sel, uint32_t i, uint32_t t)
{
    uint32_t pos = c->pos0 + i;
    if (t > pos)
        return false;
    if (sel->data == NULL || c->choices[o->index].dense || pos + 1 <= r->hp.index_topk)
        return true;
    const float *s = sel->data + (size_t)i * sel->width;
    if (s[0] <= 0)
        return true;
    for (uint32_t k = 0; k < (uint32_t)s[0] && k + 1 < sel->width; k++)
        if (s[1 + k] == (float)t)
            return true;
    return false;
}

static void attend(const struct ref *r, const struct capture *c, const struct op *o, const struct tensor *sel, const struct head *h, const float *q, uint32_t i, float *out)
{
    const struct hparams *hp = &r->hp;
    uint32_t n = c->pos0 + i + 1, l = hp->kv_lora;
    double most = -INFINITY, sum = 0;
    struct tensor x = {.rows = 1, .width = hp->nope, .data = h->row}, z = {.rows = 1, .width = l, .data = h->row};
    memcpy(h->row, q, hp->nope * sizeof *q);
    if (h->round_k)
        ref_round(&x, NULL);
    for (uint32_t k = 0; k < l; k++) {
        h->q[k] = 0;
        for (uint32_t d = 0; d < hp->nope; d++)
            h->q[k] += (double)h->kb[(size_t)k * hp->nope + d] * (double)h->row[d];
        h->mix[k] = 0;
    }
    for (uint32_t t = 0; t < n; t++) {
        const float *row = h->kv->data + (size_t)t * h->kv->width;
        double s = 0;
        h->p[t] = -INFINITY;
        if (!attends(r, c, o, sel, i, t))
            continue;
        for (uint32_t k = 0; k < l; k++)
            s += h->q[k] * (double)row[k];
        for (uint32_t k = 0; k < hp->rope; k++)
            s += (double)q[hp->nope + k] * (double)row[l + k];
        h->p[t] = s * (double)hp->kq_scale;
        most = fmax(most, h->p[t]);
    }
    for (uint32_t t = 0; t < n; t++)
        sum += h->p[t] = exp(h->p[t] - most);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t k = 0; k < l && h->p[t] > 0; k++)
            h->mix[k] += h->p[t] / sum * (double)h->kv->data[(size_t)t * h->kv->width + k];
    for (uint32_t k = 0; k < l; k++)
        h->row[k] = (float)h->mix[k];
    if (h->round_v)
        ref_round(&z, NULL);
    for (uint32_t j = 0; j < hp->v_head; j++) {
        double s = 0;
        for (uint32_t k = 0; k < l; k++)
            s += (double)h->vb[(size_t)j * l + k] * (double)h->row[k];
        out[j] = (float)s;
    }
}

enum rs_result ref_mla(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const struct hparams *hp = &r->hp;
    struct shard_range heads = shard_of(&r->shard, (uint32_t)o->layer, rank)->heads;
    struct tensor q = {.data = NULL}, sel = {.data = NULL}, kv = {.data = NULL}, y = {.data = NULL};
    uint32_t n = heads.to - heads.from, keys = c->pos0 + c->rows;
    if (n == 0)
        return RS_OK;
    enum rs_result rc = capture_tensor(c, o, true, 0, (int)rank, &q, err);
    if (rc == RS_OK && o->in[1].buf == BUF_ISEL)
        rc = capture_tensor(c, o, true, 1, (int)rank, &sel, err);
    if (rc == RS_OK)
        rc = ref_cache(c, rank, (uint32_t)o->layer, false, keys, &kv, err);
    if (rc == RS_OK)
        rc = ref_make(q.rows, n * hp->v_head, &y, err);
    const struct gguf_tensor *kt = ref_find(r, o->layer, "attn_k_b.weight"), *vt = ref_find(r, o->layer, "attn_v_b.weight");
    const struct gguf_tensor *both = ref_find(r, o->layer, "attn_kv_b.weight"); /* its K part becomes f32 when it is loaded, its V part stays */
    bool in_latent = absorbed(c, o), round_k = in_latent && kt != NULL && ref_int8(c, o, rank, kt->type, hp->nope);
    bool round_v = in_latent && (vt != NULL || both != NULL) && ref_int8(c, o, rank, vt != NULL ? vt->type : both->type, hp->kv_lora);
    size_t matrices = (size_t)hp->kv_lora * (hp->nope + hp->v_head);
    float *w = malloc((matrices + hp->kv_lora + hp->nope) * sizeof *w);
    double *d = malloc((2 * (size_t)hp->kv_lora + keys) * sizeof *d);
    if (rc == RS_OK && (w == NULL || d == NULL))
        rc = error_set(err, RS_ENOMEM, "out of memory for a reference of attention");
    for (uint32_t h = 0; h < n && rc == RS_OK; h++) {
        struct head x = {.round_k = round_k, .round_v = round_v, .row = w + matrices, .kb = w, .vb = w + (size_t)hp->kv_lora * hp->nope, .kv = &kv, .q = d, .mix = d + hp->kv_lora, .p = d + 2 * (size_t)hp->kv_lora};
        rc = head_weights(r, o, heads.from + h, w, w + (size_t)hp->kv_lora * hp->nope, err);
        for (uint32_t i = 0; i < q.rows && rc == RS_OK; i++)
            attend(r, c, o, &sel, &x, q.data + (size_t)i * q.width + (size_t)h * hp->k_mla, i, y.data + (size_t)i * y.width + (size_t)h * hp->v_head);
    }
    free(w);
    free(d);
    tensor_free(&q);
    tensor_free(&sel);
    tensor_free(&kv);
    if (rc != RS_OK)
        tensor_free(&y);
    else
        *out = y;
    return rc;
}

enum rs_result ref_index_scores(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const struct hparams *hp = &r->hp;
    struct tensor q = {.data = NULL}, w = {.data = NULL}, k = {.data = NULL};
    uint32_t keys = c->pos0 + c->rows;
    enum rs_result rc = capture_tensor(c, o, true, 0, (int)rank, &q, err);
    if (rc == RS_OK)
        rc = capture_tensor(c, o, true, 1, (int)rank, &w, err);
    if (rc == RS_OK)
        rc = ref_cache(c, rank, (uint32_t)o->layer, true, keys, &k, err);
    if (rc == RS_OK)
        rc = ref_make(q.rows, keys, out, err);
    for (uint32_t i = 0; i < q.rows && rc == RS_OK; i++)
        for (uint32_t t = 0; t <= c->pos0 + i && c->pos0 + i + 1 > hp->index_topk; t++) {
            double sum = 0;
            for (uint32_t h = 0; h < hp->index_heads; h++) {
                double dot = 0;
                for (uint32_t j = 0; j < hp->index_dim; j++)
                    dot += (double)q.data[(size_t)i * q.width + (size_t)h * hp->index_dim + j] * (double)k.data[(size_t)t * k.width + j];
                sum += (double)w.data[(size_t)i * w.width + h] * fmax(dot, 0);
            }
            out->data[(size_t)i * out->width + t] = (float)(sum / sqrt((double)hp->index_heads * hp->index_dim));
        }
    tensor_free(&q);
    tensor_free(&w);
    tensor_free(&k);
    return rc;
}
