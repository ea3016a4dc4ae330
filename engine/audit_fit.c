/* See audit_fit.h. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/audit_fit.h"

#include <math.h>
#include <unistd.h>

#ifdef HAVE_CUDA
#include "engine/cuda_backend.h"
#endif
#include "engine/shard.h"
#include "kernels/type.h"

bool audit_is_borrowed(const struct program *a, const struct op_view *v, uint32_t rank)
{
    for (uint32_t i = 0; i < a->n_views; i++) {
        const struct op_view *m = plan_view(a, rank, i);
        if (m->data == v->data && m->rows == v->rows && m->k == v->k && m->n_mats == v->n_mats)
            return true;
    }
    return false;
}

static uint64_t weights_on(const struct program *p, const struct program *borrows_from, uint32_t rank)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; p != NULL && i < p->n_views; i++) {
        const struct op_view *v = plan_view(p, rank, i);
        if (v->rows != 0 && (borrows_from == NULL || !audit_is_borrowed(borrows_from, v, rank)))
            bytes += (uint64_t)krn_row_bytes(v->type, v->k) * v->rows * v->n_mats;
    }
    return bytes;
}

/* Every rank holds the whole row of every layer, and indexer keys where a layer has an indexer. */
static uint64_t cache_per_token(const struct hparams *hp, enum krn_cache_type cache)
{
    uint64_t values = 0;
    for (uint32_t i = 0; i < hp->n_layers + hp->n_nextn; i++)
        values += hp->kv_lora + hp->rope + (hp->index_heads != 0 && hp->index_full[i] ? hp->index_dim : 0);
    return values * krn_cache_elem_bytes(cache);
}

json_t *audit_ranks(const struct model *m, const struct program *main_prog, const struct program *next, enum krn_cache_type cache)
{
    json_t *a = json_array();
    for (uint32_t r = 0; r < main_prog->n_ranks; r++)
        json_array_append_new(a, json_pack("{s:i,s:I,s:I}", "rank", (int)r, "bytes_weights",
                                           (json_int_t)(weights_on(main_prog, NULL, r) + weights_on(next, main_prog, r)), "bytes_cache_per_token",
                                           (json_int_t)cache_per_token(&m->hp, cache)));
    return a;
}

/* ---- GPUs ---- */

/* Of each GPU: the context, kernels, activations, scratch. Measured on the GLM-5 family at 512 rows: below this. */
static const uint64_t GPU_RESERVE = 2ull << 30;

/* Fills in what the question left open; false: there is no GPU and none was described. */
static bool find_gpus(struct audit_gpus *g, const char **source)
{
    *source = "asked";
#ifdef HAVE_CUDA
    if (g->memory == 0) {
        int n = backend_cuda_devices(NULL);
        for (int i = 0; i < n; i++) {
            uint64_t total = backend_cuda_memory(i);
            g->memory = i == 0 || total < g->memory ? total : g->memory; /* the smallest decides */
        }
        g->n = g->n != 0 ? g->n : (uint32_t)n;
        *source = "present";
    }
#endif
    g->n = g->n != 0 ? g->n : 1;
    return g->memory != 0;
}

static uint64_t of_rank(const json_t *ranks, uint32_t r, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(json_array_get(ranks, r), key));
}

static json_t *gpus_json(const json_t *ranks, const struct audit_gpus *question)
{
    struct audit_gpus g = *question;
    const char *source;
    const uint32_t n_ranks = (uint32_t)json_array_size(ranks);
    uint64_t most = 0, all = 0, tokens = UINT64_MAX;
    if (!find_gpus(&g, &source))
        return json_null();
    const uint32_t used = g.n < n_ranks ? g.n : n_ranks;
    const uint64_t room = g.memory > GPU_RESERVE ? g.memory - GPU_RESERVE : 0;
    json_t *held = json_array();
    for (uint32_t i = 0; i < used; i++) {
        struct shard_range r = shard_deal(n_ranks, 1, used, i);
        uint64_t weights = 0, per_token = 0;
        for (uint32_t k = r.from; k < r.to; k++) {
            weights += of_rank(ranks, k, "bytes_weights");
            per_token += of_rank(ranks, k, "bytes_cache_per_token");
        }
        uint64_t fit = weights < room && per_token != 0 ? (room - weights) / per_token : 0;
        tokens = fit < tokens ? fit : tokens;
        most = weights > most ? weights : most;
        all += weights;
        json_array_append_new(held, json_integer((json_int_t)weights));
    }
    json_t *o = json_pack("{s:s,s:i,s:i,s:I,s:I,s:o,s:b,s:I}", "source", source, "count", (int)g.n, "used", (int)used, "memory", (json_int_t)g.memory, "reserve",
                          (json_int_t)GPU_RESERVE, "weights", held, "fits", most <= room && tokens > 0, "cache_tokens", (json_int_t)tokens);
    json_object_set_new(o, "missing", json_integer(most > room ? (json_int_t)(most - room) : 0));
    json_object_set_new(o, "needed", room > 0 ? json_integer((json_int_t)((all + room - 1) / room)) : json_null());
    return o;
}

/* What this machine holds: all ranks of a CPU backend share its memory, and the weights are there once. */
json_t *audit_fits(const struct model *m, const json_t *ranks, const struct audit_gpus *gpus)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), weights = (double)m->w.file_bytes + (double)m->w.owned_bytes;
    double per_token = (double)of_rank(ranks, 0, "bytes_cache_per_token") * (double)json_array_size(ranks), left = memory - weights;
    return json_pack("{s:I,s:I,s:I,s:o}", "memory", (json_int_t)memory, "weights", (json_int_t)weights, "cache_tokens",
                     (json_int_t)(left > 0 ? left / per_token : 0), "gpus", gpus_json(ranks, gpus));
}
