#!/bin/sh
# scripts/device-check with programs that stand in for those that need GPUs: what it counts, its limits, its plan, the table of the story.
. "${abs_srcdir:?}/tests/tap.sh"

cd "$TEST_SCRATCH" || exit 1
check=$abs_srcdir/scripts/device-check
names="cuda_test cuda_allreduce cuda_timing cuda_engine cuda_hosts golden_test probe_test look_test diff_test replay_test spec_test soak_test"
mkdir -p bin build/tests src/tests src/models
PATH=$TEST_SCRATCH/bin:$PATH
abs_srcdir=$TEST_SCRATCH/src # the check's: its shell tests stand in too
export PATH abs_srcdir
unset SANITIZE CUDA_VISIBLE_DEVICES

# stand_in FILE: a program with the lines of standard input
stand_in() {
    { echo '#!/bin/sh'; cat; } >"$1"
    chmod +x "$1"
}

good() {
    for p in $names; do
        # shellcheck disable=SC2016  # the stand-in names itself
        printf 'echo "ok 1 - $0"\necho "ok 2 # SKIP not here"\necho "#  12288 bytes of bf16, us in a graph: NCCL 7.21 (9); one-shot 2.51 (3); one-shot + residual, norm, int8 4.50 (5)"\necho 1..2\n' | stand_in "build/tests/$p"
    done
    for p in cuda_patch cuda_lost console_kill; do
        printf 'echo "ok 1 - it"\necho 1..1\n' | stand_in "src/tests/$p.t"
    done
    stand_in bin/nvidia-smi <<'END'
echo "NVIDIA H200, 580.1, 1980 MHz"
echo "NVIDIA H200, 580.1, 1980 MHz"
END
    stand_in bin/compute-sanitizer <<'END'
while [ "${1#--}" != "$1" ]; do shift $(($# > 2 ? 2 : 1)); done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
END
    stand_in build/tests/cuda_bench <<'END'
echo "$1, 40 layers, $3 ranks on $4 GPUs, int8"
echo "  decode, batch 1, graph  8.000 ms (p10 1.763, p90 1.827), 555 tokens/s, 288 kernels"
echo "  2048 rows, 2048 of prompts of 2048, 0 generated, eager  73.00 ms (72.00 to 74.00), 28083 rows/s, 900 kernels"
echo "  arm flat       eager 10.000 ms (p10 9.9, p90 10.1) 100.0 tokens/s 700 kernels, all-reduces 12.0 % of a step"
echo "  arm flat       graph 5.000 ms (p10 4.9, p90 5.1) 200.0 tokens/s 700 kernels, all-reduces 12.0 % of a step"
echo "  arm nccl       eager 20.000 ms (p10 9.9, p90 10.1) 50.0 tokens/s 800 kernels, all-reduces 22.0 % of a step"
echo "  arm nccl       graph 8.000 ms (p10 9.9, p90 10.1) 125.0 tokens/s 800 kernels, all-reduces 22.0 % of a step"
END
    stand_in build/rankscope <<'END'
echo "   256  graph  requests 256  failed 0"
echo "$*" >>calls
while [ $# -gt 0 ]; do
    [ "$1" != --keys ] || screen=$(sed -n 's/^save-roles //p' "$2")
    shift
done
[ -z "${screen-}" ] || printf '%s\n' '│   7   43.2 MB     2.4    95.0  34.5%' -- aaaa >"$screen"
END
    rm -f calls
}

good
out=$("$check" build logs 2>&1)
tap_eq "all is well: status" $? 0
tap_like "what programs report is counted, without what they skip" "$out" '^30 passed, 0 failed$'
tap_like "two GPUs: both soaks" "$out" '^soak_two_gpus +1 passed'
tap_like "the sanitizer's summary is shown" "$out" '^memcheck .*ERROR SUMMARY: 0 errors'
tap_like "a goal that is met" "$out" '^all-reduce of 12,288 bytes in a graph, one-shot +<= +3.0 us +2\.51  met'
tap_like "a goal that is missed" "$out" '^the same with residual, norm, int8 form +<= +4.0 us +4\.50  missed'
tap_like "a goal for a proportion" "$out" 'two GPUs against one +>= +1.5 times +1\.60  met'
tap_like "a goal for a rate" "$out" 'prompt of 2,048 +>= +15000 tokens/s +28083  met'
tap_like "a goal without a figure" "$out" '^what stamps cost, of a step .*not measured'
tap_ok "a screen is kept as text" grep -q '43.2 MB' logs/screen.txt

printf 'echo "ok 1 - it"\necho "not ok 2 - that"\necho "# why it is so"\necho 1..2\n' | stand_in build/tests/look_test
printf 'echo "ok 1 - it"\n' | stand_in build/tests/diff_test
printf 'echo "ok 1 - it"\nsleep 100\n' | stand_in build/tests/spec_test
printf 'echo "  failed: no memory"\n' | stand_in build/tests/cuda_bench
printf 'echo "1..0 # SKIP no NVRTC"\n' | stand_in src/tests/cuda_patch.t
out=$("$check" --limit 2 --only look_test,diff_test,spec_test,flash,cuda_patch build logs 2>&1)
tap_eq "something is wrong: status" $? 1
tap_like "each fault is one failure" "$out" '^3 passed, 4 failed$'
tap_like "a failed check is shown with its reason" "$out" '^# why it is so'
tap_like "a program that ends too early is at fault" "$out" '^diff_test .*1 failed: .*before its plan'
tap_like "so is one that does not end" "$out" '^spec_test .*1 failed: .*status 124'
tap_like "and one that measures and says that it failed" "$out" '^flash .*1 failed'
tap_like "what is skipped says why" "$out" '^cuda_patch +0 passed, 0 failed: .*no NVRTC'
tap_like "parts with failures are listed again" "$(echo "$out" | sed '1,/parts with failures/d')" '^look_test'

good
sed -i 's/   7   43/   6   43/' build/rankscope
out=$("$check" --only screen build logs 2>&1)
tap_like "a screen without the last rank is a failure" "$out" '^0 passed, 1 failed$'
good
sed -i "s/│   7 /│ error: no template' '&/" build/rankscope
out=$("$check" --only screen build logs 2>&1)
tap_like "so is one with an error on it" "$out" '^0 passed, 1 failed$'

good
out=$("$check" --gpus 2 build logs 2>&1)
tap_eq "the pass for eight on two: status" $? 0
tap_like "eager of the story: NCCL's" "$out" '^eager \(nccl\) +20 tokens/s +50\.0 tokens/s +2\.50 x +20\.000 ms'
tap_like "graph of the story: NCCL's" "$out" '^graph \(nccl\) +43 tokens/s +125\.0 tokens/s +2\.91 x'
tap_like "the best all-reduce" "$out" '^graph, best all-reduce \(flat\) +57 tokens/s +200\.0 tokens/s +3\.51 x'
tap_like "what is not comparable is called so" "$out" 'not the same work'
tap_like "as many layers are served as fitted" "$(cat calls)" '^bench --synthetic glm-5 --layers 40 .*--ranks 2 --gpus 2'
tap_like "two GPUs are not held to the goals of eight" "$out" '^glm-5, 78 layers on 8 GPUs.* not measured'
tap_like "eight ranks on the screen" "$(cat calls)" '^--local .*--ranks 8 --gpus 2'

out=$("$check" --gpus 3 build logs 2>&1)
tap_eq "three GPUs where there are two: status" $? 2
tap_like "it says how many there are" "$out" 'there are 2 GPUs, not 3'
tap_status "no such option" 2 "$check" --fast build logs

good
for i in 3 4 5 6 7 8; do echo "echo 'NVIDIA H200, 580.1, 1980 MHz' # $i"; done >>bin/nvidia-smi
rm -rf logs
out=$("$check" --dry-run --gpus 8 build logs 2>&1)
tap_eq "a dry run: status" $? 0
tap_ok "it leaves nothing" test ! -e logs -a ! -e calls
tap_like "it lists parts with limits and commands" "$out" '^glm5 +60 s .*cuda_bench glm-5 fit:[0-9]+ 8 8 -1 bf16 arms ops'
tap_ok "ten minutes are enough for all limits of eight GPUs" test "$(echo "$out" | sed -n 's/^limits \([0-9]*\) s.*/\1/p')" -le 600
tap_done
