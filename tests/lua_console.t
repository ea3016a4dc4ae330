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
=rs.ask("Hello", {max_tokens = 2}).stop
/restart
=rs.ask("Hello", {max_tokens = 2}).stop .. " again"
/bisect slot_order=file
=1, nil, nil
X
tap_ok "an engine started anew: nothing fails" test $status = 0
says "its streams are not those of the old one" "length again"
says "commands in Lua work on it" "the smallest set that changes the answer: slot_order=file"
tap_like "what is nil at the end of a line's values is not shown" "$(printf '%s\n' "$out" | tail -n 1)" '^1$'

console <<'X'
=(function() local t = {} for i = 1, 60 do t[i] = i * 100 end return {list = t} end)()
X
tap_eq "many short values share lines" "$(printf '%s\n' "$out" | wc -l)" 8
tap_ok "of 100 columns" sh -c '! printf "%s\n" "$1" | grep -q "^.\{101\}"' - "$out"

console <<'X'
=nonsense(
X
says "a syntax error is one" "prompt:1:"
tap_ok "and ends a batch" test $status = 1
console <<'X'
=error("oh")
X
says "an error has its place" "prompt:1: oh"

console <<'X'
=rs.core.table("name|>n", {"first", "1", "second", "20"})
=rs.core.table("name|>n", {"first"})
X
says "rows stand in columns" "  second  20"
says "a table with a hole is refused" "1 cells make no table"

mkdir -p "$XDG_CONFIG_HOME/rankscope"
cat >"$XDG_CONFIG_HOME/rankscope/init.lua" <<'X'
rs.cmd.add("double", function(args) print("twice: " .. args .. args) end, "say it twice")
X
console <<'X'
/double ab
/help
/help double
=rs.cmd.add("mode", print)
X
says "init.lua adds a command" "twice: abab"
says "/help lists it" "say it twice"
tap_ok "and explains it" sh -c 'printf "%s\n" "$1" | grep -A 1 "^/double$" | grep -q "^say it twice$"' - "$out"
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
says "a claim holds while it is broken" "claim 1: holds (every step came out as stated)"
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

# Effects on the verdict and on speed, from a table whose speeds are made up: c doubles the speed, a and b together break the answer and lose half of it.
cat >"$TEST_SCRATCH/effects.lua" <<'X'
local r = {factors = {a = {"0", "1"}, b = {"0", "1"}, c = {"0", "1"}}, names = {"a", "b", "c"}, arms = {}, repeats = 3}
for i = 0, 7 do
  local a, b, c = i & 1, i >> 1 & 1, i >> 2
  local both = a == 1 and b == 1
  r.arms[#r.arms + 1] = {config = {a = tostring(a), b = tostring(b), c = tostring(c)}, right = not both, agreement = both and 0.25 or 1,
    tok_per_s = 100 * (c == 1 and 2 or 1) * (both and 0.5 or 1), spread = 2}
end
local e = rs.exp.effects(r)
for _, m in ipairs(e.main) do print(m.factor, ("%.3f %.3f %.3f"):format(m.right, m.agreement, m.speed)) end
for _, p in ipairs(e.pairs) do print(p.a .. p.b, ("%.3f %.3f %.3f"):format(p.right, p.agreement, p.speed)) end
r.effects = e
for _, s in ipairs(rs.exp.sentences(r)) do print(s) end
print(rs.exp.effects_text(r))
X
"$abs_builddir/rankscope" "$TEST_SCRATCH/effects.lua" >"$TEST_SCRATCH/out" 2>&1
# A tab is what print() puts between values.
said() { tap_ok "$1" sh -c 'tr "\t" " " <"$1" | grep -qF -- "$2" || { cat "$1"; false; }' - "$TEST_SCRATCH/out" "$2"; }
said "the main effect on verdict, agreement and speed" "a -0.500 -0.375 -0.250"
said "of what only speeds up" "c 0.000 0.000 1.000"
said "an interaction" "ab -1.000 -0.750 -0.500"
said "and none" "ac 0.000 0.000 0.000"
said "in words: the verdict" "a=1 breaks the answer only together with b=1"
said "in words: speed" "c=1 is 100 % faster (+- 1)"
said "in words: speed of two together" "a=1 and b=1 together are 50 % slower than each alone would make them"
said "as a table" "a=1 x b=1: right answers -100.0, agreement -75.0 points, speed -50.0 % beyond both alone"

# Tasks: they take turns where they wait; what one reads of the engine is not lost to the others.
cat >"$TEST_SCRATCH/tasks.lua" <<'X'
rs.model.open{ranks = 2}
local order = {}
local function worker(name)
  for i = 1, 3 do order[#order + 1] = name .. i; rs.sleep(0.01) end
  return name
end
local a, b = rs.spawn(worker, "a"), rs.spawn(worker, "b")
print("turns", a:wait(), b:wait(), table.concat(order, " "))
local france = rs.spawn(function() return rs.ask("What is the capital of France?").text end)
local sum = rs.spawn(function() return rs.ask("What is 2 + 2?").text end)
print("answers", sum:wait(), france:wait())
local n = 0
rs.on("token", function() rs.call("ping"); n = n + 1 end)
local tokens = rs.ask("Hello", {max_tokens = 4}).tokens
for _ = 1, 1000 do if n < tokens then rs.sleep(0.01) end end -- handlers go on beside this
print("handlers wait", tokens == n)
print("raised", pcall(function() rs.spawn(function() rs.sleep(0.01) error("oops") end):wait() end))
local c = rs.spawn(rs.sleep, 100)
c:cancel()
print("cancelled", pcall(c.wait, c))
local t = {3, 1, 2}
table.sort(t, function(x, y) rs.sleep(0.001) return x < y end)
print("in sort", table.concat(t), coroutine.wrap(function() rs.sleep(0.01) return "and a coroutine" end)())
rs.spawn(function() rs.sleep(0.1) print("last") end)
X
"$abs_builddir/rankscope" "$TEST_SCRATCH/tasks.lua" >"$TEST_SCRATCH/out" 2>&1
said "two scripts take turns" "turns a b a1 b1 a2 b2 a3 b3"
said "two answers at once" "answers 2 plus 2 is 4. The capital of France is Paris."
said "a handler may wait" "handlers wait true"
said "what a task raises" "tasks.lua:17: oops"
said "a task is cancelled" "cancelled false the task was cancelled"
said "where it cannot give way it waits all the same" "in sort 123 and a coroutine"
said "a task outlives the script" "last"
cat >"$TEST_SCRATCH/beside.lua" <<'X'
while not io.open("go") do rs.sleep(0.01) end
for i = 1, 3 do print("beside " .. i) rs.sleep(0.05) end
print(rs.ask("What is the capital of France?").text)
io.open("gone", "w"):close()
X
printf '/run %s &\n=6*7\n/lua io.open("go", "w"):close() while not io.open("gone") do rs.sleep(0.01) end print("slept")\n' "$TEST_SCRATCH/beside.lua" >"$TEST_SCRATCH/lines"
(cd "$TEST_SCRATCH" && "$abs_builddir/rankscope" --local <lines >out 2>&1)
said "a script beside the prompt" "The capital of France is Paris."
tap_ok "while others run" sh -c 'sed -n "/^42/,/^slept/p" "$1" | grep -q "beside 3"' - "$TEST_SCRATCH/out"

# Keys and panels of scripts, on screens without a terminal.
cat >"$XDG_CONFIG_HOME/rankscope/init.lua" <<'X'
rs.key.map("F5", function() print("F5 says " .. tostring(6 * 7)) end, {help = "say something"})
rs.key.map("F6", "/seed 7")
rs.panel.add("broken", {fn = function() error("no figures") end})
rs.on("done", function(e) print("it is done: " .. e.data.stop) end)
rs.spawn(function() while true do rs.next_event() end end)
local n = 0
rs.panel.add("mine", {title = "Mine", every_s = 0.1, fn = function() n = n + 1 rs.sleep(0.01) return "line of the script\nasked " .. (n > 1 and "again" or "once") end})
X
: >"$TEST_SCRATCH/script"
cat >"$TEST_SCRATCH/keys" <<X
key F5
wait-text F5 says 42
key F6
wait-text seed: 
text Hello
key Enter
wait-text it is done: eos
wait-idle
text /layout chat*2/mine/broken
key Enter
wait-text asked again
wait-text no figures
save-screen $TEST_SCRATCH/screen
X
RANKSCOPE_FAKE=$TEST_SCRATCH/script "$abs_builddir/tests/rankscope-fake" --no-think --screen 100x30 --keys "$TEST_SCRATCH/keys" >"$TEST_SCRATCH/out" 2>&1
tap_ok "the screen ends in order" test $? = 0
seen() { tap_ok "$1" sh -c 'grep -qF -- "$2" "$1" || { cat "$1"; false; }' - "$TEST_SCRATCH/screen" "$2"; }
seen "a key calls a function" "F5 says 42"
seen "a key types a command" "seed: "
seen "a panel with a title" "Mine"
seen "and a script's text" "line of the script"
seen "which is renewed" "asked again"
seen "one that fails says why" "no figures"
seen "a handler hears of an answer of the console" "it is done: eos"
rm "$XDG_CONFIG_HOME/rankscope/init.lua"

# What panels ask while a script reads from the same engine reaches them: they go on afterwards.
cat >"$TEST_SCRATCH/keys" <<X
text =(function() for i = 1, 300 do rs.call("stats") rs.sleep(0.005) end return "script " .. "over" end)()
key Enter
wait-text script over
text What is the capital of France?
key Enter
wait-text France is Paris.
wait-text decode graph
save-screen $TEST_SCRATCH/screen
X
"$abs_builddir/rankscope" --local --no-think --screen 120x40 --keys "$TEST_SCRATCH/keys" >"$TEST_SCRATCH/out" 2>&1
seen "panels go on after a script" "decode graph"

# Ctrl-C: a loop that swallows errors, a wait, an endless coroutine.
interrupt() { # NAME CODE
    rm -f "$TEST_SCRATCH/out" # the word of the one before is no sign
    "$abs_builddir/rankscope" -e "io.stdout:write('ready\n') io.stdout:flush() $2" >"$TEST_SCRATCH/out" 2>"$TEST_SCRATCH/err" &
    pid=$!
    n=0
    while ! grep -qs ready "$TEST_SCRATCH/out" && [ $n -lt 300 ]; do
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
interrupt "a task that loops" 'rs.spawn(function() while true do pcall(function() while true do end end) end end)'
interrupt "tasks that wait" 'for _ = 1, 3 do rs.spawn(function() while true do pcall(rs.sleep, 100) end end) end'
interrupt "waiting for an event" 'while true do pcall(rs.next_event, 100) end'
interrupt "what must be put back" 'rs.core.finally(function() while true do end end, function() local x = 0; for i = 1, 1e6 do x = x + i end; print("put back") end)'
tap_ok "it was put back" grep -q "put back" "$TEST_SCRATCH/out"

# Two at one engine: who is not in control is told so, and what to do.
"$abs_builddir/rankscope" engine -n two >"$TEST_SCRATCH/engine" 2>&1 &
engine=$!
n=0
until "$abs_builddir/rankscope" ps 2>/dev/null | grep -q two || [ $n -ge 300 ]; do
    sleep 0.1
    n=$((n + 1))
done
rm -f "$TEST_SCRATCH/holder"
"$abs_builddir/rankscope" -e 'rs.connect("two") rs.model.open{ranks = 2} print("held") io.flush() rs.sleep(60)' >"$TEST_SCRATCH/holder" 2>&1 &
holder=$!
n=0
until grep -qs held "$TEST_SCRATCH/holder" || [ $n -ge 300 ]; do
    sleep 0.1
    n=$((n + 1))
done
out=$("$abs_builddir/rankscope" stop two 2>&1)
says "an engine that is in use is not stopped" "/quit or /detach there first"
printf 'wait-text /control take\nsave-screen %s\n' "$TEST_SCRATCH/screen" >"$TEST_SCRATCH/keys"
"$abs_builddir/rankscope" attach two --layout chat --screen 140x40 --keys "$TEST_SCRATCH/keys" >"$TEST_SCRATCH/out" 2>&1
seen "a second console says that it only looks" "this console only looks"
kill $holder
wait $holder
kill $engine
wait $engine
tap_done
