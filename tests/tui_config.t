#!/bin/sh
# The operator's file config: keys, a theme, an arrangement; what is wrong in it is told and stops nothing.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
config=$XDG_CONFIG_HOME/rankscope
mkdir -p "$config"
: >script
RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE

# shows OPTIONS: the screen after the steps of the file keys
shows() {
    rm -f screen
    # shellcheck disable=SC2086  # options are words
    "$prog" --no-think $1 --screen 100x30 --fake-time --keys keys >out 2>&1
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
shows ""
for line in '1: there is no key' "2: 'fly' is not one of" '3: usage: /bind' '4: there is no arrangement'; do
    tap_like "line $line" "$(cat out)" "config:$line"
done
tap_like "they stand in the chat, too" "$(cat screen)" "config:4: there is no arrangement"
printf 'key C-t\nsave-screen screen\n' >keys
shows ""
tap_ok "the line after them works" sh -c '! grep -q Ranks screen'
tap_done
