/* opt.h: command-line options as tables.
 *
 * A subcommand names the tables that it takes; --help, the manual page and shell completion are made from the same rows. Values are read by
 * name after parsing; asking for a name that no table has is a mistake of the program and aborts. */
#ifndef RANKSCOPE_CONSOLE_OPT_H
#define RANKSCOPE_CONSOLE_OPT_H

#include <stdbool.h>
#include <stddef.h>

enum opt_type {
    OPT_FLAG,
    OPT_STRING,
    OPT_FILE, /* a string that completion takes for a file name */
    OPT_LIST, /* a string that may be given several times */
    OPT_INT,
    OPT_FLOAT,
    OPT_CHOICE, /* one of the words in choices */
};

struct opt {
    const char *name; /* long name without the dashes; a table ends with NULL */
    char letter;      /* or 0 */
    enum opt_type type;
    const char *arg; /* what --help calls the value */
    const char *help;
    const char *choices; /* OPT_CHOICE: words separated by '|' */
    double min, max;     /* OPT_INT, OPT_FLOAT: allowed range, both ends included */
};

#define OPT_MAX_TABLES 4

struct opt_value {
    const struct opt *opt;
    bool set;
    const char *text; /* points into argv */
    double number;
    const char **list;
    size_t n_list;
};

/* The outcome of parsing. Free with opt_fini(). */
struct opt_values {
    struct opt_value *values;
    size_t n;
    const char **args; /* what is not an option; borrowed from argv, NULL-terminated */
    size_t n_args;
};

/* Of the n tables, which end early at a NULL: does one before (or behind) the k-th have an option of that name? The one in front counts: a
 * subcommand can give an option that it shares more choices. */
bool opt_in_front(const struct opt *const *tables, size_t k, const char *name);
bool opt_behind(const struct opt *const *tables, size_t n, size_t k, const char *name);

/* Parse argv[1..]. tables ends with NULL. "--" ends the options; a lone "-" is an argument. On a mistake msg gets one line that names the
 * option, and false comes back with nothing to free. With first_arg_ends an argument ends the options (they are then the subcommand's). */
bool opt_parse(const struct opt *const *tables, int argc, char **argv, bool first_arg_ends, struct opt_values *out, char *msg,
               size_t msg_size);
void opt_fini(struct opt_values *v);

/* The option of the n tables, which end early at a NULL, that an argument such as "--name=value" or "-x" names, or NULL. */
const struct opt *opt_named(const struct opt *const *tables, size_t n, const char *arg);

bool opt_set(const struct opt_values *v, const char *name);
const char *opt_string(const struct opt_values *v, const char *name, const char *def);
long opt_int(const struct opt_values *v, const char *name, long def);
double opt_float(const struct opt_values *v, const char *name, double def);
size_t opt_list(const struct opt_values *v, const char *name, const char *const **list);

/* Whether word is one of the words of choices. */
bool opt_is_choice(const char *choices, const char *word);

#endif
