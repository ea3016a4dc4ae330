/* Rows of any type as f32: what looks tokens up, and what expands heads. */
#ifndef RANKSCOPE_KERNELS_CUDA_VALUES_CUH
#define RANKSCOPE_KERNELS_CUDA_VALUES_CUH

#include "kernels/cuda/formats.cuh"

template <class V>
static __device__ __forceinline__ void values_as(const uint8_t *w, uint32_t k, uint32_t first, uint32_t all, float *to, size_t step)
{
    for (uint32_t u = first; u < k / V::W; u += all) {
        typename V::raw raw;
        float v[V::W];
        V::fetch(w, k, u, raw);
        V::values(raw, u, v);
#pragma unroll
        for (int j = 0; j < V::W; j++)
            to[(size_t)(u * V::W + j) * step] = v[j];
    }
    for (uint32_t j = k / V::W * V::W + first; j < k; j += all)
        to[j * step] = tail_value<V>(w, j);
}

/* The k weights of a row, one every `step` floats: the part of this thread, `first` of `all` that share the row. */
static __device__ __forceinline__ void values_of(uint32_t type, const uint8_t *w, uint32_t k, uint32_t first, uint32_t all, float *to, size_t step)
{
    switch (type) {
    case KRN_F32: values_as<plain_f32>(w, k, first, all, to, step); break;
    case KRN_F16: values_as<plain_16<false>>(w, k, first, all, to, step); break;
    case KRN_BF16: values_as<plain_16<true>>(w, k, first, all, to, step); break;
#define X(T)                                                                                                                               \
    case T: values_as<as_values<T>>(w, k, first, all, to, step); break;
        KCU_EACH_QUANT(X)
#undef X
    default: break;
    }
}

#endif
