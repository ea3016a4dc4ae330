/* heads_run() for a few rows: a warp has 16 weight rows of a head, all of which it asks for before its predecessor has ended, and unpacks them once for all rows
 * of activations. */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/heads.cuh"

enum {
    WARPS = 2 /* one int8 block of outputs */,
    THREADS = 32 * WARPS,
    OUT = FEW_ROWS * WARPS,
    MAX_STEPS = 4,
    STEP = 128 /* of K */,
    MAX_GROUPS = HEADS_FEW_ROWS / FEW_COLS
};

typedef fmt<KRN_Q8_0> F;

/* A lane's 32 weights of two rows as operands, UP times what they are. */
static __device__ __forceinline__ void weights_of(const F::raw (&r)[2], uint32_t sixes, uint32_t w[8][4])
{
    const uint32_t d[2] = {few_twice(half_of(r[0].d) * UP), few_twice(half_of(r[1].d) * UP)};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t h[2][2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            few_halves(word_of(r[j].v, i), d[j], sixes, h[j]);
        w[i][0] = h[0][0], w[i][1] = h[1][0], w[i][2] = h[0][1], w[i][3] = h[1][1];
    }
}

/* Eight neighbouring activations from x on, as f16. */
template <bool HALF> static __device__ __forceinline__ uint4 eight_of(const void *x, size_t at)
{
    if (HALF)
        return *(const uint4 *)((const __half *)x + at);
    const float4 a = *(const float4 *)((const float *)x + at), b = *(const float4 *)((const float *)x + at + 4);
    return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
}

/* blockIdx: weight rows (and one more: pe), head. C: groups of eight rows of activations. */
template <bool XHALF, bool YHALF, int C>
static __global__ void __launch_bounds__(THREADS)
    heads_few_kernel(const __grid_constant__ heads_gemm g, const __grid_constant__ heads_pe pe, uint32_t sixes, uint64_t *at)
{
    __shared__ float out[YHALF ? 1 : FEW_COLS * C][OUT + 1];
    const uint32_t h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4, w0 = blockIdx.x * OUT,
                   row0 = w0 + warp * FEW_ROWS, units = g.m.k / F::W;
    F::raw r[MAX_STEPS][2];
    pdl_release();
    if (w0 >= g.m.rows) {
        pdl_wait();
        rotated(pe, h, 0, g.n, THREADS);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = row0 + lane / 4 + 8 * i;
        const uint8_t *w = g.m.w + h * g.m.mat_pitch + (size_t)(row < g.m.rows ? row : g.m.rows - 1) * g.m.pitch;
#pragma unroll
        for (uint32_t s = 0; s < MAX_STEPS; s++)
            if (4 * s < units)
                F::fetch<EARLY>(w, g.m.k, 4 * s + q < units ? 4 * s + q : units - 1, r[s][i]);
    }
    float acc[C][4] = {};
    pdl_wait();
    stamp(at);
#pragma unroll
    for (uint32_t s = 0; s < MAX_STEPS; s++) {
        if (4 * s >= units)
            break;
        const bool on = 4 * s + q < units;
        uint32_t w[8][4];
        weights_of(r[s], sixes, w);
#pragma unroll
        for (int c = 0; c < C; c++) {
            const uint32_t col = c * FEW_COLS + lane / 4;
            const size_t x = (size_t)(col < g.n ? col : g.n - 1) * g.x_pitch + h * g.x_head + (on ? 4 * s + q : 0) * F::W;
            uint4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = on ? eight_of<XHALF>(g.x, x + 8 * i) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < 8; i++)
                mma_f16(acc[c], w[i], word_of(v, 2 * i), word_of(v, 2 * i + 1));
        }
    }
    const float scale = g.scale * (1.0f / UP);
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
            const uint32_t col = c * FEW_COLS + q * 2 + v % 2, o = warp * FEW_ROWS + lane / 4 + v / 2 * 8;
            if (!YHALF)
                out[col][o] = acc[c][v] * scale;
            else if (col < g.n && w0 + o < g.m.rows)
                ((__half *)g.y)[(size_t)col * g.y_pitch + h * g.y_head + w0 + o] = __float2half_rn(acc[c][v] * scale);
        }
    if (YHALF)
        return;
    __syncthreads();
    for (uint32_t col = warp; col < g.n; col += WARPS) {
        const float v = out[YHALF ? 0 : col][lane];
        if (w0 + lane < g.m.rows)
            ((float *)g.y)[(size_t)col * g.y_pitch + h * g.y_head + w0 + lane] = v;
        if (g.q8 != nullptr)
            q8_block32(v, g.q8 + col * g.q8_pitch, g.m.n_mats * g.m.rows, h * g.m.rows + w0, lane);
    }
}

template <bool XHALF, bool YHALF> static cudaError_t start(const struct kcu_launch *l, const heads_gemm *g, const heads_pe *pe)
{
    const dim3 grid((g->m.rows + OUT - 1) / OUT + (pe != NULL), g->m.n_mats);
    const heads_pe p = pe != NULL ? *pe : heads_pe{};
    const uint32_t sixes = 0x64646464u;
    return g->n <= FEW_COLS ? launch(l, heads_few_kernel<XHALF, YHALF, 1>, grid, dim3(THREADS), 0, 0, *g, p, sixes, l->stamp)
                            : launch(l, heads_few_kernel<XHALF, YHALF, MAX_GROUPS>, grid, dim3(THREADS), 0, 0, *g, p, sixes, l->stamp);
}

bool heads_few_takes(const struct kcu_launch *l, const struct heads_gemm *g)
{
    return !l->fixed && g->n <= HEADS_FEW_ROWS && g->m.type == KRN_Q8_0 && g->m.k <= MAX_STEPS * STEP && g->m.k % 32 == 0 &&
           g->x_half != g->y_half && (!g->y_half ? g->m.rows % OUT == 0 : g->q8 == NULL) && g->x_pitch % 8 == 0 && g->x_head % 8 == 0;
}

cudaError_t heads_few(const struct kcu_launch *l, const struct heads_gemm *g, const struct heads_pe *pe)
{
    return g->x_half ? start<true, false>(l, g, pe) : start<false, true>(l, g, pe);
}
