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
    (cd "$TEST_SCRATCH" && "$abs_builddir/rankscope" --ranks 8 --temp 0) <"$in" >"$TEST_SCRATCH/got" 2>&1
    tap_ok "$name: it runs" test $? = 0
    # The last line without a time of its own, as far as the page shows it.
    grep -vE '^[0-9.]+ s$' "${in%.in}.out" | tail -1 | cut -c1-150 | numberless >"$TEST_SCRATCH/want"
    cut -c1-150 "$TEST_SCRATCH/got" | numberless >"$TEST_SCRATCH/lines"
    tap_ok "$name: and ends as written" grep -qxF -f "$TEST_SCRATCH/want" "$TEST_SCRATCH/lines"
done
tap_ok "there are transcripts" test $n -ge 9

# An engine of another folder: names are of the folder of who typed them.
mkdir "$TEST_SCRATCH/there"
cp "$abs_srcdir/scripts/patches/rmsnorm.lua" "$TEST_SCRATCH/there/mine.lua"
ln -s "$abs_srcdir/models/tiny-glm5-q4.gguf" "$TEST_SCRATCH/there/mine.gguf"
mkfifo "$TEST_SCRATCH/ready"
(cd "$TEST_SCRATCH" && exec "$abs_builddir/rankscope" engine --name there --workers 1 --ready-fd 3 3>ready) &
head -c 1 "$TEST_SCRATCH/ready" >/dev/null
out=$(cd "$TEST_SCRATCH/there" && printf '/load mine.gguf\n/patch load mine.lua\n/patch load other.lua\n' | "$abs_builddir/rankscope" attach there 2>&1)
tap_like "a model of the folder that the console is in" "$out" '^model: none -> mine.gguf'
tap_like "a patch there" "$out" 'rmsnorm-lua: for ops of kind rmsnorm'
tap_like "one that is nowhere is called what was typed" "$out" '^error: other.lua: cannot open'
tap_ok "the engine ends" "$abs_builddir/rankscope" stop there
wait
tap_done
