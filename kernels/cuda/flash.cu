/* Attention of many rows of one sequence over an f16 cache, on tensor cores: 64 rows of one head against tiles of 64 keys, online softmax in f32,
 * queries and probabilities rounded to f16. Works on absorbed queries (latent 512 + rotated 64) and leaves normalised mixtures of latents. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/flash.cuh"

enum { ROWS = 64, KEYS = 64, D = 576, L = 512, THREADS = 256, QK_STRIDE = D + 8, P_STRIDE = KEYS + 8, S_STRIDE = KEYS + 4 };

struct flash_shared {
    __half q[ROWS][QK_STRIDE], k[KEYS][QK_STRIDE], p[ROWS][P_STRIDE];
    float s[ROWS][S_STRIDE];
    float grow[ROWS], top[ROWS], sum[ROWS];
    const __half *key[KEYS];
};

static __device__ __forceinline__ uint32_t smem_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void ldm(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_of(p)));
}

static __device__ __forceinline__ void ldm_trans(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_of(p)));
}

static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __global__ void __launch_bounds__(THREADS, 1) flash_kernel(const __grid_constant__ struct flash_args a)
{
    extern __shared__ __align__(16) uint8_t raw_shared[];
    flash_shared &s = *(flash_shared *)raw_shared;
    pdl_release();
    pdl_wait();
    const uint32_t h = blockIdx.y, row0 = (gridDim.x - 1 - blockIdx.x) * ROWS,
                   rows = a.b.n - row0 < ROWS ? a.b.n - row0 : ROWS; /* long rows first */
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % 4 * 16, wn = warp / 4;
    for (uint32_t i = threadIdx.x; i < ROWS * (D / 4); i += THREADS) {
        const uint32_t r = i / (D / 4), c = i % (D / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (r < rows)
            v = *(const float4 *)(a.q + ((size_t)(row0 + r) * a.heads + h) * D + c);
        *(__half2 *)&s.q[r][c] = __floats2half2_rn(v.x * a.scale, v.y * a.scale);
        *(__half2 *)&s.q[r][c + 2] = __floats2half2_rn(v.z * a.scale, v.w * a.scale);
    }
    if (threadIdx.x < ROWS) {
        s.top[threadIdx.x] = -INFINITY;
        s.sum[threadIdx.x] = 0;
    }
    const uint32_t keys = (uint32_t)a.b.pos[row0 + rows - 1] + 1, mine = threadIdx.x / 4;
    const int32_t own = mine < rows ? a.b.pos[row0 + mine] : -1;
    float o[L / 16][4] = {};
    for (uint32_t t = 0; t < keys; t += KEYS) {
        __syncthreads(); /* the previous tile has been used */
        if (threadIdx.x < KEYS)
            s.key[threadIdx.x] = (const __half *)a.cache + page_row(a.b, row0, t + threadIdx.x < keys ? t + threadIdx.x : t) * D;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
            const uint32_t r = i / (D / 8), c = i % (D / 8) * 8;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_of(&s.k[r][c])), "l"(s.key[r] + c) : "memory");
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        float c[4][4] = {};
#pragma unroll 4
        for (uint32_t kk = 0; kk < D / 16; kk++) {
            uint32_t x[4];
            ldm(x, &s.q[wm + lane % 16][kk * 16 + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                uint32_t y[4];
                ldm(y, &s.k[wn * 32 + n * 8 + lane / 16 * 8 + lane % 8][kk * 16 + lane / 8 % 2 * 8]);
                mma(c[n], x, y[0], y[1]);
                mma(c[n + 1], x, y[2], y[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t col = wn * 32 + n * 8 + lane % 4 * 2;
            *(float2 *)&s.s[wm + lane / 4][col] = make_float2(c[n][0], c[n][1]);
            *(float2 *)&s.s[wm + lane / 4 + 8][col] = make_float2(c[n][2], c[n][3]);
        }
        __syncthreads();
        { /* four threads per row */
            const uint32_t k0 = threadIdx.x % 4 * 16;
            float v[16], m = -INFINITY, z = 0;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                v[j] = (int32_t)(t + k0 + j) <= own ? s.s[mine][k0 + j] : -INFINITY;
                m = fmaxf(m, v[j]);
            }
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            const float before = s.top[mine];
            m = fmaxf(m, before);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const float p0 = v[j] == -INFINITY ? 0 : __expf(v[j] - m), p1 = v[j + 1] == -INFINITY ? 0 : __expf(v[j + 1] - m);
                const __half2 p = __floats2half2_rn(p0, p1);
                z += __low2float(p) + __high2float(p); /* what is summed is what is multiplied */
                *(__half2 *)&s.p[mine][k0 + j] = p;
            }
            z += __shfl_xor_sync(0xffffffffu, z, 1);
            z += __shfl_xor_sync(0xffffffffu, z, 2);
            if (threadIdx.x % 4 == 0) {
                const float g = before == -INFINITY ? 0 : __expf(before - m);
                s.grow[mine] = g;
                s.sum[mine] = s.sum[mine] * g + z;
                s.top[mine] = m;
            }
        }
        __syncthreads();
        const float g0 = s.grow[wm + lane / 4], g1 = s.grow[wm + lane / 4 + 8];
#pragma unroll
        for (int n = 0; n < L / 16; n++)
            o[n][0] *= g0, o[n][1] *= g0, o[n][2] *= g1, o[n][3] *= g1;
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++) {
            uint32_t x[4];
            ldm(x, &s.p[wm + lane % 16][kk * 16 + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < L / 16; n += 2) {
                uint32_t y[4];
                ldm_trans(y, &s.k[kk * 16 + lane / 8 % 2 * 8 + lane % 8][wn * (L / 2) + n * 8 + lane / 16 * 8]);
                mma(o[n], x, y[0], y[1]);
                mma(o[n + 1], x, y[2], y[3]);
            }
        }
    }
    const uint32_t r = wm + lane / 4;
    const float z0 = r < rows ? 1.0f / s.sum[r] : 0, z1 = r + 8 < rows ? 1.0f / s.sum[r + 8] : 0;
#pragma unroll
    for (int n = 0; n < L / 16; n++) {
        const uint32_t col = wn * (L / 2) + n * 8 + lane % 4 * 2;
        if (r < rows)
            *(float2 *)(a.out + ((size_t)(row0 + r) * a.heads + h) * L + col) = make_float2(o[n][0] * z0, o[n][1] * z0);
        if (r + 8 < rows)
            *(float2 *)(a.out + ((size_t)(row0 + r + 8) * a.heads + h) * L + col) = make_float2(o[n][2] * z1, o[n][3] * z1);
    }
}

cudaError_t flash_run(const struct kcu_launch *l, const struct flash_args *a)
{
    cudaError_t e = cudaFuncSetAttribute(flash_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(flash_shared));
    if (e != cudaSuccess)
        return e;
    return launch(l, flash_kernel, dim3((a->b.n + ROWS - 1) / ROWS, a->heads), dim3(THREADS), sizeof(flash_shared), 0, *a);
}
