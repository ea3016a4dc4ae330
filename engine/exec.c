/* The CPU walker. Eager and graph mode launch the same kernels with the same cuts, so their results are the same bits; what differs is who walks
 * the list: the control thread, one wake-up per op, or every worker by itself over a list that was bound beforehand. */
#include "engine/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/drill.h"
#include "engine/error.h"
#include "engine/guard.h"
#include "engine/now.h"
#include "engine/pace.h"
#include "engine/patch.h"

/* One barrier-separated piece of work. */
struct node {
    const struct op *op;                  /* NULL: a probe */
    const struct choice *choice;
    const struct cpu_launch *launch;
    uint32_t phase, n_phases;
    bool local;                           /* these two: of cpu_call */
    enum cpu_by by;
    const struct probe_copy *copy;
    const struct probe_obs *obs;
};

struct exec_graph {
    const struct program *prog;
    uint64_t generation;
    uint32_t bucket;
    bool fast;
    uint32_t n_nodes, n_parts;
    size_t bytes;
    struct node *nodes;
    uint32_t *part;         /* [n_parts + 1] first node of each part: parts begin at barriers */
    struct choice *choices; /* the graph's own copy: what was captured, not what is current */
};

enum { MAX_GRAPHS = 64, MAX_BUCKETS = 32 };

struct exec {
    struct cpu *c;
    uint32_t n_graphs;
    struct exec_graph graphs[MAX_GRAPHS];
    uint32_t cap_ops, n_ops;  /* of the last step */
    uint64_t *ticks;          /* [worker][op][rank] */
    float *us[2];             /* by program: [op][rank] */
    double us_per_tick;
    struct pace pace[2][2][MAX_BUCKETS]; /* [NextN program][graph][log2 of the bucket] */
    /* what the workers of the current run look at */
    const struct backend_step *step;
    const struct node *run;
    const uint32_t *part; /* first node of each part and the end; NULL: each node is one */
    unsigned n_threads;
};

static inline uint64_t tick(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return now_ns();
#endif
}

/* Ticks and time of one moment. Between the two readings the thread may lose its core for milliseconds, so the narrowest of several pairs counts. */
static uint64_t moment(double *us)
{
    uint64_t best = UINT64_MAX, at = 0;
    *us = 0;
    for (int i = 0; i < 16; i++) {
        uint64_t a = tick();
        double t = (double)now_ns() / 1e3;
        uint64_t b = tick();
        if (b - a < best) {
            best = b - a;
            at = a + (b - a) / 2;
            *us = t;
        }
    }
    return at;
}

static double calibrate(void)
{
    double t0, t1;
    uint64_t a = moment(&t0), b;
    do
        b = moment(&t1);
    while (t1 - t0 < 2000);
    return (t1 - t0) / (double)(b - a);
}

enum rs_result exec_open(struct cpu *c, struct exec **out, struct rs_error *err)
{
    struct exec *x = calloc(1, sizeof *x);
    if (x == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the executor");
    x->c = c;
    for (int i = 0; i < 2; i++)
        if (c->prog[i] != NULL && c->prog[i]->n_ops > x->cap_ops)
            x->cap_ops = c->prog[i]->n_ops;
    x->ticks = calloc((size_t)c->n_workers * x->cap_ops * c->n_ranks, sizeof *x->ticks);
    for (int i = 0; i < 2; i++)
        x->us[i] = calloc((size_t)x->cap_ops * c->n_ranks, sizeof *x->us[i]);
    if (x->ticks == NULL || x->us[0] == NULL || x->us[1] == NULL) {
        exec_close(x);
        return error_set(err, RS_ENOMEM, "out of memory for op timings");
    }
    x->us_per_tick = calibrate();
    *out = x;
    return RS_OK;
}

static void drop_graph(struct exec *x, uint32_t i)
{
    free(x->graphs[i].nodes);
    free(x->graphs[i].part);
    free(x->graphs[i].choices);
    x->graphs[i] = x->graphs[--x->n_graphs];
}

void exec_close(struct exec *x)
{
    if (x == NULL)
        return;
    while (x->n_graphs > 0)
        drop_graph(x, 0);
    free(x->ticks);
    free(x->us[0]);
    free(x->us[1]);
    free(x);
}

void exec_retire(struct exec *x, uint64_t generation)
{
    for (uint32_t i = x->n_graphs; i-- > 0;)
        if (x->graphs[i].generation < generation)
            drop_graph(x, i);
}

uint32_t exec_graphs(const struct exec *x, struct backend_graph *out, uint32_t cap)
{
    for (uint32_t i = 0; i < x->n_graphs && i < cap; i++)
        out[i] = (struct backend_graph){.rows = x->graphs[i].bucket, .bytes = x->graphs[i].bytes};
    return x->n_graphs;
}

static void run_probe(const struct exec *x, const struct probe_copy *p)
{
    const struct backend_step *s = x->step;
    const struct op_ref *r = &s->prog->ops[p->op].out[0];
    const bool wanted = r->buf == BUF_Y || r->buf == BUF_LOGITS || r->buf == BUF_FULL; /* rows that want logits only */
    const uint32_t rows = wanted ? s->batch->n_logits : s->batch->n_rows, row = p->row == UINT32_MAX ? rows - 1 : p->row;
    const float *src = x->c->rank[p->rank].buf[r->buf] + (size_t)row * s->prog->width[r->buf][p->rank] + r->col;
    memcpy(p->dst, src, p->width * sizeof *src);
}

/* This worker's share of a node, over all ranks. */
static void run_share(struct exec *x, const struct node *n, unsigned worker)
{
    const struct cpu *c = x->c;
    if (PROBE_BUILT && n->op == NULL) {
        if (n->obs != NULL)
            cpu_probe_run(c, x->step, n->obs, worker);
        else if (worker == 0)
            run_probe(x, n->copy);
        return;
    }
    uint32_t w = c->n_workers, first = worker * c->n_ranks, last = first + c->n_ranks; /* in units of 1/w rank */
    uint64_t *ticks = x->ticks + ((size_t)worker * x->cap_ops + n->op->index) * c->n_ranks;
    struct cpu_call k = {.c = x->c, .op = n->op, .choice = n->choice, .b = x->step->batch, .prog = x->step->prog, .phase = n->phase,
                         .n_phases = n->n_phases, .worker = worker, .of = w, .local = n->local, .by = n->by};
    for (uint32_t r = first / w; r * w < last; r++) {
        k.rank = r;
        k.lo = first > r * w ? first - r * w : 0;
        k.hi = last < (r + 1) * w ? last - r * w : w;
        uint64_t t0 = tick();
        drill_run(n->launch, &k, x->step->graph);
        ticks[r] += tick() - t0;
    }
}

static void run_part(void *arg, unsigned worker, unsigned part)
{
    struct exec *x = arg;
    const uint32_t first = x->part != NULL ? x->part[part] : part, last = x->part != NULL ? x->part[part + 1] : part + 1;
    for (uint32_t i = first; i < last; i++)
        run_share(x, &x->run[i], worker);
}

static void run_nodes(struct exec *x, const struct node *nodes, const uint32_t *part, uint32_t n_parts)
{
    if (n_parts == 0)
        return;
    x->run = nodes;
    x->part = part;
    pool_walk(x->c->pool, run_part, x, n_parts, x->n_threads);
}

/* The nodes of one op; returns their number. At most 4. */
static uint32_t bind_op(const struct cpu *c, const struct backend_step *s, const struct op *op, const struct choice *ch, struct node out[4])
{
    const struct cpu_launch *l = ch->impl->launch;
    uint32_t n = l->phases(c, op, ch, s->batch->bucket);
    for (uint32_t p = 0; p < n; p++)
        out[p] = (struct node){.op = op, .choice = ch, .launch = l, .phase = p, .n_phases = n, .by = l != &CPU_USER ? cpu_by(c, op, s->batch->bucket) : CPU_BY_WEIGHTS};
    return n;
}

/* Copies armed after op i, from *next on. */
static uint32_t count_probes(const struct probe_set *ps, uint32_t op, uint32_t *next)
{
    uint32_t first = *next;
    while (PROBE_BUILT && ps != NULL && *next < ps->n_copies && ps->copies[*next].op == op)
        ++*next;
    return *next - first;
}

/* Observers before or after op i, from *next on. */
static uint32_t count_obs(const struct probe_set *ps, uint32_t op, bool before, uint32_t *next)
{
    uint32_t first = *next;
    while (PROBE_BUILT && ps != NULL && *next < ps->n_obs && ps->obs[*next].op == ps->base + op && ps->obs[*next].before == before)
        ++*next;
    return *next - first;
}

static void observe_eager(struct exec *x, const struct backend_step *s, uint32_t op, bool before, uint32_t *next)
{
    uint32_t at = *next, n = count_obs(s->probes, op, before, next);
    for (uint32_t i = 0; i < n; i++) {
        struct node node = {.obs = &s->probes->obs[at + i]};
        run_nodes(x, &node, NULL, 1);
    }
}

static void step_eager(struct exec *x, const struct backend_step *s)
{
    uint32_t next = 0, next_obs = 0;
    for (uint32_t i = 0; i < s->prog->n_ops; i++) {
        struct node n[4];
        if (PROBE_BUILT && s->hook != NULL)
            s->hook(s->hook_arg, &s->prog->ops[i], false);
        if (PROBE_BUILT && s->probes != NULL)
            observe_eager(x, s, i, true, &next_obs);
        run_nodes(x, n, NULL, bind_op(x->c, s, &s->prog->ops[i], &s->choices[i], n));
        if (PROBE_BUILT && s->probes != NULL)
            observe_eager(x, s, i, false, &next_obs);
        if (PROBE_BUILT && s->hook != NULL)
            s->hook(s->hook_arg, &s->prog->ops[i], true);
        uint32_t at = next, m = count_probes(s->probes, i, &next);
        for (uint32_t p = 0; p < m; p++)
            run_probe(x, &s->probes->copies[at + p]);
    }
}

static struct exec_graph *find_graph(struct exec *x, const struct backend_step *s)
{
    for (uint32_t i = 0; i < x->n_graphs; i++) {
        struct exec_graph *g = &x->graphs[i];
        if (g->prog == s->prog && g->generation == s->generation && g->bucket == s->batch->bucket && g->fast == s->fast)
            return g;
    }
    return NULL;
}

/* Where parts begin. Observers stand between two barriers, so that what they look at is complete and still. */
static void cut_parts(const struct cpu *c, struct exec_graph *g)
{
    enum cpu_sharing how = cpu_sharing(c, g->bucket);
    struct cpu_join j = {0};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = &g->nodes[i];
        const struct node *before = i > 0 ? n - 1 : NULL;
        /* So do loaded implementations, which cut their work as they like. */
        const bool observer = n->op == NULL || n->launch == &CPU_USER, after = before != NULL && (before->op == NULL || before->launch == &CPU_USER);
        if (after)
            j = (struct cpu_join){0};
        if (observer || cpu_join_before(&j, how, n->op, n->phase, n->n_phases, n->by) || after || i == 0)
            g->part[g->n_parts++] = i;
        n->local = how == CPU_SHARE_LOCAL && n->n_phases == 1;
    }
    g->part[g->n_parts] = g->n_nodes;
}

/* Walk the list once, recording. An op that cannot be recorded acts on the spot instead, on whatever its inputs hold now, and is missing from
 * the graph: that is what graph.guard protects from, and what graph.guard=off lets an operator see. */
static enum rs_result capture(struct exec *x, const struct backend_step *s, struct exec_graph **out, struct rs_error *err)
{
    const struct program *p = s->prog;
    for (uint32_t i = 0; i < p->n_ops && s->graph_guard; i++)
        if (s->choices[i].impl->not_capturable)
            return error_set(err, RS_ESTATE, "cannot capture a graph: op %s uses %s=%s, which is not capturable (use eager mode, another implementation, or graph.guard=off)",
                             p->ops[i].site, op_kind_name(p->ops[i].kind), s->choices[i].impl->name);
    if (x->n_graphs == MAX_GRAPHS)
        drop_graph(x, 0);
    struct exec_graph *g = &x->graphs[x->n_graphs];
    uint32_t probes = s->probes != NULL ? s->probes->n_copies + s->probes->n_obs : 0, next = 0, next_obs = 0;
    *g = (struct exec_graph){.prog = p, .generation = s->generation, .bucket = s->batch->bucket, .fast = s->fast};
    g->bytes = ((size_t)p->n_ops * 4 + probes) * (sizeof *g->nodes + sizeof *g->part) + p->n_ops * sizeof *g->choices;
    g->nodes = calloc((size_t)p->n_ops * 4 + probes, sizeof *g->nodes);
    g->part = malloc(((size_t)p->n_ops * 4 + probes + 1) * sizeof *g->part);
    g->choices = malloc(p->n_ops * sizeof *g->choices);
    if (g->nodes == NULL || g->part == NULL || g->choices == NULL) {
        free(g->nodes);
        free(g->part);
        free(g->choices);
        return error_set(err, RS_ENOMEM, "out of memory for a graph of %u ops", p->n_ops);
    }
    memcpy(g->choices, s->choices, p->n_ops * sizeof *g->choices);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        for (uint32_t at = next_obs, k = count_obs(s->probes, i, true, &next_obs); k > 0; k--)
            g->nodes[g->n_nodes++] = (struct node){.obs = &s->probes->obs[at++]};
        struct node *n = g->nodes + g->n_nodes;
        uint32_t m = bind_op(x->c, s, &p->ops[i], &g->choices[i], n);
        if (g->choices[i].impl->not_capturable)
            run_nodes(x, n, NULL, m);
        else
            g->n_nodes += m;
        for (uint32_t at = next_obs, k = count_obs(s->probes, i, false, &next_obs); k > 0; k--)
            g->nodes[g->n_nodes++] = (struct node){.obs = &s->probes->obs[at++]};
        uint32_t at = next, copies = count_probes(s->probes, i, &next);
        for (uint32_t c = 0; c < copies; c++)
            g->nodes[g->n_nodes++] = (struct node){.copy = &s->probes->copies[at + c]};
    }
    cut_parts(x->c, g);
    x->n_graphs++;
    *out = g;
    return RS_OK;
}

static void sum_ticks(struct exec *x, float *us)
{
    const struct cpu *c = x->c;
    for (uint32_t i = 0; i < x->n_ops * c->n_ranks; i++) {
        uint64_t t = 0;
        for (uint32_t w = 0; w < c->n_workers; w++)
            t += x->ticks[(size_t)w * x->cap_ops * c->n_ranks + i];
        us[i] = (float)((double)t * x->us_per_tick);
    }
}

static struct pace *pace_of(struct exec *x, const struct backend_step *s)
{
    uint32_t log = 0;
    while (log + 1 < MAX_BUCKETS && s->batch->bucket >> (log + 1) != 0)
        log++;
    return &x->pace[s->prog != x->c->prog[0]][s->graph][log];
}

enum rs_result exec_step(struct exec *x, const struct backend_step *s, bool more, struct rs_error *err)
{
    struct exec_graph *g = NULL;
    struct pace *pace = pace_of(x, s);
    x->n_threads = pace_threads(pace, x->c->n_workers);
    drill_step(x->c, s);
    x->step = s;
    x->n_ops = s->prog->n_ops;
    if (s->graph) {
        g = find_graph(x, s);
        enum rs_result rc = g == NULL ? capture(x, s, &g, err) : RS_OK;
        if (rc != RS_OK)
            return rc;
    }
    for (uint32_t w = 0; w < x->c->n_workers && !more; w++)
        memset(x->ticks + (size_t)w * x->cap_ops * x->c->n_ranks, 0, (size_t)x->n_ops * x->c->n_ranks * sizeof *x->ticks);
    guard_enter();
    const double waited = pool_waited_us(x->c->pool);
    const uint64_t t0 = now_ns();
    if (g != NULL)
        run_nodes(x, g->nodes, g->part, g->n_parts);
    else
        step_eager(x, s);
    if (s->hook == NULL) /* a held step says nothing */
        pace_note(pace, x->c->n_workers, (double)(now_ns() - t0) / 1e3, pool_waited_us(x->c->pool) - waited);
    guard_leave();
    sum_ticks(x, x->us[s->prog == x->c->prog[0] ? 0 : 1]);
    const struct patch_user *failed = atomic_exchange_explicit(&x->c->failed, NULL, memory_order_acquire);
    return failed == NULL ? RS_OK : error_set(err, RS_EFORMAT, "%s", failed->fault->why);
}

const float *exec_op_us(struct exec *x, int which, uint32_t *n_ops)
{
    *n_ops = x->c->prog[which] != NULL ? x->c->prog[which]->n_ops : 0;
    return x->us[which];
}
