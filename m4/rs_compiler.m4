dnl Flags that every C file gets (RS_CFLAGS, RS_LDFLAGS) and the developer's switches: --enable-werror, --enable-debug, --with-sanitizer.

dnl RS_TRY_CFLAG(FLAG): add FLAG to RS_CFLAGS if the compiler takes it without a word.
AC_DEFUN([RS_TRY_CFLAG], [
  AC_MSG_CHECKING([whether $CC takes $1])
  rs_saved_cflags=$CFLAGS
  CFLAGS="$CFLAGS -Werror $1"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes]); RS_CFLAGS="$RS_CFLAGS $1"],
    [AC_MSG_RESULT([no])])
  CFLAGS=$rs_saved_cflags
])

AC_DEFUN([RS_COMPILER_FLAGS], [
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [make every compiler warning an error])], [], [enable_werror=no])
  AC_ARG_ENABLE([debug], [AS_HELP_STRING([--enable-debug], [no optimisation, internal checks on (RS_DEBUG)])], [], [enable_debug=no])
  AC_ARG_WITH([sanitizer], [AS_HELP_STRING([--with-sanitizer=LIST],
      [build with sanitizers: address,undefined or thread])], [], [with_sanitizer=no])

  dnl Contraction stays off so that a sum has one value on every machine; kernels that want FMA say so by intrinsic.
  RS_CFLAGS="-std=gnu11 -ffp-contract=off -pthread"
  RS_LDFLAGS="-pthread"
  m4_foreach_w([flag], [-fopenmp-simd -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
      -Wpointer-arith -Wwrite-strings -Wundef -Wnull-dereference], [RS_TRY_CFLAG(flag)])
  AS_IF([test "$enable_werror" = yes], [RS_CFLAGS="$RS_CFLAGS -Werror"])

  AS_IF([test "$enable_debug" = yes], [
    AC_DEFINE([RS_DEBUG], [1], [Define to 1 to compile internal checks in.])
    AS_IF([test $rs_user_cflags = no], [CFLAGS="-O0 -g3"])
  ])

  AS_CASE([$with_sanitizer],
    [no], [],
    [address|undefined|address,undefined|undefined,address|thread], [
      rs_san="-fsanitize=$with_sanitizer -fno-omit-frame-pointer"
      dnl Without this an undefined operation prints a line and the test passes.
      AS_CASE([$with_sanitizer], [*undefined*], [rs_san="$rs_san -fno-sanitize-recover=undefined"])
      AS_IF([test $rs_user_cflags = no], [CFLAGS="-O1 -g"])
      rs_saved_cflags=$CFLAGS
      CFLAGS="$CFLAGS $rs_san"
      AC_MSG_CHECKING([whether $CC links with $rs_san])
      AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no]); AC_MSG_ERROR([--with-sanitizer=$with_sanitizer: the sanitizer's run-time library is missing])])
      CFLAGS=$rs_saved_cflags
      RS_CFLAGS="$RS_CFLAGS $rs_san"
      RS_LDFLAGS="$RS_LDFLAGS $rs_san"
      AC_DEFINE([RS_SANITIZER], [1], [Define to 1 when a sanitizer is compiled in.])
    ],
    [AC_MSG_ERROR([--with-sanitizer=$with_sanitizer: choose address,undefined or thread])])

  AC_SUBST([RS_CFLAGS])
  AC_SUBST([RS_LDFLAGS])
  AM_CONDITIONAL([RS_DEBUG], [test "$enable_debug" = yes])
])

dnl Vector units. The flags are per file (kernels/cpu/*_avx2.c, *_avx512.c); the program asks the processor before it calls one.
AC_DEFUN([RS_X86], [
  AVX2_CFLAGS="-mavx2 -mfma -mf16c"
  AVX512_CFLAGS="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni $AVX2_CFLAGS"
  rs_saved_cflags=$CFLAGS
  CFLAGS="$CFLAGS $AVX512_CFLAGS"
  AC_MSG_CHECKING([for x86-64 with AVX2 and AVX-512 intrinsics])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
    #if !defined __x86_64__
    #error not x86-64
    #endif
    #include <immintrin.h>
  ]], [[
    __m512i a = _mm512_setzero_si512();
    return _mm512_reduce_add_epi32(_mm512_dpbusd_epi32(a, a, a));
  ]])], [rs_x86=yes], [rs_x86=no])
  AC_MSG_RESULT([$rs_x86])
  CFLAGS=$rs_saved_cflags
  AS_IF([test $rs_x86 = yes], [AC_DEFINE([HAVE_X86], [1], [Define to 1 when the AVX2 and AVX-512 kernels are compiled in.])])
  AC_SUBST([AVX2_CFLAGS])
  AC_SUBST([AVX512_CFLAGS])
  AM_CONDITIONAL([HAVE_X86], [test $rs_x86 = yes])
])
