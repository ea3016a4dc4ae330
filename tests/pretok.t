#!/bin/sh
# The cuts of the pre-tokenizers against the published expressions, which the tokenizers package for Python runs: the stored corpus is what
# it computes, and on random texts it agrees with ours.
. "${abs_srcdir:?}/tests/tap.sh"

oracle=$abs_srcdir/tests/pretok_oracle.py
python3 -c 'import tokenizers' 2>/dev/null || tap_skip_all 'no tokenizers package for python3'
tap_plan 2
tap_ok 'the stored corpus is cut as the published expressions cut it' python3 "$oracle" --check "$abs_srcdir/tests/golden/pretokenizer.json"
tap_ok '12000 random texts are cut as the published expressions cut them' python3 "$oracle" --fuzz "$abs_builddir/tests/vocab_pre_test"
tap_done
