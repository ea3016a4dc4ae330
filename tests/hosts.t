#!/bin/sh
# Several hosts from the command line, all of them this machine: engine processes that the console starts one by one, and by an MPI launcher.
. "${abs_srcdir:?}/tests/tap.sh"

rs=$abs_builddir/rankscope
model=$abs_srcdir/models/tiny-glm5-q4.gguf

# ask OPTION...: an answer of 4 ranks.
ask() {
    timeout 100 "$rs" chat -m "$model" --ranks 4 --workers 2 -p 'Tell me a story about a cat.' --max 60 "$@" 2>"$TEST_SCRATCH/err"
}

want=$(ask)
tap_like 'one process answers' "$want" '[a-z]'
got=$(ask --hosts localhost,localhost --launch 'env HOST={host} {command}')
tap_eq 'two processes answer as one does' "$got" "$want"

# An engine that outlives its console, as the console starts it.
got=$(printf '/info\n/quit\n' | timeout 100 "$rs" -m "$model" --ranks 2 --hosts localhost,localhost --launch 'env HOST={host} {command}' 2>&1)
tap_like 'the console opens a model on two hosts' "$got" '(^| )2 ranks|ranks +2'

ask --hosts localhost,nowhere --launch 'false {host} {command}' >/dev/null
tap_like 'a host that cannot start is named' "$(cat "$TEST_SCRATCH/err")" 'host nowhere'

if ! grep -q '^#define HAVE_MPI 1' "$abs_builddir/config.h"; then
    tap_skip 'an MPI launcher: this build has no MPI'
elif ! command -v mpirun >/dev/null 2>&1; then
    tap_skip 'an MPI launcher: mpirun is not here'
else
    # Test machines run as root in containers, with fewer cores than processes, without ssh, and may not read another process's memory.
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    OMPI_MCA_plm=isolated OMPI_MCA_btl_vader_single_copy_mechanism=none
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_mpi_yield_when_idle OMPI_MCA_plm OMPI_MCA_btl_vader_single_copy_mechanism
    got=$(ask --launch 'mpirun --oversubscribe -n 3')
    tap_eq 'three processes of an MPI launcher answer as one does' "$got" "$want"
    ask --launch 'mpirun --no-such-option -n 2' >/dev/null
    tap_like 'a launcher that fails ends the command with its words' "$(cat "$TEST_SCRATCH/err")" 'the engine did not start: .'
    # The launcher ends a moment after the engine has answered that it will.
    tries=0
    while left=$(ps -e -o args= | grep "[e]ngine .*$TEST_SCRATCH" || ps -p $$ >/dev/null || echo '(ps does not work)') &&
        [ -n "$left" ] && [ "$tries" -lt 120 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    tap_eq 'no process is left' "$left" ''
fi

tap_done
