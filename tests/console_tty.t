#!/bin/sh
# The console at a terminal, on an engine that plays a script.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE_LOG=$TEST_SCRATCH/log RANKSCOPE_FAKE=$TEST_SCRATCH/script TERM=xterm INPUTRC=/dev/null
export RANKSCOPE_FAKE_LOG RANKSCOPE_FAKE TERM INPUTRC

# at NAME [ARGS...]: steps for tests/pty on stdin
at() {
    cat >steps
    name=$1
    shift
    rm -f log
    if "$abs_builddir/tests/pty" steps "$prog" --plain --local "$@" >screen 2>why; then
        tap_pass "$name"
    else
        tap_fail "$name"
        tap_diag "$(sed -n l why)"
    fi
}

: >script
at "a message, an answer, and Ctrl-D" <<'END'
expect /help lists the commands
expect > 
echo off
send Hello\r
expect (thinking)
expect Let
expect see.
expect (answer)
expect You said: Hello
expect > 
send \x04
exit 0
restored
END
tap_ok "the thought is dim" grep -q "$(printf '\033\\[2mLet')" screen
at "no colours with NO_COLOR, in words all the same" <<'END'
expect > 
send Hello\r
expect (thinking)
expect You said: Hello
expect > 
send \x04
exit 0
END
NO_COLOR=1 at "NO_COLOR: no colours" <<'END'
expect > 
send Hello\r
expect You said: Hello
expect > 
send \x04
exit 0
END
tap_ok "NO_COLOR: not one" sh -c "! grep -q \"\$(printf '\\033\\[[0-9]*m')\" screen"
TERM=dumb at "TERM=dumb" <<'END'
expect > 
send Hello\r
expect You said: Hello
expect > 
send /quit\r
exit 0
restored
END
tap_ok "TERM=dumb: no escape sequence at all" sh -c "! LC_ALL=C grep -q \"\$(printf '\\033')\" screen"

# An answer that stands still at its fifth word (three are the thought's) until it is let go.
printf 'gate 5 go\n' >script
at "Ctrl-C stops the answer, not the program" <<'END'
expect > 
send one two three four five six seven eight nine ten\r
expect You
echo off
send \x03
expect (stopped)
expect > 
absent ten
send /mode\r
expect mode: graph
expect > 
send \x04
exit 0
restored
END
printf 'gate 2 go\n' >script
at "typing ahead waits for the answer" --no-think <<'END'
expect > 
send one two three\r
expect You
send /mode\r
pause 50
absent /mode
run : >go
expect three
expect > /mode
expect mode: graph
expect > 
send \x04
exit 0
END
rm go
: >script
at "Ctrl-C at the prompt drops the line" <<'END'
expect > 
send half a line
expect half a line
send \x03
expect ^C
expect > 
send /mode\r
expect mode: graph
expect > 
send \x04
exit 0
END
tap_ok "and it was not said" sh -c '! grep -q half log'
at "Ctrl-D is nothing while there is text" <<'END'
expect > 
send /mode\x04\r
expect mode: graph
expect > 
send \x04
exit 0
END
at "an error does not end it" <<'END'
expect > 
send /foo\r
expect error: there is no command /foo
expect > 
send /quit\r
exit 0
END

at "SIGTERM at the prompt restores the terminal" <<'END'
expect > 
echo off
send some text
expect some text
kill 15
exit 143
restored
END
printf 'gate 5 go\n' >script
at "SIGTERM while an answer runs restores the terminal" <<'END'
expect > 
send one two three four five six seven eight nine ten\r
expect You
kill 15
exit 143
restored
END
: >script
at "Ctrl-Z at the prompt gives the terminal back until it goes on" <<'END'
expect > 
echo off
send half a
expect half a
send \x1a
echo on
restored
kill 18
echo off
expect half a
send  line\r
expect You said: half a line
expect > 
send \x04
exit 0
restored
END
at "SIGHUP ends it" <<'END'
expect > 
kill 1
exit 129
END
printf 'gate 5 go\n' >script
at "a terminal that is gone ends it" <<'END'
expect > 
send one two three four five six seven eight nine ten\r
expect You
hangup
exit 129
END
: >script
at "a crash restores the terminal" <<'END'
expect > 
echo off
kill 6
exit 134
restored
END

at "completion of commands" <<'END'
expect > 
send /allr\t\r
expect /allreduce
expect algbw
expect > 
send /mo\tea\t\r
expect mode: graph -> eager
expect > 
send /patch ml\tex\t\r
expect patch mla: absorbed -> expanded
expect > 
send /set gr\tof\t\r
expect graph.guard: on -> off
expect > 
send \x04
exit 0
END
cp "$abs_srcdir/models/tiny-glm5-q4.gguf" another.gguf
at "completion of files" <<'END'
expect > 
send /load anoth\t\r
expect -> another.gguf
expect > 
send \x04
exit 0
END

rm -f "$XDG_STATE_HOME/rankscope/history"
at "history" <<'END'
expect > 
send /mode\r
expect mode: graph
expect > 
send  /seed\r
expect seed: default
expect > 
send /mode\r
expect mode: graph
expect > 
send /temp\r
expect temp: 0
expect > 
send \e[A\e[A\r
expect mode: graph
expect > 
send \x04
exit 0
END
tap_eq "history: no repeats, nothing after a space" "$(cat "$XDG_STATE_HOME/rankscope/history")" "$(printf '/mode\n/temp\n/mode')"
tap_eq "history is the user's own" "$(stat -c %a "$XDG_STATE_HOME/rankscope/history")" 600
at "history is there the next time" <<'END'
expect > 
send \e[A\r
expect mode: graph
expect > 
send \x04
exit 0
END

at "a pasted text of several lines is one message" <<'END'
expect > 
send \e[200~one\ntwo\e[201~
pause 100
send \r
expect You said: one
expect two
expect > 
send \x04
exit 0
END
tap_like "as the engine sees it" "$(cat log)" '"text":"one\\ntwo","special":false'
at "a window that shrinks" <<'END'
expect > 
send a line that is longer than the window will be
expect will be
resize 20x10
pause 100
send  later\r
expect You said: a line that is longer than the window will be later
expect > 
send \x04
exit 0
END
printf 'answer \\x1b]0;title\\x07 and \\x1b[2J\n' >script
at "what the model says cannot drive the terminal" --no-think <<'END'
expect > 
send Hi\r
expect ^[]0;title^G and ^[[2J
expect > 
send \x04
exit 0
END
printf 'open-us 400000\n' >script
at "loading shows how far it is" <<'END'
expect loading 50 %, 500.0 kB of 1.0 MB, 5.0 MB/s
expect > 
send \x04
exit 0
END
printf 'lost 2 killed by signal 9\ntoken-us 1000\n' >script
at "the console outlives its engine" --no-think <<'END'
expect > 
send one two three four\r
expect the engine is gone: killed by signal 9
expect > 
send /mode\r
expect mode: graph
expect > 
send \x04
exit 3
restored
END
at "/restart starts another engine and asks again" --no-think --ranks 4 <<'END'
expect > 
send /mode eager\r
expect graph -> eager
expect > 
send one two three four\r
expect it was answering
expect /restart
expect > 
run : >script; : >log
send /restart\r
expect engine: started anew
expect You said: one two three four
expect > 
send five\r
expect You said: five
expect > 
send \x04
exit 0
END
tap_like "with what was set before" "$(cat log)" '^open .*"ranks":4,"mode":"eager"'
tap_like "and with what was said before" "$(grep '^submit' log | tail -1)" 'You said: one two three four'
tap_done
