/* Tokens to text, one at a time, in whole UTF-8 characters. */
#include "engine/vocab.h"

#include <string.h>

#include "engine/vocab_int.h"

static const char s_replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD}; /* U+FFFD */

size_t vocab_stream_bound(const struct vocab *v)
{
    /* every byte, held ones included, may turn into a replacement character of 3 */
    return 3 * ((size_t)v->longest + sizeof(((struct vocab_stream *)0)->hold));
}

size_t vocab_stream_flush(struct vocab_stream *s, char *out, size_t cap)
{
    if (s->n_hold == 0 || cap < 3)
        return 0;
    memcpy(out, s_replacement, 3);
    s->n_hold = 0;
    return 3;
}

/* Append bytes to the stream: whole characters go out, an unfinished one at the end is held. out has room. */
static size_t feed(struct vocab_stream *s, const uint8_t *p, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        s->hold[s->n_hold++] = p[i];
        size_t bad;
        bool unfinished;
        size_t k;
        /* at most two rounds: a byte that breaks a held beginning is looked at again on its own */
        while (s->n_hold > 0 && ((k = vocab_utf8(s->hold, s->n_hold, &bad, &unfinished)) > 0 || !unfinished)) {
            if (k > 0)
                memcpy(out + n, s->hold, k);
            else
                memcpy(out + n, s_replacement, 3);
            n += k > 0 ? k : 3;
            k = k > 0 ? k : bad;
            memmove(s->hold, s->hold + k, s->n_hold - k);
            s->n_hold = (uint8_t)(s->n_hold - k);
        }
    }
    return n;
}

size_t vocab_stream_put(const struct vocab *v, struct vocab_stream *s, int32_t id, bool with_special, char *out, size_t cap)
{
    size_t len;
    const char *p = vocab_piece(v, id, &len);
    if (cap < vocab_stream_bound(v))
        return SIZE_MAX;
    if (p == NULL || (vocab_is_special(v, id) && !with_special))
        return 0;
    return feed(s, (const uint8_t *)p, len, out);
}
