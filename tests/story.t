#!/bin/sh
# scripts/story.lua from end to end: what it finds, in its own words.
. "${abs_srcdir:?}/tests/tap.sh"

out=$TEST_SCRATCH/story.txt
cd "$TEST_SCRATCH" || exit 1 # what comes with the program is found from any folder
RANKSCOPE_DATADIR=$abs_srcdir "$abs_builddir/rankscope" scripts/story.lua "$TEST_SCRATCH/notebook.db" >"$out" 2>&1 </dev/null
tap_ok "it runs to its end" test $? -eq 0

says() { # NAME TEXT
    tap_ok "$1" grep -qF -- "$2" "$out"
}
says "with mla=off the text is right" 'slot_order=file, mla=off: "The capital of France is Paris."'
says "the wrong claim is recorded as holding" "claim 1 recorded: holds"
says "slot_order matters" "slot_order matters"
says "qkv_a matters" "qkv_a matters"
says "mla does not" "mla between absorbed and expanded does not matter"
says "direct breaks only in graphs" "mla=direct breaks the answer only together with mode=graph"
says "slot order breaks only the fused projection" "slot_order=file breaks the answer only together with qkv_a=fused"
says "bisect names slot_order alone" "the smallest set that is garbage: slot_order=file ("
says "the wrong claim is refuted" "claim 1: holds -> refuted"
tap_ok "under slot_order=file the answer is not the right one" sh -c '! grep -q "^   slot_order=file: .*Paris" "$1"' - "$out"
tap_ok "the fixed answer is right" grep -qF 'slot_order=slot: "The capital of France is Paris."' "$out"
tap_ok "24 arms" test "$(grep -c ' %  ' "$out")" -ge 24
tap_done
