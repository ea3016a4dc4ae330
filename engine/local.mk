# engine: the static library behind engine/rankscope.h.
noinst_LIBRARIES += libengine.a

libengine_a_SOURCES = \
	engine/args.c \
	engine/args.h \
	engine/backend.h \
	engine/batch.h \
	engine/client.c \
	engine/client.h \
	engine/connect.c \
	engine/connect.h \
	engine/cpu.c \
	engine/cpu.h \
	engine/cpu_attn.c \
	engine/cpu_basic.c \
	engine/cpu_comm.c \
	engine/cpu_index.c \
	engine/cpu_linear.c \
	engine/cpu_moe.c \
	engine/engine.c \
	engine/engine.h \
	engine/error.c \
	engine/error.h \
	engine/exec.c \
	engine/exec.h \
	engine/gguf.c \
	engine/gguf.h \
	engine/gguf_get.c \
	engine/gguf_int.h \
	engine/gguf_parse.c \
	engine/guard.c \
	engine/guard.h \
	engine/health.c \
	engine/health.h \
	engine/hparams.c \
	engine/hparams.h \
	engine/impl.h \
	engine/kv.c \
	engine/kv.h \
	engine/model.c \
	engine/model.h \
	engine/msg.c \
	engine/msg.h \
	engine/msg_audit.c \
	engine/msg_gen.c \
	engine/msg_model.c \
	engine/msg_observe.c \
	engine/msg_patch.c \
	engine/msg_session.c \
	engine/msg_util.h \
	engine/op.c \
	engine/op.h \
	engine/patch.c \
	engine/patch.h \
	engine/plan.c \
	engine/plan.h \
	engine/pool.c \
	engine/pool.h \
	engine/probe.h \
	engine/rankscope.h \
	engine/runtime.c \
	engine/runtime.h \
	engine/sample.c \
	engine/sample.h \
	engine/sched.c \
	engine/seq.c \
	engine/seq.h \
	engine/server.c \
	engine/server.h \
	engine/shard.c \
	engine/shard.h \
	engine/snapshot.c \
	engine/snapshot.h \
	engine/step.c \
	engine/timing.c \
	engine/timing.h \
	engine/verdict.c \
	engine/verdict.h \
	engine/vocab.c \
	engine/vocab.h \
	engine/vocab_bpe.c \
	engine/vocab_encode.c \
	engine/vocab_int.h \
	engine/vocab_pre.c \
	engine/vocab_stream.c \
	engine/weights.c \
	engine/weights.h \
	engine/wire.h

# Plain C that talks to CUDA and NCCL.
if HAVE_CUDA
libengine_a_SOURCES +=
endif
if HAVE_NCCL
libengine_a_SOURCES +=
endif
