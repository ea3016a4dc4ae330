/* The f32 kernels for portable: vectors of 4 floats. */
#define VL 4
#define KRN_NAME krn_cpu_vec_portable
#define KRN_THIS_ISA KRN_ISA_PORTABLE
#include "kernels/cpu/vec_body.h"
