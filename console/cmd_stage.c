/* cmd_stage.c: the process in which an engine compiles and tests a patch in CUDA C (patch.load). Its output is read by engine/stage.c. */
#include "config.h"

#include <stdio.h>

#include "console/cmd_list.h"

enum { STAGE_IN_THE_LOG = 43 }; /* as engine/stage.c has it */

static enum exit_status exec_stage(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err;
    double worst;
    (void)self;
    if (rs_stage_cuda(v->args[0], v->args[1], v->args[2], &worst, &err) != RS_OK) {
        printf("%s\n", err.msg);
        return (enum exit_status)STAGE_IN_THE_LOG;
    }
    printf("%.3g\n", worst);
    return EXIT_OK;
}

const struct cmd_entry cmd_stage_entry = {
    .name = "stage-cuda",
    .args = "FILE INCLUDE FOLDER",
    .summary = "compile and test a patch in CUDA C",
    .help = "Compiles FILE with NVRTC, tests it on a GPU and leaves the module in FOLDER. Prints its worst relative error, or what is wrong.",
    .hidden = true,
    .min_args = 3,
    .max_args = 3,
    .exec = exec_stage,
};
