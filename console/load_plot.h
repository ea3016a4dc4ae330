/* load_plot.h: tokens per second over concurrency, as text and as an SVG file. */
#ifndef RANKSCOPE_CONSOLE_LOAD_PLOT_H
#define RANKSCOPE_CONSOLE_LOAD_PLOT_H

#include "console/out.h"
#include "engine/rankscope.h"

#define LOAD_PLOT_MAX_SERIES 4

/* All series have the same x: n values, ascending, shown on a logarithmic scale. y NAN: no value. */
struct load_plot {
    const char *title, *x_name, *y_name;
    size_t n, n_series;
    const double *x;
    const char *name[LOAD_PLOT_MAX_SERIES];
    const double *y[LOAD_PLOT_MAX_SERIES];
};

/* A picture of 16 lines; each series has a letter, where two meet stands '*'. */
void load_plot_text(const struct load_plot *p, struct out *o);

/* Write the file; when that fails, no half of one is left. */
enum rs_result load_plot_svg(const struct load_plot *p, const char *path, struct rs_error *err);

#endif
