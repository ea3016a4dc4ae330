/* rcmd.h: the commands of the console ("/mode" and its like), one file for each family (rcmd_*.c), listed in rcmd.c.
 *
 * They are the same under readline, in batch mode and in panels: a command gets the session and its arguments, writes to con->out and
 * returns a result; it never prints. /help, completion and the manual page come from the table. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_RCMD_H
#define RANKSCOPE_CONSOLE_RCMD_H

#include "console/con.h"

enum rcmd_complete {
    RCMD_COMPLETE_NONE,
    RCMD_COMPLETE_WORDS, /* one of the words of the entry */
    RCMD_COMPLETE_FILE,
    RCMD_COMPLETE_PATCH,   /* list, set, load, revert, reset, then slots and implementations */
    RCMD_COMPLETE_CONFIG,  /* words, settings and slots, joined by commas */
    RCMD_COMPLETE_LEVELS,  /* settings and slots, each with several levels */
    RCMD_COMPLETE_SITE,    /* a site or one of the words, then the later words */
    RCMD_COMPLETE_SITES,   /* the same, and names that many sites share */
    RCMD_COMPLETE_SETTING, /* NAME=VALUE */
    RCMD_COMPLETE_COMMAND,
    RCMD_COMPLETE_LUA,
};

/* What commands are about, for /help. */
enum rcmd_about { RCMD_NOTHING, RCMD_CHAT, RCMD_MODEL, RCMD_FIGURES, RCMD_DEBUGGER, RCMD_CAUSES, RCMD_CONSOLE };

struct rcmd_group {
    enum rcmd_about about;
    const char *name, *summary;
};

struct rcmd_entry {
    const char *name; /* without the slash */
    const char *also; /* short words that mean it too, however many others begin so, separated by blanks; or NULL */
    enum rcmd_about group;
    const char *args; /* for the usage line; "" when it takes none */
    const char *summary;
    const char *help; /* more, for /help NAME; or NULL */
    bool lists; /* what it writes is read from the beginning: where there is little room the beginning stays in sight */
    enum rcmd_complete complete;
    const char *words; /* separated by '|' */
    const char *later; /* likewise, behind a site */
    enum rs_result (*exec)(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err);
};

/* All of them, NULL-terminated. */
extern const struct rcmd_entry *const rcmd_table[];

/* In the order of /help; the last has no name. No group is called as a command is. */
extern const struct rcmd_group rcmd_groups[];

/* The group of that name, or the only one that begins so; NULL: there is none. */
const struct rcmd_group *rcmd_group_find(const char *name);

/* The command of exactly that name; NULL: there is none. */
const struct rcmd_entry *rcmd_exact(const char *name);

/* The command of that name, or the only one that begins so; NULL with *err filled otherwise. */
const struct rcmd_entry *rcmd_find(const char *name, struct rs_error *err);

/* One line of input: "/command args", "=LUA", "//text" for text that begins with a slash (blanks before a slash do not count, before "=" they make it a text), or text for the
 * model. Errors are shown. Returns false when it failed; an answer that was stopped on purpose is no failure. */
bool rcmd_line(struct con *con, const char *line);

/* One line about a change: "mode: graph -> eager (1.24 ms)". ms NAN: it took no time worth telling. */
void rcmd_changed(struct con *con, const char *what, const char *from, const char *to, double ms);

/* Milliseconds of a monotonic clock, for what the engine does not time itself. */
double rcmd_ms(void);

/* The one-line usage as an error. */
enum rs_result rcmd_usage(const struct rcmd_entry *self, struct rs_error *err);

#endif
