/* Tensor core instructions on f16 operands, and asynchronous copies. */
#ifndef RANKSCOPE_KERNELS_CUDA_TENSOR_CUH
#define RANKSCOPE_KERNELS_CUDA_TENSOR_CUH

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ uint32_t smem_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* N bytes, 4, 8 or 16, at addresses that are multiples of N. */
template <int N> static __device__ __forceinline__ void copy_async(void *to, const void *from)
{
    if (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_of(to)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem_of(to)), "l"(from), "n"(N) : "memory");
}

static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N groups of copies are on their way. */
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Until all copies of the calling thread have come. */
static __device__ __forceinline__ void copies_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Four matrices of 8 x 16 bytes; every lane gives the address of a row. */
static __device__ __forceinline__ void ldmatrix4(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_of(p)));
}

static __device__ __forceinline__ void ldmatrix4_trans(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_of(p)));
}

/* c += a b: 16 x 16 times 16 x 8. */
static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
