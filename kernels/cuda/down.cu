/* Down projections of experts for few rows, the shared expert's with them. A row's experts are added in ascending order, whoever computes them. */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/router.cuh"

/* One warp per slot (an expert, or the shared one): no loop over slots, in which the compiler would keep the addresses of all formats alive. */
enum { DOWN_ROWS = 4, DOWN_SLOTS = 16 };

template <int E, int S>
static __global__ void __launch_bounds__(512, 1) down_kernel(const __grid_constant__ struct kcu_down a, uint64_t *at)
{
    __shared__ float part[DOWN_SLOTS][DOWN_ROWS];
    pdl_release();
    const uint32_t lpr = 32 / DOWN_ROWS, sub = threadIdx.x % lpr, i = threadIdx.x / lpr, r = blockIdx.x * DOWN_ROWS + i, row = blockIdx.y;
    const uint32_t experts = a.down.w != nullptr ? a.n_used : 0, slots = experts + (a.shared.w != nullptr);
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
    float *y = a.y + row * a.y_pitch + r, sum = 0;
    for (uint32_t j = 0; j < slots; j++)
        sum += part[j][i];
    *y = sum;
    if (a.x != nullptr)
        a.x[row * a.x_pitch + r] += sum;
}

/* The choice of experts, waited for word by word while the predecessor still runs: that makes it, and lets this kernel start when it is to be made. */
struct down_choice {
    bool early;
    struct kcu_route route;
};

/* The choice of the block's row, brought to where all threads see it. Without experts here there is none to bring. */
static __device__ __forceinline__ void get_choice(const struct kcu_down &a, const down_choice &c, choice_room &room)
{
    if (c.early) {
        await_choice(c.route, room);
        return;
    }
    if (a.down.w == nullptr)
        return;
    pdl_wait();
    const uint32_t t = flat_thread();
    if (t < a.n_used) {
        room.id[t] = a.ids[blockIdx.y * a.ids_pitch + t];
        room.weight[t] = a.weights[blockIdx.y * a.ids_pitch + t];
    }
    __syncthreads();
}

/* The same for known types and int8 activations: two warps per slot; short rows take four lanes each and two rounds. */
enum { SLOT_THREADS = 64 };

template <int E, int S, int LPR, int ROUNDS>
static __global__ void __launch_bounds__(640, 1)
    down_int8_kernel(const __grid_constant__ struct kcu_down a, const __grid_constant__ down_choice c, uint32_t slot_bytes, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t xs[]; /* per slot */
    __shared__ float part[2][DOWN_SLOTS][SLOT_THREADS / 4];
    __shared__ __align__(16) choice_room room;
    pdl_release();
    const uint32_t sub = threadIdx.x % LPR, i = threadIdx.x / LPR, per = SLOT_THREADS / LPR, row = blockIdx.y, s = threadIdx.y;
    const uint32_t experts = a.down.w != nullptr ? a.n_used : 0, slots = experts + (a.shared.w != nullptr);
    const bool mine = s == experts;
    const struct kcu_mat &m = mine ? a.shared : a.down;
    const struct kcu_rows_in &in = mine ? a.shared_act : a.act;
    uint8_t *x = xs + s * slot_bytes;
    float scale = 1, before = 0;
    uint32_t order = s, mat = 0, from = row;
    bool on = true;
    get_choice(a, c, room);
    if (!mine) {
        const uint32_t e = (uint32_t)room.id[s];
        from = row * a.n_used + s;
        scale = room.weight[s];
        order = 0;
        for (uint32_t o = 0; o < a.n_used; o++)
            order += (uint32_t)room.id[o] < e;
        on = has_expert(m, a.expert0, e);
        mat = on ? e - a.expert0 : 0;
    }
    const uint8_t *q8 = in.q8 + from * in.q8_pitch, *w = m.w + mat * m.mat_pitch;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t base = (blockIdx.x * ROUNDS + round) * per, r = base + i, t = threadIdx.x, o = base + t;
        const bool here = on && r < a.width, writes = threadIdx.y == round % slots && t < per && o < a.width;
        const uint8_t *line = w + (size_t)(here ? r : 0) * m.pitch;
        float v;
        if (E == S || !mine)
            v = dot_staged<fmt<E>, depth<fmt<E>>::N>(line, here, m.k, sub, LPR, x, [&] {
                if (round == 0) {
                    pdl_wait();
                    stamp(at);
                    staged<fmt<E>>::load(q8, m.k, x, threadIdx.x, blockDim.x);
                }
                if (writes && a.x != nullptr)
                    before = a.x[row * a.x_pitch + o];
                if (round == 0)
                    __syncthreads();
            });
        else
            v = dot_staged<fmt<S>, depth<fmt<S>>::N>(line, here, m.k, sub, LPR, x, [&] {
                if (round == 0) {
                    pdl_wait();
                    staged<fmt<S>>::load(q8, m.k, x, threadIdx.x, blockDim.x);
                }
                if (writes && a.x != nullptr)
                    before = a.x[row * a.x_pitch + o];
                if (round == 0)
                    __syncthreads();
            });
        v = warp_sum(v, LPR);
        if (sub == 0)
            part[round & 1][order][i] = mine ? v : scale * v;
        __syncthreads();
        if (!writes)
            continue;
        float sum = 0;
        for (uint32_t j = 0; j < slots; j++)
            sum += part[round & 1][j][t];
        a.y[row * a.y_pitch + o] = sum;
        if (a.x != nullptr)
            a.x[row * a.x_pitch + o] = before + sum;
    }
}

/* For a rank that has few of the experts: how many of a row's are here is known only on the device, so warps take tasks (a slot that is here, four
 * rows) instead of standing for slots, most of which would be idle. */
enum { TASK_THREADS = 128, TASK_ROWS = 16 };

template <int E, int S>
static __global__ void __launch_bounds__(TASK_THREADS, 4)
    down_tasks_kernel(const __grid_constant__ struct kcu_down a, const __grid_constant__ down_choice c, uint32_t slot_bytes, uint64_t *at)
{
    enum { LPR = 8, GROUPS = TASK_ROWS / (32 / LPR), WARPS = TASK_THREADS / 32 };
    extern __shared__ __align__(16) uint8_t xs[]; /* per slot */
    __shared__ float part[DOWN_SLOTS][TASK_ROWS];
    __shared__ __align__(16) choice_room room;
    __shared__ uint32_t slot_of[DOWN_SLOTS], n_here;
    pdl_release();
    const uint32_t row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane % LPR;
    if (threadIdx.x == 0 && a.shared.w != nullptr && blockIdx.x * TASK_ROWS + TASK_ROWS <= a.width)
        prefetch(a.shared.w + (size_t)blockIdx.x * TASK_ROWS * a.shared.pitch, (uint32_t)(TASK_ROWS * a.shared.pitch));
    get_choice(a, c, room);
    if (threadIdx.x < 32) { /* this rank's experts in ascending order */
        const uint32_t e = lane < a.n_used ? (uint32_t)room.id[lane] : 0;
        const bool in = lane < a.n_used && has_expert(a.down, a.expert0, e);
        uint32_t order = 0;
        for (uint32_t o = 0; o < a.n_used; o++)
            order += has_expert(a.down, a.expert0, (uint32_t)room.id[o]) && (uint32_t)room.id[o] < e;
        if (in)
            slot_of[order] = lane;
        const uint32_t n = __popc(__ballot_sync(0xffffffffu, in));
        if (lane == 0)
            n_here = n;
    }
    __syncthreads();
    const uint32_t experts = n_here, slots = experts + (a.shared.w != nullptr);
    const uint32_t o = blockIdx.x * TASK_ROWS + threadIdx.x;
    const bool writes = threadIdx.x < TASK_ROWS && o < a.width;
    float before = 0;
    const auto ready = [&] { /* all activations that tasks need */
                             pdl_wait();
                             stamp(at);
                             for (uint32_t s = 0; s < experts; s++)
                                 staged<fmt<E>>::load(a.act.q8 + (row * a.n_used + slot_of[s]) * a.act.q8_pitch, a.down.k,
                                                      xs + s * slot_bytes, threadIdx.x, TASK_THREADS);
                             if (a.shared.w != nullptr)
                                 staged<fmt<S>>::load(a.shared_act.q8 + row * a.shared_act.q8_pitch, a.shared.k, xs + experts * slot_bytes,
                                                      threadIdx.x, TASK_THREADS);
                             if (writes && a.x != nullptr)
                                 before = a.x[row * a.x_pitch + o];
                             __syncthreads();
    };
    for (uint32_t task = warp, first = 1; first || task < slots * GROUPS; task += WARPS, first = 0) {
        const uint32_t s = task / GROUPS, i = task % GROUPS * (32 / LPR) + lane / LPR, r = blockIdx.x * TASK_ROWS + i;
        const bool mine = s == experts, on = s < slots && r < a.width;
        const struct kcu_mat &m = mine ? a.shared : a.down;
        const uint32_t slot = s < experts ? slot_of[s] : 0;
        const size_t mat = s < experts ? (uint32_t)room.id[slot] - a.expert0 : 0;
        const uint8_t *line = m.w + mat * m.mat_pitch + (size_t)(on ? r : 0) * m.pitch, *x = xs + s * slot_bytes;
        float v;
        if (E == S || !mine)
            v = dot_staged<fmt<E>, depth<fmt<E>>::N>(line, on, m.k, sub, LPR, x, [&] {
                if (first)
                    ready();
            });
        else
            v = dot_staged<fmt<S>, depth<fmt<S>>::N>(line, on, m.k, sub, LPR, x, [&] {
                if (first)
                    ready();
            });
        v = warp_sum(v, LPR);
        if (sub == 0 && s < slots)
            part[s][i] = mine ? v : room.weight[slot] * v;
    }
    __syncthreads();
    if (!writes)
        return;
    float sum = 0;
    for (uint32_t j = 0; j < slots; j++)
        sum += part[j][threadIdx.x];
    a.y[row * a.y_pitch + o] = sum;
    if (a.x != nullptr)
        a.x[row * a.x_pitch + o] = before + sum;
}

static cudaError_t down_any(const struct kcu_launch *l, const struct kcu_down *a, uint32_t slots)
{
    return launch(l, down_kernel<ANY_TYPE, ANY_TYPE>, dim3((a->width + DOWN_ROWS - 1) / DOWN_ROWS, a->n), dim3(32, slots), 0, 0, *a,
                  l->stamp);
}

template <int E, int S> static cudaError_t down_int8(const struct kcu_launch *l, const struct kcu_down *a, uint32_t slots)
{
    size_t n = a->down.w != NULL ? staged_bytes(a->down.type, a->down.k) : 0,
           m = a->shared.w != NULL ? staged_bytes(a->shared.type, a->shared.k) : 0;
    down_choice c = {};
    n = ((n > m ? n : m) + 15) / 16 * 16;
    if (n * slots > 40 * 1024 || slots > 10)
        return down_any(l, a, slots);
    if (a->choose != NULL) {
        c.early = true;
        c.route = *a->choose;
    }
    if (a->down.n_mats * 2 <= a->n_experts)
        return launch(l, down_tasks_kernel<E, S>, dim3((a->width + TASK_ROWS - 1) / TASK_ROWS, a->n), dim3(TASK_THREADS), n * slots, 0, *a,
                      c, (uint32_t)n, l->stamp);
    const uint32_t k = a->down.w != NULL ? a->down.k : a->shared.k;
    const dim3 block(SLOT_THREADS, slots);
    if (k <= 256)
        return launch(l, down_int8_kernel<E, S, 4, 2>, dim3((a->width + 31) / 32, a->n), block, n * slots, 0, *a, c, (uint32_t)n, l->stamp);
    return launch(l, down_int8_kernel<E, S, 8, 1>, dim3((a->width + 7) / 8, a->n), block, n * slots, 0, *a, c, (uint32_t)n, l->stamp);
}

extern "C" cudaError_t kcu_down(const struct kcu_launch *l, const struct kcu_down *a)
{
    const uint32_t slots = (a->down.w != NULL ? a->n_used : 0) + (a->shared.w != NULL);
    if (a->n == 0)
        return cudaSuccess;
    if (slots == 0)
        return kcu_zero(l, a->y, a->y_pitch, a->width, a->n);
    if (slots > DOWN_SLOTS)
        return cudaErrorInvalidValue;
    if (a->makes_int8)
        return experts_down(l, a);
    if (kcu_down_few(l, a))
        return experts_few_down(l, a);
    const bool int8 =
        (a->down.w == NULL || a->act.q8 != NULL) && (a->shared.w == NULL || (a->shared_act.q8 != NULL && a->shared.type == KRN_Q8_0));
    switch (int8 && a->down.w != NULL ? a->down.type : KRN_TYPE_MAX) {
    case KRN_Q4_K: return down_int8<KRN_Q4_K, KRN_Q8_0>(l, a, slots);
    case KRN_Q5_K: return down_int8<KRN_Q5_K, KRN_Q8_0>(l, a, slots);
    case KRN_Q6_K: return down_int8<KRN_Q6_K, KRN_Q8_0>(l, a, slots);
    default: return down_any(l, a, slots);
    }
}
