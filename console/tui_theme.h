/* tui_theme.h: what cells mean, and how that looks. Panels draw in roles; a theme turns roles into colours. Any thread. */
#ifndef RANKSCOPE_CONSOLE_TUI_THEME_H
#define RANKSCOPE_CONSOLE_TUI_THEME_H

#include <stdbool.h>
#include <stdint.h>

enum tui_role {
    ROLE_TEXT,
    ROLE_DIM,
    ROLE_HEAD,
    ROLE_USER,
    ROLE_ANSWER,
    ROLE_THINKING,
    ROLE_NOTE,
    ROLE_WARN,
    ROLE_ERROR,
    ROLE_GOOD,
    ROLE_BAD,
    ROLE_FRAME,
    ROLE_FRAME_FOCUS,
    ROLE_TITLE,
    ROLE_TITLE_FOCUS,
    ROLE_STATUS,
    ROLE_STATUS_STRONG,
    ROLE_STATUS_WARN,
    ROLE_STATUS_BAD,
    ROLE_KEY,
    ROLE_HINT,
    ROLE_BUSY,
    ROLE_WAIT,
    ROLE_TRANSFER,
    ROLE_GRAPH,
    ROLE_ABSENT,
    ROLE_CHANGED,
    ROLE_COUNT,
};

enum tui_attr { TUI_BOLD = 1, TUI_DIM = 2, TUI_REVERSE = 4, TUI_UNDERLINE = 8 };

struct tui_look {
    int16_t fg, bg;   /* of 256 colours; -1: the terminal's own */
    int16_t fg8, bg8; /* where there are only 8 */
    uint8_t attr;
};

struct tui_theme {
    const char *name, *help;
    bool colours;
    struct tui_look look[ROLE_COUNT];
    struct tui_look selected; /* laid over a cell: attributes are added, colours replace where they are not -1 */
    struct tui_look match;
};

extern const struct tui_theme tui_themes[]; /* ends with a NULL name; the first one is the default */

/* By name; NULL: there is none. */
const struct tui_theme *tui_theme_find(const char *name);

/* #rrggbb of one of the 256 colours. */
uint32_t tui_theme_rgb(int colour);

#endif
