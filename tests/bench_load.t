#!/bin/sh
# bench --concurrency: every answer under load is the answer alone, and the numbers are all there. RANKSCOPE_LONG=1: up to 1,024 at once.
. "$abs_srcdir/tests/tap.sh"

levels=1,4,16
[ "$RANKSCOPE_LONG" != 1 ] || levels=1,2,4,8,16,32,64,128,256,512,1024
rankscope() {
    "$abs_builddir/rankscope" "$@"
}

tap_status "answers at once are answers alone, in both modes and both kinds of numerics" 0 \
    rankscope bench --ranks 2 -c "$levels" --input 24 --output 12 --distinct 8 --svg "$TEST_SCRATCH/curve.svg"
tap_like "it says how many were compared" "$tap_out" '[0-9]+ of [0-9]+ answers identical'
tap_like "and names the knee" "$tap_out" 'graph invariant: knee at [0-9]+'
tap_like "the picture is one" "$(cat "$TEST_SCRATCH/curve.svg")" '</svg>'

rankscope bench --ranks 1 -c 2,8 --input 40 --output 12 --ctx 256 --mode graph --numerics invariant --json >"$TEST_SCRATCH/out.json" 2>"$TEST_SCRATCH/err"
tap_eq "with a cache that is too small for all of them too" "$?" 0
tap_like "sequences were pre-empted or waited" "$(cat "$TEST_SCRATCH/out.json")" '"cache_use": ?(0\.[89]|1)'
for key in duration completed output_throughput median_ttft_ms p99_tpot_ms mean_itl_ms p99_e2el_ms max_concurrency itls; do
    tap_like "the JSON has vllm's $key" "$(cat "$TEST_SCRATCH/out.json")" "\"$key\":"
done

printf 'What is the capital of France?\nTell me a story about a fox and a hen.\n' >"$TEST_SCRATCH/prompts"
tap_status "prompts from a file, at random intervals" 0 \
    rankscope bench --ranks 1 -c 4 --prompts "$TEST_SCRATCH/prompts" --rate 200 --output 8 --mode graph --numerics invariant
tap_like "and the graphs that the runs captured, by batch size" "$(cat "$TEST_SCRATCH/out.json")" '"graphs":\[.*"rows":8,"bytes":[1-9]'
tap_like "preemptions are counted" "$(cat "$TEST_SCRATCH/out.json")" '"preemptions":[0-9]'

printf 'Tell me a story about a fox, a hen, a house and a hat. Once\nTell me a story about a fox, a hen, a house and a hat. Twice\n' >"$TEST_SCRATCH/stem"
tap_status "prompts with a common beginning" 0 rankscope bench --ranks 1 -c 8 --requests 16 --prompts "$TEST_SCRATCH/stem" --output 8 --mode both --numerics invariant
tap_like "find it in the cache" "$tap_out" ' [5-9][0-9] %'
tap_like "both modes were measured" "$tap_out" 'eager invariant.*'
tap_like "the graphs are listed" "$tap_out" 'graphs: [0-9]+, for batches of up to 1, 8.* rows, [0-9]'
rankscope bench --ranks 1 -c 1,4 --input 16 --output 8 --distinct 4 --mode graph --numerics invariant --repeats 3 --json >"$TEST_SCRATCH/out.json" 2>"$TEST_SCRATCH/err"
tap_eq "levels in three rounds" "$?" 0
tap_eq "each with the speed of a prompt beside it" "$(grep -o '"prompt_tokens_per_second":[0-9.]*,"of_prompt_speed":[0-9.]*' "$TEST_SCRATCH/out.json" | wc -l)" 6
tap_like "and the proportions' medians, level by level" "$(cat "$TEST_SCRATCH/out.json")" '"of_prompt_speed":\[[0-9.]+,[0-9.]+\]'
tap_status "levels must rise" 2 rankscope bench -c 4,2
tap_done
