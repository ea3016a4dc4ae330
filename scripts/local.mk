# scripts: commands for people who build and test. Lua scripts for operators are installed with the other data.
dist_noinst_SCRIPTS += \
	scripts/bench-batch \
	scripts/bench-peer \
	scripts/bench_peer.py \
	scripts/bench-probes \
	scripts/bench_probes.lua \
	scripts/bench-transport \
	scripts/check \
	scripts/device-check \
	scripts/dump-transformers.py \
	scripts/packages \
	scripts/quant-grids \
	scripts/reference.py \
	scripts/screenshots \
	scripts/start
EXTRA_DIST += \
	scripts/setup.sh \
	scripts/tiny/README.md \
	scripts/tiny/config.py \
	scripts/tiny/corpus.py \
	scripts/tiny/examine.py \
	scripts/tiny/gguf_file.py \
	scripts/tiny/golden.py \
	scripts/tiny/model.py \
	scripts/tiny/peer.py \
	scripts/tiny/questions.py \
	scripts/tiny/to_gguf.py \
	scripts/tiny/train.py \
	scripts/tiny/variants.py \
	scripts/tiny/vocabulary.py

# A saved screen as a picture: scripts/screenshots.
EXTRA_PROGRAMS += scripts/screen_svg
scripts_screen_svg_LDADD = $(CONSOLE_LIBS) $(JANSSON_LIBS) $(CONSOLE_SYSTEM_LIBS)

# What patch.load needs, and patches to start from.
nobase_dist_pkgdata_DATA += \
	engine/patch_api.h \
	engine/patch_cuda.h \
	engine/patch_test.c \
	engine/patch_test.h \
	engine/patch_test_int.h \
	engine/patch_test_kinds.c \
	engine/patch_values.cuh \
	scripts/patches/allreduce-exact.c \
	scripts/patches/gather-plain.c \
	scripts/patches/gather-plain.cu \
	scripts/patches/index_scores-plain.c \
	scripts/patches/index_scores-plain.cu \
	scripts/patches/index_topk.lua \
	scripts/patches/kv_store-plain.c \
	scripts/patches/embed-plain.c \
	scripts/patches/embed-plain.cu \
	scripts/patches/linear-plain.c \
	scripts/patches/linear-plain.cu \
	scripts/patches/mla-plain.c \
	scripts/patches/mla-plain.cu \
	scripts/patches/rmsnorm-plain.c \
	scripts/patches/rmsnorm-plain.cu \
	scripts/patches/rmsnorm.lua \
	scripts/patches/embed.lua \
	scripts/patches/moe_down-plain.c \
	scripts/patches/moe_down-plain.cu \
	scripts/patches/moe_down.lua \
	scripts/patches/moe_gate_up-plain.c \
	scripts/patches/moe_gate_up-plain.cu \
	scripts/patches/moe_gate_up.lua \
	scripts/patches/router-plain.c \
	scripts/patches/router.lua \
	scripts/patches/selftest.c \
	scripts/patches/silu-plain.cu \
	scripts/patches/swiglu.lua
