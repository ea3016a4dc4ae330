dnl CUDA and NCCL. Both are tri-state: "guess" takes what is there, "yes" or a directory fails when it is not, "no" does not look.

dnl Sets have_cuda, cuda_why, cuda_archs; substitutes NVCC, NVCC_GENCODE, CUDA_CPPFLAGS, CUDA_LIBS, CUDA_DIR.
AC_DEFUN([RS_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=guess|yes|no|DIR], [run ranks on NVIDIA GPUs; DIR is the toolkit's root])],
    [], [with_cuda=guess])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST],
    [compute capabilities to compile for (default 80,90,100,120); PTX of the newest is added])], [], [with_cuda_arch=guess])
  AC_ARG_VAR([NVCC], [the CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [flags for the CUDA compiler])
  : ${NVCCFLAGS="-O3 -g -lineinfo"}
  have_cuda=no cuda_why="--with-cuda=$with_cuda" CUDA_DIR= cuda_archs=
  AS_CASE([$with_cuda],
    [no], [],
    [guess|yes], [RS_CUDA_TRY_DIRS],
    [RS_CUDA_TRY([$with_cuda])])
  AS_IF([test $have_cuda = no && test "$with_cuda" != no && test "$with_cuda" != guess],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: $cuda_why])])
  AS_IF([test $have_cuda = yes], [
    RS_CUDA_ARCHS
    AC_DEFINE([HAVE_CUDA], [1], [Define to 1 when the CUDA backend is compiled in.])
    AC_DEFINE_UNQUOTED([CUDA_ROOT], ["$CUDA_DIR"], [The toolkit's folder; libnvrtc is looked for there after the loader's own places.])
  ])
  AC_SUBST([CUDA_DIR])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AC_SUBST([NVCC_GENCODE])
  AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
])

dnl Where toolkits live: $NVCC, $PATH, CUDA_HOME, the distribution's and NVIDIA's own places (newest version last, so it wins).
AC_DEFUN([RS_CUDA_TRY_DIRS], [
  cuda_why="no nvcc in PATH, CUDA_HOME or /usr/local/cuda*"
  rs_nvcc=${NVCC:-`command -v nvcc 2>/dev/null`}
  AS_IF([test -n "$rs_nvcc" && rs_nvcc=`readlink -f "$rs_nvcc"` && test -x "$rs_nvcc"], [
    rs_bin=`AS_DIRNAME(["$rs_nvcc"])`
    RS_CUDA_TRY([`AS_DIRNAME(["$rs_bin"])`])
  ])
  for rs_dir in $CUDA_HOME $CUDA_PATH /usr/local/cuda /opt/cuda `ls -d /usr/local/cuda-* 2>/dev/null | sort -rV`; do
    AS_IF([test $have_cuda = no && test -x "$rs_dir/bin/nvcc"], [RS_CUDA_TRY([$rs_dir])])
  done
])

dnl RS_CUDA_TRY(DIR): is DIR a toolkit with nvcc, headers and the static run-time library, and can nvcc compile a kernel with it?
AC_DEFUN([RS_CUDA_TRY], [
  rs_cuda=$1
  AC_MSG_CHECKING([for CUDA in $rs_cuda])
  rs_cuda_lib=
  for rs_lib in lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib lib/x86_64-linux-gnu lib/aarch64-linux-gnu; do
    AS_IF([test -z "$rs_cuda_lib" && test -f "$rs_cuda/$rs_lib/libcudart_static.a"], [rs_cuda_lib=$rs_cuda/$rs_lib])
  done
  AS_IF([test ! -x "$rs_cuda/bin/nvcc"], [cuda_why="no bin/nvcc in $rs_cuda"],
    [test ! -f "$rs_cuda/include/cuda_runtime_api.h"], [cuda_why="no include/cuda_runtime_api.h in $rs_cuda"],
    [test -z "$rs_cuda_lib"], [cuda_why="no libcudart_static.a below $rs_cuda"],
    [
      cat >conftest.cu <<RS_EOF
#include <cuda_runtime.h>
__global__ void conftest(float *x) { x[[threadIdx.x]] += 1.0f; }
int main(void) { float *p = 0; conftest<<<1, 1>>>(p); return cudaGetLastError(); }
RS_EOF
      AS_IF(["$rs_cuda/bin/nvcc" -cudart=static -L"$rs_cuda_lib" -o conftest_cu conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [have_cuda=yes], [cuda_why="$rs_cuda/bin/nvcc cannot build a small program (see config.log)"])
      rm -f conftest.cu conftest_cu
    ])
  AS_IF([test $have_cuda = yes], [
    AC_MSG_RESULT([yes])
    NVCC=$rs_cuda/bin/nvcc CUDA_DIR=$rs_cuda
    CUDA_CPPFLAGS="-isystem $rs_cuda/include"
    CUDA_LIBS="-L$rs_cuda_lib -lcudart_static -lstdc++ -lrt -ldl"
  ], [AC_MSG_RESULT([no ($cuda_why)])])
])

dnl Turn the list of compute capabilities into -gencode options. A default that this nvcc does not know is dropped, an asked-for one fails. 90 becomes 90a, which
dnl has the tensor cores' own instructions and runs wherever 90 does; the PTX for devices to come must do without them.
AC_DEFUN([RS_CUDA_ARCHS], [
  rs_known=`"$NVCC" --list-gpu-arch 2>/dev/null | tr '\n' ' '`
  rs_list=$with_cuda_arch
  AS_IF([test "$rs_list" = guess || test "$rs_list" = yes], [rs_list=80,90,100,120])
  NVCC_GENCODE= rs_newest=0
  for rs_arch in `echo "$rs_list" | tr ',' ' '`; do
    AS_CASE([" $rs_known "],
      [*" compute_$rs_arch "*], [
        rs_own=$rs_arch
        AS_IF([test "$rs_arch" = 90], [rs_own=90a])
        NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$rs_own,code=sm_$rs_own"
        cuda_archs="$cuda_archs${cuda_archs:+,}$rs_arch"
        AS_IF([test "$rs_arch" -gt $rs_newest], [rs_newest=$rs_arch])
      ],
      [AS_IF([test "$with_cuda_arch" = guess],
        [AC_MSG_NOTICE([$NVCC does not know compute_$rs_arch: left out])],
        [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: $NVCC knows no compute_$rs_arch; it knows $rs_known])])])
  done
  AS_IF([test $rs_newest = 0], [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: nothing to compile for])])
  NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$rs_newest,code=compute_$rs_newest"
])

dnl Sets have_nccl, nccl_why, nccl_where; substitutes NCCL_CPPFLAGS and NCCL_LIBS. NCCL without CUDA is of no use.
AC_DEFUN([RS_NCCL], [
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl=guess|yes|no|DIR], [NCCL collectives; DIR holds include/nccl.h])], [], [with_nccl=guess])
  have_nccl=no nccl_why="--with-nccl=$with_nccl" nccl_where=
  AS_IF([test $have_cuda = no], [
    nccl_why="needs CUDA"
    AS_CASE([$with_nccl], [guess|no], [], [AC_MSG_ERROR([--with-nccl=$with_nccl: NCCL needs CUDA, and CUDA is left out])])
  ])
  AS_IF([test $have_cuda = yes && test "$with_nccl" != no], [
    AS_CASE([$with_nccl], [guess|yes], [RS_NCCL_DIRS], [rs_dirs=$with_nccl])
    nccl_why="no include/nccl.h with libnccl in$rs_dirs"
    for rs_dir in $rs_dirs; do
      AS_IF([test $have_nccl = no], [RS_NCCL_TRY([$rs_dir])])
    done
    AS_IF([test $have_nccl = no && test "$with_nccl" != guess], [AC_MSG_ERROR([--with-nccl=$with_nccl: $nccl_why])])
  ])
  AS_IF([test $have_nccl = yes], [
    AC_DEFINE([HAVE_NCCL], [1], [Define to 1 when NCCL collectives are compiled in.])
    AC_DEFINE_UNQUOTED([NCCL_LIBRARY], ["$nccl_where"], [Where libnccl was found; tried after the loader's own places.])
  ])
  AC_SUBST([NCCL_CPPFLAGS])
  AC_SUBST([NCCL_LIBS])
  AM_CONDITIONAL([HAVE_NCCL], [test $have_nccl = yes])
])

dnl The toolkit's own directory, the system's, and the wheels that Python packages bring along.
AC_DEFUN([RS_NCCL_DIRS], [
  rs_dirs=" $NCCL_HOME $CUDA_DIR"
  for rs_dir in /usr/local/cuda* /usr /usr/local /opt/nccl \
      `python3 -c 'import sys; print(*(p + "/nvidia/nccl" for p in sys.path if p))' 2>/dev/null`; do
    AS_IF([test -d "$rs_dir"], [rs_dirs="$rs_dirs $rs_dir"])
  done
])

dnl RS_NCCL_TRY(DIR). The library is named by its full path, because wheels ship libnccl.so.2 without the .so link; a run path is added
dnl unless the loader looks there anyway.
AC_DEFUN([RS_NCCL_TRY], [
  rs_nccl_lib=
  for rs_lib in $1/lib64 $1/lib $1/lib/x86_64-linux-gnu $1/lib/aarch64-linux-gnu; do
    for rs_name in libnccl.so libnccl.so.2; do
      AS_IF([test -z "$rs_nccl_lib" && test -f "$rs_lib/$rs_name"], [rs_nccl_lib=$rs_lib/$rs_name])
    done
  done
  AS_IF([test -f "$1/include/nccl.h" && test -n "$rs_nccl_lib"], [
    AC_MSG_CHECKING([for NCCL in $1])
    rs_saved_cppflags=$CPPFLAGS rs_saved_libs=$LIBS rs_saved_cflags=$CFLAGS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS -isystem $1/include"
    CFLAGS="$CFLAGS -pthread"
    LIBS="$rs_nccl_lib $CUDA_LIBS $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]], [[int v; return ncclGetVersion(&v);]])],
      [have_nccl=yes], [nccl_why="$1: a small program does not link with it (see config.log)"])
    CPPFLAGS=$rs_saved_cppflags LIBS=$rs_saved_libs CFLAGS=$rs_saved_cflags
    AC_MSG_RESULT([$have_nccl])
    AS_IF([test $have_nccl = yes], [
      nccl_where=$rs_nccl_lib
      AS_CASE([$1], [/usr|$CUDA_DIR], [NCCL_CPPFLAGS=], [NCCL_CPPFLAGS="-isystem $1/include"])
      NCCL_LIBS=$rs_nccl_lib
      AS_CASE([$1], [/usr], [], [NCCL_LIBS="$NCCL_LIBS -Wl,-rpath,`AS_DIRNAME(["$rs_nccl_lib"])`"])
    ])
  ])
])
