#!/bin/sh
# Taps, watchpoints, breakpoints, diff, replay, lens and experts as commands of the console, on the shipped model.
. "${abs_srcdir:?}/tests/tap.sh"

console() { # LINES on stdin; output in $out
    out=$("$abs_builddir/rankscope" --ranks 2 --temp 0 2>&1)
    status=$?
}
says() { # NAME TEXT
    tap_ok "$1" sh -c 'case $1 in *"$2"*) ;; *) printf "%s\n" "$1" | sed "s/^/# /"; false ;; esac' - "$out" "$2"
}
refuses() { # NAME LINE TEXT
    out=$(printf '%s\n' "$2" | "$abs_builddir/rankscope" --ranks 2 2>&1)
    status=$?
    tap_ok "$1: it fails" test $status = 1
    says "$1" "$3"
}

console <<X
/tap
/tap blk.0.attn.out
/tap output.norm save $TEST_SCRATCH/norm.npy
/watch blk.* if absmax>1000
What is the capital of France?
/tap
/watch
/untap
/watch del
/watch
X
tap_ok "taps and watchpoints: nothing fails" test $status = 0
says "nothing is tapped at first" "nothing is tapped"
says "a partial sum is told by rank" "blk.0.attn.out    30     1  256"
says "a replicated tensor once" "output.norm       30   all  256"
says "tokens are the same" "The capital of France is Paris."
says "a hit is told" "engine: watch 3: absmax"
says "and kept" "first at blk.4.ffn.exps.down, step 1, rank 0"
says "and taken away" "nothing is watched"
tap_ok "the tensor is a NumPy file" sh -c 'head -c 6 "$1" | od -An -c | grep -q "N   U   M   P   Y" && test $(wc -c <"$1") = 1152' - "$TEST_SCRATCH/norm.npy"
tap_ok "what was not tapped is not shown" sh -c 'case $1 in *blk.3.ffn.norm*) false ;; esac' - "$out"

console <<'X'
/break blk.2.ffn.router if rows == 1 && step > 3
What is the capital of Peru?
What is this?
X
says "a message while the engine is stopped is refused" "the engine is stopped: /continue, /step or /next first"

console <<'X'
/break blk.2.ffn.router if rows == 1 && step > 3
What is the capital of Peru?
/where
/print blk.2.attn.allreduce[][0:1:0:4]
/step 2
/next
/poke blk.2.ffn.residual 0
/print blk.2.ffn.residual
/print blk.2.ffn.residual[][0:1:0:64]
/poke blk.2.ffn.residual[][0:1:3:5] nan
/print blk.2.ffn.residual
/poke blk.2.ffn.residual 0
/break
/break del
/continue
And of France?
/where
X
tap_ok "a breakpoint: nothing fails" test $status = 0
says "it stops" "stopped after blk.2.ffn.router, step 4"
says "/where says it too" "1 row, position"
says "/print shows a part" "replicated, [1, 4]"
says "/step runs ops" "stopped after blk.2.ffn.exps.act"
says "/next runs a layer" "stopped before blk.3.attn.norm"
says "/poke writes" "256 values written"
says "and it is there" "rms 0  zeros 256"
says "a part is shown whole" "    0,60            0         0         0         0"
says "/poke writes what is no number" "rms 0  zeros 254  nan 2"
says "hits are counted" "after blk.2.ffn.router if rows == 1 && step > 3: 1 hit"
says "and the answer goes on" "capital"
says "in the end nothing is stopped" "the engine is not stopped"

console <<'X'
/lens What is the capital of France?
/experts
/diff mode=eager mode=graph
/diff default slot_order=file -p What is 2 + 2?
/replay
/patch set slot_order=file
/replay
X
tap_ok "looking into an answer: nothing fails" test $status = 0
says "lens shows the last layer's choice" '      5     0.00  "The" 1.00'
says "experts shows the router's" "  1    14  16 of 16          0.97"
says "eager and graph agree" "outputs agree (tolerance 0)"
says "file order does not" "the first is blk.0.attn.qkv_a"
says "replay clears the healthy model" "all 266 outputs agree with the reference"
says "and names the op" "it reads blk.0.attn_q_a.weight, blk.0.attn_kv_a_mqa.weight"

out=$("$abs_builddir/rankscope" -e 'rs.model.open{ranks = 2} rs.brk.add("blk.1.ffn.router") local s = rs.submit{prompt = "Hello", max_tokens = 1} rs.brk.wait(10)
    print(rs.tensor.read("blk.1.attn.allreduce").shape[2], rs.where().step) rs.brk.del() rs.continue() rs.wait{s}' 2>&1)
tap_eq "a tensor of the very first step can be read" "$out" "256	1"

refuses "/continue without a stop" /continue "the engine is not stopped"
refuses "/cont is short for it, /control or not" /cont "the engine is not stopped"
refuses "/s is short for /step" /s "the engine is not stopped"
refuses "/step 0" "/step 0" "usage: /step [N]"
refuses "/watch without a condition" "/watch blk.0" "usage: /watch"
refuses "/print of nothing that is there" "/print nonsense" "error: no step has run yet"
deep=$TEST_SCRATCH/a-path-that-is-longer-than-Lua-shows-of-it-in-the-place-of-an-error
ln -s "$RANKSCOPE_DATADIR" "$deep"
out=$(echo "/print nonsense" | RANKSCOPE_DATADIR=$deep "$abs_builddir/rankscope" --ranks 2 2>&1)
says "nor is the place shown where the library lies deep" "error: no step has run yet"
refuses "/diff of one" "/diff mode=eager" "usage: /diff A B"
refuses "/poke without a stop" "/poke output.norm 1" "stop"
refuses "/poke of a word" "/poke output.norm many" "VALUE is a number, nan, inf or -inf"
refuses "/notebook done of no task" "/notebook done 99" "there is no task 99 in the notebook"
refuses "/notebook resolve of nothing" "/notebook resolve 99 refuted" "there is no hypothesis 99 in the notebook"
console <<'X'
/weights list output*
/audit
X
tap_ok "/weights list: nothing fails" test $status = 0
says "what no file was loaded for is listed" "output_norm.weight"
tap_ok "/audit lists each slice once" sh -c '! printf "%s\n" "$1" | grep -E "^  [a-z].* ([0-9]+),\\1 "' - "$out"

console <<'X'
/claim
/notebook hypothesis the loader joins by file order
/notebook task read the loader for hypothesis 1
/notebook resolve 1 supported
/notebook task try again
/notebook done 2
X
says "no claims is said" "there are no claims"
says "/notebook resolve says what became of it" "hypothesis 1: supported"
says "and so does done" "task 2: done"
refuses "/tap of a kind of op" "/tap blk.3.moe_down" "no site matches 'blk.3.moe_down' (did you mean blk.3.ffn.exps.down?)"
refuses "/break without the middle of the name" "/break blk.2.mla" "(did you mean blk.2.attn.mla?)"
refuses "/tap of nothing" "/tap nonsense" "the ledger lists them"
refuses "/break with a letter too few" "/break blk.*.attn.nrm" "(did you mean blk.*.attn.norm?)"
refuses "/tap of a bare name with two letters swapped" "/tap allredcue" "(did you mean *.allreduce?)"
refuses "/break del of what is no number" "/break delete first" "'first' is not the number of one"
refuses "/break del of one there is not" "/break rm 7" "there is no breakpoint 7"
refuses "/watch del of one there is not" "/watch remove 7" "there is no watchpoint 7"
refuses "/untap of what is not tapped" "/untap blk.0.attn.norm" "no tap is at 'blk.0.attn.norm'"
refuses "/print of half a part" "/print blk.0.attn.norm[0][9:10]" "rows and columns are written [0:2:0:8]"
refuses "/diff of what there is not" "/diff default rank=1" "'rank' is neither a setting"
refuses "/exp of a slot that there is not" "/exp foo=1,2" "no slot 'foo'; there are: slot_order"
refuses "/patch of a slot that there nearly is" "/patch set slot_ordr=file" "(did you mean slot_order?)"
refuses "/patch to what there nearly is" "/patch set slot_order=fiel" "(did you mean file?)"
refuses "/patch with a word too many" "/patch st slot_order=file" "'st slot_order=file' is not SLOT=IMPL"
refuses "/break of a whole layer" "/break blk.2" "(did you mean blk.2.*, which is 20 sites?)"
refuses "a name that many ops share is a pattern elsewhere" '/lua rs.brk.add("allreduce")' "(did you mean *.allreduce, which is 13 sites?)"

out=$(printf '/bisect slot_order=file\n/exp mla=absorbed,off : Hi\n' | XDG_STATE_HOME=/dev/null/state "$abs_builddir/rankscope" --ranks 2 2>&1)
tap_eq "where no notebook can be written, what needs none works" "$?" 0
says "and says so" "what is found is not kept"
says "with its result" "the smallest set that changes the answer: slot_order=file"
tap_ok "no other program's words" sh -c 'case $1 in *mkdir*) false ;; esac' - "$out"

console <<'X'
/break blk.0.attn.norm
/break output.norm
/watch * if nan
/watch * if inf
/tap blk.0.attn.norm values 8
/break list
/break delete all
/watch clear
Hi
/tap
/untap all
/break list
/watch list
/tap
/patch set mla=off
/patch list mla
X
tap_ok "other debuggers' words: nothing fails" test $status = 0
says "breakpoints are listed" "  2  after output.norm: 0 hits"
says "delete all takes two away" "2 taken away"
says "none is left" "there are no breakpoints"
says "and no watchpoint" "nothing is watched"
says "nor a tap" "nothing is tapped"
says "values that were kept are shown, once where ranks agree" "blk.0.attn.norm, the same on all ranks, the first 8 values"
says "what is in use everywhere is told once" "now        expanded
"

console <<'X'
/break allreduce rank 0
/watch router if nan
/tap allreduce
Hi
/step
/untap allreduce
/break del
/continue
/ledger router
X
tap_ok "bare names: nothing fails" test $status = 0
says "a bare name breaks at all of that name" "breakpoint 1 at 13 sites, *.allreduce"
says "and stops at the first" "stopped after embed.allreduce"
says "it taps them" "tap 2 on 16 sites"
says "and unties them" "1 taken away"
says "and is a row of the ledger" "blk.*.ffn.router"
tap_ok "and nothing else is" sh -c 'case $1 in *ffn.norm*) false ;; esac' - "$out"

# At a terminal an empty line repeats what had the engine run on.
cat >"$TEST_SCRATCH/steps" <<'X'
expect > 
send /b blk.2.ffn.router\r
expect breakpoint 1
send Hi\r
expect stopped after blk.2.ffn.router
send /s\r
expect stopped after blk.2.ffn.exps.gate_up
send \r
expect stopped after blk.2.ffn.exps.act
send /n\r
expect stopped before blk.3.attn.norm
send \r
expect stopped before blk.4.attn.norm
send /where\r
expect op
send \r
send /p\r
expect blk.3.ffn.residual, replicated
send /p router\r
expect blk.3.ffn.router, replicated
send /break del\r
expect 1 taken away
send /c\r
expect (answer)
expect > 
send \x04
exit 0
X
"$abs_builddir/tests/pty" "$TEST_SCRATCH/steps" "$abs_builddir/rankscope" --plain --temp 0 --ranks 2 >"$TEST_SCRATCH/screen" 2>"$TEST_SCRATCH/why"
tap_ok "an empty line repeats" test $? = 0
tap_ok "but not what does not have it run on" test "$(grep -c "stopped" "$TEST_SCRATCH/screen")" = 5
printf 'expect > \nsend /help all\\r/info\\r\nexpect backend\nexpect > \nsend \\x04\nexit 0\n' >"$TEST_SCRATCH/steps"
"$abs_builddir/tests/pty" "$TEST_SCRATCH/steps" "$abs_builddir/rankscope" --plain --ranks 2 >"$TEST_SCRATCH/screen" 2>"$TEST_SCRATCH/why"
tap_ok "help and information at 80 columns" test $? = 0
tap_ok "help does not cut what commands do" sh -c '! grep "shortened.*what it does" "$1"' - "$TEST_SCRATCH/screen"
refuses "/print without an op" /print "the engine is not stopped"
refuses "/print of a name that many ops share" "/lua rs.ask('Hi')
/print router" "5 sites are called router: name one"
tap_done
