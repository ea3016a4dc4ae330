/* Launching gated projections, experts and the router. */
#include "engine/cuda_op.h"

/* Is the gated projection one for tensor cores, with an activation that they can take from there? */
static bool gated_many(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op)
{
    const struct kcu_mat *gate = cuda_op_mat(w, r, op, 0), *up = cuda_op_mat(w, r, op, 1);
    const bool int8 = w->s->choices[op->index].matmul == MATMUL_INT8 && (cuda_op_quantised(gate) || cuda_op_quantised(up));
    return gate->w != NULL && gate->rows % 16 == 0 && cuda_op_many(w, w->rows, &op->in[0], int8, gate, up);
}

/* The gated projection of op i with its activation op i + 1. */
static enum rs_result fill_gated(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct choice *ch,
                                 struct kcu_gated *a)
{
    const struct kcu_mat *gate = cuda_op_mat(w, r, op, 0), *up = cuda_op_mat(w, r, op, 1);
    const struct op *act = &w->prog->ops[op->index + 1];
    const uint8_t gu = op->out[0].buf, to = act->out[0].buf;
    *a = (struct kcu_gated){.gate = *gate,
                            .up = *up,
                            .n = w->rows,
                            .n_used = 1,
                            .swapped = ch->file_order && op->file_slot[0] == 1,
                            .gu = cuda_op_at(w, r, &op->out[0]),
                            .gu_pitch = cuda_op_pitch_of(w, r, gu),
                            .act = cuda_op_at(w, r, &act->out[0]),
                            .act_pitch = cuda_op_pitch_of(w, r, to)};
    if (op->per_pair) {
        const float *choice = r->buf[BUF_CHOICE];
        a->n_used = w->c->hp->n_used;
        a->ids = (const int32_t *)(const void *)choice;
        a->ids_pitch = w->prog->width[BUF_CHOICE][r->rank];
        a->expert0 = shard_of(w->c->shard, (uint32_t)op->layer, r->rank)->experts.from;
    }
    if (gate->w == NULL)
        return RS_OK;
    if (gate->rows % 32 == 0 && r->q8[to] != NULL) {
        a->q8 = r->q8[to];
        a->q8_pitch = krn_q8_row_bytes(gate->rows);
    }
    const bool many = gated_many(w, r, op);
    cuda_op_set_q8(w, r, to, a->q8 != NULL && !many);
    enum rs_result rc = many ? cuda_op_halves(w, r, &op->in[0], gate->k, w->rows, &a->in)
                             : cuda_op_input(w, r, &op->in[0], gate->k,
                                             ch->matmul == MATMUL_INT8 && (cuda_op_quantised(gate) || cuda_op_quantised(up)), w->rows, &a->in);
    cuda_op_note(w, r, op, many, a->in.q8 != NULL);
    return rc;
}

/* Does anything but a product on tensor cores want the activation that op makes? That one takes its f16 form, and the f32 values need not
 * be written. Where ranks share a GPU they share the room for that form, and it is made again. */
static bool act_is_wanted(struct cuda_walk *w, const struct cuda_rank *r, const struct op *op)
{
    const struct op *act = op + 1, *down = cuda_op_ahead(w, 2);
    if (!w->fuse || w->g->n_local != 1 || cuda_op_observed(w, act) || down == NULL || (down->kind != OP_MOE_DOWN && down->kind != OP_LINEAR) ||
        down->in[0].buf != act->out[0].buf || cuda_op_is_user(w, down))
        return true;
    const struct kcu_mat *m = cuda_op_mat(w, r, down, 0);
    const bool int8 = w->s->choices[down->index].matmul == MATMUL_INT8 && cuda_op_quantised(m);
    return m->w == NULL || !cuda_op_many(w, w->rows, &down->in[0], int8, m, NULL);
}

/* May the experts' products of a layer, gate and up of op and down behind them, all go by boxes? They share a plan. */
static bool by_boxes(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op)
{
    const struct kcu_mat *m[] = {cuda_op_mat(w, r, op, 0), cuda_op_mat(w, r, op, 1), cuda_op_mat(w, r, op + 2, 0)};
    for (int i = 0; i < 3; i++)
        if (!kcu_grouped_boxes(&w->l, m[i], w->rows, w->c->hp->n_used))
            return false;
    return true;
}

/* Experts' gate, up and activation of many rows. Gate and up by themselves are written where they are wanted. */
static enum rs_result run_experts(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct kcu_gated *a, const struct kcu_linear *l)
{
    struct kcu_grouped g = {.n_mats = 2, .m = {l->m[0], l->m[1]}, .col = {l->col[0], l->col[1]}, .in = a->in, .boxes = by_boxes(w, r, op),
                            .n = a->n, .n_used = a->n_used, .plan = r->plan, .y = a->gu, .y_pitch = a->gu_pitch};
    const uint32_t pairs = a->n * a->n_used;
    const int place = cuda_op_half_place(w->prog->ops[op->index + 1].out[0].buf);
    CUDA_OP_RUN(kcu_group(&w->l, a->ids, a->ids_pitch, a->n, a->n_used, a->expert0, a->gate.n_mats, g.boxes, r->plan));
    const bool acts = kcu_grouped_acts(&g);
    if (acts) {
        g.act = a->act;
        g.act_pitch = a->act_pitch;
        if (w->fuse && !cuda_op_observed(w, op) && !cuda_op_is_user(w, op + 1))
            g.y = NULL;
    }
    enum rs_result rc = cuda_op_after(w, kcu_gemm_grouped(&w->l, &g), kcu_gemm_grouped_kernels(&w->l, &g));
    if (rc != RS_OK)
        return rc;
    if (acts)
        CUDA_OP_RUN(kcu_halve(&w->l, a->act, a->act_pitch, a->gate.rows, pairs, w->g->half[place], a->gate.rows, w->g->half_scale[place]));
    else
        CUDA_OP_RUN(kcu_act(&w->l, a->gu, a->gu_pitch, a->gate.rows, pairs, act_is_wanted(w, r, op) ? a->act : NULL, a->act_pitch, w->g->half[place],
                            a->gate.rows, w->g->half_scale[place]));
    return RS_OK;
}

/* Gate and up as two products of many rows, then the activation. */
static enum rs_result run_many(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct kcu_gated *a)
{
    const uint8_t to = w->prog->ops[op->index + 1].out[0].buf;
    const int place = cuda_op_half_place(to);
    struct kcu_linear l = {.n_mats = 2,
                           .m = {a->gate, a->up},
                           .col = {a->swapped ? a->gate.rows : 0, a->swapped ? 0 : a->gate.rows},
                           .in = a->in,
                           .n = a->n,
                           .y = a->gu,
                           .y_pitch = a->gu_pitch,
                           .room = w->g->room,
                           .n_room = w->g->n_room};
    enum rs_result rc = a->ids != NULL ? run_experts(w, r, op, a, &l) : cuda_op_after(w, kcu_gemm(&w->l, &l), kcu_gemm_kernels(&w->l, &l));
    if (rc != RS_OK)
        return rc;
    if (a->ids == NULL)
        CUDA_OP_RUN(kcu_act(&w->l, a->gu, a->gu_pitch, a->gate.rows, a->n, act_is_wanted(w, r, op) ? a->act : NULL, a->act_pitch, w->g->half[place],
                            a->gate.rows, w->g->half_scale[place]));
    cuda_op_halves_made(w, r, to);
    return RS_OK;
}

enum { SILU_ROWS = 32768 }; /* of a launch */

/* The activation by itself, behind a projection that was not computed by these kernels. */
enum rs_result cuda_op_silu(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op_ref *in = &w->op->in[0], *out = &w->op->out[0];
    const uint32_t width = plan_ref_width(w->prog, w->op, out, r->rank), rows = w->rows * (w->op->per_pair ? w->c->hp->n_used : 1);
    const size_t from = cuda_op_pitch_of(w, r, in->buf), to = cuda_op_pitch_of(w, r, out->buf);
    for (uint32_t i = 0; i < rows && width != 0; i += SILU_ROWS)
        CUDA_OP_RUN(kcu_silu(&w->l, cuda_op_at(w, r, in) + i * from, from, width, rows - i < SILU_ROWS ? rows - i : SILU_ROWS, cuda_op_at(w, r, out) + i * to, to));
    return RS_OK;
}

/* Dense FFN, or the shared expert when it was not taken along with the experts. */
enum rs_result cuda_op_gate_up(struct cuda_walk *w, struct cuda_rank *r)
{
    struct kcu_gated a;
    enum rs_result rc = fill_gated(w, r, w->op, w->ch, &a);
    w->done[w->op->index + 1] = !cuda_op_is_user(w, w->op + 1);
    if (rc != RS_OK || a.gate.w == NULL)
        return rc;
    if (gated_many(w, r, w->op))
        return run_many(w, r, w->op, &a);
    CUDA_OP_RUN(kcu_gated(&w->l, NULL, &a, NULL));
    return RS_OK;
}

/* The down projections of op, with the shared expert's unless shexp is NULL; activations without their int8 form. */
static struct kcu_down down_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, const struct op *shexp)
{
    const float *choice = r->buf[BUF_CHOICE];
    const uint32_t n_used = w->c->hp->n_used;
    struct kcu_down a = {.down = *cuda_op_mat(w, r, op, 0),
                         .act = {.x = cuda_op_at(w, r, &op->in[0]), .pitch = cuda_op_pitch_of(w, r, op->in[0].buf)},
                         .n = w->rows,
                         .n_used = n_used,
                         .n_experts = w->c->hp->n_experts,
                         .choose = w->choosing ? &w->route : NULL,
                         .expert0 = shard_of(w->c->shard, (uint32_t)op->layer, r->rank)->experts.from,
                         .ids = (const int32_t *)(const void *)choice,
                         .weights = choice + n_used,
                         .ids_pitch = w->prog->width[BUF_CHOICE][r->rank],
                         .y = cuda_op_at(w, r, &op->out[0]),
                         .y_pitch = cuda_op_pitch_of(w, r, op->out[0].buf),
                         .width = cuda_op_width_of(w, r, &op->out[0])};
    if (shexp != NULL) {
        a.shared = *cuda_op_mat(w, r, shexp, 0);
        a.shared_act = (struct kcu_rows_in){.x = cuda_op_at(w, r, &shexp->in[0]), .pitch = cuda_op_pitch_of(w, r, shexp->in[0].buf)};
    }
    return a;
}

/* Can gate and up of the experts, and their down projections behind, leave the int8 form of what is between them to the latter? */
static bool leaves_int8(const struct cuda_walk *w, const struct cuda_rank *r, const struct kcu_gated *a, const struct kcu_gated *b)
{
    const struct op *down = cuda_op_ahead(w, 2), *shexp = b != NULL ? cuda_op_ahead(w, 5) : NULL;
    if (!w->choosing || down == NULL || down->kind != OP_MOE_DOWN || cuda_op_is_user(w, down) || cuda_op_is_user(w, w->op + 1) ||
        w->s->choices[down->index].matmul != MATMUL_INT8)
        return false;
    if (shexp != NULL && (shexp->kind != OP_LINEAR || cuda_op_is_user(w, shexp) || w->s->choices[shexp->index].matmul != MATMUL_INT8))
        return false;
    const struct kcu_down d = down_of(w, r, down, shexp);
    return kcu_gated_leaves_int8(a, b, &w->route) && kcu_down_makes_int8(&d);
}

enum rs_result cuda_op_moe_gate_up(struct cuda_walk *w, struct cuda_rank *r)
{
    struct kcu_gated a, b = {.n = 0};
    const bool shared = w->fuse && cuda_op_next_is(w, 3, OP_GATE_UP) && cuda_op_ahead(w, 3)->layer == w->op->layer && !cuda_op_is_user(w, w->op + 3) &&
                        w->rows < CUDA_MANY_ROWS && w->s->fast;
    enum rs_result rc = fill_gated(w, r, w->op, w->ch, &a);
    if (rc == RS_OK && gated_many(w, r, w->op)) {
        w->done[w->op->index + 1] = !cuda_op_is_user(w, w->op + 1);
        return run_many(w, r, w->op, &a);
    }
    if (rc == RS_OK && shared)
        rc = fill_gated(w, r, cuda_op_ahead(w, 3), &w->s->choices[w->op->index + 3], &b);
    if (rc != RS_OK)
        return rc;
    w->int8_left = leaves_int8(w, r, &a, shared ? &b : NULL);
    if (w->int8_left) {
        a.q8 = b.q8 = NULL;
        cuda_op_set_q8(w, r, cuda_op_ahead(w, 1)->out[0].buf, false);
        if (shared)
            cuda_op_set_q8(w, r, cuda_op_ahead(w, 4)->out[0].buf, false);
    }
    if (!w->choosing && kcu_gated_few(&w->l, &a, shared ? &b : NULL)) {
        cuda_op_note_few(w, r, w->op, true);
        cuda_op_note_few(w, r, cuda_op_ahead(w, 3), shared && b.gate.w != NULL);
    }
    CUDA_OP_RUN(kcu_gated(&w->l, &a, shared ? &b : NULL, w->choosing ? &w->route : NULL));
    w->done[w->op->index + 1] = !cuda_op_is_user(w, w->op + 1);
    if (shared) {
        w->done[w->op->index + 3] = true;
        w->done[w->op->index + 4] = !cuda_op_is_user(w, w->op + 4);
    }
    return RS_OK;
}

enum rs_result cuda_op_moe_down(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op, *shexp = cuda_op_ahead(w, 3);
    const struct kcu_mat *m = cuda_op_mat(w, r, op, 0);
    const uint32_t n_used = w->c->hp->n_used;
    const bool int8 = w->ch->matmul == MATMUL_INT8 && cuda_op_quantised(m),
               many = m->w != NULL && cuda_op_many(w, w->rows, &op->in[0], int8, m, NULL),
               has_shared = cuda_op_next_is(w, 1, OP_GATE_UP) && shexp != NULL && shexp->kind == OP_LINEAR && shexp->accumulate,
               along = has_shared && !many && !cuda_op_is_user(w, shexp) && w->fuse && w->done[op->index + 1] && w->done[op->index + 2] && !cuda_op_observed(w, op);
    struct kcu_down a = down_of(w, r, op, along ? shexp : NULL);
    enum rs_result rc = RS_OK;
    a.makes_int8 = w->int8_left && kcu_down_makes_int8(&a);
    if (m->w != NULL && !a.makes_int8)
        rc = many ? cuda_op_halves(w, r, &op->in[0], m->k, w->rows * n_used, &a.act)
                  : cuda_op_input(w, r, &op->in[0], m->k, int8, w->rows * n_used, &a.act);
    if (m->w != NULL)
        cuda_op_note(w, r, op, many, a.makes_int8 || a.act.q8 != NULL);
    if (rc == RS_OK && many) {
        const bool boxes = by_boxes(w, r, op - 2);
        if (!gated_many(w, r, op - 2) || cuda_op_is_user(w, op - 2)) /* else it has left the plan */
            CUDA_OP_RUN(kcu_group(&w->l, a.ids, a.ids_pitch, a.n, n_used, a.expert0, m->n_mats, boxes, r->plan));
        const struct kcu_grouped g = {.n_mats = 1, .m = {*m}, .in = a.act, .per_pair = true, .boxes = boxes, .n = a.n, .n_used = n_used, .plan = r->plan,
                                      .y = w->g->pairs, .y_pitch = a.width};
        CUDA_OP_RUN(kcu_gemm_grouped(&w->l, &g));
        CUDA_OP_RUN(kcu_combine(&w->l, w->g->pairs, a.width, &a));
        return RS_OK;
    }
    if (rc == RS_OK && along) {
        if (a.shared.w != NULL && !a.makes_int8)
            rc = cuda_op_input(w, r, &shexp->in[0], a.shared.k,
                               w->s->choices[shexp->index].matmul == MATMUL_INT8 && cuda_op_quantised(&a.shared), w->rows, &a.shared_act);
        if (a.shared.w != NULL)
            cuda_op_note(w, r, shexp, false, a.makes_int8 || a.shared_act.q8 != NULL);
        w->done[shexp->index] = true;
    }
    if (rc != RS_OK)
        return rc;
    const struct cuda_residual to = cuda_op_residual(w, r, has_shared && w->done[shexp->index] ? 4 : 1);
    a.x = to.x;
    a.x_pitch = to.pitch;
    if (kcu_down_few(&w->l, &a)) {
        cuda_op_note_few(w, r, op, true);
        cuda_op_note_few(w, r, shexp, a.shared.w != NULL);
    }
    CUDA_OP_RUN(kcu_down(&w->l, &a));
    w->choosing = w->int8_left = false;
    return RS_OK;
}

static struct kcu_route route_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, const struct op *norm)
{
    const struct hparams *hp = w->c->hp;
    float *choice = cuda_op_at(w, r, &op->out[1]);
    return (struct kcu_route){.gate = *cuda_op_mat(w, r, op, 0),
                              .bias = cuda_op_vec(w, r, op, 1),
                              .x = cuda_op_at(w, r, &op->in[0]),
                              .x_pitch = cuda_op_pitch_of(w, r, op->in[0].buf),
                              .n = w->rows,
                              .n_experts = hp->n_experts,
                              .n_used = hp->n_used,
                              .n_groups = hp->n_groups,
                              .n_groups_used = hp->n_groups_used,
                              .sigmoid = hp->gating == HP_GATING_SIGMOID,
                              .norm = hp->expert_norm,
                              .scale = hp->expert_scale,
                              .p = cuda_op_at(w, r, &op->out[0]),
                              .p_pitch = cuda_op_pitch_of(w, r, op->out[0].buf),
                              .ids = (int32_t *)(void *)choice,
                              .weights = choice + hp->n_used,
                              .pitch = cuda_op_pitch_of(w, r, op->out[1].buf),
                              .fixed = !w->s->fast,
                              .arrived = r->arrived,
                              .words = {r->words, (const uint32_t *)w->g->meta + CUDA_META_STEP, op->index},
                              .pre = cuda_op_norm(w, r, norm)};
}

/* Is the choice left to the projections after it? */
static bool leaves_choice(const struct cuda_walk *w, const struct op *op, const struct kcu_route *a)
{
    const bool next = (uint32_t)op->index + 1 < w->prog->n_ops && w->prog->ops[op->index + 1].kind == OP_MOE_GATE_UP && !cuda_op_is_user(w, op + 1) &&
                      !cuda_op_is_user(w, op + 3);
    return w->fuse && w->s->fast && w->g->n_local == 1 && next && !cuda_op_observed(w, op) && kcu_logits_takes(a);
}

bool cuda_op_router_takes_norm(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct op *norm)
{
    const struct kcu_route a = route_of(w, r, op, norm);
    return leaves_choice(w, op, &a);
}

enum rs_result cuda_op_router(struct cuda_walk *w, struct cuda_rank *r)
{
    w->route = route_of(w, r, w->op, w->norm);
    w->choosing = leaves_choice(w, w->op, &w->route);
    cuda_op_note(w, r, w->op, false, false);
    if (w->norm == NULL && (w->rows >= CUDA_MANY_ROWS || !w->s->fast) && kcu_route_many_takes(&w->route))
        return cuda_op_after(w, kcu_route_many(&w->l, &w->route), kcu_route_many_kernels(&w->route));
    if (w->choosing)
        CUDA_OP_RUN(kcu_logits(&w->l, &w->route));
    else
        CUDA_OP_RUN(kcu_route(&w->l, &w->route));
    cuda_op_normed(w, r);
    return RS_OK;
}
