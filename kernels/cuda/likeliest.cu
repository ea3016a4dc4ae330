/* What choosing a token takes, out of rows of logits, where they lie: the largest and the sums of the softmax for every row, and a list of the likeliest
 * for rows that ask for one. A row of a large vocabulary is 600 KB; what comes back of it is 48 bytes and some hundred candidates. Chunks of a fixed
 * size are folded each in one order and then into each other in the order of their columns, so that the result depends on the row alone. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256, CHUNK = KCU_LIKELIEST_CHUNK, EACH = CHUNK / THREADS, LIST_THREADS = 1024, BUCKETS = 2 * LIST_THREADS, AHEAD = 8 };

/* Below this exp() leaves nothing that a sum of ones would notice, and squares of distances stay far from overflow. */
static const float FAR = -100.0f;

/* Nats at the row's temperature, and at 1, below the largest that a list reaches at most: what lies lower is never drawn. */
static const float DEPTH = 32.0f;

static __device__ __forceinline__ float infinity()
{
    return __int_as_float(0x7f800000);
}

static __device__ __forceinline__ bool finite(float x)
{
    return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
}

static __device__ __forceinline__ kcu_top nothing()
{
    kcu_top t = {};
    t.top = t.second = -infinity();
    t.low = t.floor = infinity();
    t.at = -1;
    return t;
}

/* Sums relative to a larger value than the largest. */
static __device__ __forceinline__ void lift(kcu_top &t, float top, float per_temp)
{
    const float d = t.top - top, all = t.z + (float)t.tops, s = d < FAR ? 0.0f : expf(d);
    if (d == 0)
        return;
    t.w2 = d < FAR ? 0.0f : s * (t.w2 + d * (2.0f * t.w + d * all));
    t.w = d < FAR ? 0.0f : s * (t.w + d * all);
    t.z = s * all;
    t.zt *= d * per_temp < FAR ? 0.0f : expf(d * per_temp);
    t.tops = 0;
}

/* a's columns come before b's, or either holds nothing. */
static __device__ __forceinline__ void merge(kcu_top &a, kcu_top b, float per_temp)
{
    const uint32_t odd = a.nonfinite + b.nonfinite;
    if (b.at >= 0 && a.at < 0) {
        a = b;
    } else if (b.at >= 0) {
        const float top = fmaxf(a.top, b.top), second = fmaxf(fminf(a.top, b.top), fmaxf(a.second, b.second));
        const int32_t at = a.top >= b.top ? a.at : b.at;
        lift(a, top, per_temp);
        lift(b, top, per_temp);
        a.top = top;
        a.second = second;
        a.low = fminf(a.low, b.low);
        a.at = at;
        a.tops += b.tops;
        a.z += b.z;
        a.w += b.w;
        a.w2 += b.w2;
        a.zt += b.zt;
    }
    a.nonfinite = odd;
}

/* Of what the lanes of a warp hold, the largest, its first column, the next, the smallest; in every lane. */
static __device__ __forceinline__ void warp_extremes(kcu_top &t)
{
    for (int o = 16; o > 0; o /= 2) {
        const float top = __shfl_xor_sync(0xffffffffu, t.top, o), second = __shfl_xor_sync(0xffffffffu, t.second, o);
        const int32_t at = __shfl_xor_sync(0xffffffffu, t.at, o);
        t.low = fminf(t.low, __shfl_xor_sync(0xffffffffu, t.low, o));
        t.nonfinite += __shfl_xor_sync(0xffffffffu, t.nonfinite, o);
        t.second = fmaxf(fminf(t.top, top), fmaxf(t.second, second));
        if (at >= 0 && (t.at < 0 || top > t.top || (top == t.top && at < t.at)))
            t.at = at;
        t.top = fmaxf(t.top, top);
    }
}

/* The chunk's part, in thread 0. */
static __device__ kcu_top fold_chunk(const float *row, uint32_t width, uint32_t base, float per_temp)
{
    __shared__ kcu_top part[THREADS / 32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float x[EACH];
    kcu_top t = nothing();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const uint32_t i = base + k * THREADS + threadIdx.x;
        x[k] = i < width ? row[i] : -infinity();
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const uint32_t i = base + k * THREADS + threadIdx.x;
        if (!finite(x[k])) {
            t.nonfinite += i < width;
            x[k] = -infinity();
            continue;
        }
        t.low = fminf(t.low, x[k]);
        t.second = fmaxf(t.second, fminf(t.top, x[k]));
        if (t.at < 0 || x[k] > t.top)
            t.at = (int32_t)i;
        t.top = fmaxf(t.top, x[k]);
    }
    warp_extremes(t);
    if (lane == 0)
        part[warp] = t;
    __syncthreads();
    t = lane < THREADS / 32 ? part[lane] : nothing();
    warp_extremes(t); /* every warp for itself */
    __syncthreads();
    float z = 0, w = 0, w2 = 0, zt = 0, tops = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const float d = x[k] - t.top;
        if (d == 0) {
            tops += 1.0f;
        } else if (d >= FAR) {
            const float e = expf(d);
            z += e;
            w += e * d;
            w2 += e * d * d;
        }
        if (per_temp > 0 && d * per_temp >= FAR)
            zt += expf(d * per_temp);
    }
    z = warp_sum(z, 32);
    w = warp_sum(w, 32);
    w2 = warp_sum(w2, 32);
    zt = warp_sum(zt, 32);
    tops = warp_sum(tops, 32);
    if (lane == 0) {
        part[warp].z = z;
        part[warp].w = w;
        part[warp].w2 = w2;
        part[warp].zt = zt;
        part[warp].tops = (uint32_t)tops;
    }
    __syncthreads();
    for (uint32_t i = 0; i < THREADS / 32 && threadIdx.x == 0; i++) {
        t.z += part[i].z;
        t.w += part[i].w;
        t.w2 += part[i].w2;
        t.zt += part[i].zt;
        t.tops += part[i].tops;
    }
    return t;
}

/* The row's chunks into one, by the first warp; every lane takes neighbours. */
static __device__ kcu_top fold_row(const kcu_top *part, uint32_t chunks, float per_temp)
{
    const uint32_t each = (chunks + 31) / 32, lane = threadIdx.x;
    kcu_top t = nothing();
    for (uint32_t c = lane * each; c < (lane + 1) * each && c < chunks; c++)
        merge(t, part[c], per_temp);
    for (int o = 1; o < 32; o *= 2) { /* lanes that are a multiple of 2 o take their right neighbour */
        kcu_top u;
        uint32_t *to = (uint32_t *)&u;
        const uint32_t *from = (const uint32_t *)&t;
#pragma unroll
        for (uint32_t i = 0; i < sizeof t / 4; i++)
            to[i] = __shfl_down_sync(0xffffffffu, from[i], o);
        if (lane % (2 * o) == 0)
            merge(t, u, per_temp);
    }
    return t;
}

static __device__ __forceinline__ float per_temperature(const struct kcu_likeliest &a, uint32_t row)
{
    return a.temp[row] > 0 ? 1.0f / a.temp[row] : 0.0f;
}

static __global__ void __launch_bounds__(THREADS) top_kernel(const __grid_constant__ struct kcu_likeliest a, uint64_t *at)
{
    __shared__ bool last;
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.y, chunks = gridDim.x;
    const float per_temp = per_temperature(a, row);
    kcu_top *part = a.parts + (size_t)row * chunks;
    const kcu_top mine = fold_chunk(a.x + row * a.pitch, a.width, blockIdx.x * CHUNK, per_temp);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = mine;
        __threadfence();
        last = atomicAdd(&a.arrived[row], 1) == chunks - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x >= 32)
        return;
    __threadfence();
    kcu_top t = fold_row(part, chunks, per_temp);
    if (threadIdx.x != 0)
        return;
    if (t.at >= 0)
        t.at += a.id0;
    part[0] = t; /* for the list; all parts have been read */
    a.out[row] = t;
    a.arrived[row] = 0;
}

/* The scan of two neighbouring counts per thread: how many there are in buckets up to and with 2 t + 1, in *upto of thread t. */
static __device__ uint32_t scan(uint32_t pair, uint32_t *warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t v = __shfl_up_sync(0xffffffffu, pair, o);
        pair += lane >= (uint32_t)o ? v : 0;
    }
    if (lane == 31)
        warps[warp] = pair;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++)
        pair += warps[i];
    return pair;
}

struct bounds {
    float top, cut, scale;
};

/* Buckets count from the largest downwards; a smaller value never has a smaller bucket. -1: too low, or no number. */
static __device__ __forceinline__ int bucket_of(float x, const bounds &b)
{
    if (!(x >= b.cut) || !finite(x))
        return -1;
    return min((int)((b.top - x) * b.scale), BUCKETS - 1);
}

/* This thread's next values; what lies behind the row is no number. */
static __device__ __forceinline__ void load(const float *x, uint32_t i, uint32_t width, float v[AHEAD])
{
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
        v[j] = i + j * LIST_THREADS < width ? x[i + j * LIST_THREADS] : -infinity();
}

/* A block per row: how many there are in each of the buckets below the largest; then all of the buckets that hold as many as were asked for. */
static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(const __grid_constant__ struct kcu_likeliest a, uint32_t chunks, uint64_t *at)
{
    __shared__ uint32_t count[BUCKETS], warps[LIST_THREADS / 32], taken, lowest;
    __shared__ int reach;
    __shared__ kcu_likely list[KCU_LIST];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.x, want = a.list[row], t = threadIdx.x;
    const kcu_top *of = a.parts + (size_t)row * chunks;
    const float *x = a.x + row * a.pitch;
    if (want == 0 || of->at < 0 || of->nonfinite != 0)
        return;
    const float most = DEPTH * fmaxf(a.temp[row], 1.0f), range = of->top - of->low;
    const bool deep = range <= most;
    bounds b = {of->top, deep ? of->low : of->top - most, 0};
    b.scale = (float)BUCKETS / fmaxf(b.top - b.cut, 1e-30f);
    if (!finite(b.scale))
        b.scale = 0;
    count[t] = count[t + LIST_THREADS] = 0;
    if (t == 0) {
        reach = -1;
        taken = 0;
        lowest = 0xffffffffu;
    }
    __syncthreads();
    for (uint32_t i = t; i < a.width; i += AHEAD * LIST_THREADS) {
        float v[AHEAD];
        load(x, i, a.width, v);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int k = bucket_of(v[j], b);
            if (k >= 0)
                atomicAdd(&count[k], 1);
        }
    }
    __syncthreads();
    /* The last bucket that still fits, or the first with which there are enough. */
    const uint32_t upto = scan(count[2 * t] + count[2 * t + 1], warps), half = upto - count[2 * t + 1], before = half - count[2 * t];
    int best = -1;
    if (half <= KCU_LIST && before < want)
        best = 2 * (int)t;
    if (upto <= KCU_LIST && half < want)
        best = 2 * (int)t + 1;
    if (best >= 0)
        atomicMax(&reach, best);
    __syncthreads();
    const int upto_bucket = reach;
    uint32_t mine = 0xffffffffu;
    for (uint32_t i = t; i < a.width && upto_bucket >= 0; i += AHEAD * LIST_THREADS) {
        float v[AHEAD];
        load(x, i, a.width, v);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int k = bucket_of(v[j], b);
            if (k < 0 || k > upto_bucket)
                continue;
            const uint32_t to = atomicAdd(&taken, 1), u = __float_as_uint(v[j] == 0 ? 0.0f : v[j]);
            list[to].x = v[j];
            list[to].id = a.id0 + (int32_t)(i + j * LIST_THREADS);
            mine = min(mine, u >> 31 ? ~u : u | 0x80000000u);
        }
    }
    mine = __reduce_min_sync(0xffffffffu, mine);
    if (t % 32 == 0)
        atomicMin(&lowest, mine);
    __syncthreads();
    for (uint32_t i = t; i < taken; i += LIST_THREADS)
        a.likely[(size_t)row * KCU_LIST + i] = list[i];
    if (t != 0)
        return;
    a.out[row].n = taken;
    a.out[row].floor = taken == a.width                     ? -infinity()
                       : upto_bucket == BUCKETS - 1         ? b.cut
                       : taken == 0                         ? infinity()
                       : __uint_as_float(lowest >> 31 ? lowest & 0x7fffffffu : ~lowest);
}

extern "C" size_t kcu_likeliest_parts(uint32_t width)
{
    return (width + CHUNK - 1) / CHUNK;
}

extern "C" cudaError_t kcu_likeliest(const struct kcu_launch *l, const struct kcu_likeliest *a)
{
    const uint32_t chunks = (uint32_t)kcu_likeliest_parts(a->width);
    struct kcu_launch next = *l;
    if (a->n == 0 || a->width == 0)
        return cudaSuccess;
    cudaError_t e = launch(l, top_kernel, dim3(chunks, a->n), dim3(THREADS), 0, 0, *a, l->stamp);
    next.stamp = NULL;
    return e != cudaSuccess || a->list == NULL ? e : launch(&next, list_kernel, dim3(a->n), dim3(LIST_THREADS), 0, 0, *a, chunks, next.stamp);
}
