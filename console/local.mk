# console: the program.
bin_PROGRAMS += rankscope

CONSOLE_LIBS = librslua.a
CONSOLE_SYSTEM_LIBS = $(LUA_LIBS) $(NCURSES_LIBS) $(READLINE_LIBS) $(SQLITE_LIBS) $(MICROHTTPD_LIBS)

# To become console/main.c as soon as libengine.a has the calls of engine/rankscope.h.
rankscope_SOURCES = \
	console/main_version.c
rankscope_LDADD = $(CONSOLE_LIBS) libengine.a libkernels.a $(ENGINE_LIBS) $(CONSOLE_SYSTEM_LIBS)
