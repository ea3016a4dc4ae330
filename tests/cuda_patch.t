#!/bin/sh
# Patches in CUDA C, and what happens when GPUs fail: needs a GPU and NVRTC. PROGRAM names another rankscope than that of the build.
. "${abs_srcdir:?}/tests/tap.sh"

rs=${PROGRAM:-$abs_builddir/rankscope}
"$rs" devices | grep -q '^GPU 0' || tap_skip_all "no GPU"
: "${TEST_SCRATCH:?}"
question="What is the capital of France?"
right="The capital of France is Paris."

# plain OPTIONS...: what a console prints that types the lines of standard input
plain() { "$rs" --plain --backend cuda --gpus 1 --ranks 2 --no-think "$@" 2>&1; }

# patch NAME KIND BODY: a file in CUDA C
patch() {
    cat >"$TEST_SCRATCH/$1.cu" <<END
#include "engine/patch_cuda.h"
RANKSCOPE_CUDA_PATCH("$1", "$2", "for a test")
extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const float *x = c.in + blockIdx.x * c.in_stride;
    float *y = c.out + blockIdx.x * c.out_stride;
    for (unsigned j = threadIdx.x; j < c.width; j += 256)
        $3;
}
END
}

# refused NAME SAYS: loading it fails with that message
refused() {
    got=$(printf '/patch load %s\n' "$TEST_SCRATCH/$1.cu" | plain)
    tap_ok "$1: refused: $2" sh -c 'case $1 in *"$2"*) ;; *) echo "$1"; false ;; esac' - "$got" "$2"
}

for name in rmsnorm-plain silu-plain; do
    for mode in graph eager; do
        got=$(printf '/patch load %s\n/patch set user=%s\n%s\n/ledger\n/patch revert\n%s\n' "$abs_srcdir/scripts/patches/$name.cu" $name "$question" \
            "$question" | plain --mode $mode)
        tap_eq "$name, $mode: both answers are right" "$(printf '%s\n' "$got" | grep -c "$right")" 2
        tap_ok "$name, $mode: the ledger shows it" sh -c 'printf "%s\n" "$1" | grep -q "$2 *- *patch" || { echo "$1"; false; }' - "$got" $name
    done
done
patch typo add 'y[j] += x[k]'
refused typo "does not compile"
patch wrong add 'y[j] -= x[j]'
refused wrong "relative error"
patch beside add 'y[j + 8] += x[j]'
refused beside "writes beside"
patch wild add '*(volatile float *)(16ull + j * 4) = x[j]'
refused wild "illegal memory access"
patch kind mla 'y[j] = x[j]'
refused kind "is none of"

# Passes its test and runs wild in the model: the engine ends and says where.
patch late add 'if (c.layer == 4) *(volatile float *)(16ull + j * 4) = x[j]; else y[j] += x[j]'
printf '/patch load %s\n/patch set user=late\n%s\n' "$TEST_SCRATCH/late.cu" "$question" |
    timeout 60 "$rs" --plain --backend cuda --gpus 1 --ranks 2 --no-think >"$TEST_SCRATCH/late" 2>&1
tap_ok "a kernel that runs wild: rank, op and line" grep -q 'rank [0-9]*) failed for good in op blk\.4\..*cuda_user\.c:[0-9]*: an illegal memory' \
    "$TEST_SCRATCH/late"
tap_diag "$(grep 'failed for good' "$TEST_SCRATCH/late" | head -1)"
# The same at a terminal: the console stays, says it, and starts another engine, which answers the question that the first one took with it.
cat >"$TEST_SCRATCH/steps" <<END
expect > 
send /patch load $TEST_SCRATCH/late.cu\\r
expect user=late
expect > 
send /patch set user=late\\r
expect > 
send $question\\r
expect failed for good in op blk.4.
expect the engine is gone
expect > 
send /restart\\r
expect went with the old engine
expect engine: started anew
expect $right
expect > 
send \\x04
exit 0
restored
END
TERM=xterm INPUTRC=/dev/null "$abs_builddir/tests/pty" "$TEST_SCRATCH/steps" "$rs" --plain --backend cuda --gpus 1 --ranks 2 --no-think \
    >"$TEST_SCRATCH/screen" 2>"$TEST_SCRATCH/why"
tap_eq "after that the console starts another engine and goes on" $? 0
[ ! -s "$TEST_SCRATCH/why" ] || tap_diag "$(sed -n l "$TEST_SCRATCH/why" | head -20)"
"$rs" chat -p "$question" --backend cuda --gpus 1 --ranks 8 --ctx 16000000 >"$TEST_SCRATCH/out" 2>&1
tap_ok "what does not fit: how much is missing" grep -q 'GB are missing' "$TEST_SCRATCH/out"
tap_diag "$(cat "$TEST_SCRATCH/out")"
tap_eq "afterwards the GPU works" "$("$rs" chat -p "$question" --no-think --backend cuda --gpus 1 --ranks 2)" "$right"
tap_done
