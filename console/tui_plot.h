/* tui_plot.h: numbers as cells: bars, sparklines, curves and histograms. Values that are not finite leave a gap. Pure; any thread. */
#ifndef RANKSCOPE_CONSOLE_TUI_PLOT_H
#define RANKSCOPE_CONSOLE_TUI_PLOT_H

#include "console/grid.h"

enum tui_plot_style { TUI_PLOT_BRAILLE, TUI_PLOT_BLOCK, TUI_PLOT_ASCII, TUI_PLOT_STYLES };

/* A horizontal bar of at most w columns for share (0..1), in eighths of a column where the style has them. Returns the columns touched. */
int tui_plot_bar(struct grid *g, int y, int x, int w, uint8_t role, double share, enum tui_plot_style style);

/* One row: the last values of v, one a column (two with braille), scaled from lo to hi. The newest is at the right. */
void tui_plot_spark(struct grid *g, int y, int x, int w, uint8_t role, const float *v, int n, double lo, double hi,
                    enum tui_plot_style style);

/* Columns of a histogram, as high as the rectangle: bins are counts, the largest fills it. */
void tui_plot_histogram(struct grid *g, struct grid_rect r, uint8_t role, const uint32_t *bins, int n, enum tui_plot_style style);

/* The smallest and largest finite value; false: there is none. A range of nothing is widened. */
bool tui_plot_range(const float *v, int n, double *lo, double *hi);

#endif
