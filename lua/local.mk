# lua: the Lua binding, and the Lua files that are installed.
noinst_LIBRARIES += librslua.a

librslua_a_SOURCES = \
	lua/scr_core.c \
	lua/scr_core.h \
	lua/scr_json.c \
	lua/scr_json.h \
	lua/scr_notebook.c \
	lua/scr_notebook.h \
	lua/scr_op.c \
	lua/scr_op.h \
	lua/scr_script.c \
	lua/scr_script.h \
	lua/scr_state.c \
	lua/scr_state.h \
	lua/scr_task.c \
	lua/scr_task.h \
	lua/scr_template.c \
	lua/scr_template.h \
	lua/scr_words.c

# Installed data, with its folders: lua/templates/x.lua is installed as PKGDATADIR/lua/templates/x.lua.
nobase_dist_pkgdata_DATA = \
	lua/args.lua \
	lua/check.lua \
	lua/board.lua \
	lua/commands.lua \
	lua/exp.lua \
	lua/look.lua \
	lua/meta/rs.lua \
	lua/notebook.lua \
	lua/op.lua \
	lua/pretty.lua \
	lua/rs.lua \
	lua/triage.lua \
	scripts/allreduce-watch.lua \
	scripts/compare-quants.lua \
	scripts/lua-docs.lua \
	scripts/sensitivity.lua \
	scripts/story.lua \
	scripts/sweep.lua \
	scripts/triage.lua \
	lua/templates/deepseek.lua \
	lua/templates/deepseek_r1.lua \
	lua/templates/deepseek_v2.lua \
	lua/templates/deepseek_v3.lua \
	lua/templates/deepseek_v31.lua \
	lua/templates/glm.lua \
	lua/templates/glm5.lua \
	lua/templates/glm52.lua \
	lua/templates/init.lua \
	lua/templates/json.lua \
	lua/templates/kimi_k2.lua \
	lua/templates/lib.lua \
	models/README.md \
	models/tiny-glm5-q4.gguf \
	models/tiny-glm5-q4.health.json
