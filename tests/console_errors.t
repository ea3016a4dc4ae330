#!/bin/sh
# What goes wrong is said once, in one line, and in words of the person's, not of the protocol's: at every command of the program and of the console.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/rankscope
model=$abs_srcdir/models/tiny-glm5-q4.gguf
cd "$TEST_SCRATCH" || exit 1
methods=$(sed -n 's/^| `\([a-z._]*\)`.*/\1/p' "$abs_srcdir/docs/protocol.md" | sed 's/\./[.]/g' | tr '\n' '|' | sed 's/|$//')
tap_ok "the protocol's methods are known" [ "$(echo "$methods" | tr '|' '\n' | wc -l)" -gt 60 ]
echo 'no model' >broken.gguf
echo '{"rankscope_conversation":99}' >broken.json

# plain WHAT: the message in "err" is one line without a doubled word before its colon and without a method's name there
plain() {
    what=$(sed -e 's/^rankscope[^:]*: //' -e 's/^error: //' err | head -n 1)
    command=$(sed -n 's/^rankscope \([a-z]*\): .*/\1/p' err | head -n 1)
    if [ "$(wc -l <err)" != 1 ] || [ -z "$what" ]; then
        tap_fail "$1: one line"
    elif echo "$what" | grep -Eq "^($methods|${command:-error}|error): " || echo "$what" | grep -Eq '(^|: )([^: ]+): \2: '; then
        tap_fail "$1: nothing is said twice"
    else
        tap_pass "$1"
        return
    fi
    tap_diag "$(head -n 3 err)"
}

# Each line: what is wrong with a command of the program.
cat >wrong <<END
chat -m missing.gguf -p Hi
chat -m broken.gguf -p Hi
chat -m $model --ranks 99 -p Hi
chat -m $model --patch mla=nothing -p Hi
chat -m $model --patch nothing=x -p Hi
chat -m $model --mode graph --patch mla=direct -p Hi
chat -m $model --ctx 2 -p Hi
chat -m $model --synthetic glm-5 -p Hi
tokens -m missing.gguf Hi
tokens -m $model --ids 99999999
logits -m $model --ids 99999999
logits -m missing.gguf Hi
perplexity -m $model missing.txt
perplexity -m missing.gguf broken.gguf
calibrate -m missing.gguf
bench -m missing.gguf
bench -m $model --concurrency 0
audit missing.gguf
audit broken.gguf
audit --synthetic glm-9
audit $model --synthetic glm-5
quantize -o out.gguf -t Q4_K missing.gguf
quantize -o out.gguf -t Q4_K broken.gguf
quantize -o out.gguf -t nothing $model
quantize -o /missing/out.gguf -t Q8_0 $model
quantize -o $model -t Q8_0 $model
synth -o out.gguf glm-9
synth -o /missing/out.gguf --layers 1 --experts 4 glm-5
synth -o out.gguf --layers 999999 glm-5
devices --check
engine -n a/b
engine -m missing.gguf
attach nobody
top nobody
ps extra
serve -m $model --port 99999999
stop nobody
version extra
END
while read -r command rest; do
    # shellcheck disable=SC2086  # words
    "$prog" "$command" $rest >out 2>err </dev/null
    status=$?
    if [ $status = 0 ] || [ $status -gt 128 ]; then
        tap_fail "$command $rest: refused"
        tap_diag "status $status: $(head -n 3 err)"
    else
        plain "$command ${rest#-m "$model" }"
    fi
done <wrong
"$prog" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | while read -r command; do
    grep -q "^$command " wrong || echo "$command"
done >untried
tap_eq "every command was tried" "$(cat untried)" ""

if "$prog" chat -m "$model" --backend cuda -p Hi >out 2>err; then
    tap_skip "a backend that is not here: there are GPUs"
else
    plain "a backend that is not here"
    tap_like "is what the message is about" "$(cat err)" 'no CUDA|CUDA driver|GPU'
fi

# Likewise for the console's, at one engine.
"$prog" engine -n errors --workers 1 >engine 2>&1 &
engine=$!
trap 'kill $engine 2>/dev/null' EXIT
tries=0
until "$prog" ps 2>/dev/null | grep -q errors || [ $tries -ge 300 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
tap_ok "the console's engine has a model" sh -c 'echo "/load $1" | "$2" attach errors' sh "$model" "$prog"
cat >wrong <<'END'
/help nothing
/lua error("oh")
/run missing.lua
/quit now
/info now
/load missing.gguf
/load broken.gguf
/mode fast
/ranks 99
/patch set mla=nothing
/patch set nothing=x
/patch set mla
/patch set mla=off@nowhere.*
/patch revert 99
/patch load missing.c
/patch load broken.gguf
/patch shadow nothing
/patch promote
/patch promote nothing
/weights load * from missing.gguf
/weights load nothing.* from broken.gguf
/weights nothing
/set nothing=1
/set spec=99
/spec 99
/think perhaps
/temp hot
/top_k -5
/top_p 7
/min_p 7
/seed x
/max -2
/new now
/retry now
/rewind 5
/fork 5
/branch 99
/save /missing/file.json
/open missing.json
/open broken.json
/serve --port 99999999
/stats now
/allreduce now
/ledger nothing.*
/health now
/audit nothing
/tap nothing.*
/tap * nothing
/untap nothing.*
/watch * if hot
/watch nothing.* if nan
/watch del 99
/break nothing.*
/break * if )(
/break del 99
/where now
/step x
/step
/next
/continue
/print nothing
/print
/poke blk.0.attn.norm 1
/poke nothing 1
/diff default
/diff default file:missing.npz
/diff mla=nothing default -p Hi
/exp nothing
/exp nothing=a,b : Hi
/bisect nothing=x : Hi
/claim nothing
/retest 99
/notebook /missing/file.md
/notebook done 99
/copy 99
/snapshot /missing/file
/layout nothing
/theme nothing
/bind nothing
/control nothing
/detach now
/restart now
=error("oh")
END
while read -r line; do
    echo "$line" | "$prog" attach errors >out 2>err
    if [ $? = 0 ]; then
        tap_fail "$line: refused"
        tap_diag "$(head -n 3 out)"
    else
        plain "$line"
    fi
done <wrong
# What follows these is text, or a number of lines of it.
taken='system lens experts replay triage'
echo '/help all' | "$prog" attach errors 2>/dev/null | sed -n 's/^  \/\([a-z_]*\) .*/\1/p' | while read -r command; do
    grep -Eq "^/$command( |\$)" wrong || echo " $taken " | grep -q " $command " || echo "$command"
done >untried
tap_eq "every command of the console was tried" "$(cat untried)" ""
"$prog" stop errors >/dev/null 2>err || tap_diag "$(cat err)"
wait $engine
trap - EXIT
tap_done
