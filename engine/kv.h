/* Cache blocks: who holds which, and which can be found again.
 *
 * A block holds the cache rows of `block` consecutive tokens, on every rank and layer alike; this file deals in numbers only. A full block whose
 * contents are known (the hash of all tokens and row kinds from the start of the sequence up to its end) is published, so that another sequence
 * with the same beginning takes a reference instead of computing it again. Published blocks that nobody holds stay until their space is needed,
 * oldest first. Block 0 belongs to nobody: padded rows write there. The engine's control thread owns a pool; nothing allocates after kv_open(). */
#ifndef RANKSCOPE_ENGINE_KV_H
#define RANKSCOPE_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/rankscope.h"

struct kv_block {
    uint64_t hash;      /* of a published block, else 0 */
    uint32_t refs;
    int32_t prev, next; /* in the list of idle published blocks, oldest first; or in the free list */
    int32_t chain;      /* next block in the same hash bucket */
};

struct kv {
    uint32_t n_blocks, block;
    uint32_t n_held, n_idle;    /* referenced; published and unreferenced */
    struct kv_block *b;
    int32_t free, old, young;   /* free list; idle list's ends */
    int32_t *bucket;
    uint32_t n_buckets;         /* a power of two */
    uint64_t hits, queries;     /* tokens found, tokens looked for */
    uint64_t era;               /* the hash before a sequence's first block; see kv_renew() */
};

enum rs_result kv_open(struct kv *kv, uint32_t n_blocks, uint32_t block, struct rs_error *err);
void kv_close(struct kv *kv);

/* A block of one's own, refs 1, or -1 when every block is held. */
int32_t kv_alloc(struct kv *kv);
/* Take another reference. */
void kv_hold(struct kv *kv, int32_t block);
/* Give one back; the last one makes the block idle (published) or free. */
void kv_drop(struct kv *kv, int32_t block);
/* Make a held, full block findable. If another block of that hash is already published, nothing happens. */
void kv_publish(struct kv *kv, int32_t block, uint64_t hash);
/* The published block of a hash with a reference taken, or -1. */
int32_t kv_find(struct kv *kv, uint64_t hash);
/* Forget everything that was published (the caches' contents have become invalid). Held blocks stay held. */
void kv_forget(struct kv *kv);

/* What is computed from now on is computed another way: nothing that was published before is found any more, nor what sequences that run publish
 * on top of it. They keep their blocks. */
void kv_renew(struct kv *kv);

/* Hash of a block given the hash of what precedes it; kinds: row kind per token. Never 0. */
uint64_t kv_hash(uint64_t before, const int32_t *tokens, const uint8_t *kinds, uint32_t n);

static inline uint32_t kv_available(const struct kv *kv)
{
    return kv->n_blocks - 1 - kv->n_held;
}

#endif
