#!/bin/sh
# The panels under random keys, under output of a model that could be anything, and under load. Without a terminal, on the fake engine.
# RANKSCOPE_LONG=1: a megabyte of each, a minute of load, and how soon keys are seen: a machine that does nothing else is asked for then.
. "${abs_srcdir:?}/tests/tap.sh"

prog=$abs_builddir/tests/rankscope-fake
cd "$TEST_SCRATCH" || exit 1
RANKSCOPE_FAKE=$TEST_SCRATCH/script
export RANKSCOPE_FAKE
# readline loses a little when searches and key sequences are broken off; a sanitizer build is here for ours.
echo 'leak:libreadline' >suppressions
LSAN_OPTIONS=suppressions=$TEST_SCRATCH/suppressions:print_suppressions=0
export LSAN_OPTIONS
if [ -n "$RANKSCOPE_LONG" ]; then
    bytes=50000 rounds=20 words=120000 seconds=60
else
    bytes=10000 rounds=6 words=6000 seconds=3
fi

# panels SIZE [OPTIONS...]: run the steps in the file "keys"
panels() {
    size=$1
    shift
    timeout 300 "$prog" --ranks 8 --screen "$size" --keys keys "$@" >out 2>&1
    status=$?
    [ "$status" = 0 ] || tap_diag "status $status: $(tail -30 out)"
    return $status
}

# harmless FILE: whether a saved screen holds no control character but newlines (C1 is two bytes in UTF-8)
harmless() {
    ! LC_ALL=C tr -d '\n' <"$1" | LC_ALL=C grep -q "$(printf '[\001-\037\177]\\|\302[\200-\237]')"
}

printf 'live 20\ntoken-us 200\n' >script
round=0
while [ $round -lt $rounds ]; do
    round=$((round + 1))
    size=$((60 + round * 17 % 200))x$((15 + round * 7 % 60))
    {
        n=0
        while [ $n -lt 10 ]; do
            n=$((n + 1))
            echo "random $((round * 100 + n)) $((bytes / 10))"
            echo "resize $((10 + (round * 31 + n * 47) % 220))x$((2 + (round * 13 + n * 29) % 70))"
            echo "wait 20"
        done
        echo "resize $size"
        echo "key C-c C-c"
        echo "save-screen screen"
    } >keys
    panels "$size"
    tap_eq "$bytes random bytes typed, seed $round" "$?" 0
    harmless screen || tap_fail "no control character on the screen, seed $round"
done

# Anything as an answer: every byte, pieces of escape sequences, characters cut in two.
awk -v n="$bytes" 'BEGIN {
    srand(4); split("\\x1b[2J \\x1b]0;owned\\x07 \\x1bP \\x9b31m \\xc2\\x9b2J \\xe2\\x80\\xae \\x1b[?1049l \\xf0\\x9f \\x0d \\x08\\x08 \\x0e \\xff\\xfe 日本 word", part, " ")
    printf "answer "
    for (i = 0; i < n; i++) {
        if (rand() < 0.3) printf "%s", part[1 + int(rand() * 14)]
        else if (rand() < 0.3) printf "\\x%02x", 1 + int(rand() * 255)
        else printf "%c", 97 + int(rand() * 26)
        if (rand() < 0.05) printf " "
        if (rand() < 0.01) printf "\\n"
    }
    print ""
}' >script
cat >keys <<'END'
text go
key Enter
wait-idle
save-screen end
key PageUp PageUp
save-screen up
key Escape g
resize 60x15
save-screen top
END
panels 100x30 --no-think
tap_eq "an answer of anything" "$?" 0
for screen in end up top; do
    tap_ok "which cannot reach the terminal ($screen)" harmless $screen
done
awk -v n="$bytes" 'BEGIN { printf "answer "; for (i = 0; i < n * 5; i++) printf "%c", 97 + i % 26; print "" }' >script
panels 100x30 --no-think
tap_eq "one word of $((bytes * 5)) letters" "$?" 0

# 2,000 tokens a second while somebody types and scrolls.
awk -v n="$words" 'BEGIN { printf "answer "; for (i = 0; i < n; i++) printf "w%d%s", i, i % 12 == 11 ? "\\n " : " "; print "theend" }' >script
printf 'token-us 500\nlive 20\n' >>script
{
    printf 'text go\nkey Enter\nwait 500\nsave-times first\n'
    i=0
    while [ $i -lt $((seconds * 10)) ]; do
        printf 'text x\nwait 80\n'
        [ $((i % 10)) != 5 ] || printf 'key PageUp PageDown\n'
        [ $((i % 25)) != 7 ] || printf 'resize %dx%d\n' $((80 + i % 100)) $((24 + i % 30))
        i=$((i + 1))
    done
    printf 'wait-idle\nkey C-c\nwait-text theend\nsave-times last\n'
    printf 'key C-u\ntext /copy %s/copied\nkey Enter\nwait-idle\n' "$TEST_SCRATCH"
} >keys
panels 120x40 --no-think
tap_eq "2,000 tokens a second for $((words / 2000)) s" "$?" 0
tap_eq "no token was lost, and none came twice" "$(tr -s ' \n' '\n\n' <copied | grep '^w' | md5sum)" \
    "$(awk -v n="$words" 'BEGIN { for (i = 0; i < n; i++) print "w" i }' | md5sum)"
value() {
    sed -n "s/^$1 \([0-9]*\).*/\1/p" "$2"
}
tap_diag "$(tr '\n' ' ' <last)"
if [ -n "$RANKSCOPE_LONG" ]; then
    tap_ok "keys are seen within 50 ms (99 of 100)" test "$(value p99_ms last)" -lt 50
fi
tap_ok "most keys were typed" test "$(value keys last)" -ge $((seconds * 5))
tap_ok "at most 30 frames a second" test "$(value frames last)" -le $(($(value ms last) * 30 / 1000 + 2))
tap_ok "memory stays" test $(($(value rss_kb last) - $(value rss_kb first))) -lt 60000
tap_done
