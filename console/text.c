#include "config.h"

#include "console/text.h"

#include <stdint.h>
#include <string.h>
#include <wchar.h>

static const char replacement[] = "\xef\xbf\xbd";

int text_utf8(const unsigned char *s, size_t n, unsigned *cp)
{
    static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0)
        return 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    int len = s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : -1;
    if (len < 0)
        return -1;
    unsigned c = s[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        if ((s[i] & 0xc0) != 0x80)
            return -1;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return -1;
    *cp = c;
    return len;
}

bool text_valid(const char *text, size_t len, size_t *bad)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        unsigned cp;
        int n = text_utf8(s + i, len - i, &cp);
        if (n <= 0 || cp == 0) {
            *bad = i;
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

/* One whole character. C1 characters are what ESC followed by a letter stands for, so they show the same way. */
static void clean_char(unsigned cp, const char *bytes, size_t len, struct buf *out)
{
    if (cp == '\n' || cp == '\t' || (cp >= 0x20 && cp < 0x7f) || cp >= 0xa0) {
        buf_add(out, bytes, len);
    } else if (cp < 0x80) {
        buf_char(out, '^');
        buf_char(out, (char)(cp ^ 0x40));
    } else {
        buf_str(out, "^[");
        buf_char(out, (char)(cp - 0x40));
    }
}

static void clean_cr(struct text_filter *f, unsigned next, struct buf *out)
{
    if (f->after_cr && next != '\n')
        buf_str(out, "^M");
    f->after_cr = false;
}

void text_clean(struct text_filter *f, const char *text, size_t len, struct buf *out)
{
    size_t i = 0;
    while (i < len) {
        unsigned char s[4];
        size_t n = f->n_held;
        memcpy(s, f->held, n);
        while (n < 4 && i + n - f->n_held < len) {
            s[n] = (unsigned char)text[i + n - f->n_held];
            n++;
        }
        unsigned cp = 0;
        int used = text_utf8(s, n, &cp);
        if (used == 0) {
            memcpy(f->held, s, n);
            f->n_held = (unsigned)n;
            return;
        }
        clean_cr(f, used < 0 ? 0 : cp, out);
        if (used < 0) {
            /* Drop what was held, or the one byte, and look again at the rest. */
            buf_str(out, replacement);
            used = f->n_held > 0 ? (int)f->n_held : 1;
        } else if (cp == '\r') {
            f->after_cr = true;
        } else {
            clean_char(cp, (const char *)s, (size_t)used, out);
        }
        i += (size_t)used - f->n_held;
        f->n_held = 0;
    }
}

void text_clean_end(struct text_filter *f, struct buf *out)
{
    clean_cr(f, 0, out);
    if (f->n_held > 0)
        buf_str(out, replacement);
    f->n_held = 0;
}

char *text_one_line(const char *text)
{
    struct text_filter f = {0};
    struct buf clean = {0}, line = {0};
    text_clean(&f, text, strlen(text), &clean);
    text_clean_end(&f, &clean);
    for (size_t i = 0; i < clean.len; i++) {
        if (clean.text[i] == '\n' || clean.text[i] == '\t') {
            buf_char(&line, '^');
            buf_char(&line, (char)(clean.text[i] ^ 0x40));
        } else {
            buf_char(&line, clean.text[i]);
        }
    }
    buf_fini(&clean);
    return buf_take(&line);
}

size_t text_fit(const char *text, size_t columns, size_t *used)
{
    mbstate_t st = {0};
    size_t left = strlen(text), at = 0;
    *used = 0;
    while (at < left) {
        wchar_t wc;
        size_t n = mbrtowc(&wc, text + at, left - at, &st), w = 1;
        if (n == (size_t)-1 || n == (size_t)-2 || n == 0) {
            /* Not a character of this locale: one column a byte is what terminals show. */
            st = (mbstate_t){0};
            n = 1;
        } else {
            int wide = wcwidth(wc);
            w = wide > 0 ? (size_t)wide : 0;
        }
        if (w > columns - *used)
            break;
        *used += w;
        at += n;
    }
    return at;
}

size_t text_columns(const char *text)
{
    size_t used;
    text_fit(text, SIZE_MAX, &used);
    return used;
}
