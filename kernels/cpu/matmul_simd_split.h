/* Formats that have no unpacker of their own, by way of krn_quant_split(). Included by matmul_simd.h. Slower than the others, and the results are
 * the same bits as theirs would be. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_SPLIT_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_SPLIT_H

/* As unpack_type. Any code may be treated as 8 bits wide; those with the zero point 128 are signed where SIGNED_BIAS says so. */
static __attribute__((noinline)) void unpack_split(uint32_t type, const uint8_t *w, size_t stride, size_t n, const struct sink *s, int cols)
{
    const struct krn_quant_form form = krn_quant_form(type);
    const vint bias = v_bytes(form.zero_shift == 7 ? 128 - SIGNED_BIAS : 0);
    _Alignas(64) uint8_t q[LANES][CHUNK_K];
    _Alignas(64) float scales[CHUNK_K / 16][LANES];
    for (size_t r = 0; r < LANES; r++) {
        float a[CHUNK_K / 16];
        krn_quant_split(type, w + r * stride, n, q[r], a, NULL);
        for (size_t g = 0; g < n / form.group; g++)
            scales[g][r] = a[g];
    }
    for (size_t k = 0; k < n; k += 32) {
        vint t[8];
        turn32((struct krn_rows){.w = q[0], .stride = sizeof q[0]}, k, t);
        UNROLL(8) for (int i = 0; i < 8; i++)
            t[i] = v_sub8(t[i], bias);
        emit(s, cols, (int)(k / 16), t, 8);
        emit(s, cols, (int)(k / 16) + 1, t + 4, 8);
    }
    for (size_t g = 0; g < n / form.group; g++)
        set_a(s, g, f_load(scales[g]));
}

#endif
