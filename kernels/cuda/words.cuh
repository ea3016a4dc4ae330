/* Words that pass from one kernel of a step to the next without the latter waiting for the former's end: each says beside its value which op of which step
 * it is of. Whoever has seen a kernel's words knows that everything before that kernel has ended, if that kernel itself waits. */
#ifndef RANKSCOPE_KERNELS_CUDA_WORDS_CUH
#define RANKSCOPE_KERNELS_CUDA_WORDS_CUH

#include "kernels/cuda/common.cuh"

/* Known from the start: the step's number is there before its first kernel. */
static __device__ __forceinline__ uint32_t tag_of(const struct kcu_words &w)
{
    return *(volatile const uint32_t *)w.step + w.tag;
}

static __device__ __forceinline__ void pass(uint64_t *to, uint32_t value, uint32_t tag)
{
    asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(to), "r"(value), "r"(tag) : "memory");
}

/* Wait for a word that may not have been passed yet. */
static __device__ __forceinline__ uint32_t await_passed(const uint64_t *from, uint32_t tag)
{
    uint32_t value, has;
    do
        asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(value), "=r"(has) : "l"(from) : "memory");
    while (has != tag);
    return value;
}

#endif
