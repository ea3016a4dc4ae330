/* What NVIDIA's management library knows of GPUs. It is opened at run time; where it is not, everything is unknown. */
#ifndef RANKSCOPE_ENGINE_CUDA_NVML_H
#define RANKSCOPE_ENGINE_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

enum { CUDA_NVML_MAX = 8 };

struct cuda_nvml_figures {
    float util, temp_c, power_w;        /* NAN: not known */
    uint64_t mem_used, mem_total;       /* UINT64_MAX: not known */
};

/* Once, on the calling thread. device: as CUDA counts. */
struct cuda_nvml_figures cuda_nvml_ask(int device);

/* A thread that asks every half second, so that nobody else waits for the driver. NULL when it cannot be started. */
struct cuda_nvml;
struct cuda_nvml *cuda_nvml_watch(const int *device, uint32_t n);
void cuda_nvml_close(struct cuda_nvml *w); /* NULL is allowed */
/* The newest figures of the i-th device watched. Any thread, never waits. */
struct cuda_nvml_figures cuda_nvml_get(const struct cuda_nvml *w, uint32_t i);

#endif
