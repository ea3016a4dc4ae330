/* Marks around the part of a step in which nothing may allocate, lock, log or format. The functions do nothing; tests/guard interposes them and
 * the functions that are forbidden meanwhile, and aborts on a breach. Any thread; pairs do not nest. */
#ifndef RANKSCOPE_ENGINE_GUARD_H
#define RANKSCOPE_ENGINE_GUARD_H

void guard_enter(void);
void guard_leave(void);

#endif
