/* The self-test of a patch: compiled together with it and run as a process of its own before the engine loads anything. Prints one line; exit 0: it is
 * right. References are plain loops in double. Uses nothing but patch_api.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/patch_api.h"

extern const struct rankscope_patch_v1 rankscope_patch;

enum { ROWS = 5, WIDTH = 96, OUT = 64, HEADS = 3, HEAD = 32, ROPE = 16, POSITIONS = 40, GUARD = 64 };

static const float MARK = 123456.0f;
static float s_in[ROWS * WIDTH], s_w[2][OUT * WIDTH], s_cos[POSITIONS * ROPE / 2], s_sin[POSITIONS * ROPE / 2];
static float s_got[GUARD + ROWS * (2 * WIDTH) + GUARD];
static double s_want[ROWS * 2 * WIDTH];
static const int32_t POS[ROWS] = {0, 1, 7, 20, 39};

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void copy_f32(uint32_t type, const void *src, float *dst, size_t n)
{
    (void)type;
    memcpy(dst, src, n * sizeof *dst);
}

static int is(const char *kind)
{
    return strcmp(rankscope_patch.kind, kind) == 0;
}

/* Width of the output, 0 for a kind that is unknown; what is expected, into s_want. before: what out holds when the op starts. */
static uint32_t expect(int accumulate, const float *before)
{
    uint32_t width = is("linear") ? OUT : is("qkv_a") || is("gate_up") ? 2 * OUT : is("silu_mul") || is("moe_silu_mul") ? WIDTH / 2 : WIDTH;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < width; j++) {
            const float *x = s_in + i * WIDTH;
            double y = 0;
            if (is("rmsnorm")) {
                double sq = 0;
                for (uint32_t k = 0; k < WIDTH; k++)
                    sq += (double)x[k] * (double)x[k] / WIDTH;
                y = (double)x[j] / sqrt(sq + 1e-5) * (double)s_w[0][j];
            } else if (is("linear") || is("qkv_a") || is("gate_up")) {
                const float *w = s_w[j / OUT] + (size_t)(j % OUT) * WIDTH;
                for (uint32_t k = 0; k < WIDTH; k++)
                    y += (double)x[k] * (double)w[k];
                y += accumulate ? (double)before[i * width + j] : 0;
            } else if (is("silu_mul") || is("moe_silu_mul")) {
                y = (double)x[j] / (1 + exp(-(double)x[j])) * (double)x[WIDTH / 2 + j];
            } else if (is("add")) {
                y = (double)before[i * width + j] + (double)x[j];
            } else if (is("rope")) {
                uint32_t d = j % HEAD;
                y = (double)x[j];
                if (d >= HEAD - ROPE) {
                    uint32_t p = (d - (HEAD - ROPE)) / 2, other = (d & 1) ? j - 1 : j + 1;
                    double c = (double)s_cos[POS[i] * (ROPE / 2) + (int32_t)p], s = (double)s_sin[POS[i] * (ROPE / 2) + (int32_t)p];
                    y = (double)x[j] * c + ((d & 1) ? s : -s) * (double)x[other];
                }
            } else {
                return 0;
            }
            s_want[i * width + j] = y;
        }
    return width;
}

/* Run with `of` shares; the result's relative L2 distance, or a negative number: it wrote outside. */
static double run(uint32_t of, int accumulate)
{
    uint32_t state = 7 + of, width;
    float before[ROWS * 2 * OUT], *out = s_got + GUARD;
    double d = 0, n = 0;
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        before[i] = noise(&state);
    width = expect(accumulate, before);
    for (size_t i = 0; i < sizeof s_got / sizeof s_got[0]; i++)
        s_got[i] = MARK;
    memcpy(out, is("rope") ? s_in : before, ROWS * width * sizeof(float));
    for (uint32_t lo = of; lo-- > 0;) { /* any order */
        struct rankscope_call c = {.size = sizeof c, .layer = 1, .site = "selftest", .n_ranks = 1, .lo = lo, .hi = lo + 1, .of = of, .accumulate = accumulate,
                                   .eps = 1e-5f, .head_dim = HEAD, .rope_dim = ROPE, .cos = s_cos, .sin = s_sin, .pos = POS};
        c.in[0] = (struct rankscope_tensor){is("rope") ? out : s_in, WIDTH, ROWS, WIDTH};
        c.out[0] = (struct rankscope_tensor){out, width, ROWS, width};
        for (int s = 0; s < 2; s++)
            c.w[s] = (struct rankscope_weight){0, is("rmsnorm") ? 1 : OUT, WIDTH, (const uint8_t *)s_w[s], WIDTH * sizeof(float), 256 * sizeof(float), copy_f32};
        rankscope_patch.run(&c);
    }
    for (size_t i = 0; i < sizeof s_got / sizeof s_got[0]; i++)
        if ((i < GUARD || i >= GUARD + ROWS * width) && s_got[i] != MARK)
            return -1;
    for (uint32_t i = 0; i < ROWS * width; i++) {
        d += ((double)out[i] - s_want[i]) * ((double)out[i] - s_want[i]);
        n += s_want[i] * s_want[i];
    }
    return sqrt(d / n);
}

int main(void)
{
    uint32_t state = 1;
    double worst = 0;
    if (rankscope_patch.abi != RANKSCOPE_PATCH_ABI || rankscope_patch.size != sizeof rankscope_patch || rankscope_patch.call_size != sizeof(struct rankscope_call)) {
        printf("it was written for another interface\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof s_in / sizeof s_in[0]; i++)
        s_in[i] = noise(&state);
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < OUT * WIDTH; i++)
            s_w[s][i] = noise(&state);
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            s_cos[p * (ROPE / 2) + i] = (float)cos(p * pow(10000, -2.0 * i / ROPE));
            s_sin[p * (ROPE / 2) + i] = (float)sin(p * pow(10000, -2.0 * i / ROPE));
        }
    float none[ROWS * 2 * OUT] = {0};
    if (expect(0, none) == 0) {
        printf("there is no op kind '%s' that a patch in C can take over\n", rankscope_patch.kind);
        return 1;
    }
    for (uint32_t of = 1; of <= 7; of += 2)
        for (int accumulate = 0; accumulate <= is("linear"); accumulate++) {
            double d = run(of, accumulate);
            if (!(d >= 0)) {
                printf(d < 0 ? "it writes outside of its output\n" : "its result is not a number\n");
                return 1;
            }
            worst = d > worst ? d : worst;
            if (d > 1e-4) {
                printf("its result is wrong: relative L2 %.2g against the reference (%s%u shares)\n", d, accumulate ? "accumulating, " : "", of);
                return 1;
            }
        }
    printf("%.3g\n", worst);
    return 0;
}
