#!/bin/sh
# /rewind, /fork, /branch: back in an answer, and on from there, with what is in the cache.
. "${abs_srcdir:?}/tests/tap.sh"

run() { # LINES: the output in $TEST_SCRATCH/out
    printf "%b" "$1" >"$TEST_SCRATCH/in"
    "$abs_builddir/rankscope" --local --ranks 2 --no-think <"$TEST_SCRATCH/in" >"$TEST_SCRATCH/out" 2>&1
}
said() { tap_ok "$1" sh -c 'grep -qF -- "$2" "$1" || { cat "$1"; false; }' - "$TEST_SCRATCH/out" "$2"; }
count() { grep -cF -- "$1" "$TEST_SCRATCH/out"; }

run 'What is the capital of France?\n/rewind 3\n/retry\n'
said "some tokens go" "tokens of the answer stay"
tap_eq "the same answer comes again: nothing else has changed" "$(count 'The capital of France is Paris.')" 3
run 'What is the capital of France?\n/rewind 5\nWhat is the capital of Italy?\n'
said "the conversation goes on after it" "Rome"
run 'What is the capital of France?\n/fork 4\n/branch\n/branch 1\nWhat is 2 + 2?\n'
said "a branch has its own number" "this is conversation 2 now; /branch 1 is the one that was left"
said "conversations are listed" "2 (this one)"
tap_eq "the other one is shown when one goes back" "$(count 'The capital of France is Paris.')" 3
said "and goes on" "4"
run 'What is the capital of France?\n/rewind 1000\n'
said "more than there is" "the answer has"
run '/rewind 1\n'
said "nothing to go back in" "there is no answer"
run '/rewind many\n'
said "no number" "usage: /rewind N"

# With another patch the rest changes, and what stays does not.
run 'What is the capital of France?\n/patch slot_order=file\n/rewind 3\n'
tap_ok "the rest is computed with the patches of now" test "$(count 'The capital of France is Paris.')" = 1
said "what stays is shown" "The capital of"
tap_done
