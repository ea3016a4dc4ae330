#!/bin/sh
# scripts/triage.lua, unattended, on a program with faults planted where no table of the engine knows of them: it must name the guilty op in 13 of 16 and
# more, in both modes, and blame nothing where there is no fault. The score is printed.
. "${abs_srcdir:?}/tests/tap.sh"

drill=$abs_builddir/tests/rankscope-drill
[ -x "$drill" ] || {
    echo "1..0 # SKIP no program with planted faults in this build"
    exit 0
}

# fault, the op that it is in (a piece of its name, or two), what it needs
faults='
slot-order attn.qkv_a
swapped attn.out
slice-0 attn.q_b
no-scale ffn.router
softmax ffn.router
rope-halves attn.q_rope
no-barrier attn.allreduce
nan-expert ffn.exps.gate_up
stale attn.q_norm graph
block-off attn.kv_store
top-k ffn.router
epsilon norm
dropped ffn.allreduce
duplicated ffn.allreduce
k-b attn.mla
wrong-position kv_store
kq-scale attn.mla
overwrites ffn.shexp.down
index-rope indexer|attn.index dsa
no-norm ffn.router
'

verdict() { # FAULT MODE MODEL: the op that is blamed, in $got
    case $3 in
    dsa) set -- "$1" "$2" "$abs_srcdir/tests/golden/fixture-dsa.gguf" ;;
    *) set -- "$1" "$2" "$abs_srcdir/models/tiny-glm5-q4.gguf" ;;
    esac
    RANKSCOPE_DRILL=$1 "$drill" "$abs_srcdir/scripts/triage.lua" --model "$3" --ranks 4 --mode "$2" >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err"
    got=$(sed -n 's/^verdict: //p' "$TEST_SCRATCH/out")
}

for mode in graph eager; do
    verdict none $mode
    tap_diag "no fault, $mode: $got"
    tap_ok "$mode: without a fault nothing is blamed" sh -c 'case $1 in healthy*) ;; *) false ;; esac' - "$got"
    right=0
    n=0
    while read -r fault site needs; do
        [ -n "$fault" ] || continue
        [ "$needs" = graph ] && [ $mode = eager ] && continue
        verdict "$fault" $mode "$needs"
        n=$((n + 1))
        if printf '%s\n' "$got" | sed 's/ (first.*//' | grep -qE "$site"; then
            right=$((right + 1))
            tap_diag "$mode: $fault: named: $got"
        else
            tap_diag "$mode: $fault: NOT named ($site): ${got:-$(cat "$TEST_SCRATCH/err")}"
        fi
    done <<X
$faults
X
    tap_diag "score in $mode mode: $right of $n"
    tap_ok "$mode: 13 of 16 or more are named ($right of $n)" test $((right * 16)) -ge $((n * 13))
done
tap_done
