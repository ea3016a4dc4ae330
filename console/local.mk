# console: the program. All of it but main.c is a library, so that tests can link it with an engine that plays a script.
bin_PROGRAMS += rankscope
noinst_LIBRARIES += libconsole.a

libconsole_a_SOURCES = \
	console/buf.c \
	console/buf.h \
	console/chat.c \
	console/chat.h \
	console/cmd.c \
	console/cmd.h \
	console/cmd_attach.c \
	console/cmd_audit.c \
	console/cmd_bench.c \
	console/cmd_calibrate.c \
	console/cmd_chat.c \
	console/cmd_completion.c \
	console/cmd_engine.c \
	console/cmd_input.c \
	console/cmd_list.h \
	console/cmd_logits.c \
	console/cmd_man.c \
	console/cmd_perplexity.c \
	console/cmd_ps.c \
	console/cmd_script.c \
	console/script.h \
	console/cmd_repl.c \
	console/cmd_tokens.c \
	console/cmd_top.c \
	console/cmd_version.c \
	console/complete.c \
	console/complete.h \
	console/con.c \
	console/con.h \
	console/conv.c \
	console/conv.h \
	console/daemon.c \
	console/daemon.h \
	console/desk.c \
	console/desk.h \
	console/fail.c \
	console/fail.h \
	console/grid.c \
	console/grid.h \
	console/history.c \
	console/history.h \
	console/js.c \
	console/js.h \
	console/bench_load.c \
	console/bench_load.h \
	console/layers.c \
	console/layers.h \
	console/line.c \
	console/line.h \
	console/load.c \
	console/load.h \
	console/load_plot.c \
	console/load_plot.h \
	console/load_stat.c \
	console/oneshot.c \
	console/oneshot.h \
	console/opt.c \
	console/opt.h \
	console/out.c \
	console/out.h \
	console/paths.c \
	console/paths.h \
	console/rcmd.c \
	console/rcmd.h \
	console/rcmd_conv.c \
	console/rcmd_engine.c \
	console/rcmd_help.c \
	console/rcmd_list.h \
	console/rcmd_lua.c \
	console/rcmd_observe.c \
	console/rcmd_panels.c \
	console/rcmd_patch.c \
	console/rcmd_process.c \
	console/rcmd_sampling.c \
	console/rcmd_spec.c \
	console/repl.c \
	console/repl.h \
	console/sampling.c \
	console/sampling.h \
	console/setting.c \
	console/setting.h \
	console/sig.c \
	console/sig.h \
	console/table.c \
	console/table.h \
	console/text.c \
	console/text.h \
	console/tui.c \
	console/tui.h \
	console/tui_curses.c \
	console/tui_data.c \
	console/tui_data.h \
	console/tui_draw.c \
	console/tui_input.c \
	console/tui_key.c \
	console/tui_key.h \
	console/tui_keymap.c \
	console/tui_keymap.h \
	console/tui_layout.c \
	console/tui_layout.h \
	console/tui_lists.c \
	console/tui_options.c \
	console/tui_panels.c \
	console/tui_plot.c \
	console/tui_plot.h \
	console/tui_script.c \
	console/tui_snapshot.c \
	console/tui_text.c \
	console/tui_text.h \
	console/tui_theme.c \
	console/tui_theme.h \
	console/units.c \
	console/units.h \
	console/view.h \
	console/view_audit.c \
	console/view_model.c \
	console/view_times.c

CONSOLE_LIBS = libconsole.a librslua.a
CONSOLE_SYSTEM_LIBS = $(LUA_LIBS) $(NCURSES_LIBS) $(READLINE_LIBS) $(SQLITE_LIBS) $(MICROHTTPD_LIBS)

rankscope_SOURCES = \
	console/main.c
rankscope_LDADD = $(CONSOLE_LIBS) libengine.a libkernels.a $(ENGINE_LIBS) $(CONSOLE_SYSTEM_LIBS)
