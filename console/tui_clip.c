/* tui_clip.c: text for the terminal's clipboard. */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "console/tui.h"

#define MOST 74000 /* bytes: terminals take about 100,000 of base64 */

static void base64(const char *text, size_t len, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        uint32_t v = (uint32_t)(unsigned char)text[i] << 16;
        v |= i + 1 < len ? (uint32_t)(unsigned char)text[i + 1] << 8 : 0;
        v |= i + 2 < len ? (unsigned char)text[i + 2] : 0;
        buf_char(out, digits[v >> 18]);
        buf_char(out, digits[v >> 12 & 63]);
        buf_char(out, i + 1 < len ? digits[v >> 6 & 63] : '=');
        buf_char(out, i + 2 < len ? digits[v & 63] : '=');
    }
}

/* Where a character begins, so that none is cut in two. */
static size_t cut(const char *text, size_t len)
{
    if (len <= MOST)
        return len;
    len = MOST;
    while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
        len--;
    return len;
}

void tui_clip(struct tui *t, const char *text, size_t len)
{
    size_t n = cut(text, len);
    struct buf b = {0};
    buf_str(&b, "\033]52;c;");
    base64(text, n, &b);
    buf_char(&b, '\a');
    if (t->screen != NULL) {
        t->screen->send(t->screen, b.text, b.len);
    } else if (isatty(STDOUT_FILENO)) {
        fwrite(b.text, 1, b.len, stdout);
        fflush(stdout);
    }
    buf_fini(&b);
    tui_say(t, false, "%zu bytes offered to the clipboard%s", n, n < len ? " (cut)" : "");
}
