/* The choice of experts from their logits. Whoever needs it makes it: a kernel of its own, or every block of the projections that follow. */
#ifndef RANKSCOPE_KERNELS_CUDA_ROUTER_CUH
#define RANKSCOPE_KERNELS_CUDA_ROUTER_CUH

#include "kernels/cuda/words.cuh"

enum { MAX_EXPERTS = 512, MAX_USED = 32 };

struct choice_room {
    float s[MAX_EXPERTS]; /* what is compared; read four at a time */
    float p[MAX_EXPERTS];
    float weight[MAX_USED];
    int32_t id[MAX_USED];
    uint32_t top[MAX_EXPERTS / 32], n_rivals; /* of best_of_few() */
    uint16_t rival[MAX_EXPERTS];
};

/* Is expert e one of this rank's, of which expert0 is the first? */
static __device__ __forceinline__ bool has_expert(const struct kcu_mat &m, uint32_t expert0, uint32_t e)
{
    return e >= expert0 && e - expert0 < m.n_mats;
}

static __device__ __forceinline__ uint32_t flat_thread()
{
    return threadIdx.y * blockDim.x + threadIdx.x;
}

/* Groups that do not make it leave the race: a group's score is the sum of its two best. At most 32 groups, one thread each. */
static __device__ __noinline__ void limit_groups(const struct kcu_route &a, choice_room &c)
{
    const uint32_t per = a.n_experts / a.n_groups, g = flat_thread();
    float m1 = -INFINITY, m2 = -INFINITY, *s = c.s, *score = c.weight;
    if (g < a.n_groups) {
        for (uint32_t i = 0; i < per; i++) {
            const float v = s[g * per + i];
            if (v > m1)
                m2 = m1, m1 = v;
            else if (v > m2)
                m2 = v;
        }
        score[g] = per > 1 ? m1 + m2 : m1;
    }
    __syncthreads();
    uint32_t better = 0; /* groups that come before this one; ties go to the lower index */
    for (uint32_t o = 0; g < a.n_groups && o < a.n_groups; o++)
        better += score[o] > score[g] || (score[o] == score[g] && o < g);
    if (g < a.n_groups && better >= a.n_groups_used)
        for (uint32_t i = 0; i < per; i++)
            s[g * per + i] = -INFINITY;
    __syncthreads();
}

/* A score as an integer that sorts alike; 0 is below all. */
static __device__ __forceinline__ uint32_t sortable(float x)
{
    const uint32_t b = __float_as_uint(x);
    return (b >> 31) != 0 ? ~b : b | 0x80000000u;
}

/* One warp: the n_used best of c.s in descending order, ties to the lower index. SLOTS per lane hold them all. */
template <int SLOTS> static __device__ __forceinline__ void best(const struct kcu_route &a, choice_room &c)
{
    const uint32_t lane = flat_thread() % 32, n = a.n_experts;
    uint32_t key[SLOTS];
#pragma unroll
    for (uint32_t j = 0; j < SLOTS; j++)
        key[j] = j * 32 + lane < n ? sortable(c.s[j * 32 + lane]) : 0;
    for (uint32_t k = 0; k < a.n_used; k++) {
        uint32_t top = key[0], at = UINT32_MAX;
#pragma unroll
        for (uint32_t j = 1; j < SLOTS; j++)
            top = max(top, key[j]);
        const uint32_t m = __reduce_max_sync(0xffffffffu, top);
#pragma unroll
        for (uint32_t j = SLOTS; j-- > 0;)
            at = key[j] == m ? j * 32 + lane : at;
        const uint32_t e = __reduce_min_sync(0xffffffffu, at);
#pragma unroll
        for (uint32_t j = 0; j < SLOTS; j++)
            key[j] = j * 32 + lane == e ? 0 : key[j];
        if (lane == 0) {
            c.id[k] = (int32_t)e;
            c.weight[k] = c.p[e];
        }
    }
    __syncwarp();
}

/* The same by all threads of the block, one per expert at least, in four waits instead of two per choice: every 32 experts have a best, and who is
 * below all of those is not chosen where there are at least n_used of them. Of the few that are left each counts who comes before it. */
static __device__ __forceinline__ void best_of_few(const struct kcu_route &a, choice_room &c)
{
    const uint32_t t = flat_thread(), lane = t % 32, n = a.n_experts, groups = (n + 31) / 32, key = t < n ? sortable(c.s[t]) : 0;
    uint32_t *keys = (uint32_t *)c.s, floor = UINT32_MAX, base = 0;
    if (t / 32 < groups) {
        const uint32_t m = __reduce_max_sync(0xffffffffu, key);
        if (lane == 0)
            c.top[t / 32] = m;
    }
    if (t == 0)
        c.n_rivals = 0;
    __syncthreads();
    for (uint32_t g = 0; g < groups; g++)
        floor = min(floor, c.top[g]);
    const bool rival = t < n && key >= floor;
    const uint32_t vote = __ballot_sync(0xffffffffu, rival);
    if (lane == 0 && vote != 0)
        base = atomicAdd(&c.n_rivals, __popc(vote));
    const uint32_t at = __shfl_sync(0xffffffffu, base, 0) + __popc(vote & ((1u << lane) - 1));
    if (rival)
        keys[at] = key, c.rival[at] = (uint16_t)t;
    __syncthreads();
    const uint32_t rivals = c.n_rivals;
    if (t < rivals) {
        const uint32_t mine = keys[t], e = c.rival[t];
        uint32_t before = 0;
        for (uint32_t o = 0; o < rivals; o++)
            before += keys[o] > mine || (keys[o] == mine && c.rival[o] < e);
        if (before < a.n_used) {
            c.id[before] = (int32_t)e;
            c.weight[before] = c.p[e];
        }
    }
    __syncthreads();
}

/* A warp: final weights. */
static __device__ __forceinline__ void weights(const struct kcu_route &a, choice_room &c)
{
    const uint32_t lane = flat_thread() % 32;
    float sum = 0;
    for (uint32_t k = 0; k < a.n_used; k++)
        sum += c.weight[k];
    const float f = a.norm ? a.scale / (sum > 1e-20f ? sum : 1e-20f) : a.scale;
    __syncwarp();
    if (lane < a.n_used)
        c.weight[lane] *= f;
}

/* Ids of one row to c, from logits that other blocks wrote, of `logit(i)`; `writes`: weights as well, and both to where the op leaves its results. All
 * threads of the block call; their number does not change a bit. */
template <class L>
static __device__ __forceinline__ void choose_of(const struct kcu_route &a, uint32_t row, L logit, bool in_place, bool writes, choice_room &c)
{
    const uint32_t n = a.n_experts, t = flat_thread(), threads = blockDim.x * blockDim.y;
    float *out = a.p + row * a.p_pitch, m = -INFINITY, z = 0;
    if (!a.sigmoid) { /* every warp for itself */
        for (uint32_t i = t % 32; i < n; i += 32)
            m = fmaxf(m, logit(i));
        m = warp_max(m, 32);
        for (uint32_t i = t % 32; i < n; i += 32)
            z += expf(logit(i) - m);
        z = warp_sum(z, 32);
        if (in_place)
            __syncthreads(); /* all have read what is written next */
    }
    for (uint32_t i = t; i < n; i += threads) {
        const float bias = a.bias != nullptr ? a.bias[i] : 0.0f, x = logit(i), p = a.sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - m) / z;
        c.p[i] = p;
        c.s[i] = p + bias;
        if (writes)
            out[i] = p;
    }
    __syncthreads();
    if (a.n_groups > 1 && a.n_groups_used < a.n_groups)
        limit_groups(a, c);
    const bool few = n <= threads && a.n_used <= n / 32;
    if (few)
        best_of_few(a, c);
    if (t < 32) {
        if (few)
            ;
        else if (n <= 64)
            best<2>(a, c);
        else if (n <= 256)
            best<8>(a, c);
        else
            best<MAX_EXPERTS / 32>(a, c);
        if (writes) {
            weights(a, c);
            if (t < a.n_used) {
                *(volatile int32_t *)(a.ids + row * a.pitch + t) = c.id[t];
                *(volatile float *)(a.weights + row * a.pitch + t) = c.weight[t];
            }
        }
    }
    if (!few)
        __syncthreads();
}

/* From where the op leaves its scores. */
static __device__ __forceinline__ void choose(const struct kcu_route &a, uint32_t row, bool writes, choice_room &c)
{
    const float *logits = a.p + row * a.p_pitch;
    choose_of(a, row, [&](uint32_t i) { return __ldcg(logits + i); }, true, writes, c);
}

/* Of a lone row whose logits come as words: one that this thread needs, so that a block that has it may ask for what was there before the router. */
static __device__ __forceinline__ float await_logit(const struct kcu_route &a, uint32_t tag)
{
    return __uint_as_float(await_passed(a.words.at + flat_thread() % a.n_experts, tag));
}

/* The choice, from that one and the others; who writes passes it as words, too. */
static __device__ __forceinline__ void choose_passed(const struct kcu_route &a, uint32_t tag, float own, bool writes, choice_room &c)
{
    const uint32_t t = flat_thread(), first = t % a.n_experts;
    choose_of(
        a, 0, [&](uint32_t i) { return i == first ? own : __uint_as_float(await_passed(a.words.at + i, tag)); }, false, writes, c);
    if (writes && t < a.n_used) { /* the threads that have made the weights */
        pass(a.words.at + a.n_experts + 2 * t, (uint32_t)c.id[t], tag);
        pass(a.words.at + a.n_experts + 2 * t + 1, __float_as_uint(c.weight[t]), tag);
    }
}

/* A choice that a kernel before is making. */
static __device__ __forceinline__ void await_choice(const struct kcu_route &a, choice_room &c)
{
    const uint32_t t = flat_thread(), tag = tag_of(a.words);
    if (t < a.n_used) {
        c.id[t] = (int32_t)await_passed(a.words.at + a.n_experts + 2 * t, tag);
        c.weight[t] = __uint_as_float(await_passed(a.words.at + a.n_experts + 2 * t + 1, tag));
    }
    __syncthreads();
}

#endif
