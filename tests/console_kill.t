#!/bin/sh
# Consoles and engines killed at random moments of an answer: no conversation is lost, nothing is left behind. RANKSCOPE_TEST_BACKEND=cuda: engines on
# a GPU. PROGRAM names another rankscope than that of the build.
. "${abs_srcdir:?}/tests/tap.sh"

prog=${PROGRAM:-$abs_builddir/rankscope}
pty=$abs_builddir/tests/pty
TERM=xterm INPUTRC=/dev/null
export TERM INPUTRC
cd "$TEST_SCRATCH" || exit 1
rounds=3
[ -z "$RANKSCOPE_LONG" ] || rounds=100
question='Tell me a story about a cat.'
# The delay keeps an answer long enough to be killed in, on a fast machine and where this script gets a core now and then only.
how='--no-think --ignore-eos --max 120 --workers 1 --patch delay=0:1000'
[ "${RANKSCOPE_TEST_BACKEND:-cpu}" = cpu ] || how="$how --backend $RANKSCOPE_TEST_BACKEND --gpus 1 --ranks 2 --set numerics=invariant"

# What the answer must be: sampling is greedy and numerics are invariant, so it is the same every time. The console's words are in $want.
# shellcheck disable=SC2086  # options
"$prog" chat $how -p "$question" >whole 2>err || tap_diag "$(cat err)"
want=$(cat whole)
tap_like "the answer that is to survive is long" "$(wc -c <whole)" '^ *([3-9][0-9]{2}|[0-9]{4,})$'
first=$(head -c 12 whole | head -n 1)
last=$(tail -n 1 whole | tail -c 20)

random_ms() { # BELOW
    echo $(($(od -An -N2 -tu2 /dev/urandom) % $1))
}

shm() {
    find /dev/shm -user "$(id -u)" -name '*rankscope*' 2>/dev/null | sort
}

# story ROUND WHAT: what is known about a round that failed
story() {
    tap_diag "round $1: $2"
    [ ! -s why ] || tap_diag "$(sed -n l why | head -20)"
}

# A round that fails may leave its engine.
trap 'for name in 0 1 2; do "$prog" stop $name 2>/dev/null; done' EXIT
trap 'exit 1' TERM INT

before=$(shm)
lost=0 round=0
while [ $round -lt $rounds ]; do
    round=$((round + 1)) ms=$(random_ms 300)
    cat >steps <<END
expect > 
send $question\\r
expect $first
pause $ms
kill 9
exit 137
END
    # shellcheck disable=SC2086
    if ! "$pty" steps "$prog" --plain $how >screen 2>why; then
        lost=$((lost + 1))
        story $round "the console, $ms ms into the answer"
    fi
    got=$("$prog" attach </dev/null 2>err | sed -e 1d -e "/^(cut after/d")
    if [ "$got" != "$want" ]; then
        lost=$((lost + 1))
        story $round "attached after $ms ms: $(cat err) $got"
    fi
    "$prog" stop 2>err || tap_diag "$(cat err)"
done
tap_eq "$rounds consoles killed while an answer runs: attaching shows all of it" $lost 0

lost=0 round=0
while [ $round -lt $rounds ]; do
    round=$((round + 1)) ms=$(random_ms 300)
    cat >steps <<END
expect > 
run "$prog" ps --json | sed 's/.*"pid":\([0-9]*\).*/\1/' >engine.pid
send $question\\r
expect $first
pause $ms
run kill -9 \$(cat engine.pid)
expect the engine is gone
expect > 
send /restart\\r
expect engine: started anew
expect $last
expect > 
send /save round.json\\r
expect saved
expect > 
send \\x04
exit 0
restored
END
    # shellcheck disable=SC2086
    if ! "$pty" steps "$prog" --plain $how >screen 2>why; then
        lost=$((lost + 1))
        story $round "the engine, $ms ms into the answer"
        "$prog" stop 2>/dev/null
    fi
done
tap_eq "$rounds engines killed while an answer runs: the console starts another and goes on" $lost 0

# What a console left running holds memory: who starts one more is told.
cat >steps <<'END'
expect > 
send /detach\r
exit 0
END
"$pty" steps "$prog" --plain --workers 1 >screen 2>&1
sed 's/detach/quit/' steps >quit
"$pty" quit "$prog" --plain --workers 1 >screen 2>&1
tap_like "a console says which engines run already" "$(cat screen)" 'engine 0 runs too \(rankscope ps'
"$prog" stop 2>err || tap_diag "$(cat err)"
"$pty" quit "$prog" --plain --workers 1 >screen 2>&1
tap_ok "and nothing where none does" sh -c '! grep -q "runs too" screen'

tap_eq "no engine is left" "$("$prog" ps 2>&1)" "no engine is running"
tap_eq "no socket is left" "$(find "$XDG_RUNTIME_DIR" -name '*.sock')" ""
tap_eq "no shared memory is left" "$(shm)" "$before"
tap_done
