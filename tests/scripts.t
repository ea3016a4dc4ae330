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
run sweep slot_order=slot,file --repeats 1 "What is the capital of France?"
says "sweep shows the values" '^file +WRONG'
says "and says what they do" 'slot_order=file breaks the answer'
run sweep nonsense=a,b
refuses "a slot that does not exist" "no slot 'nonsense'"
run allreduce-watch --demo --for 0.5
says "waits by rank" 'mean wait in us by rank 0:'
run allreduce-watch --demo --for x
refuses "no number" "a number expected"
tap_done
