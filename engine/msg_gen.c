/* Methods about generation: submit, cancel, stream.get, encode, decode, forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/server.h"

enum rs_result msg_need_model(const struct engine *e, struct rs_error *err)
{
    return e->model != NULL ? RS_OK : error_set(err, RS_ESTATE, "no model is open");
}

static enum rs_result encode_segments(struct engine *e, json_t *list, int32_t **ids, size_t *n, struct rs_error *err)
{
    size_t count = json_array_size(list);
    struct vocab_segment *seg = calloc(count + 1, sizeof *seg);
    enum rs_result rc = seg == NULL ? error_set(err, RS_ENOMEM, "out of memory for %zu segments", count) : RS_OK;
    for (size_t i = 0; i < count && rc == RS_OK; i++) {
        json_t *o = json_array_get(list, i), *text = json_object_get(o, "text"), *special = json_object_get(o, "special");
        if (!json_is_string(text) || (special != NULL && !json_is_boolean(special)))
            rc = error_set(err, RS_EUSAGE, "segments[%zu] must be {\"text\": string, \"special\": bool}", i);
        else
            seg[i] = (struct vocab_segment){json_string_value(text), json_string_length(text), json_is_true(special)};
    }
    if (rc == RS_OK)
        rc = vocab_encode(e->model->vocab, seg, count, ids, n, err);
    free(seg);
    return rc;
}

enum rs_result msg_read_ids(struct engine *e, struct args *a, int32_t **ids, size_t *n, struct rs_error *err)
{
    json_t *segments = NULL;
    const char *text = NULL;
    bool special = false, given;
    *ids = NULL;
    args_bool(a, "special", &special);
    if (args_array(a, "segments", &segments))
        return encode_segments(e, segments, ids, n, err);
    if (args_str(a, "text", &text)) {
        struct vocab_segment seg = {text, strlen(text), special};
        return vocab_encode(e->model->vocab, &seg, 1, ids, n, err);
    }
    given = args_ids(a, "ids", e->model->hp.vocab, ids, n);
    args_need(a, given, "segments (or text, or ids)");
    return a->rc;
}

static void read_bias(struct args *a, uint32_t vocab, struct sample_params *p)
{
    json_t *o, *v;
    const char *key;
    if (!args_object(a, "logit_bias", &o))
        return;
    json_object_foreach(o, key, v) {
        char *end;
        long id = strtol(key, &end, 10);
        if (*end != '\0' || end == key || id < 0 || id >= (long)vocab || !json_is_number(v) || p->n_bias == SAMPLE_MAX_BIAS) {
            a->rc = error_set(a->err, RS_EUSAGE, "logit_bias takes at most %d entries \"token id\": number", SAMPLE_MAX_BIAS);
            return;
        }
        p->bias[p->n_bias].token = (int32_t)id;
        p->bias[p->n_bias++].value = (float)json_number_value(v);
    }
}

static void read_sampling(struct args *a, uint32_t vocab, struct sample_params *p)
{
    long long seed;
    sample_defaults(p);
    args_f32(a, "temp", 0, 100, &p->temp);
    args_u32(a, "top_k", 0, UINT32_MAX, &p->top_k);
    args_f32(a, "top_p", 0, 1, &p->top_p);
    args_f32(a, "min_p", 0, 1, &p->min_p);
    args_f32(a, "typical_p", 0, 1, &p->typical_p);
    args_f32(a, "repeat_penalty", 0.01, 100, &p->repeat_penalty);
    args_f32(a, "frequency_penalty", -100, 100, &p->frequency_penalty);
    args_f32(a, "presence_penalty", -100, 100, &p->presence_penalty);
    args_u32(a, "penalty_last_n", 0, 4096, &p->penalty_last_n);
    read_bias(a, vocab, p);
    if (args_int(a, "seed", INT64_MIN, INT64_MAX, &seed))
        p->seed = (uint64_t)seed;
    else
        p->seed = now_us() * 0x9e3779b97f4a7c15u;
}

static void read_stops(struct args *a, struct seq *s)
{
    json_t *list;
    if (!args_array(a, "stop", &list))
        return;
    if (json_array_size(list) > SEQ_MAX_STOPS) {
        a->rc = error_set(a->err, RS_EUSAGE, "at most %d stop strings", SEQ_MAX_STOPS);
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *v = json_array_get(list, i);
        if (!json_is_string(v) || json_string_length(v) == 0 || json_string_length(v) > 256) {
            a->rc = error_set(a->err, RS_EUSAGE, "stop[%zu] must be a string of 1 to 256 bytes", i);
            return;
        }
        s->stops[s->n_stops] = strdup(json_string_value(v));
        if (s->stops[s->n_stops] == NULL) {
            a->rc = error_set(a->err, RS_ENOMEM, "out of memory for a stop string");
            return;
        }
        s->n_stops++;
    }
}

static struct session *find_session(struct engine *e, uint32_t id)
{
    for (struct session *x = e->sessions; x != NULL; x = x->next)
        if (x->id == id)
            return x;
    return NULL;
}

/* Everything that the sequence will ever append to, at once. */
static enum rs_result allocate(struct engine *e, struct seq *s, const int32_t *ids, uint32_t n, struct rs_error *err)
{
    uint32_t limit = e->rt->cfg.ctx < e->model->hp.context ? e->rt->cfg.ctx : e->model->hp.context;
    if (n == 0)
        return error_set(err, RS_EUSAGE, "the prompt is empty");
    if (n >= limit)
        return error_set(err, RS_EUSAGE, "a prompt of %u tokens does not fit into a context of %u", n, limit);
    if (s->max_out > limit - n || s->max_out == 0)
        s->max_out = limit - n;
    s->cap = n + s->max_out;
    s->n = s->n_prompt = n;
    s->text_cap = (size_t)s->max_out * 24 + 1024;
    s->tok = malloc(s->cap * sizeof *s->tok);
    s->kind = calloc(s->cap, 1);
    s->table = calloc(s->cap / RUNTIME_BLOCK + 2, sizeof *s->table);
    s->text = malloc(s->text_cap);
    s->thought = malloc(s->text_cap);
    s->logprobs = s->n_logprobs != 0 ? malloc((size_t)s->max_out * s->n_logprobs * sizeof *s->logprobs) : NULL;
    if ((s->n_logprobs != 0 && s->logprobs == NULL) || s->tok == NULL || s->kind == NULL || s->table == NULL || s->text == NULL || s->thought == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a sequence of %u tokens", s->cap);
    memcpy(s->tok, ids, n * sizeof *ids);
    return RS_OK;
}

static void inherit_kinds(struct engine *e, struct seq *s)
{
    struct session *x = find_session(e, s->session);
    for (uint32_t i = 0; x != NULL && i < s->n && i < x->n && s->tok[i] == x->tok[i]; i++)
        s->kind[i] = x->kind[i];
}

static enum rs_result msg_submit(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    struct seq *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a sequence");
    s->reuse = true;
    args_bool(a, "reuse", &s->reuse);
    args_u32(a, "session", 1, UINT32_MAX, &s->session);
    args_u32(a, "max_tokens", 1, UINT32_MAX, &s->max_out);
    if (args_u32(a, "logprobs", 0, SEQ_MAX_LOGPROBS, &s->n_logprobs))
        s->n_logprobs++; /* the token's own */
    args_bool(a, "thinking", &s->thinking);
    args_bool(a, "ignore_eos", &s->ignore_eos);
    read_sampling(a, e->model->hp.vocab, &s->sp);
    read_stops(a, s);
    rc = a->rc == RS_OK ? msg_read_ids(e, a, &ids, &n, err) : a->rc;
    args_bool(a, "show_special", &s->special);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && s->session != 0 && find_session(e, s->session) == NULL)
        rc = error_set(err, RS_ENOTFOUND, "there is no session %u", s->session);
    if (rc == RS_OK)
        rc = msg_check_capturable(e, e->rt->choices, e->graph, e->guard, err);
    if (rc == RS_OK)
        rc = allocate(e, s, ids, (uint32_t)n, err);
    free(ids);
    if (rc != RS_OK) {
        seq_free(s);
        return rc;
    }
    inherit_kinds(e, s);
    sample_seed(&s->rng, s->sp.seed);
    health_reset(&s->health);
    s->id = e->next_stream++;
    s->t_submit = now_us();
    s->subscribers = 1u << m->slot;
    s->owner = m->slot;
    snprintf(s->client, sizeof s->client, "%s", server_client_name(e->server, m->slot));
    sched_add(e, s);
    struct session *x = find_session(e, s->session);
    if (x != NULL)
        x->stream = s->id;
    json_object_set_new(m->reply, "stream", json_integer(s->id));
    json_object_set_new(m->reply, "prompt_tokens", json_integer((json_int_t)n));
    json_object_set_new(m->reply, "max_tokens", json_integer(s->max_out));
    return RS_OK;
}

static struct seq *find_stream(struct engine *e, uint32_t id)
{
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        if (s->id == id)
            return s;
    return NULL;
}

static enum rs_result msg_cancel(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t id = 0;
    args_need(a, args_u32(a, "stream", 1, UINT32_MAX, &id), "stream");
    enum rs_result rc = args_end(a);
    struct seq *s = rc == RS_OK ? find_stream(e, id) : NULL;
    if (rc == RS_OK && s == NULL)
        return error_set(err, RS_ENOTFOUND, "there is no stream %u", id);
    if (rc == RS_OK && s->owner != m->slot && !server_in_control(e->server, m->slot))
        return error_set(err, RS_ESTATE, "stream %u is another client's", id);
    if (rc == RS_OK)
        step_cancel(e, s);
    return rc;
}

static enum rs_result msg_stream_get(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t id = 0;
    bool follow = false;
    args_need(a, args_u32(a, "stream", 1, UINT32_MAX, &id), "stream");
    args_bool(a, "follow", &follow);
    enum rs_result rc = args_end(a);
    struct seq *s = rc == RS_OK ? find_stream(e, id) : NULL;
    if (rc == RS_OK && s == NULL)
        return error_set(err, RS_ENOTFOUND, "there is no stream %u", id);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "stream", json_integer(s->id));
    json_object_set_new(m->reply, "state", json_string(s->state == SEQ_DONE ? "done" : s->state == SEQ_RUNNING ? "running" : "waiting"));
    json_object_set_new(m->reply, "text", json_stringn_nocheck(s->text, s->state == SEQ_DONE ? s->n_text : s->n_sent));
    json_object_set_new(m->reply, "thinking", json_stringn_nocheck(s->thought, s->n_thought));
    json_object_set_new(m->reply, "tokens", json_integer(s->n_out));
    json_t *done = s->done != NULL ? json_loads(s->done, JSON_ALLOW_NUL, NULL) : NULL;
    json_object_set_new(m->reply, "done", done != NULL ? done : json_null());
    if (follow && s->state != SEQ_DONE)
        s->subscribers |= 1u << m->slot;
    return RS_OK;
}

static enum rs_result msg_encode(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc == RS_OK)
        rc = msg_read_ids(e, a, &ids, &n, err);
    if (rc == RS_OK)
        rc = args_end(a);
    json_t *list = json_array(), *pieces = json_array();
    for (size_t i = 0; i < n && rc == RS_OK; i++) {
        size_t len;
        const char *p = vocab_piece(e->model->vocab, ids[i], &len);
        json_array_append_new(list, json_integer(ids[i]));
        json_t *text = p != NULL ? json_stringn(p, len) : NULL; /* NULL also for half a character */
        json_array_append_new(pieces, text != NULL ? text : json_null());
    }
    free(ids);
    json_object_set_new(m->reply, "ids", list);
    json_object_set_new(m->reply, "pieces", pieces);
    return rc;
}

static enum rs_result msg_decode(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0, len = 0;
    bool special = false;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    args_need(a, args_ids(a, "ids", e->model->hp.vocab, &ids, &n), "ids");
    args_bool(a, "special", &special);
    rc = args_end(a);
    size_t bound = vocab_stream_bound(e->model->vocab);
    char *out = rc == RS_OK ? malloc((n + 1) * bound + 8) : NULL;
    struct vocab_stream st = {{0}, 0};
    for (size_t i = 0; i < n && out != NULL; i++)
        len += vocab_stream_put(e->model->vocab, &st, ids[i], special, out + len, bound);
    if (out != NULL) {
        len += vocab_stream_flush(&st, out + len, 8);
        json_object_set_new(m->reply, "text", json_stringn_nocheck(out, len));
    } else if (rc == RS_OK) {
        rc = error_set(err, RS_ENOMEM, "out of memory");
    }
    free(out);
    free(ids);
    return rc;
}

/* The bytes of all tokens: for clients that show tokens by number. */
static enum rs_result msg_pieces(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    const struct vocab *v = e->model->vocab;
    uint32_t n = vocab_size(v), at = 0;
    size_t len, total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += vocab_piece(v, (int32_t)i, &len) != NULL ? len : 0;
    uint32_t *start = total <= UINT32_MAX ? malloc((n + 1) * sizeof *start + total) : NULL;
    if (start == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %zu bytes", total);
    char *bytes = (char *)(start + n + 1);
    for (uint32_t i = 0; i < n; i++) {
        const char *p = vocab_piece(v, (int32_t)i, &len);
        start[i] = at;
        if (p != NULL) {
            memcpy(bytes + at, p, len);
            at += (uint32_t)len;
        }
    }
    start[n] = at;
    json_object_set_new(m->reply, "n", json_integer(n));
    m->out = start;
    m->out_len = (n + 1) * sizeof *start + total;
    return RS_OK;
}

static enum rs_result forward(struct engine *e, struct msg *m, const int32_t *ids, uint32_t n, int logits, bool layers, struct rs_error *err)
{
    const struct hparams *hp = &e->model->hp;
    size_t rows = logits == 2 ? n : logits == 1 ? 1 : 0, n_logits = rows * hp->vocab, n_layers = layers ? (size_t)(hp->n_layers + 1) * hp->n_embd : 0;
    if ((n_logits + n_layers) * sizeof(float) > (1u << 29))
        return error_set(err, RS_EUSAGE, "%zu floats are too many for one reply", n_logits + n_layers);
    float *blob = calloc(n_logits + n_layers + 1, sizeof *blob);
    struct forward_out o = {.argmax = malloc((n + 1) * sizeof(int32_t)), .logits = rows != 0 ? blob : NULL, .all_logits = logits == 2,
                            .layers = layers ? blob + n_logits : NULL};
    enum rs_result rc = blob == NULL || o.argmax == NULL ? error_set(err, RS_ENOMEM, "out of memory") : forward_run(e, ids, n, &o, err);
    if (rc == RS_OK) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer(o.argmax[i]));
        json_object_set_new(m->reply, "argmax_each", list);
        json_object_set_new(m->reply, "n", json_integer(n));
        json_object_set_new(m->reply, "vocab", json_integer(hp->vocab));
        json_object_set_new(m->reply, "logits", json_pack("{s:I,s:i}", "rows", (json_int_t)rows, "offset", 0));
        json_object_set_new(m->reply, "layers", json_pack("{s:i,s:i,s:I}", "rows", layers ? (int)hp->n_layers + 1 : 0, "width", (int)hp->n_embd, "offset", (json_int_t)n_logits));
        json_object_set_new(m->reply, "nll", isfinite(o.nll) ? json_real(o.nll) : json_null());
        m->out = blob;
        m->out_len = (n_logits + n_layers) * sizeof(float);
        blob = NULL;
    }
    free(o.argmax);
    free(blob);
    return rc;
}

static enum rs_result msg_forward(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    const char *which = "last";
    bool layers = false;
    enum rs_result rc = msg_need_model(e, err);
    if (rc == RS_OK)
        rc = msg_read_ids(e, a, &ids, &n, err);
    args_str(a, "logits", &which);
    args_bool(a, "layers", &layers);
    if (rc == RS_OK)
        rc = args_end(a);
    int logits = strcmp(which, "all") == 0 ? 2 : strcmp(which, "last") == 0 ? 1 : strcmp(which, "none") == 0 ? 0 : -1;
    if (rc == RS_OK && logits < 0)
        rc = error_set(err, RS_EUSAGE, "logits must be all, last or none, not '%.20s'", which);
    if (rc == RS_OK && (n == 0 || n > e->model->hp.context))
        rc = error_set(err, RS_EUSAGE, "%zu tokens, expected 1 to %u", n, e->model->hp.context);
    if (rc == RS_OK)
        rc = forward(e, m, ids, (uint32_t)n, logits, layers, err);
    free(ids);
    return rc;
}

const struct msg_method MSG_GEN[] = {
    {"submit", true, msg_submit}, {"cancel", true, msg_cancel}, {"stream.get", false, msg_stream_get}, {"encode", false, msg_encode},
    {"decode", false, msg_decode}, {"pieces", false, msg_pieces}, {"forward", true, msg_forward}, {NULL, false, NULL},
};
