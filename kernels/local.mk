# kernels: what ops do to memory.
noinst_LIBRARIES += libkernels.a

libkernels_a_SOURCES = \
	kernels/cpu/matmul.c \
	kernels/cpu/matmul.h \
	kernels/cpu/matmul_impl.h \
	kernels/cpu/matmul_portable.c \
	kernels/cpu/matmul_simd.h \
	kernels/cpu/matmul_simd_split.h \
	kernels/cpu/matmul_simd_unpack.h \
	kernels/cpu/vec.c \
	kernels/cpu/vec.h \
	kernels/cpu/vec_attn.h \
	kernels/cpu/vec_attn_i16.h \
	kernels/cpu/vec_body.h \
	kernels/cpu/vec_portable.c \
	kernels/quant.c \
	kernels/quant.h \
	kernels/quant_encode.c \
	kernels/quant_grid.c \
	kernels/quant_grid.h \
	kernels/quant_impl.h \
	kernels/quant_iq.c \
	kernels/quant_random.c \
	kernels/type.c \
	kernels/type.h
libkernels_a_LIBADD =

# Files that need vector instructions are compiled with their own flags; their objects then join libkernels.a.
if HAVE_X86
noinst_LIBRARIES += libkernels_avx2.a libkernels_avx512.a
libkernels_avx2_a_SOURCES = \
	kernels/cpu/matmul_avx2.c \
	kernels/cpu/matmul_avx2.h \
	kernels/cpu/vec_avx2.c
libkernels_avx2_a_CFLAGS = $(AM_CFLAGS) $(AVX2_CFLAGS)
libkernels_avx512_a_SOURCES = \
	kernels/cpu/matmul_avx512.c \
	kernels/cpu/matmul_avx512.h \
	kernels/cpu/vec_avx512.c
libkernels_avx512_a_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)
libkernels_a_LIBADD += $(libkernels_avx2_a_OBJECTS) $(libkernels_avx512_a_OBJECTS)
endif

# CUDA sources, shipped in every tarball, compiled where nvcc is. Automake does not know .cu, so the rule is ours.
CUDA_SOURCES = \
	kernels/cuda/attn.cu \
	kernels/cuda/clock.cu \
	kernels/cuda/down.cu \
	kernels/cuda/expand.cu \
	kernels/cuda/experts.cu \
	kernels/cuda/experts_few.cu \
	kernels/cuda/flash.cu \
	kernels/cuda/flash_async.cu \
	kernels/cuda/flash_decode.cu \
	kernels/cuda/gemm.cu \
	kernels/cuda/gemm_async.cu \
	kernels/cuda/gemm_experts.cu \
	kernels/cuda/gemm_half.cu \
	kernels/cuda/gemm_wide.cu \
	kernels/cuda/halve.cu \
	kernels/cuda/head.cu \
	kernels/cuda/heads.cu \
	kernels/cuda/heads_async.cu \
	kernels/cuda/heads_few.cu \
	kernels/cuda/index.cu \
	kernels/cuda/join.cu \
	kernels/cuda/latent_many.cu \
	kernels/cuda/likeliest.cu \
	kernels/cuda/linear.cu \
	kernels/cuda/linear_few.cu \
	kernels/cuda/mla.cu \
	kernels/cuda/mla_batch.cu \
	kernels/cuda/mla_lone.cu \
	kernels/cuda/moe.cu \
	kernels/cuda/moe_gemm.cu \
	kernels/cuda/probe.cu \
	kernels/cuda/route_many.cu \
	kernels/cuda/route_parts.cu \
	kernels/cuda/router.cu \
	kernels/cuda/rows.cu \
	kernels/cuda/two_shot.cu \
	kernels/cuda/unpack.cu
EXTRA_DIST += $(CUDA_SOURCES) \
	kernels/cuda/attn.cuh \
	kernels/cuda/barrier.cuh \
	kernels/cuda/boxes.cuh \
	kernels/cuda/bulk.cuh \
	kernels/cuda/cluster.cuh \
	kernels/cuda/codes.cuh \
	kernels/cuda/common.cuh \
	kernels/cuda/cuda.h \
	kernels/cuda/divide.cuh \
	kernels/cuda/dot.cuh \
	kernels/cuda/experts.cuh \
	kernels/cuda/few.cuh \
	kernels/cuda/flash.cuh \
	kernels/cuda/formats.cuh \
	kernels/cuda/gemm.cuh \
	kernels/cuda/halve.cuh \
	kernels/cuda/head.h \
	kernels/cuda/heads.cuh \
	kernels/cuda/linear_few.cuh \
	kernels/cuda/norm.cuh \
	kernels/cuda/reduce.cuh \
	kernels/cuda/route_parts.cuh \
	kernels/cuda/router.cuh \
	kernels/cuda/steps.cuh \
	kernels/cuda/tiles.cuh \
	kernels/cuda/tensor.cuh \
	kernels/cuda/values.cuh \
	kernels/cuda/wgmma.cuh \
	kernels/cuda/wgmma_few.cuh \
	kernels/cuda/wgmma_group.cuh \
	kernels/cuda/wgmma_wide.cuh \
	kernels/cuda/words.cuh
if HAVE_CUDA
libkernels_a_LIBADD += $(CUDA_SOURCES:.cu=.o)
endif

libkernels_a_DEPENDENCIES = $(libkernels_a_LIBADD)

SUFFIXES += .cu
AM_V_NVCC = $(AM_V_NVCC_$(V))
AM_V_NVCC_ = $(AM_V_NVCC_$(AM_DEFAULT_VERBOSITY))
AM_V_NVCC_0 = @echo "  NVCC    " $@;
AM_V_NVCC_1 =
.cu.o:
	$(AM_V_at)$(MKDIR_P) $(@D)/$(DEPDIR)
	$(AM_V_NVCC)$(NVCC) -std=c++17 $(NVCC_GENCODE) -I. -I$(top_srcdir) -Xcompiler -fPIC $(NVCCFLAGS) \
	  -MMD -MT $@ -MF $(@D)/$(DEPDIR)/$(@F).d -c -o $@ $<
-include $(wildcard kernels/cuda/$(DEPDIR)/*.d)
