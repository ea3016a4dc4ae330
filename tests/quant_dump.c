/* Helper of quant_gguf.t: quant_dump TYPE-NAME reads blocks from standard input and writes the floats they stand for. */
#include <stdio.h>
#include <string.h>

#include "kernels/quant.h"

int main(int argc, char **argv)
{
    static uint8_t block[4096];
    static float values[4096];
    for (uint32_t type = 0; argc == 2 && type < KRN_TYPE_MAX; type++) {
        const struct krn_type_info *info = krn_type_info(type);
        if (info == NULL || !info->computes || strcmp(info->name, argv[1]) != 0)
            continue;
        while (fread(block, info->block_bytes, 1, stdin) == 1) {
            krn_dequant_row(type, block, values, info->block_elems);
            if (fwrite(values, sizeof *values, info->block_elems, stdout) != info->block_elems)
                return 1;
        }
        return fflush(stdout) == 0 ? 0 : 1;
    }
    fprintf(stderr, "usage: quant_dump TYPE-NAME <blocks >floats\n");
    return 2;
}
