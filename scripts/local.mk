# scripts: commands for people who build and test. Lua scripts for operators are installed with the other data.
dist_noinst_SCRIPTS += \
	scripts/check \
	scripts/packages \
	scripts/start
EXTRA_DIST += scripts/setup.sh
