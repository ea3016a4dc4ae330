/* See deliver.h. */
#include "engine/deliver.h"

#include <string.h>

#include "engine/engine.h"
#include "engine/server.h"

void deliver_rest(struct engine *e, struct seq *s)
{
    char tail[8];
    size_t n = vocab_stream_flush(&s->stream, tail, sizeof tail);
    char *dst = s->thinking ? s->thought : s->text;
    size_t *len = s->thinking ? &s->n_thought : &s->n_text;
    if (n != 0 && *len + n <= s->text_cap) {
        memcpy(dst + *len, tail, n);
        *len += n;
        if (s->thinking)
            server_token(e->server, s->subscribers, s->id, -1, RS_TOKEN_THINKING, tail, n, NULL, 0);
    }
    if (s->n_text > s->n_sent) { /* held back for a stop string that did not come */
        server_token(e->server, s->subscribers, s->id, -1, 0, s->text + s->n_sent, s->n_text - s->n_sent, NULL, 0);
        s->n_sent = s->n_text;
    }
}

/* How many bytes at the end of text could be the beginning of a stop string. */
static size_t could_be_stop(const struct seq *s)
{
    size_t most = 0;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        size_t len = strlen(s->stops[i]);
        for (size_t k = len < s->n_text ? len : s->n_text; k > most; k--)
            if (memcmp(s->text + s->n_text - k, s->stops[i], k) == 0) {
                most = k;
                break;
            }
    }
    return most;
}

/* Where the first complete stop string begins at or after `from`, or SIZE_MAX. */
static size_t find_stop(const struct seq *s, size_t from)
{
    size_t best = SIZE_MAX;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        size_t len = strlen(s->stops[i]);
        for (size_t at = from; at + len <= s->n_text && at < best; at++)
            if (memcmp(s->text + at, s->stops[i], len) == 0)
                best = at;
    }
    return best;
}

/* The token that was appended last, with its log-probabilities if they are kept. */
static void send_token(struct engine *e, const struct seq *s, int32_t id, uint32_t flags, const char *text, size_t len)
{
    const struct seq_logprob *p = s->n_logprobs != 0 ? s->logprobs + (size_t)(s->n_out - 1) * s->n_logprobs : NULL;
    server_token(e->server, s->subscribers, s->id, id, flags, text, len, p, s->n_logprobs * sizeof *p);
}

enum seq_stop deliver_token(struct engine *e, struct seq *s, int32_t id)
{
    size_t plen;
    const char *piece = vocab_piece(e->model->vocab, id, &plen);
    bool special = vocab_is_special(e->model->vocab, id);
    char buf[1024];
    size_t cap = sizeof buf;
    if (special && piece != NULL && plen == 8 && memcmp(piece, "</think>", 8) == 0 && s->thinking) {
        s->thinking = false;
        send_token(e, s, id, RS_TOKEN_SPECIAL, "", 0);
        return SEQ_STOP_NONE;
    }
    if (!special && s->thinking && plen == 8 && memcmp(piece, "</think>", 8) == 0) {
        s->thinking = false; /* a user-defined token in some files */
        send_token(e, s, id, RS_TOKEN_SPECIAL, "", 0);
        return SEQ_STOP_NONE;
    }
    size_t n = vocab_stream_put(e->model->vocab, &s->stream, id, s->special, buf, cap);
    if (n == SIZE_MAX)
        n = 0;
    health_text(&s->health, buf, n);
    uint32_t flags = special ? RS_TOKEN_SPECIAL : 0;
    if (s->thinking) {
        n = n < s->text_cap - s->n_thought ? n : s->text_cap - s->n_thought;
        memcpy(s->thought + s->n_thought, buf, n);
        s->n_thought += n;
        send_token(e, s, id, flags | RS_TOKEN_THINKING, buf, n);
        return SEQ_STOP_NONE;
    }
    size_t before = s->n_text;
    n = n < s->text_cap - s->n_text ? n : s->text_cap - s->n_text;
    memcpy(s->text + s->n_text, buf, n);
    s->n_text += n;
    size_t longest = 0;
    for (uint32_t i = 0; i < s->n_stops; i++)
        longest = strlen(s->stops[i]) > longest ? strlen(s->stops[i]) : longest;
    size_t hit = s->n_stops != 0 ? find_stop(s, before > longest ? before - longest : 0) : SIZE_MAX;
    if (hit != SIZE_MAX)
        s->n_text = hit;
    size_t show = hit != SIZE_MAX ? s->n_text : s->n_text - could_be_stop(s);
    if (show < s->n_sent)
        show = s->n_sent;
    send_token(e, s, id, flags, s->text + s->n_sent, show - s->n_sent);
    s->n_sent = show;
    return hit != SIZE_MAX ? SEQ_STOP_STRING : SEQ_STOP_NONE;
}

void deliver_later(struct engine *e, struct seq *s, int32_t id, const struct sample_info *info)
{
    e->late[e->n_late++] = (struct deliver_late){.s = s, .id = id, .n = s->n, .n_out = s->n_out, .info = *info};
}

void deliver_pending(struct engine *e)
{
    const uint32_t n = e->n_late;
    e->n_late = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct deliver_late *l = &e->late[i];
        health_token(&l->s->health, l->id, l->s->tok, l->n, l->n_out, &l->info, sample_honest(&l->s->sp));
        (void)deliver_token(e, l->s, l->id); /* it has no stop strings */
    }
}
