# docs: what is written about rankscope.
dist_man_MANS += \
	docs/rankscope.1
bashcompdir = $(datadir)/bash-completion/completions
dist_bashcomp_DATA = docs/bash/rankscope
dist_noinst_DATA += \
	docs/debugging.md \
	docs/design.md \
	docs/grafana.json \
	docs/img/all.svg \
	docs/img/concurrency.svg \
	docs/img/desk.svg \
	docs/img/garbage.svg \
	docs/img/light.svg \
	docs/lua.md \
	docs/measurements.md \
	docs/protocol.md \
	docs/serving.md \
	docs/style.md
