# console: the program.
bin_PROGRAMS += rankscope

rankscope_SOURCES = \
	console/main.c
rankscope_LDADD = librslua.a libengine.a libkernels.a $(ENGINE_LIBS) $(LUA_LIBS) $(NCURSES_LIBS) $(READLINE_LIBS) $(SQLITE_LIBS) \
	$(MICROHTTPD_LIBS)
