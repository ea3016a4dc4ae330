/* The experts of a lone row where all that is read of them fits into the multiprocessors' shared memory at once.
 *
 * Such products last as long as the memory's latency, several times over where a thread loads in rounds. Here one copy per warp brings all its rows as
 * soon as it is known which they are: the shared expert's before the predecessor has ended, the others' when the choice has been made. All blocks are
 * resident together, so every byte is on its way at the same time. The int8 form of the activation is made by the down projection's blocks, each for
 * itself: its blocks of 32 values need not lie in one block of threads. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/router.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MOST = 4 /* outputs of a warp */ };
enum { MAX_SLICE = 512 /* outputs: of more, the kernels that go through registers are as fast */ };
enum { DOWN_SLOTS = 16, DOWN_ROWS = 64, DOWN_THREADS = 640, QUADS = 4 /* of activations per thread */ };

/* One of the two kinds of gated projection: `warps` of a block have `outputs` each; `blocks` per matrix. */
struct gated_part {
    struct kcu_gated g;
    uint32_t blocks, warps, outputs;
};

struct gated_row {
    struct gated_part experts, shared;
    struct kcu_route route;
    uint32_t shared_blocks, weight_bytes;
};

/* A warp: n pairs of rows of gate and up; lane i has the products of pair i. A unit of activations is read once for both. */
template <class F>
static __device__ __forceinline__ void pairs_shared(const uint8_t *w, uint32_t pitch, uint32_t n, uint32_t k, const uint8_t *xs, float *gate, float *up)
{
    const uint32_t lane = threadIdx.x % 32;
    float a[MOST] = {}, b[MOST] = {};
    for (uint32_t u = lane; u < k / F::W; u += 32)
#pragma unroll
        for (uint32_t o = 0; o < MOST; o++) {
            if (o >= n)
                break;
            typename F::raw r[2];
            int q[2][F::W / 4];
            float d[2][F::NS], m[2][F::NS];
            F::template fetch<STAGED>(w + o * pitch, k, u, r[0]);
            F::template fetch<STAGED>(w + (n + o) * pitch, k, u, r[1]);
            F::unpack(r[0], u, q[0], d[0], m[0]);
            F::unpack(r[1], u, q[1], d[1], m[1]);
            const uint8_t *x = xs + u * staged<F>::STRIDE;
            a[o] = unit_q8<F>(q[0], d[0], m[0], x, x + F::W, a[o]);
            b[o] = unit_q8<F>(q[1], d[1], m[1], x, x + F::W, b[o]);
        }
    *gate = *up = 0;
#pragma unroll
    for (uint32_t o = 0; o < MOST; o++) {
        if (o >= n)
            break;
        const float g = warp_sum(a[o], 32), v = warp_sum(b[o], 32);
        if (lane == o)
            *gate = g, *up = v;
    }
}

/* A block's outputs. route NULL: the matrix is known from the start. */
template <int T>
static __device__ __forceinline__ void gated_block(const gated_part &p, const struct kcu_route *route, uint32_t block, uint8_t *w, uint8_t *xs,
                                                   uint64_t *barrier, choice_room &room, uint64_t *at)
{
    typedef fmt<T> F;
    const struct kcu_gated &g = p.g;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = block / p.blocks, pitch = (uint32_t)g.gate.pitch, k = g.gate.k;
    const uint32_t row0 = (block % p.blocks * p.warps + warp) * p.outputs, half = g.gate.rows,
                   n = warp >= p.warps || row0 >= half ? 0 : min(p.outputs, half - row0);
    const size_t from = (size_t)row0 * pitch;
    const uint32_t tag = route != nullptr ? tag_of(route->words) : 0;
    w += (size_t)warp * p.outputs * 2 * pitch;
    barrier += warp;
    if (route == nullptr && lane == 0 && n != 0)
        bring(w, g.gate.w + from, g.up.w + from, n * pitch, barrier);
    if (route != nullptr) {
        choose_passed(*route, tag, block == 0, room);
        const size_t mat = (uint32_t)room.id[pair] - g.expert0;
        if (lane == 0 && n != 0)
            bring(w, g.gate.w + mat * g.gate.mat_pitch + from, g.up.w + mat * g.up.mat_pitch + from, n * pitch, barrier);
    }
    if (route == nullptr || route->pre.x != nullptr) /* else the row is there, since the router has waited for it before it made logits */
        pdl_wait();
    pdl_release(); /* not before: blocks of the down projections would only look for the choice */
    stamp(at);
    stage_async<F>(g.in.q8, k, xs, THREADS);
    copies_wait_all();
    __syncthreads();
    if (n != 0) {
        receive(barrier);
        float gate, up;
        pairs_shared<F>(w, pitch, n, k, xs, &gate, &up);
        if (lane < n) {
            const float a = g.swapped ? up : gate, b = g.swapped ? gate : up; /* swapped: what stands first is taken for the gate */
            g.gu[pair * g.gu_pitch + row0 + lane] = a;
            g.gu[pair * g.gu_pitch + half + row0 + lane] = b;
            g.act[pair * g.act_pitch + row0 + lane] = silu(a) * b;
        }
    }
    pdl_wait(); /* whoever waits for this kernel's end waits for the router's, too */
}

template <int E> static __global__ void __launch_bounds__(THREADS, BULK_PER_SM) gated_kernel(const __grid_constant__ gated_row t, uint64_t *at)
{
    extern __shared__ __align__(128) uint8_t w[];
    __shared__ __align__(8) uint64_t barrier[WARPS];
    __shared__ __align__(16) choice_room room;
    if (blockIdx.x < t.shared_blocks)
        gated_block<KRN_Q8_0>(t.shared, nullptr, blockIdx.x, w, w + t.weight_bytes, barrier, room, at);
    else
        gated_block<E>(t.experts, &t.route, blockIdx.x - t.shared_blocks, w, w + t.weight_bytes, barrier, room, at);
}

/* Of several parts of a row's sum: a warp per slot (an expert, or the shared one last) or several. */
struct down_row {
    struct kcu_down d;
    struct kcu_route route;
    uint32_t rows, warps;             /* rows of a block, warps per slot */
    uint32_t weight_bytes, row_bytes; /* where the activations lie, and their bytes per expert */
};

template <class F, int LPR>
static __device__ __forceinline__ float dot_shared(const uint8_t *row, uint32_t k, uint32_t sub, const uint8_t *xs)
{
    float acc = 0;
    for (uint32_t u = sub; u < k / F::W; u += LPR)
        acc = unit_shared<F>(row, k, u, xs, acc);
    return warp_sum(acc, LPR);
}

/* The slot's activations, k of them, to their int8 form as format F wants them. The slot's threads call. */
template <class F> static __device__ __forceinline__ void quantise_to(uint8_t *xs, const float *x, uint32_t k)
{
    float4 v[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const uint32_t col = 4 * (threadIdx.x + i * blockDim.x);
        v[i] = col < k ? *(const float4 *)(x + col) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const uint32_t col = 4 * (threadIdx.x + i * blockDim.x);
        if (4 * i * blockDim.x >= k)
            break;
        const float h[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        uint8_t *chunk = xs + (col < k ? col / F::W : 0) * staged<F>::STRIDE;
        q8_block8_to(h, (uint32_t *)(chunk + col % F::W), (krn_q8_block *)(chunk + F::W) + col % F::W / 32, col < k);
    }
}

template <int E, int LPR>
static __global__ void __launch_bounds__(DOWN_THREADS, 1) down_kernel(const __grid_constant__ down_row t, uint64_t *at)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barrier[DOWN_SLOTS];
    __shared__ float part[DOWN_SLOTS][DOWN_ROWS];
    __shared__ __align__(16) choice_room room;
    enum { GROUP = 32 / LPR };
    const struct kcu_down &a = t.d;
    const uint32_t s = threadIdx.y, experts = a.n_used, slots = experts + (a.shared.w != nullptr), row0 = blockIdx.x * t.rows,
                   n = min(t.rows, a.width - row0), lane = threadIdx.x % 32, sub = lane % LPR;
    const bool mine = s == experts;
    const struct kcu_mat &m = mine ? a.shared : a.down;
    uint8_t *w = shared + (size_t)s * t.rows * a.down.pitch, *xs = shared + t.weight_bytes + s * t.row_bytes;
    if (mine && threadIdx.x == 0)
        bring(w, m.w + row0 * m.pitch, nullptr, n * (uint32_t)m.pitch, barrier + s);
    await_choice(t.route, room);
    uint32_t order = s;
    if (!mine) {
        const uint32_t e = (uint32_t)room.id[s];
        if (threadIdx.x == 0)
            bring(w, m.w + (e - a.expert0) * m.mat_pitch + row0 * m.pitch, nullptr, n * (uint32_t)m.pitch, barrier + s);
        order = 0;
        for (uint32_t o = 0; o < experts; o++)
            order += (uint32_t)room.id[o] < e;
    }
    const uint32_t o = row0 + threadIdx.x;
    const bool writes = threadIdx.y == 0 && threadIdx.x < n;
    float before = 0;
    pdl_wait();
    stamp(at);
    if (mine)
        quantise_to<fmt<KRN_Q8_0>>(xs, a.shared_act.x, m.k);
    else
        quantise_to<fmt<E>>(xs, a.act.x + s * a.act.pitch, m.k);
    __syncthreads();
    receive(barrier + s);
    pdl_release(); /* not before: the next layer's first weights would be in the way of these */
    for (uint32_t r = threadIdx.x / 32 * GROUP + lane / LPR; r < t.rows; r += t.warps * GROUP) {
        const uint8_t *line = w + (r < n ? r : 0) * m.pitch;
        const float v = mine ? dot_shared<fmt<KRN_Q8_0>, LPR>(line, m.k, sub, xs) : dot_shared<fmt<E>, LPR>(line, m.k, sub, xs);
        if (sub == 0)
            part[order][r] = mine ? v : room.weight[s] * v;
    }
    if (writes && a.x != nullptr)
        before = a.x[o];
    __syncthreads();
    if (!writes)
        return;
    float sum = 0;
    for (uint32_t j = 0; j < slots; j++)
        sum += part[j][threadIdx.x];
    a.y[o] = sum;
    if (a.x != nullptr)
        a.x[o] = before + sum;
}

/* ---- who takes what ---- */

static bool there(const struct kcu_gated *g)
{
    return g != NULL && g->gate.w != NULL && g->gate.rows != 0 && g->n != 0;
}

static bool k_quant(uint32_t type)
{
    return type == KRN_Q4_K || type == KRN_Q5_K || type == KRN_Q6_K;
}

/* Shares of blocks and warps: the smallest with which all blocks are resident at once. */
static bool plan_gated(const struct kcu_gated *e, const struct kcu_gated *s, const struct kcu_route *choose, gated_row *t, uint32_t *blocks,
                       size_t *bytes)
{
    if (choose == NULL || !there(e) || e->n != 1 || e->gate.type != e->up.type || !k_quant(e->gate.type) || e->in.q8 == NULL ||
        e->gate.n_mats < choose->n_experts || e->gate.rows > MAX_SLICE)
        return false;
    if (there(s) && (s->gate.type != KRN_Q8_0 || s->up.type != KRN_Q8_0 || s->in.q8 == NULL))
        return false;
    const bulk_device d = bulk_device_here();
    const size_t acts_e = staged_bytes(e->gate.type, e->gate.k), acts_s = there(s) ? staged_bytes(KRN_Q8_0, s->gate.k) : 0,
                 acts = acts_e > acts_s ? acts_e : acts_s, room = d.shared / BULK_PER_SM, pair_e = 2 * e->gate.pitch,
                 pair_s = there(s) ? 2 * s->gate.pitch : 0;
    t->experts = {*e, 0, WARPS, 0};
    t->shared = {};
    t->route = *choose;
    for (uint32_t n = 1; n <= MOST; n++) {
        size_t w = WARPS * n * pair_e;
        w = w > pair_s ? w : pair_s;
        if (w + acts + BULK_RESERVED > room)
            return false;
        t->experts.outputs = n;
        t->experts.blocks = (e->gate.rows + WARPS * n - 1) / (WARPS * n);
        t->shared_blocks = 0;
        if (there(s)) {
            t->shared = {*s, 0, 0, 0};
            for (uint32_t warps = WARPS; warps > 0; warps--) {
                const uint32_t fit = (uint32_t)(w / (warps * pair_s)), outputs = fit < MOST ? fit : MOST;
                if (warps * outputs > t->shared.warps * t->shared.outputs)
                    t->shared.warps = warps, t->shared.outputs = outputs;
            }
            const uint32_t per = t->shared.warps * t->shared.outputs;
            t->shared_blocks = t->shared.blocks = (s->gate.rows + per - 1) / per;
        }
        t->weight_bytes = (uint32_t)w;
        *bytes = w + acts;
        *blocks = t->shared_blocks + e->n_used * t->experts.blocks;
        if (*blocks <= BULK_PER_SM * d.sms)
            return true;
    }
    return false;
}

extern "C" bool kcu_gated_leaves_int8(const struct kcu_gated *experts, const struct kcu_gated *shared, const struct kcu_route *choose)
{
    gated_row t;
    uint32_t blocks;
    size_t bytes;
    return plan_gated(experts, shared, choose, &t, &blocks, &bytes);
}

template <int E> static cudaError_t gated(const struct kcu_launch *l, const gated_row &t, uint32_t blocks, size_t bytes)
{
    divide_alike(gated_kernel<E>);
    return bulk_launch(l, gated_kernel<E>, dim3(blocks), dim3(THREADS), bytes, t, l->stamp);
}

cudaError_t experts_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared, const struct kcu_route *choose)
{
    gated_row t;
    uint32_t blocks;
    size_t bytes;
    if (!plan_gated(experts, shared, choose, &t, &blocks, &bytes))
        return cudaErrorInvalidValue;
    switch (experts->gate.type) {
    case KRN_Q4_K: return gated<KRN_Q4_K>(l, t, blocks, bytes);
    case KRN_Q5_K: return gated<KRN_Q5_K>(l, t, blocks, bytes);
    default: return gated<KRN_Q6_K>(l, t, blocks, bytes);
    }
}

/* Two blocks per multiprocessor at most. */
static bool plan_down(const struct kcu_down *a, down_row *t, uint32_t *blocks, size_t *bytes, uint32_t *lpr)
{
    const bool shared = a->shared.w != NULL;
    if (a->choose == NULL || a->n != 1 || a->down.w == NULL || !k_quant(a->down.type) || a->down.n_mats < a->n_experts ||
        (shared && (a->shared.type != KRN_Q8_0 || a->shared.k % 32 != 0)))
        return false;
    const bulk_device d = bulk_device_here();
    const uint32_t slots = a->n_used + shared, units = a->down.k / unit_of(a->down.type),
                   k = shared && a->shared.k > a->down.k ? a->shared.k : a->down.k;
    if (d.shared == 0 || slots > DOWN_SLOTS)
        return false;
    *lpr = units <= 4 ? 4 : 8;
    const uint32_t group = 32 / *lpr, rows = (a->width + 2 * d.sms - 1) / (2 * d.sms);
    t->d = *a;
    t->route = *a->choose;
    t->rows = (rows + group - 1) / group * group;
    t->warps = (k + 128 * QUADS - 1) / (128 * QUADS);
    t->weight_bytes = (uint32_t)(t->rows * (a->n_used * a->down.pitch + (shared ? a->shared.pitch : 0)));
    t->row_bytes = (uint32_t)((staged_bytes(a->down.type, a->down.k) + 15) / 16 * 16);
    *bytes = t->weight_bytes + a->n_used * t->row_bytes + (shared ? staged_bytes(KRN_Q8_0, a->shared.k) : 0);
    *blocks = (a->width + t->rows - 1) / t->rows;
    return t->rows <= DOWN_ROWS && t->rows <= 32 * t->warps && t->warps * slots * 32 <= DOWN_THREADS && *bytes + BULK_RESERVED <= d.shared / 2;
}

extern "C" bool kcu_down_makes_int8(const struct kcu_down *a)
{
    down_row t;
    uint32_t blocks, lpr;
    size_t bytes;
    return plan_down(a, &t, &blocks, &bytes, &lpr);
}

template <int E> static cudaError_t down(const struct kcu_launch *l, const down_row &t, uint32_t blocks, size_t bytes, uint32_t lpr)
{
    const dim3 block(32 * t.warps, t.d.n_used + (t.d.shared.w != NULL));
    const auto kernel = lpr == 4 ? down_kernel<E, 4> : down_kernel<E, 8>;
    divide_alike(kernel);
    return bulk_launch(l, kernel, dim3(blocks), block, bytes, t, l->stamp);
}

cudaError_t experts_down(const struct kcu_launch *l, const struct kcu_down *a)
{
    down_row t;
    uint32_t blocks, lpr;
    size_t bytes;
    if (!plan_down(a, &t, &blocks, &bytes, &lpr))
        return cudaErrorInvalidValue;
    switch (a->down.type) {
    case KRN_Q4_K: return down<KRN_Q4_K>(l, t, blocks, bytes, lpr);
    case KRN_Q5_K: return down<KRN_Q5_K>(l, t, blocks, bytes, lpr);
    default: return down<KRN_Q6_K>(l, t, blocks, bytes, lpr);
    }
}
