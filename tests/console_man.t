#!/bin/sh
# docs/rankscope.1 is what the program's own tables say. To renew it: tests/rankscope-fake dump-man >docs/rankscope.1
. "${abs_srcdir:?}/tests/tap.sh"

"$abs_builddir/tests/rankscope-fake" dump-man >"$TEST_SCRATCH/rankscope.1"
if [ -n "$GENERATE" ]; then cp "$TEST_SCRATCH/rankscope.1" "$abs_srcdir/docs/rankscope.1"; fi
tap_ok "the manual page is up to date" diff -u "$abs_srcdir/docs/rankscope.1" "$TEST_SCRATCH/rankscope.1"
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
