/* scr_script.h: the state that an operator's own scripts run in.
 *
 * Operators' code is trusted: the whole standard library is there, require() also searches PKGDATADIR/lua and the folder of the script. What such a
 * state does not get is the power to hang the program: a hook looks at an interrupt flag every few thousand instructions and then raises at every
 * further line, so that a pcall() in the script cannot swallow it. One thread per state; scr_script_interrupt() may be called from any. */
#ifndef RANKSCOPE_LUA_SCR_SCRIPT_H
#define RANKSCOPE_LUA_SCR_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/rankscope.h"

struct scr_script;

/* What the program around offers to scripts. All may be NULL. ctx is passed back. */
struct scr_host {
    void *ctx;
    void (*print)(void *ctx, const char *text, size_t len);        /* print() and io.write(); NULL: stdout */
    /* Rows in columns, in the room that there is; heads as table_new() of the console has them, NUL-terminated cells. NULL: there is no such place; false: the cells make
     * no table. */
    bool (*table)(void *ctx, const char *heads, const char *const *cells, size_t n);
    bool (*interrupted)(void *ctx);                                /* has the operator asked to stop? */
    void (*pump)(void *ctx);                                       /* called now and then while Lua runs, to keep a screen alive */
    struct rs_engine *(*engine)(void *ctx);                        /* the console's own engine, for scripts that run inside it */
    void (*event)(void *ctx, const struct rs_event *ev);           /* sees every event that a script reads from the engine of engine() */
    bool (*reserved)(void *ctx, const char *name);                 /* is there a command of this name that scripts may not replace? */
    /* Keys and panels of a console; NULL: there is none. key: bind it to an action or a line, or with action NULL to whatever commands.key(id) of the
     * library does; place and help may be NULL. */
    enum rs_result (*key)(void *ctx, const char *key, const char *place, const char *action, unsigned id, const char *help, struct rs_error *err);
    enum rs_result (*unkey)(void *ctx, const char *key, const char *place, struct rs_error *err);
    enum rs_result (*panel)(void *ctx, const char *name, const char *title, struct rs_error *err); /* title NULL: take it away */
    enum rs_result (*panel_text)(void *ctx, const char *name, const char *text, size_t len, struct rs_error *err);
    bool turns;                                                    /* it calls scr_script_turn(): tasks may outlive what started them */
    const char *default_model;                                     /* path of the shipped model */
    unsigned long (*json_failures)(void);                          /* for engines that a script starts; see struct rs_local_params */
};

/* lua_folder: where the Lua library lies (copied). Errors: RS_ENOMEM, RS_EFORMAT (the library does not load). */
enum rs_result scr_script_open(const struct scr_host *host, const char *lua_folder, struct scr_script **out, struct rs_error *err);
void scr_script_close(struct scr_script *s); /* NULL is allowed */

/* Run a file with arguments in `arg`. Errors: RS_EFORMAT with Lua's message (file:line) in err and the traceback in *trace (caller frees; may be
 * NULL), RS_ECANCELLED when interrupted. */
enum rs_result scr_script_file(struct scr_script *s, const char *path, int argc, char **argv, char **trace, struct rs_error *err);

/* Call a function of the Lua library, `function` of what require(module) gives, with one string; what it returns is dropped. */
enum rs_result scr_script_call(struct scr_script *s, const char *module, const char *function, const char *arg, char **trace, struct rs_error *err);

/* Start a file as a task in the background; *id is its number. host.turns must be set. */
enum rs_result scr_script_start(struct scr_script *s, const char *path, unsigned *id, struct rs_error *err);

/* Give tasks their turns: from the program's loop, when something came from the engine and when it is time. Returns seconds until it is time again;
 * negative: there is no task. */
double scr_script_turn(struct scr_script *s);
/* The engine of engine() is about to be closed: nothing of the script touches it any more. */
void scr_script_part(struct scr_script *s);
/* Show tasks an event that the program has read from the engine of engine(). */
void scr_script_event(struct scr_script *s, const struct rs_event *ev);

/* Commands that scripts have added (rs.cmd.add), by name. */
typedef void (*scr_word_fn)(void *ctx, const char *word, const char *help);
void scr_script_commands(struct scr_script *s, scr_word_fn each, void *ctx);
bool scr_script_has_command(struct scr_script *s, const char *name);

/* What the expression that ends `text` could go on with: whole words that begin with that expression ("rs.pa" gives "rs.patch"). Looks only at tables
 * that are there; nothing of the script is called. help is NULL. */
void scr_script_complete(struct scr_script *s, const char *text, scr_word_fn each, void *ctx);

/* Run code. As an expression if it is one: its values are pretty-printed through host.print. */
enum rs_result scr_script_code(struct scr_script *s, const char *code, const char *name, char **trace, struct rs_error *err);

#endif
