/* CPU: which barriers a captured step needs.
 *
 * A barrier costs two trips of a cache line between cores, and whoever is first waits for the slowest; a decode step of a small model spends more
 * time at barriers than between them if each op has one. The ways to share out the work need fewer:
 *
 *   whole  every worker has whole ranks to itself: only a collective looks at what another worker did.
 *   cut    many rows: where an op goes by rows and the next one by the same rows in the same way, a worker needs no more than its own. With rows enough
 *          for everyone products go by rows as well (enum cpu_by), and most of a layer is done without looking at another worker.
 *   local  every worker has a part of one rank, and few rows: each makes the small tensors that all of them need (norms, routing) for itself, in
 *          private memory, and the first worker of the rank also writes them where observers look. Ops that go by rows of a weight keep to the
 *          same cut from one to the next (gate and up, activation; down, residual), so that a worker reads back what it wrote.
 *
 * Values do not depend on any of this: cuts move, sums do not. */
#include "engine/cpu.h"

#include <stdlib.h>

#include "engine/error.h"

static bool wants_logits(const struct op *op)
{
    const uint8_t out = op->out[0].buf;
    return out == BUF_Y || out == BUF_LOGITS || out == BUF_FULL;
}

enum cpu_sharing cpu_sharing(const struct cpu *c, uint32_t bucket)
{
    if (c->n_ranks % c->n_workers == 0)
        return CPU_SHARE_WHOLE;
    return c->n_workers % c->n_ranks == 0 && bucket <= CPU_PRIVATE_ROWS && c->local != NULL ? CPU_SHARE_LOCAL : CPU_SHARE_CUT;
}

/* Rows, and pairs of each expert, that a worker must have to itself. Of weights in a processor's cache unpacking is what it does again; those that come
 * from memory it fetches again. Fewer pairs go by pairs, if each worker has some. */
enum { ROWS_EACH = 8, ROWS_EACH_MEMORY = 128, EXPERT_EACH = 16, EXPERT_EACH_MEMORY = 128, PAIRS_EACH = 32 };

static enum cpu_by experts_by(const struct cpu *c, const struct op *op, uint32_t bucket, uint64_t rows_each, bool memory)
{
    const struct shard_range *ex = &shard_of(c->shard, (uint32_t)op->layer, 0)->experts;
    const uint64_t pairs_each = rows_each * c->hp->n_used;
    /* a rank that has only some of the experts has few pairs of a row, or many */
    if (ex->to - ex->from == c->hp->n_experts && pairs_each >= (uint64_t)c->hp->n_experts * (memory ? EXPERT_EACH_MEMORY : EXPERT_EACH))
        return CPU_BY_ROWS;
    return pairs_each >= PAIRS_EACH && bucket <= CPU_PAIR_ROWS ? CPU_BY_PAIRS : CPU_BY_WEIGHTS;
}

enum cpu_by cpu_by(const struct cpu *c, const struct op *op, uint32_t bucket)
{
    const bool memory = c->packed_store == NULL;
    const uint64_t each = (uint64_t)bucket * c->n_ranks / c->n_workers;
    if (cpu_sharing(c, bucket) != CPU_SHARE_CUT)
        return CPU_BY_WEIGHTS;
    switch (op->kind) {
    case OP_MOE_GATE_UP: case OP_MOE_SILU_MUL: case OP_MOE_DOWN: return experts_by(c, op, bucket, each, memory);
    case OP_LINEAR:
        if (wants_logits(op))
            return CPU_BY_WEIGHTS;
        break;
    case OP_QKV_A: case OP_GATE_UP: case OP_ROPE_Q: break;
    default: return CPU_BY_WEIGHTS;
    }
    return each >= (memory ? ROWS_EACH_MEMORY : ROWS_EACH) ? CPU_BY_ROWS : CPU_BY_WEIGHTS;
}

/* Does every worker hold this buffer for itself? */
static bool is_private(uint8_t buf)
{
    return buf == BUF_H || buf == BUF_QR || buf == BUF_Y || buf == BUF_ROUTER || buf == BUF_CHOICE;
}

/* Must all workers' parts of this input be there first? */
static bool waits_for(const struct cpu_join *j, const struct op *op, int i)
{
    uint8_t b = op->in[i].buf;
    return b != BUF_NONE && !is_private(b) && (j->written >> b & 1) != 0;
}

static bool local_needs(const struct cpu_join *j, const struct op *op, uint32_t n_phases)
{
    if (n_phases != 1)
        return true;
    switch (op->kind) {
    case OP_ROPE_Q: case OP_SILU_MUL: case OP_MOE_SILU_MUL: case OP_GATHER: return false; /* by the cut of the op before */
    case OP_ADD: return j->reduced;
    case OP_RMSNORM: case OP_PICK_ROWS: case OP_QKV_A: case OP_GATE_UP: case OP_LINEAR: case OP_KV_STORE: case OP_ROUTER:
    case OP_MOE_GATE_UP: case OP_MOE_DOWN: return waits_for(j, op, 0) || j->alone;
    default: return true;
    }
}

/* What op does to buffers that others may read or write before the next barrier. */
static void note(struct cpu_join *j, const struct op *op, uint32_t n_phases)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i].buf != BUF_NONE && op->kind != OP_KV_STORE)
            j->written |= (uint64_t)1 << op->out[i].buf;
    j->reduced = op->kind == OP_ALLREDUCE;
    j->alone = op->kind == OP_ROUTER && n_phases != 1; /* its last phase writes tables that are not private then */
}

enum { ROWS_NONE, ROWS_ALL, ROWS_LOGITS, ROWS_PAIRS };

/* Does a phase cut all that it reads and writes evenly by rows, and by which? */
static uint8_t rows_of(const struct op *op, uint32_t phase, uint32_t n_phases, enum cpu_by by)
{
    const bool last = phase + 1 == n_phases;
    if (by == CPU_BY_ROWS)
        return ROWS_ALL;
    if (by == CPU_BY_PAIRS && op->kind != OP_MOE_SILU_MUL)
        return (op->kind == OP_MOE_DOWN) == last ? ROWS_ALL : ROWS_PAIRS;
    switch (op->kind) {
    case OP_RMSNORM: case OP_ADD: case OP_KV_STORE: case OP_SILU_MUL: break;
    case OP_MOE_SILU_MUL: return ROWS_PAIRS;
    case OP_LINEAR: case OP_QKV_A: case OP_GATE_UP: case OP_MOE_GATE_UP: case OP_MOE_DOWN: case OP_ROUTER: /* their inputs are quantised, or all of it */
        if (phase != 0 || n_phases != 2)
            return ROWS_NONE;
        break;
    default: return ROWS_NONE;
    }
    if (op->kind == OP_MOE_DOWN)
        return ROWS_PAIRS;
    return wants_logits(op) ? ROWS_LOGITS : ROWS_ALL;
}

/* Where rows are cut alike no barrier is needed; nor after two ops that leave alone what the next one looks at: rotated queries, the router's tables. */
static bool cut_needs(struct cpu_join *j, const struct op *op, uint32_t phase, uint32_t n_phases, enum cpu_by by)
{
    const uint8_t rows = rows_of(op, phase, n_phases, by);
    const bool apart = (j->rope && op->kind == OP_KV_STORE) || (j->alone && op->kind == OP_MOE_GATE_UP && rows == ROWS_ALL && by != CPU_BY_ROWS);
    const bool join = !apart && (rows == ROWS_NONE || rows != j->rows);
    j->rows = apart ? ROWS_NONE : rows;
    j->rope = op->kind == OP_ROPE_Q && by != CPU_BY_ROWS;
    j->alone = op->kind == OP_ROUTER && phase + 1 == n_phases;
    return join;
}

bool cpu_join_before(struct cpu_join *j, enum cpu_sharing how, const struct op *op, uint32_t phase, uint32_t n_phases, enum cpu_by by)
{
    bool join = true;
    if (how == CPU_SHARE_WHOLE) {
        join = op->kind == OP_ALLREDUCE || j->reduced;
        j->reduced = op->kind == OP_ALLREDUCE;
    } else if (how == CPU_SHARE_LOCAL) {
        join = phase != 0 || local_needs(j, op, n_phases);
        if (join)
            j->written = 0;
        note(j, op, n_phases);
    } else {
        join = cut_needs(j, op, phase, n_phases, by);
    }
    return join;
}

/* Private memory of a worker: the buffers above for CPU_PRIVATE_ROWS rows, and routing tables. */
static bool alloc_worker(struct cpu *c, struct cpu_local *l)
{
    const struct hparams *hp = c->hp;
    const struct { uint8_t buf; size_t width; } t[] = {{BUF_H, hp->n_embd}, {BUF_QR, hp->q_lora}, {BUF_Y, hp->n_embd}, {BUF_ROUTER, hp->n_experts},
                                                      {BUF_CHOICE, 2 * hp->n_used}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        l->buf[t[i].buf] = cpu_big_alloc((t[i].width * CPU_PRIVATE_ROWS + 16) * sizeof(float));
        if (l->buf[t[i].buf] == NULL)
            return false;
    }
    return cpu_routing_alloc(&l->routing, hp->n_experts, CPU_PRIVATE_ROWS * (size_t)hp->n_used);
}

enum rs_result cpu_local_open(struct cpu *c, struct rs_error *err)
{
    if (c->n_ranks % c->n_workers == 0 || c->n_workers % c->n_ranks != 0)
        return RS_OK;
    c->local = calloc(c->n_workers, sizeof *c->local);
    for (uint32_t w = 0; c->local != NULL && w < c->n_workers; w++)
        if (!alloc_worker(c, &c->local[w]))
            return error_set(err, RS_ENOMEM, "out of memory for the workers' buffers");
    return c->local != NULL ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for the workers' buffers");
}

void cpu_local_close(struct cpu *c)
{
    for (uint32_t w = 0; c->local != NULL && w < c->n_workers; w++) {
        for (int b = 0; b < BUF_COUNT; b++)
            free(c->local[w].buf[b]);
        cpu_routing_free(&c->local[w].routing);
    }
    free(c->local);
}

bool cpu_routing_alloc(struct cpu_routing *r, uint32_t n_experts, size_t pairs)
{
    r->group = calloc(n_experts + 1, sizeof *r->group);
    r->pair_row = calloc(pairs + 1, sizeof *r->pair_row);
    r->pair_weight = calloc(pairs + 1, sizeof *r->pair_weight);
    return r->group != NULL && r->pair_row != NULL && r->pair_weight != NULL;
}

void cpu_routing_free(struct cpu_routing *r)
{
    free(r->group);
    free(r->pair_row);
    free(r->pair_weight);
}
