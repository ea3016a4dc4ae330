/* Weight types of GGUF files: numbers, names, block geometry. Immutable tables; any thread. */
#ifndef RANKSCOPE_KERNELS_TYPE_H
#define RANKSCOPE_KERNELS_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are the file format's own. */
enum krn_type {
    KRN_F32 = 0, KRN_F16 = 1, KRN_Q4_0 = 2, KRN_Q4_1 = 3, KRN_Q5_0 = 6, KRN_Q5_1 = 7, KRN_Q8_0 = 8,
    KRN_Q2_K = 10, KRN_Q3_K = 11, KRN_Q4_K = 12, KRN_Q5_K = 13, KRN_Q6_K = 14,
    KRN_IQ2_XXS = 16, KRN_IQ2_XS = 17, KRN_IQ3_XXS = 18, KRN_IQ1_S = 19, KRN_IQ4_NL = 20, KRN_IQ3_S = 21, KRN_IQ2_S = 22,
    KRN_IQ4_XS = 23, KRN_IQ1_M = 29, KRN_BF16 = 30, KRN_TQ1_0 = 34, KRN_TQ2_0 = 35, KRN_MXFP4 = 39,
    KRN_TYPE_MAX = 40,
};

struct krn_type_info {
    const char *name;     /* as the format writes it: "Q4_K" */
    uint16_t block_elems; /* weights per block: 1, 32 or 256 */
    uint16_t block_bytes; /* bytes per block */
    bool computes;        /* kernels exist; false: known by name, rejected by the loader */
    bool encodes;         /* krn_quant_row() writes it */
    bool quantised;       /* the int8 path applies (matmul=int8); false for F32, F16, BF16 */
};

/* NULL for a number that no known format has (removed ids, private ids, garbage). */
const struct krn_type_info *krn_type_info(uint32_t type);

/* Bytes of a row of n weights. n must be a multiple of the block; the caller has checked that type is known. */
size_t krn_row_bytes(uint32_t type, size_t n);

#ifdef __cplusplus
}
#endif
#endif
