/* Products of 3 to 16 rows of activations: a block has 16 weight rows, its warps share K, and every weight is brought and unpacked once. */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/linear_few.cuh"

enum {
    MAX_WARPS = 8,
    LEAST_OUT = 64, /* so few outputs are no work, and what they are for (the indexer's weights choose keys) may hang on their last bits */
    LEAST_ROWS = 4 /* a power of two of them; of fewer the kernel for rows one by one is as fast */,
    MAX_ROWS = 2 * FEW_COLS
};

/* Steps under way. */
template <class F> struct few_depth {
    enum { N = F::W == 64 ? 1 : 2 };
};

struct few_task {
    struct kcu_linear a;
    uint32_t blocks0, sixes; /* blocks of the first matrix */
};

/* C: groups of eight rows of activations. */
template <int T, int C>
static __global__ void __launch_bounds__(32 * MAX_WARPS, 2) linear_few_kernel(const __grid_constant__ few_task t, uint64_t *at)
{
    typedef fmt<T> F;
    enum { DEPTH = few_depth<F>::N, COLS = FEW_COLS * C };
    __shared__ float part[MAX_WARPS][COLS][FEW_ROWS + 1], up[COLS];
    const struct kcu_linear &a = t.a;
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, q = lane % 4, j = blockIdx.x >= t.blocks0,
                   row0 = (blockIdx.x - (j ? t.blocks0 : 0)) * FEW_ROWS, col0 = blockIdx.y * COLS, cols = min(a.n - col0, (uint32_t)COLS);
    const struct kcu_mat &m = a.m[j];
    const uint32_t units = m.k / F::W, n = (units + 3) / 4;
    const uint8_t *row[2], *q8[C];
    bool on[DEPTH];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = row0 + lane / 4 + 8 * i;
        row[i] = m.w + (size_t)(r < m.rows ? r : m.rows - 1) * m.pitch;
    }
#pragma unroll
    for (uint32_t c = 0; c < C; c++) {
        const uint32_t col = c * FEW_COLS + lane / 4;
        q8[c] = a.in.q8 + (col0 + (col < cols ? col : 0)) * a.in.q8_pitch;
    }
    typename F::raw r[DEPTH][1][2];
    few_in<F> x[DEPTH][C];
    pdl_release();
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        const uint32_t u = few_own(warp + d * warps, units, &on[d]);
#pragma unroll
        for (int i = 0; i < 2; i++)
            F::template fetch<EARLY>(row[i], m.k, u, r[d][0][i]);
    }
    float acc[C][1][4] = {};
    pdl_wait();
    stamp(at);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        const uint32_t u = few_own(warp + d * warps, units, &on[d]);
#pragma unroll
        for (int c = 0; c < C; c++)
            few_fetch_in<F>(q8[c], m.k, u, x[d][c]);
    }
    few_find_ups(up, cols, m.k, warp, warps, [&](uint32_t c) { return a.in.q8 + (col0 + c) * a.in.q8_pitch; });
    __syncthreads();
    float by[C];
#pragma unroll
    for (uint32_t c = 0; c < C; c++)
        by[c] = up[c * FEW_COLS + lane / 4 < cols ? c * FEW_COLS + lane / 4 : 0];
#pragma unroll 1
    for (uint32_t s0 = warp; s0 < n; s0 += DEPTH * warps)
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint32_t s = s0 + d * warps, next = s + DEPTH * warps;
            if (s >= n)
                break;
            float now[C];
#pragma unroll
            for (int c = 0; c < C; c++)
                now[c] = on[d] ? by[c] : 0.0f;
            few_unit<T, 1, C>(r[d], x[d], q, now, t.sixes, acc);
            if (next >= n)
                continue;
            const uint32_t u = few_own(next, units, &on[d]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                F::fetch(row[i], m.k, u, r[d][0][i]);
#pragma unroll
            for (int c = 0; c < C; c++)
                few_fetch_in<F>(q8[c], m.k, u, x[d][c]);
        }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int v = 0; v < 4; v++)
            part[warp][c * FEW_COLS + q * 2 + v % 2][lane / 4 + v / 2 * 8] = acc[c][0][v];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < COLS * FEW_ROWS; i += blockDim.x) {
        const uint32_t col = i / FEW_ROWS, o = row0 + i % FEW_ROWS, to = col0 + col;
        if (col >= cols || o >= m.rows)
            continue;
        float sum = 0;
        for (uint32_t w = 0; w < warps; w++)
            sum += part[w][col][i % FEW_ROWS];
        sum *= few_down(up[col]);
        float *y = a.y + to * a.y_pitch + a.col[j] + o, *residual = a.x != nullptr && j == 0 ? a.x + to * a.x_pitch + o : nullptr;
        if (a.accumulate)
            sum += *y;
        *y = sum;
        if (residual != nullptr)
            *residual += sum;
    }
}

static bool takes_mat(const struct kcu_mat *m)
{
    return m->w != NULL && m->rows != 0 && (m->type == KRN_Q8_0 || ((m->type == KRN_Q4_K || m->type == KRN_Q5_K) && m->k % 256 == 0));
}

extern "C" bool kcu_linear_few(const struct kcu_launch *l, const struct kcu_linear *a)
{
    return !l->fixed && power_above(a->n) >= LEAST_ROWS && a->m[0].rows + (a->n_mats == 2 ? a->m[1].rows : 0) >= LEAST_OUT && a->n <= MAX_ROWS && a->in.q8 != NULL && a->pre.x == NULL &&
           takes_mat(&a->m[0]) && (a->n_mats == 1 || (takes_mat(&a->m[1]) && a->m[1].type == a->m[0].type && a->m[1].k == a->m[0].k));
}

template <int T> static cudaError_t start(const struct kcu_launch *l, const struct kcu_linear *a)
{
    const uint32_t steps = (a->m[0].k / fmt<T>::W + 3) / 4, warps = steps < MAX_WARPS ? steps : MAX_WARPS,
                   blocks0 = (a->m[0].rows + FEW_ROWS - 1) / FEW_ROWS,
                   blocks = blocks0 + (a->n_mats == 2 ? (a->m[1].rows + FEW_ROWS - 1) / FEW_ROWS : 0);
    const few_task t = {*a, blocks0, 0x64646464u};
    if (a->n <= FEW_COLS)
        return launch(l, linear_few_kernel<T, 1>, dim3(blocks), dim3(32 * warps), 0, 0, t, l->stamp);
    return launch(l, linear_few_kernel<T, 2>, dim3(blocks), dim3(32 * warps), 0, 0, t, l->stamp);
}

cudaError_t linear_few(const struct kcu_launch *l, const struct kcu_linear *a)
{
    return a->m[0].type == KRN_Q8_0 ? start<KRN_Q8_0>(l, a) : a->m[0].type == KRN_Q4_K ? start<KRN_Q4_K>(l, a) : start<KRN_Q5_K>(l, a);
}
