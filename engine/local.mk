# engine: the static library behind engine/rankscope.h.
noinst_LIBRARIES += libengine.a

libengine_a_SOURCES = \
	engine/error.c \
	engine/error.h \
	engine/rankscope.h

# Plain C that talks to CUDA and NCCL.
if HAVE_CUDA
libengine_a_SOURCES +=
endif
if HAVE_NCCL
libengine_a_SOURCES +=
endif
