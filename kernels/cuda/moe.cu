/* Gated projections of experts for few rows: only the chosen experts are read, the shared expert rides along. */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/router.cuh"

enum { ROWS = 32 }; /* outputs per block: one int8 block of the activation */

struct gated_two {
    struct kcu_gated experts, shared; /* n 0: none */
    uint32_t shared_pairs, lpr;
    bool chooses; /* make the choice of experts first */
    struct kcu_route route;
};

/* What a block works on: the shared expert's blocks come first, since they depend on no choice. */
struct gated_task {
    bool is_shared;
    uint32_t pair, row;
};

static __device__ __forceinline__ gated_task task_of(const gated_two &t)
{
    gated_task k;
    k.is_shared = blockIdx.y < t.shared_pairs;
    k.pair = k.is_shared ? blockIdx.y : blockIdx.y - t.shared_pairs;
    k.row = k.is_shared ? k.pair : k.pair / t.experts.n_used;
    return k;
}

/* E: type of the experts' matrices, S: of the shared ones. */
template <int MAXT, int E, int S>
static __global__ void __launch_bounds__(MAXT) gated_kernel(const __grid_constant__ gated_two t, uint64_t *at)
{
    __shared__ float act[ROWS];
    pdl_release();
    const gated_task task = task_of(t);
    const struct kcu_gated &g = task.is_shared ? t.shared : t.experts;
    const uint32_t row = task.row, pair = task.pair, r = blockIdx.x * ROWS + threadIdx.x / t.lpr, sub = threadIdx.x % t.lpr;
    if (blockIdx.x * ROWS >= g.gate.rows)
        return;
    uint32_t mat = 0;
    const bool in = r < g.gate.rows;
    if (g.ids != nullptr) {
        pdl_wait();
        const uint32_t e = (uint32_t)g.ids[row * g.ids_pitch + pair % g.n_used];
        if (!has_expert(g.gate, g.expert0, e))
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
        const uint8_t *w = m[j]->w + mat * m[j]->mat_pitch + (size_t)(in ? r : 0) * m[j]->pitch;
        if (E == S || !task.is_shared)
            dot_type<E, true, 1>(m[j]->type, w, in, m[j]->k, sub, t.lpr, x, 0, q8, 0, 1, acc[j]);
        else
            dot_type<S, true, 1>(m[j]->type, w, in, m[j]->k, sub, t.lpr, x, 0, q8, 0, 1, acc[j]);
    }
    float a = warp_sum(gate[0], t.lpr), b = warp_sum(up[0], t.lpr);
    if (sub == 0) {
        const uint32_t half = g.gate.rows;
        if (g.swapped) { /* what stands first is taken for the gate: the order of the file */
            const float c = a;
            a = b, b = c;
        }
        const float v = silu(a) * b;
        act[threadIdx.x / t.lpr] = in ? v : 0;
        if (in) {
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

/* Any types. The choice is not made here. */
static cudaError_t gated_any(const struct kcu_launch *l, const gated_two &t, dim3 grid)
{
    if (t.chooses) {
        cudaError_t e = kcu_choose(l, &t.route);
        if (e != cudaSuccess)
            return e;
    }
    if (t.lpr == 16)
        return launch(l, gated_kernel<512, ANY_TYPE, ANY_TYPE>, grid, dim3(ROWS * 16), 0, 0, t, l->stamp);
    return launch(l, gated_kernel<256, ANY_TYPE, ANY_TYPE>, grid, dim3(ROWS * 8), 0, 0, t, l->stamp);
}

/* The expert of the block's pair, or -1: none. A lone row's pairs are those whose experts are here, from k.pair on, so that few blocks suffice for a
 * rank that has few experts; k.pair becomes the row's slot. */
static __device__ __forceinline__ int32_t expert_of(const gated_two &t, uint32_t nth, gated_task &k, const choice_room &room)
{
    const struct kcu_gated &g = t.experts;
    if (!t.chooses) {
        const uint32_t e = (uint32_t)g.ids[k.row * g.ids_pitch + k.pair % g.n_used];
        return has_expert(g.gate, g.expert0, e) ? (int32_t)(e - g.expert0) : -1;
    }
    for (uint32_t i = 0, n = 0; i < g.n_used; i++) {
        const uint32_t e = (uint32_t)room.id[i];
        if (!has_expert(g.gate, g.expert0, e) || n++ != nth)
            continue;
        k.pair = i;
        return (int32_t)(e - g.expert0);
    }
    return -1;
}

/* The same for known types and int8 activations: half of the threads have the gate, half the up projection. Where the choice is made here, the next
 * kernel starts only when it can be made: until then its blocks would merely look for it. MORE: there may be more pairs than blocks for them. */
template <int MAXT, int E, int S, bool MORE>
static __global__ void __launch_bounds__(MAXT, 1024 / MAXT) gated_int8_kernel(const __grid_constant__ gated_two t, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t xs[];
    __shared__ float sum[2 * ROWS];
    __shared__ __align__(16) choice_room room;
    if (!t.chooses)
        pdl_release();
    const uint32_t tag = t.chooses ? tag_of(t.route.words) : 0;
    gated_task task = task_of(t);
    const struct kcu_gated &g = task.is_shared ? t.shared : t.experts;
    const uint32_t group = threadIdx.x / t.lpr, i = group % ROWS, r = blockIdx.x * ROWS + i, sub = threadIdx.x % t.lpr;
    const struct kcu_mat &m = group < ROWS ? g.gate : g.up;
    if (blockIdx.x * ROWS >= g.gate.rows)
        return;
    const bool in = r < g.gate.rows;
    if (task.is_shared) {
        if (threadIdx.x == 0 && blockIdx.x * ROWS + ROWS <= g.gate.rows) { /* what does not fit into registers */
            prefetch(g.gate.w + (size_t)blockIdx.x * ROWS * g.gate.pitch, (uint32_t)(ROWS * g.gate.pitch));
            prefetch(g.up.w + (size_t)blockIdx.x * ROWS * g.up.pitch, (uint32_t)(ROWS * g.up.pitch));
        }
    } else {
        pdl_wait();
        if (t.chooses) {
            pdl_release();
            choose_passed(t.route, tag, await_logit(t.route, tag), blockIdx.x == 0 && task.pair == 0, room);
        }
    }
    const uint8_t *q8 = g.in.q8 + task.row * g.in.q8_pitch;
    const uint32_t nth0 = task.pair, stride = gridDim.y - t.shared_pairs;
    for (uint32_t nth = nth0;; nth += stride) {
        const int32_t mat = task.is_shared ? 0 : expert_of(t, nth, task, room);
        if (mat < 0)
            return; /* the whole block: another rank's expert, or no more of them */
        const uint8_t *w = m.w + (size_t)mat * m.mat_pitch + (size_t)(in ? r : 0) * m.pitch;
        float acc;
        if (E == S || !task.is_shared)
            acc = dot_staged<fmt<E>, depth<fmt<E>>::N>(w, in, m.k, sub, t.lpr, xs, [&] {
                if (MORE && nth != nth0)
                    return;
                pdl_wait();
                stamp(at);
                if (t.chooses)
                    pdl_release();
                staged<fmt<E>>::load(q8, m.k, xs, threadIdx.x, blockDim.x);
                __syncthreads();
            });
        else
            acc = dot_staged<fmt<S>, depth<fmt<S>>::N>(w, in, m.k, sub, t.lpr, xs, [&] {
                pdl_wait();
                stamp(at);
                if (t.chooses)
                    pdl_release();
                staged<fmt<S>>::load(q8, m.k, xs, threadIdx.x, blockDim.x);
                __syncthreads();
            });
        acc = warp_sum(acc, t.lpr);
        if (sub == 0)
            sum[group] = acc;
        __syncthreads();
        if (threadIdx.x < 32) {
            const uint32_t half = g.gate.rows, o = blockIdx.x * ROWS + threadIdx.x, pair = task.pair;
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
        if (!MORE || task.is_shared)
            return;
        __syncthreads();
    }
}

template <int E, int S> static cudaError_t gated_int8(const struct kcu_launch *l, gated_two t, dim3 grid, uint32_t pairs, uint32_t busy)
{
    size_t smem = 0;
    for (const struct kcu_gated *g : {&t.experts, &t.shared})
        if (g->n != 0) {
            const size_t n = staged_bytes(g->gate.type, g->gate.k);
            smem = n > smem ? n : smem;
        }
    if (smem > 40 * 1024)
        return gated_any(l, t, dim3(grid.x, pairs));
    t.lpr = busy <= 132 ? 16 : 8; /* few blocks: twice the lanes per row */
    const dim3 block(2 * ROWS * t.lpr);
    if (grid.y < pairs && t.lpr == 16)
        return launch(l, gated_int8_kernel<1024, E, S, true>, grid, block, smem, 0, t, l->stamp);
    grid.y = pairs;
    if (t.lpr == 16)
        return launch(l, gated_int8_kernel<1024, E, S, false>, grid, block, smem, 0, t, l->stamp);
    return launch(l, gated_int8_kernel<512, E, S, false>, grid, block, smem, 0, t, l->stamp);
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

static bool there(const struct kcu_gated *g)
{
    return g != NULL && g->gate.w != NULL && g->gate.rows != 0 && g->n != 0;
}

extern "C" cudaError_t kcu_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared,
                                 const struct kcu_route *choose)
{
    gated_two t = {};
    uint32_t rows = 0, pairs = 0, busy = 0;
    if (there(experts) && experts->q8 == NULL && (!there(shared) || shared->q8 == NULL) && kcu_gated_leaves_int8(experts, shared, choose))
        return experts_gated(l, experts, shared, choose);
    if (choose == NULL && kcu_gated_few(l, experts, shared))
        return experts_few_gated(l, experts, shared);
    if (there(experts)) {
        t.experts = *experts;
        pairs = experts->n * experts->n_used;
        rows = experts->gate.rows;
        busy = pairs * ((rows + ROWS - 1) / ROWS);
        if (choose != NULL && experts->gate.n_mats < choose->n_experts) /* as many as there are on the average */
            busy = (busy * experts->gate.n_mats + choose->n_experts - 1) / choose->n_experts;
    }
    if (there(shared)) {
        t.shared = *shared;
        t.shared_pairs = shared->n;
        pairs += shared->n;
        rows = shared->gate.rows > rows ? shared->gate.rows : rows;
        busy += shared->n * ((shared->gate.rows + ROWS - 1) / ROWS);
    }
    if (choose != NULL && !there(experts)) { /* nobody here to make it on the way */
        cudaError_t e = kcu_choose(l, choose);
        if (e != cudaSuccess)
            return e;
        choose = NULL;
    }
    if (pairs == 0)
        return cudaSuccess;
    const uint32_t x = (rows + ROWS - 1) / ROWS, all = pairs;
    if (choose != NULL) { /* blocks for twice as many pairs as are here on the average; they take more where there are */
        t.chooses = true;
        t.route = *choose;
        const uint32_t used = experts->n_used, most = (2 * used * experts->gate.n_mats + choose->n_experts - 1) / choose->n_experts;
        pairs -= used - (most < used ? most : used);
    }
    t.lpr = x * pairs < 200 && (t.experts.n != 0 ? t.experts : t.shared).gate.k >= 512 ? 16 : 8;
    const kcu_gated_types y = types_of(experts, shared);
    if (y.known && y.e == KRN_Q4_K && y.s == KRN_Q8_0)
        return gated_int8<KRN_Q4_K, KRN_Q8_0>(l, t, dim3(x, pairs), all, busy);
    if (y.known && y.e == KRN_Q8_0 && y.s == KRN_Q8_0)
        return gated_int8<KRN_Q8_0, KRN_Q8_0>(l, t, dim3(x, pairs), all, busy);
    return gated_any(l, t, dim3(x, all));
}
