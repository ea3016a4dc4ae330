/* Statistics of a tensor where it stands, and its first values: what an observer is in a step. The result depends on the values alone, never on how
 * many blocks there are: chunks of a fixed size are folded each in one order, and the chunks in another. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256, CHUNK = KCU_PROBE_CHUNK, MAX_BLOCKS = 64 };

static __device__ __forceinline__ uint64_t mix(uint64_t index, uint32_t bits)
{
    uint64_t z = index * 0x9e3779b97f4a7c15ull ^ bits;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static __device__ __forceinline__ kcu_seen nothing()
{
    kcu_seen s = {};
    s.min = __int_as_float(0x7f800000);
    s.max = -s.min;
    return s;
}

static __device__ __forceinline__ void fold(kcu_seen &s, uint64_t index, float x)
{
    const uint32_t u = __float_as_uint(x), mag = u & 0x7fffffffu;
    s.n++;
    s.hash += mix(index, u);
    if (mag >= 0x7f800000u) {
        if (mag > 0x7f800000u)
            s.nan++;
        else
            s.inf++;
        return;
    }
    s.zeros += mag == 0;
    s.min = fminf(s.min, x);
    s.max = fmaxf(s.max, x);
    s.absmax = fmaxf(s.absmax, __uint_as_float(mag));
    s.sum += (double)x;
    s.sum_sq += (double)x * (double)x;
}

static __device__ __forceinline__ void merge(kcu_seen &a, const kcu_seen &b)
{
    a.n += b.n;
    a.zeros += b.zeros;
    a.nan += b.nan;
    a.inf += b.inf;
    a.hash += b.hash;
    a.sum += b.sum;
    a.sum_sq += b.sum_sq;
    a.min = fminf(a.min, b.min);
    a.max = fmaxf(a.max, b.max);
    a.absmax = fmaxf(a.absmax, b.absmax);
}

/* What all threads hold as one, in the order of a tree over threads; valid in thread 0. */
static __device__ void block_merge(kcu_seen &s, kcu_seen *shared)
{
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x >= half && (int)threadIdx.x < 2 * half)
            shared[threadIdx.x - half] = s;
        __syncthreads();
        if ((int)threadIdx.x < half)
            merge(s, shared[threadIdx.x]);
        __syncthreads();
    }
}

/* Does value `col` of `row` mean something, and what is it as a number? */
static __device__ __forceinline__ bool value(const struct kcu_probe &a, uint32_t row, uint32_t col, float *x)
{
    const float *r = a.x + row * a.pitch;
    *x = r[col];
    switch (a.kind) {
    case KCU_PROBE_SELECTION: {
        const int32_t n = __float_as_int(r[0]);
        *x = (float)__float_as_int(r[col]);
        return col > 0 && n > 0 && col <= min((uint32_t)n, a.width - 1);
    }
    case KCU_PROBE_CHOICE:
        if (col < a.width / 2)
            *x = (float)__float_as_int(r[col]);
        return true;
    case KCU_PROBE_SCORES: {
        const uint32_t keys = (uint32_t)a.pos[row] + 1;
        return keys > a.top_k && col < keys;
    }
    case KCU_PROBE_PAIRS: {
        const int32_t e = a.ids[row / a.n_used * a.ids_pitch + row % a.n_used] - (int32_t)a.expert0;
        return e >= 0 && e < (int32_t)a.n_experts;
    }
    default: return true;
    }
}

static __global__ void __launch_bounds__(THREADS) probe_kernel(const __grid_constant__ struct kcu_probe a)
{
    __shared__ kcu_seen shared[THREADS / 2];
    __shared__ bool last;
    pdl_release();
    pdl_wait();
    const uint32_t rows = a.rows != nullptr ? min(*a.rows * a.rows_each, a.max_rows) : a.max_rows;
    const uint64_t n = (uint64_t)rows * a.width;
    if (blockIdx.x == 0)
        for (uint32_t j = threadIdx.x; j < a.n_values; j += THREADS) {
            float x = 0;
            if (rows != 0 && j < a.width) {
                (void)value(a, rows - 1, j, &x);
            }
            a.values[j] = x;
        }
    if (a.out == nullptr)
        return;
    const uint32_t chunks = (uint32_t)((n + CHUNK - 1) / CHUNK);
    for (uint32_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        kcu_seen s = nothing();
        for (uint32_t k = threadIdx.x; k < CHUNK && (uint64_t)c * CHUNK + k < n; k += THREADS) {
            const uint64_t i = (uint64_t)c * CHUNK + k;
            const uint32_t row = (uint32_t)(i / a.width), col = (uint32_t)(i - (uint64_t)row * a.width);
            float x;
            if (value(a, row, col, &x))
                fold(s, i, x);
        }
        block_merge(s, shared);
        if (threadIdx.x == 0)
            a.parts[c] = s;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(a.arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    kcu_seen s = nothing();
    for (uint32_t c = threadIdx.x; c < chunks; c += THREADS)
        merge(s, a.parts[c]);
    block_merge(s, shared);
    if (threadIdx.x != 0)
        return;
    if (s.n == s.nan + s.inf)
        s.min = s.max = s.absmax = 0;
    *a.out = s;
    *a.arrived = 0;
}

extern "C" size_t kcu_probe_parts(size_t values)
{
    return (values + CHUNK - 1) / CHUNK;
}

extern "C" cudaError_t kcu_probe(const struct kcu_launch *l, const struct kcu_probe *a)
{
    size_t blocks = kcu_probe_parts((size_t)a->max_rows * a->width);
    blocks = blocks < 1 ? 1 : blocks > MAX_BLOCKS ? MAX_BLOCKS : blocks;
    return launch(l, probe_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, 0, *a);
}
