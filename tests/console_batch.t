#!/bin/sh
# The console without a terminal, on an engine that plays a script: commands and messages from a pipe.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE_LOG=$TEST_SCRATCH/log RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE_LOG RANKSCOPE_FAKE
: >script

# feed LINES: status in $status, stdout in $out, stderr in $err, requests in $log
feed() {
    rm -f log
    printf '%s\n' "$1" | "$prog" >out 2>err
    status=$? out=$(cat out) err=$(cat err) log=$(cat log)
}

# says NAME LINES PATTERN: all went well, and some line of stdout matches
says() {
    feed "$2"
    tap_like "$1" "$status:$out" "$3"
    [ "$status" = 0 ] || tap_diag "status $status: $err"
}

# refuses NAME LINE PATTERN: status 1, and stderr says why
refuses() {
    feed "$2
/info"
    tap_like "$1" "$status $err" "^1 error: .*$3"
    tap_eq "$1: nothing runs after it" "$out" ""
}

feed 'Hello
How are you?'
tap_eq "messages are answered, plainly" "$status [$out] [$err]" "0 [You said: Hello
You said: How are you?] []"
tap_like "the second with what went before" "$log" '"text":"Hello","special":false.*You said: Hello.*How are you'
tap_like "the conversation is kept in the engine first" "$(echo "$log" | sed 's/ .*//' | tr '\n' ' ')" \
    '^hello open session.new submit session.put session.put submit session.put $'
says "a line without its newline" "$(printf 'Hi')" '^0:You said: Hi$'
says "a text that begins with a slash" '//etc is a folder' 'You said: /etc is a folder'

says "/help is one line a group" /help '^  model +what is loaded.*/info /load.* /patch'
tap_ok "and not more" [ "$(printf '%s\n' "$out" | wc -l)" -le 10 ]
says "/help of a group" '/help model' '^  /mode +show or switch how steps run +\[eager.graph\]'
says "/help of a group cut short" '/help debug' '^0:debugger: '
says "/help all" '/help all' '^  /bind '
refuses "/help of nothing" '/help modes' 'no command /modes .did you mean /mode'
says "one patch slot in full" '/patch list mla' '^  absorbed .default. +yes'
refuses "a slot that is none" '/patch list mal' "no patch slot 'mal' .did you mean mla"
says "/help of one" '/help patch' '^0:/patch \[list'
says "a name cut short" '/hel mode' '^0:/mode'
refuses "a name that is not unique" '/st' '/st could be /'
says "what is short for a command is told" '/help continue' '^short: c cont$'
refuses "an unknown command" '/foo' 'no command /foo'
refuses "an argument where none goes" '/new x' 'usage: /new'
says "/info" /info 'Tiny GLM-5'

says "/mode says what it was, is, and took" '/mode eager' '^0:mode: graph -> eager \(1.50 ms\)$'
says "/mode shows" "/mode eager
/mode" '^mode: eager$'
refuses "/mode to nowhere" '/mode fast' 'usage: /mode'
says "/ranks" '/ranks 4' '^0:ranks: 8 -> 4 \(1.50 ms\)$'
refuses "/ranks out of range" '/ranks 65' 'from 1 to 64'
says "/set" '/set graph.guard=off' '^0:graph.guard: on -> off'
says "/set says off as it is written" '/set spec=off' '^0:spec: off, as it was$'
says "/set shows" /set '^0:numerics: invariant \(invariant.fast\)'
refuses "/set of nothing" '/set speed=1' 'the options are numerics, graph.guard'

says "/patch lists" /patch '^  mla +absorbed +absorbed\*, expanded, direct! +recapture'
says "/patch set" '/patch set mla=expanded' '^0:patch mla: absorbed -> expanded \(200.0 us\)$'
says "and its cost" '/patch set mla=expanded' '^generation 1, recapture, 300.0 us in all$'
says "/patch without set" '/patch mla=expanded' 'patch mla: absorbed -> expanded'
says "/patch at some sites" '/patch set mla=expanded @blk.3.*' '^0:patch mla at blk.3.\*: absorbed -> expanded'
tap_like "/patch at some sites: the request" "$log" '^patch.set \{"slot":"mla","impl":"expanded","site":"blk.3.\*"\}$'
says "a preset shows what it set" '/patch mla=off' '^patch qkv_a: fused -> split'
says "a patch that moves weights says so first" '/patch moe.split=ep' '^0:moe.split=ep: weights move between ranks$'
says "/patch revert" "/patch mla=expanded
/patch revert" '^patch mla: expanded -> absorbed'
says "/patch revert to a generation" '/patch revert 0' 'patch generation: 0 -> 1'
tap_like "/patch revert to a generation: the request" "$log" '^patch.revert \{"to":0\}$'
says "/patch reset" "/patch mla=off
/patch reset" '^patch qkv_a: split -> fused'
refuses "a patch that a graph cannot capture" '/patch mla=direct' 'blk.0.attn.mla'
refuses "an unknown slot" '/patch foo=bar' "no slot 'foo'"
refuses "a patch that is none" '/patch set mla' 'not SLOT=IMPL'

says "/system" '/system Be brief.' '^0:system: \(none\) -> Be brief\.$'
says "/system none" "/system Be brief.
/system none" '^system: Be brief. -> \(none\)$'
says "/think" '/think off' '^0:think: default -> off$'
feed "/think off
Hi"
tap_like "/think off: the request" "$log" '</think>","special":true\}\]'
says "/seed is a whole number, however long" '/seed 9007199254740991' '^0:seed: default -> 9007199254740991$'
says "/temp" '/temp 0.7' '^0:temp: 0 -> 0.7$'
says "/top_k default" "/top_k 40
/top_k default" '^top_k: 40 -> default$'
says "/seed shows" /seed '^0:seed: default \('
feed "/temp 0.7
/max 9
/min_p 0.1
/top_p 0.5
/seed 3
Hi"
tap_like "settings go along" "$log" '^submit \{"temp":0.69*[0-9]*,"max_tokens":9,"min_p":0.1[0-9]*,"top_p":0.5,"seed":3,'
refuses "a setting out of range" '/top_p 2' 'top_p wants a number from 0 to 1'
refuses "a setting that is no number" '/max many' "not 'many'"

feed "Hi
/new
Ho"
tap_like "/new forgets" "$(echo "$log" | grep '^submit' | tail -1)" '"text":"Ho"'
tap_ok "/new forgets all of it" sh -c '! grep "^submit" log | tail -1 | grep -q Hi'
printf 'answer First.\nanswer Second.\nanswer Third.\n' >script
feed "Hi
/retry
Ho"
tap_eq "/retry answers again" "$out" "First.
Second.
Third."
tap_ok "/retry replaces the answer" sh -c 'grep "^submit" log | tail -1 | grep -q Second && ! grep "^submit" log | tail -1 | grep -q First'
: >script
refuses "/retry of nothing" /retry 'nothing to answer'
says "/stats" /stats '^  decode +graph +12 +1.25 ms +1.20 ms +1.50 ms$'
says "/stats reset" '/stats reset' 'counting from here'
says "/stats after an answer" "Hi
/stats" '^last answer: prompt 14 tokens'
says "/allreduce" /allreduce '^ +1 +156 +2.2 us +2.0 us / 3.5 us +0.1 us / 1.0 us +2.1 us +0.50 GB/s +0.88 GB/s$'
says "/allreduce says what auto does" /allreduce '^allreduce=auto, payload bf16: two-shot from 256 rows on$'
says "/allreduce says so of either payload" /allreduce '^allreduce=auto, payload f32: always flat$'
says "/allreduce shows what was measured" /allreduce '^ +bf16 +256 +524.3 kB +40.0 us +21.0 us$'
says "/ledger shows what auto came to" /ledger '^  blk\.\*\.ffn\.allreduce +2 +allreduce +auto \(two-shot\) +- +default +in +21.0 us *$'
says "/ledger puts layers together" /ledger '^  blk\.\*\.attn\.mla +0-1 +mla +absorbed +int8 +default +in +110.0 us +4.4 MB +40.0 GB/s$'
says "/ledger shows what is outside the graph" /ledger '^  blk\.\*\.attn\.mla +2 +mla +direct +int8 +site +out, cannot be captured +60.0 us *$'
says "/ledger of some sites leaves the others" "/ledger *.2.attn.*" '^  blk\.\*\.attn\.mla +2 +mla +direct'
refuses "/ledger of no site" "/ledger blk.9.*" "no op of the last step has a site like 'blk.9.*'"
says "/health" /health '^0:garbage: entropy 1.62 nats'
says "/audit" /audit '13 a step'
says "/audit -v" '/audit -v' '0: 0-5, 1: 5-8'

cp "$abs_srcdir/models/tiny-glm5-q4.gguf" other.gguf
says "/load" '/load other.gguf' '^0:model: .*tiny-glm5-q4.gguf -> other.gguf'
tap_like "/load takes the new model's ranks" "$log" '^open \{"path":"/.*/other.gguf","ranks":1,'
refuses "/load of nothing" '/load nothere.gguf' 'nothere.gguf: cannot open'

says "/save" "/system Be brief.
/temp 0.5
Hi
/save talk.json" '^saved 2 messages'
tap_like "the file has a version" "$(cat talk.json)" '"rankscope_conversation": 1'
tap_eq "the file is the user's own" "$(stat -c %a talk.json)" 600
feed "/open talk.json
/temp
/system
Ho"
tap_like "/open" "$out" '^conversation: 2 messages from talk.json$'
tap_like "/open brings the settings" "$out" '^temp: 0.5 '
tap_like "/open brings the system message" "$out" '^system: Be brief.$'
tap_like "/open brings the messages" "$(echo "$log" | grep '^submit')" 'You said: Hi'
refuses "/open of nothing" '/open nothere.json' 'cannot open nothere.json'
echo '{"rankscope_conversation":2,"messages":[]}' >newer.json
refuses "/open of a newer file" '/open newer.json' 'newer.json: written by a newer program'
echo '{"rankscope_conversation":1,"messages":[{"role":"boss","content":"x"}]}' >bad.json
refuses "/open of a wrong role" '/open bad.json' 'messages.0..role'
echo '{"rankscope_conversation":1,"messages":[],"sampling":{"top_p":7}}' >bad.json
refuses "/open of a wrong setting" '/open bad.json' 'sampling.top_p'
echo '{"rankscope_conv' >bad.json
refuses "/open of half a file" '/open bad.json' 'bad.json line 1'
refuses "/open of a folder" '/open .' 'not a regular file'
refuses "/save into a folder that is not there" '/save no/where.json' 'cannot save no/where.json: No such file'
refuses "/save over what is no file" '/save /dev/null' 'not a regular file'

# A full disk: nothing can be written beyond one block (512 bytes), and the old file stays as it is.
cp talk.json before.json
{ printf '/open talk.json\n'; i=0; while [ $i -lt 40 ]; do echo "a rather long message, number $i"; i=$((i + 1)); done; echo '/save talk.json'; } >long
(ulimit -f 1; trap '' XFSZ; "$prog" <long >/dev/null 2>err)
tap_like "a full disk is one error" "$? $(cat err)" '^1 error: cannot save talk.json: '
tap_ok "and the old file is what it was" cmp talk.json before.json
tap_eq "and no temporary file is left" "$(find . -name 'talk.json.*')" ""

says "/quit" "/quit
/foo" '^0:$'
printf 'Hi\0there\n' | "$prog" >out 2>err
tap_like "a NUL byte" "$? $(cat err)" '^1 error: a line holds a NUL byte'
printf 'Hi\377\n' | "$prog" >out 2>err
tap_like "a line that is no text" "$? $(cat err)" '^1 error: not UTF-8 text: byte 2'
printf 'lost 2 killed by signal 9\n' >script
feed 'one two three
/info'
tap_like "an engine that dies" "$status $err" '^3 error: the engine is gone: killed by signal 9; last: blk.1.attn.mla'
printf 'gate 5 never\n' >script
printf 'one two three four five six seven\n/info\n' >long
rm -f out
"$prog" <long >out 2>err &
pid=$!
while [ ! -s out ]; do sleep 0.05; done
kill -INT $pid
wait $pid
tap_like "Ctrl-C ends a batch" "$? $(cat out)" '^130 You'
: >script
tap_ok "no escape sequence where no terminal is" sh -c "printf 'Hi\n/health\n/patch\n' | TERM=xterm '$prog' | ( ! LC_ALL=C grep -q \"\$(printf '\033')\" )"

tap_done
