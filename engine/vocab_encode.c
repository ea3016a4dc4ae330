/* Text to tokens: cut out special tokens where the segment allows them, pre-tokenise what is between, merge bytes. */
#include "engine/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "engine/vocab_int.h"

bool vocab_work_reserve(struct vocab_work *w, size_t more)
{
    if (w->cap_ids - w->n_ids >= more)
        return true;
    size_t cap = w->cap_ids * 2 > w->n_ids + more ? w->cap_ids * 2 : w->n_ids + more + 64;
    int32_t *p = realloc(w->ids, cap * sizeof *p);
    if (p == NULL)
        return false;
    w->ids = p;
    w->cap_ids = cap;
    return true;
}

/* Byte number `depth` of special token i; -1 behind its end, so that a token sorts before those that continue it. */
static int byte_at(const struct vocab *v, const struct vocab_special *set, uint32_t i, size_t depth)
{
    uint32_t id = (uint32_t)set->id[i];
    return depth < v->at[id + 1] - v->at[id] ? (uint8_t)v->text[v->at[id] + depth] : -1;
}

/* First index in [lo, hi) whose byte at depth is at least b. */
static uint32_t lower(const struct vocab *v, const struct vocab_special *set, uint32_t lo, uint32_t hi, size_t depth, int b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (byte_at(v, set, mid, depth) < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest special token that begins at s, or -1: the sorted set is narrowed byte by byte. */
static int32_t match_special(const struct vocab *v, const struct vocab_special *set, const char *s, size_t len, size_t *n)
{
    uint32_t lo = 0, hi = set->n;
    int32_t best = -1;
    for (size_t d = 0; d < len; d++) {
        lo = lower(v, set, lo, hi, d, (uint8_t)s[d]);
        hi = lower(v, set, lo, hi, d, (uint8_t)s[d] + 1);
        if (lo == hi)
            break;
        if (byte_at(v, set, lo, d + 1) < 0) { /* this one ends here */
            best = set->id[lo];
            *n = d + 1;
        }
    }
    return best;
}

static enum rs_result encode_plain(const struct vocab *v, const char *s, size_t len, struct vocab_work *w, struct vocab_ends *ends,
                                   struct rs_error *err)
{
    if (len == 0)
        return RS_OK;
    enum rs_result r = vocab_pre_run(v->pre, s, len, ends, err);
    if (r != RS_OK)
        return r;
    size_t start = 0;
    for (size_t i = 0; i < ends->n; i++) {
        if (!vocab_bpe_piece(v, w, s + start, ends->end[i] - start))
            return error_set(err, RS_ENOMEM, "out of memory for a text of %zu bytes", len);
        start = ends->end[i];
    }
    return RS_OK;
}

/* Special tokens are found leftmost first, of those that begin at the same byte the longest. */
static enum rs_result encode_segment(const struct vocab *v, const struct vocab_segment *seg, struct vocab_work *w, struct vocab_ends *ends,
                                     struct rs_error *err)
{
    const struct vocab_special *set = seg->special ? &v->trusted : &v->typed;
    size_t plain = 0;
    for (size_t pos = 0; pos < seg->len && set->n > 0;) {
        size_t n = 0;
        int32_t id = match_special(v, set, seg->text + pos, seg->len - pos, &n);
        if (id < 0) {
            pos++;
            continue;
        }
        enum rs_result r = encode_plain(v, seg->text + plain, pos - plain, w, ends, err);
        if (r != RS_OK)
            return r;
        if (!vocab_work_reserve(w, 1))
            return error_set(err, RS_ENOMEM, "out of memory for a text of %zu bytes", seg->len);
        w->ids[w->n_ids++] = id;
        pos += n;
        plain = pos;
    }
    return encode_plain(v, seg->text + plain, seg->len - plain, w, ends, err);
}

enum rs_result vocab_encode(const struct vocab *v, const struct vocab_segment *seg, size_t n_seg, int32_t **ids, size_t *n_ids,
                            struct rs_error *err)
{
    struct vocab_work w = {0};
    struct vocab_ends ends = {0};
    enum rs_result r = vocab_work_reserve(&w, 1) ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for tokens");
    for (size_t i = 0; i < n_seg && r == RS_OK; i++)
        r = encode_segment(v, &seg[i], &w, &ends, err);
    free(w.sym);
    free(w.heap);
    free(ends.end);
    if (r != RS_OK) {
        free(w.ids);
        return r;
    }
    *ids = w.ids;
    *n_ids = w.n_ids;
    return RS_OK;
}
