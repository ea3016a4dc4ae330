#!/bin/sh
# docs/lua.md and lua/meta/rs.lua are what the sources' comments say; every function has a description, every example runs. GENERATE=1 renews the files.
. "${abs_srcdir:?}/tests/tap.sh"

docs() { "$abs_builddir/rankscope" "$abs_srcdir/scripts/lua-docs.lua" "$abs_srcdir/lua" "$@"; }

tap_ok "the reference can be made" docs write "$TEST_SCRATCH"
if [ -n "$GENERATE" ]; then
    cp "$TEST_SCRATCH/lua.md" "$abs_srcdir/docs/lua.md"
    mkdir -p "$abs_srcdir/lua/meta"
    cp "$TEST_SCRATCH/rs.lua" "$abs_srcdir/lua/meta/rs.lua"
fi
tap_ok "docs/lua.md is current" diff -u "$abs_srcdir/docs/lua.md" "$TEST_SCRATCH/lua.md"
tap_ok "lua/meta/rs.lua is current" diff -u "$abs_srcdir/lua/meta/rs.lua" "$TEST_SCRATCH/rs.lua"
tap_ok "and is Lua" "$abs_builddir/rankscope" -e "assert(loadfile('$TEST_SCRATCH/rs.lua'))"
for what in check examples; do
    docs $what >"$TEST_SCRATCH/$what" 2>&1
    tap_ok "$what: it runs" test $? = 0
    tap_ok "$what: nothing is wrong" sh -c '! grep -A12 "^not ok\|^rankscope:" "$1"' - "$TEST_SCRATCH/$what"
    tap_ok "$what: there were some" sh -c 'test "$(grep -c "^ok" "$1")" -gt 30' - "$TEST_SCRATCH/$what"
done
tap_done
