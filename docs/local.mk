# docs: what is written about rankscope.
dist_noinst_DATA += \
	docs/design.md \
	docs/protocol.md \
	docs/style.md
