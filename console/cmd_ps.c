/* cmd_ps.c: rankscope ps and stop: which engines run, and ending one. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "console/cmd_list.h"
#include "console/daemon.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/table.h"

static const struct opt s_ps_options[] = {
    {.name = "json", .type = OPT_FLAG, .help = "print the list as JSON"},
    {0},
};

/* "2 h 05 min" since a Unix time; caller frees. */
static char *age(double since)
{
    double s = difftime(time(NULL), (time_t)since);
    if (!isfinite(since) || s < 0)
        return xstrdup("n/a");
    if (s < 120)
        return xasprintf("%.0f s", s);
    long min = (long)s / 60;
    return min < 60 ? xasprintf("%ld min", min) : xasprintf("%ld h %02ld min", min / 60, min % 60);
}

static void print_list(const json_t *list)
{
    struct out_stdio out;
    out_stdio_init(&out, stdout, stderr);
    struct table *t = table_new("name|>3pid|~model|>1ranks|>2runs for");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        char *runs = age(js_num(e, "since", NAN));
        table_cell(t, "%s", js_str(e, "name", "?"));
        table_cell(t, "%lld", (long long)js_int(e, "pid", 0));
        table_cell(t, "%s", js_str(e, "model", "none"));
        table_cell(t, "%lld", (long long)js_int(e, "ranks", 0));
        table_cell(t, "%s", runs);
        free(runs);
    }
    table_print(t, &out.out);
    if (json_array_size(list) == 0)
        fputs("no engine is running\n", stderr);
}

static enum exit_status exec_ps(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    json_t *list;
    if (daemon_list(&list, &err) != RS_OK)
        return cmd_fail(self, &err);
    if (opt_set(v, "json")) {
        char *text = js_dump(list, JSON_COMPACT);
        puts(text);
        free(text);
    } else {
        print_list(list);
    }
    json_decref(list);
    return EXIT_OK;
}

const struct cmd_entry cmd_ps_entry = {
    .name = "ps",
    .args = "",
    .summary = "list the engines that run",
    .help = "Lists the engines of this user that run.",
    .tables = {s_ps_options},
    .max_args = 0,
    .exec = exec_ps,
};

static const struct opt s_stop_options[] = {
    {.name = "all", .letter = 'a', .type = OPT_FLAG, .help = "end all engines of this user"},
    {0},
};

/* End the engine of that name; NULL: the only one that runs. */
static enum exit_status stop(const struct cmd_entry *self, const char *name)
{
    struct rs_error err = {0};
    struct oneshot s = {.entry = self};
    out_stdio_init(&s.out, stdout, stderr);
    con_init(&s.con, &s.out.out);
    enum rs_result r = daemon_connect(&s.con, name, NULL, &err);
    if (r == RS_OK && (r = daemon_stop(&s.con, &err)) == RS_ESTATE) {
        struct rs_error why = err;
        fail_set(&err, r, "%s: /quit or /detach there first, or end its process (rankscope ps names it)", why.msg);
    }
    enum exit_status status = r == RS_OK ? EXIT_OK : cmd_fail(self, &err);
    return oneshot_end(&s, r == RS_ENOTFOUND ? EXIT_COMMAND : status);
}

static enum exit_status stop_all(const struct cmd_entry *self)
{
    struct rs_error err = {0};
    json_t *list;
    enum exit_status status = EXIT_OK;
    if (daemon_list(&list, &err) != RS_OK)
        return cmd_fail(self, &err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum exit_status one = stop(self, js_str(json_array_get(list, i), "name", "?"));
        status = one != EXIT_OK ? one : status;
    }
    json_decref(list);
    return status;
}

static enum exit_status exec_stop(const struct cmd_entry *self, const struct opt_values *v)
{
    if (opt_set(v, "all"))
        return v->n_args == 0 ? stop_all(self) : cmd_usage(self, "--all or names, not both");
    if (v->n_args == 0)
        return stop(self, NULL);
    enum exit_status status = EXIT_OK;
    for (size_t i = 0; i < v->n_args; i++) {
        enum exit_status one = stop(self, v->args[i]);
        status = one != EXIT_OK ? one : status;
    }
    return status;
}

const struct cmd_entry cmd_stop_entry = {
    .name = "stop",
    .args = "[NAME...]",
    .summary = "end an engine",
    .help = "Ends the engines that are named, or the only one that runs, and with them the conversations that they hold.",
    .tables = {s_stop_options},
    .max_args = 64,
    .exec = exec_stop,
};
