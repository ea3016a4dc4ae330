# engine: the static library behind engine/rankscope.h.
noinst_LIBRARIES += libengine.a

libengine_a_SOURCES = \
	engine/error.c \
	engine/error.h \
	engine/gguf.c \
	engine/gguf.h \
	engine/gguf_get.c \
	engine/gguf_int.h \
	engine/gguf_parse.c \
	engine/rankscope.h \
	engine/vocab.c \
	engine/vocab.h \
	engine/vocab_bpe.c \
	engine/vocab_encode.c \
	engine/vocab_int.h \
	engine/vocab_pre.c \
	engine/vocab_stream.c

# Plain C that talks to CUDA and NCCL.
if HAVE_CUDA
libengine_a_SOURCES +=
endif
if HAVE_NCCL
libengine_a_SOURCES +=
endif
