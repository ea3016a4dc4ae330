#!/bin/sh
# The rules that keep the rooms apart (docs/design.md, section 2; docs/style.md), checked on the sources and on the built libraries.
# shellcheck disable=SC2016,SC2317  # functions called by name
#
# Every rule is a function of a tree that prints what breaks it. Each is run on the real tree, where it must print nothing, and on a
# small bad tree made here, where it must find what was planted: a rule that cannot fail proves nothing.
. "${abs_srcdir:-$(dirname "$0")/..}/tests/tap.sh"

rooms='console engine kernels lua scripts tests'

# sources TREE: all source files of the rooms, relative to the tree.
sources() {
    (cd "$1" && for room in $rooms; do
        [ ! -d "$room" ] || find "$room" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.lua' -o -name '*.py' \
            -o -name '*.sh' -o -name '*.t' \)
    done | sort)
}

# includes TREE: "file header" for every include line; the header keeps its quotes or angle brackets.
includes() {
    (cd "$1" && sources . | grep -E '\.(c|h|cu|cuh)$' | xargs -r grep -HE '^[[:space:]]*#[[:space:]]*include' |
        sed 's/^\([^:]*\):[[:space:]]*#[[:space:]]*include[[:space:]]*/\1 /')
}

# Our own headers: who may see whom.
rule_rooms() {
    includes "$1" | awk '
        { room = $1; sub("/.*", "", room); header = $2; sub("^\"", "", header); sub("\".*", "", header) }
        $2 !~ /^"/ && $2 !~ /^<(console|engine|kernels|lua|scripts|tests)\// { next }
        $2 ~ /^</ { print $1 ": our own header in angle brackets: " $2; next }
        header == "config.h" { next }
        header ~ /\.\.\// || header !~ /\// { print $1 ": include by the path from the top: " $2; next }
        room == "tests" || room == "scripts" { next }
        room == "kernels" && header ~ /^kernels\// { next }
        room == "engine" && header ~ /^(engine|kernels)\// { next }
        room == "lua" && (header == "engine/rankscope.h" || header == "engine/patch_host.h" || header ~ /^lua\//) { next }
        room == "console" && (header == "engine/rankscope.h" || header ~ /^(lua|console)\//) { next }
        { print $1 ": " room " may not include " $2 }'
}

# Libraries that only one place may touch: curses and readline litter the name space, Lua belongs to its room.
rule_libraries() {
    includes "$1" | awk '
        { header = $2; gsub(/[<>"]/, "", header) }
        header ~ /(^|\/)(curses|ncurses|panel|term|menu|form)\.h$/ && $1 !~ /^console\/tui_[^\/]*\.c$/ { print $1 ": curses only in console/tui_*.c" }
        header ~ /^readline\// && $1 != "console/line.c" { print $1 ": readline only in console/line.c" }
        header ~ /(^|\/)(lua|lauxlib|lualib)\.h(pp)?$/ && $1 !~ /^(lua|tests)\// { print $1 ": Lua headers only in lua/" }'
}

# Length: the public header stays readable in one sitting, no file becomes a place of its own.
rule_length() {
    (cd "$1" && sources . | xargs -r wc -l | awk '
        $2 == "total" { next }
        $2 == "engine/rankscope.h" && $1 >= 400 { print $2 ": " $1 " lines; the public header stays under 400" }
        $1 > 1500 { print $2 ": " $1 " lines; 1500 is the limit" }')
}

# The project stands alone: no path of the machine or of the folder that it was written in. (Built from parts: this file is checked too.)
rule_alone() {
    here=work beside=shared
    (cd "$1" && find . -type f \( -path './.git' -o -path './build*' -o -path './autom4te.cache' \) -prune -o -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.lua' -o -name '*.py' -o -name '*.sh' -o -name '*.t' -o -name '*.md' \
        -o -name '*.m4' -o -name '*.mk' -o -name '*.ac' -o -name '*.am' -o -path './scripts/*' -o -path './.ci/*' \) -print |
        grep -vE '^\./(build|autom4te|aclocal|rankscope-)' |
        xargs -r grep -nE "(^|[^[:alnum:]_.~-])/$here(/|[^[:alnum:]_]|\$)|\.\./$beside")
}

# State hangs on an engine, a rank or a request: nothing in a library is writable. Read-only after relocation is fine; names that nvcc
# makes for its own registration are its business.
rule_globals() {
    ${NM:-nm} -f sysv "$@" 2>/dev/null | awk -F'|' '
        NF >= 7 {
            name = $1; section = $7; gsub(/ /, "", name); gsub(/ /, "", section)
            if (section !~ /^(\.data|\.bss|\.tdata|\.tbss|\.ldata|\.lbss|\*COM\*)/) next
            if (section ~ /^\.data\.rel\.ro/) next
            if (name ~ /^(\.|DW\.ref|fatbinData)|__nv_|__cuda|__fatDeviceText|__device_stub/) next
            print "writable: " name " in " section
        }'
}

# Libraries publish records; they do not print.
rule_silent() {
    ${NM:-nm} -u "$@" 2>/dev/null | awk '
        /^[^ ].*:$/ { file = $1 }
        $1 == "U" && $2 ~ /^(_*v?printf(_chk)?|puts|putchar|perror|stderr|stdout)(@.*)?$/ { print file " uses " $2 }'
}

# holds NAME RULE ARGUMENT...: the rule has nothing to say about the real thing.
holds() {
    name=$1
    shift
    tap_eq "$name" "$("$@")" ''
}

# finds NAME PATTERN RULE ARGUMENT...: the rule sees what was planted.
finds() {
    name=$1 pattern=$2
    shift 2
    tap_like "a breach is seen: $name" "$("$@")" "$pattern"
}

# plant FILE LINE...: a file of the bad tree.
plant() {
    mkdir -p "$bad/$(dirname "$1")"
    file=$bad/$1
    shift
    printf '%s\n' "$@" >"$file"
}

make_bad_tree() {
    plant kernels/k.c '#include "engine/error.h"'
    plant kernels/cuda/k.cu '#  include "engine/op.h"'
    plant engine/e.c '#include "console/panel.h"' '#include <lua.h>'
    plant engine/up.c '#include "../console/x.h"'
    plant engine/bare.c '#include "error.h"'
    plant lua/l.c '#include "engine/plan.h"' '#include <lua.h>'
    plant lua/l2.c '#include "console/panel.h"'
    plant console/main.c '#include "engine/exec.h"' '#include <ncurses.h>' '#include <readline/readline.h>'
    plant console/angle.c '#include <engine/exec.h>'
    plant console/tui_ok.c '#include "config.h"' '#include "engine/rankscope.h"' '#include <curses.h>'
    plant console/line.c '#include <readline/history.h>' '#include "lua/bind.h"'
    seq 400 >"$bad/engine/rankscope.h"
    seq 1501 >"$bad/engine/long.c"
    outside=work
    plant docs/a.md "see /$outside/x for it"
    outside=shared
    plant tests/b.sh ". ../$outside/x"
    plant docs/fine.md 'a framework/worker does homework' 'work/life, and /workers too'
}

libraries="$abs_builddir/libengine.a $abs_builddir/libkernels.a"

tap_ok 'there are sources to look at' test "$(sources "$abs_srcdir" | wc -l)" -gt 5
tap_ok 'there are includes to look at' test "$(includes "$abs_srcdir" | wc -l)" -gt 5
holds 'rooms include only what they may' rule_rooms "$abs_srcdir"
holds 'curses, readline and Lua stay in their places' rule_libraries "$abs_srcdir"
holds 'no file is too long' rule_length "$abs_srcdir"
holds 'no text refers to a place outside' rule_alone "$abs_srcdir"

bad=$TEST_SCRATCH/bad
make_bad_tree
finds 'kernels include engine' '^kernels/k.c: kernels may not' rule_rooms "$bad"
finds 'a CUDA file includes engine' '^kernels/cuda/k.cu: kernels may not' rule_rooms "$bad"
finds 'engine includes console' '^engine/e.c: engine may not' rule_rooms "$bad"
finds 'a path that climbs' '^engine/up.c: include by the path' rule_rooms "$bad"
finds 'a bare name' '^engine/bare.c: include by the path' rule_rooms "$bad"
finds 'lua includes an inner header' '^lua/l.c: lua may not' rule_rooms "$bad"
finds 'lua includes console' '^lua/l2.c: lua may not' rule_rooms "$bad"
finds 'console includes an inner header' '^console/main.c: console may not' rule_rooms "$bad"
finds 'our header in angle brackets' '^console/angle.c: our own header' rule_rooms "$bad"
finds 'Lua in engine' '^engine/e.c: Lua' rule_libraries "$bad"
finds 'curses in main' '^console/main.c: curses' rule_libraries "$bad"
finds 'readline in main' '^console/main.c: readline' rule_libraries "$bad"
finds 'a long public header' '^engine/rankscope.h: 400 lines' rule_length "$bad"
finds 'a long file' '^engine/long.c: 1501 lines' rule_length "$bad"
finds 'a path of the machine' 'docs/a.md:1' rule_alone "$bad"
finds 'a folder beside' 'tests/b.sh:1' rule_alone "$bad"
tap_eq 'what is allowed passes' "$({ rule_rooms "$bad"; rule_libraries "$bad"; rule_alone "$bad"; } |
    grep -E '^(\./)?(console/tui_ok\.c|console/line\.c|docs/fine\.md)')" ''

# The object checks, first on an object with planted faults.
cat >"$TEST_SCRATCH/bad.c" <<'END'
#include <stdio.h>
int counter;
static const char *names[] = {"a", "b"};
static _Thread_local int scratch;
const char *const fine[] = {"c", "d"};
const char *bad(int i);
const char *bad(int i) { printf("%d\n", counter++ + scratch++); names[0] = fine[1]; return names[i]; }
END
${CC:-cc} -fPIE -c -o "$TEST_SCRATCH/bad.o" "$TEST_SCRATCH/bad.c" || tap_diag 'the compiler failed'
finds 'a counter' 'writable: counter in ' rule_globals "$TEST_SCRATCH/bad.o"
finds 'a table of pointers that lacks a const' 'writable: names' rule_globals "$TEST_SCRATCH/bad.o"
finds 'thread-local state' 'writable: scratch' rule_globals "$TEST_SCRATCH/bad.o"
tap_eq 'a constant table passes' "$(rule_globals "$TEST_SCRATCH/bad.o" | grep fine)" ''
finds 'printf' 'uses printf' rule_silent "$TEST_SCRATCH/bad.o"

# shellcheck disable=SC2086  # a list of files
if ! ls $libraries >/dev/null 2>&1; then
    tap_skip "engine and kernels do not print, no writable globals: no libraries in $abs_builddir"
else
    tap_ok 'the libraries hold objects' sh -c '${NM:-nm} "$@" | grep -q " T "' sh $libraries
    holds 'engine and kernels do not print' rule_silent $libraries
    if grep -q '^#define RS_SANITIZER' "$abs_builddir/config.h"; then
        tap_skip 'no writable globals: a sanitizer adds its own'
    else
        holds 'engine and kernels have no writable globals' rule_globals $libraries
    fi
fi
tap_done
