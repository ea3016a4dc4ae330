/* One clock for all GPUs. Each GPU's own runs at its own rate and from its own zero; pairs of them exchange words now and then, between steps, and
 * what lies in the middle of the shortest exchange is taken as the same moment. Between two calibrations the last rate is carried on. */
#include "engine/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/now.h"

enum { EXCHANGES = 64 };
static const double AGAIN_US = 1e6; /* a crystal is off by some 1e-5: a second without calibration is a few us, most of which the rate takes away */

enum rs_result cuda_clock_open(struct cuda_gpu *g, struct rs_error *err)
{
    cudaError_t e = cudaMalloc((void **)&g->ping, KCU_MAX_GPUS * sizeof *g->ping);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(g->ping, 0, KCU_MAX_GPUS * sizeof *g->ping, g->stream);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&g->pinged, (2 * EXCHANGES + 2) * sizeof *g->pinged, cudaHostAllocMapped);
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "clock buffers", g->device);
}

void cuda_clock_close(struct cuda_gpu *g)
{
    (void)cudaFree(g->ping);
    (void)cudaFreeHost(g->pinged);
}

/* GPU 0 asks, GPU c->clock.with answers; the others have nothing to do. */
static void job_ping(struct cuda_gpu *g)
{
    struct cuda *c = g->c;
    const uint32_t with = c->clock.with;
    if (g->index != 0 && g->index != with)
        return;
    struct cuda_gpu *peer = &c->gpu[g->index == 0 ? with : 0];
    const struct kcu_launch l = {.stream = g->stream};
    const struct kcu_ping a = {.mine = g->ping + peer->index,
                               .theirs = peer->ping + g->index,
                               .base = c->clock.base,
                               .n = EXCHANGES,
                               .asks = g->index == 0,
                               .timeout_ns = 50 * 1000 * 1000,
                               .sent = g->pinged,
                               .seen = g->pinged + EXCHANGES + 1};
    g->pinged[EXCHANGES] = 0;
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = kcu_ping(&l, &a);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    if (e != cudaSuccess)
        g->rc = cuda_fail(&g->err, e, "comparing clocks", g->device);
}

/* From the exchanges that have just run. */
static void settle(struct cuda *c, struct cuda_gpu *g)
{
    const struct cuda_gpu *first = &c->gpu[0];
    uint64_t best = UINT64_MAX, at = 0;
    int64_t offset = 0;
    for (uint32_t i = 1; i < EXCHANGES; i++) { /* the first one waited for the launch */
        const uint64_t sent = first->pinged[i], back = first->pinged[EXCHANGES + 1 + i], there = g->pinged[EXCHANGES + 1 + i];
        if (back - sent >= best)
            continue;
        best = back - sent;
        at = there;
        offset = (int64_t)(sent + best / 2) - (int64_t)there;
    }
    g->clock_rate = g->clock_at != 0 && at > g->clock_at ? (double)(offset - g->clock_offset) / (double)(at - g->clock_at) : 0;
    if (g->clock_rate > 1e-3 || g->clock_rate < -1e-3) /* no crystal: somebody set a clock */
        g->clock_rate = 0;
    g->clock_at = at;
    g->clock_offset = offset;
    g->clock_error_ns = (uint32_t)(best / 2);
}

enum rs_result cuda_clock_align(struct cuda *c, struct rs_error *err)
{
    const double now = (double)now_us();
    if (c->n_gpus < 2 || (c->clock.at_us > 0 && now - c->clock.at_us < AGAIN_US))
        return RS_OK;
    c->clock.at_us = now;
    for (uint32_t i = 1; i < c->n_gpus; i++) {
        c->clock.with = i;
        enum rs_result rc = cuda_all(c, job_ping, err);
        c->clock.base += EXCHANGES;
        if (rc != RS_OK)
            return rc;
        if (c->gpu[0].pinged[EXCHANGES] == 0 && c->gpu[i].pinged[EXCHANGES] == 0)
            settle(c, &c->gpu[i]);
    }
    return RS_OK;
}

double cuda_clock_us(const struct cuda_gpu *g, uint64_t ns, uint64_t zero)
{
    const double rate = g->clock_rate * ((double)(int64_t)(ns - g->clock_at));
    return g->index == 0 ? (double)(int64_t)(ns - zero) * 1e-3 : ((double)((int64_t)(ns - zero) + g->clock_offset) + rate) * 1e-3;
}
