/* Between the files that take blocks apart. Only kernels/quant*.c include this. */
#ifndef RANKSCOPE_KERNELS_QUANT_IMPL_H
#define RANKSCOPE_KERNELS_QUANT_IMPL_H

#include "kernels/quant.h"

static inline float quant_half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return krn_f16_to_f32(h);
}

/* One block: codes to q, scales to a (one per group of the type's form). */
void quant_split_mxfp4(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_tq1_0(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_tq2_0(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq2_xxs(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq2_xs(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq2_s(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq3_xxs(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq3_s(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq1_s(const uint8_t *p, uint8_t *q, float *a, float *b);
void quant_split_iq1_m(const uint8_t *p, uint8_t *q, float *a, float *b);

#endif
