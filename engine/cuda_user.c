/* See cuda_user.h; rs_stage_cuda() is the other process's side of it. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/cuda_user.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#if defined(HAVE_CUDA) && CUDART_VERSION >= 12080

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <nvrtc.h>

#include "engine/cuda_op.h"
#include "engine/patch_cuda.h"

enum { THREADS = 256, GUARD = 64, SIZES = 3 };
static const float MARK = 123456.0f;

struct cuda_user {
    cudaLibrary_t lib;
    cudaKernel_t kernel;
};

/* ---- loading ---- */

static void *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rbe");
    char *data = NULL;
    long len = -1;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (len = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 && (data = malloc((size_t)len + 1)) != NULL &&
        fread(data, 1, (size_t)len, f) != (size_t)len) {
        free(data);
        data = NULL;
    }
    if (f != NULL)
        fclose(f);
    if (data != NULL) {
        data[len] = '\0';
        *n = (size_t)len;
    }
    return data;
}

static bool text_of(cudaLibrary_t lib, const char *name, char *out, size_t cap)
{
    void *at;
    size_t n;
    if (cudaLibraryGetGlobal(&at, &n, lib, name) != cudaSuccess || n > cap || cudaMemcpy(out, at, n, cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    out[n - 1] = '\0';
    return true;
}

static bool kind_of(const char *name, enum op_kind *out)
{
    static const struct { const char *name; enum op_kind kind; } KINDS[] = {
        {"rmsnorm", OP_RMSNORM}, {"add", OP_ADD}, {"silu_mul", OP_SILU_MUL}, {"moe_silu_mul", OP_MOE_SILU_MUL}};
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++)
        if (strcmp(KINDS[i].name, name) == 0) {
            *out = KINDS[i].kind;
            return true;
        }
    return false;
}

static enum rs_result load(const void *image, struct cuda_user *u, struct cuda_user_info *info, struct rs_error *err)
{
    char kind[32];
    cudaError_t e = cudaLibraryLoadData(&u->lib, image, NULL, NULL, 0, NULL, NULL, 0);
    if (e != cudaSuccess)
        return error_set(err, RS_EFORMAT, "the compiled patch cannot be loaded: %s", cudaGetErrorString(e));
    if (cudaLibraryGetKernel(&u->kernel, u->lib, "rankscope_run") != cudaSuccess)
        return error_set(err, RS_EFORMAT, "no kernel rankscope_run (extern \"C\")");
    if (!text_of(u->lib, "rankscope_name", info->name, sizeof info->name) || !text_of(u->lib, "rankscope_kind", kind, sizeof kind) ||
        !text_of(u->lib, "rankscope_help", info->help, sizeof info->help))
        return error_set(err, RS_EFORMAT, "RANKSCOPE_CUDA_PATCH is missing");
    return kind_of(kind, &info->kind) ? RS_OK : error_set(err, RS_EFORMAT, "kind '%s' is none of rmsnorm, add, silu_mul, moe_silu_mul", kind);
}

enum rs_result cuda_user_load(const char *folder, struct cuda_user **out, struct cuda_user_info *info, struct rs_error *err)
{
    char path[PATH_MAX];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, CUDA_USER_MODULE);
    void *image = slurp(path, &n);
    struct cuda_user *u = calloc(1, sizeof *u);
    enum rs_result rc = image == NULL || u == NULL ? error_set(err, RS_EIO, "%s: cannot be read", path) : load(image, u, info, err);
    free(image);
    if (rc != RS_OK) {
        free(u);
        return rc;
    }
    *out = u;
    return RS_OK;
}

/* ---- running ---- */

static cudaError_t launch(const struct cuda_user *u, const struct rankscope_cuda_call *c, cudaStream_t stream)
{
    struct rankscope_cuda_call call = *c;
    void *args[] = {&call};
    return c->rows == 0 || c->width == 0 ? cudaSuccess
                                         : cudaLaunchKernel((const void *)u->kernel, (dim3){c->rows, 1, 1}, (dim3){THREADS, 1, 1}, args, 0, stream);
}

enum rs_result cuda_op_user(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct op_ref *in = &op->in[0], *out = &op->out[0];
    const struct rankscope_cuda_call c = {.in = cuda_op_at(w, r, in),
                                          .in_stride = cuda_op_pitch_of(w, r, in->buf),
                                          .out = cuda_op_at(w, r, out),
                                          .out_stride = cuda_op_pitch_of(w, r, out->buf),
                                          .w = op->n_w != 0 ? cuda_op_vec(w, r, op, 0) : NULL,
                                          .rows = cuda_op_rows_of(w, out->buf) * (op->per_pair ? w->c->hp->n_used : 1),
                                          .width = cuda_op_width_of(w, r, out),
                                          .eps = w->c->hp->eps,
                                          .layer = op->layer};
    w->l.pdl = false; /* it does not take part, nor does what follows it */
    if (w->l.stamp != NULL)
        CUDA_OP_RUN(kcu_stamp(&w->l));
    CUDA_OP_RUN(launch(w->ch->impl->launch, &c, w->l.stream));
    w->l.pdl = false;
    cuda_op_set_q8(w, r, out->buf, false);
    return RS_OK;
}

/* ---- compiling, in the other process ---- */

struct compiler {
    __typeof__(&nvrtcCreateProgram) create;
    __typeof__(&nvrtcCompileProgram) compile;
    __typeof__(&nvrtcGetProgramLogSize) log_size;
    __typeof__(&nvrtcGetProgramLog) log;
    __typeof__(&nvrtcGetCUBINSize) cubin_size;
    __typeof__(&nvrtcGetCUBIN) cubin;
};

static bool bind(void *h, const char *name, void *fn)
{
    void *p = dlsym(h, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

static enum rs_result open_compiler(struct compiler *c, struct rs_error *err)
{
    char name[40];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    const char *const names[] = {name, "libnvrtc.so", CUDA_ROOT "/lib64/libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"};
    void *h = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && h == NULL; i++)
        h = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (h == NULL)
        return error_set(err, RS_EUNSUPPORTED, "NVRTC is not there: %s", dlerror());
    if (!bind(h, "nvrtcCreateProgram", &c->create) || !bind(h, "nvrtcCompileProgram", &c->compile) ||
        !bind(h, "nvrtcGetProgramLogSize", &c->log_size) || !bind(h, "nvrtcGetProgramLog", &c->log) ||
        !bind(h, "nvrtcGetCUBINSize", &c->cubin_size) || !bind(h, "nvrtcGetCUBIN", &c->cubin))
        return error_set(err, RS_EUNSUPPORTED, "NVRTC lacks functions that are used here");
    return RS_OK;
}

/* The first line that says error. */
static enum rs_result complain(const struct compiler *c, nvrtcProgram p, struct rs_error *err)
{
    size_t n = 0;
    char *log = c->log_size(p, &n) == NVRTC_SUCCESS ? malloc(n + 1) : NULL;
    if (log == NULL || c->log(p, log) != NVRTC_SUCCESS) {
        free(log);
        return error_set(err, RS_EFORMAT, "does not compile");
    }
    char *line = strstr(log, "error");
    while (line != NULL && line > log && line[-1] != '\n')
        line--;
    line = line != NULL ? line : log;
    line[strcspn(line, "\n")] = '\0';
    enum rs_result rc = error_set(err, RS_EFORMAT, "does not compile: %.300s", line);
    free(log);
    return rc;
}

static enum rs_result compile(const char *file, const char *include, char **image, size_t *bytes, struct rs_error *err)
{
    struct compiler c = {.create = NULL};
    nvrtcProgram p;
    size_t n;
    int major = 0, minor = 0, device = 0;
    char arch[40], inc[PATH_MAX + 8];
    enum rs_result rc = open_compiler(&c, err);
    if (rc != RS_OK)
        return rc;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (e != cudaSuccess)
        return error_set(err, RS_EENGINE, "no GPU to compile for: %s", cudaGetErrorString(e));
    char *text = slurp(file, &n);
    if (text == NULL)
        return error_set(err, RS_EIO, "cannot be read");
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
    snprintf(inc, sizeof inc, "-I%s", include);
    const char *const options[] = {arch, inc, "--std=c++17", "--fmad=false"};
    if (c.create(&p, text, file, 0, NULL, NULL) != NVRTC_SUCCESS)
        rc = error_set(err, RS_EENGINE, "NVRTC does not start");
    else if (c.compile(p, 4, options) != NVRTC_SUCCESS)
        rc = complain(&c, p, err);
    else if (c.cubin_size(p, bytes) != NVRTC_SUCCESS || (*image = malloc(*bytes)) == NULL || c.cubin(p, *image) != NVRTC_SUCCESS)
        rc = error_set(err, RS_EENGINE, "NVRTC gives no code");
    free(text);
    return rc;
}

/* ---- the self-test ---- */

struct trial {
    enum op_kind kind;
    uint32_t rows, width, in_width, stride;
    float *in, *out, *w, *want, *before; /* host; out with guards around and between */
};

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static bool make_trial(struct trial *t, uint32_t *seed)
{
    const bool gated = t->kind == OP_SILU_MUL || t->kind == OP_MOE_SILU_MUL;
    t->in_width = gated ? 2 * t->width : t->width;
    t->stride = t->width + GUARD;
    const size_t outs = (size_t)t->rows * t->stride + GUARD;
    t->in = malloc((size_t)t->rows * t->in_width * sizeof(float));
    t->w = malloc(t->width * sizeof(float));
    t->before = malloc(outs * sizeof(float));
    t->out = malloc(outs * sizeof(float));
    t->want = malloc(outs * sizeof(float));
    if (t->in == NULL || t->w == NULL || t->before == NULL || t->out == NULL || t->want == NULL)
        return false;
    for (size_t i = 0; i < (size_t)t->rows * t->in_width; i++)
        t->in[i] = 3 * noise(seed);
    for (uint32_t i = 0; i < t->width; i++)
        t->w[i] = noise(seed);
    for (size_t i = 0; i < outs; i++)
        t->before[i] = t->want[i] = MARK;
    for (uint32_t r = 0; r < t->rows; r++) {
        const float *x = t->in + (size_t)r * t->in_width;
        float *b = t->before + GUARD + (size_t)r * t->stride, *y = t->want + GUARD + (size_t)r * t->stride;
        double sq = 0;
        for (uint32_t j = 0; j < t->width; j++)
            sq += (double)x[j] * (double)x[j] / t->width;
        for (uint32_t j = 0; j < t->width; j++) {
            b[j] = t->kind == OP_ADD ? noise(seed) : NAN;
            y[j] = (float)(t->kind == OP_ADD       ? (double)b[j] + (double)x[j]
                           : t->kind == OP_RMSNORM ? (double)x[j] / sqrt(sq + 1e-5) * (double)t->w[j]
                                                   : (double)x[j] / (1 + exp(-(double)x[j])) * (double)x[t->width + j]);
        }
    }
    return true;
}

static void free_trial(struct trial *t)
{
    free(t->in);
    free(t->out);
    free(t->w);
    free(t->want);
    free(t->before);
}

static cudaError_t run_trial(const struct cuda_user *u, struct trial *t)
{
    float *in = NULL, *out = NULL, *w = NULL;
    const size_t ins = (size_t)t->rows * t->in_width * sizeof(float), outs = ((size_t)t->rows * t->stride + GUARD) * sizeof(float);
    cudaError_t e = cudaMalloc((void **)&in, ins);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&out, outs);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&w, t->width * sizeof(float));
    if (e == cudaSuccess)
        e = cudaMemcpy(in, t->in, ins, cudaMemcpyHostToDevice);
    if (e == cudaSuccess)
        e = cudaMemcpy(out, t->before, outs, cudaMemcpyHostToDevice);
    if (e == cudaSuccess)
        e = cudaMemcpy(w, t->w, t->width * sizeof(float), cudaMemcpyHostToDevice);
    const struct rankscope_cuda_call c = {.in = in, .in_stride = t->in_width, .out = out + GUARD, .out_stride = t->stride, .w = w, .rows = t->rows,
                                          .width = t->width, .eps = 1e-5f, .layer = 3};
    if (e == cudaSuccess)
        e = launch(u, &c, NULL);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize();
    if (e == cudaSuccess)
        e = cudaMemcpy(t->out, out, outs, cudaMemcpyDeviceToHost);
    (void)cudaFree(in);
    (void)cudaFree(out);
    (void)cudaFree(w);
    return e;
}

/* Relative L2 distance, or -1 when something beside the rows was written. */
static double judge(const struct trial *t)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < (size_t)t->rows * t->stride + GUARD; i++) {
        const bool guard = i < GUARD || (i - GUARD) % t->stride >= t->width;
        if (guard && t->out[i] != MARK)
            return -1;
        if (guard)
            continue;
        if (!isfinite(t->out[i]))
            return INFINITY;
        diff += ((double)t->out[i] - (double)t->want[i]) * ((double)t->out[i] - (double)t->want[i]);
        norm += (double)t->want[i] * (double)t->want[i];
    }
    return sqrt(diff / norm);
}

static enum rs_result selftest(const struct cuda_user *u, enum op_kind kind, double *worst, struct rs_error *err)
{
    static const uint32_t SIZE[SIZES][2] = {{1, 6144}, {5, 96}, {33, 1000}};
    uint32_t seed = 7;
    enum rs_result rc = RS_OK;
    for (int i = 0; i < SIZES && rc == RS_OK; i++) {
        struct trial t = {.kind = kind, .rows = SIZE[i][0], .width = SIZE[i][1]};
        if (!make_trial(&t, &seed))
            return error_set(err, RS_ENOMEM, "out of memory for the self-test");
        cudaError_t e = run_trial(u, &t);
        double d = e == cudaSuccess ? judge(&t) : 0;
        if (e != cudaSuccess)
            rc = error_set(err, RS_EFORMAT, "%u x %u: %s", t.rows, t.width, cudaGetErrorString(e));
        else if (d < 0)
            rc = error_set(err, RS_EFORMAT, "%u x %u: it writes beside its rows", t.rows, t.width);
        else if (!(d <= 1e-4))
            rc = error_set(err, RS_EFORMAT, "%u x %u: relative error %.3g", t.rows, t.width, d);
        *worst = d > *worst ? d : *worst;
        free_trial(&t);
    }
    return rc;
}

enum rs_result rs_stage_cuda(const char *file, const char *include, const char *folder, double *worst, struct rs_error *err)
{
    char path[PATH_MAX], *image = NULL;
    size_t bytes = 0;
    struct cuda_user u;
    struct cuda_user_info info;
    *worst = 0;
    enum rs_result rc = compile(file, include, &image, &bytes, err);
    if (rc == RS_OK)
        rc = load(image, &u, &info, err);
    if (rc == RS_OK)
        rc = selftest(&u, info.kind, worst, err);
    snprintf(path, sizeof path, "%s/%s", folder, CUDA_USER_MODULE);
    FILE *f = rc == RS_OK ? fopen(path, "wbe") : NULL;
    if (rc == RS_OK && (f == NULL || fwrite(image, 1, bytes, f) != bytes))
        rc = error_set(err, RS_EIO, "%s: cannot be written", path);
    if (f != NULL && fclose(f) != 0 && rc == RS_OK)
        rc = error_set(err, RS_EIO, "%s: cannot be written", path);
    free(image);
    return rc;
}

#else

#ifdef HAVE_CUDA
#include "engine/cuda_op.h"

enum rs_result cuda_op_user(struct cuda_walk *w, struct cuda_rank *r)
{
    (void)r;
    return error_set(w->err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}
#endif

enum rs_result cuda_user_load(const char *folder, struct cuda_user **out, struct cuda_user_info *info, struct rs_error *err)
{
    (void)folder, (void)out, (void)info;
    return error_set(err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}

enum rs_result rs_stage_cuda(const char *file, const char *include, const char *folder, double *worst, struct rs_error *err)
{
    (void)file, (void)include, (void)folder, (void)worst;
    return error_set(err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}

#endif
