# TAP for tests in POSIX shell: . "$abs_srcdir/tests/tap.sh". Ends in tap_done. Exit status is 0 once the plan ran (see tap.h).
# shellcheck shell=sh
#
# The environment: $abs_srcdir and $abs_builddir are the two trees, $TEST_SCRATCH is this test's own empty directory. A test that is run by hand
# takes the build where it stands, or that of scripts/start or scripts/check; without one $abs_builddir is a place that is not there.

: "${abs_srcdir:=$(cd "$(dirname "$0")/.." && pwd)}"
for tap_build in "$PWD" "$abs_srcdir" "$abs_srcdir/build" "$abs_srcdir/build-check"; do
    [ -z "${abs_builddir-}" ] && [ -f "$tap_build/config.status" ] && abs_builddir=$tap_build
done
: "${abs_builddir:=$abs_srcdir/build}"
if [ -z "${TEST_SCRATCH-}" ]; then
    TEST_SCRATCH=$(mktemp -d) || exit 1
    trap 'rm -rf "$TEST_SCRATCH"' EXIT
fi
tap_run=0
tap_failed=0
tap_planned=

tap_plan() { # N
    tap_planned=$1
    echo "1..$1"
}

tap_skip_all() { # WHY
    echo "1..0 # SKIP $*"
    exit 0
}

tap_diag() { # TEXT, one or more lines
    printf '%s\n' "$*" | sed 's/^/# /'
}

tap_pass() { # NAME
    tap_run=$((tap_run + 1))
    echo "ok $tap_run - $*"
}

tap_fail() { # NAME
    tap_run=$((tap_run + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_run - $*"
}

tap_skip() { # WHY
    tap_run=$((tap_run + 1))
    echo "ok $tap_run # SKIP $*"
}

# tap_ok NAME COMMAND...: passes if the command succeeds; its output becomes a comment if not.
tap_ok() {
    tap_name=$1
    shift
    if tap_out=$("$@" 2>&1 </dev/null); then
        tap_pass "$tap_name"
    else
        tap_status=$?
        tap_fail "$tap_name"
        tap_diag "status $tap_status: $*"
        [ -z "$tap_out" ] || tap_diag "$tap_out"
    fi
}

# tap_status NAME WANTED COMMAND...: passes if the command exits with just this status.
tap_status() {
    tap_name=$1 tap_want=$2
    shift 2
    tap_out=$("$@" 2>&1 </dev/null)
    tap_eq "$tap_name" "$?" "$tap_want"
}

# tap_eq NAME GOT WANT: compares two strings.
tap_eq() {
    if [ "$2" = "$3" ]; then
        tap_pass "$1"
    else
        tap_fail "$1"
        tap_diag "got  $2"
        tap_diag "want $3"
    fi
}

# tap_like NAME TEXT PATTERN: some line of the text matches the extended regular expression.
tap_like() {
    if printf '%s\n' "$2" | grep -Eq -e "$3"; then
        tap_pass "$1"
    else
        tap_fail "$1"
        tap_diag "no match for $3 in:"
        tap_diag "$2"
    fi
}

tap_done() {
    if [ -z "$tap_planned" ]; then
        echo "1..$tap_run"
    elif [ "$tap_planned" != "$tap_run" ]; then
        tap_diag "planned $tap_planned tests, ran $tap_run"
    fi
    [ "$tap_failed" = 0 ] || tap_diag "$tap_failed of $tap_run tests failed"
    exit 0
}
