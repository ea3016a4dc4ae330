#include "config.h"

#include "console/units.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE 32

static char *scaled(char *buf, double x, const char *const names[], size_t n_names)
{
    if (!isfinite(x)) {
        snprintf(buf, SIZE, "n/a");
        return buf;
    }
    size_t i = 0;
    while (i + 1 < n_names && fabs(x) >= 999.95) {
        x /= 1000;
        i++;
    }
    snprintf(buf, SIZE, "%.*f%s", i == 0 ? 0 : 1, x, names[i]);
    return buf;
}

char *units_bytes(char *buf, double bytes)
{
    static const char *const names[] = {" B", " kB", " MB", " GB", " TB"};
    return scaled(buf, bytes, names, sizeof names / sizeof names[0]);
}

char *units_count(char *buf, double n)
{
    static const char *const names[] = {"", " k", " M", " B"};
    return scaled(buf, n, names, sizeof names / sizeof names[0]);
}

char *units_us(char *buf, double us)
{
    if (!isfinite(us))
        snprintf(buf, SIZE, "n/a");
    else if (us < 999.95)
        snprintf(buf, SIZE, "%.1f us", us);
    else if (us < 999995)
        snprintf(buf, SIZE, "%.2f ms", us / 1e3);
    else
        snprintf(buf, SIZE, "%.2f s", us / 1e6);
    return buf;
}

char *units_percent(char *buf, double share)
{
    if (!isfinite(share))
        snprintf(buf, SIZE, "n/a");
    else
        snprintf(buf, SIZE, "%.1f %%", 100 * share);
    return buf;
}

char *units_num(char *buf, double x, int digits)
{
    if (!isfinite(x))
        snprintf(buf, SIZE, "n/a");
    else
        snprintf(buf, SIZE, "%.*f", digits, x);
    return buf;
}
