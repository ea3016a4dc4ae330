/* The experts of a few rows: rows that chose the same one share its weights, up to eight at a time. Who they are every block finds out for itself from the
 * choices, so that nothing stands between router and products but these. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/router.cuh"

enum {
    MAX_PAIRS = 128, /* of a row and an expert */
    MAX_ROWS = 16,
    LEAST_ROWS = 8, /* a power of two of them; fewer hardly share an expert */
    NOBODY = 255,
    GATED_PARTS = 4, /* of K */
    GATED_OUT = 32,  /* one block of the activation's int8 form */
    GATED_THREADS = GATED_PARTS * GATED_OUT / FEW_ROWS * 32,
    DOWN_WARPS = 16,
    DOWN_THREADS = 32 * DOWN_WARPS,
    DOWN_PARTS = 3 /* of K, at most */
};

/* Pairs of an expert, eight at a time: a chunk. Chunks are in the order of their first pairs. */
struct chunks {
    __align__(16) int32_t id[MAX_PAIRS]; /* expert of a pair here, or -1 */
    uint32_t first[MAX_PAIRS / 32];      /* bits: pairs that begin a chunk */
    uint32_t n;
    int32_t expert[MAX_PAIRS];
    __align__(8) uint8_t pair[MAX_PAIRS][FEW_COLS]; /* or NOBODY */
};

/* All threads of the block call; the predecessor has been waited for. */
static __device__ __forceinline__ void find_chunks(chunks &c, const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used,
                                                   const struct kcu_mat &m, uint32_t expert0, uint32_t thread, uint32_t threads)
{
    const uint32_t pairs = n * n_used;
    for (uint32_t p = thread; p < MAX_PAIRS; p += threads) {
        int32_t e = -1;
        if (p < pairs) {
            const uint32_t x = (uint32_t)ids[p / n_used * ids_pitch + p % n_used];
            e = has_expert(m, expert0, x) ? (int32_t)(x - expert0) : -1;
        }
        c.id[p] = e;
        *(uint2 *)c.pair[p] = make_uint2(0xffffffffu, 0xffffffffu);
    }
    __syncthreads();
    uint32_t rank[MAX_PAIRS / 32],
        leader[MAX_PAIRS / 32]; /* of this thread's pairs: place among the expert's, and the pair that begins its chunk */
#pragma unroll
    for (uint32_t i = 0; i < MAX_PAIRS / 32; i++) {
        const uint32_t p = thread + i * threads;
        if (i * threads >= MAX_PAIRS)
            break;
        rank[i] = 0;
        leader[i] = p;
        if (p >= MAX_PAIRS)
            continue;
        const int32_t mine = c.id[p];
        for (uint32_t q = 0; q < p && mine >= 0; q += 4) {
            const int4 x = *(const int4 *)(c.id + q);
            const int32_t other[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (q + j < p && other[j] == mine) {
                    if (rank[i] % FEW_COLS == 0)
                        leader[i] = q + j;
                    rank[i]++;
                }
        }
        if (rank[i] % FEW_COLS == 0)
            leader[i] = p;
        const uint32_t begins = __ballot_sync(0xffffffffu, mine >= 0 && leader[i] == p);
        if (thread % 32 == 0)
            c.first[p / 32] = begins;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < MAX_PAIRS / 32; i++) {
        const uint32_t p = thread + i * threads;
        if (i * threads >= MAX_PAIRS || p >= MAX_PAIRS || c.id[p] < 0)
            continue;
        uint32_t at = __popc(c.first[leader[i] / 32] & ((1u << leader[i] % 32) - 1));
        for (uint32_t w = 0; w < leader[i] / 32; w++)
            at += __popc(c.first[w]);
        c.pair[at][rank[i] % FEW_COLS] = (uint8_t)p;
        if (leader[i] == p)
            c.expert[at] = c.id[p];
    }
    if (thread == 0) {
        uint32_t all = 0;
        for (uint32_t w = 0; w < MAX_PAIRS / 32; w++)
            all += __popc(c.first[w]);
        c.n = all;
    }
    __syncthreads();
}

/* Where a lane's rows of a matrix begin; behind the last it again. */
static __device__ __forceinline__ void rows_of(const struct kcu_mat &m, size_t mat, uint32_t row0, const uint8_t *row[2])
{
    const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = row0 + g + 8 * i;
        row[i] = m.w + mat * m.mat_pitch + (size_t)(r < m.rows ? r : m.rows - 1) * m.pitch;
    }
}

/* ---- gate and up ---- */

struct gated_few {
    struct kcu_gated experts, shared;             /* n 0: none */
    uint32_t shared_tasks, blocks, shared_blocks; /* of 32 outputs, of a matrix */
    uint32_t sixes;
};

struct gated_room {
    float part[2][GATED_PARTS][2][FEW_COLS][GATED_OUT + 1]; /* of tasks in turn; gate and up */
    float up[2][MAX_ROWS];                                  /* of the experts' rows, of the shared one's */
};

/* Which pair column col of chunk c is; NOBODY. SHARED: pairs are rows. */
template <bool SHARED> static __device__ __forceinline__ uint32_t pair_of(const gated_few &t, const chunks &room, uint32_t c, uint32_t col)
{
    if (!SHARED)
        return room.pair[c][col];
    const uint32_t r = c * FEW_COLS + col;
    return r < t.shared.n ? r : (uint32_t)NOBODY;
}

/* This block's tasks of one kind, 32 outputs of a chunk each: from task `first` on, `all` in all. A warp has 16 rows of gate and of up and a part of K; while a task's
 * sums are put together the next one's weights are on their way. */
template <int T, bool SHARED>
static __device__ __forceinline__ void gated_tasks(const gated_few &t, const chunks &room, gated_room &s, uint32_t first, uint32_t all,
                                                   uint32_t &turn)
{
    typedef fmt<T> F;
    const struct kcu_gated &g = SHARED ? t.shared : t.experts;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = warp % 2, own = warp / 2, k = g.gate.k, half = g.gate.rows,
                   units = k / F::W, n = (units + 3) / 4, blocks = SHARED ? t.shared_blocks : t.blocks;
    typename F::raw r[2][2];
    few_in<F> x[1];
    bool on = false;
    const auto bring = [&](uint32_t task, uint32_t step) {
        const uint32_t c = task / blocks, p = pair_of<SHARED>(t, room, c, lane / 4),
                       mine = p != NOBODY ? p : pair_of<SHARED>(t, room, c, 0), mat = SHARED ? 0 : (uint32_t)room.expert[c],
                       u = few_own(step, units, &on);
        const uint8_t *row[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            rows_of(m == 0 ? g.gate : g.up, mat, task % blocks * GATED_OUT + tile * FEW_ROWS, row);
#pragma unroll
            for (int i = 0; i < 2; i++)
                F::fetch(row[i], k, u, r[m][i]);
        }
        few_fetch_in<F>(g.in.q8 + (mine / g.n_used) * g.in.q8_pitch, k, u, x[0]);
    };
    if (first < all && own < n)
        bring(first, own);
    for (uint32_t i = first; i < all; i += gridDim.x, turn ^= 1) {
        const uint32_t c = i / blocks, block = i % blocks, to = pair_of<SHARED>(t, room, c, warp),
                       p = pair_of<SHARED>(t, room, c, lane / 4);
        const float up = s.up[SHARED][p != NOBODY ? p / g.n_used : 0];
        float acc[1][2][4] = {};
#pragma unroll 1
        for (uint32_t step = own; step < n; step += GATED_PARTS) {
            const float by[1] = {on ? up : 0.0f};
            few_unit<T, 2, 1>(r, x, lane % 4, by, t.sixes, acc);
            const bool more = step + GATED_PARTS < n;
            if (more || i + gridDim.x < all)
                bring(more ? i : i + gridDim.x, more ? step + GATED_PARTS : own);
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int v = 0; v < 4; v++)
                s.part[turn][own][m][lane % 4 * 2 + v % 2][tile * FEW_ROWS + lane / 4 + v / 2 * 8] = acc[0][m][v];
        __syncthreads(); /* the sums of the task before last have been used: all have come here since */
        if (to == NOBODY)
            continue;
        float gate = 0, v = 0;
#pragma unroll
        for (int j = 0; j < GATED_PARTS; j++) {
            gate += s.part[turn][j][0][warp][lane];
            v += s.part[turn][j][1][warp][lane];
        }
        const float down = few_down(s.up[SHARED][to / g.n_used]), a = (g.swapped ? v : gate) * down, b = (g.swapped ? gate : v) * down,
                    y = silu(a) * b;
        const uint32_t o = block * GATED_OUT + lane;
        if (o < half) {
            g.gu[to * g.gu_pitch + o] = a;
            g.gu[to * g.gu_pitch + half + o] = b;
            g.act[to * g.act_pitch + o] = y;
        }
        if (g.q8 != nullptr && block * GATED_OUT + GATED_OUT <= half)
            q8_block32(y, g.q8 + to * g.q8_pitch, half, block * GATED_OUT, lane);
    }
}

template <int E>
static __global__ void __launch_bounds__(GATED_THREADS, E == KRN_Q4_K ? 2 : 1)
    few_gated_kernel(const __grid_constant__ gated_few t, uint64_t *at)
{
    __shared__ chunks room;
    __shared__ gated_room s;
    const uint32_t warp = threadIdx.x / 32;
    uint32_t turn = 0;
    pdl_release();
    pdl_wait();
    stamp(at);
    few_find_ups(s.up[0], t.experts.n, t.experts.gate.k, warp, GATED_THREADS / 32,
                 [&](uint32_t c) { return t.experts.in.q8 + c * t.experts.in.q8_pitch; });
    if (t.shared_tasks != 0)
        few_find_ups(s.up[1], t.shared.n, t.shared.gate.k, warp, GATED_THREADS / 32,
                     [&](uint32_t c) { return t.shared.in.q8 + c * t.shared.in.q8_pitch; });
    find_chunks(room, t.experts.ids, t.experts.ids_pitch, t.experts.n, t.experts.n_used, t.experts.gate, t.experts.expert0, threadIdx.x,
                GATED_THREADS);
    const uint32_t all = room.n * t.blocks, before = blockIdx.x < t.shared_tasks ? (t.shared_tasks - blockIdx.x + gridDim.x - 1) / gridDim.x
                                                                                 : 0; /* tasks that this block has had */
    if (t.shared_tasks != 0)
        gated_tasks<KRN_Q8_0, true>(t, room, s, blockIdx.x, t.shared_tasks, turn);
    gated_tasks<E, false>(t, room, s, blockIdx.x + before * gridDim.x - t.shared_tasks, all, turn);
}

static bool there(const struct kcu_gated *g)
{
    return g != NULL && g->gate.w != NULL && g->gate.rows != 0 && g->n != 0;
}

static bool one_type(const struct kcu_gated *g, bool shared)
{
    const uint32_t t = g->gate.type;
    return g->up.type == t && g->in.q8 != NULL && (shared ? t == KRN_Q8_0 : (t == KRN_Q4_K || t == KRN_Q5_K) && g->gate.k % 256 == 0);
}

extern "C" bool kcu_gated_few(const struct kcu_launch *l, const struct kcu_gated *e, const struct kcu_gated *s)
{
    return !l->fixed && there(e) && power_above(e->n) >= LEAST_ROWS && e->ids != NULL && power_above(e->n) * e->n_used <= MAX_PAIRS &&
           one_type(e, false) && e->n <= MAX_ROWS && (!there(s) || (s->n <= MAX_ROWS && one_type(s, true)));
}

cudaError_t experts_few_gated(const struct kcu_launch *l, const struct kcu_gated *e, const struct kcu_gated *s)
{
    gated_few t = {};
    t.experts = *e;
    t.sixes = 0x64646464u;
    t.blocks = (e->gate.rows + GATED_OUT - 1) / GATED_OUT;
    if (there(s)) {
        t.shared = *s;
        t.shared_blocks = (s->gate.rows + GATED_OUT - 1) / GATED_OUT;
        t.shared_tasks = (s->n + FEW_COLS - 1) / FEW_COLS * t.shared_blocks;
    }
    const uint32_t pairs = e->n * e->n_used, most = pairs < e->gate.n_mats + pairs / FEW_COLS ? pairs : e->gate.n_mats + pairs / FEW_COLS,
                   all = t.shared_tasks + most * t.blocks, room = (e->gate.type == KRN_Q4_K ? 2 : 1) * multiprocessors();
    const dim3 grid(all < room ? all : room);
    return e->gate.type == KRN_Q4_K ? launch(l, few_gated_kernel<KRN_Q4_K>, grid, dim3(GATED_THREADS), 0, 0, t, l->stamp)
                                    : launch(l, few_gated_kernel<KRN_Q5_K>, grid, dim3(GATED_THREADS), 0, 0, t, l->stamp);
}

/* ---- down ---- */

struct down_few {
    struct kcu_down d;
    uint32_t parts, sixes;
};

struct down_room {
    float part[DOWN_PARTS][MAX_PAIRS][FEW_ROWS], shared[DOWN_PARTS][MAX_ROWS][FEW_ROWS];
    float up[MAX_PAIRS], shared_up[MAX_ROWS];
};

/* This warp's items, a chunk and a part of K each: from `first` on, `all` in all. */
template <int T, bool SHARED>
static __device__ __forceinline__ void down_items(const down_few &t, const chunks &room, down_room &s, uint32_t first, uint32_t all)
{
    typedef fmt<T> F;
    const struct kcu_mat &m = SHARED ? t.d.shared : t.d.down;
    const struct kcu_rows_in &in = SHARED ? t.d.shared_act : t.d.act;
    const uint32_t lane = threadIdx.x % 32, row0 = blockIdx.x * FEW_ROWS, units = m.k / F::W, n = (units + 3) / 4;
    typename F::raw r[1][2];
    few_in<F> x[1];
    bool on = false;
    const auto pair_of = [&](uint32_t c, uint32_t col) -> uint32_t {
        if (!SHARED)
            return room.pair[c][col];
        return c * FEW_COLS + col < t.d.n ? c * FEW_COLS + col : (uint32_t)NOBODY;
    };
    const auto bring = [&](uint32_t item, uint32_t step) {
        const uint32_t c = item / t.parts, p = pair_of(c, lane / 4), u = few_own(step, units, &on);
        const uint8_t *row[2];
        rows_of(m, SHARED ? 0 : (uint32_t)room.expert[c], row0, row);
#pragma unroll
        for (int i = 0; i < 2; i++)
            F::fetch(row[i], m.k, u, r[0][i]);
        few_fetch_in<F>(in.q8 + (p != NOBODY ? p : pair_of(c, 0)) * in.q8_pitch, m.k, u, x[0]);
    };
    if (first < all && first % t.parts < n)
        bring(first, first % t.parts);
    for (uint32_t i = first; i < all; i += DOWN_WARPS) {
        const uint32_t c = i / t.parts, part = i % t.parts, p = pair_of(c, lane / 4), next = i + DOWN_WARPS;
        const float up = (SHARED ? s.shared_up : s.up)[p != NOBODY ? p : pair_of(c, 0)];
        float acc[1][1][4] = {};
#pragma unroll 1
        for (uint32_t step = part; step < n; step += t.parts) {
            const float by[1] = {on ? up : 0.0f};
            few_unit<T, 1, 1>(r, x, lane % 4, by, t.sixes, acc);
            const bool more = step + t.parts < n;
            if (more || next < all)
                bring(more ? i : next, more ? step + t.parts : next % t.parts);
        }
        float(*to)[FEW_ROWS] = SHARED ? s.shared[part] : s.part[part];
#pragma unroll
        for (uint32_t v = 0; v < 4; v++) {
            const uint32_t col = pair_of(c, lane % 4 * 2 + v % 2);
            if (col != NOBODY)
                to[col][lane / 4 + v / 2 * 8] = acc[0][0][v];
        }
    }
}

/* A block: 16 outputs of all pairs; everybody's results are added in the order of their experts. */
template <int E> static __global__ void __launch_bounds__(DOWN_THREADS, 1) few_down_kernel(const __grid_constant__ down_few t, uint64_t *at)
{
    __shared__ chunks room;
    __shared__ down_room s;
    const struct kcu_down &a = t.d;
    const uint32_t warp = threadIdx.x / 32, row0 = blockIdx.x * FEW_ROWS,
                   own = a.shared.w != nullptr ? (a.n + FEW_COLS - 1) / FEW_COLS * t.parts : 0;
    pdl_release();
    pdl_wait();
    stamp(at);
    few_find_ups(s.up, a.n * a.n_used, a.down.k, warp, DOWN_WARPS, [&](uint32_t c) { return a.act.q8 + c * a.act.q8_pitch; });
    if (own != 0)
        few_find_ups(s.shared_up, a.n, a.shared.k, warp, DOWN_WARPS,
                     [&](uint32_t c) { return a.shared_act.q8 + c * a.shared_act.q8_pitch; });
    find_chunks(room, a.ids, a.ids_pitch, a.n, a.n_used, a.down, a.expert0, threadIdx.x, DOWN_THREADS);
    const uint32_t all = room.n * t.parts,
                   before = warp < own ? (own - warp + DOWN_WARPS - 1) / DOWN_WARPS : 0; /* items that this warp has had */
    if (own != 0)
        down_items<KRN_Q8_0, true>(t, room, s, warp, own);
    down_items<E, false>(t, room, s, warp + before * DOWN_WARPS - own, all);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n * FEW_ROWS; i += DOWN_THREADS) {
        const uint32_t r = i / FEW_ROWS, at_row = i % FEW_ROWS, o = row0 + at_row;
        if (o >= a.width)
            continue;
        float sum = 0;
        int32_t last = -1;
        for (uint32_t j = 0; j < a.n_used; j++) { /* the next one in ascending order */
            int32_t best = INT32_MAX;
            uint32_t p = 0;
            for (uint32_t slot = 0; slot < a.n_used; slot++) {
                const int32_t e = room.id[r * a.n_used + slot];
                if (e > last && e < best)
                    best = e, p = slot;
            }
            if (best == INT32_MAX)
                break;
            float v = 0;
            for (uint32_t part = 0; part < t.parts; part++)
                v += s.part[part][r * a.n_used + p][at_row];
            sum += a.weights[r * a.ids_pitch + p] * (v * few_down(s.up[r * a.n_used + p]));
            last = best;
        }
        if (own != 0) {
            float v = 0;
            for (uint32_t part = 0; part < t.parts; part++)
                v += s.shared[part][r][at_row];
            sum += v * few_down(s.shared_up[r]);
        }
        a.y[r * a.y_pitch + o] = sum;
        if (a.x != nullptr)
            a.x[r * a.x_pitch + o] += sum;
    }
}

extern "C" bool kcu_down_few(const struct kcu_launch *l, const struct kcu_down *a)
{
    return !l->fixed && a->choose == NULL && power_above(a->n) >= LEAST_ROWS && a->n <= MAX_ROWS && a->down.w != NULL &&
           power_above(a->n) * a->n_used <= MAX_PAIRS && a->act.q8 != NULL && !a->makes_int8 &&
           (a->down.type == KRN_Q4_K || a->down.type == KRN_Q5_K) && a->down.k % 256 == 0 &&
           (a->shared.w == NULL || (a->shared.type == KRN_Q8_0 && a->shared_act.q8 != NULL));
}

cudaError_t experts_few_down(const struct kcu_launch *l, const struct kcu_down *a)
{
    uint32_t parts = DOWN_PARTS; /* each with a step at least */
    parts = a->down.k / 256 < parts ? a->down.k / 256 : parts;
    if (a->shared.w != NULL && (a->shared.k + 127) / 128 < parts)
        parts = (a->shared.k + 127) / 128;
    const down_few t = {*a, parts, 0x64646464u};
    const dim3 grid((a->width + FEW_ROWS - 1) / FEW_ROWS);
    return a->down.type == KRN_Q4_K ? launch(l, few_down_kernel<KRN_Q4_K>, grid, dim3(DOWN_THREADS), 0, 0, t, l->stamp)
                                    : launch(l, few_down_kernel<KRN_Q5_K>, grid, dim3(DOWN_THREADS), 0, 0, t, l->stamp);
}
