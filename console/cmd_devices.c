/* cmd_devices.c: what ranks can compute on here. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "console/buf.h"
#include "console/cmd_list.h"
#include "console/js.h"
#include "console/units.h"
#include "console/view.h"

static const struct opt s_options[] = {
    {.name = "check", .type = OPT_FLAG, .help = "test and measure the links between devices, and sums over them"},
    {0},
};

static void print_devices(const json_t *o)
{
    const json_t *list = js_at(o, "cuda.list");
    printf("CPU   %lld workers, %s\n", (long long)js_int(o, "cpu.workers", 0), js_str(o, "cpu.isa", "?"));
    if (js_int(o, "cuda.devices", 0) == 0)
        printf("CUDA  none: %s\n", js_str(o, "cuda.why", "no device"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        double util = js_num(d, "utilisation", NAN), temp = js_num(d, "temperature_c", NAN), power = js_num(d, "power_w", NAN);
        char total[32], used[32];
        printf("GPU %lld %s, sm_%lld, %lld multiprocessors, %s memory, %s used, at %s", (long long)js_int(d, "device", 0), js_str(d, "name", "?"),
               (long long)js_int(d, "capability", 0), (long long)js_int(d, "multiprocessors", 0), units_bytes(total, js_num(d, "memory", NAN)),
               units_bytes(used, js_num(d, "memory_used", NAN)), js_str(d, "pci", "?"));
        if (isfinite(util))
            printf(", %.0f %% busy", util);
        if (isfinite(temp))
            printf(", %.0f C", temp);
        if (isfinite(power))
            printf(", %.0f W", power);
        putchar('\n');
    }
}

/* A link that changes what it carries is worse than none. */
static bool print_links(const json_t *links)
{
    bool good = true;
    if (json_array_size(links) == 0)
        printf("one GPU: no links to check\n");
    for (size_t i = 0; i < json_array_size(links); i++) {
        const json_t *l = json_array_get(links, i);
        double us = js_num(l, "us", NAN);
        bool peer = js_bool(l, "peer", false);
        long long wrong = (long long)js_int(l, "wrong", 0);
        printf("GPU %lld -> %lld  %s, %.0f GB/s", (long long)js_int(l, "from", 0), (long long)js_int(l, "to", 0),
               peer ? "peer memory" : "NO peer memory (ranks on both cannot exchange sums)", js_num(l, "gbs", NAN));
        if (isfinite(us))
            printf(", %.2f us one way", us);
        if (wrong != 0)
            printf(", BROKEN: %lld of %lld words arrived changed\n", wrong, (long long)js_int(l, "words", 0));
        else
            printf(", %lld words as sent\n", (long long)js_int(l, "words", 0));
        good &= wrong == 0 && peer;
    }
    return good;
}

/* What sums over GPUs take, each way at each size: measured by the engine as for every model that it opens, here for one layer as wide as GLM-5's. Where
 * there is no room for that, as beside an engine that has all memory, that is said and no failure. */
static void print_sums(struct rs_engine *e, long long gpus)
{
    enum { MOST = 8 }; /* that ranks of one process exchange sums between */
    struct out_stdio out;
    struct rs_error err;
    const long long n = gpus < MOST ? gpus : MOST;
    char *reply = NULL, *args = xasprintf("{\"synthetic\":\"glm-5\",\"layers\":1,\"vocab\":512,\"backend\":\"cuda\",\"ranks\":%lld,\"gpus\":%lld}", n, n);
    enum rs_result rc = rs_request(e, "open", args, -1, NULL, &err);
    free(args);
    if (rc == RS_OK)
        rc = rs_request(e, "allreduce", NULL, -1, &reply, &err);
    if (rc != RS_OK) {
        printf("\nall-reduces were not timed: %s\n", err.msg);
        return;
    }
    json_t *o = js_parse(reply);
    free(reply);
    out_stdio_init(&out, stdout, stderr);
    printf("\nall-reduces over %lld GPUs, rows of 6,144 as glm-5 has them:\n", n);
    view_sweep(&out.out, json_object_get(o, "auto"));
    json_decref(o);
}

/* n: GPUs. Whether links are sound comes first; where they are not, nothing is summed over them. */
static enum exit_status check_links(const struct cmd_entry *self, struct rs_engine *e, long long n)
{
    struct rs_error err;
    char *reply = NULL;
    enum rs_result rc = rs_request(e, "devices.check", NULL, -1, &reply, &err);
    if (rc != RS_OK) {
        rs_engine_close(e);
        return cmd_fail(self, &err);
    }
    json_t *o = js_parse(reply);
    free(reply);
    bool good = print_links(json_object_get(o, "links"));
    json_decref(o);
    if (good && n > 1)
        print_sums(e, n);
    rs_engine_close(e);
    return cmd_flush(self, good ? EXIT_OK : EXIT_COMMAND);
}

static enum exit_status exec_devices(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_engine *e;
    struct rs_error err;
    char *reply = NULL;
    if (rs_engine_local(NULL, &e, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum rs_result rc = rs_request(e, "devices", NULL, -1, &reply, &err);
    if (rc != RS_OK) {
        rs_engine_close(e);
        return cmd_fail(self, &err);
    }
    json_t *o = js_parse(reply);
    free(reply);
    print_devices(o);
    const long long n = js_int(o, "cuda.devices", 0);
    json_decref(o);
    if (opt_set(v, "check"))
        return check_links(self, e, n);
    rs_engine_close(e);
    return cmd_flush(self, EXIT_OK);
}

const struct cmd_entry cmd_devices_entry = {
    .name = "devices",
    .args = "",
    .summary = "say what ranks can compute on here",
    .help = "Lists the CPU's workers and the CUDA devices, or says why there are none. With --check it sends a pattern over every link between "
            "two devices, by the copy engine and by kernels that write and read the other's memory, and measures bandwidth and latency; a link that "
            "changes what it carries, or that is none, is an error. Then it times all-reduces of several sizes over all devices, in one shot and in two, and "
            "says which allreduce=auto takes from which size on.",
    .tables = {s_options},
    .exec = exec_devices,
};
