/* cmd_stage.c: the processes in which an engine tests a patch in CUDA C or Lua before it loads it (patch.load). Their output is read by
 * engine/stage.c. */
#include "config.h"

#include <stdio.h>

#include "console/cmd_list.h"
#include "lua/scr_op.h"

enum { STAGE_IN_THE_LOG = 43 }; /* as engine/stage.c has it */

static enum exit_status report(enum rs_result rc, double worst, const struct rs_error *err)
{
    if (rc != RS_OK) {
        printf("%s\n", err->msg);
        return (enum exit_status)STAGE_IN_THE_LOG;
    }
    printf("%.3g\n", worst);
    return EXIT_OK;
}

static enum exit_status exec_cuda(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err;
    double worst = 0;
    (void)self;
    enum rs_result rc = rs_stage_cuda(v->args[0], v->args[1], v->args[2], &worst, &err);
    return report(rc, worst, &err);
}

static enum exit_status exec_lua(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err;
    double worst = 0;
    (void)self;
    enum rs_result rc = rs_stage_hosted(scr_op_host(), v->args[0], v->args[1], &worst, &err);
    return report(rc, worst, &err);
}

const struct cmd_entry cmd_stage_entry = {
    .name = "stage-cuda",
    .args = "FILE INCLUDE FOLDER",
    .summary = "compile and test a patch in CUDA C",
    .help = "Compiles FILE with NVRTC, tests it on a GPU and leaves the module in FOLDER. Prints its worst relative error, or what is wrong.",
    .hidden = true,
    .min_args = 3,
    .max_args = 3,
    .exec = exec_cuda,
};

const struct cmd_entry cmd_stage_lua_entry = {
    .name = "stage-lua",
    .args = "FILE NAME",
    .summary = "test a patch in Lua",
    .help = "Reads FILE, which messages call NAME, and tests it. Prints its worst relative error, or what is wrong.",
    .hidden = true,
    .min_args = 2,
    .max_args = 2,
    .exec = exec_lua,
};
