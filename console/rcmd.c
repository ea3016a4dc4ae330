#include "config.h"

#include "console/rcmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/rcmd_list.h"
#include "console/rcmd_lua.h"
#include "console/text.h"
#include "console/units.h"
#include "engine/rankscope.h"

const struct rcmd_entry *const rcmd_table[] = {
    &rcmd_help_entry,
    &rcmd_lua_entry,
    &rcmd_run_entry,
    &rcmd_quit_entry,
    &rcmd_info_entry,
    &rcmd_load_entry,
    &rcmd_mode_entry,
    &rcmd_ranks_entry,
    &rcmd_patch_entry,
    &rcmd_weights_entry,
    &rcmd_set_entry,
    &rcmd_spec_entry,
    &rcmd_system_entry,
    &rcmd_think_entry,
    &rcmd_temp_entry,
    &rcmd_top_k_entry,
    &rcmd_top_p_entry,
    &rcmd_min_p_entry,
    &rcmd_seed_entry,
    &rcmd_max_entry,
    &rcmd_new_entry,
    &rcmd_retry_entry,
    &rcmd_rewind_entry,
    &rcmd_fork_entry,
    &rcmd_branch_entry,
    &rcmd_save_entry,
    &rcmd_open_entry,
    &rcmd_serve_entry,
    &rcmd_stats_entry,
    &rcmd_allreduce_entry,
    &rcmd_ledger_entry,
    &rcmd_health_entry,
    &rcmd_audit_entry,
    &rcmd_tap_entry,
    &rcmd_untap_entry,
    &rcmd_watch_entry,
    &rcmd_break_entry,
    &rcmd_where_entry,
    &rcmd_step_entry,
    &rcmd_next_entry,
    &rcmd_continue_entry,
    &rcmd_print_entry,
    &rcmd_poke_entry,
    &rcmd_lens_entry,
    &rcmd_experts_entry,
    &rcmd_diff_entry,
    &rcmd_replay_entry,
    &rcmd_triage_entry,
    &rcmd_exp_entry,
    &rcmd_bisect_entry,
    &rcmd_claim_entry,
    &rcmd_retest_entry,
    &rcmd_notebook_entry,
    &rcmd_copy_entry,
    &rcmd_snapshot_entry,
    &rcmd_layout_entry,
    &rcmd_theme_entry,
    &rcmd_bind_entry,
    &rcmd_control_entry,
    &rcmd_detach_entry,
    &rcmd_restart_entry,
    NULL,
};

const struct rcmd_group rcmd_groups[] = {
    {RCMD_CHAT, "chat", "the conversation, and how words are chosen"},
    {RCMD_MODEL, "model", "what is loaded, how it runs; patches"},
    {RCMD_FIGURES, "figures", "times, what ran, what ops write, verdicts"},
    {RCMD_DEBUGGER, "debugger", "stop at an op, look, change, go on"},
    {RCMD_CAUSES, "causes", "what makes output wrong; what is known"},
    {RCMD_CONSOLE, "console", "panels, Lua, other clients, leaving"},
    {RCMD_NOTHING, NULL, NULL},
};

const struct rcmd_group *rcmd_group_find(const char *name)
{
    const struct rcmd_group *found = NULL;
    size_t len = strlen(name), n = 0;
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++) {
        if (strcmp(g->name, name) == 0)
            return g;
        if (len > 0 && strncmp(g->name, name, len) == 0) {
            found = g;
            n++;
        }
    }
    return n == 1 ? found : NULL;
}

const struct rcmd_entry *rcmd_exact(const char *name)
{
    for (size_t i = 0; rcmd_table[i] != NULL; i++)
        if (strcmp(rcmd_table[i]->name, name) == 0)
            return rcmd_table[i];
    return NULL;
}

/* Is name one of the words, which blanks separate? */
static bool among(const char *words, const char *name, size_t len)
{
    while (words != NULL && len > 0) {
        const size_t n = strcspn(words, " ");
        if (n == len && memcmp(words, name, n) == 0)
            return true;
        words = words[n] == ' ' ? words + n + 1 : NULL;
    }
    return false;
}

const struct rcmd_entry *rcmd_find(const char *name, struct rs_error *err)
{
    const struct rcmd_entry *found = NULL;
    struct buf names = {0};
    size_t len = strlen(name), n = 0;
    char hint[80];
    struct rs_near near;
    rs_near_init(&near, name, len);
    for (size_t i = 0; rcmd_table[i] != NULL; i++) {
        if (strcmp(rcmd_table[i]->name, name) == 0 || among(rcmd_table[i]->also, name, len)) {
            buf_fini(&names);
            return rcmd_table[i];
        }
        rs_near_try(&near, rcmd_table[i]->name);
        if (len > 0 && strncmp(rcmd_table[i]->name, name, len) == 0) {
            found = rcmd_table[i];
            buf_printf(&names, "%s/%s", n++ > 0 ? ", " : "", found->name);
        }
    }
    if (n == 0)
        fail_set(err, RS_EUSAGE, "there is no command /%s%s; /help lists them", name, rs_near_hint(&near, "/", hint, sizeof hint));
    else if (n > 1)
        fail_set(err, RS_EUSAGE, "/%s could be %s", name, names.text);
    buf_fini(&names);
    return n == 1 ? found : NULL;
}

enum rs_result rcmd_usage(const struct rcmd_entry *self, struct rs_error *err)
{
    return fail_set(err, RS_EUSAGE, "usage: /%s%s%s", self->name, *self->args ? " " : "", self->args);
}

void rcmd_changed(struct con *con, const char *what, const char *from, const char *to, double ms)
{
    char took[32], *a = text_one_line(from), *b = text_one_line(to);
    if (strcmp(a, b) == 0)
        out_printf(con->out, OUT_NOTE, "%s: %s, as it was\n", what, a);
    else if (isfinite(ms))
        out_printf(con->out, OUT_NOTE, "%s: %s -> %s (%s)\n", what, a, b, units_us(took, ms * 1e3));
    else
        out_printf(con->out, OUT_NOTE, "%s: %s -> %s\n", what, a, b);
    free(a);
    free(b);
}

double rcmd_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static enum rs_result run_command(struct con *con, const char *line, struct rs_error *err)
{
    char name[64];
    size_t n = strcspn(line, " \t");
    if (n >= sizeof name)
        return fail_set(err, RS_EUSAGE, "there is no such command; /help lists them");
    memcpy(name, line, n);
    name[n] = '\0';
    bool added = rcmd_lua_has(con, name);
    const struct rcmd_entry *e = added ? NULL : rcmd_find(name, err);
    if (e == NULL && !added)
        return err->code;
    char *args = xstrdup(line + n + strspn(line + n, " \t"));
    for (size_t len = strlen(args); len > 0 && strchr(" \t", args[len - 1]) != NULL; len--)
        args[len - 1] = '\0';
    if (added) {
        enum rs_result rc = rcmd_lua_command(con, name, args, err);
        free(args);
        return rc;
    }
    enum rs_result r = *e->args == '\0' && *args != '\0' ? rcmd_usage(e, err) : e->exec(e, con, args, err);
    free(args);
    return r;
}

/* A lone word that is a command elsewhere is no question: the person is told what it would have been here. The model gets it all the same. */
static void hint_command(struct con *con, const char *text)
{
    const char *name = strcmp(text, "exit") == 0 ? "quit" : text;
    if (con->out->terminal && rcmd_exact(name) != NULL)
        out_printf(con->out, OUT_NOTE, "(said to the model; /%s is the command)\n", name);
}

bool rcmd_line(struct con *con, const char *line)
{
    struct rs_error err = {0};
    enum rs_result r;
    size_t bad;
    char again[sizeof con->again];
    if (line[strspn(line, " \t\r\n")] == '\0') {
        if (con->stopped == NULL || con->again[0] == '\0' || !con->out->terminal)
            return true;
        memcpy(again, con->again, sizeof again); /* running it fills it anew */
        line = again;
    }
    con->again[0] = '\0';
    const char *word = line + strspn(line, " \t");
    if (word[0] == '/')
        line = word;
    if (!text_valid(line, strlen(line), &bad))
        r = fail_set(&err, RS_EUSAGE, "not UTF-8 text: byte %zu is 0x%02x", bad, (unsigned char)line[bad]);
    else if (line[0] == '/' && line[1] != '/')
        r = run_command(con, line + 1, &err);
    else if (line[0] == '=')
        r = rcmd_lua_eval(con, line + 1, &err);
    else {
        hint_command(con, line);
        r = chat_turn(con, line[0] == '/' ? line + 1 : line, &err);
    }
    if (r == RS_OK)
        return true;
    con->errors++;
    out_error(con->out, "%s", err.msg);
    return false;
}
