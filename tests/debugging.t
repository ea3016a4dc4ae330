#!/bin/sh
# docs/debugging.md: every transcript runs, and ends as it says (numbers aside).
. "${abs_srcdir:?}/tests/tap.sh"

numberless() { sed 's/[0-9][0-9.]*/N/g; s/  *$//'; }

awk -v dir="$TEST_SCRATCH" '
    /^```console/ { n++; on = 1; next }
    /^```/ { on = 0 }
    on && /^> / { print substr($0, 3) > (dir "/" n ".in"); next }
    on && $0 != "..." { print > (dir "/" n ".out") }
' "$abs_srcdir/docs/debugging.md"

n=0
for in in "$TEST_SCRATCH"/*.in; do
    n=$((n + 1))
    name=$(tail -1 "$in")
    (cd "$abs_srcdir" && "$abs_builddir/rankscope" --ranks 8 --temp 0) <"$in" >"$TEST_SCRATCH/got" 2>&1
    tap_ok "$name: it runs" test $? = 0
    # The last line without a time of its own, as far as the page shows it.
    grep -vE '^[0-9.]+ s$' "${in%.in}.out" | tail -1 | cut -c1-150 | numberless >"$TEST_SCRATCH/want"
    cut -c1-150 "$TEST_SCRATCH/got" | numberless >"$TEST_SCRATCH/lines"
    tap_ok "$name: and ends as written" grep -qxF -f "$TEST_SCRATCH/want" "$TEST_SCRATCH/lines"
done
tap_ok "there are transcripts" test $n -ge 9
tap_done
