/* The experts of a lone row where all that is read of them fits into the multiprocessors' shared memory at once.
 *
 * Such products last as long as the memory's latency, several times over where a thread loads in rounds. Here each multiprocessor has one block, and one
 * copy per warp brings all its rows as soon as it is known which they are: the shared expert's before the predecessor has ended, the others' when the
 * choice has been made. So every byte is on its way at the same time, and whatever else a block needs it asks for before: behind those copies it would
 * wait for them. The int8 form of the activation is made by the down projection's blocks, each for itself: its blocks of 32 values need not lie in one
 * block of threads. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/router.cuh"

enum { MAX_WARPS = 32, LEAST_WARPS = 8 /* that look for the choice */, THREADS = 32 * MAX_WARPS };
enum { MAX_SLICE = 512 /* outputs: of more, the kernels that go through registers are as fast */ };
enum { DOWN_SLOTS = 16, DOWN_ROWS = 64, DOWN_THREADS = 640, QUADS = 4 /* of activations per thread */ };

/* A warp per pair of rows, gate and up: `pairs` of an expert's in a block, then some of the shared one's. */
struct gated_row {
    struct kcu_gated experts, shared;
    struct kcu_route route;
    uint32_t blocks, pairs, shared_pairs; /* of an expert; of these in each; of the shared expert in each of all blocks */
    uint32_t shared_at, acts_at;          /* where they lie in shared memory, behind the experts' */
};

/* Unit u of activations in shared memory, chunks as format E has them, for format F; *blocks: its blocks. */
template <class F, class E> static __device__ __forceinline__ const uint8_t *staged_unit(const uint8_t *xs, uint32_t u, const uint8_t **blocks)
{
    static_assert(F::W == 32 || E::W == 64, "a chunk holds one unit or two");
    const uint32_t chunk = u * F::W / E::W, part = u % (E::W / F::W);
    const uint8_t *x = xs + chunk * staged<E>::STRIDE;
    *blocks = x + E::W + part * (F::W / 2);
    return x + part * F::W;
}

/* A warp: two rows of format F, one behind the other, by activations staged for E, which are read once for both. All lanes have both results. */
template <class F, class E>
static __device__ __forceinline__ void pair_shared(const uint8_t *w, uint32_t pitch, uint32_t k, const uint8_t *xs, float *gate, float *up)
{
    float a = 0, b = 0;
    for (uint32_t u = threadIdx.x % 32; u < k / F::W; u += 32) {
        typename F::raw r[2];
        int q[2][F::W / 4];
        float d[2][F::NS], m[2][F::NS];
        F::template fetch<STAGED>(w, k, u, r[0]);
        F::template fetch<STAGED>(w + pitch, k, u, r[1]);
        F::unpack(r[0], u, q[0], d[0], m[0]);
        F::unpack(r[1], u, q[1], d[1], m[1]);
        const uint8_t *blocks, *x = staged_unit<F, E>(xs, u, &blocks);
        a = unit_q8<F>(q[0], d[0], m[0], x, blocks, a);
        b = unit_q8<F>(q[1], d[1], m[1], x, blocks, b);
    }
    *gate = warp_sum(a, 32);
    *up = warp_sum(b, 32);
}

/* One thread: pair `row` of matrix mat. */
static __device__ __forceinline__ void bring_pair(uint8_t *to, const struct kcu_gated &g, size_t mat, uint32_t row, uint64_t *barrier)
{
    const size_t from = (size_t)row * g.gate.pitch;
    bring(to, g.gate.w + mat * g.gate.mat_pitch + from, g.up.w + mat * g.up.mat_pitch + from, (uint32_t)g.gate.pitch, barrier);
}

/* One thread; pair: which of the experts used. */
static __device__ __forceinline__ void leave_pair(const struct kcu_gated &g, uint32_t pair, uint32_t row, float gate, float up)
{
    const float a = g.swapped ? up : gate, b = g.swapped ? gate : up; /* swapped: what stands first is taken for the gate */
    g.gu[pair * g.gu_pitch + row] = a;
    g.gu[pair * g.gu_pitch + g.gate.rows + row] = b;
    g.act[pair * g.act_pitch + row] = silu(a) * b;
}

template <int E> static __global__ void __launch_bounds__(THREADS, 1) gated_kernel(const __grid_constant__ gated_row t, uint64_t *at)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barrier[MAX_WARPS];
    __shared__ __align__(16) choice_room room;
    typedef fmt<E> F;
    typedef fmt<KRN_Q8_0> S;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.x / t.blocks;
    const bool mine = warp >= t.pairs; /* the shared expert's */
    const struct kcu_gated &g = mine ? t.shared : t.experts;
    const uint32_t row = mine ? blockIdx.x * t.shared_pairs + warp - t.pairs : blockIdx.x % t.blocks * t.pairs + warp, pitch = (uint32_t)g.gate.pitch;
    const bool has = row < g.gate.rows && warp < t.pairs + t.shared_pairs;
    uint8_t *w = shared + (mine ? t.shared_at + (warp - t.pairs) * 2 * pitch : warp * 2 * pitch), *xs = shared + t.acts_at;
    const uint32_t tag = tag_of(t.route.words);
    if (mine && has && lane == 0)
        bring_pair(w, g, 0, row, barrier + warp);
    const float own = await_logit(t.route, tag);
    stamp(at);
    const bool there = t.route.pre.x == nullptr; /* the row: the router has waited for it before it made logits; else it makes it meanwhile */
    if (there)
        stage_async<F>(t.experts.in.q8, t.experts.gate.k, xs, blockDim.x);
    choose_passed(t.route, tag, own, blockIdx.x == 0, room);
    if (!mine && has && lane == 0)
        bring_pair(w, g, (uint32_t)room.id[pair] - g.expert0, row, barrier + warp);
    pdl_release(); /* not before: blocks of the down projections would only look for the choice */
    if (!there) {
        pdl_wait();
        stage_async<F>(t.experts.in.q8, t.experts.gate.k, xs, blockDim.x);
    }
    copies_wait_all();
    __syncthreads();
    if (has) {
        float gate, up;
        receive(barrier + warp);
        if (mine)
            pair_shared<S, F>(w, pitch, g.gate.k, xs, &gate, &up);
        else
            pair_shared<F, F>(w, pitch, g.gate.k, xs, &gate, &up);
        if (lane == 0)
            leave_pair(g, mine ? 0 : pair, row, gate, up);
    }
    pdl_wait(); /* whoever waits for this kernel's end waits for the router's, too */
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
    pdl_release(); /* not before: the next layer's first weights would be in the way of these */
    pdl_wait();
    stamp(at);
    if (mine)
        quantise_to<fmt<KRN_Q8_0>>(xs, a.shared_act.x, m.k);
    else
        quantise_to<fmt<E>>(xs, a.act.x + s * a.act.pitch, m.k);
    __syncthreads();
    receive(barrier + s);
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

/* As few pairs in a block as let every block have a multiprocessor. */
static bool plan_gated(const struct kcu_gated *e, const struct kcu_gated *s, const struct kcu_route *choose, gated_row *t, uint32_t *blocks,
                       size_t *bytes)
{
    if (choose == NULL || !there(e) || e->n != 1 || e->gate.type != e->up.type || !k_quant(e->gate.type) || e->in.q8 == NULL ||
        e->gate.n_mats < choose->n_experts || e->gate.rows > MAX_SLICE)
        return false;
    if (there(s) &&
        (s->gate.type != KRN_Q8_0 || s->up.type != KRN_Q8_0 || s->in.q8 != e->in.q8 || s->gate.k != e->gate.k || s->gate.k % 64 != 0))
        return false;
    const bulk_device d = bulk_device_here();
    *t = {*e, {}, *choose, 0, 0, 0, 0, 0};
    do {
        t->pairs++;
        t->blocks = (e->gate.rows + t->pairs - 1) / t->pairs;
        *blocks = t->blocks * e->n_used;
    } while (*blocks > d.sms && t->pairs < MAX_WARPS);
    if (there(s)) {
        t->shared = *s;
        t->shared_pairs = (s->gate.rows + *blocks - 1) / *blocks;
    }
    t->shared_at = (uint32_t)(t->pairs * 2 * e->gate.pitch);
    t->acts_at = (uint32_t)(t->shared_at + t->shared_pairs * 2 * t->shared.gate.pitch);
    *bytes = t->acts_at + staged_bytes(e->gate.type, e->gate.k);
    return *blocks <= d.sms && t->pairs + t->shared_pairs <= MAX_WARPS && *bytes + BULK_RESERVED <= d.shared;
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
    const uint32_t warps = t.pairs + t.shared_pairs;
    divide_alike(gated_kernel<E>);
    return bulk_launch(l, gated_kernel<E>, dim3(blocks), dim3(32 * (warps < LEAST_WARPS ? LEAST_WARPS : warps)), bytes, t, l->stamp);
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

/* One block per multiprocessor. */
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
    const uint32_t group = 32 / *lpr, rows = d.sms != 0 ? (a->width + d.sms - 1) / d.sms : 0;
    t->d = *a;
    t->route = *a->choose;
    t->rows = (rows + group - 1) / group * group;
    t->warps = (k + 128 * QUADS - 1) / (128 * QUADS);
    if (t->warps < (t->rows + 31) / 32) /* a thread of the first slot for each sum */
        t->warps = (t->rows + 31) / 32;
    t->weight_bytes = (uint32_t)(t->rows * (a->n_used * a->down.pitch + (shared ? a->shared.pitch : 0)));
    t->row_bytes = (uint32_t)((staged_bytes(a->down.type, a->down.k) + 15) / 16 * 16);
    *bytes = t->weight_bytes + a->n_used * t->row_bytes + (shared ? staged_bytes(KRN_Q8_0, a->shared.k) : 0);
    *blocks = (a->width + t->rows - 1) / t->rows;
    return t->rows <= DOWN_ROWS && t->warps * slots * 32 <= DOWN_THREADS && *bytes + BULK_RESERVED <= d.shared;
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
