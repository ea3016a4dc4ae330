/* Weight formats as numbers: floats to blocks and back, and the int8 form that activations take before a quantised matmul.
 *
 * Pure functions over the caller's memory: any thread, no allocation. Blocks need no alignment. Nothing reads or writes past the n
 * elements it was told of. Multi-byte fields are little endian, and so must the machine be. */
#ifndef RANKSCOPE_KERNELS_QUANT_H
#define RANKSCOPE_KERNELS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/type.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- whole rows ---- */

/* n weights of a type that computes, n a multiple of its block, to floats. The reference: the format's own formula, operation by operation. */
void krn_dequant_row(uint32_t type, const void *src, float *dst, size_t n);

/* The opposite, for every type that encodes. Scales are searched by least squares. Weights must be finite: a block that holds an
 * infinity or a NaN comes back as garbage of that block. */
void krn_quant_row(uint32_t type, const float *src, void *dst, size_t n);

/* n weights made up: blocks of any type that computes with random codes and fixed scales, the weights' standard deviation about `scale`, a power
 * of two at best. Fast; deterministic in *seed, which moves on. */
void krn_quant_random(uint32_t type, uint64_t *seed, float scale, void *dst, size_t n);

/* Where a block of a quantised type has its half d and perhaps its half m (-1: no such half), the deviation of its weights with d = 1 and random codes,
 * and m / d that centres them. MXFP4 has a power of two and IQ1_M spreads its d; of these only the deviation counts. */
struct krn_quant_scales {
    int16_t d, m;
    float deviation, ratio;
};
struct krn_quant_scales krn_quant_scales(uint32_t type);

/* ---- the inside of a quantised row ---- */

/* Every quantised format is, group by group, w = a * (q - 2^zero_shift), or w = a * q - b where it has minima; q is 0..255. Group sizes are
 * 16 or 32. The products are rounded before the difference is taken, which makes the result equal the format's own formula to the bit. */
struct krn_quant_form {
    uint8_t group;      /* weights that share a and b */
    uint8_t zero_shift; /* the zero point is 1 << zero_shift; unused with minima */
    bool minima;        /* has b */
};
struct krn_quant_form krn_quant_form(uint32_t type);

/* Split n weights into q[n], a[n / group] and, with minima, b[n / group]. n is a multiple of the type's block. */
void krn_quant_split(uint32_t type, const void *src, size_t n, uint8_t *q, float *a, float *b);

/* ---- int8 activations ---- */

/* A row of k values, k a multiple of 32: int8 q[k], padding to 64 bytes, then one struct krn_q8_block per 32 values. Value = d * q. */
struct krn_q8_block {
    float d;             /* amax / 127; NaN if the block held an infinity or a NaN */
    float s;             /* d * sum of q */
    int32_t neg_sum;     /* -(sum of q): a zero point of 2^n is taken off by starting a dot product at neg_sum << n */
    int32_t neg_sum_low; /* the same for the first 16 */
};

static inline size_t krn_q8_blocks_offset(size_t k)
{
    return (k + 63) & ~(size_t)63;
}

/* Bytes of such a row; a multiple of 64. */
static inline size_t krn_q8_row_bytes(size_t k)
{
    return krn_q8_blocks_offset(k) + ((k / 32 * sizeof(struct krn_q8_block) + 63) & ~(size_t)63);
}

/* Quantise a row, nearest even. q8 is aligned to 64 bytes. Every ISA's version writes the same bits. */
void krn_q8_quant_row(const float *x, void *q8, size_t k);
/* A block whose largest magnitude has bit pattern max_bits < KRN_Q8_TINY counts as zero, for 127 / amax must stay finite; one with
 * max_bits >= KRN_Q8_INFINITE is NaN. This writes such a block; the versions for the vector units call it. */
#define KRN_Q8_TINY 0x0d800000u /* 2^-100 */
#define KRN_Q8_INFINITE 0x7f800000u
void krn_q8_odd_block(uint32_t max_bits, int8_t *q, struct krn_q8_block *block);
/* Back to floats: d * q. */
void krn_q8_dequant_row(const void *q8, float *x, size_t k);

/* ---- 16-bit floats ---- */

static inline uint32_t krn_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float krn_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Exact; a signalling NaN becomes quiet, as in hardware. */
static inline float krn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00)
        return krn_f32_from_bits(sign | 0x7f800000u | (mag & 0x3ffu) << 13 | (mag > 0x7c00 ? 0x400000u : 0));
    if (mag >= 0x400)
        return krn_f32_from_bits(sign | ((mag << 13) + 0x38000000u));
    return krn_f32_from_bits(sign | krn_f32_bits((float)mag * 0x1p-24f));
}

/* Nearest even; too large becomes infinity. */
static inline uint16_t krn_f32_to_f16(float f)
{
    uint32_t u = krn_f32_bits(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x477ff000u) /* 65520, half way between the largest half and the next that there would be */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) /* subnormal: adding 0.5 puts the unit of a half, 2^-24, in the last place, and the sum rounds to it */
        return (uint16_t)(sign | (krn_f32_bits(krn_f32_from_bits(u) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1) - 0x38000000u) >> 13);
}

static inline float krn_bf16_to_f32(uint16_t h)
{
    return krn_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t krn_f32_to_bf16(float f)
{
    uint32_t u = krn_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
