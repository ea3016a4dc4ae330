/* Patches in CUDA C, the other process's side: compiling a file and testing what came out (rs_stage_cuda()). */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_user.h"
#include "engine/error.h"

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#if defined(HAVE_CUDA) && CUDART_VERSION >= 12080

#include <dlfcn.h>
#include <limits.h>
#include <nvrtc.h>

#include "engine/cuda_user_int.h"
#include "engine/patch.h"
#include "engine/patch_test.h"
#include "kernels/cuda/cuda.h"
#include "kernels/quant.h"

/* ---- compiling ---- */

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
    char *text = cuda_user_slurp(file, &n);
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

/* ---- the self-test: a call of patch_test.h, carried to the GPU and back ---- */

enum { GAP = 64, BLOCK = 16, ELSEWHERE = 900 }; /* floats around rows; positions of a block of the cache; the number of an expert that is another rank's */
static const float MARK = 123456.0f;

/* Rows of floats on the GPU with gaps before, between and behind. */
struct rows {
    float *host, *at; /* the first gap */
    uint32_t n, width;
    size_t stride, floats;
};

struct carried {
    const struct cuda_user *u;
    const struct rankscope_call *call;
    struct rankscope_cuda_call c;
    struct rows in[2], out, cache;
    uint32_t slots;   /* pairs of a row */
    uint32_t *slot;   /* [pairs of the call] where each lies here; NULL: rows are rows */
    int32_t *choice;  /* [rows][2 * slots], host */
    void *took[32];
    uint32_t n_took;
    cudaError_t e;
    bool no_memory;
};

static void *take(struct carried *t, size_t bytes, const void *from)
{
    void *p = NULL;
    if (t->e == cudaSuccess)
        t->e = cudaMalloc(&p, bytes + 16);
    if (t->e != cudaSuccess)
        return NULL;
    t->took[t->n_took++] = p;
    if (from != NULL)
        t->e = cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice);
    return p;
}

/* n rows of `width`, all of it marked; for what is only read the marks are NaN. */
static void lay_rows(struct carried *t, struct rows *r, uint32_t n, uint32_t width, float mark)
{
    *r = (struct rows){.n = n, .width = width, .stride = (size_t)width + GAP, .floats = (size_t)n * ((size_t)width + GAP) + GAP};
    r->host = malloc(r->floats * sizeof *r->host);
    t->no_memory |= r->host == NULL;
    for (size_t i = 0; i < r->floats && r->host != NULL; i++)
        r->host[i] = mark;
}

static float *row_of(const struct rows *r, uint32_t i)
{
    return r->host + GAP + i * r->stride;
}

static float *send_rows(struct carried *t, struct rows *r)
{
    r->at = take(t, r->floats * sizeof *r->host, r->host);
    return r->at != NULL ? r->at + GAP : NULL;
}

/* Is everything but the rows as it was? */
static bool gaps_hold(const struct rows *r)
{
    for (size_t i = 0; i < r->floats; i++)
        if ((i < GAP || (i - GAP) % r->stride >= r->width) && memcmp(&r->host[i], &MARK, sizeof MARK) != 0)
            return false;
    return true;
}

static uint32_t place(const struct carried *t, bool pairs, uint32_t i)
{
    return pairs ? t->slot[i] : i;
}

/* ids: rows of `slots` experts; those of no pair of the call are another rank's. The call has its pairs by expert, a GPU by row. */
static void lay_pairs(struct carried *t)
{
    const struct rankscope_experts *x = &t->call->experts;
    const uint32_t rows = t->c.rows;
    uint32_t *used = calloc(rows, sizeof *used);
    t->slots = 4;
    t->slot = calloc(x->n_pairs, sizeof *t->slot);
    t->choice = calloc((size_t)rows * 2 * t->slots, sizeof *t->choice);
    if (used == NULL || t->slot == NULL || t->choice == NULL) {
        t->no_memory = true;
        free(used);
        return;
    }
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < t->slots; k++)
            t->choice[i * 2 * t->slots + k] = k % 2 != 0 ? ELSEWHERE : 0;
    for (uint32_t e = x->n; e-- > 0;) /* a row's experts in falling order: sums go by expert, not by slot */
        for (int32_t p = x->group[e]; p < x->group[e + 1]; p++) {
            const uint32_t row = (uint32_t)x->row[p], k = 1 + used[row]++;
            t->slot[p] = row * t->slots + k;
            t->choice[row * 2 * t->slots + k] = (int32_t)(t->c.first_expert + e);
            memcpy(&t->choice[(row * 2 + 1) * t->slots + k], &x->weight[p], sizeof x->weight[p]);
        }
    free(used);
}

static void send_choice(struct carried *t)
{
    const struct rankscope_router *r = &t->call->router;
    const size_t words = (size_t)t->call->out[0].rows * r->stride;
    if (r->n_used != 0) { /* to be made */
        t->c.ids = take(t, words * sizeof(int32_t), r->ids);
        t->c.ids_stride = r->stride;
        t->c.n_used = r->n_used;
    } else {
        t->c.ids = take(t, (size_t)t->c.rows * 2 * t->slots * sizeof(int32_t), t->choice);
        t->c.ids_stride = 2 * t->slots;
        t->c.n_used = t->slots;
    }
    t->c.weights = t->c.ids != NULL ? (float *)(void *)(t->c.ids + t->c.n_used) : NULL;
}

static struct rankscope_cuda_matrix send_matrix(struct carried *t, const struct rankscope_weight *w)
{
    const size_t rows = (size_t)w->n_mats * w->rows, pitch = kcu_pitch(w->type, w->k);
    const struct kcu_launch l = {.stream = NULL};
    uint8_t *raw = take(t, rows * w->stride, w->data), *to = take(t, rows * pitch, NULL);
    if (t->e == cudaSuccess)
        t->e = kcu_repack(&l, w->type, w->k, rows, raw, w->stride, to);
    return (struct rankscope_cuda_matrix){.data = to, .type = w->type, .rows = w->rows, .k = w->k, .n = w->n_mats, .stride = pitch,
                                          .mat_stride = pitch * w->rows};
}

static void send_weights(struct carried *t)
{
    const struct rankscope_weight *w = t->call->w;
    switch (t->u->kind) {
    case OP_RMSNORM:
    case OP_KV_STORE:
    case OP_INDEX_STORE:
        t->c.w = take(t, w[0].k * sizeof(float), w[0].data);
        t->c.w2 = w[1].rows != 0 ? take(t, w[1].k * sizeof(float), w[1].data) : NULL;
        return;
    case OP_ROUTER:
        t->c.m[0] = send_matrix(t, &w[0]);
        t->c.w2 = w[1].rows != 0 ? take(t, w[1].k * sizeof(float), w[1].data) : NULL;
        return;
    default:
        for (int i = 0; i < 2; i++)
            if (w[i].rows != 0)
                t->c.m[i] = send_matrix(t, &w[i]);
    }
}

/* Every row is a sequence of its own, its blocks in falling order; block 0 is nobody's. What no row has is marked. */
static void send_cache(struct carried *t)
{
    const struct rankscope_call *k = t->call;
    const uint32_t width = rankscope_cache_width(k), rows = t->c.rows;
    uint32_t most = 0;
    for (uint32_t i = 0; i < rows; i++)
        most = (uint32_t)k->pos[i] > most ? (uint32_t)k->pos[i] : most;
    const uint32_t blocks = most / BLOCK + 1, all = 1 + rows * blocks;
    int32_t *tables = malloc((size_t)all * sizeof *tables), *table = malloc(rows * sizeof *table);
    lay_rows(t, &t->cache, all * BLOCK, width, MARK);
    t->cache.stride = width; /* its rows lie side by side */
    for (uint32_t i = 0; i < rows && tables != NULL && table != NULL && !t->no_memory; i++) {
        table[i] = (int32_t)(i * blocks);
        for (uint32_t b = 0; b < blocks; b++)
            tables[i * blocks + b] = (int32_t)(1 + i * blocks + (blocks - 1 - b));
        for (uint32_t p = 0; p <= (uint32_t)k->pos[i]; p++)
            k->cache_get(k, i, p, row_of(&t->cache, (uint32_t)tables[i * blocks + p / BLOCK] * BLOCK + p % BLOCK));
    }
    t->no_memory |= tables == NULL || table == NULL;
    if (!t->no_memory) {
        t->c.cache = (unsigned char *)send_rows(t, &t->cache);
        t->c.table = take(t, rows * sizeof *table, table);
        t->c.tables = take(t, (size_t)rows * blocks * sizeof *tables, tables);
    }
    free(tables);
    free(table);
    t->c.cache_block = BLOCK;
    t->c.cache_width = width;
}

static void send_positions(struct carried *t)
{
    const struct rankscope_call *k = t->call;
    const uint32_t rows = t->c.rows;
    uint32_t most = 0, n = 0;
    for (uint32_t i = 0; i < rows; i++)
        most = (uint32_t)k->pos[i] > most ? (uint32_t)k->pos[i] : most;
    const size_t angles = (size_t)(most + 1) * (k->rope_dim / 2) * sizeof(float), stride = most + 2;
    t->c.pos = take(t, rows * sizeof *k->pos, k->pos);
    t->c.cos = take(t, angles, k->cos);
    t->c.sin = take(t, angles, k->sin);
    send_cache(t);
    int32_t *sel = malloc(rows * stride * sizeof *sel);
    bool any = false;
    for (uint32_t i = 0; i < rows && sel != NULL; i++) {
        const int32_t *s = k->selected(k, i, &n);
        sel[i * stride] = s != NULL ? (int32_t)n : -1;
        if (s != NULL)
            memcpy(sel + i * stride + 1, s, n * sizeof *sel);
        any |= s != NULL;
    }
    t->no_memory |= sel == NULL;
    if (any && t->u->kind == OP_MLA) {
        t->c.sel = take(t, rows * stride * sizeof *sel, sel);
        t->c.sel_stride = stride;
    }
    free(sel);
}

static bool has_positions(enum op_kind k)
{
    return k == OP_ROPE_Q || k == OP_KV_STORE || k == OP_MLA || k == OP_INDEX_Q || k == OP_INDEX_STORE || k == OP_INDEX_SCORES || k == OP_INDEX_TOPK;
}

/* Rows of the call's inputs and output, and everything else that the kind has. */
static void send(struct carried *t)
{
    const struct rankscope_call *k = t->call;
    const enum op_kind kind = t->u->kind;
    const bool pairs_in = kind == OP_MOE_DOWN, pairs_out = kind == OP_MOE_GATE_UP, in_place = k->in[0].data == k->out[0].data;
    t->c = (struct rankscope_cuda_call){.rows = pairs_out ? k->in[0].rows : k->out[0].rows, .width = k->out[0].width, .eps = k->eps, .layer = 3,
                                        .in_width = k->in[0].width, .accumulate = k->accumulate, .first_expert = 7, .n_experts = k->router.n_experts,
                                        .n_groups = k->router.n_groups, .n_groups_used = k->router.n_groups_used, .sigmoid = k->router.sigmoid,
                                        .normalise = k->router.normalise, .first_token = k->first_token, .head_dim = k->head_dim,
                                        .rope_dim = k->rope_dim, .n_heads = k->n_heads, .kv_lora = k->kv_lora, .v_head = k->v_head,
                                        .scale = kind == OP_ROUTER ? k->router.scale : k->scale, .top_k = k->top_k, .interleaved = k->interleaved};
    if (pairs_in || pairs_out)
        lay_pairs(t);
    if (t->no_memory)
        return;
    if (pairs_in || pairs_out || kind == OP_ROUTER)
        send_choice(t);
    for (int i = 0; i < 2; i++) {
        const struct rankscope_tensor *x = &k->in[i];
        if (x->data == NULL || (i == 0 && in_place))
            continue;
        lay_rows(t, &t->in[i], i == 0 && pairs_in ? t->c.rows * t->slots : x->rows, x->width, __builtin_nanf(""));
        for (uint32_t r = 0; r < x->rows && !t->no_memory; r++)
            memcpy(row_of(&t->in[i], place(t, pairs_in, r)), x->data + r * x->stride, x->width * sizeof(float));
    }
    t->c.rows *= pairs_out ? t->slots : 1;
    lay_rows(t, &t->out, t->c.rows, k->out[0].width, MARK);
    if (t->no_memory)
        return;
    for (uint32_t r = 0; r < k->out[0].rows; r++)
        memcpy(row_of(&t->out, place(t, pairs_out, r)), k->out[0].data + r * k->out[0].stride, k->out[0].width * sizeof(float));
    t->c.out = send_rows(t, &t->out);
    t->c.out_stride = t->out.stride;
    t->c.in = in_place ? t->c.out : k->in[0].data != NULL ? send_rows(t, &t->in[0]) : NULL;
    t->c.in_stride = in_place ? t->out.stride : t->in[0].stride;
    t->c.in2 = k->in[1].data != NULL ? send_rows(t, &t->in[1]) : NULL;
    t->c.in2_stride = t->in[1].stride;
    send_weights(t);
    if (kind == OP_EMBED)
        t->c.tokens = take(t, t->c.rows * sizeof *k->tokens, k->tokens);
    if (has_positions(kind))
        send_positions(t);
}

/* What the kernel wrote to the cache, handed on; nothing else of it may have changed. */
static const char *read_cache(struct carried *t, const float *before)
{
    const struct rankscope_call *k = t->call;
    const bool stores = t->u->kind == OP_KV_STORE || t->u->kind == OP_INDEX_STORE;
    const uint32_t width = t->cache.width, blocks = (t->cache.n / BLOCK - 1) / t->c.rows;
    for (uint32_t i = 0; i < t->c.rows && stores; i++) {
        const uint32_t pos = (uint32_t)k->pos[i], block = 1 + i * blocks + (blocks - 1 - pos / BLOCK);
        const size_t at = GAP + (size_t)(block * BLOCK + pos % BLOCK) * width;
        k->cache_put(k, i, t->cache.host + at);
        memcpy(t->cache.host + at, before + at, width * sizeof(float));
    }
    return memcmp(t->cache.host, before, t->cache.floats * sizeof(float)) == 0 ? NULL : "it writes to the cache where it must not";
}

static const char *receive(struct carried *t)
{
    const struct rankscope_call *k = t->call;
    const bool pairs_out = t->u->kind == OP_MOE_GATE_UP;
    t->e = cudaMemcpy(t->out.host, t->out.at, t->out.floats * sizeof(float), cudaMemcpyDeviceToHost);
    if (t->e != cudaSuccess)
        return NULL;
    if (!gaps_hold(&t->out))
        return "it writes beside its rows";
    for (uint32_t r = 0; r < k->out[0].rows; r++)
        memcpy(k->out[0].data + r * k->out[0].stride, row_of(&t->out, place(t, pairs_out, r)), k->out[0].width * sizeof(float));
    if (t->u->kind == OP_ROUTER)
        t->e = cudaMemcpy(k->router.ids, t->c.ids, (size_t)t->c.rows * k->router.stride * sizeof(int32_t), cudaMemcpyDeviceToHost);
    if (t->c.cache == NULL || t->e != cudaSuccess)
        return NULL;
    float *before = malloc(t->cache.floats * sizeof *before);
    t->no_memory = before == NULL;
    if (before == NULL)
        return NULL;
    memcpy(before, t->cache.host, t->cache.floats * sizeof *before);
    t->e = cudaMemcpy(t->cache.host, t->cache.at, t->cache.floats * sizeof(float), cudaMemcpyDeviceToHost);
    const char *wrong = t->e == cudaSuccess ? read_cache(t, before) : NULL;
    free(before);
    return wrong;
}

static bool run_on_gpu(void *arg, const struct rankscope_call *call, char *say, size_t cap)
{
    struct carried t = {.u = arg, .call = call};
    const char *wrong = NULL;
    send(&t);
    if (t.e == cudaSuccess && !t.no_memory)
        t.e = cuda_user_launch(t.u, &t.c, NULL);
    if (t.e == cudaSuccess && !t.no_memory)
        t.e = cudaDeviceSynchronize();
    if (t.e == cudaSuccess && !t.no_memory)
        wrong = receive(&t);
    if (t.e != cudaSuccess)
        snprintf(say, cap, "%u x %u: %s", t.c.rows, t.c.width, cudaGetErrorString(t.e));
    else if (t.no_memory || wrong != NULL)
        snprintf(say, cap, "%u x %u: %s", t.c.rows, t.c.width, t.no_memory ? "out of memory for the self-test" : wrong);
    for (uint32_t i = 0; i < t.n_took; i++)
        (void)cudaFree(t.took[i]);
    free(t.in[0].host);
    free(t.in[1].host);
    free(t.out.host);
    free(t.cache.host);
    free(t.slot);
    free(t.choice);
    return t.e == cudaSuccess && !t.no_memory && wrong == NULL;
}

static enum rs_result selftest(const struct cuda_user *u, const struct cuda_user_info *info, double *worst, struct rs_error *err)
{
    static const struct patch_test_form FORMS[] = {
        {"f32", KRN_F32, 96, 64, 16},       {"f32", KRN_F32, 1000, 320, 160},   {"Q8_0", KRN_Q8_0, 256, 64, 16},   {"Q4_K", KRN_Q4_K, 1536, 64, 16},
        {"Q5_K", KRN_Q5_K, 512, 64, 16},    {"Q6_K", KRN_Q6_K, 768, 64, 16},    {"Q2_K", KRN_Q2_K, 512, 64, 16},   {"Q3_K", KRN_Q3_K, 512, 64, 16},
        {"IQ4_XS", KRN_IQ4_XS, 512, 64, 16}, {"IQ4_NL", KRN_IQ4_NL, 256, 64, 16}, {"Q4_0", KRN_Q4_0, 256, 64, 16}, {"Q4_1", KRN_Q4_1, 256, 64, 16},
        {"Q5_0", KRN_Q5_0, 256, 64, 16},    {"Q5_1", KRN_Q5_1, 256, 64, 16},    {"f16", KRN_F16, 256, 64, 16},     {"bf16", KRN_BF16, 256, 64, 16}};
    const uint32_t n = patch_has_matrices(u->kind) ? sizeof FORMS / sizeof FORMS[0] : 2;
    const struct patch_test_forms forms = {n, FORMS, krn_quant_row, krn_dequant_row, krn_row_bytes};
    const struct rankscope_patch_v1 p = {RANKSCOPE_PATCH_ABI, sizeof p, sizeof(struct rankscope_call), info->name, op_kind_name(u->kind), info->help, NULL};
    char say[400];
    if (patch_test(&p, run_on_gpu, (void *)(uintptr_t)u, false, &forms, worst, say, sizeof say))
        return RS_OK;
    return error_set(err, RS_EFORMAT, "self-test failed: %s", say);
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
        rc = cuda_user_open(image, &u, &info, err);
    if (rc == RS_OK)
        rc = selftest(&u, &info, worst, err);
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

enum rs_result rs_stage_cuda(const char *file, const char *include, const char *folder, double *worst, struct rs_error *err)
{
    (void)file, (void)include, (void)folder, (void)worst;
    return error_set(err, RS_EUNSUPPORTED, "patches in CUDA C need a build with CUDA 12.8 or newer");
}

#endif
