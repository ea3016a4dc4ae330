/* Absorbed attention of many rows: queries into the latent space head by head, tiles of prompt rows, rows that were generated, mixtures out of it. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/heads.cuh"

enum { MIN_ROWS = 8, WIDE_ROWS = 64, FILL = 264 /* blocks that keep the device busy */, SLAB = 256 /* generated rows at a time where keys are split */, MAX_SPLITS = 32 };

/* Of attention's outputs as f16: what they are multiplied by, so that those from 4e-6 to 4,000 keep all bits. Latents are normed, so outputs are of the order of v_b's weights. */
static const float OUT_SCALE = 16;

/* Short prompts stay with the kernels that round least. */
static bool has_prompt(const struct kcu_mla *a)
{
    return a->b.prompt_tiles != 0;
}

/* Where all rows are generated half as many are enough. */
static uint32_t least(const struct kcu_mla *a, uint32_t rows)
{
    return has_prompt(a) ? rows : rows / 2;
}

bool mla_batch_takes(const struct kcu_mla *a)
{
    return a->many && (a->fixed || power_above(a->b.n) >= least(a, MIN_ROWS)) && a->l == FLASH_L && a->l + a->r == FLASH_D && a->cache_type == KCU_CACHE_F16 &&
           a->nope % 32 == 0 && a->v % 2 == 0 && a->b.lists != NULL;
}

/* Splits of a launch of `rows` generated rows, and their length (0: by the row's own keys). */
static uint32_t splits_of(uint32_t rows, uint32_t heads, uint32_t max_keys, bool fixed, uint32_t *length)
{
    if (fixed) {
        *length = 0;
        return max_keys > 512 * 16 ? 16 : (max_keys + 511) / 512;
    }
    const uint32_t keys = power_above(max_keys < 256 ? 256 : max_keys), blocks = power_above(rows) * ((heads + 63) / 64);
    uint32_t n = FILL / blocks;
    n = n < 1 ? 1 : n > MAX_SPLITS ? MAX_SPLITS : n;
    *length = ((keys + n - 1) / n + FLASH_KEYS - 1) / FLASH_KEYS * FLASH_KEYS;
    return (keys + *length - 1) / *length;
}

/* Asynchronous tensor cores: where a row's result may depend on the number of rows, and there are enough. */
static bool takes_wide(const struct kcu_mla *a)
{
    return !a->fixed && power_above(a->b.n) >= least(a, WIDE_ROWS) && a->nope <= FLASH_L && heads_async_takes(&a->k_b) && heads_async_takes(&a->v_b);
}

static size_t halfs(uint32_t rows, uint32_t heads)
{
    return (size_t)rows * heads * (FLASH_D + FLASH_L);
}

size_t mla_batch_scratch(uint32_t rows, uint32_t heads, uint32_t max_keys)
{
    /* splits * rows: either few rows and at most FILL blocks' worth, or fixed splits of a slab */
    const size_t slab = rows < SLAB ? rows : SLAB, fixed = slab * (max_keys > 512 * 16 ? 16 : (max_keys + 511) / 512), most = 2 * FILL + slab;
    return halfs(rows, heads) * sizeof(__half) + (fixed > most ? fixed : most) * heads * (FLASH_L + 2) * sizeof(float);
}

static cudaError_t generated(const struct kcu_launch *l, const struct kcu_mla *a, struct flash_args *f)
{
    const uint32_t n = f->sel != NULL ? a->b.n : a->b.generated;
    uint32_t keys = a->b.max_keys;
    if (f->sel != NULL && keys > a->top_k)
        keys = a->top_k;
    f->splits = splits_of(n, a->heads, keys, a->fixed, &f->split_keys);
    const uint32_t step = f->splits > 1 && n > SLAB ? SLAB : n;
    for (f->row0 = 0; f->row0 < n; f->row0 += step) {
        f->rows = n - f->row0 < step ? n - f->row0 : step;
        cudaError_t e = flash_generated(l, f);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

/* Mixtures out of the latent space, with the int8 form where a few rows are. */
static struct heads_gemm carry_out(const struct kcu_mla *a, const __half *mix)
{
    const struct kcu_launch l = {.fixed = a->fixed || has_prompt(a)};
    struct heads_gemm out = {};
    out.m = a->v_b;
    out.x = mix;
    out.x_half = true;
    out.x_pitch = (size_t)a->heads * FLASH_L;
    out.x_head = FLASH_L;
    out.y = a->o;
    out.y_pitch = a->o_pitch;
    out.y_head = a->v;
    out.scale = 1;
    out.n = a->b.n;
    out.q8 = !takes_wide(a) && heads_few_takes(&l, &out) ? a->q8 : NULL;
    out.q8_pitch = a->q8_pitch;
    return out;
}

cudaError_t mla_batch(const struct kcu_launch *l, const struct kcu_mla *a)
{
    if (a->half != NULL && !kcu_mla_leaves_halves(a))
        return cudaErrorInvalidValue;
    __half *q = (__half *)a->scratch, *mix = q + (size_t)a->b.n * a->heads * FLASH_D;
    const float scale = a->scale * 1.44269504f; /* log2 e: powers of two are cheaper */
    const struct heads_gemm absorb = {.m = a->k_b,
                                      .x = a->q,
                                      .x_half = false,
                                      .x_pitch = a->q_pitch,
                                      .x_head = a->nope + a->r,
                                      .y = q,
                                      .y_half = true,
                                      .y_pitch = (size_t)a->heads * FLASH_D,
                                      .y_head = FLASH_D,
                                      .scale = scale,
                                      .n = a->b.n};
    const struct heads_pe pe = {.b = a->b,
                                .rope = a->rope,
                                .rotate = a->rotate,
                                .q = a->q + a->nope,
                                .q_pitch = a->q_pitch,
                                .q_head = a->nope + a->r,
                                .y = q + FLASH_L,
                                .y_pitch = absorb.y_pitch,
                                .y_head = FLASH_D,
                                .heads = a->heads,
                                .scale = scale};
    struct kcu_launch first = *l, next;
    first.fixed = a->fixed || has_prompt(a);
    next = first;
    next.stamp = NULL;
    const bool wide = takes_wide(a);
    cudaError_t e;
    if (wide) {
        struct heads_gemm in = absorb;
        in.x = mix; /* which nobody needs yet */
        in.x_pitch = (size_t)a->heads * a->nope;
        in.x_head = a->nope;
        e = heads_split(&first, a->q, a->q_pitch, a->nope + a->r, a->nope, a->b.n, mix, &pe);
        if (e == cudaSuccess)
            e = heads_async_run(&next, &in);
    } else {
        e = heads_run(&first, &absorb, &pe);
    }
    const bool sparse = a->sel != NULL && a->b.max_keys > a->top_k;
    struct flash_args f = {};
    f.b = a->b;
    f.q = q;
    f.cache = a->cache;
    f.mix = mix;
    f.part = (float *)(mix + (size_t)a->b.n * a->heads * FLASH_L);
    f.heads = a->heads;
    f.sel = sparse ? a->sel : NULL;
    f.sel_pitch = a->sel_pitch;
    f.top_k = a->top_k;
    f.halves = wide;
    if (e == cudaSuccess && !sparse && a->b.prompt_tiles != 0)
        e = wide ? flash_async_prompt(&next, &f, a->b.prompt_tiles) : flash_prompt(&next, &f, a->b.prompt_tiles);
    if (e == cudaSuccess && (sparse || a->b.generated != 0))
        e = generated(&next, a, &f);
    struct heads_gemm out = carry_out(a, mix);
    if (a->half != NULL) {
        out.y = a->half;
        out.y_half = out.order = true;
        out.y_pitch = a->half_pitch;
        out.scale = OUT_SCALE;
        out.factors = a->half_scale;
    }
    return e != cudaSuccess ? e : wide ? heads_async_run(&next, &out) : heads_run(&next, &out, NULL);
}

extern "C" bool kcu_mla_leaves_halves(const struct kcu_mla *a)
{
    return mla_batch_takes(a) && takes_wide(a);
}

extern "C" bool kcu_mla_leaves_int8(const struct kcu_mla *a)
{
    return !mla_batch_takes(a) || carry_out(a, NULL).q8 != NULL;
}

extern "C" uint32_t kcu_mla_tile_rows(uint32_t heads)
{
    return flash_rows(heads);
}

extern "C" bool kcu_mla_on_cores(const struct kcu_mla *a)
{
    return mla_batch_takes(a);
}
