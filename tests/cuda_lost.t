#!/bin/sh
# A GPU that is lost in the middle of an answer takes the engine's process along: the console says where, starts another engine when asked, and the
# conversation is in the end what it would have been. Needs a GPU and NVRTC. PROGRAM names another rankscope than that of the build.
. "${abs_srcdir:?}/tests/tap.sh"

rs=${PROGRAM:-$abs_builddir/rankscope}
"$rs" devices | grep -q '^GPU 0' || tap_skip_all "no GPU"
cd "${TEST_SCRATCH:?}" || exit 1
TERM=xterm INPUTRC=/dev/null
export TERM INPUTRC
question="What is the capital of France?"
right="The capital of France is Paris."
other="Tell me a story about a cat."
# Greedy and invariant, so the same every time.
how='--backend cuda --gpus 1 --ranks 2 --no-think --set numerics=invariant'
trap '"$rs" stop 0 2>/dev/null; "$rs" stop 1 2>/dev/null' EXIT
trap 'exit 1' TERM INT

# Adds as it should, until both ranks have done so for 25 single tokens in layer 4: then it writes where there is no memory. Its test, which is about
# layer 3, passes.
cat >late.cu <<'E2'
#include "engine/patch_cuda.h"
RANKSCOPE_CUDA_PATCH("late", "add", "for a test")
__device__ unsigned tokens;
extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const float *x = c.in + blockIdx.x * c.in_stride;
    float *y = c.out + blockIdx.x * c.out_stride;
    for (unsigned j = threadIdx.x; j < c.width; j += 256)
        y[j] += x[j];
    if (c.layer == 4 && c.rows == 1 && threadIdx.x == 0 && atomicAdd(&tokens, 1) >= 100)
        *(volatile float *)16ull = 1;
}
E2

# shellcheck disable=SC2086  # options
printf '%s\n%s\n/save whole.json\n' "$question" "$other" | timeout 60 "$rs" --plain $how >whole 2>&1
answer=$(grep '"content"' whole.json | sed -n '4s/.*"content": "\(.*\)".*/\1/p')
tap_like "the answer that a GPU is lost in is long" "$(printf %s "$answer" | wc -c)" '^ *([2-9][0-9]|[0-9]{3,})$'

cat >steps <<END
expect > 
send $question\\r
expect $right
expect > 
send /patch load late.cu\\r
expect user=late
expect > 
send /patch set user=late\\r
expect > 
run "$rs" ps --json | sed 's/.*"pid":\([0-9]*\).*/\1/' >before
send $other\\r
expect $(printf %s "$answer" | cut -c 1-12)
expect failed for good in op blk.4.
expect an illegal memory access
expect the engine is gone
expect > 
run for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 \$(cat before) 2>/dev/null || exit 0; sleep 0.5; done; exit 1
send /restart\\r
expect went with the old engine
expect engine: started anew
expect $(printf %s "$answer" | tail -c 12)
expect > 
run "$rs" ps --json | sed 's/.*"pid":\([0-9]*\).*/\1/' >after
send /save lost.json\\r
expect saved
expect > 
send \\x04
exit 0
restored
END
# shellcheck disable=SC2086  # options
"$abs_builddir/tests/pty" steps "$rs" --plain $how >screen 2>why
tap_eq "the console stays, says which op it was, and another engine goes on with the conversation" $? 0
[ ! -s why ] || tap_diag "$(sed -n l why | head -20)"
tap_diag "$(grep -o 'GPU [0-9]* (rank.*' screen | head -1)"
tap_ok "another process" sh -c '[ -s before ] && [ -s after ] && ! cmp -s before after'
tap_ok "the conversation is as if nothing had happened" cmp whole.json lost.json
tap_eq "no engine is left" "$("$rs" ps 2>&1)" "no engine is running"
# shellcheck disable=SC2086  # options
tap_eq "and the GPU works" "$("$rs" chat $how -p "$question" 2>&1)" "$right"
tap_done
