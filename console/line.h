/* line.h: one line of input from a person at a terminal. Behind it is readline, which no other file includes.
 *
 * The caller owns the loop: it polls standard input and says line_feed() when there is something. While a prompt stands, readline has the
 * terminal; between line_hide() or a taken line and the next line_prompt(), the terminal does not echo and keeps what is typed for the next
 * prompt, so that typing ahead works and does not mix with output. Static state: there is one terminal. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_LINE_H
#define RANKSCOPE_CONSOLE_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "console/complete.h"

typedef void (*line_complete_fn)(void *ctx, const char *line, size_t point, struct complete *out);

/* LINE_TOGGLE: the person asked for the other kind of console (F12, or Ctrl-X Ctrl-A). */
enum line_status { LINE_MORE, LINE_READY, LINE_EOF, LINE_TOGGLE };

/* Told what could stand at the point when there are several possibilities (panels only). */
typedef void (*line_matches_fn)(void *ctx, const char *const *words, size_t n);

/* Take over the terminal on stdin and stdout, and read the history. Everything is undone by line_close(), and by any way of exit. */
void line_open(line_complete_fn complete, void *ctx);
void line_close(void);

/* Show a prompt and wait for a line. Nothing happens when one stands already. */
void line_prompt(const char *prompt);

/* Whether a prompt stands. */
bool line_active(void);

/* Read what the terminal has. LINE_READY: take the line. */
enum line_status line_feed(void);
char *line_take(void); /* the caller frees */

/* Ctrl-C at the prompt: the line is dropped and a new prompt shown. */
void line_clear(void);

/* Take the prompt and what is typed off the screen to print something, and put them back. */
void line_hide(void);
void line_show(void);

/* Take the prompt away for good; what was typed stands at the next one. */
void line_aside(void);

/* While no prompt stands: read what the terminal has and keep it for the next prompt. LINE_TOGGLE: the keys that ask for the other kind of console
 * were among it (and are taken out); LINE_EOF: the terminal is gone; otherwise LINE_MORE. */
enum line_status line_watch(void);

/* Whether typed text is kept so; line_feed() takes it first, without waiting. line_kept() hands it over instead: as many bytes as fit. */
bool line_has_kept(void);
size_t line_kept(char *to, size_t size);

/* The window has another size. */
void line_resize(void);

/* ---- under panels: the same line, history and keys, fed by bytes and drawn by someone else ------------------------------------------- */

/* Change sides; text and cursor stay. Under panels a prompt always stands, nothing here reads or writes the terminal, and neither needs one
 * to be there. */
void line_panels_enter(const char *prompt, line_matches_fn matches);
void line_panels_leave(void);

/* Type these bytes. LINE_READY: take the line, then call again with n 0 for what is left of them. */
enum line_status line_push(const char *bytes, size_t n);

/* Put text in at the cursor as if it had been typed with no key bound to anything. */
void line_insert(const char *text);

/* The text and the cursor's offset in it in bytes; valid until the next call. */
const char *line_text(size_t *point);

/* What stands before the text: the prompt, or what a search in the history says. */
const char *line_prefix(void);

/* Whether the bytes so far are half a key sequence; line_escape() forgets that half (and ends a search). */
bool line_half_key(void);
void line_escape(void);

/* Before and after this process is stopped by Ctrl-Z. */
void line_suspend(void);
void line_resume(void);

#endif
