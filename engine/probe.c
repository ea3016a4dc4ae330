/* Arithmetic on statistics. */
#include "engine/probe.h"

#include <math.h>
#include <string.h>

uint32_t probe_extent(enum op_buf buf, const float *row, uint32_t width, uint32_t keys, uint32_t topk, uint32_t *from)
{
    int32_t n;
    *from = 0;
    if (buf == BUF_ISCORE)
        return keys <= topk ? 0 : keys < width ? keys : width;
    if (buf != BUF_ISEL || width == 0)
        return width;
    memcpy(&n, row, sizeof n);
    *from = 1;
    return n <= 0 ? 0 : (uint32_t)n < width ? (uint32_t)n : width - 1;
}

float probe_value(enum op_buf buf, const float *row, uint32_t width, uint32_t j)
{
    int32_t k;
    if (buf != BUF_ISEL && (buf != BUF_CHOICE || j >= width / 2))
        return row[j];
    memcpy(&k, row + j, sizeof k);
    return (float)k;
}

void probe_fold_row(struct probe_stats *s, enum op_buf buf, const float *row, uint32_t width, uint32_t keys, uint32_t topk)
{
    uint32_t from, n = probe_extent(buf, row, width, keys, topk, &from);
    if (buf == BUF_ISEL || buf == BUF_CHOICE)
        for (uint32_t j = from; j < from + n; j++)
            probe_fold(s, probe_value(buf, row, width, j));
    else
        for (uint32_t j = 0; j < n; j++)
            probe_fold(s, row[j]);
}

void probe_merge(struct probe_stats *into, const struct probe_stats *part)
{
    uint64_t have = into->n - into->nan - into->inf, more = part->n - part->nan - part->inf;
    if (more != 0) {
        into->min = have == 0 || part->min < into->min ? part->min : into->min;
        into->max = have == 0 || part->max > into->max ? part->max : into->max;
        into->absmax = part->absmax > into->absmax ? part->absmax : into->absmax;
    }
    into->n += part->n;
    into->zeros += part->zeros;
    into->nan += part->nan;
    into->inf += part->inf;
    into->sum += part->sum;
    into->sum_sq += part->sum_sq;
    into->hash = (into->hash ^ part->hash) * 0x9e3779b97f4a7c15u;
}

double probe_mean(const struct probe_stats *s)
{
    uint64_t n = s->n - s->nan - s->inf;
    return n != 0 ? s->sum / (double)n : 0;
}

double probe_rms(const struct probe_stats *s)
{
    uint64_t n = s->n - s->nan - s->inf;
    return n != 0 ? sqrt(s->sum_sq / (double)n) : 0;
}
