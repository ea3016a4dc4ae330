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
out=$(cd "$TEST_SCRATCH/there" && "$abs_builddir/rankscope" attach there 2>&1 <<'X'
/weights load output_norm.* from mine.gguf
/lua print(rs.patch.load("mine.lua").name, rs.audit{path = "mine.gguf", ranks = 2} ~= nil)
/lua print(rs.dump("all.npz", {prompt = "Hello", site = "output.*"}).arrays > 0)
/diff default file:all.npz
/lua rs.model.open{path = "mine.gguf", ranks = 2}
/weights load output_norm.* from other.gguf
X
)
tap_like "weights of a file there" "$out" '^1 tensor from tiny-glm5-q4, generation'
tap_like "what Lua calls a file is of that folder too" "$out" '^rmsnorm-lua.*true$'
tap_ok "and so is one that is made" test -s "$TEST_SCRATCH/there/all.npz"
tap_like "a dump is compared with its own tokens" "$out" "^all [0-9]+ outputs agree"
tap_like "one that is read for weights and is nowhere" "$out" '^error: other.gguf: '
tap_ok "the engine ends" "$abs_builddir/rankscope" stop there
wait
tap_done
