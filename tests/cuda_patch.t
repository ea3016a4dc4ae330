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
$(cat "$TEST_SCRATCH/tools.cuh" 2>/dev/null)
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

# What the bodies below may call: a product by one thread, a pair turned, a row normed by one thread.
cat >"$TEST_SCRATCH/tools.cuh" <<'END'
static __device__ float one(const rankscope_cuda_matrix &m, unsigned mat, unsigned row, const float *x)
{
    float v[32], sum = 0;
    for (unsigned at = 0; at < m.k; at += 32) {
        rankscope_values(m, mat, row, at, v);
        for (unsigned i = 0; i < 32 && at + i < m.k; i++)
            sum += v[i] * x[at + i];
    }
    return sum;
}
static __device__ void turn(const rankscope_cuda_call &c, unsigned row, float *u, unsigned apart, unsigned pair)
{
    const unsigned long long at = (unsigned long long)c.pos[row] * (c.rope_dim / 2) + pair;
    const float a = u[0], b = u[apart];
    u[0] = a * c.cos[at] - b * c.sin[at];
    u[apart] = b * c.cos[at] + a * c.sin[at];
}
static __device__ void turn_index(const rankscope_cuda_call &c, unsigned row, float *head)
{
    for (unsigned p = 0; p < c.rope_dim / 2; p++)
        turn(c, row, c.interleaved ? head + 2 * p : head + p, c.interleaved ? 1 : c.rope_dim / 2, p);
}
static __device__ void norm(float *x, unsigned n, bool centred, float eps, const float *w, const float *bias)
{
    double mean = 0, sum = 0;
    for (unsigned i = 0; i < n && centred; i++)
        mean += (double)x[i] / n;
    for (unsigned i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean) / n;
    for (unsigned i = 0; i < n; i++)
        x[i] = (float)((x[i] - mean) / sqrt(sum + (double)eps)) * w[i] + (bias != nullptr ? bias[i] : 0);
}
END

# kind NAME KIND BODY: a file of which one thread of a row runs the body
kind() {
    patch "$1" "$2" "if (j == 0) { $3 }"
}

# The examples, and for every other kind a patch that is written down plainly here.
patch add_t add 'y[j] += x[j]'
patch moe_silu_t moe_silu_mul 'y[j] = x[j] / (1 + expf(-x[j])) * x[c.width + j]'
for kind in qkv_a gate_up; do
    patch ${kind}_t $kind 'y[j] = j < c.m[0].rows ? one(c.m[0], 0, j, x) : one(c.m[1], 0, j - c.m[0].rows, x)'
done
kind rope_t rope 'for (unsigned h = 0; h < c.n_heads; h++) for (unsigned p = 0; p < c.rope_dim / 2; p++)
    turn(c, blockIdx.x, y + (h + 1) * c.head_dim - c.rope_dim + 2 * p, 1, p);'
kind kv_store_t kv_store 'norm(y, c.kv_lora, false, c.eps, c.w, nullptr);
    for (unsigned p = 0; p < c.rope_dim / 2; p++) turn(c, blockIdx.x, y + c.kv_lora + 2 * p, 1, p);
    for (unsigned i = 0; i < c.cache_width; i++) rankscope_cache(c, blockIdx.x, i, y[i]);'
kind index_q_t index_q 'for (unsigned h = 0; h < c.n_heads; h++) turn_index(c, blockIdx.x, y + h * c.head_dim);'
kind index_store_t index_store 'norm(y, c.head_dim, true, c.eps, c.w, c.w2); turn_index(c, blockIdx.x, y);
    for (unsigned i = 0; i < c.cache_width; i++) rankscope_cache(c, blockIdx.x, i, y[i]);'
kind router_t router 'double sum = 0, all = 0;
    int *ids = c.ids + blockIdx.x * c.ids_stride; float *weights = c.weights + blockIdx.x * c.ids_stride, s[256], worth[64];
    for (unsigned e = 0; e < c.n_experts; e++) {
        y[e] = one(c.m[0], 0, e, x); y[e] = c.sigmoid ? 1 / (1 + expf(-y[e])) : expf(y[e]); all += y[e]; }
    for (unsigned e = 0; e < c.n_experts; e++) { y[e] = c.sigmoid ? y[e] : (float)(y[e] / all); s[e] = y[e] + (c.w2 != nullptr ? c.w2[e] : 0); }
    const unsigned per = c.n_experts / c.n_groups;
    for (unsigned g = 0; g < c.n_groups; g++) { float a = -9e9f, b = -9e9f;
        for (unsigned e = g * per; e < (g + 1) * per; e++) { b = s[e] > a ? a : s[e] > b ? s[e] : b; a = s[e] > a ? s[e] : a; } worth[g] = a + b; }
    for (unsigned g = 0; g < c.n_groups && c.n_groups_used < c.n_groups; g++) { unsigned better = 0;
        for (unsigned o = 0; o < c.n_groups; o++) better += worth[o] > worth[g] || (worth[o] == worth[g] && o < g);
        for (unsigned e = g * per; e < (g + 1) * per && better >= c.n_groups_used; e++) s[e] = -9e9f; }
    for (unsigned k = 0; k < c.n_used; k++) { unsigned best = 0; for (unsigned e = 1; e < c.n_experts; e++) best = s[e] > s[best] ? e : best;
        ids[k] = (int)best; weights[k] = y[best]; sum += y[best]; s[best] = -9e9f; }
    for (unsigned k = 0; k < c.n_used; k++) weights[k] *= (float)(c.scale / (c.normalise ? sum : 1));'
kind index_topk_t index_topk 'int *out = (int *)y; unsigned n = 0; const unsigned last = c.pos[blockIdx.x];
    out[0] = last < c.top_k ? -1 : (int)c.top_k;
    for (unsigned p = 0; p <= last && last >= c.top_k; p++) { unsigned better = 0;
        for (unsigned o = 0; o <= last; o++) better += x[o] > x[p] || (x[o] == x[p] && o < p);
        if (better < c.top_k) out[++n] = (int)p; }'
examples="rmsnorm-plain silu-plain linear-plain mla-plain moe_gate_up-plain moe_down-plain embed-plain gather-plain index_scores-plain"
here="add_t moe_silu_t qkv_a_t gate_up_t rope_t kv_store_t index_q_t index_store_t router_t index_topk_t"

used=$(echo $examples $here | tr ' ' '\n' | grep -v ^index_) # this model's indexer never has to choose
path() { case $1 in *_t) echo "$TEST_SCRATCH/$1.cu" ;; *) echo "$abs_srcdir/scripts/patches/$1.cu" ;; esac; }

# One after the other in one console: the answer with each, the ledger, and after all of them the answer of all together, in both modes, and of none.
session() {
    for name in $used; do echo "/patch load $(path $name)"; done
    for name in $used; do printf '/patch set user=%s\n%s\n/ledger\n/patch reset\n' $name "$question"; done
    for name in $used; do echo "/patch set user=$name"; done
    printf '%s\n/mode eager\n%s\n/patch reset\n%s\n/mode graph\n%s\n' "$question" "$question" "$question" "$question"
}
got=$(session | plain --mode graph)
n=$(echo $used | wc -w)
tap_eq "every kind by itself, all together in both modes, and none: the answer is right" "$(printf '%s\n' "$got" | grep -c "$right")" $((n + 4))
for name in $used; do
    tap_ok "$name: in the ledger" sh -c 'printf "%s\n" "$1" | grep -q " $2 *- *patch"' - "$got" $name
done
[ "$(printf '%s\n' "$got" | grep -c "$right")" -eq $((n + 4)) ] || tap_diag "$(printf '%s\n' "$got" | grep -v ' - \|^$' | head -150)"

# The indexer chooses where there are more positions than it keeps: 16 in this model, which was never trained and says the same again and again.
sparse() {
    { for name in $1; do printf '/patch load %s\n/patch set user=%s\n' "$(path $name)" $name; done; cat "$TEST_SCRATCH/words"; } | plain -m "$abs_srcdir/tests/golden/fixture-dsa.gguf" --patch matmul=f32 --patch cache=f32 --max 24 $2 |
        grep -v '^verdict\|^(cut'
}
awk 'BEGIN {for (i = 0; i < 60; i++) printf "%c ", 97 + i * 7 % 26; print "."}' >"$TEST_SCRATCH/words"
index="index_scores-plain index_topk_t index_q_t index_store_t mla-plain"
said=$(sparse "" "--mode graph")
tap_eq "sparse attention by patches says the same as without, in eager mode" "$(sparse "$index" "--mode eager" | tail -1)" "$(printf '%s\n' "$said" | tail -1)"
echo /ledger >>"$TEST_SCRATCH/words"
got=$(sparse "$index" "--mode graph")
tap_eq "and in graph mode" "$(printf '%s\n' "$got" | sed '/^step /,$d' | tail -1)" "$(printf '%s\n' "$said" | tail -1)"
for name in $index; do
    tap_ok "$name: in the ledger" sh -c 'printf "%s\n" "$1" | grep -q " $2 *- *patch"' - "$got" $name
done

# Beside built-in kernels for many rows, every op against the reference: patches of parts of what those take together.
replayed() {
    { for name in $1; do printf '/patch load %s\n' "$(path $name)"; done
      for set in "$@"; do for name in $set; do echo "/patch set user=$name"; done
          echo "/replay a b c d e f g h i j k l m n o p q r s t u v w x y z and so on to the end"; echo "/patch reset"; done; } | plain 2>&1 | grep 'agree with the reference'
}
got=$(replayed "moe_gate_up-plain moe_silu_t moe_down-plain linear-plain gate_up_t rmsnorm-plain kv_store_t rope_t mla-plain" moe_gate_up-plain \
    "moe_down-plain rmsnorm-plain" "moe_silu_t linear-plain" "gate_up_t kv_store_t")
tap_eq "many rows, five sets of patches: every op agrees with the reference" "$(printf '%s\n' "$got" | grep -c '^all [0-9]* outputs agree')" 5
tap_diag "$got"

patch typo add 'y[j] += x[k]'
refused typo "does not compile"
patch wrong add 'y[j] -= x[j]'
refused wrong "its result is wrong: relative L2"
patch beside add 'y[j + 8] += x[j]'
refused beside "writes beside"
patch wild add '*(volatile float *)(16ull + j * 4) = x[j]'
refused wild "illegal memory access"
patch kind allreduce 'y[j] = x[j]'
refused kind "kind 'allreduce' is none of those that CUDA C can replace: embed, rmsnorm, qkv_a, linear, rope, kv_store, mla, index_q"
patch lazy moe_silu_mul 'if (j != 7) y[j] = x[j] / (1 + expf(-x[j])) * x[c.width + j]'
refused lazy "leaves a part of its output as it was"
patch others moe_gate_up 'y[j] = one(c.m[j < c.m[0].rows ? 0 : 1], 0, j % c.m[0].rows, c.in + blockIdx.x / c.n_used * c.in_stride)'
refused others "weights f32"
patch nibbles linear '{ rankscope_cuda_matrix m = c.m[0]; m.type = m.type == 13 ? 12 : m.type;
    const float s = one(m, 0, j, x); y[j] = c.accumulate ? y[j] + s : s; }'
refused nibbles "weights Q5_K"
got=$(printf '/patch load %s\n/patch set user=index_scores-plain\n' "$(path index_scores-plain)" | plain)
tap_ok "a patch for what this model does not have" sh -c 'case $1 in *"is for ops of kind index_scores, and there is none at"*) ;; *) echo "$1"; false ;; esac' - "$got"
patch cache kv_store 'if (j == 0) { norm(y, c.kv_lora, false, c.eps, c.w, nullptr);
    for (unsigned p = 0; p < c.rope_dim / 2; p++) turn(c, blockIdx.x, y + c.kv_lora + 2 * p, 1, p);
    for (unsigned i = 0; i <= c.cache_width; i++) rankscope_cache(c, blockIdx.x, i, i < c.cache_width ? y[i] : 0); }'
refused cache "writes to the cache where it must not"
"$rs" synth --arch deepseek-v2-lite --layers 2 --experts 8 --vocab 512 -t IQ2_XS -o "$TEST_SCRATCH/iq2.gguf" >"$TEST_SCRATCH/iq2" 2>&1
got=$(printf '/patch load %s\n/patch set user=moe_gate_up-plain\n' "$(path moe_gate_up-plain)" | plain -m "$TEST_SCRATCH/iq2.gguf")
tap_ok "weights that a patch cannot take apart are refused by name" sh -c 'case $1 in *"op blk.1.ffn.exps.gate_up: blk.1.ffn_gate_exps.weight is IQ2_XS, which a patch in CUDA C"*) ;; *) echo "$1"; false ;; esac' - "$got"
sed 's/^RANKSCOPE_CUDA_PATCH.*/&\nRANKSCOPE_CUDA_SHAPE(100, 1, 0)/' "$TEST_SCRATCH/add_t.cu" | sed 's/add_t/shape/' >"$TEST_SCRATCH/shape.cu"
refused shape "RANKSCOPE_CUDA_SHAPE(100, 1, 0): threads are 32 to 1024 in steps of 32"

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
