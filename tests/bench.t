#!/bin/sh
# rankscope bench on the shipped model: sizes so small that the figures mean nothing, but all of them must be there and add up.
. "${abs_srcdir:?}/tests/tap.sh"

bench() { "$abs_builddir/rankscope" bench -m "$abs_srcdir/models/tiny-glm5-q4.gguf" --prompt 40 --gen 6 "$@" 2>"$TEST_SCRATCH/err"; }
number='[0-9][0-9]*\.[0-9e+]*'
three="$number,$number,$number"
tests="{\"pp\":{\"mean\":$number,\"stddev\":$number,\"samples\":\[$three\]},\"tg\":{\"mean\":$number,\"stddev\":$number,\"samples\":\[$three\]}}"

out=$(bench --ranks 2 --repeats 3 --json)
tap_eq "it succeeds and complains of nothing" "$? [$(cat "$TEST_SCRATCH/err")]" "0 []"
tap_like "both modes, both tests, three samples" "$out" "\"graph\":$tests,\"eager\":$tests}\$"
tap_like "what was measured" "$out" '"ranks":2,.*"prompt":40,"gen":6,"depth":1,"repeats":3,'
if command -v python3 >/dev/null; then
    tap_ok "mean and deviation are those of the samples" python3 -c '
import json, statistics, sys
o = json.loads(sys.argv[1])
for mode in "graph", "eager":
    for s in o[mode].values():
        v = s["samples"]
        assert min(v) > 0
        assert abs(s["mean"] - statistics.mean(v)) < 1e-6 * s["mean"], s
        assert abs(s["stddev"] - statistics.stdev(v)) < 1e-6 * s["mean"], s
' "$out"
else
    tap_skip "python3 is not here"
fi
out=$(bench --mode eager --repeats 1 --depth 30 --json)
tap_like "--mode leaves the other out, one sample has no deviation" "$out" '"repeats":1,"eager":{"pp":{"mean":[^}]*"stddev":0\.0,'
out=$(bench --mode both --repeats 1 --ranks 1 --json)
tap_like "--mode both measures both" "$out" '"graph":{"pp".*"eager":{"pp"'
out=$(bench --ranks 1 --repeats 1 --depth 30)
for row in "graph  pp40" "graph  tg6 @ 30" "eager  pp40" "eager  tg6 @ 30"; do
    tap_like "the table has $row" "$out" "  $row  .*$number  *0\.0\$"
done
out=$(bench --repeats 1 --prompt 0 --json)
tap_like "a test of no tokens is left out" "$out" '"graph":{"tg"'
bench --prompt 0 --gen 0 >/dev/null
tap_eq "nothing to measure" "$?" 2
bench --prompt 5000 >/dev/null
tap_eq "a prompt that does not fit" "$? $(wc -l <"$TEST_SCRATCH/err")" "2 1"
tap_done
