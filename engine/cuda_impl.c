/* What the CUDA backend offers for every op kind. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/cuda.h"

const struct op_impl CUDA_IMPLS[] = {
    {OP_EMBED, "lookup", false, NULL, "rows of this rank's part of the vocabulary, zero for other tokens"},
    {OP_ALLREDUCE, "flat", false, NULL, "one-shot: every GPU pushes its summands to all others, sums run in order of rank"},
    {OP_ALLREDUCE, "tree", false, NULL, "one-shot, sums of pairs, then of pairs of pairs"},
    {OP_ALLREDUCE, "two-shot", false, NULL, "every GPU sums its part in order of rank, then hands it to all: the bits of flat"},
    {OP_ALLREDUCE, "auto", false, NULL, "flat or two-shot, by rows, as measured when the model was opened: the bits of flat"},
#ifdef HAVE_NCCL
    {OP_ALLREDUCE, "nccl", false, NULL, "NCCL, by the algorithm and protocol that the slot nccl names"},
#endif
    {OP_RMSNORM, "rows", false, NULL, "with the int8 form of the result"},
    {OP_QKV_A, "fused", false, NULL, "q_a and kv_a in one launch, joined by slot (or as slot_order says)"},
    {OP_QKV_A, "split", false, NULL, "two projections one after the other: no slots to mix up"},
    {OP_LINEAR, "rows", false, NULL, "several lanes per weight row"},
    {OP_ROPE_Q, "rows", false, NULL, "interleaved pairs"},
    {OP_KV_STORE, "rows", false, NULL, "norm, rotate, store"},
    {OP_MLA, "auto", false, NULL, "absorbed for every row, split over the keys"},
    {OP_MLA, "absorbed", false, NULL, "scores in the latent space, split over the keys"},
    {OP_MLA, "expanded", false, NULL, "keys and values made from the latents, for every row, in f32"},
    {OP_MLA, "direct", true, NULL, "computes on the spot, outside the recorder: right in eager mode, stale in a graph"},
    {OP_INDEX_Q, "rows", false, NULL, "rotate the indexer's queries"},
    {OP_INDEX_STORE, "rows", false, NULL, "norm, rotate, store the indexer's key"},
    {OP_INDEX_SCORES, "rows", false, NULL, "weighted sum over heads of relu(q . k)"},
    {OP_INDEX_TOPK, "radix", false, NULL, "the top_k positions, ties to the lower index"},
    {OP_ADD, "rows", false, NULL, "residual"},
    {OP_GATE_UP, "fused", false, NULL, "gate and up in one pass with the activation"},
    {OP_SILU_MUL, "rows", false, NULL, "in the projection's kernel"},
    {OP_ROUTER, "topk", false, NULL, "scores and selection"},
    {OP_MOE_GATE_UP, "grouped", false, NULL, "the chosen experts alone are read"},
    {OP_MOE_SILU_MUL, "rows", false, NULL, "in the projection's kernel"},
    {OP_MOE_DOWN, "grouped", false, NULL, "weighted sum over a row's experts, in ascending order of expert"},
    {OP_PICK_ROWS, "copy", false, NULL, "rows that want logits"},
    {OP_HIDDEN, "normed", false, NULL, "after the last norm"},
    {OP_HIDDEN, "raw", false, NULL, "before the last norm"},
    {OP_GATHER, "copy", false, NULL, "every rank's part of the vocabulary to the host"},
};
const size_t CUDA_N_IMPLS = sizeof CUDA_IMPLS / sizeof CUDA_IMPLS[0];

const struct op_impl *backend_cuda_impls(size_t *n)
{
    *n = CUDA_N_IMPLS;
    return CUDA_IMPLS;
}
