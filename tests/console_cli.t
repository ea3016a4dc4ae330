#!/bin/sh
# The command line on an engine that plays a script: options, exit statuses, what goes to stdout and what to stderr, JSON.
# shellcheck disable=SC2016  # scripts for another sh
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE_LOG=$TEST_SCRATCH/log RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE_LOG RANKSCOPE_FAKE
: >script

# run ARGS...: status in $status, stdout in $out, stderr in $err, requests in $log
run() {
    rm -f log
    "$prog" "$@" >out 2>err </dev/null
    status=$? out=$(cat out) err=$(cat err) log=$(cat log 2>/dev/null)
}

# usage NAME PATTERN ARGS...: status 2, one line that matches on stderr, nothing on stdout, and no engine was asked
usage() {
    name=$1 pattern=$2
    shift 2
    run "$@"
    lines=$(wc -l <err)
    tap_eq "$name" "$status $lines [$out] [$log]" "2 1 [] []"
    tap_like "$name: the message" "$err" "$pattern"
}

run --help
tap_eq "--help succeeds" "$status [$err]" "0 []"
tap_like "--help lists the commands" "$out" '^  perplexity '
tap_like "--help lists the options" "$out" '^  -m, --model FILE'
run version
tap_like "version" "$status $out" '^0 rankscope '
run chat --help
tap_like "--help of a command" "$out" '^  --raw '

usage "an unknown command" "no command 'foo'" foo
usage "-e without code" '-e wants one value \(CODE\)' -e
usage "an unknown option" 'unknown option --foo' chat --foo
usage "of the console, which has no name" '^rankscope: unknown option --foo \(see rankscope --help\)' --foo
usage "a command behind its options" "unknown option -p; 'chat' is a command, which comes before its options" --hosts a,b chat -p Hi
usage "an option that was nearly right" 'unknown option --tmep \(did you mean --temp\?\)' chat --tmep 1
usage "the name that others have for it" 'unknown option --max-tokens \(did you mean --max\?\)' chat --max-tokens 9
usage "an unknown short option" 'unknown option -z' chat -z
usage "an option without its value" '^rankscope chat: --seed wants a value' chat --seed
usage "a short option without its value" '^rankscope chat: -p wants a value' chat -p
usage "a number that is none" "whole number, not '3x'" chat -p x --max 3x
usage "a number out of its range" '--ranks goes from 1 to 64, not 65' chat -p x --ranks 65
usage "a word that is no choice" "one of eager.graph, not 'fast'" chat -p x --mode fast
usage "a flag with a value" 'takes no value' chat -p x --json=1
usage "an option of another command" 'unknown option --port; it is an option of: rankscope serve' chat --port 1
usage "of another command, without one" '^rankscope: unknown option -p; it is an option of: rankscope chat' -p Hi
usage "help about what is no command" "^rankscope: there is no command 'caht' .did you mean chat.." help caht
usage "a script behind options" 'x.lua is a script, which comes first' --ranks 2 x.lua
usage "an argument too many" "too many: 'you'" chat hello you
usage "an argument too few" "IN OUT wanted, and there is only 'a.gguf'" quantize a.gguf
usage "two prompts" "once what to ask: 'hello' or -p" chat -p Hi hello
usage "chat without a prompt" 'with -p TEXT' chat
usage "think and no-think" 'exclude each other' chat -p x --think --no-think
usage "raw with a template's option" 'uses no template' chat -p x --raw --no-think
usage "a patch that is none" "'mla' is not SLOT=IMPL" chat -p x --patch mla
usage "an engine option that there is not" 'the options are numerics, graph.guard' chat -p x --set speed=high
usage "an engine option with a wrong value" "invariant.fast, not 'slow'" chat -p x --set numerics=slow
usage "a logit bias that is none" 'wants ID=NUMBER' chat -p x --logit-bias 5
usage "a prompt that is no text" 'not UTF-8' chat -p "$(printf 'a\377b')"
usage "tokens without text" 'either TEXT or --back' tokens
usage "ids that are none" "'x2' is not a token id" logits --ids 1,x2
usage "no ids" 'no token ids' logits --ids ''
usage "control characters in the message are shown" 'unknown option --a\^\[' chat "$(printf -- '--a\033b')"
usage "perplexity of two things" 'either --ids LIST or --file' perplexity --ids 1,2 --file x

run chat -p 'Hi there'
tap_eq "the answer alone is on stdout" "$status [$out] [$err]" "0 [You said: Hi there] []"
tap_like "8 ranks and graph mode for the shipped model" "$log" '^open \{"path":".*/models/tiny-glm5-q4.gguf","ranks":8,"mode":"graph"\}$'
tap_like "temperature 0, the thought is the template's" "$log" '^submit \{"temp":0.0,"segments":.*"thinking":true\}$'
tap_like "what was typed is never special" "$log" '\{"text":"Hi there","special":false\}'
run chat 'Hi there'
tap_eq "the question is an argument" "$status [$out] [$err]" "0 [You said: Hi there] []"
cp "$abs_srcdir/models/tiny-glm5-q4.gguf" other.gguf
run chat -mother.gguf -p Hi --no-think
tap_like "one rank for another model" "$log" '"ranks":1,'
tap_like "no-think is the template's empty thought" "$log" '</think>","special":true\}\]\}$'
run chat -p Hi --ranks=4 --mode eager --patch mla=expanded --patch 'moe.split=ep@blk.3.*' --set numerics=fast --set graph.guard=off --ctx 512
tap_like "options of the engine" "$log" '"ranks":4,"mode":"eager","ctx":512,"patches":\{"mla":"expanded","moe.split@blk.3.\*":"ep"\},"numerics":"fast","graph_guard":false\}$'
run chat -p Hi --temp 0.5 --top-k 40 --top-p 0.9 --min-p 0.05 --seed 7 --max 3 --stop END --logit-bias 5=-1.5 --ignore-eos --raw
tap_like "options of sampling" "$log" '"temp":0.5,"top_k":40,"top_p":0.9.*,"min_p":0.05.*,"logit_bias":\{"5":-1.5\},"stop":\["END"\],"seed":7,"max_tokens":3,"ignore_eos":true'
tap_like "raw text is fed as it is, special tokens recognised" "$log" '"segments":\[\{"text":"Hi","special":true\}\]'
run chat -s 'Be brief.' -p Hi
tap_like "the system message" "$log" '<\|system\|>'

printf 'from a pipe\n' | "$prog" chat -p - >out 2>err
tap_eq "the prompt from a pipe" "$(cat out)" "You said: from a pipe"
printf 'a\377' | "$prog" chat -p - >out 2>err
tap_like "a pipe that is no text" "$? $(cat err)" '^2 .*byte 1 is 0xff'

printf 'answer \\e[31mred\\x9b1m \\xc2\\x9bhi\\x0dthere\\x0d\\nend\\x07\n' | sed 's/\\e/\\x1b/' >script
run chat -p Hi --no-think
tap_eq "control characters are shown, never sent" "$out" "$(printf '^[[31mred\357\277\2751m ^[[hi^Mthere\nend^G')"
run chat -p Hi --no-think --json
tap_ok "and not in JSON either" sh -c '! LC_ALL=C grep -q "$(printf "[\001-\011\013-\037\177]\\|\302\233")" out'

: >script
run chat -p Hi --json
if command -v python3 >/dev/null; then
    tap_eq "the keys of --json" "$(python3 -c 'import json,sys
o = json.load(open("out"))
print(" ".join(list(o)[:11] + [",".join(list(o["allreduce"])[:4])]), o["verdict"], o["text"], o["thinking"], o["stop"])' 2>&1)" \
        "text thinking stop prompt_tokens tokens prompt_ms decode_ms tok_per_s mode ranks patches per_step,mean_us,p99_us,share None You said: Hi Let me see. eos"
else
    tap_skip "python3 is not here"
fi
tap_like "verdict and reason are null without a verdict" "$out" '"verdict":null,"reason":null'
printf 'done {"verdict":"garbage","reason":"white space"}\n' >script
run chat -p Hi
tap_eq "a verdict goes to stderr" "$out / $err" "You said: Hi / verdict garbage: white space"
printf 'log warn the context is long\n' >script
run chat -p Hi
tap_eq "log lines go to stderr" "$out / $err" "You said: Hi / engine: the context is long"
: >script
run chat -p Hi --stats
tap_like "--stats goes to stderr" "$err" '^prompt 14 tokens in 10.50 ms; 6 tokens in 40.25 ms, 298.1 tokens/s; 8 ranks, graph; all-reduce 13 a step, .*\(simulated\)$'
tap_eq "and leaves stdout alone" "$out" "You said: Hi"
run chat -p Hi --max 2 --no-think --json
tap_like "cut by --max" "$out" '"stop":"length"'

run chat -m nothere.gguf -p Hi
tap_eq "a model that is not there" "$status $err" "3 rankscope chat: nothere.gguf: cannot open"
echo 'not a model' >bad.gguf
run chat -m bad.gguf -p Hi
tap_eq "a file that is no model" "$status $err" "3 rankscope chat: bad.gguf: offset 0: not a GGUF file"
run chat -p Hi --patch mla=direct
tap_eq "what a graph cannot capture is refused" "$status $err" "1 rankscope chat: blk.0.attn.mla: mla=direct cannot be captured in a graph"
run chat -p Hi --patch mla=direct --set graph.guard=off
tap_eq "unless the guard is off" "$status" 0
printf 'done {"stop":"error","error":"rank 3: device lost"}\n' >script
run chat -p Hi
tap_eq "an engine that fails while it answers" "$status $err" "3 rankscope chat: rank 3: device lost"
printf 'lost 2 killed by signal 9\n' >script
run chat -p Hi
tap_like "an engine that dies" "$status $err" '^3 '
tap_like "is named with its last op" "$err" 'killed by signal 9; last: blk.1.attn.mla'
printf 'fail submit out-of-memory no room for 9 tokens\n' >script
run chat -p Hi
tap_eq "a request that fails" "$status $err" "3 rankscope chat: no room for 9 tokens"
: >script
run chat -p Hi --isa avx512
tap_eq "vector instructions that are not there" "$status $err" "2 rankscope chat: this CPU has no avx512"
run chat -p Hi --chat-template nothere.lua
tap_like "a template that is not there" "$status $err" '^3 .*cannot read nothere.lua'
printf 'return {\n name = "x", render = function(messages) error("no way") end }\n' >bad.lua
run chat -p Hi --chat-template bad.lua
tap_eq "an error in a template names file and line" "$status $err" "3 rankscope chat: bad.lua:2: no way"
printf 'return { render = function() while true do pcall(function() while true do end end) end end }\n' >loop.lua
run chat -p Hi --chat-template loop.lua
tap_like "a template that never ends is stopped" "$status $err" '^3 .*loop.lua:1: runs too long'
printf 'return { render = function() local s = "x" while true do s = s .. s end end }\n' >big.lua
run chat -p Hi --chat-template big.lua
tap_like "a template that takes all memory is stopped" "$status $err" '^3 .*Lua: memory limit reached'
printf 'return { render = function() return { { text = tostring(io) .. tostring(os) .. tostring(load) .. tostring(debug) .. tostring(package) } } end }\n' >box.lua
run chat -p Hi --chat-template box.lua
tap_like "a template reaches no file, process or code" "$log" '"text":"nilnilnilnilnil"'

if [ -w /dev/full ]; then
    "$prog" chat -p Hi >/dev/full 2>err
    tap_like "output that cannot be written" "$? $(cat err)" '^1 .*cannot write the output: No space left on device'
else
    tap_skip "no /dev/full"
fi

printf 'gate 5 never\n' >script
rm -f out log
"$prog" chat -p 'one two three four five six seven' >out 2>err &
pid=$!
while [ ! -s out ]; do sleep 0.05; done
kill -INT $pid
wait $pid
tap_eq "Ctrl-C stops the answer with status 130" "$? [$(cat err)]" "130 [(stopped)]"
printf 'open-us 20000000\n' >script
rm -f out log
"$prog" chat -p Hi >out 2>err &
pid=$!
while ! grep -q '^open' log 2>/dev/null; do sleep 0.05; done
kill -TERM $pid
wait $pid 2>/dev/null
tap_eq "SIGTERM while a model loads" "$?" 143
: >script

run tokens 'hé'
tap_eq "tokens" "$out" "104 233"
run tokens --pieces 'h
'
tap_eq "tokens with their text" "$out" "$(printf '     104  h\n      10  ^J')"
run tokens --back '104, 233'
tap_eq "tokens back, to the byte" "$(od -An -tx1 out | tr -d ' ')" "68c3a9"
run tokens --json h
tap_eq "tokens as JSON" "$out" '{"ids":[104],"pieces":["h"]}'
run tokens '<sop>'
tap_like "special tokens are recognised" "$log" '"special":true'
run tokens --no-special '<sop>'
tap_like "unless they are not to be" "$log" '"special":false'
run logits --ids '1,2 3' --ranks 2
tap_eq "logits" "$out" '{"argmax_each":[1,6,0],"last_logits":[2.5,0.5,1.25,2,0,0.75,1.5,2.25],"layer_last":[[0,0.100000001,0.200000003,0.300000012],[0.400000006,0.5,0.600000024,0.699999988],[0.800000012,0.899999976,1,1.10000002]]}'
run logits --ids 1,2 --all-logits
tap_like "all logits" "$out" '"logits":\[\[1.75,2.5,.*\],\[.*\]\]\}$'
run perplexity --ids 1,2,3
tap_eq "perplexity" "$out" "$(printf 'nll 2.000000\nperplexity 7.3891\ntokens 2')"
printf 'abcdefghij' >text
run perplexity -f text --window 4 --json
tap_eq "perplexity of a file in windows" "$out" '{"nll":2.0,"perplexity":7.3890561,"tokens":7,"windows":3}'
run perplexity --ids 1
tap_like "perplexity of one token" "$status $err" '^2 .*at least two tokens'

run audit --ranks 2 x.gguf
tap_like "audit: layers that are dealt alike are one line" "$out" '^  blk\.\*\.attn_q_b\.weight +0-1,3 +Q8_0 +128 x 768 +heads +5, 3 +uneven$'
tap_like "audit: the order of a fused weight" "$out" 'blk\.\*\.attn\.qkv_a +0-1 +DIFFERS'
tap_like "audit: the all-reduces" "$out" '2 x layers \+ 1 = 13 a step'
tap_like "audit: the file is named, not opened" "$log" '^audit \{"path":"x.gguf","ranks":2\}$'
run audit -v x.gguf
tap_like "audit -v: every tensor with its ranges" "$out" '^  blk\.1\.attn_q_b\.weight .* 0: 0-5, 1: 5-8 +uneven$'
run audit --json x.gguf
tap_like "audit --json" "$out" '"file_order_differs": true'

tap_done
