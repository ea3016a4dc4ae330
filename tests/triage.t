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
# Fast numerics may answer in other words after a rewind; here they are made to, and that alone blames nobody.
cat >"$TEST_SCRATCH/words.lua" <<'END'
local always, generate = ... == "always", rs.generate
rs.generate = function(o)
  local r = generate(o)
  if o.session == nil and (always or rs.call("info").state.numerics == "fast") then r.ids[#r.ids] = r.ids[#r.ids] + 1 end
  return r
end
rs.model.open{ranks = 2, numerics = "fast"}
local t = require "triage"
t.report(t.run{skip = {"short", "graph", "again", "one_rank", "many", "f32"}})
print("numerics " .. rs.call("info").state.numerics)
END
for when in fast always; do
    out=$("$abs_builddir/rankscope" "$TEST_SCRATCH/words.lua" $when 2>"$TEST_SCRATCH/err")
    says "words that differ (${when}): compared under invariant numerics" "under invariant numerics, as words may differ under fast ones"
    [ $when = always ] && verdict="verdict: attn.kv_store" || verdict="verdict: healthy"
    says "words that differ (${when}): $verdict" "$verdict"
    says "the numerics are as they were" "numerics fast"
done
triage --ranks x
tap_ok "a wrong option is an error" grep -q "a number expected" "$TEST_SCRATCH/err"
# At a terminal the evidence comes as it is found; what is stopped half way says that the same command goes on.
cat >"$TEST_SCRATCH/steps" <<'END'
expect > 
send /triage\r
expect symptom: 0 of
send \x03
expect error: interrupted
expect > 
send /exp mla=absorbed,off mode=eager,graph repeats=40\r
expect arms,
send \x03
expect the same command goes on from here
expect > 
send \x04
exit 0
END
tap_ok "evidence is told as it comes, and how to go on" \
    env TERM=xterm INPUTRC=/dev/null "$abs_builddir/tests/pty" "$TEST_SCRATCH/steps" "$abs_builddir/rankscope" --plain --local

tap_done
