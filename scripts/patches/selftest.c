/* The self-test of a patch in C: compiled together with it and engine/patch_test*.c and run as a process of its own before the engine loads anything.
 * Prints one line; exit 0: the patch is right. */
#include <stdio.h>

#include "engine/patch_test.h"

extern const struct rankscope_patch_v1 rankscope_patch;

static bool run(void *arg, const struct rankscope_call *call, char *say, size_t cap)
{
    (void)arg, (void)say, (void)cap;
    rankscope_patch.run(call);
    return true;
}

int main(void)
{
    char say[400];
    double worst;
    if (!patch_test(&rankscope_patch, run, NULL, true, NULL, &worst, say, sizeof say)) {
        printf("%s\n", say);
        return 1;
    }
    printf("%.3g\n", worst);
    return 0;
}
