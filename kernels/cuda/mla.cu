/* Absorbed attention of few rows with few keys in one launch: a cluster of eight blocks per head and row.
 *
 * Every block carries an eighth of the query into the latent space and posts it to the others, attends to every eighth tile of keys, posts its
 * mixture to the others, joins all mixtures and carries its eighth of the outputs out. What does not depend on the predecessor - the weights' part of
 * this block and all keys but a lone row's newest - is on its way before the predecessor has ended. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/cluster.cuh"

enum { BLOCKS = 8, THREADS = 256, L = 512, R = 64, D = L + R, NEAR_SPLITS = 32, NEAR_ROWS = 8, MAX_NOPE = 256, MAX_V = 32 * BLOCKS };

struct mixture {
    float o[L], top, sum, unused[2];
};

struct room {
    uint64_t queries, mixtures; /* barriers: what other blocks post has come */
    __align__(16) __half key[TILE][D];
    const __half *at[TILE];
    __align__(16) float absorbed[L / BLOCKS]; /* this block's part of q */
    __align__(16) float q[D];
    float nope[MAX_NOPE / 32 * F32_STRIDE];
    float mixed[L / 32 * F32_STRIDE];
    float score[TILE], prob[THREADS / 32][TILE], result[32];
    mixture mine[NEAR_SPLITS / BLOCKS];
    mixture part[1]; /* one per split */
};

static __device__ __forceinline__ void copy16(void *to, const void *from, bool there)
{
    const uint32_t n = there ? 16 : 0; /* zeros where there is nothing */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(n)
                 : "memory");
}

static __device__ __forceinline__ void copies_done()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Start the copies of the keys from `first` on, `n` of them; `skip`: not that one. Afterwards zeros up to a whole tile. */
static __device__ __forceinline__ void copy_keys(room &s, const struct kcu_mla &a, uint32_t row, uint32_t first, uint32_t n, uint32_t skip)
{
    if (threadIdx.x < TILE)
        s.at[threadIdx.x] = (const __half *)a.cache + page_row(a.b, row, first + (threadIdx.x < n ? threadIdx.x : 0)) * D;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < TILE * (D / 8); i += THREADS) {
        const uint32_t k = i / (D / 8), c = i % (D / 8) * 8;
        if (first + k != skip)
            copy16(&s.key[k][c], s.at[k] + c, k < n);
    }
}

/* Scores of the tile's keys, four a warp; then every warp makes the probabilities for itself. Returns this lane's. */
static __device__ __forceinline__ float weigh(room &s, uint32_t n, float *top, float *sum)
{
    enum { KEYS = TILE / (THREADS / 32) };
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float v[KEYS] = {};
#pragma unroll
    for (uint32_t i = 0; i < D; i += 64) {
        const float2 q = *(const float2 *)(s.q + i + 2 * lane);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float2 k = pair_of(&s.key[warp * KEYS + j][i + 2 * lane]);
            v[j] = fmaf(k.y, q.y, fmaf(k.x, q.x, v[j]));
        }
    }
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        v[j] = warp_sum(v[j], 32);
        if (lane == 0)
            s.score[warp * KEYS + j] = warp * KEYS + j < n ? v[j] : -INFINITY;
    }
    __syncthreads();
    const float x = s.score[lane];
    *top = warp_max(x, 32);
    const float e = expf(x - *top);
    *sum = warp_sum(e, 32);
    return e;
}

/* The mixture of one tile to every block of the cluster. */
static __device__ __forceinline__ void mix(room &s, uint32_t split, uint32_t n)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = 2 * threadIdx.x;
    mixture &mine = s.mine[split / BLOCKS];
    float top, sum, acc[2][2] = {};
    s.prob[warp][lane] = weigh(s, n, &top, &sum);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) {
            const int j = half * (TILE / 2) + i;
            const float2 v = pair_of(&s.key[j][dim]);
            const float p = s.prob[warp][j];
            acc[half][0] = fmaf(p, v.x, acc[half][0]);
            acc[half][1] = fmaf(p, v.y, acc[half][1]);
        }
    *(float2 *)(mine.o + dim) = make_float2(acc[0][0] + acc[1][0], acc[0][1] + acc[1][1]);
    if (threadIdx.x == 0)
        mine.top = top, mine.sum = sum;
    before_post();
    __syncthreads();
    if (threadIdx.x < BLOCKS)
        post(at_block(&s.part[split], threadIdx.x), &mine, sizeof mine, at_block(&s.mixtures, threadIdx.x));
}

/* All splits to one mixture. */
static __device__ __forceinline__ void join(room &s, uint32_t n)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float top = lane < n ? s.part[lane].top : -INFINITY, m = warp_max(top, 32), w = lane < n ? expf(top - m) : 0,
                z = 1.0f / warp_sum(lane < n ? __fmul_rn(w, s.part[lane].sum) : 0, 32);
    s.prob[warp][lane] = __fmul_rn(w, z);
    __syncwarp();
    float x[2] = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        const float p = s.prob[warp][i];
        x[0] = fmaf(p, s.part[i].o[threadIdx.x], x[0]);
        x[1] = fmaf(p, s.part[i].o[threadIdx.x + THREADS], x[1]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t i = threadIdx.x + j * THREADS;
        s.mixed[i / 32 * F32_STRIDE + i % 32] = x[j];
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS, 3) near_kernel(const __grid_constant__ struct kcu_mla a, uint64_t *at)
{
    typedef fmt<KRN_Q8_0> F;
    extern __shared__ __align__(16) uint8_t shared[];
    room &s = *(room *)shared;
    const uint32_t self = blockIdx.x, h = blockIdx.y, row = blockIdx.z, t = threadIdx.x, sub = t % 8, line = t / 8;
    pdl_release();
    F::raw kb[2], vb[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (sub < a.nope / 32)
            F::fetch(a.k_b.w + h * a.k_b.mat_pitch + (size_t)(self * (L / BLOCKS) + 2 * line + i) * a.k_b.pitch, a.nope, sub, kb[i]);
    const uint32_t out = self * 32 + line;
    const bool carries = out < a.v; /* the whole block or none */
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (carries)
            F::fetch(a.v_b.w + h * a.v_b.mat_pitch + (size_t)out * a.v_b.pitch, L, sub + 8 * i, vb[i]);
    const uint32_t pos = (uint32_t)a.b.pos[row], keys = pos + 1, splits = (keys + TILE - 1) / TILE;
    if (t == 0) {
        inbox_init(&s.queries, L * sizeof(float));
        inbox_init(&s.mixtures, splits * sizeof(mixture));
    }
    cluster_arrive();
    const uint32_t first = self * TILE, n0 = self >= splits ? 0 : keys - first < TILE ? keys - first : TILE;
    const bool alone = a.b.n == 1;
    float co = 1, si = 0;
    if (a.rotate && t < R / 2) {
        co = a.rope.cos[(size_t)pos * (R / 2) + t];
        si = a.rope.sin[(size_t)pos * (R / 2) + t];
    }
    if (alone && n0 != 0)
        copy_keys(s, a, row, first, n0, pos);
    pdl_wait();
    stamp(at);
    if (!alone && n0 != 0)
        copy_keys(s, a, row, first, n0, UINT32_MAX);
    else if (n0 != 0 && pos - first < n0 && t < D / 8)
        copy16(&s.key[pos - first][t * 8], s.at[pos - first] + t * 8, true);
    float *q = a.q + row * a.q_pitch + (size_t)h * (a.nope + R), *pe = q + a.nope, x = 0, y = 0;
    if (t < a.nope)
        s.nope[t / 32 * F32_STRIDE + t % 32] = q[t];
    if (t < R / 2) {
        x = pe[2 * t], y = pe[2 * t + 1];
        if (a.rotate)
            rotate(&x, &y, co, si);
        s.q[L + 2 * t] = x * a.scale;
        s.q[L + 2 * t + 1] = y * a.scale;
    }
    __syncthreads();
    float absorbed[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        absorbed[i] = warp_sum(sub < a.nope / 32 ? unit_values<KRN_Q8_0>(kb[i], sub, s.nope, 0.0f) : 0.0f, 8) * a.scale;
    cluster_wait();
    if (sub == 0)
        *(float2 *)(s.absorbed + 2 * line) = make_float2(absorbed[0], absorbed[1]);
    before_post();
    copies_done();
    __syncthreads();
    if (t < BLOCKS)
        post(at_block(s.q + self * (L / BLOCKS), t), s.absorbed, sizeof s.absorbed, at_block(&s.queries, t));
    receive(&s.queries);
    if (self == 0 && a.rotate && t < R / 2) { /* in place, now that all blocks have read it */
        pe[2 * t] = x;
        pe[2 * t + 1] = y;
    }
    for (uint32_t split = self; split < splits; split += BLOCKS) {
        const uint32_t k0 = split * TILE, n = keys - k0 < TILE ? keys - k0 : TILE;
        if (split != self) {
            __syncthreads();
            copy_keys(s, a, row, k0, n, UINT32_MAX);
            copies_done();
            __syncthreads();
        }
        mix(s, split, n);
    }
    receive(&s.mixtures);
    cluster_arrive(); /* nobody leaves while copies of its memory are on their way */
    if (!carries) {
        cluster_wait();
        return;
    }
    join(s, splits);
    float acc = unit_values<KRN_Q8_0>(vb[0], sub, s.mixed, 0.0f);
    acc = warp_sum(unit_values<KRN_Q8_0>(vb[1], sub + 8, s.mixed, acc), 8);
    if (sub == 0) {
        s.result[line] = acc;
        a.o[row * a.o_pitch + (size_t)h * a.v + out] = acc;
    }
    __syncthreads();
    if (a.q8 != nullptr && t < 32)
        q8_block32(s.result[t], a.q8 + row * a.q8_pitch, a.heads * a.v, h * a.v + self * 32, t);
    cluster_wait();
}

bool mla_near_takes(const struct kcu_mla *a)
{
    int device, major = 0; /* clusters exist from compute capability 9 on */
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9 && !a->apart && a->b.n <= NEAR_ROWS && a->b.max_keys <= NEAR_SPLITS * TILE && a->l == L && a->r == R &&
           a->cache_type == KCU_CACHE_F16 && (a->sel == NULL || a->b.max_keys <= a->top_k) && a->k_b.type == KRN_Q8_0 &&
           a->v_b.type == KRN_Q8_0 && a->nope % 32 == 0 && a->nope <= MAX_NOPE && a->v % 32 == 0 && a->v <= MAX_V;
}

cudaError_t mla_near(const struct kcu_launch *l, const struct kcu_mla *a, uint32_t splits)
{
    const size_t bytes = sizeof(room) + (splits - 1) * sizeof(mixture), most = sizeof(room) + (NEAR_SPLITS - 1) * sizeof(mixture);
    cudaError_t e = cudaFuncSetAttribute(near_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
    if (e != cudaSuccess)
        return e;
    return launch(l, near_kernel, dim3(BLOCKS, a->heads, a->b.n), dim3(THREADS), bytes, BLOCKS, *a, l->stamp);
}
