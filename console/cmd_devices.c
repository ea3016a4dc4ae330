/* cmd_devices.c: what ranks can compute on here. */
#include "config.h"

#include <stdlib.h>

#include "console/cmd_list.h"
#include "console/js.h"

static enum exit_status exec_devices(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_engine *e;
    struct rs_error err;
    char *reply = NULL;
    (void)v;
    if (rs_engine_local(NULL, &e, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum rs_result rc = rs_request(e, "devices", NULL, -1, &reply, &err);
    rs_engine_close(e);
    if (rc != RS_OK)
        return cmd_fail(self, &err);
    json_t *o = json_loads(reply, 0, NULL);
    free(reply);
    printf("CPU   %lld workers, %s\n", (long long)js_int(o, "cpu.workers", 0), js_str(o, "cpu.isa", "?"));
    if (js_int(o, "cuda.devices", 0) > 0)
        printf("CUDA  %lld devices\n", (long long)js_int(o, "cuda.devices", 0));
    else
        printf("CUDA  none: %s\n", js_str(o, "cuda.why", "no device"));
    json_decref(o);
    return cmd_flush(self, EXIT_OK);
}

const struct cmd_entry cmd_devices_entry = {
    .name = "devices",
    .args = "",
    .summary = "say what ranks can compute on here",
    .help = "Lists the CPU's workers and the CUDA devices, or says why there are none.",
    .exec = exec_devices,
};
