#!/bin/sh
# The story's switches on the command line: what each does to an answer, and what graph mode refuses.
. "${abs_srcdir:?}/tests/tap.sh"

rs() { "$abs_builddir/rankscope" chat -p "What is the capital of France?" --no-think --temp 0 "$@"; }
right="The capital of France is Paris."

answers() { # NAME ARGS...: the answer is right
    name=$1
    shift
    tap_ok "$name" test "$(rs "$@" 2>/dev/null)" = "$right"
}

nonsense() { # NAME ARGS...: there is an answer, and it does not know Paris
    name=$1
    shift
    got=$(rs "$@" 2>/dev/null)
    tap_diag "got: $got"
    tap_ok "$name" sh -c 'test -n "$1" && case $1 in *Paris*) false ;; esac' - "$got"
}

"$abs_builddir/rankscope" chat -p "What is the capital of France?" --think --max 3 >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err"
tap_eq "an answer cut while it thinks says so" "[$(cat "$TEST_SCRATCH/out")] $(cat "$TEST_SCRATCH/err")" \
    "[] (thinking only, 17 bytes: The question asks)
(cut after 3 tokens)"

for ranks in 1 8; do
    answers "$ranks ranks: nothing patched" --ranks $ranks
    nonsense "$ranks ranks: slot_order=file is nonsense" --ranks $ranks --patch slot_order=file
    answers "$ranks ranks: slot_order=file and mla=off is right" --ranks $ranks --patch slot_order=file --patch mla=off
    nonsense "$ranks ranks: slot_order=file and mla=expanded is not" --ranks $ranks --patch slot_order=file --patch mla=expanded
    answers "$ranks ranks: slot_order=file and qkv_a=split is right" --ranks $ranks --patch slot_order=file --patch qkv_a=split
done
answers "mla=direct is right in eager mode" --patch mla=direct --mode eager
rs --patch mla=direct --mode graph >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err"
status=$?
tap_ok "mla=direct is refused in graph mode" test $status -ne 0
tap_ok "and the message names the op" grep -q 'blk.0.attn.mla' "$TEST_SCRATCH/err"
tap_ok "and nothing was printed" test ! -s "$TEST_SCRATCH/out"
nonsense "mla=direct in a graph runs wrong with graph.guard=off" --patch mla=direct --mode graph --set graph.guard=off
for mode in eager graph; do
    answers "allreduce=tree, payload bf16, split ep, f32 products: $mode" --mode $mode --patch allreduce=tree --patch allreduce.dtype=bf16 \
        --patch moe.split=ep --patch matmul=f32
    per_step=$(rs --mode $mode --json 2>/dev/null | sed 's/.*"per_step":\([0-9]*\).*/\1/')
    tap_ok "13 all-reduces a step: $mode" test "$per_step" = 13
done
tap_ok "audit prints the rule" sh -c '"$1"/rankscope audit --ranks 8 | grep -q "2 x layers + 1 = 13"' - "$abs_builddir"
tap_done
