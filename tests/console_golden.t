#!/bin/sh
# The command line against the reference results in tests/golden.
. "${abs_srcdir:?}/tests/tap.sh"

command -v python3 >/dev/null || tap_skip_all "python3 is not here"
exec python3 "$abs_srcdir/tests/console_golden.py" "$abs_builddir/rankscope" "$abs_srcdir"
