/* Cache blocks: random use against a plain model of what must hold. */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"

enum { BLOCKS = 33, BLOCK = 16, STEPS = 200000 };

static uint64_t s_rng = 88172645463325252u;

static uint32_t rnd(uint32_t n)
{
    s_rng ^= s_rng << 13;
    s_rng ^= s_rng >> 7;
    s_rng ^= s_rng << 17;
    return (uint32_t)(s_rng >> 33) % n;
}

/* What we believe: references of each block, and the hash under which it can be found. */
struct belief {
    uint32_t refs[BLOCKS];
    uint64_t hash[BLOCKS];
};

/* Everything that the pool's counters and lists say, against the belief. */
static bool agrees(const struct kv *kv, const struct belief *b)
{
    uint32_t held = 0, idle = 0, in_free = 0, in_idle = 0;
    for (uint32_t i = 1; i < BLOCKS; i++) {
        held += b->refs[i] > 0;
        idle += b->refs[i] == 0 && b->hash[i] != 0;
        if (kv->b[i].refs != b->refs[i] || kv->b[i].hash != b->hash[i])
            return false;
    }
    for (int32_t i = kv->free; i >= 0; i = kv->b[i].next)
        in_free++;
    for (int32_t i = kv->old, before = -1; i >= 0; before = i, i = kv->b[i].next) {
        if (kv->b[i].prev != before)
            return false;
        in_idle++;
    }
    return kv->n_held == held && kv->n_idle == idle && in_idle == idle && in_free + idle + held == BLOCKS - 1 &&
           kv_available(kv) == BLOCKS - 1 - held;
}

static int32_t some_held(const struct belief *b)
{
    uint32_t from = rnd(BLOCKS - 1);
    for (uint32_t k = 0; k < BLOCKS - 1; k++) {
        uint32_t i = 1 + (from + k) % (BLOCKS - 1);
        if (b->refs[i] > 0)
            return (int32_t)i;
    }
    return -1;
}

static bool published(const struct belief *b, uint64_t hash)
{
    for (uint32_t i = 1; i < BLOCKS; i++)
        if (b->hash[i] == hash)
            return true;
    return false;
}

static bool take_one(struct kv *kv, struct belief *b)
{
    uint32_t held = kv->n_held;
    int32_t i = kv_alloc(kv);
    if (i < 0)
        return held == BLOCKS - 1;
    if (i == 0 || i >= BLOCKS || b->refs[i] != 0)
        return false;
    if (b->hash[i] != 0) /* an idle published block went: only if nothing was free, which the belief cannot have either */
        for (uint32_t k = 1; k < BLOCKS; k++)
            if (b->refs[k] == 0 && b->hash[k] == 0)
                return false;
    b->hash[i] = 0;
    b->refs[i] = 1;
    return true;
}

static bool turn(struct kv *kv, struct belief *b)
{
    int32_t i = some_held(b);
    uint64_t h = 1 + rnd(60);
    switch (rnd(7)) {
    case 0:
    case 1:
        return take_one(kv, b);
    case 2:
    case 3:
        if (i >= 0) {
            kv_drop(kv, i);
            b->refs[i]--;
        }
        return true;
    case 4:
        if (i >= 0) {
            kv_publish(kv, i, h);
            if (b->hash[i] == 0 && !published(b, h))
                b->hash[i] = h;
        }
        return true;
    case 5:
        if (rnd(500) == 0) {
            kv_forget(kv);
            memset(b->hash, 0, sizeof b->hash);
        }
        return true;
    default:
        i = kv_find(kv, h);
        if (i >= 0)
            b->refs[i]++;
        return i >= 0 ? b->hash[i] == h : !published(b, h);
    }
}

static void test_random(void)
{
    struct kv kv;
    struct rs_error err;
    struct belief b = {0};
    int good = 0;
    bool end = kv_open(&kv, BLOCKS, BLOCK, &err) == RS_OK;
    while (good < STEPS && turn(&kv, &b) && agrees(&kv, &b))
        good++;
    tap_eq_int(good, STEPS, "alloc, drop, publish, find and forget in any order keep counts and lists right");
    for (int32_t i = 1; i < BLOCKS; i++)
        for (; b.refs[i] > 0; b.refs[i]--)
            kv_drop(&kv, i);
    tap_ok(end && kv.n_held == 0 && agrees(&kv, &b), "once all references are given back, no block is held");
    kv_close(&kv);
}

static void test_oldest_goes_first(void)
{
    struct kv kv;
    struct rs_error err;
    int32_t id[4];
    kv_open(&kv, 5, BLOCK, &err);
    for (uint64_t k = 0; k < 4; k++)
        kv_publish(&kv, id[k] = kv_alloc(&kv), 100 + k);
    for (int k = 0; k < 4; k++)
        kv_drop(&kv, id[k]);
    kv_drop(&kv, kv_find(&kv, 100)); /* used again: now the youngest */
    tap_eq_int(kv_alloc(&kv), id[1], "the block that was idle longest is overwritten first");
    tap_ok(kv_find(&kv, 101) < 0 && kv_find(&kv, 100) == id[0], "it can no longer be found, the others can");
    kv_close(&kv);
}

static void test_hash(void)
{
    int32_t tok[BLOCK] = {5, 6, 7};
    uint8_t kind[BLOCK] = {0};
    uint64_t h = kv_hash(0, tok, kind, BLOCK);
    kind[BLOCK - 1] = 1;
    tap_ok(kv_hash(0, tok, kind, BLOCK) != h, "a block with another kind of row is another block");
    kind[BLOCK - 1] = 0;
    tap_ok(kv_hash(1, tok, kind, BLOCK) != h, "so is one with another beginning");
    tok[0] = 6, tok[1] = 5;
    tap_ok(kv_hash(0, tok, kind, BLOCK) != h, "and one with tokens in another order");
}

int main(void)
{
    tap_plan(7);
    test_random();
    test_oldest_goes_first();
    test_hash();
    return tap_done();
}
