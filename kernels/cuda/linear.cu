/* A few rows of activations times a weight: every weight is read once per KCU_MAX_COLS rows. */
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/linear_few.cuh"
#include "kernels/cuda/norm.cuh"

enum { THREADS = 128 };

/* Units in flight per lane of one row of activations. */
template <class F> struct row_depth {
    enum { N = F::W == 64 ? 2 : 6 };
};

struct shape {
    uint32_t blocks0, lpr[2];
};

template <int NC, int T>
static __global__ void __launch_bounds__(THREADS) linear_kernel(const struct kcu_linear a, const shape s, uint64_t *at)
{
    pdl_release();
    const uint32_t j = blockIdx.x >= s.blocks0, lpr = s.lpr[j], block = blockIdx.x - (j ? s.blocks0 : 0);
    const kcu_mat &m = a.m[j];
    const uint32_t r = block * (THREADS / lpr) + threadIdx.x / lpr, sub = threadIdx.x % lpr, row0 = blockIdx.y * NC;
    const uint32_t nc = a.n - row0 < NC ? a.n - row0 : NC;
    const bool on = r < m.rows;
    float acc[NC];
#pragma unroll
    for (int c = 0; c < NC; c++)
        acc[c] = 0;
    stamp_early(at);
    dot_type<T, true, NC>(m.type, m.w + (size_t)(on ? r : 0) * m.pitch, on, m.k, sub, lpr, a.in.x + row0 * a.in.pitch, a.in.pitch,
                          a.in.q8 != nullptr ? a.in.q8 + row0 * a.in.q8_pitch : nullptr, a.in.q8_pitch, nc, acc);
    pdl_wait();
#pragma unroll
    for (int c = 0; c < NC; c++) {
        const float v = warp_sum(acc[c], lpr);
        if (on && sub == 0 && c < (int)nc) {
            float *y = a.y + (row0 + c) * a.y_pitch + a.col[j] + r, *x = a.x != nullptr ? a.x + (row0 + c) * a.x_pitch + r : nullptr;
            const float sum = a.accumulate ? *y + v : v;
            *y = sum;
            if (x != nullptr && j == 0)
                *x += sum;
        }
    }
}

/* Where the blocks of the usual shape of one_row_kernel() are a few too many to be resident together, the last of them begin to load when others have
 * ended. In these shapes, for long and for short rows, every weight is on its way while the predecessor still runs. LONG is compiled as if it had more
 * threads: so every quarter of the registers has room for a warp of its successor, which would not be there in time otherwise. */
enum { LONG = 352, LONG_BOUND = 448, SHORT = 384 };

/* One row of activations, one known type: the activations go through shared memory. Q: quads per thread of the norm that precedes; 0: none. ALL: threads;
 * DEPTH: units in flight per lane. */
template <int T, int Q, int ALL = 2 * THREADS, int PER_SM = 2, int DEPTH = row_depth<fmt<T>>::N>
static __global__ void __launch_bounds__(ALL == LONG ? LONG_BOUND : ALL, PER_SM)
    one_row_kernel(const __grid_constant__ struct kcu_linear a, const shape s, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t xs[];
    __shared__ float unit[Q * ALL / 8 + 1];
    typedef fmt<T> F;
    pdl_release();
    const uint32_t j = blockIdx.x >= s.blocks0, lpr = s.lpr[j], block = blockIdx.x - (j ? s.blocks0 : 0);
    const struct kcu_mat &m = a.m[j];
    const uint32_t r = block * (ALL / lpr) + threadIdx.x / lpr, sub = threadIdx.x % lpr;
    const bool on = r < m.rows, adds = on && sub == 0 && j == 0 && a.x != nullptr;
    float x = 0;
    const float acc = dot_staged<F, DEPTH>(m.w + (size_t)(on ? r : 0) * m.pitch, on, m.k, sub, lpr, xs, [&] {
        norm_row<Q == 0 ? 1 : Q, ALL> norm;
        if constexpr (Q != 0)
            norm.start(a.pre);
        pdl_wait();
        stamp(at);
        if (adds)
            x = a.x[r];
        if constexpr (Q != 0)
            norm.template stage<F>(a.pre, norm.factor(a.pre, unit), xs, blockIdx.x == 0);
        else
            staged<F>::load(a.in.q8, m.k, xs, threadIdx.x, ALL);
        __syncthreads();
    });
    const float v = warp_sum(acc, lpr);
    if (on && sub == 0) {
        float *y = a.y + a.col[j] + r;
        const float sum = a.accumulate ? *y + v : v;
        *y = sum;
        if (adds)
            a.x[r] = x + sum;
    }
}

/* An empty part of a partial sum is zero. */
static __global__ void zero_kernel(float *y, size_t pitch, uint32_t width, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        y[blockIdx.x * pitch + i] = 0;
}

extern "C" cudaError_t kcu_zero(const struct kcu_launch *l, float *y, size_t pitch, uint32_t width, uint32_t n)
{
    return launch(l, zero_kernel, dim3(n), dim3(256), 0, 0, y, pitch, width, l->stamp);
}

/* k of the matrices: the one that is there. */
static uint32_t k_of(const struct kcu_linear *a)
{
    return a->m[0].w != NULL ? a->m[0].k : a->m[1].k;
}

/* A norm of a longer row is dearer in every block than in a launch of its own. */
enum { STAGED_MAX = 48 * 1024, NORM_MAX = 2048 };

/* Blocks of so many threads; s.blocks0 is set. */
static uint32_t blocks_of(const struct kcu_linear *a, shape *s, uint32_t threads)
{
    uint32_t blocks[2] = {0, 0};
    for (uint32_t i = 0; i < a->n_mats; i++)
        if (s->lpr[i] != 0)
            blocks[i] = (a->m[i].rows + threads / s->lpr[i] - 1) / (threads / s->lpr[i]);
    s->blocks0 = blocks[0];
    return blocks[0] + blocks[1];
}

/* Do blocks of another shape hold every weight in registers and are all of them resident together? s becomes that shape. */
static bool is_whole(const struct kcu_linear *a, shape *s, uint32_t threads, uint32_t lanes, uint32_t depth)
{
    const uint32_t units = k_of(a) / 32;
    for (uint32_t &lpr : s->lpr)
        lpr = lpr != 0 ? lanes : 0;
    return units <= lanes * depth && units > lanes * (depth - 1) && blocks_of(a, s, threads) <= 2 * multiprocessors();
}

static bool run_whole(const struct kcu_launch *l, const struct kcu_linear *a, const shape &s, size_t bytes, cudaError_t *e)
{
    shape o = s;
    if (is_whole(a, &o, LONG, 32, 6)) {
        divide_alike(one_row_kernel<KRN_Q8_0, 0, LONG, 2, 6>);
        *e = launch(l, one_row_kernel<KRN_Q8_0, 0, LONG, 2, 6>, dim3(blocks_of(a, &o, LONG)), dim3(LONG), bytes, 0, *a, o, l->stamp);
    } else if (is_whole(a, &o, SHORT, 16, 4)) {
        divide_alike(one_row_kernel<KRN_Q8_0, 0, SHORT, 2, 4>);
        *e = launch(l, one_row_kernel<KRN_Q8_0, 0, SHORT, 2, 4>, dim3(blocks_of(a, &o, SHORT)), dim3(SHORT), bytes, 0, *a, o, l->stamp);
    } else {
        return false;
    }
    return true;
}

template <int T> static cudaError_t one_row(const struct kcu_launch *l, const struct kcu_linear *a, shape s)
{
    const size_t bytes = staged_bytes(T, k_of(a));
    const dim3 grid(blocks_of(a, &s, 2 * THREADS));
    cudaError_t e;
    if (T == KRN_Q8_0 && a->pre.x == NULL && grid.x > 2 * multiprocessors() && run_whole(l, a, s, bytes, &e))
        return e;
    if (a->pre.x == NULL)
        return launch(l, one_row_kernel<T, 0>, grid, dim3(2 * THREADS), bytes, 0, *a, s, l->stamp);
    return launch(l, one_row_kernel<T, NORM_MAX / (8 * THREADS)>, grid, dim3(2 * THREADS), bytes, 0, *a, s, l->stamp);
}

template <int T> static cudaError_t by_rows(const struct kcu_launch *l, const struct kcu_linear *a, const shape &s, dim3 grid)
{
    if constexpr (T != ANY_TYPE)
        if (a->n == 1 && a->n_mats > 0 && staged_bytes(T, k_of(a)) <= STAGED_MAX)
            return one_row<T>(l, a, s);
    if (a->pre.x != NULL)
        return cudaErrorInvalidValue;
    return a->n == 1   ? launch(l, linear_kernel<1, T>, grid, dim3(THREADS), 0, 0, *a, s, l->stamp)
           : a->n <= 4 ? launch(l, linear_kernel<4, T>, grid, dim3(THREADS), 0, 0, *a, s, l->stamp)
                       : launch(l, linear_kernel<8, T>, grid, dim3(THREADS), 0, 0, *a, s, l->stamp);
}

extern "C" bool kcu_norm_linear_takes(const struct kcu_linear *a)
{
    uint32_t type = KRN_TYPE_MAX;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        if (a->m[i].w == NULL || a->m[i].rows == 0)
            continue;
        if ((type != KRN_TYPE_MAX && type != a->m[i].type) || a->m[i].k != a->pre.n)
            return false;
        type = a->m[i].type;
    }
    return a->n == 1 && (type == KRN_Q8_0 || type == KRN_Q4_K || type == KRN_Q5_K || type == KRN_Q6_K) && a->pre.n % 32 == 0 &&
           a->pre.n <= NORM_MAX && staged_bytes(type, a->pre.n) <= STAGED_MAX && a->pre.q8 != NULL;
}

extern "C" cudaError_t kcu_linear(const struct kcu_launch *l, const struct kcu_linear *a)
{
    shape s = {};
    uint32_t blocks[2] = {0, 0};
    if (kcu_linear_few(l, a))
        return linear_few(l, a);
    for (uint32_t i = 0; i < a->n_mats; i++) {
        if (a->m[i].w == NULL || a->m[i].rows == 0)
            continue;
        s.lpr[i] = lanes_for(a->m[i].type, a->m[i].k, a->in.q8 != NULL || a->pre.x != NULL);
        blocks[i] = (a->m[i].rows + THREADS / s.lpr[i] - 1) / (THREADS / s.lpr[i]);
    }
    s.blocks0 = blocks[0];
    if (blocks[0] + blocks[1] == 0 || a->n == 0)
        return cudaSuccess;
    const dim3 grid(blocks[0] + blocks[1], a->n == 1 ? 1 : a->n <= 4 ? 1 : (a->n + 7) / 8);
    const uint32_t type = blocks[0] != 0 ? a->m[0].type : a->m[1].type;
    const bool one_type =
        (a->in.q8 != NULL || a->pre.x != NULL) && (blocks[0] == 0 || a->m[0].type == type) && (blocks[1] == 0 || a->m[1].type == type);
    switch (one_type ? type : KRN_TYPE_MAX) {
    case KRN_Q8_0: return by_rows<KRN_Q8_0>(l, a, s, grid);
    case KRN_Q4_K: return by_rows<KRN_Q4_K>(l, a, s, grid);
    case KRN_Q5_K: return by_rows<KRN_Q5_K>(l, a, s, grid);
    case KRN_Q6_K: return by_rows<KRN_Q6_K>(l, a, s, grid);
    default: return by_rows<ANY_TYPE>(l, a, s, grid);
    }
}
