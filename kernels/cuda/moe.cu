/* Gated projections and down projections of experts for few rows: only the chosen experts are read, the shared expert rides along. */
#include "kernels/cuda/dot.cuh"

enum { ROWS = 32 }; /* outputs per block: one int8 block of the activation */

struct gated_two {
    struct kcu_gated g[2];
    uint32_t pairs0; /* pairs of g[0] */
    uint32_t lpr;
};

/* E: type of the experts' matrices, S: of the shared ones. */
template <int MAXT, int E, int S>
static __global__ void __launch_bounds__(MAXT) gated_kernel(const __grid_constant__ gated_two t, uint64_t *at)
{
    __shared__ float act[ROWS];
    pdl_release();
    const uint32_t second = blockIdx.y >= t.pairs0, pair = blockIdx.y - (second ? t.pairs0 : 0);
    const struct kcu_gated &g = t.g[second];
    const uint32_t row = pair / g.n_used, r = blockIdx.x * ROWS + threadIdx.x / t.lpr, sub = threadIdx.x % t.lpr;
    if (blockIdx.x * ROWS >= g.gate.rows)
        return;
    uint32_t mat = 0;
    bool here = r < g.gate.rows;
    if (g.ids != nullptr) {
        pdl_wait();
        const uint32_t e = (uint32_t)g.ids[row * g.ids_pitch + pair % g.n_used];
        if (e < g.expert0 || e - g.expert0 >= g.gate.n_mats)
            return; /* the whole block: another rank's expert */
        mat = e - g.expert0;
    }
    const float *x = g.in.x + row * g.in.pitch;
    const uint8_t *q8 = g.in.q8 != nullptr ? g.in.q8 + row * g.in.q8_pitch : nullptr;
    float gate[1] = {0}, up[1] = {0};
    stamp_early(at);
    const struct kcu_mat *const m[2] = {&g.gate, &g.up};
    float *const acc[2] = {gate, up};
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint8_t *w = m[j]->w + mat * m[j]->mat_pitch + (size_t)(here ? r : 0) * m[j]->pitch;
        if (E == S || !second)
            dot_type<E, true, 1>(m[j]->type, w, here, m[j]->k, sub, t.lpr, x, 0, q8, 0, 1, acc[j]);
        else
            dot_type<S, true, 1>(m[j]->type, w, here, m[j]->k, sub, t.lpr, x, 0, q8, 0, 1, acc[j]);
    }
    float a = warp_sum(gate[0], t.lpr), b = warp_sum(up[0], t.lpr);
    if (sub == 0) {
        const uint32_t half = g.gate.rows;
        if (g.swapped) { /* what stands first is taken for the gate: the order of the file */
            const float c = a;
            a = b, b = c;
        }
        const float v = silu(a) * b;
        act[threadIdx.x / t.lpr] = here ? v : 0;
        if (here) {
            g.gu[pair * g.gu_pitch + r] = a;
            g.gu[pair * g.gu_pitch + half + r] = b;
            g.act[pair * g.act_pitch + r] = v;
        }
    }
    if (g.q8 == nullptr)
        return;
    __syncthreads();
    if (threadIdx.x < 32 && blockIdx.x * ROWS + ROWS <= g.gate.rows)
        q8_block32(act[threadIdx.x], g.q8 + pair * g.q8_pitch, g.gate.rows, blockIdx.x * ROWS, threadIdx.x);
}

template <int E, int S> static cudaError_t gated(const struct kcu_launch *l, const gated_two &t, dim3 grid)
{
    if (t.lpr == 16)
        return launch(l, gated_kernel<512, E, S>, grid, dim3(ROWS * 16), 0, 0, t, l->stamp);
    return launch(l, gated_kernel<256, E, S>, grid, dim3(ROWS * 8), 0, 0, t, l->stamp);
}

/* The same for known types and int8 activations: half of the threads have the gate, half the up projection. */
template <int MAXT, int E, int S>
static __global__ void __launch_bounds__(MAXT, 1024 / MAXT) gated_int8_kernel(const __grid_constant__ gated_two t, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t xs[];
    __shared__ float sum[2 * ROWS];
    pdl_release();
    const uint32_t second = blockIdx.y >= t.pairs0, pair = blockIdx.y - (second ? t.pairs0 : 0);
    const struct kcu_gated &g = t.g[second];
    const uint32_t row = pair / g.n_used, group = threadIdx.x / t.lpr, i = group % ROWS, r = blockIdx.x * ROWS + i,
                   sub = threadIdx.x % t.lpr;
    const struct kcu_mat &m = group < ROWS ? g.gate : g.up;
    if (blockIdx.x * ROWS >= g.gate.rows)
        return;
    const bool here = r < g.gate.rows;
    uint32_t mat = 0;
    if (g.ids != nullptr) {
        pdl_wait();
        const uint32_t e = (uint32_t)g.ids[row * g.ids_pitch + pair % g.n_used];
        if (e < g.expert0 || e - g.expert0 >= g.gate.n_mats)
            return; /* the whole block: another rank's expert */
        mat = e - g.expert0;
    }
    const uint8_t *w = m.w + mat * m.mat_pitch + (size_t)(here ? r : 0) * m.pitch, *q8 = g.in.q8 + row * g.in.q8_pitch;
    float acc;
    if (E == S || !second)
        acc = dot_staged<fmt<E>, depth<fmt<E>>::N>(w, here, m.k, sub, t.lpr, xs, [&] {
            pdl_wait();
            stamp(at);
            staged<fmt<E>>::load(q8, m.k, xs, threadIdx.x, blockDim.x);
            __syncthreads();
        });
    else
        acc = dot_staged<fmt<S>, depth<fmt<S>>::N>(w, here, m.k, sub, t.lpr, xs, [&] {
            pdl_wait();
            staged<fmt<S>>::load(q8, m.k, xs, threadIdx.x, blockDim.x);
            __syncthreads();
        });
    acc = warp_sum(acc, t.lpr);
    if (sub == 0)
        sum[group] = acc;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    const uint32_t half = g.gate.rows, o = blockIdx.x * ROWS + threadIdx.x;
    const float a = sum[g.swapped ? ROWS + threadIdx.x : threadIdx.x], b = sum[g.swapped ? threadIdx.x : ROWS + threadIdx.x],
                v = o < half ? silu(a) * b : 0;
    if (o < half) {
        g.gu[pair * g.gu_pitch + o] = a;
        g.gu[pair * g.gu_pitch + half + o] = b;
        g.act[pair * g.act_pitch + o] = v;
    }
    if (g.q8 != nullptr && blockIdx.x * ROWS + ROWS <= half)
        q8_block32(v, g.q8 + pair * g.q8_pitch, half, blockIdx.x * ROWS, threadIdx.x);
}

template <int E, int S> static cudaError_t gated_int8(const struct kcu_launch *l, gated_two t, dim3 grid)
{
    size_t smem = 0;
    for (int i = 0; i < 2; i++)
        if (t.g[i].gate.w != NULL) {
            const size_t n = staged_bytes(t.g[i].gate.type, t.g[i].gate.k);
            smem = n > smem ? n : smem;
        }
    if (smem > 40 * 1024)
        return gated<ANY_TYPE, ANY_TYPE>(l, t, grid);
    t.lpr = grid.x * grid.y <= 132 ? 16 : 8; /* few blocks: twice the lanes per row */
    if (t.lpr == 16)
        return launch(l, gated_int8_kernel<1024, E, S>, grid, dim3(2 * ROWS * 16), smem, 0, t, l->stamp);
    return launch(l, gated_int8_kernel<512, E, S>, grid, dim3(2 * ROWS * 8), smem, 0, t, l->stamp);
}

/* Types of experts and shared expert where gate and up agree and activations are int8; one that is missing takes the other's. */
struct kcu_gated_types {
    bool known;
    uint32_t e, s;
};

static kcu_gated_types types_of(const struct kcu_gated *experts, const struct kcu_gated *shared)
{
    kcu_gated_types y = {true, KRN_TYPE_MAX, KRN_TYPE_MAX};
    for (const struct kcu_gated *g : {experts, shared}) {
        if (g == NULL || g->gate.w == NULL || g->gate.rows == 0)
            continue;
        y.known = y.known && g->gate.type == g->up.type && g->in.q8 != NULL;
        (g == experts ? y.e : y.s) = g->gate.type;
    }
    y.s = y.s == KRN_TYPE_MAX ? KRN_Q8_0 : y.s;
    y.e = y.e == KRN_TYPE_MAX ? y.s : y.e;
    return y;
}

extern "C" cudaError_t kcu_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared)
{
    gated_two t = {};
    uint32_t n = 0, rows = 0, pairs = 0;
    for (const struct kcu_gated *g : {experts, shared}) {
        if (g == NULL || g->gate.w == NULL || g->gate.rows == 0 || g->n == 0)
            continue;
        t.g[n] = *g;
        if (n++ == 0)
            t.pairs0 = g->n * g->n_used;
        pairs += g->n * g->n_used;
        rows = g->gate.rows > rows ? g->gate.rows : rows;
    }
    if (n == 0)
        return cudaSuccess;
    const uint32_t x = (rows + ROWS - 1) / ROWS;
    t.lpr = x * pairs < 200 && t.g[0].gate.k >= 512 ? 16 : 8;
    const kcu_gated_types y = types_of(experts, shared);
    if (y.known && y.e == KRN_Q4_K && y.s == KRN_Q8_0)
        return gated_int8<KRN_Q4_K, KRN_Q8_0>(l, t, dim3(x, pairs));
    if (y.known && y.e == KRN_Q8_0 && y.s == KRN_Q8_0)
        return gated_int8<KRN_Q8_0, KRN_Q8_0>(l, t, dim3(x, pairs));
    return gated<ANY_TYPE, ANY_TYPE>(l, t, dim3(x, pairs));
}

/* One warp per slot (an expert, or the shared one): no loop over slots, in which the compiler would keep the addresses of all formats alive. */
enum { DOWN_ROWS = 4, DOWN_SLOTS = 16 };

template <int E, int S>
static __global__ void __launch_bounds__(512, 1) down_kernel(const __grid_constant__ struct kcu_down a, uint64_t *at)
{
    __shared__ float part[DOWN_SLOTS][DOWN_ROWS];
    pdl_release();
    const uint32_t lpr = 32 / DOWN_ROWS, sub = threadIdx.x % lpr, i = threadIdx.x / lpr, r = blockIdx.x * DOWN_ROWS + i, row = blockIdx.y;
    const uint32_t experts = a.down.w != nullptr && !a.shared_only ? a.n_used : 0, slots = experts + (a.shared.w != nullptr);
    const bool here = r < a.width;
    const uint32_t s = threadIdx.y;
    const bool mine = s == experts;
    const struct kcu_mat &m = mine ? a.shared : a.down;
    const struct kcu_rows_in &in = mine ? a.shared_act : a.act;
    float acc[1] = {0}, scale = 1;
    uint32_t order = s, mat = 0, from = row;
    bool on = here;
    if (!mine) {
        pdl_wait();
        const int32_t *ids = a.ids + row * a.ids_pitch;
        const uint32_t e = (uint32_t)ids[s];
        from = row * a.n_used + s;
        scale = a.weights[row * a.ids_pitch + s];
        order = 0;
        for (uint32_t o = 0; o < a.n_used; o++)
            order += (uint32_t)ids[o] < e;
        on = here && e >= a.expert0 && e - a.expert0 < m.n_mats;
        mat = on ? e - a.expert0 : 0;
    }
    stamp_early(at);
    const uint8_t *w = m.w + mat * m.mat_pitch + (size_t)(here ? r : 0) * m.pitch,
                  *q8 = in.q8 != nullptr ? in.q8 + from * in.q8_pitch : nullptr;
    if (E == S || !mine)
        dot_type<E, true, 1>(m.type, w, on, m.k, sub, lpr, in.x + from * in.pitch, 0, q8, 0, 1, acc);
    else
        dot_type<S, true, 1>(m.type, w, on, m.k, sub, lpr, in.x + from * in.pitch, 0, q8, 0, 1, acc);
    const float v = warp_sum(acc[0], lpr);
    if (sub == 0)
        part[order][i] = mine ? v : scale * v;
    pdl_wait();
    __syncthreads();
    if (threadIdx.y != 0 || sub != 0 || !here)
        return;
    float *y = a.y + row * a.y_pitch + r, sum = a.shared_only ? *y : 0;
    for (uint32_t j = 0; j < slots; j++)
        sum += part[j][i];
    *y = sum;
}

/* The same for known types and int8 activations: two warps per slot; short rows take four lanes each and two rounds. */
enum { SLOT_THREADS = 64 };

template <int E, int S, int LPR, int ROUNDS>
static __global__ void __launch_bounds__(640, 1)
    down_int8_kernel(const __grid_constant__ struct kcu_down a, uint32_t slot_bytes, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t xs[]; /* per slot */
    __shared__ float part[2][DOWN_SLOTS][SLOT_THREADS / 4];
    pdl_release();
    const uint32_t sub = threadIdx.x % LPR, i = threadIdx.x / LPR, per = SLOT_THREADS / LPR, row = blockIdx.y, s = threadIdx.y;
    const uint32_t experts = a.down.w != nullptr && !a.shared_only ? a.n_used : 0, slots = experts + (a.shared.w != nullptr);
    const bool mine = s == experts;
    const struct kcu_mat &m = mine ? a.shared : a.down;
    const struct kcu_rows_in &in = mine ? a.shared_act : a.act;
    uint8_t *x = xs + s * slot_bytes;
    float scale = 1;
    uint32_t order = s, mat = 0, from = row;
    bool on = true;
    if (!mine) {
        pdl_wait();
        const int32_t *ids = a.ids + row * a.ids_pitch;
        const uint32_t e = (uint32_t)ids[s];
        from = row * a.n_used + s;
        scale = a.weights[row * a.ids_pitch + s];
        order = 0;
        for (uint32_t o = 0; o < a.n_used; o++)
            order += (uint32_t)ids[o] < e;
        on = e >= a.expert0 && e - a.expert0 < m.n_mats;
        mat = on ? e - a.expert0 : 0;
    }
    const uint8_t *q8 = in.q8 + from * in.q8_pitch, *w = m.w + mat * m.mat_pitch;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t r = (blockIdx.x * ROUNDS + round) * per + i;
        const bool here = on && r < a.width;
        const uint8_t *line = w + (size_t)(here ? r : 0) * m.pitch;
        float v;
        if (E == S || !mine)
            v = dot_staged<fmt<E>, depth<fmt<E>>::N>(line, here, m.k, sub, LPR, x, [&] {
                if (round != 0)
                    return;
                pdl_wait();
                stamp(at);
                staged<fmt<E>>::load(q8, m.k, x, threadIdx.x, blockDim.x);
                __syncthreads();
            });
        else
            v = dot_staged<fmt<S>, depth<fmt<S>>::N>(line, here, m.k, sub, LPR, x, [&] {
                if (round != 0)
                    return;
                pdl_wait();
                staged<fmt<S>>::load(q8, m.k, x, threadIdx.x, blockDim.x);
                __syncthreads();
            });
        v = warp_sum(v, LPR);
        if (sub == 0)
            part[round & 1][order][i] = mine ? v : scale * v;
        __syncthreads();
        const uint32_t t = threadIdx.x, o = (blockIdx.x * ROUNDS + round) * per + t;
        if (threadIdx.y != round % slots || t >= per || o >= a.width)
            continue;
        float *y = a.y + row * a.y_pitch + o, sum = a.shared_only ? *y : 0;
        for (uint32_t j = 0; j < slots; j++)
            sum += part[round & 1][j][t];
        *y = sum;
    }
}

template <int E, int S> static cudaError_t down_int8(const struct kcu_launch *l, const struct kcu_down *a, uint32_t slots)
{
    size_t n = a->down.w != NULL ? staged_bytes(a->down.type, a->down.k) : 0,
           m = a->shared.w != NULL ? staged_bytes(a->shared.type, a->shared.k) : 0;
    n = ((n > m ? n : m) + 15) / 16 * 16;
    if (n * slots > 40 * 1024 || slots > 10)
        return launch(l, down_kernel<ANY_TYPE, ANY_TYPE>, dim3((a->width + DOWN_ROWS - 1) / DOWN_ROWS, a->n), dim3(32, slots), 0, 0, *a,
                      l->stamp);
    const uint32_t k = a->down.w != NULL ? a->down.k : a->shared.k;
    const dim3 block(SLOT_THREADS, slots);
    if (k <= 256)
        return launch(l, down_int8_kernel<E, S, 4, 2>, dim3((a->width + 31) / 32, a->n), block, n * slots, 0, *a, (uint32_t)n, l->stamp);
    return launch(l, down_int8_kernel<E, S, 8, 1>, dim3((a->width + 7) / 8, a->n), block, n * slots, 0, *a, (uint32_t)n, l->stamp);
}

extern "C" cudaError_t kcu_down(const struct kcu_launch *l, const struct kcu_down *a)
{
    const uint32_t slots = (a->down.w != NULL && !a->shared_only ? a->n_used : 0) + (a->shared.w != NULL);
    if (a->n == 0)
        return cudaSuccess;
    if (slots == 0)
        return a->shared_only ? cudaSuccess : kcu_zero(l, a->y, a->y_pitch, a->width, a->n);
    if (slots > DOWN_SLOTS)
        return cudaErrorInvalidValue;
    const dim3 grid((a->width + DOWN_ROWS - 1) / DOWN_ROWS, a->n), block(32, slots);
    const bool int8 =
        (a->down.w == NULL || a->act.q8 != NULL) && (a->shared.w == NULL || (a->shared_act.q8 != NULL && a->shared.type == KRN_Q8_0));
    switch (int8 && a->down.w != NULL ? a->down.type : KRN_TYPE_MAX) {
    case KRN_Q4_K: return down_int8<KRN_Q4_K, KRN_Q8_0>(l, a, slots);
    case KRN_Q5_K: return down_int8<KRN_Q5_K, KRN_Q8_0>(l, a, slots);
    case KRN_Q6_K: return down_int8<KRN_Q6_K, KRN_Q8_0>(l, a, slots);
    default: return launch(l, down_kernel<ANY_TYPE, ANY_TYPE>, grid, block, 0, 0, *a, l->stamp);
    }
}
