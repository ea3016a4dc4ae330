/* The f32 kernels for avx2: vectors of 8 floats. */
#define VL 8
#define KRN_NAME krn_cpu_vec_avx2
#define KRN_THIS_ISA KRN_ISA_AVX2
#include "kernels/cpu/vec_body.h"
