#!/bin/sh
# The operators' scripts beside story and triage, on the shipped model.
. "${abs_srcdir:?}/tests/tap.sh"

run() { # SCRIPT ARGS...: output in $out
    script=$1
    shift
    out=$("$abs_builddir/rankscope" "$abs_srcdir/scripts/$script.lua" "$@" 2>"$TEST_SCRATCH/err")
    status=$?
}
says() { # NAME PATTERN
    tap_ok "$1" sh -c 'printf "%s\n" "$1" | grep -qE -- "$2" || { printf "%s\n" "$1"; false; }' - "$out" "$2"
}
refuses() { # NAME TEXT
    tap_ok "$1" test $status = 1
    tap_ok "$1: it says why" grep -qF -- "$2" "$TEST_SCRATCH/err"
}

run compare-quants - -
says "a file against itself: no divergence" 'mean 0, median 0, 99 % 0, largest 0$'
says "the same tokens" 'same first token  100.00 %'
run compare-quants - - --patch-b matmul=f32
says "int8 products against f32: little" 'mean [0-9.]+e-0[4-9]'
run compare-quants - - --patch-b slot_order=file --tokens 40
says "slots in file order: much" 'mean [1-9]'
run compare-quants - "$abs_srcdir/tests/golden/fixture-v3.gguf"
says "another model: much" 'mean [1-9]'
run compare-quants -
refuses "one file only" "usage"
tap_eq "and nothing else" "$(wc -l <"$TEST_SCRATCH/err")" 1
run sweep --rnaks 2
refuses "an option that there is not" "there is no option --rnaks; there are --model TEXT, --ranks NUMBER, --repeats NUMBER"
run sweep --help
refuses "--help lists the options" "options are --model TEXT, --ranks NUMBER"
run sweep slot_order=slot,file --repeats 1 "What is the capital of France?"
says "sweep shows the values" '^file +WRONG'
says "and says what they do" 'slot_order=file breaks the answer'
run sweep nonsense=a,b
refuses "a slot that does not exist" "no slot 'nonsense'"
# Weights from a copy of few bits: some tensors matter more than others; nothing is left of it afterwards.
"$abs_builddir/rankscope" quantize "$abs_srcdir/models/tiny-glm5-q4.gguf" "$TEST_SCRATCH/q2.gguf" --type Q4_0 >"$TEST_SCRATCH/err" 2>&1
tap_ok "a copy with other types" test -s "$TEST_SCRATCH/q2.gguf"
run sensitivity "$TEST_SCRATCH/q2.gguf" --ranks 1 --tokens 120 "blk.[12].*"
refuses "a pattern that matches nothing" "no tensor"
run sensitivity "$TEST_SCRATCH/q2.gguf" --ranks 1 --tokens 120 --top 3 "blk.2.*"
says "tensors ranked by what they do to the perplexity" '^blk\.2\.[a-z_]+\.weight +[0-9.]+ +[+-][0-9.]+ % .*to Q4_0$'
says "the others are counted" 'that matter less$'
run sensitivity "$TEST_SCRATCH/q2.gguf" --ranks 2 --tokens 120 --by kind
says "kinds of tensors" '^blk\.\*\.ffn_down_exps\.weight '
says "all together" '^all together: perplexity [0-9.]+ \([+-]'
echo "blk.3.attn_output* Q2_K" >"$TEST_SCRATCH/recipe"
"$abs_builddir/rankscope" quantize "$abs_srcdir/models/tiny-glm5-q4.gguf" "$TEST_SCRATCH/one.gguf" --recipe "$TEST_SCRATCH/recipe" >"$TEST_SCRATCH/err" 2>&1
run sensitivity "$TEST_SCRATCH/one.gguf" --ranks 1 --tokens 120
says "one tensor that differs is found among all" '1 swapped one at a time, 162 of equal bytes left out$'
says "and what it does" '^blk\.3\.attn_output\.weight +[0-9.]+ +[+-]'
run sensitivity "$abs_srcdir/models/tiny-glm5-q4.gguf" --tokens 120 --by layer "blk.1.*"
says "the file against itself" 'no tensor differs \(1 compared\)'
run allreduce-watch --demo --for 0.5
says "waits by rank" 'mean wait in us by rank 0:'
run allreduce-watch --demo --for x
refuses "no number" "a number expected"
tap_done
