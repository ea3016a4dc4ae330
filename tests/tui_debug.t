#!/bin/sh
# Breakpoints, taps and single steps by keys of the panels, on the real engine and without a terminal.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/rankscope
cd "$TEST_SCRATCH" || exit 1

# plays OPTIONS <STEPS
plays() {
    cat >keys
    # shellcheck disable=SC2086  # options are words
    "$prog" --local --no-think --max 6 --layout ops --keys keys $1 >out 2>&1
    tap_eq "the steps run" "$? $(cat out)" "0 "
}

# has NAME FILE PATTERN
has() {
    tap_like "$1" "$(cat "$2")" "$3"
}

plays "--screen 110x40" <<'END'
text Hi
key Enter
wait-idle
key M-5
wait-text in program order
key j j j j j b
wait-text EAGER (armed)
wait-text B  blk.0.attn.q_b
key j t
wait-text  T blk.0.attn.q_rope
save-screen armed
key Escape
text Tell me
key Enter
wait-text HELD at blk.0.attn.q_b
save-screen held
key M-5 Enter
wait-text out q  
save-screen opened
key s
wait-text HELD at blk.0.attn.q_rope
wait-text ─ blk.0.attn.q_rope ─
save-screen stepped
key n
wait-text HELD at blk.1.attn.norm
key Escape
save-screen next
key k k k k k k k k k k k k k b
wait-text no breakpoint at blk.0.attn.q_b
key c
wait-idle
wait-text GRAPH
save-screen done
key F5
wait-text the engine is not stopped
END
has "the breakpoint is marked" armed '^│B  blk.0.attn.q_b '
has "and the tap" armed '^│ T blk.0.attn.q_rope '
has "where it holds is marked" held '^│>  blk.0.attn.q_b '
has "the keys to go on are named" held 'F7 one op, F6 next layer, F5 on'
has "the op shows what it reads" opened 'in qr  *[0-9]'
has "and what it writes" opened 'out q  *[0-9]'
has "with values" opened 'begins -*[0-9.]* -*[0-9.]*'
has "s steps, and the window follows" stepped '─ blk.0.attn.q_rope ─'
has "n goes to the next layer" next '^│>  blk.1.attn.norm'
has "c runs to the end" done 'GRAPH'
tap_ok "nothing holds any more" sh -c 'test -s done && ! grep -q HELD done'

plays "--screen 80x24" <<'END'
text Hi
key Enter
wait-idle
text /tap blk.*.attn.out
key Enter
wait-idle
text /break blk.1.attn.* after
key Enter
wait-idle
key M-5
wait-text armed
key End Home j j j j j j j j j
wait-text  T blk.0.attn.out
key t
wait-text covers other ops too: /untap
key End
wait 300
key Home
text /
text blk.1.attn.norm
key Enter
wait-text B  blk.1.attn.norm
key b
wait-text covers other ops too: /break del
END
# Ctrl-C has no step to interrupt: it says so, and the answer ends with the step.
"$prog" --local --no-think --layout desk --screen 110x40 --keys /dev/stdin >out 2>&1 <<'END'
text /break blk.0.attn.q_b
key Enter
text Tell me
key Enter
wait-text HELD at blk.0.attn.q_b
wait-idle
key C-c
wait-text the answer ends
save-screen interrupted
text /break del
key Enter
text /continue
key Enter
wait-text (stopped)
wait-idle
save-screen done
END
tap_eq "Ctrl-C while it is held: the steps run" "$? $(cat out)" "0 "
has "it says where" interrupted 'the engine is stopped at blk.0.attn.q_b'
tap_ok "and then nothing holds it" sh -c 'test -s done && ! grep -q HELD done'

# While an answer comes the context grows, and the verdict on the one before is not shown as if it were its own.
"$prog" --local --no-think --layout desk --screen 140x40 --keys /dev/stdin >out 2>&1 <<'END'
text What is 2 + 2?
key Enter
wait-text output ok
wait-idle
text =rs.brk.add("output.norm", {cond = "step > 30"})
key Enter
text /patch set slot_order=file
key Enter
text /think on
key Enter
text What is the capital of France?
key Enter
wait-text HELD at output.norm
save-screen answering
text /break del
key Enter
wait-text 1 taken away
wait-idle
key C-c
wait-text the answer ends
text /continue
key Enter
wait-text (stopped)
wait-idle
END
tap_eq "an answer that is on its way: the steps run" "$? $(cat out)" "0 "
has "its context is counted" answering ' ctx [1-9][0-9]*/2048'
tap_ok "no verdict stands there yet" sh -c 'test -s answering && ! grep -q "output ok" answering'
tap_done
