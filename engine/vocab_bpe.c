/* Byte-pair merging. Symbols are token ids from the start (one per byte), so a merge is a lookup of two ids.
 *
 * A piece of n bytes costs O(n log n): neighbours wait in a heap ordered by rank, then by position, and entries whose symbols have changed
 * since are skipped when they come up. That gives the same result as merging the lowest rank, leftmost, again and again. */
#include "engine/vocab_int.h"

#include <stdlib.h>
#include <string.h>

enum { NO_RANK = -1, DEAD = -1 };

struct bpe_symbol {
    int32_t id;          /* DEAD once it was merged into its left neighbour */
    uint32_t prev, next; /* indices; UINT32_MAX at the ends */
};

struct bpe_pair {
    uint32_t rank, left, right; /* right: index of the symbol right of left when this was queued */
    int32_t left_id, right_id;
};

static uint32_t mix(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 32;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32);
}

static int64_t find_rank(const struct vocab_merges *m, int32_t left, int32_t right)
{
    if (m->n == 0)
        return NO_RANK;
    for (uint32_t i = mix((uint32_t)left, (uint32_t)right) & m->mask; m->slot[i] != 0; i = (i + 1) & m->mask) {
        uint32_t rank = m->slot[i] - 1;
        if (m->left[rank] == (uint32_t)left && m->right[rank] == (uint32_t)right)
            return rank;
    }
    return NO_RANK;
}

/* The first of two equal merges has the lower rank and stays. */
static void add_merge(struct vocab_merges *m, uint32_t rank, int32_t left, int32_t right, int32_t result)
{
    m->left[rank] = (uint32_t)left;
    m->right[rank] = (uint32_t)right;
    m->result[rank] = (uint32_t)result;
    uint32_t i = mix((uint32_t)left, (uint32_t)right) & m->mask;
    for (; m->slot[i] != 0; i = (i + 1) & m->mask)
        if (m->left[m->slot[i] - 1] == (uint32_t)left && m->right[m->slot[i] - 1] == (uint32_t)right)
            return;
    m->slot[i] = rank + 1;
}

void vocab_bpe_close(struct vocab_merges *m)
{
    free(m->left);
    free(m->right);
    free(m->result);
    free(m->slot);
}

static enum rs_result alloc_merges(struct vocab_merges *m, uint64_t n, struct rs_error *err)
{
    uint64_t cap = 16;
    while (cap < n + n / 2)
        cap *= 2;
    m->left = calloc(n + 1, sizeof *m->left);
    m->right = calloc(n + 1, sizeof *m->right);
    m->result = calloc(n + 1, sizeof *m->result);
    m->slot = calloc(cap, sizeof *m->slot);
    if (m->left == NULL || m->right == NULL || m->result == NULL || m->slot == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %llu merges", (unsigned long long)n);
    m->n = (uint32_t)n;
    m->mask = (uint32_t)(cap - 1);
    return RS_OK;
}

/* One entry of the list, "LEFT RIGHT" in the byte alphabet, separated by the first space after at least one byte. text has room for both. */
static enum rs_result read_merge(struct vocab *v, uint32_t rank, const char *s, size_t len, char *text, const char *path,
                                 struct rs_error *err)
{
    const char *space = len > 1 ? memchr(s + 1, ' ', len - 1) : NULL;
    if (space == NULL || space + 1 == s + len)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.merges\": entry %u \"%.*s\" is not two parts", path, rank,
                         len < 60 ? (int)len : 60, s);
    size_t ln = vocab_unmap(s, (size_t)(space - s), text);
    size_t rn = vocab_unmap(space + 1, (size_t)(s + len - space - 1), text + ln);
    int32_t left = vocab_lookup(v, text, ln), right = vocab_lookup(v, text + ln, rn), result = vocab_lookup(v, text, ln + rn);
    if ((left < 0 && vocab_find_special(v, text, ln) >= 0) || (right < 0 && vocab_find_special(v, text + ln, rn) >= 0) ||
        (result < 0 && vocab_find_special(v, text, ln + rn) >= 0)) {
        vocab_add_note(v, "a merge with a control token in it is not used", "tokenizer.ggml.merges");
        return RS_OK;
    }
    if (left < 0 || right < 0 || result < 0)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.merges\": entry %u \"%.*s\": %s is not an ordinary token", path, rank,
                         len < 60 ? (int)len : 60, s,
                         left < 0    ? "its left part"
                         : right < 0 ? "its right part"
                                     : "its result");
    add_merge(&v->merges, rank, left, right, result);
    return RS_OK;
}

enum rs_result vocab_bpe_open(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    struct gguf_array a;
    enum rs_result r = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_WANT_STR, &a, NULL, err);
    if (r != RS_OK)
        return r;
    if (a.count > INT32_MAX)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.merges\" has more than 2^31 entries", gguf_path(g, 0));
    if ((r = alloc_merges(&v->merges, a.count, err)) != RS_OK)
        return r;
    char *text = NULL;
    size_t cap = 0;
    for (uint32_t i = 0; i < a.count && r == RS_OK; i++) {
        size_t len;
        const char *s = gguf_array_str(&a, i, &len);
        if (len > cap) {
            free(text);
            cap = len + 64;
            text = malloc(cap);
            if (text == NULL)
                return error_set(err, RS_ENOMEM, "out of memory for merges");
        }
        r = read_merge(v, i, s, len, text, gguf_path(g, 0), err);
    }
    free(text);
    return r;
}

static bool before(const struct bpe_pair *a, const struct bpe_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(struct bpe_pair *h, size_t *n, struct bpe_pair p)
{
    size_t i = (*n)++;
    for (; i > 0 && before(&p, &h[(i - 1) / 2]); i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = p;
}

static struct bpe_pair heap_pop(struct bpe_pair *h, size_t *n)
{
    struct bpe_pair top = h[0], last = h[--*n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < *n; i = c) {
        if (c + 1 < *n && before(&h[c + 1], &h[c]))
            c++;
        if (!before(&h[c], &last))
            break;
        h[i] = h[c];
    }
    h[i] = last;
    return top;
}

static void queue_pair(const struct vocab *v, struct vocab_work *w, size_t *n_heap, uint32_t left)
{
    uint32_t right = left == UINT32_MAX ? UINT32_MAX : w->sym[left].next;
    if (right == UINT32_MAX)
        return;
    int64_t rank = find_rank(&v->merges, w->sym[left].id, w->sym[right].id);
    if (rank != NO_RANK)
        heap_push(w->heap, n_heap, (struct bpe_pair){(uint32_t)rank, left, right, w->sym[left].id, w->sym[right].id});
}

static bool reserve(struct vocab_work *w, size_t len)
{
    if (w->cap_sym < len) {
        struct bpe_symbol *s = realloc(w->sym, len * sizeof *s);
        if (s == NULL)
            return false;
        w->sym = s;
        w->cap_sym = len;
    }
    if (w->cap_heap < 3 * len) { /* len - 1 pairs at first, at most two more per merge, fewer than len merges */
        struct bpe_pair *h = realloc(w->heap, 3 * len * sizeof *h);
        if (h == NULL)
            return false;
        w->heap = h;
        w->cap_heap = 3 * len;
    }
    return true;
}

bool vocab_bpe_piece(const struct vocab *v, struct vocab_work *w, const char *s, size_t len)
{
    if (vocab_pre_ignores_merges(v->pre) && len <= v->longest) {
        int32_t id = vocab_lookup(v, s, len);
        if (id >= 0) {
            if (!vocab_work_reserve(w, 1))
                return false;
            w->ids[w->n_ids++] = id;
            return true;
        }
    }
    if (len >= UINT32_MAX / 4 || !reserve(w, len) || !vocab_work_reserve(w, len))
        return false;
    for (size_t i = 0; i < len; i++)
        w->sym[i] = (struct bpe_symbol){v->byte_id[(uint8_t)s[i]], i == 0 ? UINT32_MAX : (uint32_t)i - 1,
                                        i + 1 == len ? UINT32_MAX : (uint32_t)i + 1};
    size_t n_heap = 0;
    for (size_t i = 0; i < len; i++)
        queue_pair(v, w, &n_heap, (uint32_t)i);
    while (n_heap > 0) {
        struct bpe_pair p = heap_pop(w->heap, &n_heap);
        struct bpe_symbol *l = &w->sym[p.left], *r = &w->sym[p.right];
        if (l->id != p.left_id || l->next != p.right || r->id != p.right_id)
            continue;
        l->id = (int32_t)v->merges.result[p.rank];
        l->next = r->next;
        r->id = DEAD;
        if (l->next != UINT32_MAX)
            w->sym[l->next].prev = p.left;
        queue_pair(v, w, &n_heap, l->prev);
        queue_pair(v, w, &n_heap, p.left);
    }
    for (uint32_t i = 0; i != UINT32_MAX && len > 0; i = w->sym[i].next)
        w->ids[w->n_ids++] = w->sym[i].id;
    return true;
}
