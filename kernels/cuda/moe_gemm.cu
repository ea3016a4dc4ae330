/* Experts for many rows: pairs (row, slot) sorted by expert and cut into tiles on the device, products of every expert's tiles, activation, sum. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gemm.cuh"

enum {
    MAX_EXPERTS = 512,
    GROUP_THREADS = 1024,
    GROUP_LOADS = 8, /* that a thread has under way */
    GROUP_BLOCKS = 8,
    GROUP_ALONE = 1024, /* pairs of one block */
    BOXES_LEAST = 2, /* rows of an expert */
    BOXES_MOST = 128
};

/* Rows per tile. Half as many again as the average, since routing is uneven; wide ones where they are filled. */
static uint32_t tile_of(uint32_t n, uint32_t n_used, uint32_t n_experts, bool boxes)
{
    const size_t pairs = (size_t)n * n_used;
    if (boxes)
        return GEMM_EXPERTS_ROWS;
    if (pairs * 3 / 2 <= (size_t)GEMM_SMALL_ROWS * n_experts)
        return GEMM_SMALL_ROWS;
    return 2 * pairs >= (size_t)GEMM_WIDE_ROWS * n_experts && gemm_wide_here() ? GEMM_WIDE_ROWS : GEMM_LARGE_ROWS;
}

/* Every expert has at least one pair per tile and all tiles but one filled more than half. */
static uint32_t tiles_bound(uint32_t n, uint32_t n_used, uint32_t n_experts, uint32_t tile)
{
    const size_t pairs = (size_t)n * n_used, cut = pairs / tile + n_experts;
    return (uint32_t)(cut < pairs ? cut : pairs);
}

/* Experts of this rank that pairs p, p + GROUP_THREADS and so on go to; UINT32_MAX past the end. */
static __device__ __forceinline__ void experts_of(const int32_t *ids, size_t ids_pitch, uint32_t n_used, uint32_t expert0, uint32_t p, uint32_t pairs,
                                                  uint32_t x[GROUP_LOADS])
{
#pragma unroll
    for (int i = 0; i < GROUP_LOADS; i++) {
        const uint32_t at = p + i * GROUP_THREADS;
        x[i] = at < pairs ? (uint32_t)ids[at / n_used * ids_pitch + at % n_used] - expert0 : UINT32_MAX;
    }
}

/* plan: tiles ([0] and three words each), entries -> row, entries -> pair. One block, or a cluster that shares the pairs. */
static __global__ void __launch_bounds__(GROUP_THREADS)
    group_kernel(const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used, uint32_t expert0, uint32_t n_experts, uint32_t tile,
                 int32_t *tiles, int32_t *from, int32_t *to, uint64_t *at)
{
    __shared__ int32_t count[MAX_EXPERTS], start[MAX_EXPERTS];
    __shared__ int2 sum[2][MAX_EXPERTS]; /* entries and tiles of experts up to this one */
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t all = n * n_used, each = (all + gridDim.x - 1) / gridDim.x, p0 = blockIdx.x * each, pairs = p0 + each < all ? p0 + each : all, e = threadIdx.x;
    if (e < MAX_EXPERTS)
        count[e] = 0;
    __syncthreads();
    for (uint32_t p = p0 + e; p < pairs; p += GROUP_THREADS * GROUP_LOADS) {
        uint32_t x[GROUP_LOADS];
        experts_of(ids, ids_pitch, n_used, expert0, p, pairs, x);
#pragma unroll
        for (int i = 0; i < GROUP_LOADS; i++)
            if (x[i] < n_experts)
                atomicAdd(&count[x[i]], 1);
    }
    int32_t mine = 0, before = 0; /* of this expert, by all blocks, and by those before this one */
    if (gridDim.x > 1)
        cluster_meet();
    else
        __syncthreads();
    for (uint32_t b = 0; b < gridDim.x && e < MAX_EXPERTS; b++) {
        const int32_t v = gridDim.x > 1 ? __float_as_int(fetch_from(at_block(count + e, b))) : count[e];
        mine += v;
        before += b < blockIdx.x ? v : 0;
    }
    const int32_t cut = (mine + (int32_t)tile - 1) / (int32_t)tile;
    if (e < MAX_EXPERTS)
        sum[0][e] = make_int2(mine, cut);
    __syncthreads();
    int now = 0;
    for (uint32_t o = 1; o < MAX_EXPERTS; o *= 2, now ^= 1) {
        if (e < MAX_EXPERTS) {
            int2 v = sum[now][e];
            if (e >= o)
                v.x += sum[now][e - o].x, v.y += sum[now][e - o].y;
            sum[now ^ 1][e] = v;
        }
        __syncthreads();
    }
    if (e < MAX_EXPERTS) {
        const int32_t first = sum[now][e].x - mine;
        const int32_t per = cut > 0 ? ((mine + cut - 1) / cut + 15) / 16 * 16 : 0; /* of about the same size */
        int32_t t = sum[now][e].y - cut;
        start[e] = first + before;
        for (int32_t i = 0; i < cut && blockIdx.x == 0; i++, t++) {
            tiles[1 + 3 * t] = (int32_t)e;
            tiles[2 + 3 * t] = first + i * per;
            tiles[3 + 3 * t] = mine - i * per < per ? mine - i * per : per;
        }
    }
    if (e == MAX_EXPERTS - 1 && blockIdx.x == 0)
        tiles[0] = sum[now][e].y;
    __syncthreads();
    for (uint32_t p = p0 + e; p < pairs; p += GROUP_THREADS * GROUP_LOADS) {
        uint32_t x[GROUP_LOADS];
        experts_of(ids, ids_pitch, n_used, expert0, p, pairs, x);
#pragma unroll
        for (int i = 0; i < GROUP_LOADS; i++) {
            if (x[i] >= n_experts)
                continue;
            const int32_t to_at = atomicAdd(&start[x[i]], 1); /* the order inside an expert changes no result: entries do not meet */
            from[to_at] = (int32_t)((p + i * GROUP_THREADS) / n_used);
            to[to_at] = (int32_t)(p + i * GROUP_THREADS);
        }
    }
    if (gridDim.x > 1)
        cluster_meet(); /* nobody leaves while others read */
}

/* Words before the entries, whatever the tile. */
static size_t tile_words(uint32_t n, uint32_t n_used, uint32_t n_experts)
{
    return 1 + 3 * ((size_t)n * n_used / GEMM_SMALL_ROWS + n_experts);
}

extern "C" size_t kcu_group_words(uint32_t n, uint32_t n_used, uint32_t n_experts)
{
    return tile_words(n, n_used, n_experts) + 2 * (size_t)n * n_used;
}

extern "C" cudaError_t kcu_group(const struct kcu_launch *l, const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used,
                                 uint32_t expert0, uint32_t n_experts, bool boxes, int32_t *plan)
{
    int32_t *from = plan + tile_words(n, n_used, n_experts);
    if (n_experts > MAX_EXPERTS)
        return cudaErrorInvalidValue;
    const uint32_t blocks = n * n_used > GROUP_ALONE && gemm_wide_here() ? GROUP_BLOCKS : 1;
    return launch(l, group_kernel, dim3(blocks), dim3(GROUP_THREADS), 0, blocks, ids, ids_pitch, n, n_used, expert0, n_experts,
                  tile_of(n, n_used, n_experts, boxes), plan, from, from + (size_t)n * n_used, l->stamp);
}

static bool together(const struct kcu_launch *l, const struct kcu_grouped *a, uint32_t tile)
{
    return a->n_mats == 2 && a->m[0].type == a->m[1].type && a->m[0].k == a->m[1].k &&
           (a->boxes ? a->m[0].rows == a->m[1].rows : tile == GEMM_WIDE_ROWS || (a->m[0].k % 128 == 0 && !l->fixed && gemm_async_here()));
}

/* For how many rows of an expert boxes are faster, as measured: with more the wide tiles of gemm_wide.cu are better. A row's bits differ from those that the
 * other products give it: where they must not depend on the number of rows, those do all. */
extern "C" bool kcu_grouped_boxes(const struct kcu_launch *l, const struct kcu_mat *m, uint32_t n, uint32_t n_used)
{
    const size_t pairs = (size_t)power_above(n) * n_used;
    return !l->fixed && pairs >= (size_t)BOXES_LEAST * m->n_mats && pairs <= (size_t)BOXES_MOST * m->n_mats && gemm_experts_takes(m);
}

extern "C" bool kcu_grouped_acts(const struct kcu_grouped *a)
{
    return a->boxes && together(NULL, a, GEMM_EXPERTS_ROWS);
}

extern "C" uint32_t kcu_gemm_grouped_kernels(const struct kcu_launch *l, const struct kcu_grouped *a)
{
    return together(l, a, tile_of(a->n, a->n_used, a->m[0].n_mats, a->boxes)) ? 1 : a->n_mats;
}

extern "C" cudaError_t kcu_gemm_grouped(const struct kcu_launch *l, const struct kcu_grouped *a)
{
    const uint32_t n_experts = a->m[0].n_mats, tile = tile_of(a->n, a->n_used, n_experts, a->boxes), tiles = tiles_bound(a->n, a->n_used, n_experts, tile);
    int32_t *from = a->plan + tile_words(a->n, a->n_used, n_experts), *to = from + (size_t)a->n * a->n_used;
    const bool async = !l->fixed && gemm_async_here(), few = tile == GEMM_SMALL_ROWS;
    const struct gemm_how how = {few && a->m[0].type == KRN_Q4_K ? FORM_FEW : few ? FORM_FEW_WIDE : FORM_MANY, tile, 1};
    struct kcu_launch next = *l;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        struct gemm g = {.m = a->m[i],
                         .h = (const __half *)a->in.h,
                         .h_pitch = a->in.h_pitch,
                         .h_scale = a->in.h_scale,
                         .y = a->y != NULL ? a->y + a->col[i] : NULL,
                         .y_pitch = a->y_pitch,
                         .n = 0,
                         .accumulate = false,
                         .tiles = a->plan,
                         .from = a->per_pair ? to : from,
                         .to = to};
        const bool both = together(l, a, tile);
        if (both) {
            g.second = a->m[1];
            g.second_y = a->y != NULL ? a->y + a->col[1] : NULL;
        }
        cudaError_t e = a->boxes                          ? gemm_experts_run(&next, &g, both ? a->act : NULL, a->act_pitch, tiles)
                        : tile == GEMM_WIDE_ROWS        ? gemm_wide_run(&next, &g, tile, tiles)
                        : async && a->m[i].k % 128 == 0 ? gemm_async_run(&next, &g, &how, tiles)
                                                        : gemm_run(&next, &g, few ? GEMM_SMALL : GEMM_LARGE, tile, tiles);
        if (e != cudaSuccess || both)
            return e;
        next.stamp = NULL;
    }
    return cudaSuccess;
}

/* y[row] = sum of weight * part[pair] over the row's experts, in ascending order of expert. V: columns of a thread. */
template <int V>
static __global__ void combine_kernel(const float *part, size_t part_pitch, const int32_t *ids, const float *weights, size_t ids_pitch,
                                      uint32_t n_used, uint32_t expert0, uint32_t n_experts, float *y, size_t y_pitch, uint32_t width,
                                      uint64_t *at)
{
    struct __align__(4 * V) piece {
        float v[V];
    };
    __shared__ int32_t order[64];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.y, col = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int32_t *e = ids + row * ids_pitch;
    if (threadIdx.x < n_used) {
        uint32_t o = 0;
        for (uint32_t i = 0; i < n_used; i++)
            o += e[i] < e[threadIdx.x];
        order[o] = (int32_t)threadIdx.x;
    }
    __syncthreads();
    if (col >= width)
        return;
    piece sum = {};
#pragma unroll 4
    for (uint32_t i = 0; i < n_used; i++) {
        const uint32_t s = (uint32_t)order[i];
        if ((uint32_t)e[s] - expert0 >= n_experts)
            continue;
        const float weight = weights[row * ids_pitch + s];
        const piece p = *(const piece *)(part + ((size_t)row * n_used + s) * part_pitch + col);
#pragma unroll
        for (int c = 0; c < V; c++)
            sum.v[c] += weight * p.v[c];
    }
    *(piece *)(y + row * y_pitch + col) = sum;
}

template <int V> static cudaError_t combine(const struct kcu_launch *l, const float *part, size_t part_pitch, const struct kcu_down *d)
{
    enum { THREADS = 128 };
    return launch(l, combine_kernel<V>, dim3((d->width + THREADS * V - 1) / (THREADS * V), d->n), dim3(THREADS), 0, 0, part, part_pitch, d->ids, d->weights,
                  d->ids_pitch, d->n_used, d->expert0, d->down.n_mats, d->y, d->y_pitch, d->width, l->stamp);
}

extern "C" cudaError_t kcu_combine(const struct kcu_launch *l, const float *part, size_t part_pitch, const struct kcu_down *d)
{
    const bool fours = d->width % 4 == 0 && part_pitch % 4 == 0 && d->y_pitch % 4 == 0 && ((size_t)part | (size_t)d->y) % 16 == 0;
    return fours ? combine<4>(l, part, part_pitch, d) : combine<1>(l, part, part_pitch, d);
}
