#!/bin/sh
# scripts/reference.py, the float64 oracle, against the recorded results: golden files, fixtures and oracle belong together.
. "${abs_srcdir:?}/tests/tap.sh"

python3 -B -c 'import numpy, gguf' 2>/dev/null || tap_skip_all 'python3 with numpy and gguf is not there'

golden=$abs_srcdir/tests/golden
reference() { # MODEL GOLDEN NAME
    python3 -B "$abs_srcdir/scripts/reference.py" "$golden/fixture-$1.gguf" --check "$golden/golden-$2.json" "$3"
}

for name in dsa dsa-shared flash v2lite v3 v32; do
    tap_ok "$name" reference "$name" variants "$name"
done
tap_ok kquant reference kquant kquant kquant
tap_status 'the wrong model is noticed' 1 reference v3 variants v32
tap_done
