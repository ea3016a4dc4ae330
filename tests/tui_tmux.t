#!/bin/sh
# The panels at a real terminal: tmux plays it. First on the engine that plays a script, then the story's switch on the real one.
# shellcheck disable=SC2016,SC2094  # expanded by the inner shell
. "${abs_srcdir:?}/tests/tap.sh"

command -v tmux >/dev/null || tap_skip_all "tmux is not here"
fake=$abs_builddir/tests/rankscope-fake
real=$abs_builddir/rankscope
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE=$TEST_SCRATCH/script RANKSCOPE_FAKE_LOG=$TEST_SCRATCH/log INPUTRC=/dev/null TMUX_TMPDIR=$TEST_SCRATCH
export RANKSCOPE_FAKE RANKSCOPE_FAKE_LOG INPUTRC TMUX_TMPDIR
unset TMUX

# Each terminal has a server of its own: one that is ending cannot take the next one with it.
n_servers=0
tm() {
    tmux -u -S "$TEST_SCRATCH/tm$n_servers" -f /dev/null "$@" 2>>tm.err
}
trap 'for s in "$TEST_SCRATCH"/tm[0-9]*; do tmux -S "$s" kill-server; done 2>>tm.err' EXIT

# run WxH COMMAND: in a new terminal, with what "stty -g" says before and after in files, and the exit status
run() {
    tm kill-server
    n_servers=$((n_servers + 1))
    rm -f before after status
    tm new-session -d -x "${1%x*}" -y "${1#*x}" \
        "stty -g >before; TERM=tmux-256color $2; echo \$? >status; stty -g >after; tput cnorm; cat; sleep 60"
}

# The process that the terminal's shell waits for.
child() {
    cat "/proc/$(tm display-message -p '#{pane_pid}')/task/"*/children | cut -d' ' -f1
}

screen() {
    tm capture-pane -p
}

# Every wait below is for something that comes, with a bound far above what a loaded machine needs: 300 looks, 0.1 s apart.
#
# sees NAME PATTERN: the screen comes to match
sees() {
    tries=0
    while [ $tries -lt 300 ]; do
        if screen | grep -Eq -e "$2"; then
            tap_pass "$1"
            return
        fi
        tm has-session || break
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_fail "$1"
    tap_diag "no match for $2 on:"
    tap_diag "$(screen)"
    return 1
}

# lacks NAME PATTERN: the screen comes not to match
lacks() {
    tries=0
    while screen | grep -Eq -e "$2" && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_ok "$1" sh -c '! echo "$1" | grep -Eq -e "$2"' sh "$(screen)" "$2"
}

# terminal NAME FORMAT WANTED: what tmux says of the terminal comes to be that
terminal() {
    tries=0
    while [ "$(tm display-message -p "$2")" != "$3" ] && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_eq "$1" "$(tm display-message -p "$2")" "$3"
}

ends() {
    tries=0
    while [ ! -s after ] && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_eq "$1: status" "$(cat status)" "$2"
    tap_eq "$1: the terminal is as before" "$(cat after)" "$(cat before)"
    terminal "$1: the full-screen display is left" '#{alternate_on}' 0
}

: >script
run 80x24 "$fake --local --no-think --ranks 8"
sees "it starts with panels" '\[Input\]'
tm send-keys Hello Enter
sees "a message is answered" 'You said: Hello'
sees "eight ranks are in sight" '^ *7 .*N/A'
tm send-keys 'half a line'
sees "typed" '> half a line'
tm send-keys F12
sees "F12: the plain console, with the text" '^> half a line'
lacks "and without panels" Input
sees "what was said is there" '^You said: Hello'
tm send-keys F12
sees "F12: panels again" '\[Input\]'
sees "with the text" '^> half a line'
tm send-keys C-x C-a
sees "Ctrl-X Ctrl-A does the same" '^You said: Hello'
tm send-keys ' more'
tm send-keys C-x C-a
sees "and what is typed there comes back" '^> half a line more'
tm send-keys C-c
tm send-keys Escape
sees "Escape leads to a panel" '\[1 Chat\]'
tm send-keys z
sees "z: that panel alone" '\[1 Chat\]'
lacks "no other is there" Ranks
tm send-keys z
sees "and back" '2 Ranks'
tm send-keys '?'
sees "help" 'Keys'
tm send-keys Escape
tm send-keys Escape
sees "back at the input" '\[Input\]'
tm resize-window -x 59 -y 14
sees "a terminal too small says so" 'have 59x14, need 60x15'
tm resize-window -x 80 -y 24
sees "and recovers" '\[Input\]'
tm send-keys C-d
ends "Ctrl-D" 0
sees "the answer stays in the terminal's own text" 'You said: Hello'

# What the model and libraries print.
cat >script <<'END'
answer \x1b]2;owned\x07 \x1b[?1049l \x1b[31m \x9b2J end of it
print NCCL INFO ring 0 \x1b[2J\n
END
run 120x40 "$fake --local --no-think --ranks 8"
sees "started" '\[Input\]'
tm send-keys Hi Enter
sees "an answer with escape sequences" '\^\[\]2;owned\^G \^\[\[\?1049l .* end of it'
sees "what a library prints is in the log" 'NCCL INFO ring 0 \^\[\[2J'
tap_ok "the title is not the model's" test "$(tm display-message -p '#{pane_title}')" != owned
terminal "the display is still ours" '#{alternate_on}' 1
terminal "the cursor is at the input" '#{cursor_y} #{cursor_x}' "36 2"
tm send-keys -l 'x'
kill -TERM "$(child)"
ends "SIGTERM" 143

# A crash, which a sanitizer is to leave to the program, and a stop.
: >script
run 80x24 "env ASAN_OPTIONS=${ASAN_OPTIONS-}:handle_segv=0 $fake --local"
sees "started" '\[Input\]'
kill -SEGV "$(child)"
ends "a crash" 139
run 80x24 'env PS1=ready: HISTFILE= sh -i'
sees "a shell" 'ready:'
tm send-keys "$fake --local --no-think" Enter
sees "started from it" '\[Input\]'
tm send-keys 'before '
sees "typed" '> before'
tm send-keys C-z
sees "Ctrl-Z: the shell is back" '^ready: *$'
terminal "with the display it had" '#{alternate_on}' 0
tm send-keys fg Enter
sees "fg: panels again, with the text" '^> before'
tm send-keys after Enter
sees "which go on" 'You said: before after'

# From panels to the plain console and back while an answer is on its way. It stands still where something is done meanwhile.
{
    awk 'BEGIN { printf "answer "; for (i = 0; i < 60; i++) printf "word%d \\n", i; print "theend" }'
    printf 'token-us 2000\ngate 5 go1\ngate 20 go2\ngate 40 go3\n'
} >script
run 100x30 "$fake --local --no-think"
sees "started" '\[Input\]'
tm send-keys go Enter
sees "it answers" '^word4 '
tm send-keys F12
lacks "F12 leads to the plain console" Input
terminal "which has the terminal" '#{alternate_on}' 0
sees "what was said stands there" '^> go'
: >go1
sees "and the answer goes on" '^word19 *$'
tm send-keys 'typed ahead'
tm send-keys F12
sees "F12: panels, with what was typed meanwhile" '^> typed ahead'
sees "panels they are" '\[Input\]'
: >go2
sees "where the answer goes on" '^word39 '
tm send-keys F12
lacks "and once more" Input
: >go3
sees "its end in the plain console" '^theend'
sees "before a prompt, with the text" '^> typed ahead'
tm send-keys F12
sees "panels" '\[Input\]'
sees "with the whole answer" 'theend'
lacks "which has ended" 'answering'
kill -STOP "$(child)"
tm send-keys C-c
tm send-keys C-d
kill -CONT "$(child)"
ends "Ctrl-C empties the line before Ctrl-D comes, however fast" 0

# The same, begun at the plain prompt, and stopped in the panels.
rm go1
run 100x30 "$fake --local --no-think --plain"
sees "a plain console" '^>'
tm send-keys go Enter
sees "it answers" '^word4 *$'
tm send-keys C-x C-a
sees "panels while it answers" 'answering'
sees "with the question" '^> go'
tm send-keys C-c
sees "Ctrl-C stops it" '\(stopped\)'
tm send-keys again
sees "the panels stay" '^> again'
tm send-keys F12
lacks "F12: no panels" Input
sees "and the plain console is there" '^> again$'
tm send-keys C-c
tm send-keys C-d
ends "Ctrl-D" 0

# Choosing a part and copying it; the terminal's clipboard is tmux's buffer here.
printf 'answer first line\\nsecond line of it\\nthird\n' >script
run 100x30 "$fake --local --no-think"
tm set -s set-clipboard on
sees "started" '\[Input\]'
tm send-keys go Enter
sees "an answer" '^third'
tm send-keys Escape
sees "in Chat" '\[1 Chat\]'
tm send-keys v
sees "v: choosing" ' select '
tm send-keys /
tm send-keys -l second
tm send-keys Enter
tm send-keys w Space
sees "a part begins" ' selecting '
tm send-keys w w Enter
lacks "it is taken" ' selecting '
clip() {
    tries=0
    while [ "$(tm show-buffer)" != "$2" ] && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_eq "$1" "$(tm show-buffer)" "$2"
}
clip "and on the clipboard" 'line of i'
tm send-keys y
clip "y: the whole answer" 'first line
second line of it
third'
tm send-keys Escape
sees "back at the input" '\[Input\]'
tm send-keys '/copy selection part' Enter
sees "/copy to a file" 'copy: 9 bytes to part'
tap_eq "has the part" "$(cat part)" 'line of i'
tm send-keys '/copy 2' Enter
sees "an answer that there is not" 'there are not so many answers'

# The mouse belongs to the terminal unless it is asked for.
terminal "no mouse" '#{mouse_any_flag}' 0
tm send-keys '/set mouse on' Enter
sees "asked for" 'mouse: off -> on'
terminal "a mouse" '#{mouse_any_flag}' 1
printf '\033[<0;5;20M' >click
tm load-buffer click
tm paste-buffer
sees "a click focuses the panel under it" '\[2 Ranks\]'
tm send-keys F12
lacks "the plain console" '2 Ranks'
terminal "leaves it to the terminal" '#{mouse_any_flag}' 0
tm send-keys F12
sees "panels" '2 Ranks'
tm send-keys Escape
sees "back at the input" '\[Input\]'
tm send-keys '/set mouse off' Enter
sees "off again" 'mouse: on -> off'
terminal "no mouse any more" '#{mouse_any_flag}' 0

# Many sizes while an answer runs.
awk 'BEGIN { printf "answer "; for (i = 0; i < 100; i++) printf "word%d ", i; print "theend" }' >script
echo 'token-us 40000' >>script
run 100x30 "$fake --local --no-think --ranks 8"
sees "started" '\[Input\]'
tm send-keys go Enter
sees "it answers" 'word1'
i=0
while [ $i -lt 50 ]; do
    i=$((i + 1))
    tm resize-window -x $((30 + i * 37 % 170)) -y $((5 + i * 23 % 55))
    sleep 0.04
done
tm resize-window -x 100 -y 30
sees "50 sizes during an answer: its end" 'theend'
sees "and the panels" '\[Input\]'
tap_eq "in the present size" "$(screen | wc -l)" 30

# A long paste.
: >script
: >log
run 100x30 "$fake --local --no-think --ranks 8"
sees "started" '\[Input\]'
awk 'BEGIN { for (i = 0; i < 500; i++) printf "%s%08d", i % 10 ? " " : "\n", i }' | tail -c +2 | head -c 5000 | tr -d '\000' >pasted
tm load-buffer pasted
tm paste-buffer -p
sees "a paste of 5,000 characters" '0000049'
tm send-keys Enter
sees "is one message" '^00000110 00000111 00000 *(│|──)'
want=$(tr '\n' '_' <pasted)
got=$(grep '^submit' log | tail -1 | sed 's/.*"text":"\(00000000[^"]*\)".*/\1/; s/\\n/_/g')
tap_eq "and all of it came" "$got" "$want"
tm send-keys C-d
ends "Ctrl-D" 0

# Colours and characters.
run 80x24 "env NO_COLOR=1 $fake --local --no-think"
sees "NO_COLOR: started" '\[Input\]'
tap_ok "NO_COLOR: no colour at all" sh -c '! tmux -S "$1" capture-pane -pe | grep -Eq "$(printf "\033")\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[;m]"' sh "$TEST_SCRATCH/tm$n_servers"
run 80x24 "$fake --local --no-think"
sees "started" '\[Input\]'
tap_ok "colours otherwise" sh -c 'tmux -S "$1" capture-pane -pe | grep -Eq "$(printf "\033")\[[0-9;]*38"' sh "$TEST_SCRATCH/tm$n_servers"
run 80x24 "env LC_ALL=C $fake --local --no-think"
sees "LC_ALL=C: started" '\[Input\]'
tap_ok "LC_ALL=C: ASCII only" sh -c '! tmux -S "$1" capture-pane -p | LC_ALL=C grep -q "[^ -~]"' sh "$TEST_SCRATCH/tm$n_servers"
tap_like "with lines of ASCII" "$(screen)" '^-- 1 Chat ------'
run 80x24 "env TERM=dumb $fake --local --no-think"
sees "TERM=dumb: a plain console" '^>'
lacks "without panels" Input

# The story on the real engine: file order into the running model, garbage, and back, each within one answer.
ask() {
    tm send-keys "$1" Enter
}
run 120x40 "$real --local --no-think --max 60 --layout patch"
sees "the real engine" '\[Input\]'
ask 'Write a short story.'
sees "an answer" 'One Saturday'
sees "judged right" 'output ok'
tm send-keys M-6
sees "its patches" '\[6 Patches\]'
sees "slot_order" '\[slot\]>file<'
tm send-keys Enter
sees "file order is in" '\[file\]'
tm send-keys Escape
sees "back at the input" '\[Input\]'
ask /new
ask 'Write a short story.'
sees "the next answer is garbage" 'GARBAGE!'
tm send-keys M-6
sees "patches again" '\[6 Patches\]'
tm send-keys r
sees "reverted" '\[slot\]'
tm send-keys Escape
sees "back at the input" '\[Input\]'
ask /new
ask 'Write a short story.'
sees "the next answer is right" 'output ok'
tm send-keys C-d
ends "Ctrl-D" 0

# Leave an engine in the middle of an answer, come back to it from another terminal, and look on from a third.
# The delay keeps the answer long enough to be left in on a fast machine.
run 100x30 "$real --no-think --ignore-eos --max 300 --workers 1 --patch delay=0:600"
sees "an engine of its own" '\[Input\]'
ask 'Write a long story.'
sees "an answer begins" 'answering'
tm kill-session
tries=0
until "$real" ps 2>/dev/null | grep -q tiny || [ $tries -gt 300 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
run 100x30 "$real attach"
sees "attach: the panels" '\[Input\]'
sees "attach: the answer went on by itself" '\(cut after 300 tokens\)'
tm send-keys PageUp
sees "attach: the question" '> Write a long story'
first=$n_servers
"$real" top --once >top 2>&1
tap_like "top beside it prints the ranks" "$(cat top)" '^│ *rank '
tap_like "and says that it only looks" "$(cat top)" 'only looking'
for key in q C-c C-d; do
    n_servers=$((n_servers + 1))
    rm -f left
    tm new-session -d -x 100 -y 30 "TERM=tmux-256color $real top; echo \$? >left; sleep 60"
    sees "top at a terminal" 'only looking'
    sees "with figures" '^│? *7 .*%'
    tm send-keys Escape
    sees "it has no line of input" 'q leaves it'
    tm send-keys $key
    tries=0
    while [ ! -s left ] && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tap_eq "$key leaves it" "$(cat left)" 0
    tm kill-server
done
second=$((n_servers + 1))
n_servers=$first

# Another console looks until this one leaves; then it is in control, and has what was said meanwhile.
n_servers=$second
tm new-session -d -x 100 -y 30 "TERM=tmux-256color $real attach --layout chat"
sees "a second console says that it only looks" 'only looks'
sees "so does its status line" 'only looking'
ask '/set spec=off'
sees "it is told who may" 'another client \(console\) is in control'
n_servers=$first
ask 'What is the capital of France?'
sees "the first one goes on" 'The capital of France is Paris'
lacks "its answer ends" 'answering'
tm send-keys C-d
ends "leaving" 0
n_servers=$second
sees "the second one is in control then" 'is in control of the engine now'
sees "and has what was said" 'The capital of France is Paris'
lacks "its status line too" 'only looking'
ask 'What is the capital of Italy?'
sees "it goes on with the conversation" 'Rome'
lacks "with a whole answer" 'answering'
tm send-keys C-d
"$real" stop >/dev/null 2>&1
tap_done
