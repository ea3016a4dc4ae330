/* Grids of the IQ formats; see quant_grid.c. Little endian: the first weight's magnitude is the lowest byte.
 *
 * KRN_GRID is what the tables are: constants of the library, or, where kernels/cuda/formats.cuh includes the data once more, of a device. */
#ifndef RANKSCOPE_KERNELS_QUANT_GRID_H
#define RANKSCOPE_KERNELS_QUANT_GRID_H

#include <stdint.h>

#ifndef KRN_GRID
#define KRN_GRID const

extern const uint64_t krn_grid_iq2_xxs[256], krn_grid_iq2_xs[512], krn_grid_iq2_s[1024], krn_grid_iq1[2048];
extern const uint32_t krn_grid_iq3_xxs[256], krn_grid_iq3_s[512];
#endif

#endif
