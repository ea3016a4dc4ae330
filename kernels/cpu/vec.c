/* Choosing among the builds of the f32 kernels, and the kernels that have no vector form. */
#include "kernels/cpu/vec.h"

extern const struct krn_cpu_vec krn_cpu_vec_portable;
#if defined(__x86_64__)
extern const struct krn_cpu_vec krn_cpu_vec_avx2, krn_cpu_vec_avx512;
#endif

const struct krn_cpu_vec *krn_cpu_vec(enum krn_isa isa)
{
    if (isa > krn_cpu_best())
        return NULL;
    switch (isa) {
    case KRN_ISA_PORTABLE: return &krn_cpu_vec_portable;
#if defined(__x86_64__)
    case KRN_ISA_AVX2: return &krn_cpu_vec_avx2;
    case KRN_ISA_AVX512: return &krn_cpu_vec_avx512;
#endif
    default: return NULL;
    }
}

/* Is position a a worse choice than b? Lower score, or the same score further right. */
static bool worse(const float *s, int32_t a, int32_t b)
{
    return s[a] < s[b] || (s[a] == s[b] && a > b);
}

static void sift_down(const float *s, int32_t *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t c = 2 * i + 1, m = i;
        if (c < n && worse(s, heap[c], heap[m]))
            m = c;
        if (c + 1 < n && worse(s, heap[c + 1], heap[m]))
            m = c + 1;
        if (m == i)
            return;
        int32_t t = heap[i];
        heap[i] = heap[m];
        heap[m] = t;
        i = m;
    }
}

/* The heap keeps the k best with the worst on top; afterwards one pass in order of position writes them out ascending, in place: position t is
 * kept if it is not worse than the top. */
uint32_t krn_select_topk(const float *s, uint32_t n, uint32_t k, int32_t *out)
{
    if (n <= k) {
        for (uint32_t i = 0; i < n; i++)
            out[i] = (int32_t)i;
        return n;
    }
    for (uint32_t i = 0; i < k; i++)
        out[i] = (int32_t)i;
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(s, out, k, i);
    for (uint32_t i = k; i < n; i++)
        if (worse(s, out[0], (int32_t)i)) {
            out[0] = (int32_t)i;
            sift_down(s, out, k, 0);
        }
    int32_t last = out[0];
    uint32_t m = 0;
    for (uint32_t i = 0; i < n && m < k; i++)
        if (!worse(s, (int32_t)i, last))
            out[m++] = (int32_t)i;
    return m;
}
