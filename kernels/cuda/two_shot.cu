/* A sum over ranks of several GPUs in two shots, for long messages. Every GPU owns a part of the values: all send it their summands of that
 * part (plain data, no packets), it adds them and writes the sums into every rank's buffer. So 2 (n - 1) / n of a message leave each of n GPUs,
 * where one shot sends n - 1 packed ones. Sums are added in order of rank, from summands rounded as one shot rounds them, and travel as f32: the
 * bits are those of one shot.
 *
 * Block b of every GPU has the same places of every part, so GPUs meet block by block. They meet twice. Who may touch what, and why:
 *
 *   summands sent for reduce e   into memory that is for nothing else. The peers have read those of e - 1: this GPU's kernel of e - 1 has
 *                                ended, so its blocks have met theirs for the second time, which those come to after reading.
 *   meeting 0 of block b         all summands of block b's places are there, and all peers have read their own buffers there (they had to send
 *                                what they read).
 *   sums written into buffers    after meeting 0, so nobody reads there any more; into the places of block b of the writer's part, which are no
 *                                other's.
 *   meeting 1 of block b         all sums of block b's places are there, so a kernel that ends leaves a whole buffer, and nobody writes to it
 *                                from there on.
 *
 * A flag holds the epoch of the last meeting, which only grows. There is one for every meeting, block and sender, so none is written again before
 * it has been seen: for meeting 0 of e + 1 a peer has left meeting 1 of e, where this block came after having seen meeting 0 of e. Lengths,
 * payloads and so partitions may change from one reduce to the next, since between two of them lies the end of a kernel, and packets of one shot
 * share nothing but epochs. Order: data is written with plain stores, then comes the block's barrier, then one thread's fence and release at the
 * system's scope; the peer's thread acquires, then comes its block's barrier. Loads of what others wrote pass by the first-level cache, which may
 * hold what lay there in the reduce before. */
#include "kernels/cuda/reduce.cuh"

enum { THREADS = 512, AT_ONCE = 8 };

static __device__ __forceinline__ void tell(uint32_t *p, uint32_t e)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(e) : "memory");
}

static __device__ __forceinline__ uint32_t told(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Meet this block of all other GPUs. A thread per peer; one that stays away sets the fault, and from then on nobody waits. */
static __device__ __forceinline__ void meet(const struct kcu_two_shot &a, uint32_t which, uint32_t e)
{
    const uint32_t g = threadIdx.x, place = (which * KCU_TWO_SHOT_BLOCKS + blockIdx.x) * KCU_MAX_GPUS;
    __syncthreads();
    if (g < a.n_gpus && g != a.gpu) {
        __threadfence_system(); /* what the other threads wrote before the barrier, too */
        tell(a.flags[g] + place + a.gpu, e);
        uint32_t spins = 0;
        uint64_t t0 = 0;
        while ((int32_t)(told(a.flags[a.gpu] + place + g) - e) < 0) { /* further on: the others gave up waiting for this GPU */
            if ((++spins & 1023) != 0)
                continue;
            if (*(volatile uint32_t *)a.fault != 0)
                break;
            if (t0 == 0)
                t0 = now_ns();
            else if (now_ns() - t0 > a.timeout_ns)
                *(volatile uint32_t *)a.fault = (a.ordinal + 1) | (uint32_t)a.rank_of[g] << 24;
        }
    }
    __syncthreads();
}

/* Values in units of four, of GPU g: [first, first + count). */
static __device__ __forceinline__ size_t first_of(const struct kcu_two_shot &a, uint32_t g)
{
    return a.n / 4 * g / a.n_gpus;
}

static __device__ __forceinline__ void send_summand(const struct kcu_two_shot &a, uint32_t g, uint32_t rank, size_t at, float4 v)
{
    const size_t i = rank * a.room + at - first_of(a, g);
    if (a.bf16)
        *((uint2 *)a.sent[g] + i) = make_uint2(bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w) << 16);
    else
        *((float4 *)a.sent[g] + i) = v;
}

/* What rank's GPU sent of the value at. Read once, and past any cache that could hold what lay there before. */
static __device__ __forceinline__ float4 summand(const struct kcu_two_shot &a, uint32_t rank, size_t at)
{
    const size_t i = rank * a.room + at - first_of(a, a.gpu);
    if (a.bf16) {
        const uint2 d = __ldcv((const uint2 *)a.sent[a.gpu] + i);
        return make_float4(__uint_as_float(d.x << 16), __uint_as_float(d.x & 0xffff0000u), __uint_as_float(d.y << 16),
                           __uint_as_float(d.y & 0xffff0000u));
    }
    return __ldcv((const float4 *)a.sent[a.gpu] + i);
}

static __device__ __forceinline__ float4 sum_of(const struct kcu_two_shot &a, size_t at)
{
    float4 sum = make_float4(0, 0, 0, 0);
    for (uint32_t r0 = 0; r0 < a.n_ranks; r0 += AT_ONCE) {
        float4 v[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t r = r0 + i;
            if (r >= a.n_ranks)
                continue;
            if (a.gpu_of[r] == a.gpu) {
                v[i] = *((const float4 *)a.part[r] + at);
                if (a.bf16)
                    v[i] = bf16_round(v[i]);
            } else {
                v[i] = summand(a, r, at);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (r0 + i < a.n_ranks)
                sum = r0 + i == 0 ? v[i] : sum + v[i];
    }
    return sum;
}

static __global__ void __launch_bounds__(THREADS, 1) two_shot_kernel(const __grid_constant__ struct kcu_two_shot a, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    if (a.delay_ns != 0 && a.delay_rank >= (int32_t)a.rank0 && a.delay_rank < (int32_t)(a.rank0 + a.n_local))
        for (const uint64_t t0 = now_ns(); now_ns() - t0 < a.delay_ns;)
            ;
    stamp(at);
    const uint32_t e = *(volatile const uint32_t *)a.epoch + a.ordinal;
    const size_t step = (size_t)gridDim.x * THREADS, self = (size_t)blockIdx.x * THREADS + threadIdx.x;
    for (uint32_t g = 0; g < a.n_gpus; g++) {
        if (g == a.gpu)
            continue;
        const size_t from = first_of(a, g), to = first_of(a, g + 1);
        for (uint32_t r = a.rank0; r < a.rank0 + a.n_local; r++)
#pragma unroll 4
            for (size_t i = from + self; i < to; i += step)
                send_summand(a, g, r, i, *((const float4 *)a.part[r] + i));
    }
    meet(a, 0, e);
    const size_t from = first_of(a, a.gpu), to = first_of(a, a.gpu + 1);
#pragma unroll 2
    for (size_t i = from + self; i < to; i += step) {
        const float4 v = sum_of(a, i);
        for (uint32_t r = 0; r < a.n_ranks; r++)
            *((float4 *)a.part[r] + i) = v;
    }
    meet(a, 1, e);
    if (a.ready != nullptr && (threadIdx.x | blockIdx.x) == 0)
        *(volatile uint64_t *)a.ready = now_ns();
}

extern "C" cudaError_t kcu_two_shot(const struct kcu_launch *l, const struct kcu_two_shot *a)
{
    if (a->n == 0)
        return cudaSuccess;
    if (a->n % 4 != 0 || a->n_gpus < 2 || a->room < (a->n / 4 + a->n_gpus - 1) / a->n_gpus)
        return cudaErrorInvalidValue;
    size_t blocks = (a->n / 4 / a->n_gpus + THREADS - 1) / THREADS; /* the same on every GPU, and all of them resident at once */
    blocks = blocks < 1 ? 1 : blocks > a->max_blocks ? a->max_blocks : blocks;
    return launch(l, two_shot_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, 0, *a, l->stamp);
}
