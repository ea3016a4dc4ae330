#include "config.h"

#include "console/tui_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/grid.h"
#include "console/text.h"

#define PASTE_END "\033[201~"

/* Named keys: the sequence that this program expects first, and the end of CSI sequences that mean the same. */
static const struct {
    const char *name;
    uint32_t code;
    uint8_t mods;
    const char *bytes;
    int number; /* of "CSI number ~"; 0: none */
    char final; /* of "CSI final" and "SS3 final"; 0: none */
} s_named[] = {
    {"Enter", TUI_KEY_ENTER, 0, "\r", 0, 0},
    {"Tab", TUI_KEY_TAB, 0, "\t", 0, 0},
    {"S-Tab", TUI_KEY_TAB, TUI_SHIFT, "\033[Z", 0, 'Z'},
    {"Backspace", TUI_KEY_BACKSPACE, 0, "\177", 0, 0},
    {"Escape", TUI_KEY_ESCAPE, 0, "\033", 0, 0},
    {"Up", TUI_KEY_UP, 0, "\033[A", 0, 'A'},
    {"Down", TUI_KEY_DOWN, 0, "\033[B", 0, 'B'},
    {"Right", TUI_KEY_RIGHT, 0, "\033[C", 0, 'C'},
    {"Left", TUI_KEY_LEFT, 0, "\033[D", 0, 'D'},
    {"Home", TUI_KEY_HOME, 0, "\033[H", 1, 'H'},
    {"End", TUI_KEY_END, 0, "\033[F", 4, 'F'},
    {"Home", TUI_KEY_HOME, 0, "\033[7~", 7, 0},
    {"End", TUI_KEY_END, 0, "\033[8~", 8, 0},
    {"Insert", TUI_KEY_INSERT, 0, "\033[2~", 2, 0},
    {"Delete", TUI_KEY_DELETE, 0, "\033[3~", 3, 0},
    {"PageUp", TUI_KEY_PAGE_UP, 0, "\033[5~", 5, 0},
    {"PageDown", TUI_KEY_PAGE_DOWN, 0, "\033[6~", 6, 0},
    {"F1", TUI_KEY_F1, 0, "\033OP", 11, 'P'},
    {"F2", TUI_KEY_F1 + 1, 0, "\033OQ", 12, 'Q'},
    {"F3", TUI_KEY_F1 + 2, 0, "\033OR", 13, 'R'},
    {"F4", TUI_KEY_F1 + 3, 0, "\033OS", 14, 'S'},
    {"F5", TUI_KEY_F1 + 4, 0, "\033[15~", 15, 0},
    {"F6", TUI_KEY_F1 + 5, 0, "\033[17~", 17, 0},
    {"F7", TUI_KEY_F1 + 6, 0, "\033[18~", 18, 0},
    {"F8", TUI_KEY_F1 + 7, 0, "\033[19~", 19, 0},
    {"F9", TUI_KEY_F1 + 8, 0, "\033[20~", 20, 0},
    {"F10", TUI_KEY_F1 + 9, 0, "\033[21~", 21, 0},
    {"F11", TUI_KEY_F1 + 10, 0, "\033[23~", 23, 0},
    {"F12", TUI_KEY_F1 + 11, 0, "\033[24~", 24, 0},
    {"Space", ' ', 0, " ", 0, 0},
};

#define N_NAMED (sizeof s_named / sizeof s_named[0])

/* ---- names --------------------------------------------------------------------------------------------------------------------------- */

static void set_bytes(struct tui_key *k, const char *bytes, size_t n)
{
    k->n = n < sizeof k->bytes ? n : sizeof k->bytes;
    memcpy(k->bytes, bytes, k->n);
}

static bool parse_char(const char *name, uint8_t mods, struct tui_key *out)
{
    unsigned cp;
    struct buf b = {0};
    size_t len = strlen(name);
    int n = text_utf8((const unsigned char *)name, len, &cp);
    if (n <= 0 || (size_t)n != len || cp < 0x20 || (mods & TUI_CTRL && !(cp >= '@' && cp <= '~')))
        return false;
    *out = (struct tui_key){.code = cp, .mods = mods};
    if (mods & TUI_ALT)
        buf_char(&b, '\033');
    if (mods & TUI_CTRL)
        buf_char(&b, (char)(cp & 0x1f));
    else
        buf_str(&b, name);
    set_bytes(out, b.text, b.len);
    buf_fini(&b);
    return true;
}

bool tui_key_parse(const char *name, struct tui_key *out)
{
    uint8_t mods = 0;
    for (size_t i = 0; i < N_NAMED; i++) {
        if (strcmp(s_named[i].name, name) != 0)
            continue;
        *out = (struct tui_key){.code = s_named[i].code, .mods = s_named[i].mods};
        set_bytes(out, s_named[i].bytes, strlen(s_named[i].bytes));
        return true;
    }
    while (name[0] != '\0' && name[1] == '-' && name[2] != '\0') {
        mods |= name[0] == 'C' ? TUI_CTRL : name[0] == 'M' ? TUI_ALT : 0;
        if (name[0] != 'C' && name[0] != 'M')
            return false;
        name += 2;
    }
    return parse_char(name, mods, out);
}

const char *tui_key_name(const struct tui_key *k, char buf[24])
{
    struct buf b = {0};
    const char *name = NULL;
    for (size_t i = 0; i < N_NAMED && name == NULL; i++)
        if (s_named[i].code == k->code && (s_named[i].mods & ~k->mods) == 0)
            name = s_named[i].name;
    for (size_t i = 0; i < N_NAMED; i++)
        if (s_named[i].code == k->code && s_named[i].mods == k->mods)
            name = s_named[i].name;
    if (k->mods & TUI_CTRL)
        buf_str(&b, "C-");
    if (k->mods & TUI_ALT)
        buf_str(&b, "M-");
    if (k->mods & TUI_SHIFT && (name == NULL || strncmp(name, "S-", 2) != 0))
        buf_str(&b, "S-");
    if (name != NULL)
        buf_str(&b, name);
    else if (k->code < TUI_KEY_NONE)
        grid_utf8(&b, k->code);
    else
        buf_str(&b, k->code == TUI_KEY_PASTE ? "paste" : k->code == TUI_KEY_WHEEL ? "wheel" : k->code == TUI_KEY_CLICK ? "click" : "?");
    snprintf(buf, 24, "%s", b.text);
    buf_fini(&b);
    return buf;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------------------ */

size_t tui_key_feed(struct tui_decoder *d, const char *bytes, size_t n)
{
    size_t room = sizeof d->pending - d->n;
    n = n < room ? n : room;
    memcpy(d->pending + d->n, bytes, n);
    d->n += n;
    return n;
}

bool tui_key_waiting(const struct tui_decoder *d)
{
    return d->n > 0;
}

void tui_key_fini(struct tui_decoder *d)
{
    buf_fini(&d->paste);
    *d = (struct tui_decoder){0};
}

/* Take n bytes off the front as the bytes of key k. */
static bool take(struct tui_decoder *d, struct tui_key *k, size_t n)
{
    set_bytes(k, d->pending, n);
    memmove(d->pending, d->pending + n, d->n - n);
    d->n -= n;
    return true;
}

/* CSI final and CSI number;mods ~ */
static void csi_key(struct tui_key *k, const int *args, int n_args, char final)
{
    int mods = n_args > 1 ? args[1] - 1 : 0;
    for (size_t i = 0; i < N_NAMED; i++) {
        if (final == '~' ? s_named[i].number == 0 || s_named[i].number != args[0] : s_named[i].final == 0 || s_named[i].final != final)
            continue;
        k->code = s_named[i].code;
        k->mods = s_named[i].mods;
        if (mods > 0 && mods < 8)
            k->mods |= (uint8_t)((mods & 1 ? TUI_SHIFT : 0) | (mods & 2 ? TUI_ALT : 0) | (mods & 4 ? TUI_CTRL : 0));
        return;
    }
}

/* "CSI < button ; x ; y M": wheel turns and the left button mean something. */
static void mouse_key(struct tui_key *k, const int *args, int n_args)
{
    bool wheel = (args[0] & ~1) == 64;
    if (n_args != 3 || (!wheel && args[0] != 0))
        return;
    k->code = wheel ? TUI_KEY_WHEEL : TUI_KEY_CLICK;
    k->arg = args[0] & 1 ? 1 : -1;
    k->x = args[1] - 1;
    k->y = args[2] - 1;
}

/* At "ESC [". Returns the length of the sequence, 0 when its end has not come. */
static size_t csi(const struct tui_decoder *d, struct tui_key *k)
{
    int args[4] = {0}, n_args = 0;
    size_t i = 2;
    bool mouse = i < d->n && d->pending[i] == '<';
    if (i < d->n && d->pending[i] == '[') { /* the function keys of the Linux console */
        if (i + 1 == d->n)
            return 0;
        char c = d->pending[i + 1];
        if (c >= 'A' && c <= 'E')
            k->code = TUI_KEY_F1 + (uint32_t)(c - 'A');
        return i + 2;
    }
    for (i += mouse; i < d->n; i++) {
        unsigned char c = (unsigned char)d->pending[i];
        if (c >= '0' && c <= '9' && n_args < 4) {
            if (n_args == 0)
                n_args = 1;
            if (args[n_args - 1] < 10000)
                args[n_args - 1] = args[n_args - 1] * 10 + (c - '0');
        } else if (c == ';' && n_args < 4) {
            n_args += n_args == 0 ? 2 : 1;
        } else if (c >= 0x40 && c <= 0x7e) {
            if (mouse && c == 'M')
                mouse_key(k, args, n_args);
            else if (!mouse)
                csi_key(k, args, n_args, (char)c);
            if (c == '~' && args[0] == 200)
                k->code = TUI_KEY_PASTE;
            return i + 1;
        } else if (c < 0x20 || c > 0x3f) {
            return i; /* it was cut short; the byte begins something else */
        }
    }
    return d->n >= 31 ? d->n : 0;
}

static size_t escape(struct tui_decoder *d, bool flush, struct tui_key *k)
{
    *k = (struct tui_key){.code = TUI_KEY_UNKNOWN};
    if (d->n == 1 || d->pending[1] == '\033') {
        k->code = TUI_KEY_ESCAPE;
        return d->n > 1 || flush ? 1 : 0;
    }
    if (d->pending[1] == '[') {
        size_t n = csi(d, k);
        if (n == 0 && flush) {
            k->code = d->n == 2 ? '[' : TUI_KEY_UNKNOWN;
            k->mods = d->n == 2 ? TUI_ALT : 0;
            n = d->n;
        }
        return n;
    }
    if (d->pending[1] == 'O') {
        if (d->n == 2) {
            k->code = 'O';
            k->mods = TUI_ALT;
            return flush ? 2 : 0;
        }
        csi_key(k, (int[2]){0, 1}, 1, d->pending[2]);
        return 3;
    }
    return (size_t)-1; /* Alt and a key */
}

/* A key without escape at pending[at]; returns its length, 0 when more is needed. */
static size_t plain(const struct tui_decoder *d, size_t at, bool flush, struct tui_key *k)
{
    unsigned char c = (unsigned char)d->pending[at];
    k->code = c == '\r' || c == '\n' ? TUI_KEY_ENTER : c == '\t' ? TUI_KEY_TAB : c == 0x7f || c == 0x08 ? TUI_KEY_BACKSPACE : 0;
    if (k->code != 0)
        return 1;
    if (c < 0x20) {
        k->code = c == 0 ? '@' : c < 0x1b ? (uint32_t)(c | 0x60) : (uint32_t)(c | 0x40);
        k->mods |= TUI_CTRL;
        return 1;
    }
    unsigned cp = 0;
    int n = text_utf8((const unsigned char *)d->pending + at, d->n - at, &cp);
    if (n == 0 && !flush)
        return 0;
    k->code = n > 0 ? cp : TUI_KEY_UNKNOWN;
    return n > 0 ? (size_t)n : 1;
}

/* Text of a paste, as far as it is there. Returns whether its end was. */
static bool paste(struct tui_decoder *d)
{
    const size_t mark = sizeof PASTE_END - 1;
    size_t i = 0;
    while (i < d->n) {
        size_t left = d->n - i, cmp = left < mark ? left : mark;
        if (d->pending[i] == '\033' && memcmp(d->pending + i, PASTE_END, cmp) == 0) {
            if (left < mark)
                break; /* it may become the end */
            i += mark;
            d->in_paste = false;
            break;
        }
        char c = d->pending[i++];
        if (c == '\r')
            c = '\n';
        if (((unsigned char)c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t')
            if (d->paste.len < TUI_PASTE_MAX)
                buf_char(&d->paste, c);
    }
    memmove(d->pending, d->pending + i, d->n - i);
    d->n -= i;
    return !d->in_paste;
}

bool tui_key_next(struct tui_decoder *d, bool flush, struct tui_key *k)
{
    *k = (struct tui_key){.code = TUI_KEY_NONE};
    if (d->in_paste) {
        if (!paste(d))
            return false;
        k->code = TUI_KEY_PASTE;
        return true;
    }
    if (d->n == 0)
        return false;
    size_t n;
    if (d->pending[0] == '\033') {
        n = escape(d, flush, k);
        if (n == (size_t)-1) {
            *k = (struct tui_key){.mods = TUI_ALT};
            n = plain(d, 1, flush, k);
            n += n > 0;
        }
    } else {
        *k = (struct tui_key){0};
        n = plain(d, 0, flush, k);
    }
    if (n == 0)
        return false;
    take(d, k, n);
    if (k->code == TUI_KEY_PASTE) {
        buf_clear(&d->paste);
        d->in_paste = true;
        return tui_key_next(d, flush, k);
    }
    return true;
}
