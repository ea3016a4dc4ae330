dnl Libraries that rankscope needs. Each missing one is named together with the Debian/Ubuntu package that holds it.

AC_DEFUN([RS_NEEDS], [
  PKG_CHECK_MODULES([$1], [$2], [], [
    rs_missing="$rs_missing $3"
    AC_MSG_NOTICE([$2 was not found by pkg-config: Debian/Ubuntu package $3])
  ])
])

AC_DEFUN([RS_LIBRARIES], [
  m4_pattern_forbid([^PKG_CHECK_MODULES$])
  PKG_PROG_PKG_CONFIG
  AS_IF([test -z "$PKG_CONFIG"], [AC_MSG_ERROR([pkg-config is missing: install the package pkg-config])])
  rs_missing=
  RS_NEEDS([NCURSES], [ncursesw], [libncurses-dev])
  RS_NEEDS([READLINE], [readline], [libreadline-dev])
  RS_NEEDS([LUA], [lua5.4], [liblua5.4-dev])
  RS_NEEDS([PCRE2], [libpcre2-8], [libpcre2-dev])
  RS_NEEDS([JANSSON], [jansson], [libjansson-dev])
  RS_NEEDS([SQLITE], [sqlite3], [libsqlite3-dev])
  RS_NEEDS([MICROHTTPD], [libmicrohttpd], [libmicrohttpd-dev])
  AS_IF([test -n "$rs_missing"], [AC_MSG_ERROR([libraries are missing; on Debian or Ubuntu: apt-get install$rs_missing])])
])

dnl Open MPI only launches engines on several hosts; one host never needs it.
AC_DEFUN([RS_MPI], [
  AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi=guess|yes|no], [Open MPI, to launch on several hosts])], [], [with_mpi=guess])
  have_mpi=no
  AS_CASE([$with_mpi], [no], [], [guess|yes], [
    PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes], [have_mpi=no])
    AS_IF([test $have_mpi = no && test $with_mpi = yes],
      [AC_MSG_ERROR([--with-mpi=yes: Open MPI was not found; install the package libopenmpi-dev])])
  ], [AC_MSG_ERROR([--with-mpi=$with_mpi: choose guess, yes or no])])
  AS_IF([test $have_mpi = yes], [AC_DEFINE([HAVE_MPI], [1], [Define to 1 when Open MPI is there.])])
  AM_CONDITIONAL([HAVE_MPI], [test $have_mpi = yes])
])

AC_DEFUN([RS_SUMMARY], [
  rs_left_out=
  AS_VAR_SET([rs_data], [`eval "exec_prefix=$prefix; datarootdir=$datarootdir; echo $datadir"`])
  AS_IF([test $have_cuda = no], [rs_left_out="$rs_left_out
    * CUDA ($cuda_why): ranks run on the CPU only."])
  AS_IF([test $have_nccl = no], [rs_left_out="$rs_left_out
    * NCCL ($nccl_why): no NCCL collectives."])
  AS_IF([test $have_mpi = no], [rs_left_out="$rs_left_out
    * Open MPI (--with-mpi=$with_mpi): several hosts exchange data by TCP only."])
  AS_IF([test $rs_x86 = no], [rs_left_out="$rs_left_out
    * AVX2/AVX-512 kernels (not x86-64, or the compiler is too old): portable C kernels only."])
  AC_MSG_NOTICE([

  rankscope $PACKAGE_VERSION
    compiler      $CC $CFLAGS
    vector units  $rs_x86
    CUDA          $have_cuda ${CUDA_DIR:+($CUDA_DIR, sm $cuda_archs)}
    NCCL          $have_nccl ${nccl_where:+($nccl_where)}
    Open MPI      $have_mpi
    werror $enable_werror, debug $enable_debug, sanitizer $with_sanitizer
    data files    $rs_data/rankscope
  ])
  AS_IF([test -n "$rs_left_out"], [AC_MSG_NOTICE([
  ================================ LEFT OUT OF THIS BUILD ================================$rs_left_out
  ========================================================================================
  ])], [AC_MSG_NOTICE([nothing was left out.])])
])
