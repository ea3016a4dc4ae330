#!/bin/sh
# Screens of the panels, without a terminal, on an engine that plays a script and in time that only passes where the steps say so: what is
# drawn, and what each cell means, as recorded in tests/golden-screens. GENERATE=1 records anew; look at the difference before committing.
#
# A scene is a file of steps (console/tui_script.c). Its comments say at which sizes, with which options, and what the engine does besides:
#   # sizes WxH...     # options --theme light     # script token-us 1000
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
golden=$abs_srcdir/tests/golden-screens
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE
unset COLORTERM

# of KEY FILE: the values of its comments "# KEY ..."
of() {
    sed -n "s/^# $1 //p" "$2"
}

for keys in "$golden"/*.keys; do
    scene=$(basename "$keys" .keys)
    { cat "$golden/engine.script"; of script "$keys"; } >script
    for size in $(of sizes "$keys"); do
        rm -rf screen "$XDG_STATE_HOME/rankscope"
        # shellcheck disable=SC2046  # options are words
        "$prog" --ranks 8 $(of options "$keys") --screen "$size" --fake-time --keys "$keys" >out 2>&1
        status=$?
        case $scene in lost) want=3 ;; *) want=0 ;; esac
        if [ "$status" != "$want" ] || [ ! -f screen ]; then
            tap_fail "$scene at $size ends with status $want"
            tap_diag "status $status: $(cat out)"
            continue
        fi
        [ -z "$GENERATE" ] || cp screen "$golden/$scene.$size.txt"
        tap_ok "$scene at $size" diff -u "$golden/$scene.$size.txt" screen
        # The same again, to be sure that nothing in it is chance.
        cp screen first
        rm -rf "$XDG_STATE_HOME/rankscope"
        # shellcheck disable=SC2046
        "$prog" --ranks 8 $(of options "$keys") --screen "$size" --fake-time --keys "$keys" >out 2>&1
        cmp -s first screen || {
            tap_fail "$scene at $size is the same twice"
            tap_diag "$(diff first screen)"
        }
    done
done
for file in "$golden"/*.txt; do
    name=$(basename "$file" .txt)
    [ -f "$golden/${name%.*}.keys" ] || tap_fail "$name has no scene any more"
done
tap_done
