# tests: TAP programs in C (tests/*_test.c) and in shell (tests/*.t), run by `make check`.

# C tests. Each is one source file: add its name here, sorted, and NAME_SOURCES below only if it needs more than NAME.c.
c_tests = \
	tests/alloc_test \
	tests/attn_test \
	tests/console_test \
	tests/diff_test \
	tests/drill_test \
	tests/error_test \
	tests/gguf_mutate \
	tests/gguf_test \
	tests/golden_test \
	tests/guard_test \
	tests/health_test \
	tests/invariance_test \
	tests/kv_test \
	tests/hosts_test \
	tests/look_test \
	tests/kill_test \
	tests/load_watch_test \
	tests/make_test \
	tests/matmul_test \
	tests/msg_mutate \
	tests/pool_test \
	tests/probe_test \
	tests/quant_test \
	tests/reads_test \
	tests/replay_test \
	tests/requests_test \
	tests/sample_test \
	tests/sched_test \
	tests/soak_test \
	tests/spec_test \
	tests/shadow_test \
	tests/stage_test \
	tests/swap_test \
	tests/template_test \
	tests/tui_bind_test \
	tests/tui_copy_test \
	tests/tui_test \
	tests/timing_test \
	tests/variants_test \
	tests/vocab_file_test \
	tests/vocab_pre_test \
	tests/vocab_test \
	tests/weights_test

# The CUDA backend; skipped where there is no device. Its speed: tests/cuda_bench (see docs/measurements.md).
cuda_rig = tests/cuda_rig.c tests/cuda_rig.h
EXTRA_DIST += tests/cuda_allreduce.c tests/cuda_bench.c tests/cuda_engine.c tests/cuda_hosts.c tests/cuda_test.c tests/cuda_timing.c $(cuda_rig)
if HAVE_CUDA
c_tests += tests/cuda_engine tests/cuda_hosts tests/cuda_test tests/cuda_timing
check_PROGRAMS += tests/cuda_bench
tests_cuda_engine_SOURCES = tests/cuda_engine.c tests/engine_client.c tests/engine_client.h
tests_cuda_hosts_SOURCES = tests/cuda_hosts.c tests/hosts_rig.c tests/hosts_rig.h tests/engine_client.c tests/engine_client.h
tests_cuda_test_SOURCES = tests/cuda_test.c $(cuda_rig)
tests_cuda_timing_SOURCES = tests/cuda_timing.c $(cuda_rig)
tests_cuda_bench_SOURCES = tests/cuda_bench.c $(cuda_rig)
if HAVE_NCCL
c_tests += tests/cuda_allreduce
tests_cuda_allreduce_LDADD = $(LDADD) $(NCCL_LIBS)
endif
endif

# Programs that shell tests call; not tests themselves.
test_helpers = \
	tests/pty \
	tests/quant_dump \
	tests/rankscope-drill \
	tests/rankscope-fake

# Speed of the CPU matmul: make bench-kernels
EXTRA_PROGRAMS += tests/matmul_bench tests/step_bench tests/rankscope-bare tests/rankscope-twin tests/transport_bench tests/tui_record
bench-kernels: tests/matmul_bench
	tests/matmul_bench
.PHONY: bench-kernels

check_PROGRAMS += $(c_tests) $(test_helpers)

# Files to test with, built byte by byte.
gguf_make = tests/gguf_make.c tests/gguf_make.h
tests_gguf_test_SOURCES = tests/gguf_test.c $(gguf_make)
tests_vocab_file_test_SOURCES = tests/vocab_file_test.c $(gguf_make)
tests_gguf_mutate_SOURCES = tests/gguf_mutate.c $(gguf_make)
tests_gguf_mutate_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free

# Tests of the running engine.
engine_client = tests/elsewhere.h tests/engine_client.c tests/engine_client.h
tests_golden_test_SOURCES = tests/golden_test.c $(engine_client)
tests_make_test_SOURCES = tests/make_test.c $(engine_client)
tests_soak_test_SOURCES = tests/soak_test.c $(engine_client)
tests_spec_test_SOURCES = tests/spec_test.c $(engine_client)
hosts_rig = tests/hosts_rig.c tests/hosts_rig.h $(engine_client)
tests_hosts_test_SOURCES = tests/hosts_test.c $(hosts_rig)
tests_kill_test_SOURCES = tests/kill_test.c $(engine_client)
tests_alloc_test_SOURCES = tests/alloc_test.c $(engine_client)
tests_alloc_test_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=strdup,--wrap=vasprintf,--wrap=free
tests_transport_bench_SOURCES = tests/transport_bench.c $(engine_client)
tests_guard_test_SOURCES = tests/guard_test.c $(engine_client)
tests_guard_test_LDFLAGS = $(AM_LDFLAGS) -rdynamic
tests_timing_test_SOURCES = tests/timing_test.c $(engine_client)
tests_variants_test_SOURCES = tests/variants_test.c $(engine_client)
tests_health_test_SOURCES = tests/health_test.c $(engine_client)
# Tests that talk to an engine in their own process.
talk = tests/elsewhere.h tests/talk.c tests/talk.h
tests_diff_test_SOURCES = tests/diff_test.c $(talk)
# Programs with planted faults: the walker again, with fault points, before the library's. RANKSCOPE_DRILL=name tests/rankscope-drill ...
drills = engine/exec.c tests/drills/drill.c tests/drills/drill.h
drill_flags = $(AM_CPPFLAGS) -DRANKSCOPE_DRILLS
tests_drill_test_SOURCES = tests/drill_test.c $(talk) $(drills)
tests_drill_test_CPPFLAGS = $(drill_flags)
tests_invariance_test_SOURCES = tests/invariance_test.c engine/exec.c
tests_invariance_test_CPPFLAGS = $(drill_flags)
tests_rankscope_drill_SOURCES = console/main.c $(drills)
tests_rankscope_drill_CPPFLAGS = $(drill_flags)
tests_rankscope_drill_LDADD = $(rankscope_LDADD)
tests_msg_mutate_SOURCES = tests/msg_mutate.c $(talk)
tests_swap_test_SOURCES = tests/swap_test.c $(talk)
tests_swap_test_LDADD = $(hosting)
tests_weights_test_SOURCES = tests/weights_test.c $(talk)
# The program without taps, watchpoints and breakpoints, to measure what they cost: scripts/bench-probes.
tests_rankscope_bare_SOURCES = console/main.c engine/exec.c engine/step.c
tests_rankscope_bare_CPPFLAGS = $(AM_CPPFLAGS) -DRS_NO_PROBES
tests_rankscope_bare_LDADD = $(rankscope_LDADD)
# And with them, linked in the same order: where code comes to lie is worth more than what is looked for.
tests_rankscope_twin_SOURCES = $(tests_rankscope_bare_SOURCES)
tests_rankscope_twin_CPPFLAGS = $(AM_CPPFLAGS)
tests_rankscope_twin_LDADD = $(rankscope_LDADD)
tests_shadow_test_SOURCES = tests/shadow_test.c $(talk)
tests_shadow_test_LDADD = $(hosting)
tests_stage_test_SOURCES = tests/stage_test.c $(talk)
tests_stage_test_LDADD = $(hosting)
tests_look_test_SOURCES = tests/look_test.c $(talk)
tests_replay_test_SOURCES = tests/replay_test.c $(talk)
tests_tui_record_SOURCES = tests/tui_record.c $(talk)
tests_probe_test_SOURCES = tests/probe_test.c $(talk)
tests_requests_test_SOURCES = tests/requests_test.c $(talk)
tests_load_watch_test_SOURCES = tests/load_watch_test.c $(talk)

# The console on an engine that plays a script (tests/fake_engine.h), and a terminal to run it at.
fake_engine = tests/fake_canned.c tests/fake_engine.c tests/fake_engine.h tests/fake_methods.c engine/error.c engine/near.c
fake_console_libs = $(CONSOLE_LIBS) $(JANSSON_LIBS) $(CONSOLE_SYSTEM_LIBS)
tests_rankscope_fake_SOURCES = console/main.c $(fake_engine)
tests_rankscope_fake_LDADD = $(fake_console_libs)
tests_console_test_SOURCES = tests/console_test.c $(fake_engine)
tests_console_test_LDADD = tests/libtap.a $(fake_console_libs)
tests_pty_LDADD = -lutil
tests_tui_bind_test_LDADD = tests/libtap.a $(CONSOLE_LIBS) $(JANSSON_LIBS) $(CONSOLE_SYSTEM_LIBS)
tests_tui_copy_test_LDADD = $(tests_tui_bind_test_LDADD)
tests_tui_test_LDADD = tests/libtap.a $(CONSOLE_LIBS) $(JANSSON_LIBS) $(CONSOLE_SYSTEM_LIBS)

tests_template_test_LDADD = $(LDADD) $(LUA_LIBS)

# Shell tests.
shell_tests = \
	tests/bench.t \
	tests/bench_load.t \
	tests/boundaries.t \
	tests/console_batch.t \
	tests/console_cli.t \
	tests/console_errors.t \
	tests/console_golden.t \
	tests/console_kill.t \
	tests/console_man.t \
	tests/console_tty.t \
	tests/debug_console.t \
	tests/debugging.t \
	tests/device_check.t \
	tests/hosts.t \
	tests/lua_console.t \
	tests/lua_docs.t \
	tests/family.t \
	tests/fuzz.t \
	tests/pretok.t \
	tests/quant_gguf.t \
	tests/reference.t \
	tests/rewind.t \
	tests/script_abuse.t \
	tests/scripts.t \
	tests/serve.t \
	tests/cuda_lost.t \
	tests/cuda_patch.t \
	tests/story.t \
	tests/story_cli.t \
	tests/triage.t \
	tests/triage_drills.t \
	tests/tui_config.t \
	tests/tui_debug.t \
	tests/tui_fuzz.t \
	tests/tui_screens.t \
	tests/tui_tmux.t

# What tests read.
EXTRA_DIST += $(shell_tests) \
	tests/fuzz \
	tests/golden \
	tests/golden-screens \
	tests/health_questions.txt \
	tests/console_golden.py \
	tests/pretok_oracle.py \
	tests/quant_gguf.py \
	tests/script_abuse.lua \
	tests/serve.py \
	tests/tap.sh \
	tests/template_test.lua

check_LIBRARIES += tests/libtap.a
tests_libtap_a_SOURCES = \
	tests/tap.c \
	tests/tap.h
hosting = tests/libtap.a librslua.a libengine.a libkernels.a $(ENGINE_LIBS) $(LUA_LIBS) # engines that run patches in Lua
LDADD = tests/libtap.a libengine.a libkernels.a $(ENGINE_LIBS)
AM_DEFAULT_SOURCE_EXT = .c

TESTS = $(c_tests) $(shell_tests)
TEST_EXTENSIONS = .t

# A test that hangs is killed and counts as an error. Seconds; sanitizer builds raise it.
TEST_SECONDS = 900
tap_driver = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(tap_driver)
LOG_COMPILER = timeout -k 10 $(TEST_SECONDS)
T_LOG_DRIVER = $(tap_driver)
T_LOG_COMPILER = timeout -k 10 $(TEST_SECONDS) sh

# Each test gets the same surroundings everywhere: its own empty directory as scratch space and home, a UTF-8 locale, no terminal.
AM_TESTS_ENVIRONMENT = \
	TEST_SCRATCH='$(abs_builddir)/tests/scratch/$(notdir $(@:.log=))'; \
	rm -rf "$$TEST_SCRATCH"; $(MKDIR_P) "$$TEST_SCRATCH/home" "$$TEST_SCRATCH/run"; chmod 700 "$$TEST_SCRATCH/run"; \
	HOME="$$TEST_SCRATCH/home"; XDG_RUNTIME_DIR="$$TEST_SCRATCH/run"; \
	XDG_CONFIG_HOME="$$HOME/.config"; XDG_DATA_HOME="$$HOME/.local/share"; \
	XDG_STATE_HOME="$$HOME/.local/state"; XDG_CACHE_HOME="$$HOME/.cache"; \
	abs_srcdir='$(abs_top_srcdir)'; abs_builddir='$(abs_builddir)'; RANKSCOPE_DATADIR='$(abs_top_srcdir)'; NM='$(NM)'; CC='$(CC)'; \
	LC_ALL=C.UTF-8; TERM=dumb; \
	export TEST_SCRATCH HOME XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME \
	  abs_srcdir abs_builddir RANKSCOPE_DATADIR NM CC LC_ALL TERM; \
	unset NO_COLOR COLUMNS LINES INPUTRC CDPATH; \
	exec </dev/null;

clean-local:
	rm -rf tests/scratch
