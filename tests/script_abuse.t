#!/bin/sh
# Scripts that do everything wrong: errors only, never a crash, and memory stays where it was.
. "${abs_srcdir:?}/tests/tap.sh"

rs() { timeout -k 5 300 "$abs_builddir/rankscope" "$@" >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err"; }
fails() { # NAME TEXT CODE: an error that says TEXT
    rs -e "$3"
    status=$?
    tap_ok "$1: an error" test $status = 1
    tap_ok "$1: it says $2" grep -qF "$2" "$TEST_SCRATCH/err"
}

cd "$TEST_SCRATCH" || exit 1 # some functions take a wrong argument for the name of a file, and make it
rs "$abs_srcdir/tests/script_abuse.lua"
tap_ok "wrong arguments for every function: it ends in order" test $? = 0
[ -s "$TEST_SCRATCH/err" ] && tap_diag "$(head -5 "$TEST_SCRATCH/err")"
tap_ok "errors only" sh -c '! grep "^not ok" "$1"' - "$TEST_SCRATCH/out"
tap_ok "every function had its turn" sh -c 'test "$(grep -c "^ok" "$1")" -gt 80' - "$TEST_SCRATCH/out"

fails "an endless recursion" "stack overflow" 'local function f() return 1 + f() end f()'
fails "an error object that fails to print" "cannot be printed" 'error(setmetatable({}, {__tostring = function() error("again") end}))'
fails "a cycle to the engine" "contains itself" 'local t = {} t.t = t rs.call("open", t)'
fails "text that is not UTF-8" "not UTF-8" 'rs.model.open{path = "\xff"}'
fails "a number that JSON has not" "not finite" 'rs.model.open{ranks = 0/0}'
fails "an option that does not exist" "no option 'rnaks'" 'rs.model.open{rnaks = 8}'
fails "an engine that is not there" "" 'rs.connect("nobody-of-this-name")'

# A million lines: what print() takes must not stay anywhere. AddressSanitizer keeps what was freed for a while; let that be little.
ASAN_OPTIONS=quarantine_size_mb=1:${ASAN_OPTIONS-}
export ASAN_OPTIONS
peak() { # CODE: the largest size in KiB while it ran
    "$abs_builddir/rankscope" -e "$1 local f = io.open('/proc/self/status') for l in f:lines() do if l:match('VmHWM') then io.stderr:write(l, '\n') end end" 2>&1 >/dev/null |
        sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p'
}
small=$(peak 'for i = 1, 1000 do print("line", i) end')
large=$(peak 'for i = 1, 1000000 do print("line", i) end')
tap_diag "largest size: ${small} KiB after a thousand lines, ${large} KiB after a million"
tap_ok "a million lines of output leave memory flat" test "${large:-0}" -gt 0 -a "${large:-0}" -lt $((${small:-0} + 8192))
tap_done
