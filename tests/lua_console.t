#!/bin/sh
# Lua at the prompt: = and /lua, init.lua, commands of one's own, the notebook's commands, what an interrupt breaks.
. "${abs_srcdir:?}/tests/tap.sh"

console() { # LINES on stdin; output in $out
    out=$("$abs_builddir/rankscope" --ranks 2 2>&1)
    status=$?
}
says() { # NAME TEXT
    tap_ok "$1" sh -c 'case $1 in *"$2"*) ;; *) printf "%s\n" "$1" | sed "s/^/# /"; false ;; esac' - "$out" "$2"
}

console <<'X'
=6 * 7
=x = 5
=x + 1, "two"
/lua return {b = 2, a = 1}
=rs.state().ranks
X
says "an expression prints its value" "42"
says "what one line defines the next one has" "6"
says "tables are printed with sorted keys" "{a = 1, b = 2}"
tap_ok "and nothing failed" test $status = 0

console <<'X'
=nonsense(
X
says "a syntax error is one" "prompt:1:"
tap_ok "and ends a batch" test $status = 1
console <<'X'
=error("oh")
X
says "an error has its place" "prompt:1: oh"

mkdir -p "$XDG_CONFIG_HOME/rankscope"
cat >"$XDG_CONFIG_HOME/rankscope/init.lua" <<'X'
rs.cmd.add("double", function(args) print("twice: " .. args .. args) end, "say it twice")
X
console <<'X'
/double ab
/help
=rs.cmd.add("mode", print)
X
says "init.lua adds a command" "twice: abab"
says "/help lists it" "say it twice"
says "the console's own commands stay" "/mode is the console's own"
echo 'error("broken")' >"$XDG_CONFIG_HOME/rankscope/init.lua"
console <<'X'
=1 + 1
X
says "what is wrong in init.lua is shown" "broken"
says "and stops nothing" "2"
rm "$XDG_CONFIG_HOME/rankscope/init.lua"

console <<'X'
/patch set slot_order=file
/claim add attention is to blame; What is the capital of France?; The capital of France is Paris.; default: wrong; mla=off: right
/patch reset
/claim
/retest all
/notebook hypothesis the slots are joined in the wrong order
/notebook task look at the loader
/notebook done 1
/notebook resolve 1 supported
/notebook
/exp slot_order=slot,file qkv_a=fused,split : What is the capital of France?
/bisect slot_order=file allreduce=tree
=rs.state().patches
X
tap_ok "the notebook's commands run" test $status = 0
says "a claim holds while it is broken" "claim 1: holds"
says "and is refuted once it is not" "holds -> refuted"
says "a task is done" "[x] look at the loader (done)"
says "a hypothesis is resolved" "wrong order (supported)"
says "/exp says what matters" "slot_order=file breaks the answer only together with qkv_a=fused"
says "and keeps it" "experiment 1 in the notebook"
says "/bisect finds the patch" "the smallest set that changes the answer: slot_order=file"
says "and what was set is as before" "{}"

# An experiment that is stopped half way goes on from there.
cat >"$TEST_SCRATCH/stop.lua" <<'X'
local exp = rs.exp
rs.model.open{ranks = 2}
local state, n = {}, 0
local o = {factors = {mla = {"absorbed", "expanded"}, mode = {"eager", "graph"}}, prompts = {"What is 2 + 2?"}, repeats = 2, state = state}
o.progress = function(done) n = n + 1; if done == 3 then error("stopped") end end
assert(not pcall(exp.run, o))
state = rs.core.json_decode(rs.core.json_encode(state))
assert(state.done == 3, state.done)
o.state = state
local r = exp.run(o)
print("arms " .. n, #r.arms, #r.arms[1].speeds, r.arms[1].right, #r.sentences > 0)
local known, probes = {}, 0
local function bad() probes = probes + 1; if probes == 3 then error("stopped") end return rs.state().patches.slot_order == "file" end
local set = {slot_order = "file", allreduce = "tree", matmul = "f32", mla = "expanded"}
assert(not pcall(exp.bisect, set, bad, nil, known))
local c = exp.bisect(set, bad, nil, known)
print("bisect " .. exp.name(c), next(rs.state().patches))
X
"$abs_builddir/rankscope" "$TEST_SCRATCH/stop.lua" >"$TEST_SCRATCH/out" 2>&1
tap_ok "an experiment goes on from where it was stopped" grep -q "^arms 8.4.2.true.true" "$TEST_SCRATCH/out"
tap_ok "so does a bisection, and what was set is put back" grep -q "^bisect slot_order=file.nil" "$TEST_SCRATCH/out"

# Ctrl-C: a loop that swallows errors, a wait, an endless coroutine.
interrupt() { # NAME CODE
    "$abs_builddir/rankscope" -e "io.stdout:write('ready\n') io.stdout:flush() $2" >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err" &
    pid=$!
    n=0
    while ! grep -q ready "$TEST_SCRATCH/out" && [ $n -lt 100 ]; do
        sleep 0.1
        n=$((n + 1))
    done
    kill -INT $pid
    n=0
    while kill -0 $pid 2>/dev/null && [ $n -lt 300 ]; do
        sleep 0.1
        n=$((n + 1))
    done
    kill -0 $pid 2>/dev/null && kill -KILL $pid
    wait $pid
    status=$?
    tap_ok "$1: it ends with the status of an interrupt" test $status = 130
    tap_ok "$1: and says so" grep -q interrupted "$TEST_SCRATCH/err"
}
interrupt "a loop around pcall" 'while true do pcall(function() while true do end end) end'
interrupt "a coroutine in a loop" 'while true do coroutine.wrap(function() pcall(function() while true do end end) end)() end'
interrupt "sleep" 'while true do pcall(rs.sleep, 100) end'
interrupt "waiting for an event" 'while true do pcall(rs.next_event, 100) end'
interrupt "what must be put back" 'rs.core.finally(function() while true do end end, function() local x = 0; for i = 1, 1e6 do x = x + i end; print("put back") end)'
tap_ok "it was put back" grep -q "put back" "$TEST_SCRATCH/out"
tap_done
