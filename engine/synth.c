/* See synth.h. */
#include "engine/synth.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/error.h"
#include "kernels/quant.h"

enum rs_result synth_open(const struct synth_spec *s, struct gguf **out, struct rs_error *err)
{
    struct shape_options o = s->options;
    o.recipe = s->recipe.n != 0 ? &s->recipe : NULL;
    return shape_open(s->shape, &o, out, err);
}

/* ---- filling ---- */

/* Rows of one tensor, packed, that lie at dst. */
struct span {
    const char *tensor;
    uint32_t type;
    uint64_t k, inputs; /* values of a row here, and of a row of the whole tensor */
    uint64_t rows;
    uint8_t *dst;
    uint64_t first; /* number of its first piece */
};

/* Pieces are about this large: enough of them for any number of workers, and each worth a worker's while. */
enum { PIECE_BYTES = 4 << 20, ROUND = 64 /* pieces between two looks at who waits for them */ };

struct job {
    struct span *span;
    size_t n, cap;
    uint64_t pieces, bytes;
    uint64_t until; /* pieces of this round end here */
    atomic_ullong next;
};

static uint64_t rows_per_piece(const struct span *s)
{
    uint64_t n = PIECE_BYTES / krn_row_bytes(s->type, s->k);
    return n > 0 ? n : 1;
}

static bool add(struct job *j, struct span s)
{
    if (j->n == j->cap) {
        j->cap = j->cap * 2 + 256;
        struct span *p = realloc(j->span, j->cap * sizeof *p);
        if (p == NULL)
            return false;
        j->span = p;
    }
    s.first = j->pieces;
    j->pieces += (s.rows + rows_per_piece(&s) - 1) / rows_per_piece(&s);
    j->bytes += krn_row_bytes(s.type, s.k) * s.rows;
    j->span[j->n++] = s;
    return true;
}

/* Values depend on the tensor's name and the piece, never on who makes it. */
static void make_piece(const struct span *s, uint64_t piece)
{
    uint64_t per = rows_per_piece(s), from = piece * per, n = s->rows - from < per ? s->rows - from : per, seed = 0xcbf29ce484222325u + piece;
    uint8_t *dst = s->dst + from * krn_row_bytes(s->type, s->k);
    for (const char *c = s->tensor; *c != '\0'; c++)
        seed = (seed ^ (uint8_t)*c) * 0x100000001b3u;
    enum shape_fill fill = shape_fill_of(s->tensor);
    if (fill == SHAPE_RANDOM) {
        krn_quant_random(s->type, &seed, 1 / sqrtf((float)s->inputs), dst, (size_t)(n * s->k));
        return;
    }
    for (uint64_t i = 0; i < n * s->k; i++) /* vectors are f32 */
        ((float *)(void *)dst)[i] = fill == SHAPE_ONES ? 1 : 0;
}

static void work(void *arg, unsigned worker)
{
    struct job *j = arg;
    (void)worker;
    size_t at = 0;
    for (uint64_t p; (p = atomic_fetch_add(&j->next, 1)) < j->until;) {
        while (at + 1 < j->n && j->span[at + 1].first <= p)
            at++;
        make_piece(&j->span[at], p - j->span[at].first);
    }
}

/* What could be used without pushing others out. */
static uint64_t memory_left(void)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f != NULL && kb == 0 && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kb) != 1)
            kb = 0;
    if (f != NULL)
        fclose(f);
    return kb != 0 ? kb * 1024 : (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum rs_result check_room(uint64_t bytes, struct rs_error *err)
{
    uint64_t left = memory_left();
    if (bytes + bytes / 16 <= left)
        return RS_OK;
    return error_set(err, RS_ENOMEM, "the made-up weights take %.1f GB, and %.1f GB of memory are left: fewer layers, one rank of more, or smaller types would fit",
                     (double)bytes / 1e9, (double)left / 1e9);
}

/* Touching memory for the first time takes longer than making numbers; large pages make that ten times less often. */
static void want_large_pages(const uint8_t *p, size_t n)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)n;
#endif
}

static enum rs_result run(struct job *j, bool complete, struct pool *pool, struct loading *loading, struct rs_error *err)
{
    bool on = complete;
    loading_expect(loading, j->bytes);
    for (uint64_t at = 0; at < j->pieces && on; at += ROUND) {
        j->until = at + ROUND < j->pieces ? at + ROUND : j->pieces;
        atomic_store(&j->next, at);
        pool_run(pool, work, j);
        on = loading_add(loading, (uint64_t)((double)j->bytes * (double)(j->until - at) / (double)j->pieces));
        loading_look(loading);
    }
    free(j->span);
    return complete ? loading_stopped(loading, err) : error_set(err, RS_ENOMEM, "out of memory for the list of made-up weights");
}

enum rs_result synth_fill(const struct gguf *g, struct pool *pool, struct loading *loading, struct rs_error *err)
{
    struct job j = {0};
    bool ok = true;
    enum rs_result rc = check_room(gguf_file_bytes(g), err);
    for (size_t i = 0; i < gguf_n_tensors(g) && rc == RS_OK && ok; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint8_t *data = (uint8_t *)(uintptr_t)t->data; /* the mapping of gguf_write_map() may be written */
        want_large_pages(data, t->bytes);
        ok = add(&j, (struct span){.tensor = t->name, .type = t->type, .k = t->ne[0], .inputs = t->ne[0], .rows = t->ne[1] * t->ne[2] * t->ne[3], .dst = data});
    }
    return rc == RS_OK ? run(&j, ok, pool, loading, err) : rc;
}

/* ---- one rank's slice ---- */

enum { ALIGN = 64 };

static size_t view_bytes(const struct op_view *v)
{
    return v->rows == 0 ? 0 : ((size_t)krn_row_bytes(v->type, v->k) * v->rows * v->n_mats + ALIGN - 1) / ALIGN * ALIGN;
}

static bool same(const struct op_view *a, const struct op_view *b)
{
    return a->data == b->data && a->rows == b->rows && a->k == b->k && a->n_mats == b->n_mats;
}

/* The views of both programs; several may look at the same slice (the NextN block borrows embedding and head). */
struct views {
    struct op_view **v; /* [n] */
    size_t *place;      /* [n] offset in the memory to come */
    size_t n, bytes;
};

static bool collect(struct program *const prog[2], struct views *out)
{
    size_t cap = prog[0]->n_views + (prog[1] != NULL ? prog[1]->n_views : 0);
    *out = (struct views){.v = calloc(cap + 1, sizeof *out->v), .place = calloc(cap + 1, sizeof *out->place)};
    for (int p = 0; p < 2 && out->v != NULL && out->place != NULL; p++)
        for (uint32_t i = 0; prog[p] != NULL && i < prog[p]->n_views; i++) {
            struct op_view *v = &prog[p]->views[i];
            size_t first = 0;
            if (v->rows == 0)
                continue;
            while (first < out->n && !same(out->v[first], v))
                first++;
            out->v[out->n] = v;
            out->place[out->n] = first < out->n ? out->place[first] : out->bytes;
            out->bytes += first < out->n ? 0 : view_bytes(v);
            out->n++;
        }
    return out->v != NULL && out->place != NULL;
}

enum rs_result synth_fill_slice(const struct gguf *g, struct program *main_prog, struct program *next, struct pool *pool, struct loading *loading, struct synth_memory *out,
                                struct rs_error *err)
{
    struct program *const prog[2] = {main_prog, next};
    struct views vs;
    struct job j = {0};
    enum rs_result rc = collect(prog, &vs) ? check_room(vs.bytes, err) : error_set(err, RS_ENOMEM, "out of memory for the list of made-up weights");
    uint8_t *p = rc == RS_OK ? mmap(NULL, vs.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (p != MAP_FAILED)
        want_large_pages(p, vs.bytes);
    if (rc == RS_OK && p == MAP_FAILED)
        rc = error_set(err, RS_ENOMEM, "out of memory: %zu bytes for made-up weights", vs.bytes);
    bool ok = true;
    size_t end = 0;
    for (size_t i = 0; i < vs.n && rc == RS_OK && ok; i++) {
        struct op_view *v = vs.v[i];
        v->data = p + vs.place[i];
        v->stride = krn_row_bytes(v->type, v->k);
        v->mat_stride = v->stride * v->rows;
        if (vs.place[i] < end)
            continue; /* made already */
        end = vs.place[i] + view_bytes(v);
        ok = add(&j, (struct span){.tensor = v->tensor, .type = v->type, .k = v->k, .inputs = gguf_find_tensor(g, v->tensor)->ne[0],
                                   .rows = (uint64_t)v->rows * v->n_mats, .dst = p + vs.place[i]});
    }
    if (rc == RS_OK) {
        *out = (struct synth_memory){p, vs.bytes};
        rc = run(&j, ok, pool, loading, err);
    }
    free(vs.v);
    free(vs.place);
    return rc;
}

void synth_free(struct synth_memory *m)
{
    if (m->p != NULL)
        munmap(m->p, m->n);
    *m = (struct synth_memory){0};
}
