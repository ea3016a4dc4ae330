# Every block format against the gguf Python package, bit for bit.
. "$abs_srcdir/tests/tap.sh"

python3 -c 'import numpy, gguf.quants' 2>/dev/null || tap_skip_all "python3 with numpy and gguf is not installed"
exec python3 "$abs_srcdir/tests/quant_gguf.py" "$abs_builddir/tests/quant_dump"
