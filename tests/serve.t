#!/bin/sh
# The HTTP server: what clients get, what it does with those that misbehave, and that no cache block is lost. RANKSCOPE_LONG=1: many more of them, RANKSCOPE_SOAK=10: for minutes.
. "$abs_srcdir/tests/tap.sh"

command -v python3 >/dev/null 2>&1 || tap_skip_all "python3 is not installed"
exec python3 "$abs_srcdir/tests/serve.py" "$abs_builddir/rankscope"
