/* See head.h. Rows of Q8_0 are summed in the order of one_row_kernel() in linear.cu: LPR lanes a row, DEPTH units of each in flight. There blocks come and go, and
 * each begins with a wait for its weights; here all blocks are resident from beginning to end, and while a row is multiplied the next one is on its way. Every warp
 * has neighbouring rows and keeps their sums until it has 32, so that they go to host memory in few pieces. */
#include "kernels/cuda/head.h"
#include "kernels/cuda/dot.cuh"

enum { HEAD_THREADS = 256, HEAD_PER_SM = 2, HEAD_LEAST = 4 /* rows of a lane */ };

template <int LPR, int DEPTH>
static __global__ void __launch_bounds__(HEAD_THREADS, HEAD_PER_SM) head_kernel(const __grid_constant__ struct kcu_linear a, float *host, uint64_t *at)
{
    typedef fmt<KRN_Q8_0> F;
    enum { SIDE = 32 / LPR /* rows side by side in a warp */, KEEP = 32 / SIDE };
    extern __shared__ __align__(16) uint8_t xs[];
    pdl_release();
    const struct kcu_mat &m = a.m[0];
    const uint32_t lane = threadIdx.x % 32, sub = lane % LPR, groups = (m.rows + SIDE - 1) / SIDE, warps = gridDim.x * (HEAD_THREADS / 32);
    const uint32_t warp = blockIdx.x * (HEAD_THREADS / 32) + threadIdx.x / 32, share = groups / warps, over = groups % warps;
    uint32_t g = warp * share + (warp < over ? warp : over);
    const uint32_t end = g + share + (warp < over);
    float *const y = a.y + a.col[0];
    F::raw r[DEPTH];
    const uint8_t *row = m.w + (size_t)min(g * SIDE + lane / LPR, m.rows - 1) * m.pitch;
    if (g < end)
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            F::fetch<EARLY>(row, m.k, sub + i * LPR, r[i]);
    pdl_wait();
    stamp(at);
    staged<F>::load(a.in.q8, m.k, xs, threadIdx.x, HEAD_THREADS);
    __syncthreads();
    while (g < end) {
        const uint32_t first = g * SIDE;
        float mine = 0;
        for (uint32_t n = 0; n < KEEP && g < end; n++, g++) {
            float acc = 0;
            row = m.w + (size_t)min((g + 1) * SIDE + lane / LPR, m.rows - 1) * m.pitch;
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                const uint32_t u = sub + i * LPR;
                int q[F::W / 4];
                float d[1], none[1];
                F::unpack(r[i], u, q, d, none);
                if (g + 1 < end)
                    F::fetch(row, m.k, u, r[i]);
                const uint8_t *x = xs + u * staged<F>::STRIDE;
                acc = unit_q8<F>(q, d, none, x, x + F::W, acc);
            }
            const float v = __shfl_sync(0xffffffffu, warp_sum(acc, LPR), lane % SIDE * LPR);
            mine = lane / SIDE == n ? v : mine;
        }
        if (first + lane < min(g * SIDE, m.rows)) {
            y[first + lane] = mine;
            if (host != nullptr)
                host[first + lane] = mine;
        }
    }
}

/* Lanes of a row if those of one_row_kernel() have exactly so many units each; 0: another shape. */
static uint32_t lanes_of(uint32_t k)
{
    return k == 16 * 4 * 32 ? 16 : k == 32 * 6 * 32 ? 32 : 0;
}

extern "C" bool kcu_head_fits(const struct kcu_linear *a)
{
    const struct kcu_mat *m = &a->m[0];
    return a->n == 1 && a->n_mats == 1 && m->w != NULL && m->type == KRN_Q8_0 && m->rows != 0 && a->in.q8 != NULL && a->pre.x == NULL && a->x == NULL &&
           !a->accumulate && lanes_of(m->k) != 0 && lanes_of(m->k) == lanes_for(KRN_Q8_0, m->k, true);
}

extern "C" bool kcu_head_takes(const struct kcu_linear *a)
{
    return kcu_head_fits(a) && a->m[0].rows >= HEAD_LEAST * multiprocessors() * HEAD_PER_SM * HEAD_THREADS / lanes_of(a->m[0].k);
}

template <int LPR, int DEPTH> static cudaError_t head(const struct kcu_launch *l, const struct kcu_linear *a, float *host)
{
    return launch(l, head_kernel<LPR, DEPTH>, dim3(HEAD_PER_SM * multiprocessors()), dim3(HEAD_THREADS), staged_bytes(KRN_Q8_0, a->m[0].k), 0, *a, host, l->stamp);
}

extern "C" cudaError_t kcu_head(const struct kcu_launch *l, const struct kcu_linear *a, float *host)
{
    if (!kcu_head_fits(a))
        return cudaErrorInvalidValue;
    return lanes_of(a->m[0].k) == 16 ? head<16, 4>(l, a, host) : head<32, 6>(l, a, host);
}
