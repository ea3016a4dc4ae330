/* tui_key.h: bytes from a terminal as keys.
 *
 * A decoder takes bytes as they come, in any pieces, and gives keys: characters, named keys with modifiers, wheel turns, and a whole paste as
 * one. An escape byte alone is a key only when nothing follows in time, which the caller's clock decides. Each key carries the bytes that it
 * came as, for a line editor that wants them. No state but the decoder's; any thread. */
#ifndef RANKSCOPE_CONSOLE_TUI_KEY_H
#define RANKSCOPE_CONSOLE_TUI_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "console/buf.h"

/* Codes above Unicode. */
enum tui_key_code {
    TUI_KEY_NONE = 0x110000,
    TUI_KEY_ENTER,
    TUI_KEY_TAB,
    TUI_KEY_BACKSPACE,
    TUI_KEY_ESCAPE,
    TUI_KEY_UP,
    TUI_KEY_DOWN,
    TUI_KEY_RIGHT,
    TUI_KEY_LEFT,
    TUI_KEY_HOME,
    TUI_KEY_END,
    TUI_KEY_INSERT,
    TUI_KEY_DELETE,
    TUI_KEY_PAGE_UP,
    TUI_KEY_PAGE_DOWN,
    TUI_KEY_F1, /* up to F12 */
    TUI_KEY_F12 = TUI_KEY_F1 + 11,
    TUI_KEY_PASTE,   /* the text is in the decoder */
    TUI_KEY_WHEEL,   /* arg: +1 down, -1 up; y, x: where */
    TUI_KEY_CLICK,   /* the left button went down; y, x: where */
    TUI_KEY_UNKNOWN, /* a sequence that means nothing here */
};

enum tui_key_mod { TUI_SHIFT = 1, TUI_ALT = 2, TUI_CTRL = 4 };

struct tui_key {
    uint32_t code; /* a code point (control characters as the letter, with TUI_CTRL) or a tui_key_code */
    uint8_t mods;
    int arg, y, x;
    char bytes[32]; /* as it came; n 0 for a paste */
    size_t n;
};

#define TUI_PASTE_MAX (1u << 20) /* bytes; what goes beyond is dropped */

struct tui_decoder {
    char pending[64];
    size_t n;
    bool in_paste;
    struct buf paste; /* of the last TUI_KEY_PASTE: controls but newline and tab removed; valid until the next call */
};

/* Take bytes; returns how many fit. Ask for keys until there are none, then go on with the rest. */
size_t tui_key_feed(struct tui_decoder *d, const char *bytes, size_t n);

/* The next key. False: none is complete. With flush, a sequence that has begun is taken as it stands. */
bool tui_key_next(struct tui_decoder *d, bool flush, struct tui_key *out);

/* Whether bytes wait for more. */
bool tui_key_waiting(const struct tui_decoder *d);

void tui_key_fini(struct tui_decoder *d);

/* "C-x", "M-3", "S-Tab", "F12", "PageUp", "Space", "q". Parsing gives the bytes that a terminal would send as well. */
bool tui_key_parse(const char *name, struct tui_key *out);
const char *tui_key_name(const struct tui_key *k, char buf[24]);

#endif
