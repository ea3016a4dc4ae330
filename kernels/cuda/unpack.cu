/* Weights as f16 for products of many rows whose operands both lie in shared memory (gemm_half.cu): the very values that the other kernels make
 * on their way, times UP, in the order of kcu_halve(). Rows are ordered likewise within 16, so that there a thread has four neighbouring results
 * of an activation row. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"

enum { BK = 64, UNITS = 64, THREADS = UNITS * 4 };

/* A block makes UNITS units of 64 weights, those of a row one after the other, a thread words j and j + 4 of every 32 codes. What is read
 * depends on nobody; the room may still be read from by the launch before. */
template <int T> static __global__ void __launch_bounds__(THREADS) unpack_kernel(struct kcu_mat m, __half *to, uint64_t *at)
{
    typedef steps<T, BK> S;
    __shared__ __align__(16) uint8_t in[UNITS * S::STRIDE];
    __shared__ uint4 out[UNITS * 8];
    const uint32_t per_row = m.k / BK, n = m.rows * per_row, first = blockIdx.x * UNITS, unit = threadIdx.x / 4, j = threadIdx.x % 4;
    pdl_release();
#pragma unroll
    for (uint32_t i = threadIdx.x; i < UNITS * S::PIECES; i += THREADS) {
        const uint32_t u = i / S::PIECES, at_unit = first + u;
        if (at_unit < n)
            S::fetch(in + u * S::STRIDE, m.w + (size_t)(at_unit / per_row) * m.pitch, m.k, at_unit % per_row * BK, i % S::PIECES);
    }
    copies_wait_all();
    __syncthreads();
    const uint32_t k0 = (first + unit) % per_row * BK;
    const uint8_t *r = in + unit * S::STRIDE;
    const uint2 s = S::scales(r, k0, 0);
    typename S::raw x;
    S::load(r, k0, 0, j, x);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        uint32_t h[4];
        S::halves(x, g, s, h);
#pragma unroll
        for (int i = 0; i < 4; i++)
            ((uint32_t *)&out[unit * 8 + ((4 * g + i) ^ unit % 8)])[j] = h[i];
    }
    __syncthreads();
    pdl_wait();
    stamp(at);
#pragma unroll
    for (uint32_t i = threadIdx.x; i < UNITS * 8; i += THREADS) {
        const uint32_t u = i / 8, at_unit = first + u, row = at_unit / per_row;
        if (at_unit < n)
            *(uint4 *)(to + (size_t)gemm_half_row(row) * m.k + at_unit % per_row * BK + i % 8 * 8) = out[u * 8 + (i % 8 ^ u % 8)];
    }
}

template <int T> static cudaError_t start(const struct kcu_launch *l, const struct kcu_mat *m, __half *to)
{
    const uint32_t n = m->rows * (m->k / BK);
    return launch(l, unpack_kernel<T>, dim3((n + UNITS - 1) / UNITS), dim3(THREADS), 0, 0, *m, to, l->stamp);
}

extern "C" cudaError_t kcu_unpack(const struct kcu_launch *l, const struct kcu_mat *m, uint16_t *to)
{
    switch (m->type) {
    case KRN_Q8_0: return start<KRN_Q8_0>(l, m, (__half *)to);
    case KRN_Q4_K: return start<KRN_Q4_K>(l, m, (__half *)to);
    case KRN_Q5_K: return start<KRN_Q5_K>(l, m, (__half *)to);
    case KRN_Q6_K: return start<KRN_Q6_K>(l, m, (__half *)to);
    default: return cudaErrorInvalidValue;
    }
}
