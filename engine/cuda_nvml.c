/* See cuda_nvml.h. The library's interface is declared here, since toolkits come without its header. */
#include "engine/cuda_nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ASK_MS = 500, TEMPERATURE_GPU = 0 };

typedef void *nvml_device;

struct lib {
    void *handle;
    int (*by_pci)(const char *pci, nvml_device *out);
    int (*utilisation)(nvml_device, unsigned out[2]);
    int (*temperature)(nvml_device, int sensor, unsigned *out);
    int (*power)(nvml_device, unsigned *milliwatts);
    int (*memory)(nvml_device, unsigned long long total_free_used[3]);
};

struct cuda_nvml {
    struct lib lib;
    nvml_device device[CUDA_NVML_MAX];
    uint32_t n;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool quit;
    /* written by the thread, read by anybody: bits of the floats */
    _Atomic uint32_t util[CUDA_NVML_MAX], temp[CUDA_NVML_MAX], power[CUDA_NVML_MAX];
    _Atomic uint64_t used[CUDA_NVML_MAX], total[CUDA_NVML_MAX];
};

static bool bind(const struct lib *l, const char *name, void *fn)
{
    void *p = dlsym(l->handle, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

/* Open and start the library; it stays loaded. */
static bool load(struct lib *l)
{
    int (*init)(void) = NULL;
    memset(l, 0, sizeof *l);
    l->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return l->handle != NULL && bind(l, "nvmlInit_v2", &init) && bind(l, "nvmlDeviceGetHandleByPciBusId_v2", &l->by_pci) &&
           bind(l, "nvmlDeviceGetUtilizationRates", &l->utilisation) && bind(l, "nvmlDeviceGetTemperature", &l->temperature) &&
           bind(l, "nvmlDeviceGetPowerUsage", &l->power) && bind(l, "nvmlDeviceGetMemoryInfo", &l->memory) && init() == 0;
}

static nvml_device find(const struct lib *l, int device)
{
    char pci[32];
    nvml_device d = NULL;
    return cudaDeviceGetPCIBusId(pci, sizeof pci, device) == cudaSuccess && l->by_pci(pci, &d) == 0 ? d : NULL;
}

static struct cuda_nvml_figures ask(const struct lib *l, nvml_device d)
{
    struct cuda_nvml_figures f = {NAN, NAN, NAN, UINT64_MAX, UINT64_MAX};
    unsigned util[2], x;
    unsigned long long mem[3];
    if (d == NULL)
        return f;
    if (l->utilisation(d, util) == 0)
        f.util = (float)util[0];
    if (l->temperature(d, TEMPERATURE_GPU, &x) == 0)
        f.temp_c = (float)x;
    if (l->power(d, &x) == 0)
        f.power_w = (float)x / 1000;
    if (l->memory(d, mem) == 0) {
        f.mem_total = mem[0];
        f.mem_used = mem[2];
    }
    return f;
}

struct cuda_nvml_figures cuda_nvml_ask(int device)
{
    struct lib l;
    return load(&l) ? ask(&l, find(&l, device)) : ask(&l, NULL);
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float number(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void put(struct cuda_nvml *w, uint32_t i, struct cuda_nvml_figures f)
{
    atomic_store_explicit(&w->util[i], bits(f.util), memory_order_relaxed);
    atomic_store_explicit(&w->temp[i], bits(f.temp_c), memory_order_relaxed);
    atomic_store_explicit(&w->power[i], bits(f.power_w), memory_order_relaxed);
    atomic_store_explicit(&w->used[i], f.mem_used, memory_order_relaxed);
    atomic_store_explicit(&w->total[i], f.mem_total, memory_order_relaxed);
}

static void *watch_main(void *arg)
{
    struct cuda_nvml *w = arg;
    struct timespec until;
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        pthread_mutex_unlock(&w->lock);
        for (uint32_t i = 0; i < w->n; i++)
            put(w, i, ask(&w->lib, w->device[i]));
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += ASK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_mutex_lock(&w->lock);
        if (!w->quit)
            pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct cuda_nvml *cuda_nvml_watch(const int *device, uint32_t n)
{
    struct cuda_nvml *w = calloc(1, sizeof *w);
    pthread_condattr_t how;
    if (w == NULL || n > CUDA_NVML_MAX || !load(&w->lib)) {
        free(w);
        return NULL;
    }
    w->n = n;
    for (uint32_t i = 0; i < n; i++) {
        w->device[i] = find(&w->lib, device[i]);
        put(w, i, ask(&w->lib, w->device[i]));
    }
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &how);
    pthread_condattr_destroy(&how);
    if (pthread_create(&w->thread, NULL, watch_main, w) == 0)
        return w;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
    return NULL;
}

void cuda_nvml_close(struct cuda_nvml *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}

struct cuda_nvml_figures cuda_nvml_get(const struct cuda_nvml *w, uint32_t i)
{
    struct cuda_nvml *x = (struct cuda_nvml *)(uintptr_t)w; /* atomics want a pointer to non-const; nothing is written */
    if (w == NULL || i >= w->n)
        return (struct cuda_nvml_figures){NAN, NAN, NAN, UINT64_MAX, UINT64_MAX};
    return (struct cuda_nvml_figures){number(atomic_load_explicit(&x->util[i], memory_order_relaxed)),
                                 number(atomic_load_explicit(&x->temp[i], memory_order_relaxed)),
                                 number(atomic_load_explicit(&x->power[i], memory_order_relaxed)),
                                 atomic_load_explicit(&x->used[i], memory_order_relaxed),
                                 atomic_load_explicit(&x->total[i], memory_order_relaxed)};
}
