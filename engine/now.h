/* The monotonic clock, which all processes of a machine share. Any thread; neither allocates nor enters the kernel where the clock is mapped. */
#ifndef RANKSCOPE_ENGINE_NOW_H
#define RANKSCOPE_ENGINE_NOW_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_us(void)
{
    return now_ns() / 1000;
}

#endif
