/* See audit_check.h. */
#include "engine/audit_check.h"

#include <math.h>
#include <string.h>

#include "kernels/quant.h"

static uint64_t mix(uint64_t h, const uint8_t *p, size_t n)
{
    uint64_t w;
    for (; n >= sizeof w; n -= sizeof w, p += sizeof w) {
        memcpy(&w, p, sizeof w);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    for (; n > 0; n--, p++)
        h = (h ^ *p) * 0x100000001b3u;
    return h;
}

uint64_t audit_hash(const struct op_view *v, bool sample)
{
    if (v->rows == 0)
        return 0;
    uint64_t rows = (uint64_t)v->rows * v->n_mats, n = sample && rows > 16 ? 16 : rows, h = 0xcbf29ce484222325u;
    size_t bytes = krn_row_bytes(v->type, v->k);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = rows * i / n;
        h = mix(h, v->data + at / v->rows * v->mat_stride + at % v->rows * v->stride, bytes);
    }
    return h != 0 ? h : 1;
}

bool audit_same(const struct program *p, uint32_t view, const uint64_t *hash, uint32_t *a, uint32_t *b)
{
    for (uint32_t r = 0; r < p->n_ranks; r++)
        for (uint32_t s = r + 1; s < p->n_ranks; s++) {
            const struct op_view *x = plan_view(p, r, view), *y = plan_view(p, s, view);
            if (hash[r] == 0 || hash[r] != hash[s] || x->rows != y->rows || x->k != y->k || x->n_mats != y->n_mats)
                continue;
            *a = r;
            *b = s;
            return true;
        }
    return false;
}

static bool broken(uint32_t type, const uint8_t *block)
{
    const struct krn_type_info *info = krn_type_info(type);
    uint8_t q[256];
    float a[16], b[16] = {0};
    if (!info->quantised) {
        krn_dequant_row(type, block, a, 1);
        return !isfinite(a[0]);
    }
    const struct krn_quant_form form = krn_quant_form(type);
    krn_quant_split(type, block, info->block_elems, q, a, b);
    for (unsigned g = 0; g < info->block_elems / form.group; g++)
        if (!isfinite(a[g]) || (form.minima && !isfinite(b[g])))
            return true;
    return false;
}

uint64_t audit_broken(const struct gguf_tensor *t, uint64_t *first)
{
    const struct krn_type_info *info = krn_type_info(t->type);
    uint64_t found = 0, n = t->bytes / info->block_bytes;
    for (uint64_t i = 0; i < n && info->computes; i++)
        if (broken(t->type, t->data + i * info->block_bytes) && found++ == 0)
            *first = i;
    return found;
}
