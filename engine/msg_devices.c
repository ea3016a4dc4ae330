/* Methods about what ranks can compute on: devices, devices.check. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <math.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#ifdef HAVE_CUDA
#include "engine/cuda_backend.h"
#endif

static const char *const NO_CUDA = "this build has no CUDA: configure it --with-cuda";

#ifdef HAVE_CUDA
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *device_json(int i)
{
    struct cuda_device d;
    if (!backend_cuda_describe(i, &d))
        return json_null();
    json_t *o = json_pack("{s:i,s:s,s:s,s:i,s:i,s:I}", "device", i, "name", d.name, "pci", d.pci, "capability", d.major * 10 + d.minor,
                          "multiprocessors", d.sms, "memory", (json_int_t)d.memory);
    json_object_set_new(o, "memory_used", d.mem_used != UINT64_MAX ? json_integer((json_int_t)d.mem_used) : json_null());
    json_object_set_new(o, "utilisation", number((double)d.util));
    json_object_set_new(o, "temperature_c", number((double)d.temp_c));
    json_object_set_new(o, "power_w", number((double)d.power_w));
    return o;
}

static void add_link(void *arg, const struct cuda_link *l)
{
    json_t *o = json_pack("{s:i,s:i,s:b,s:I,s:I}", "from", l->from, "to", l->to, "peer", l->peer, "words", (json_int_t)l->words, "wrong",
                          (json_int_t)l->wrong);
    json_object_set_new(o, "gbs", number(l->gbs));
    json_object_set_new(o, "us", l->us >= 0 ? json_real(l->us) : json_null());
    json_array_append_new(arg, o);
}
#endif

static enum rs_result msg_devices(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    const char *why = NO_CUDA;
    int n = 0;
    bool built = false;
    json_t *list = json_array();
#ifdef HAVE_CUDA
    built = true;
    n = backend_cuda_devices(&why);
    for (int i = 0; i < n; i++)
        json_array_append_new(list, device_json(i));
#endif
    json_object_set_new(m->reply, "cpu", json_pack("{s:i,s:s}", "workers", (int)e->workers, "isa", krn_cpu_matmul(e->isa)->name));
    json_t *cuda = json_pack("{s:b,s:i,s:o}", "built", built, "devices", n, "list", list);
    json_object_set_new(cuda, "why", n == 0 && why != NULL ? json_string(why) : json_null());
    json_object_set_new(m->reply, "cuda", cuda);
    return rc;
}

static enum rs_result msg_check(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)e;
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
#ifdef HAVE_CUDA
    const char *why;
    if (backend_cuda_devices(&why) == 0)
        return error_set(err, RS_EUNSUPPORTED, "no GPU to check: %s", why);
    json_t *links = json_array();
    json_object_set_new(m->reply, "links", links);
    return backend_cuda_check(add_link, links, err);
#else
    (void)m;
    return error_set(err, RS_EUNSUPPORTED, "no GPU to check: %s", NO_CUDA);
#endif
}

const struct msg_method MSG_DEVICES[] = {{"devices", false, msg_devices}, {"devices.check", true, msg_check}, {NULL, false, NULL}};
