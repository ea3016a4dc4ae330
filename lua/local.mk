# lua: the Lua binding, and the Lua files that are installed.
noinst_LIBRARIES += librslua.a

librslua_a_SOURCES =

# Installed data, with its folders: lua/templates/x.lua is installed as PKGDATADIR/lua/templates/x.lua.
nobase_dist_pkgdata_DATA = \
	models/README.md \
	models/tiny-glm5-q4.gguf
