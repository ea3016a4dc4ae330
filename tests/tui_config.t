#!/bin/sh
# The operator's file config: keys, a theme, an arrangement; what is wrong in it is told and stops nothing. And what is loaded can be given up.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
config=$XDG_CONFIG_HOME/rankscope
mkdir -p "$config"
: >script
RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE

# shows OPTIONS [SIZE]: the screen after the steps of the file keys
shows() {
    rm -f screen
    # shellcheck disable=SC2086  # options are words
    "$prog" --no-think $1 --screen "${2:-100x30}" --fake-time --keys keys >out 2>&1
    tap_eq "it starts and ends" "$?" 0
}

cat >"$config/config" <<'END'
# what I like
  layout chat*2/patches
bind F5 /seed 7
bind in patches x zoom

theme mono
END
printf 'key F5\nwait-idle\nkey Escape\nkey M-6\nkey x\nsave-screen screen\n' >keys
shows ""
tap_like "x zooms the panel of patches" "$(cat screen)" '^.*\[6 Patches\]'
tap_ok "alone" sh -c '! grep -q Chat screen'
printf 'key F5\nwait-idle\nsave-screen screen\n' >keys
shows ""
tap_like "F5 types a command" "$(cat screen)" '> /seed 7'
tap_like "which runs" "$(cat screen)" 'seed: .* -> 7'
tap_like "the arrangement is the file's" "$(cat screen)" '6 Patches'
shows "--layout chat"
tap_ok "an option counts more" sh -c '! grep -q Patches screen'

cat >"$config/config" <<'END'
bind F99 zoom
fly me
bind
layout nowhere
bind C-t zoom
END
printf 'wait 100\nsave-screen screen\n' >keys
shows "" 600x30 # the name of the file on one line, wherever the tests run
for line in '1: there is no key' "2: 'fly' is not one of" '3: usage: /bind' '4: there is no arrangement'; do
    tap_like "line $line" "$(cat out)" "config:$line"
done
tap_like "they stand in the chat, too" "$(cat screen)" "config:4: there is no arrangement"
printf 'key C-t\nsave-screen screen\n' >keys
shows ""
tap_ok "the line after them works" sh -c '! grep -q Ranks screen'

# Loading shows how far it is and can be given up.
rm "$config/config"
echo 'open-us 4000000' >script

printf 'text /load %s/models/tiny-glm5-q4.gguf\nkey Enter\nwait-text 25 %%\nsave-screen loading\nkey Escape\nwait-text was cancelled\nwait-idle\nsave-screen screen\n' "$abs_srcdir" >keys
rm -f screen
"$prog" --no-think --screen 100x30 --keys keys >out 2>&1
tap_eq "it starts and ends" "$? $(cat out)" "0 "
tap_like "how much, how fast, how long" "$(cat loading)" '25 %, 250.0 kB of 1.0 MB, 5.0 MB/s, 3 s left, Escape gives up'
tap_like "Escape gives it up" "$(cat screen)" 'asked the engine to give the loading up'
tap_like "the engine says so" "$(cat screen)" 'error: loading was cancelled'
tap_like "the model before is there" "$(cat screen)" '^ Tiny GLM-5'
tap_done
