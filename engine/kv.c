/* Cache blocks. See kv.h. */
#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

enum rs_result kv_open(struct kv *kv, uint32_t n_blocks, uint32_t block, struct rs_error *err)
{
    memset(kv, 0, sizeof *kv);
    for (kv->n_buckets = 64; kv->n_buckets < 2 * n_blocks; kv->n_buckets *= 2)
        ;
    kv->n_blocks = n_blocks;
    kv->block = block;
    kv->b = calloc(n_blocks, sizeof *kv->b);
    kv->bucket = malloc(kv->n_buckets * sizeof *kv->bucket);
    if (kv->b == NULL || kv->bucket == NULL) {
        kv_close(kv);
        return error_set(err, RS_ENOMEM, "out of memory for %u cache blocks", n_blocks);
    }
    kv->free = kv->old = kv->young = -1;
    for (uint32_t i = 0; i < kv->n_buckets; i++)
        kv->bucket[i] = -1;
    for (uint32_t i = n_blocks; i-- > 1;) { /* low numbers first */
        kv->b[i].next = kv->free;
        kv->free = (int32_t)i;
    }
    return RS_OK;
}

void kv_close(struct kv *kv)
{
    free(kv->b);
    free(kv->bucket);
    memset(kv, 0, sizeof *kv);
}

static int32_t *bucket_of(struct kv *kv, uint64_t hash)
{
    return &kv->bucket[(hash ^ hash >> 32) & (kv->n_buckets - 1)];
}

static void unpublish(struct kv *kv, int32_t i)
{
    int32_t *at = bucket_of(kv, kv->b[i].hash);
    while (*at != i)
        at = &kv->b[*at].chain;
    *at = kv->b[i].chain;
    kv->b[i].hash = 0;
}

static void idle_remove(struct kv *kv, int32_t i)
{
    struct kv_block *b = &kv->b[i];
    *(b->prev >= 0 ? &kv->b[b->prev].next : &kv->old) = b->next;
    *(b->next >= 0 ? &kv->b[b->next].prev : &kv->young) = b->prev;
    kv->n_idle--;
}

int32_t kv_alloc(struct kv *kv)
{
    int32_t i = kv->free;
    if (i >= 0) {
        kv->free = kv->b[i].next;
    } else if (kv->old >= 0) {
        i = kv->old;
        idle_remove(kv, i);
        unpublish(kv, i);
    } else {
        return -1;
    }
    kv->b[i].refs = 1;
    kv->n_held++;
    return i;
}

void kv_hold(struct kv *kv, int32_t i)
{
    assert(i > 0 && (uint32_t)i < kv->n_blocks);
    if (kv->b[i].refs++ == 0) {
        idle_remove(kv, i);
        kv->n_held++;
    }
}

void kv_drop(struct kv *kv, int32_t i)
{
    struct kv_block *b = &kv->b[i];
    assert(i > 0 && (uint32_t)i < kv->n_blocks && b->refs > 0);
    if (--b->refs != 0)
        return;
    kv->n_held--;
    if (b->hash == 0) {
        b->next = kv->free;
        kv->free = i;
        return;
    }
    b->prev = kv->young;
    b->next = -1;
    *(kv->young >= 0 ? &kv->b[kv->young].next : &kv->old) = i;
    kv->young = i;
    kv->n_idle++;
}

static int32_t lookup(struct kv *kv, uint64_t hash)
{
    int32_t i = *bucket_of(kv, hash);
    while (i >= 0 && kv->b[i].hash != hash)
        i = kv->b[i].chain;
    return i;
}

void kv_publish(struct kv *kv, int32_t i, uint64_t hash)
{
    assert(hash != 0 && kv->b[i].refs > 0);
    if (kv->b[i].hash != 0 || lookup(kv, hash) >= 0)
        return;
    int32_t *at = bucket_of(kv, hash);
    kv->b[i].hash = hash;
    kv->b[i].chain = *at;
    *at = i;
}

int32_t kv_find(struct kv *kv, uint64_t hash)
{
    int32_t i = lookup(kv, hash);
    if (i >= 0)
        kv_hold(kv, i);
    return i;
}

void kv_forget(struct kv *kv)
{
    while (kv->old >= 0) {
        int32_t i = kv->old;
        idle_remove(kv, i);
        unpublish(kv, i);
        kv->b[i].next = kv->free;
        kv->free = i;
    }
    for (uint32_t i = 1; i < kv->n_blocks; i++)
        if (kv->b[i].hash != 0)
            unpublish(kv, (int32_t)i);
}

void kv_renew(struct kv *kv)
{
    kv->era++;
    kv_forget(kv);
}

uint64_t kv_hash(uint64_t before, const int32_t *tokens, const uint8_t *kinds, uint32_t n)
{
    uint64_t h = before ^ 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < n; i++) { /* a 64-bit mixer per token: collisions are as likely as bit flips */
        h ^= (uint64_t)(uint32_t)tokens[i] << 1 | kinds[i];
        h *= 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        h *= 0xc4ceb9fe1a85ec53u;
        h ^= h >> 29;
    }
    return h != 0 ? h : 1;
}
