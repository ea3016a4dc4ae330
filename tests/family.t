#!/bin/sh
# The family's shapes on the command line: models without a file, whole and one rank alone; what an audit says of them and of a file that lacks a key.
. "${abs_srcdir:?}/tests/tap.sh"

rs() { "$abs_builddir/rankscope" "$@" 2>"$TEST_SCRATCH/err" </dev/null; }
shipped=$abs_srcdir/models/tiny-glm5-q4.gguf

# ---- audit ----
LC_ALL=C sed 's/expert_gating_func/expert_gating_gone/' "$shipped" >"$TEST_SCRATCH/no-gating.gguf"
out=$(rs audit "$TEST_SCRATCH/no-gating.gguf")
tap_like "a file without its gating key: one line says so" "$out" 'expert_gating_func  *2 .sigmoid.  *YES  '
tap_like "and again as a warning" "$out" 'expert_gating_func is not in the file and changes what is computed: taken as 2 .sigmoid.'
tap_eq "nothing else that matters" "$(echo "$out" | grep -c ' YES ')" 1
out=$(rs audit "$shipped")
tap_eq "the shipped model: nothing that matters was defaulted" "$(echo "$out" | grep -c ' YES ')" 0
out=$(rs audit --synthetic glm-5 --layers 4 --ranks 8)
tap_like "glm-5 on 8 ranks: 256 rows of every expert each" "$out" 'ffn_gate_exps.weight *3 *Q4_K *6144 x 2048 x 256 *rows *256 each'
tap_like "256 columns of its down projection" "$out" 'ffn_down_exps.weight *3 *Q5_K *2048 x 6144 x 256 *cols *256 each'
tap_like "no block is cut" "$out" 'no quantisation block is cut'
out=$(rs audit --synthetic glm-4.7-flash --ranks 8)
tap_like "glm-4.7-flash on 8 ranks: 20 heads are dealt unevenly" "$out" 'attn_k_b.weight .* heads *3 .4 times., 2 .4 times.'
out=$(rs audit --synthetic glm-5 --ranks 8 --gpu-memory 141 --gpus 8)
tap_like "whether 8 GPUs of 141 GiB hold glm-5" "$out" '8 GPUs of 151\.4 GB: .* of weights on the fullest, and room for the cache of'

# ---- running ----
if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 4 ]; then
    tap_skip "running takes 2 GB of memory, and less than 4 are left"
    tap_done
fi
out=$(rs bench --synthetic glm-4.7-flash --layers 2 --ranks 8 --prompt 8 --gen 4 --repeats 1 --mode graph)
tap_like "glm-4.7-flash, 2 layers, without a file runs on 8 ranks" "$out" 'glm-4.7-flash, random weights *8 .* graph *tg4  *[1-9]'
out=$(rs bench --synthetic deepseek-v2-lite --layers 2 --rank 1/4 --prompt 8 --gen 4 --repeats 1)
tap_like "rank 1 of 4 of deepseek-v2-lite alone" "$out" 'deepseek-v2-lite, random weights, rank 1 of 4 .* eager *tg4  *[1-9]'
out=$(rs chat --synthetic deepseek-v2-lite --layers 2 --max 4 -p hello --raw --json)
tap_like "chat with a model without a file" "$out" "\"tokens\": *4"
out=$(rs chat --synthetic deepseek-v2-lite --layers 2 --max 4 -p hello --raw --json --logit-bias 0=100)
tap_like "its token 0 is the byte 0: such an answer is told as any other" "$out" '"text": *"\\u0000\\u0000\\u0000\\u0000".*"stop": *"length"'
rs chat --synthetic glm-5 -m "$shipped" -p hello >/dev/null
tap_eq "a file and --synthetic" "$? $(cat "$TEST_SCRATCH/err")" "2 rankscope chat: either a file or --synthetic"
rs bench --layers 3 >/dev/null
tap_eq "--layers of a file" "$? $(cat "$TEST_SCRATCH/err")" "2 rankscope bench: --layers belongs to --synthetic"
tap_done
