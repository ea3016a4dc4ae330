/* The table of weight types. */
#include "kernels/type.h"

#define TYPE(id, elems, bytes, has_encoder, is_quantised)                                                                                  \
    [KRN_##id] = {                                                                                                                         \
        .name = #id, .block_elems = (elems), .block_bytes = (bytes), .computes = true, .encodes = (has_encoder), .quantised = (is_quantised)}

static const struct krn_type_info types[KRN_TYPE_MAX] = {
    TYPE(F32, 1, 4, true, false),
    TYPE(F16, 1, 2, true, false),
    TYPE(BF16, 1, 2, true, false),
    TYPE(Q4_0, 32, 18, true, true),
    TYPE(Q4_1, 32, 20, true, true),
    TYPE(Q5_0, 32, 22, true, true),
    TYPE(Q5_1, 32, 24, true, true),
    TYPE(Q8_0, 32, 34, true, true),
    TYPE(Q2_K, 256, 84, true, true),
    TYPE(Q3_K, 256, 110, true, true),
    TYPE(Q4_K, 256, 144, true, true),
    TYPE(Q5_K, 256, 176, true, true),
    TYPE(Q6_K, 256, 210, true, true),
    TYPE(IQ4_NL, 32, 18, true, true),
    TYPE(IQ4_XS, 256, 136, true, true),
    TYPE(IQ2_XXS, 256, 66, false, true),
    TYPE(IQ2_XS, 256, 74, false, true),
    TYPE(IQ2_S, 256, 82, false, true),
    TYPE(IQ3_XXS, 256, 98, false, true),
    TYPE(IQ3_S, 256, 110, false, true),
    TYPE(IQ1_S, 256, 50, false, true),
    TYPE(IQ1_M, 256, 56, false, true),
    TYPE(TQ1_0, 256, 54, false, true),
    TYPE(TQ2_0, 256, 66, false, true),
    TYPE(MXFP4, 32, 17, false, true),
};

const struct krn_type_info *krn_type_info(uint32_t type)
{
    return type < KRN_TYPE_MAX && types[type].name != NULL ? &types[type] : NULL;
}

size_t krn_row_bytes(uint32_t type, size_t n)
{
    const struct krn_type_info *t = &types[type];
    return n / t->block_elems * t->block_bytes;
}
