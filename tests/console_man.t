#!/bin/sh
# docs/rankscope.1 and docs/bash/rankscope are what the program's own tables say. Run with GENERATE=1 to renew them.
. "${abs_srcdir:?}/tests/tap.sh"

"$abs_builddir/tests/rankscope-fake" dump-man >"$TEST_SCRATCH/rankscope.1"
if [ -n "$GENERATE" ]; then cp "$TEST_SCRATCH/rankscope.1" "$abs_srcdir/docs/rankscope.1"; fi
tap_ok "the manual page is up to date" diff -u "$abs_srcdir/docs/rankscope.1" "$TEST_SCRATCH/rankscope.1"
"$abs_builddir/tests/rankscope-fake" dump-completion >"$TEST_SCRATCH/completion"
if [ -n "$GENERATE" ]; then cp "$TEST_SCRATCH/completion" "$abs_srcdir/docs/bash/rankscope"; fi
tap_ok "completion for bash is up to date" diff -u "$abs_srcdir/docs/bash/rankscope" "$TEST_SCRATCH/completion"
# completes WANT WORDS...: the last word is the one at the cursor
completes() {
    want=$1
    shift
    # shellcheck disable=SC2016  # for bash
    got=$(bash -c '. "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _rankscope; echo "${COMPREPLY[*]}"' "$TEST_SCRATCH/completion" "$@" 2>&1)
    tap_eq "bash completes: $*" "$got" "$want"
}
if command -v bash >/dev/null; then
    cd "$TEST_SCRATCH" || exit 1
    : >one.gguf
    completes "perplexity" rankscope perp
    completes "eager graph" rankscope chat --mode ''
    completes "--raw" rankscope chat --raw
completes "--raw --rank --ranks" rankscope chat --ra
    completes "one.gguf" rankscope chat -m one
    completes "one.gguf" rankscope one
    completes "--back --backend" rankscope tokens --ba
    completes "--local" rankscope --loc
    completes "" rankscope chat --seed ''
else
    tap_skip "bash is not here"
fi
for command in chat tokens logits perplexity audit; do
    tap_like "it has the command $command" "$(cat "$TEST_SCRATCH/rankscope.1")" "^\\.SS rankscope $command"
done
tap_like "it has the console's commands" "$(cat "$TEST_SCRATCH/rankscope.1")" '^\.B /patch '
if command -v groff >/dev/null; then
    tap_eq "it formats without a complaint" "$(groff -man -Tascii -ww -z "$TEST_SCRATCH/rankscope.1" 2>&1)" ""
else
    tap_skip "groff is not here"
fi
tap_done
