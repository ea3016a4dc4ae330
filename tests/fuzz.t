#!/bin/sh
# The readers of model files and of text under libFuzzer with AddressSanitizer and UBSan: a few seconds each, with RANKSCOPE_LONG five minutes each.
# Where there is no clang with libFuzzer, gguf_mutate still damages files by a plan of its own.
. "${abs_srcdir:?}/tests/tap.sh"

bail() {
    echo "Bail out! $*"
    exit 1
}

seconds=4
[ -z "$RANKSCOPE_LONG" ] || seconds=300
command -v clang >/dev/null || tap_skip_all "clang is not here"
cd "$TEST_SCRATCH" || exit 1
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' >probe.c
clang -fsanitize=fuzzer,address,undefined probe.c -o probe 2>/dev/null || tap_skip_all "this clang has no libFuzzer"
flags="-std=gnu11 -O1 -g -D_GNU_SOURCE -I$abs_srcdir -I$abs_builddir -fsanitize=address,undefined -fno-sanitize-recover=undefined"
pcre=$(pkg-config --cflags --libs libpcre2-8 2>/dev/null) || pcre=-lpcre2-8
sources="engine/error.c engine/gguf.c engine/gguf_get.c engine/gguf_parse.c engine/hparams.c engine/weights.c engine/vocab.c engine/vocab_bpe.c
    engine/vocab_encode.c engine/vocab_pre.c engine/vocab_stream.c kernels/type.c kernels/quant.c kernels/quant_iq.c kernels/quant_grid.c"
objects=
for f in $sources; do
    o=$(echo "$f" | tr / _).o
    # shellcheck disable=SC2086  # flags are words
    clang $flags -fsanitize=fuzzer-no-link -c "$abs_srcdir/$f" -o "$o" 2>>build.log || bail "$f does not compile: $(tail -n 1 build.log)"
    objects="$objects $o"
done
export RANKSCOPE_FUZZ_MODEL="$abs_srcdir/models/tiny-glm5-q4.gguf"
for name in model text; do
    # shellcheck disable=SC2086
    clang $flags -fsanitize=fuzzer "$abs_srcdir/tests/fuzz/fuzz_$name.c" $objects -o "fuzz_$name" $pcre -lm 2>>build.log ||
        bail "fuzz_$name.c does not compile: $(tail -n 1 build.log)"
    mkdir -p "corpus_$name"
    if ./fuzz_$name -max_total_time=$seconds -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 "corpus_$name" \
        "$abs_srcdir/tests/fuzz/corpus/$name" >"$name.log" 2>&1; then
        tap_pass "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$name.log") inputs in $seconds seconds without a finding"
    else
        tail -n 30 "$name.log" | sed 's/^/# /'
        tap_fail "fuzz_$name"
    fi
done
tap_done
