/* The f32 kernels for avx512: vectors of 16 floats. */
#define VL 16
#define KRN_NAME krn_cpu_vec_avx512
#define KRN_THIS_ISA KRN_ISA_AVX512
#include "kernels/cpu/vec_body.h"
