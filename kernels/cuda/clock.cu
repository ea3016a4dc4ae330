/* Two GPUs' clocks side by side: one thread on each, answering each other over peer memory. Half of the shortest round trip bounds the error. */
#include "kernels/cuda/common.cuh"

static __global__ void ping_kernel(struct kcu_ping a)
{
    volatile uint64_t *mine = a.mine, *theirs = a.theirs;
    const uint64_t begin = now_ns();
    for (uint32_t i = 0; i < a.n; i++) {
        const uint64_t word = a.base + i + 1;
        uint64_t sent = now_ns(), seen;
        if (a.asks)
            *theirs = word;
        while (*mine < word)
            if (now_ns() - begin > a.timeout_ns) {
                *(volatile uint64_t *)(a.sent + a.n) = 1; /* too late: the caller throws all away */
                return;
            }
        seen = now_ns();
        if (!a.asks)
            *theirs = word;
        *(volatile uint64_t *)(a.sent + i) = sent;
        *(volatile uint64_t *)(a.seen + i) = seen;
    }
}

extern "C" cudaError_t kcu_ping(const struct kcu_launch *l, const struct kcu_ping *a)
{
    return launch(l, ping_kernel, dim3(1), dim3(1), 0, 0, *a);
}
