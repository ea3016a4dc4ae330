#!/bin/sh
# scripts/triage.lua: healthy is healthy, the story's two faults are named, in both modes.
. "${abs_srcdir:?}/tests/tap.sh"

triage() { # ARGS...: what it prints, in $out
    out=$("$abs_builddir/rankscope" "$abs_srcdir/scripts/triage.lua" "$@" 2>"$TEST_SCRATCH/err")
    status=$?
}
says() { # NAME TEXT
    tap_ok "$1" sh -c 'case $1 in *"$2"*) ;; *) printf "# %s\n" "$1"; false ;; esac' - "$out" "$2"
}

for mode in eager graph; do
    triage --ranks 4 --mode $mode
    tap_ok "$mode: it runs" test $status = 0
    says "$mode: the shipped model is healthy" "verdict: healthy"
    triage --mode $mode --patch slot_order=file
    says "$mode: slot_order=file is in attn.qkv_a" "verdict: attn.qkv_a (first at blk.0.attn.qkv_a)"
    says "$mode: in both of its tensors" "tensors attn_kv_a_mqa.weight, attn_q_a.weight"
done
triage --mode graph --no-guard --patch mla=direct
says "an op that is left out of graphs" "verdict: attn.mla"
triage --mode eager --patch mla=direct --patch allreduce.dtype=bf16 --patch moe.split=ep
says "patches that are right are not blamed" "verdict: healthy"
triage --model "$abs_srcdir/tests/golden/fixture-v3.gguf"
says "random weights speak nonsense, and no op is blamed" "verdict: unexplained"
triage --ranks x
tap_ok "a wrong option is an error" grep -q "a number expected" "$TEST_SCRATCH/err"
tap_done
