/* One step: run the batch, sample, hand out tokens, end what has ended. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deliver.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/guard.h"
#include "engine/now.h"
#include "engine/server.h"
#include "engine/shadow.h"
#include "engine/verdict.h"

enum { CHOOSE_TOGETHER = 1 << 15 }; /* logits; below that waking the workers costs more than it saves */

static void set_number(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, isfinite(x) ? json_real(x) : json_null());
}

static json_t *patches_json(const struct engine *e)
{
    json_t *o = json_object();
    for (uint32_t i = 0; patch_slot(i) != NULL; i++) {
        const char *now = patch_current(&e->patches.now, i);
        if (strcmp(now, patch_default(&e->patches.now, i)) != 0)
            json_object_set_new(o, patch_slot(i)->name, json_string(now));
    }
    for (uint32_t i = 0; i < e->patches.now.n; i++) {
        const struct patch_entry *p = &e->patches.now.entry[i];
        char key[96];
        if (strcmp(p->glob, "*") == 0)
            continue;
        snprintf(key, sizeof key, "%s@%s", patch_slot(p->slot)->name, p->glob);
        json_object_set_new(o, key, json_string(p->impl));
    }
    return o;
}

uint32_t engine_ctx_used(const struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_run; i++)
        n += e->run[i]->n_cached;
    return n;
}

json_t *engine_state_json(const struct engine *e)
{
    const struct seq *last = e->done.last;
    json_t *o = json_object();
    json_object_set_new(o, "ranks", e->rt != NULL ? json_integer(e->rt->cfg.ranks) : json_null());
    json_object_set_new(o, "mode", json_string(e->graph ? "graph" : "eager"));
    json_object_set_new(o, "armed", json_boolean(brk_armed(e)));
    json_object_set_new(o, "taps", json_integer(e->observe.set.n_obs));
    json_object_set_new(o, "stopped", brk_where_json(e));
    json_object_set_new(o, "numerics", json_string(e->fast ? "fast" : "invariant"));
    json_object_set_new(o, "graph_guard", json_boolean(e->guard));
    json_object_set_new(o, "spec", json_integer(e->spec.n));
    json_object_set_new(o, "generation", json_integer((json_int_t)e->patches.now.generation));
    json_object_set_new(o, "patches", patches_json(e));
    json_object_set_new(o, "steps", json_integer((json_int_t)e->steps));
    json_object_set_new(o, "running", json_integer(e->n_run));
    json_object_set_new(o, "waiting", json_integer(e->wait.n));
    json_object_set_new(o, "ctx_used", json_integer(engine_ctx_used(e)));
    json_object_set_new(o, "ctx_total", e->rt != NULL ? json_integer(e->rt->cfg.ctx) : json_null());
    json_t *done = last != NULL && last->done != NULL ? json_loads(last->done, JSON_ALLOW_NUL, NULL) : NULL;
    json_t *v = json_object_get(done, "verdict"), *why = json_object_get(done, "reason");
    json_object_set(o, "verdict", v != NULL ? v : json_null());
    json_object_set(o, "reason", why != NULL ? why : json_null());
    json_decref(done);
    return o;
}

void engine_announce(struct engine *e)
{
    const unsigned long failures = engine_json_failures(e);
    json_t *o = engine_state_json(e);
    char *s = engine_json_text(e, o, failures);
    server_event(e->server, -1, RS_EVENT_STATE, RS_OK, 0, s, NULL, 0);
    free(s);
    json_decref(o);
}

void engine_log(struct engine *e, const char *level, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *o = json_pack("{s:s,s:s,s:I}", "level", level, "text", text, "time_us", (json_int_t)now_us());
    char *s = json_dumps(o, JSON_COMPACT);
    server_event(e->server, -1, RS_EVENT_LOG, RS_OK, 0, s, NULL, 0);
    free(s);
    json_decref(o);
}

static json_t *logprobs_json(const struct seq *s)
{
    if (s->n_logprobs == 0)
        return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_out; i++) {
        const struct seq_logprob *p = s->logprobs + (size_t)i * s->n_logprobs;
        json_t *top = json_array();
        for (uint32_t k = 1; k < s->n_logprobs && p[k].id >= 0; k++)
            json_array_append_new(top, json_pack("{s:i,s:f}", "id", (int)p[k].id, "logprob", (double)p[k].logprob));
        json_array_append_new(list, json_pack("{s:i,s:f,s:o}", "id", (int)p->id, "logprob", (double)p->logprob, "top", top));
    }
    return list;
}

static char *done_object(struct engine *e, struct seq *s)
{
    const unsigned long failures = engine_json_failures(e);
    json_t *o = json_object();
    struct timing_ar ar = timing_recent(e->timing);
    json_object_set_new(o, "stop", json_string(seq_stop_name(s->stop)));
    json_object_set_new(o, "text", json_stringn_nocheck(s->text, s->n_text));
    json_object_set_new(o, "thinking", json_stringn_nocheck(s->thought, s->n_thought));
    json_object_set_new(o, "prompt_tokens", json_integer(s->n_prompt));
    json_object_set_new(o, "cached_tokens", json_integer(s->n_reused));
    json_object_set_new(o, "tokens", json_integer(s->n_out));
    set_number(o, "prompt_ms", s->t_first != 0 ? (double)(s->t_first - s->t_start) / 1e3 : NAN);
    set_number(o, "decode_ms", s->t_first != 0 ? (double)(s->t_last - s->t_first) / 1e3 : NAN);
    set_number(o, "queue_ms", s->t_start != 0 ? (double)(s->t_start - s->t_submit) / 1e3 : NAN);
    json_object_set_new(o, "spec", spec_seq_json(e, s));
    json_object_set_new(o, "logprobs", logprobs_json(s));
    set_number(o, "tok_per_s", s->n_out > 1 && s->t_last > s->t_first ? (s->n_out - 1) * 1e6 / (double)(s->t_last - s->t_first) : NAN);
    json_object_set_new(o, "mode", json_string(e->graph ? "graph" : "eager"));
    json_object_set_new(o, "ranks", json_integer(e->rt->cfg.ranks));
    json_object_set_new(o, "patches", patches_json(e));
    json_object_set_new(o, "preempted", json_integer(s->preempted));
    verdict_json(e, s, o);
    json_object_set_new(o, "allreduce", json_pack("{s:i,s:f,s:f,s:f,s:b}", "per_step", (int)e->rt->prog.n_allreduces, "mean_us", (double)ar.mean_us,
                                                  "p99_us", (double)ar.p99_us, "share", s->step_us > 0 ? s->ar_us / s->step_us : 0.0, "simulated", engine_simulated(e)));
    json_object_set_new(o, "error", s->stop == SEQ_STOP_ERROR ? json_string(s->error) : json_null());
    char *text = engine_json_text(e, o, failures);
    json_decref(o);
    return text != NULL ? text : strdup("{\"stop\":\"error\",\"error\":\"out of memory for what there is to say of the answer\"}");
}

/* A continuation of this conversation finds here what its rows were. */
static void remember(struct engine *e, const struct seq *s)
{
    for (struct session *x = e->sessions; x != NULL; x = x->next) {
        if (x->id != s->session || x->stream != s->id)
            continue;
        int32_t *tok = malloc((s->n + 1) * sizeof *tok);
        uint8_t *kind = malloc(s->n + 1);
        if (tok == NULL || kind == NULL) {
            free(tok);
            free(kind);
            return; /* only costs a recomputation */
        }
        memcpy(tok, s->tok, s->n * sizeof *tok);
        memcpy(kind, s->kind, s->n);
        free(x->tok);
        free(x->kind);
        x->tok = tok;
        x->kind = kind;
        x->n = s->n;
    }
}

static void prune(struct engine *e)
{
    for (struct seq *s = e->done.first, *next; e->done.n > ENGINE_KEEP_DONE && s != NULL; s = next) {
        bool kept = false;
        next = s->q_next;
        for (struct session *x = s->session != 0 ? e->sessions : NULL; x != NULL; x = x->next)
            kept |= x->stream == s->id;
        if (!kept)
            sched_forget(e, s);
    }
}

void step_finish(struct engine *e, struct seq *s, enum seq_stop why)
{
    if (s->state == SEQ_DONE)
        return;
    deliver_pending(e);
    deliver_rest(e, s);
    remember(e, s);
    sched_end(e, s);
    s->stop = why;
    if (s->t_last == 0)
        s->t_last = now_us();
    s->done = done_object(e, s);
    server_event_mask(e->server, s->subscribers, RS_EVENT_DONE, s->id, s->done);
    prune(e);
}

/* What the device says of a wanted row. */
static bool look_up(struct engine *e, uint32_t row, unsigned worker, struct sample_row *out)
{
    struct backend *b = e->rt->backend;
    *out = (struct sample_row){.list = e->scratch[worker].list};
    return b->ops->likeliest != NULL && b->ops->likeliest(b, row, out);
}

/* By that, if it settles the matter: the token, and the likeliest ones beside it if they are kept. */
static bool choose_listed(struct engine *e, struct seq *s, uint32_t row, unsigned worker)
{
    struct sample_pick *p = &e->picks[row];
    struct sample_row r;
    p->listed = look_up(e, row, worker, &r) && (r.n + 1 >= s->n_logprobs || r.floor == -INFINITY) &&
                sample_listed(&s->sp, &s->rng, &r, &e->scratch[worker], &p->id, &p->logit, &p->info);
    return p->listed;
}

static void choose(struct engine *e, struct seq *s, uint32_t row, unsigned worker)
{
    struct sample_pick *p = &e->picks[row];
    p->chosen = true;
    if (choose_listed(e, s, row, worker))
        return;
    const float *x = e->rt->backend->ops->logits(e->rt->backend, row);
    p->id = sample_token(&s->sp, &s->rng, x, vocab_size(e->model->vocab), s->tok, s->n, &e->scratch[worker], &p->info);
    p->logit = x[p->id];
}

/* A sequence with one wanted row knows all that its token depends on; what drafts stand behind is chosen when it is known that they are right. */
static bool stands_alone(const struct engine *e, uint32_t row, uint32_t n)
{
    const struct seq *s = e->row_seq[row];
    return (row == 0 || e->row_seq[row - 1] != s) && (row + 1 == n || e->row_seq[row + 1] != s);
}

/* A worker's share of the rows; not those that would have to be fetched. */
static void choose_share(void *arg, unsigned worker)
{
    struct engine *e = arg;
    uint32_t n = e->batch.n_logits;
    bool here = e->rt->backend->ops->likeliest == NULL;
    for (uint32_t i = n * worker / e->n_scratch; i < n * (worker + 1) / e->n_scratch; i++) { /* the rows that this worker gathered */
        if (!stands_alone(e, i, n))
            continue;
        if (here || e->batch.want[i].whole)
            choose(e, e->row_seq[i], i, worker);
        else
            e->picks[i].chosen = choose_listed(e, e->row_seq[i], i, worker);
    }
}

/* Logits, or what stands for them, that choosing reads. */
static uint64_t to_read(const struct engine *e, uint32_t n)
{
    uint64_t each = vocab_size(e->model->vocab), all = 0;
    if (e->rt->backend->ops->likeliest == NULL)
        return n * each;
    for (uint32_t i = 0; i < n; i++)
        all += e->batch.want[i].whole ? each : 8 * (uint64_t)e->batch.want[i].list;
    return all;
}

/* Tokens of many sequences at once, by all workers: reading a large vocabulary's logits row by row would hold up the next step. Each sequence has its
 * own random numbers, so who chooses makes no difference. */
static void choose_all(struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        e->picks[i].chosen = false;
    if (e->n_scratch > 1 && to_read(e, n) >= CHOOSE_TOGETHER)
        pool_run(e->pool, choose_share, e);
}

/* Of softmax(logits), before any sampling setting. */
static void keep_logprobs(struct engine *e, struct seq *s, uint32_t row)
{
    const struct sample_pick *pick = &e->picks[row];
    struct sample_item top[SEQ_MAX_LOGPROBS];
    struct seq_logprob *p = s->logprobs + (size_t)s->n_out * s->n_logprobs;
    struct sample_row r;
    uint32_t n;
    if (pick->listed && look_up(e, row, 0, &r))
        n = sample_top_listed(&r, s->n_logprobs - 1, top);
    else
        n = sample_top(e->rt->backend->ops->logits(e->rt->backend, row), vocab_size(e->model->vocab), s->n_logprobs - 1, top);
    float shift = pick->info.logprob - pick->logit;
    p[0] = (struct seq_logprob){pick->id, pick->info.logprob};
    for (uint32_t k = 1; k < s->n_logprobs; k++)
        p[k] = k <= n ? (struct seq_logprob){top[k - 1].id, top[k - 1].logit + shift} : (struct seq_logprob){-1, 0};
}

/* May this token be delivered while the next step runs? Not where that may end the sequence, or more than its text is sent. */
static bool can_wait(const struct engine *e, const struct seq *s, bool end)
{
    const struct backend *b = e->rt->backend;
    return b->ops->overlaps && e->spec.n == 0 && s->n_stops == 0 && s->n_logprobs == 0 && (!end || s->ignore_eos) && s->n_out + 1 < s->max_out && s->n + 1 < s->cap;
}

/* Take the next token of a sequence whose logits are there. */
static enum seq_stop advance(struct engine *e, struct seq *s, uint32_t row, uint64_t now)
{
    struct sample_pick *p = &e->picks[row];
    if (!p->chosen)
        choose(e, s, row, 0);
    int32_t id = p->id;
    struct sample_info info = p->info;
    const bool end = vocab_is_eog(e->model->vocab, id), late = can_wait(e, s, end);
    if (late)
        deliver_later(e, s, id, &info);
    else
        health_token(&s->health, id, s->tok, s->n, s->n_out, &info, sample_honest(&s->sp));
    if (s->t_first == 0)
        s->t_first = now;
    s->t_last = now;
    if (end && !s->ignore_eos)
        return SEQ_STOP_EOS;
    if (s->n_logprobs != 0)
        keep_logprobs(e, s, row);
    s->tok[s->n] = id;
    s->kind[s->n++] = BATCH_GENERATED;
    s->n_out++;
    e->tokens++;
    if (late)
        return SEQ_STOP_NONE;
    enum seq_stop stop = deliver_token(e, s, id);
    if (stop == SEQ_STOP_NONE && (s->n_out >= s->max_out || s->n >= s->cap))
        stop = SEQ_STOP_LENGTH;
    return stop;
}

/* Take what the rows of one sequence say, from wanted row `first` on: its next token and, while its drafts turn out right, the tokens after it.
 * Each token is chosen as it would be without drafts, from the same logits with the same random numbers. Returns how many rows there were. */
static uint32_t take(struct engine *e, uint32_t first, uint32_t n_logits, uint64_t now, uint32_t *got)
{
    struct seq *s = e->row_seq[first];
    uint32_t rows = 1, base = s->n, right = 0;
    while (first + rows < n_logits && e->row_seq[first + rows] == s)
        rows++;
    for (uint32_t j = 0; j < rows; j++) {
        int32_t draft = j + 1 < rows ? s->tok[base + j] : -1;
        s->stop = advance(e, s, first + j, now);
        ++*got;
        if (s->n == base + j || s->tok[base + j] != draft)
            break;
        right++;
        if (s->stop != SEQ_STOP_NONE)
            break;
    }
    s->n_draft = 0;
    if (rows > 1) {
        spec_verified(e, s, rows - 1, right);
        sched_accept(e, s, base + right);
    }
    return rows;
}

static void write_snapshot(struct engine *e, double wall_us)
{
    struct rs_snapshot s = {.version = RS_PROTOCOL, .n_ranks = e->rt->cfg.ranks, .step = e->steps, .time_us = now_us(), .mode = e->graph,
                            .simulated = engine_simulated(e), .rows = e->batch.n_rows, .ops_per_step = e->rt->prog.n_ops,
                            .allreduces_per_step = e->rt->prog.n_allreduces, .tok_per_s = (float)e->rate, .tokens_total = e->tokens,
                            .generation = e->patches.now.generation, .cache_blocks_used = e->rt->kv.n_held, .cache_blocks_total = e->rt->kv.n_blocks - 1};
    s.running = e->n_run;
    s.waiting = e->wait.n;
    for (uint32_t r = 0; r < s.n_ranks; r++) {
        struct rs_rank_snapshot *o = &s.rank[r];
        e->rt->backend->ops->memory(e->rt->backend, r, &o->bytes_weights, &o->bytes_cache, &o->bytes_buffers);
        o->ar_p50_us = o->ar_p99_us = o->gpu_util = o->gpu_temp_c = o->gpu_power_w = NAN;
        o->mem_used = o->mem_total = UINT64_MAX;
        if (e->rt->backend->ops->device != NULL)
            e->rt->backend->ops->device(e->rt->backend, r, o);
    }
    timing_fill(e->timing, &s);
    s.step_us = (float)wall_us;
    snapshot_write(e->page, &s);
}

/* Watchpoints of a step that has run. A walk has already looked at each op as it passed. */
static void check_watches(struct engine *e, bool walked, bool of_streams)
{
    const struct observe_spec *stop = walked || e->observe.n_binds == 0 ? NULL : observe_check(e, 0, e->rt->prog.n_ops);
    if (stop != NULL && of_streams)
        brk_hold_after_step(e, stop);
}

enum rs_result step_compute(struct engine *e, struct backend_step *st, struct rs_error *err)
{
    struct backend *b = e->rt->backend;
    enum rs_result rc = b->ops->step(b, st, err);
    while (rc != RS_OK && engine_drop_failed(e)) {
        st->choices = st->prog == &e->rt->prog ? e->rt->choices : e->rt->nextn_choices;
        st->generation = e->patches.now.generation;
        rc = b->ops->step(b, st, err);
    }
    return rc;
}

/* A rank stays away. Who is connected learns where; who cancels a stream or stops the engine meanwhile does not wait until the ranks give up. */
static bool stuck(void *arg, double seconds, const char *where)
{
    struct engine *e = arg;
    char text[240];
    snprintf(text, sizeof text, "%s for %.0f s; cancel the answer to give the step up", where, seconds);
    json_t *o = json_pack("{s:s,s:s,s:I}", "level", "warn", "text", text, "time_us", (json_int_t)now_us());
    char *s = json_dumps(o, JSON_COMPACT);
    server_event(e->server, -1, RS_EVENT_LOG, RS_OK, 0, s, NULL, 0);
    server_flush(e->server);
    free(s);
    json_decref(o);
    return server_foresees_any(e->server, "cancel") || server_foresees_any(e->server, "stop");
}

/* While the device computes: what the step before left to be sent, and streams that ask to be taken in. */
static bool meanwhile(void *arg)
{
    struct engine *e = arg;
    if (e->n_late != 0) {
        deliver_pending(e);
        server_flush(e->server);
        return true;
    }
    if (server_admit(e->server))
        return true;
    server_flush(e->server);
    return false;
}

enum rs_result step_batch(struct engine *e, const struct probe_set *copies, bool of_streams, double *wall_us, struct rs_error *err)
{
    struct backend *b = e->rt->backend;
    enum rs_result rc = b->ops->reserve(b, e->batch.max_keys, err);
    bool decode = true, walk = PROBE_BUILT && of_streams && (brk_armed(e) || (!e->graph && observe_may_stop(e)));
    struct reads_step read = {.rows = e->batch.n_rows, .elem_bytes = (uint32_t)krn_cache_elem_bytes(e->rt->cfg.cache)};
    for (uint32_t g = 0; g < e->batch.n_segs; g++) {
        decode &= e->batch.segs[g].kind == BATCH_GENERATED;
        read.keys += e->batch.segs[g].pos0 + e->batch.segs[g].n_rows;
    }
    struct probe_set *armed = PROBE_BUILT ? observe_begin(e, !decode) : NULL, both = armed != NULL ? *armed : (struct probe_set){0};
    if (copies != NULL) {
        both.n_copies = copies->n_copies;
        both.copies = copies->copies;
    }
    const bool shadowed = PROBE_BUILT && shadow_observe(e, &both);
    struct backend_step st = {.prog = &e->rt->prog, .choices = e->rt->choices, .batch = &e->batch, .probes = copies != NULL || shadowed ? &both : armed,
                              .generation = e->patches.now.generation, .graph = e->graph && copies == NULL && !walk && (b->ops->replays == NULL || b->ops->replays(b, &e->batch)), .graph_guard = e->guard, .fast = e->fast,
                              .whole = e->spec.n != 0 /* drafts start from the rows' hidden states */, .hook = walk ? brk_hook : NULL, .hook_arg = e, .stuck = stuck, .stuck_arg = e, .meanwhile = of_streams && !walk ? meanwhile : NULL, .meanwhile_arg = e};
    if (rc != RS_OK)
        return rc;
    if (walk) /* it may be held */
        deliver_pending(e);
    e->brk.held_us = 0;
    uint64_t t0 = now_us();
    rc = step_compute(e, &st, err);
    *wall_us = (double)(now_us() - t0 - e->brk.held_us);
    if (rc != RS_OK) {
        e->observe.steps[e->observe.set.slot].step = 0;
        return rc;
    }
    if (PROBE_BUILT && armed != NULL)
        check_watches(e, walk, of_streams);
    e->steps++;
    e->last_us = *wall_us;
    e->last_read = read;
    if (shadowed && of_streams)
        shadow_look(e);
    uint32_t n_ops;
    struct timing_step ts = {.choices = st.choices, .op_us = b->ops->op_us(b, &n_ops),
                             .reduces = b->ops->reduces != NULL ? b->ops->reduces(b) : NULL, .wall_us = *wall_us, .graph = st.graph, .decode = decode,
                             .rows = e->batch.n_rows};
    timing_step(e->timing, &ts);
    return RS_OK;
}

/* Of steps that generate; a step of prompts alone says nothing of how fast tokens come. */
static void count_rate(struct engine *e, uint32_t tokens, double us)
{
    e->rate_us += us;
    e->rate_tokens += tokens;
    if (e->rate_us > 1e6) { /* halve: a sliding mean over the last second or two of work */
        e->rate_us /= 2;
        e->rate_tokens /= 2;
    }
    e->rate = e->rate_us > 0 ? e->rate_tokens * 1e6 / e->rate_us : 0;
}

void step_cancel(struct engine *e, struct seq *s)
{
    if (!brk_holding(e) || s->state != SEQ_RUNNING) {
        step_finish(e, s, SEQ_STOP_CANCELLED);
        return;
    }
    e->brk.n_unwanted += !s->unwanted;
    s->unwanted = true;
}

/* Streams that were cancelled while the step was held. */
static void cancel_held(struct engine *e)
{
    struct seq *s = e->brk.n_unwanted != 0 ? e->seqs : NULL;
    while (s != NULL) {
        bool end = s->unwanted && s->state != SEQ_DONE;
        if (end)
            step_finish(e, s, SEQ_STOP_CANCELLED);
        s = end ? e->seqs : s->next; /* the list may have been pruned */
    }
    e->brk.n_unwanted = 0;
}

static void count_work(struct engine *e, double us)
{
    struct sched_counts *c = &e->counts;
    c->steps++;
    c->step_us += us;
    for (uint32_t g = 0; g < e->batch.n_segs; g++)
        *(e->batch.segs[g].kind == BATCH_GENERATED ? &c->decode_rows : &c->prompt_rows) += e->batch.segs[g].n_rows;
}

void step_die(struct engine *e, const char *why)
{
    engine_log(e, "error", "%s", why);
    snprintf(e->dead, sizeof e->dead, "%s", why);
    server_stop(e->server);
}

void step_run(struct engine *e)
{
    struct rs_error err;
    double wall;
    uint32_t n_logits = e->batch.n_logits;
    enum rs_result rc = step_batch(e, NULL, true, &wall, &err);
    deliver_pending(e);
    if (rc != RS_OK) {
        for (uint32_t i = 0; i < e->n_in_batch; i++) { /* finishing frees only what ended before */
            snprintf(e->in_batch[i]->error, sizeof e->in_batch[i]->error, "%s", err.msg);
            step_finish(e, e->in_batch[i], SEQ_STOP_ERROR);
        }
        cancel_held(e);
        if (e->rt->backend->ops->dead != NULL && e->rt->backend->ops->dead(e->rt->backend))
            step_die(e, err.msg);
        return;
    }
    guard_enter();
    sched_commit(e);
    spec_target(e, wall);
    count_work(e, wall);
    uint64_t now = now_us();
    double ar = (double)timing_last(e->timing).share;
    uint32_t got = 0;
    bool generating = false; /* some sequence was past its prompt */
    choose_all(e, n_logits);
    for (uint32_t i = 0; i < n_logits;) {
        struct seq *s = e->row_seq[i];
        generating = generating || s->n_out > 0;
        if (s->n_out > 0) {
            s->ar_us += ar * wall;
            s->step_us += wall;
            s->steps++;
        }
        i += take(e, i, n_logits, now, &got);
    }
    if (generating)
        count_rate(e, got, wall);
    server_flush(e->server);
    guard_leave();
    for (uint32_t i = 0; i < n_logits; i++) /* finishing frees only sequences that have finished, so later entries stay valid */
        if ((i == 0 || e->row_seq[i] != e->row_seq[i - 1]) && e->row_seq[i]->stop != SEQ_STOP_NONE)
            step_finish(e, e->row_seq[i], e->row_seq[i]->stop);
    spec_draft(e);
    cancel_held(e);
    write_snapshot(e, wall);
}

void step_idle(struct engine *e)
{
    deliver_pending(e);
    if (e->rt != NULL)
        write_snapshot(e, e->last_us);
}
