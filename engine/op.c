/* Names of op kinds and buffers. */
#include "engine/op.h"

static const char *const KIND_NAMES[OP_KIND_COUNT] = {
    [OP_EMBED] = "embed", [OP_ALLREDUCE] = "allreduce", [OP_RMSNORM] = "rmsnorm", [OP_QKV_A] = "qkv_a", [OP_LINEAR] = "linear",
    [OP_ROPE_Q] = "rope", [OP_KV_STORE] = "kv_store", [OP_MLA] = "mla", [OP_INDEX_Q] = "index_q", [OP_INDEX_STORE] = "index_store",
    [OP_INDEX_SCORES] = "index_scores", [OP_INDEX_TOPK] = "index_topk", [OP_ADD] = "add", [OP_GATE_UP] = "gate_up",
    [OP_SILU_MUL] = "silu_mul", [OP_ROUTER] = "router", [OP_MOE_GATE_UP] = "moe_gate_up", [OP_MOE_SILU_MUL] = "moe_silu_mul",
    [OP_MOE_DOWN] = "moe_down", [OP_PICK_ROWS] = "pick_rows", [OP_GATHER] = "gather",
    [OP_HIDDEN] = "hidden",
};

static const char *const BUF_NAMES[BUF_COUNT] = {
    [BUF_NONE] = "-", [BUF_X] = "x", [BUF_H] = "h", [BUF_Z] = "z", [BUF_QR] = "qr", [BUF_Q] = "q", [BUF_O] = "o", [BUF_A] = "a",
    [BUF_GU] = "gate_up", [BUF_ACT] = "act", [BUF_ROUTER] = "router", [BUF_CHOICE] = "choice", [BUF_MGU] = "moe_gate_up",
    [BUF_MACT] = "moe_act", [BUF_IQ] = "index_q", [BUF_IK] = "index_k", [BUF_IW] = "index_w", [BUF_ISCORE] = "index_score",
    [BUF_ISEL] = "index_sel", [BUF_E] = "e", [BUF_HID] = "hidden", [BUF_CAT] = "cat", [BUF_Y] = "y", [BUF_LOGITS] = "logits",
    [BUF_FULL] = "logits_full",
};

const char *op_kind_name(enum op_kind k)
{
    return k < OP_KIND_COUNT ? KIND_NAMES[k] : "?";
}

const char *op_buf_name(enum op_buf b)
{
    return b < BUF_COUNT ? BUF_NAMES[b] : "?";
}
