/* Damaged files: many mutants of a small model file are opened, and the accepted ones used. Nothing may crash, every refusal is one clear
 * line, and no allocation may grow past what the file's own size justifies (counted by wrapping the allocator at link time).
 *
 *   gguf_mutate [MUTANTS [SEED]]     2000 mutants (RANKSCOPE_LONG=1: 200000) of seed 1; number k of a seed is always the same bytes */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/vocab.h"
#include "tests/gguf_make.h"
#include "tests/tap.h"

/* ---- the allocator, watched ---- */

static size_t s_largest, s_live, s_peak;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static void *count(void *p, size_t asked)
{
    if (asked > s_largest)
        s_largest = asked;
    if (p != NULL)
        s_live += malloc_usable_size(p);
    if (s_live > s_peak)
        s_peak = s_live;
    return p;
}

static void forget(void *p)
{
    size_t n = p != NULL ? malloc_usable_size(p) : 0;
    s_live -= n < s_live ? n : s_live; /* memory from before the watch began may be freed in it */
}

void *__wrap_malloc(size_t n)
{
    return count(__real_malloc(n), n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return count(__real_calloc(n, size), n * size);
}

void *__wrap_realloc(void *p, size_t n)
{
    forget(p);
    return count(__real_realloc(p, n), n);
}

void __wrap_free(void *p)
{
    forget(p);
    __real_free(p);
}

/* ---- mutants ---- */

static uint64_t s_random;

static uint64_t rnd(uint64_t below)
{
    s_random ^= s_random << 13;
    s_random ^= s_random >> 7;
    s_random ^= s_random << 17;
    return s_random % below;
}

static void fixture(struct gm *m)
{
    const uint64_t big[] = {32, 4, 2}, norm[] = {8}, emb[] = {32, 8};
    gm_head(m, 3, 3, GM_VOCAB_KEYS + 5);
    gm_kv_str(m, "general.architecture", "glm-dsa");
    gm_kv_u32(m, "general.alignment", 32);
    gm_kv_u32(m, "glm-dsa.block_count", 2);
    gm_array(m, "glm-dsa.attention.indexer.types", 7, 2), gm_u8(m, 1), gm_u8(m, 0);
    gm_kv_u16(m, "split.count", 1);
    gm_vocab(m, "glm4");
    gm_tensor(m, "token_embd.weight", 2, emb, 8, 0);
    gm_tensor(m, "blk.0.ffn_up_exps.weight", 3, big, 8, 288);
    gm_tensor(m, "output_norm.weight", 1, norm, 0, 576);
    gm_pad(m, 32);
    gm_zero(m, 576 + 32);
}

/* A value that has broken readers before. */
static uint64_t nasty(size_t size)
{
    /* clang-format off */
    static const uint64_t fixed[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 31, 64, 255, 256, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                                     UINT64_C(1) << 32, UINT64_C(1) << 40, (UINT64_C(1) << 42) + 1, UINT64_C(1) << 60, UINT64_C(1) << 61,
                                     UINT64_C(1) << 62, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX - 31, UINT64_MAX - 7, UINT64_MAX};
    /* clang-format on */
    switch (rnd(4)) {
    case 0: return size - 64 + rnd(128);
    case 1: return rnd(1 << 20);
    default: return fixed[rnd(sizeof fixed / sizeof *fixed)];
    }
}

static void poke(struct gm *m, size_t at, size_t bytes, uint64_t x)
{
    for (size_t i = 0; i < bytes && at + i < m->n; i++)
        m->p[at + i] = (uint8_t)(x >> 8 * i);
}

static void mutate_once(struct gm *m)
{
    size_t header = m->n - 608; /* the data at the end is just bytes */
    size_t at = rnd(rnd(4) == 0 ? 64 : header), n = 1 + rnd(64);
    switch (rnd(8)) {
    case 0: /* one bit */ m->p[at] ^= (uint8_t)(1u << rnd(8)); break;
    case 1: /* one byte */ m->p[at] = (uint8_t)rnd(256); break;
    case 2:
    case 3:
    case 4: { /* a number that means something */
        size_t k = rnd(m->n_marks);
        if (m->mark[k].at < m->n)
            poke(m, m->mark[k].at, m->mark[k].bytes, nasty(m->n));
        break;
    }
    case 5: /* eight bytes anywhere */ poke(m, at, 8, nasty(m->n)); break;
    case 6: /* copy a range over another */
        if (at + n < header) {
            size_t to = rnd(header - n);
            memmove(m->p + to, m->p + at, n);
        }
        break;
    default: /* cut a range out: everything behind it shifts */
        if (at + n < m->n) {
            memmove(m->p + at, m->p + at + n, m->n - at - n);
            m->n -= n;
        }
    }
}

/* A copy of the fixture with one to four changes, and one time in eight a cut end. */
static void make_mutant(const struct gm *good, struct gm *m, uint64_t number, uint64_t seed)
{
    s_random = (number + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ seed * UINT64_C(0xD6E8FEB86659FD93);
    s_random += s_random == 0;
    m->n = 0;
    gm_raw(m, good->p, good->n);
    memcpy(m->mark, good->mark, sizeof m->mark);
    m->n_marks = good->n_marks;
    size_t cut = rnd(8) == 0 ? rnd(m->n) : 0;
    for (uint64_t k = 1 + rnd(4); k > 0 && m->n > 1000; k--)
        mutate_once(m);
    if (cut > 0 && cut < m->n)
        m->n = cut;
}

/* ---- opening and using them ---- */

struct tally {
    unsigned accepted, vocabs, unclear, greedy;
};

static bool clear_line(enum rs_result r, const struct rs_error *err)
{
    bool ok = (r == RS_EFORMAT || r == RS_EUNSUPPORTED || r == RS_EIO) && err->code == r && strstr(err->msg, "mutant.gguf: ") != NULL;
    for (const char *p = err->msg; *p != '\0'; p++)
        ok = ok && (unsigned char)*p >= 0x20 && *p != 0x7f;
    return ok;
}

/* Touch everything that a caller could. The sum keeps the reads from being optimised away. */
static unsigned use_file(const struct gguf *g)
{
    unsigned sum = 0;
    char line[256];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sum += t->data[0] + t->data[t->bytes - 1] + (gguf_find_tensor(g, t->name) == t);
    }
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        struct gguf_kv kv = gguf_kv_at(g, i);
        sum += (unsigned)gguf_print_value(&kv, line, sizeof line);
        uint32_t u;
        float f;
        bool b, found;
        const char *s;
        size_t len;
        gguf_get_u32(g, kv.key, &u, &found, NULL);
        gguf_get_f32(g, kv.key, &f, &found, NULL);
        gguf_get_bool(g, kv.key, &b, &found, NULL);
        gguf_get_str(g, kv.key, &s, &len, &found, NULL);
    }
    return sum;
}

static unsigned use_vocab(const struct vocab *v)
{
    static const char text[] = "hello <|user|> w\xC3\xA9\xFF<think> 123\n\n  whole";
    const struct vocab_segment seg[] = {{text, sizeof text - 1, true}, {text, sizeof text - 1, false}};
    int32_t *ids;
    size_t n, len;
    unsigned sum = 0;
    struct rs_error err = {0};
    if (vocab_encode(v, seg, 2, &ids, &n, &err) == RS_OK) {
        struct vocab_stream s = {{0}, 0};
        size_t bound = vocab_stream_bound(v);
        char *out = malloc(bound);
        for (size_t i = 0; i < n; i++)
            sum += (unsigned)vocab_stream_put(v, &s, ids[i], true, out, bound);
        free(out);
        free(ids);
    }
    for (int32_t id = -1; id <= (int32_t)vocab_size(v); id++)
        sum += vocab_piece(v, id, &len) != NULL && vocab_is_eog(v, id);
    return sum;
}

static void try_mutant(const char *path, size_t size, uint64_t number, struct tally *t)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct rs_error err = {0};
    s_largest = s_live = s_peak = 0;
    enum rs_result r = gguf_open(path, &g, &err);
    bool clear = r == RS_OK || clear_line(r, &err);
    if (r == RS_OK) {
        t->accepted++;
        use_file(g);
        r = vocab_open(g, &v, &err);
        clear = r == RS_OK || clear_line(r, &err);
        t->vocabs += r == RS_OK;
    }
    /* 4 KiB: structs of fixed size, which a file of a few bytes does not justify */
    if (s_largest > 2 * size + 4096 || s_peak > 4 * size + 8192) {
        t->greedy++;
        tap_diag("mutant %llu of %zu bytes: largest allocation %zu, %zu in all", (unsigned long long)number, size, s_largest, s_peak);
    }
    if (v != NULL)
        use_vocab(v);
    if (!clear) {
        t->unclear++;
        tap_diag("mutant %llu: result %d, message \"%s\"", (unsigned long long)number, (int)r, err.msg);
    }
    vocab_close(v);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    uint64_t mutants = getenv("RANKSCOPE_LONG") != NULL ? 200000 : 2000, seed = 1;
    if (argc > 1)
        mutants = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    char path[4096];
    struct gm good = {0}, m = {0};
    struct tally t = {0}, whole = {0};
    snprintf(path, sizeof path, "%s", tap_scratch("mutant.gguf"));
    fixture(&good);
    gm_save(&good, path);
    try_mutant(path, good.n, 0, &whole);
    tap_ok(whole.vocabs == 1 && whole.greedy == 0, "the file that mutants are made of opens");
    tap_diag("%zu bytes; largest allocation %zu, %zu at the peak", good.n, s_largest, s_peak);
    for (uint64_t k = 0; k < mutants; k++) {
        make_mutant(&good, &m, k, seed);
        if (!gm_save(&m, path))
            break;
        try_mutant(path, m.n, k, &t);
    }
    tap_ok(mutants < 100 || (t.accepted > 0 && t.accepted < mutants && t.vocabs > 0), "some of %llu mutants are accepted, some refused",
           (unsigned long long)mutants);
    tap_diag("%u files and %u vocabularies accepted", t.accepted, t.vocabs);
    tap_eq_int(t.unclear, 0, "every refusal is one clear line");
    tap_eq_int(t.greedy, 0, "no allocation outgrows the file");
    unlink(path);
    gm_free(&good);
    gm_free(&m);
    return tap_done();
}
