/* See guard.h. The empty asm keeps the calls from being optimised away. */
#include "engine/guard.h"

__attribute__((noinline)) void guard_enter(void)
{
    __asm__ volatile("");
}

__attribute__((noinline)) void guard_leave(void)
{
    __asm__ volatile("");
}
