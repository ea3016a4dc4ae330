#include "config.h"

#include "console/tui_theme.h"

#include <stddef.h>
#include <string.h>

#define OWN (-1)

const struct tui_theme
    tui_themes[] =
        {
            {
                .name = "default",
                .help = "for a dark terminal",
                .colours = true,
                .look =
                    {
                        [ROLE_TEXT] = {OWN, OWN, OWN, OWN, 0},
                        [ROLE_DIM] = {245, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_HEAD] = {109, OWN, 6, OWN, 0},
                        [ROLE_USER] = {117, OWN, 6, OWN, TUI_BOLD},
                        [ROLE_ANSWER] = {OWN, OWN, OWN, OWN, 0},
                        [ROLE_THINKING] = {245, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_NOTE] = {73, OWN, 6, OWN, 0},
                        [ROLE_WARN] = {214, OWN, 3, OWN, 0},
                        [ROLE_ERROR] = {203, OWN, 1, OWN, TUI_BOLD},
                        [ROLE_GOOD] = {114, OWN, 2, OWN, 0},
                        [ROLE_BAD] = {203, OWN, 1, OWN, TUI_BOLD},
                        [ROLE_FRAME] = {238, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_FRAME_FOCUS] = {75, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_TITLE] = {250, OWN, OWN, OWN, 0},
                        [ROLE_TITLE_FOCUS] = {75, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_STATUS] = {252, 236, OWN, OWN, 0},
                        [ROLE_STATUS_STRONG] = {117, 236, 6, OWN, TUI_BOLD},
                        [ROLE_STATUS_WARN] = {214, 236, 3, OWN, TUI_BOLD},
                        [ROLE_STATUS_BAD] = {231, 160, 7, 1, TUI_BOLD},
                        [ROLE_KEY] = {75, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_HINT] = {245, OWN, OWN, OWN, 0},
                        [ROLE_BUSY] = {71, OWN, 2, OWN, 0},
                        [ROLE_WAIT] = {173, OWN, 3, OWN, 0},
                        [ROLE_TRANSFER] = {74, OWN, 4, OWN, 0},
                        [ROLE_GRAPH] = {110, OWN, 6, OWN, 0},
                        [ROLE_ABSENT] = {241, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_CHANGED] = {221, OWN, 3, OWN, TUI_BOLD},
                    },
                .selected = {OWN, 24, OWN, OWN, TUI_REVERSE},
                .match = {16, 221, 0, 3, 0},
            },
            {
                .name = "light",
                .help = "for a light terminal",
                .colours = true,
                .look =
                    {
                        [ROLE_TEXT] = {OWN, OWN, OWN, OWN, 0},
                        [ROLE_DIM] = {244, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_HEAD] = {24, OWN, 4, OWN, 0},
                        [ROLE_USER] = {25, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_ANSWER] = {OWN, OWN, OWN, OWN, 0},
                        [ROLE_THINKING] = {243, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_NOTE] = {30, OWN, 6, OWN, 0},
                        [ROLE_WARN] = {130, OWN, 3, OWN, TUI_BOLD},
                        [ROLE_ERROR] = {160, OWN, 1, OWN, TUI_BOLD},
                        [ROLE_GOOD] = {28, OWN, 2, OWN, 0},
                        [ROLE_BAD] = {160, OWN, 1, OWN, TUI_BOLD},
                        [ROLE_FRAME] = {250, OWN, OWN, OWN, 0},
                        [ROLE_FRAME_FOCUS] = {26, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_TITLE] = {238, OWN, OWN, OWN, 0},
                        [ROLE_TITLE_FOCUS] = {26, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_STATUS] = {235, 253, OWN, OWN, 0},
                        [ROLE_STATUS_STRONG] = {25, 253, 4, OWN, TUI_BOLD},
                        [ROLE_STATUS_WARN] = {130, 253, 3, OWN, TUI_BOLD},
                        [ROLE_STATUS_BAD] = {231, 160, 7, 1, TUI_BOLD},
                        [ROLE_KEY] = {26, OWN, 4, OWN, TUI_BOLD},
                        [ROLE_HINT] = {242, OWN, OWN, OWN, 0},
                        [ROLE_BUSY] = {28, OWN, 2, OWN, 0},
                        [ROLE_WAIT] = {166, OWN, 3, OWN, 0},
                        [ROLE_TRANSFER] = {25, OWN, 4, OWN, 0},
                        [ROLE_GRAPH] = {31, OWN, 6, OWN, 0},
                        [ROLE_ABSENT] = {247, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_CHANGED] = {130, OWN, 3, OWN, TUI_BOLD},
                    },
                .selected = {OWN, 153, OWN, OWN, TUI_REVERSE},
                .match = {16, 220, 0, 3, 0},
            },
            {
                .name = "contrast",
                .help = "strong colours, nothing dimmed",
                .colours = true,
                .look =
                    {
                        [ROLE_TEXT] = {15, OWN, 7, OWN, 0},
                        [ROLE_DIM] = {15, OWN, 7, OWN, 0},
                        [ROLE_HEAD] = {14, OWN, 6, OWN, TUI_BOLD | TUI_UNDERLINE},
                        [ROLE_USER] = {14, OWN, 6, OWN, TUI_BOLD},
                        [ROLE_ANSWER] = {15, OWN, 7, OWN, 0},
                        [ROLE_THINKING] = {7, OWN, 7, OWN, TUI_UNDERLINE},
                        [ROLE_NOTE] = {14, OWN, 6, OWN, 0},
                        [ROLE_WARN] = {11, OWN, 3, OWN, TUI_BOLD},
                        [ROLE_ERROR] = {9, OWN, 1, OWN, TUI_BOLD | TUI_REVERSE},
                        [ROLE_GOOD] = {10, OWN, 2, OWN, TUI_BOLD},
                        [ROLE_BAD] = {9, OWN, 1, OWN, TUI_BOLD | TUI_REVERSE},
                        [ROLE_FRAME] = {15, OWN, 7, OWN, 0},
                        [ROLE_FRAME_FOCUS] = {11, OWN, 3, OWN, TUI_BOLD},
                        [ROLE_TITLE] = {15, OWN, 7, OWN, TUI_BOLD},
                        [ROLE_TITLE_FOCUS] = {16, 11, 0, 3, TUI_BOLD},
                        [ROLE_STATUS] = {16, 15, 0, 7, 0},
                        [ROLE_STATUS_STRONG] = {16, 15, 0, 7, TUI_BOLD},
                        [ROLE_STATUS_WARN] = {16, 11, 0, 3, TUI_BOLD},
                        [ROLE_STATUS_BAD] = {15, 9, 7, 1, TUI_BOLD},
                        [ROLE_KEY] = {11, OWN, 3, OWN, TUI_BOLD},
                        [ROLE_HINT] = {15, OWN, 7, OWN, 0},
                        [ROLE_BUSY] = {10, OWN, 2, OWN, TUI_BOLD},
                        [ROLE_WAIT] = {11, OWN, 3, OWN, TUI_BOLD},
                        [ROLE_TRANSFER] = {14, OWN, 6, OWN, TUI_BOLD},
                        [ROLE_GRAPH] = {14, OWN, 6, OWN, 0},
                        [ROLE_ABSENT] = {7, OWN, 7, OWN, 0},
                        [ROLE_CHANGED] = {11, OWN, 3, OWN, TUI_BOLD},
                    },
                .selected = {OWN, OWN, OWN, OWN, TUI_REVERSE | TUI_BOLD},
                .match = {16, 11, 0, 3, TUI_BOLD},
            },
            {
                .name = "mono",
                .help = "no colours",
                .colours = false,
                .look =
                    {
                        [ROLE_DIM] = {OWN, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_HEAD] = {OWN, OWN, OWN, OWN, TUI_UNDERLINE},
                        [ROLE_USER] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_THINKING] = {OWN, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_WARN] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_ERROR] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_BAD] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_FRAME] = {OWN, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_FRAME_FOCUS] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_TITLE_FOCUS] = {OWN, OWN, OWN, OWN, TUI_BOLD | TUI_REVERSE},
                        [ROLE_STATUS] = {OWN, OWN, OWN, OWN, TUI_REVERSE},
                        [ROLE_STATUS_STRONG] = {OWN, OWN, OWN, OWN, TUI_REVERSE | TUI_BOLD},
                        [ROLE_STATUS_WARN] = {OWN, OWN, OWN, OWN, TUI_REVERSE | TUI_BOLD | TUI_UNDERLINE},
                        [ROLE_STATUS_BAD] = {OWN, OWN, OWN, OWN, TUI_BOLD | TUI_UNDERLINE},
                        [ROLE_KEY] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                        [ROLE_ABSENT] = {OWN, OWN, OWN, OWN, TUI_DIM},
                        [ROLE_CHANGED] = {OWN, OWN, OWN, OWN, TUI_BOLD},
                    },
                .selected = {OWN, OWN, OWN, OWN, TUI_REVERSE},
                .match = {OWN, OWN, OWN, OWN, TUI_REVERSE | TUI_BOLD},
            },
            {.name = NULL},
};

const struct tui_theme *tui_theme_find(const char *name)
{
    for (size_t i = 0; tui_themes[i].name != NULL; i++)
        if (strcmp(tui_themes[i].name, name) == 0)
            return &tui_themes[i];
    return NULL;
}

uint32_t tui_theme_rgb(int colour)
{
    static const uint32_t base[16] = {0x000000, 0xcd3131, 0x0dbc79, 0xc5a332, 0x2472c8, 0xbc3fbc, 0x11a8cd, 0xd0d0d0,
                                      0x666666, 0xf14c4c, 0x23d18b, 0xf5f543, 0x3b8eea, 0xd670d6, 0x29b8db, 0xffffff};
    static const uint32_t step[6] = {0, 95, 135, 175, 215, 255};
    if (colour < 16)
        return base[colour & 15];
    if (colour < 232)
        return step[(colour - 16) / 36] << 16 | step[(colour - 16) / 6 % 6] << 8 | step[(colour - 16) % 6];
    uint32_t grey = 8 + 10 * (uint32_t)(colour - 232);
    return grey << 16 | grey << 8 | grey;
}
