# Shared by scripts/start and scripts/check: from a clean clone to a configured build directory. Sourced with $top set. Everything is said
# on stderr; each function returns non-zero after saying what failed.
# shellcheck shell=sh

unset MAKEFLAGS MFLAGS MAKELEVEL
jobs=$(nproc 2>/dev/null || echo 2)

# setup_help ARGUMENT...: prints the head of the script that calls it, and ends, if that is what is asked for.
setup_help() {
    case ${1-} in
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
}

# setup_step TEXT LOG COMMAND...: runs the command with its output in LOG; shows the end of that if it fails.
setup_step() {
    step_text=$1 step_log=$2
    shift 2
    echo "$step_text" >&2
    "$@" >"$step_log" 2>&1 </dev/null && return 0
    tail -n 30 "$step_log" >&2
    echo "failed: $step_text (all of it is in $step_log)" >&2
    return 1
}

# setup_build_dir DIR [CONFIGURE OPTION...]: packages have been seen to; make $top/DIR ready for make. A directory that is configured
# already stays as it is: make notices by itself what has changed since.
setup_build_dir() {
    build=$top/$1
    shift
    mkdir -p "$build" || return 1
    if [ ! -f "$top/configure" ] || [ ! -f "$top/Makefile.in" ]; then
        setup_step 'bootstrapping' "$build/autoreconf.log" autoreconf -fi "$top" || return 1
    fi
    if [ ! -f "$build/config.status" ] || [ ! -f "$build/Makefile" ]; then
        # In a subshell: configure works where it is started.
        # shellcheck disable=SC2016  # expanded by the inner shell
        setup_step "configuring $build" "$build/configure.log" \
            sh -c 'cd "$1" && configure=$2 && shift 2 && exec "$configure" "$@"' sh "$build" "$top/configure" "$@" || return 1
        # config.h comes out older than its stamp; make -q would call everything out of date for ever.
        touch "$build/config.h"
        sed -n '/LEFT OUT OF THIS BUILD/,/=====$/p' "$build/configure.log" >&2
    fi
}
