/* Activations as f16 for the products of many rows: a power of two per row brings its largest value near 2^11, so that no value overflows and none that
 * counts is lost. Within 16 neighbours the order is that of gemm.cu: of every four, the first two go to the first eight. */
#include "kernels/cuda/halve.cuh"

enum { THREADS = 256, KEPT = 4 };

/* Columns col to col + 3 of what is to become f16: of the row, or (GATED) silu(x[i]) * x[width + i]. */
template <bool GATED> static __device__ __forceinline__ float4 value_at(const float *row, uint32_t width, uint32_t col)
{
    const float4 v = *(const float4 *)(row + col);
    if (!GATED)
        return v;
    const float4 b = *(const float4 *)(row + width + col);
    return make_float4(silu(v.x) * b.x, silu(v.y) * b.y, silu(v.z) * b.z, silu(v.w) * b.w);
}

/* GATED: the values are also written to y, where there is one. A thread keeps its first ones between the search for the largest and the end. */
template <bool GATED>
static __global__ void __launch_bounds__(THREADS)
    halve_kernel(const float *x, size_t pitch, uint32_t width, float *y, size_t y_pitch, __half *h, size_t h_pitch, float *scale, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const float *row = x + blockIdx.x * pitch;
    float *out = GATED && y != nullptr ? y + blockIdx.x * y_pitch : nullptr;
    __half *to = h + blockIdx.x * h_pitch;
    float4 kept[KEPT];
    uint32_t m = 0;
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) {
        const uint32_t col = 4 * (threadIdx.x + i * THREADS);
        if (col >= width)
            break;
        kept[i] = value_at<GATED>(row, width, col);
        if (out != nullptr)
            *(float4 *)(out + col) = kept[i];
        m = largest(kept[i], m);
    }
    for (uint32_t col = 4 * (threadIdx.x + KEPT * THREADS); col < width; col += 4 * THREADS) {
        const float4 v = value_at<GATED>(row, width, col);
        if (out != nullptr)
            *(float4 *)(out + col) = v;
        m = largest(v, m);
    }
    const float f = factor_of(block_max(m));
    if (threadIdx.x == 0)
        scale[blockIdx.x] = 1.0f / f;
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) {
        const uint32_t col = 4 * (threadIdx.x + i * THREADS);
        if (col >= width)
            break;
        put_halves(kept[i], f, to, col);
    }
    for (uint32_t col = 4 * (threadIdx.x + KEPT * THREADS); col < width; col += 4 * THREADS)
        put_halves(value_at<GATED>(row, width, col), f, to, col);
}

extern "C" cudaError_t kcu_halve(const struct kcu_launch *l, const float *x, size_t pitch, uint32_t width, uint32_t n, uint16_t *h, size_t h_pitch,
                                 float *scale)
{
    if (n == 0 || width == 0)
        return cudaSuccess;
    if (width % 16 != 0 || pitch % 4 != 0)
        return cudaErrorInvalidValue;
    return launch(l, halve_kernel<false>, dim3(n), dim3(THREADS), 0, 0, x, pitch, width, (float *)NULL, (size_t)0, (__half *)h, h_pitch, scale,
                  l->stamp);
}

extern "C" cudaError_t kcu_act(const struct kcu_launch *l, const float *gu, size_t gu_pitch, uint32_t half, uint32_t n, float *y, size_t y_pitch,
                               uint16_t *h, size_t h_pitch, float *scale)
{
    if (n == 0 || half == 0)
        return cudaSuccess;
    if (half % 16 != 0 || gu_pitch % 4 != 0 || y_pitch % 4 != 0)
        return cudaErrorInvalidValue;
    return launch(l, halve_kernel<true>, dim3(n), dim3(THREADS), 0, 0, gu, gu_pitch, half, y, y_pitch, (__half *)h, h_pitch, scale, l->stamp);
}
