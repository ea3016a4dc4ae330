#include "config.h"

#include "console/complete.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "console/js.h"
#include "console/paths.h"
#include "console/rcmd.h"
#include "console/rcmd_lua.h"
#include "console/setting.h"
#include "console/text.h"

/* Keep word (consumed) if it begins with what was typed. */
static void offer(struct complete *c, const char *typed, char *word)
{
    if (strncmp(word, typed, strlen(typed)) != 0) {
        free(word);
        return;
    }
    c->words = xreallocarray(c->words, c->n + 1, sizeof *c->words);
    c->words[c->n++] = word;
}

static void offer_words(struct complete *c, const char *typed, const char *words)
{
    while (words != NULL && *words != '\0') {
        size_t n = strcspn(words, "|");
        offer(c, typed, xstrndup(words, n));
        words += n + (words[n] == '|');
    }
}

static void offer_commands(struct complete *c, const char *typed)
{
    for (size_t i = 0; rcmd_table[i] != NULL; i++)
        offer(c, typed, xasprintf("/%s", rcmd_table[i]->name));
}

struct lua_words {
    struct complete *c;
    const char *typed;   /* the word that a person sees completed */
    size_t before;       /* of its bytes, those before the expression */
};

static void take_lua(void *ctx, const char *word, const char *help)
{
    struct lua_words *w = ctx;
    (void)help;
    offer(w->c, w->typed, xasprintf("%.*s%s", (int)w->before, w->typed, word));
}

/* typed may hold more than the expression that is completed: "#rs.pa". */
static void offer_lua(struct con *con, struct complete *c, const char *typed)
{
    size_t n = strlen(typed);
    while (n > 0 && (isalnum((unsigned char)typed[n - 1]) || strchr("_.:", typed[n - 1]) != NULL))
        n--;
    struct lua_words w = {.c = c, .typed = typed, .before = n};
    rcmd_lua_complete(con, typed, take_lua, &w);
}

static void offer_settings(struct complete *c, const char *typed)
{
    if (strchr(typed, '=') == NULL)
        offer(c, typed, xstrdup("mouse="));
    else
        offer_words(c, typed, "mouse=on|mouse=off");
    for (const struct setting *s = setting_table; s->name != NULL; s++) {
        if (strchr(typed, '=') == NULL) {
            offer(c, typed, xasprintf("%s=", s->name));
            continue;
        }
        for (const char *w = s->choices; *w != '\0';) {
            size_t n = strcspn(w, "|");
            offer(c, typed, xasprintf("%s=%.*s", s->name, (int)n, w));
            w += n + (w[n] == '|');
        }
    }
}

static void need_slots(struct con *con)
{
    json_t *reply;
    if (con->slots != NULL || con->engine == NULL || con->lost || con->await_id != 0)
        return;
    if (con_request(con, "patch.list", NULL, &reply, NULL) != RS_OK)
        return;
    con->slots = js_or_null(reply, "slots");
    json_decref(reply);
}

static void offer_slots(struct con *con, struct complete *c, const char *typed)
{
    need_slots(con);
    for (size_t i = 0; i < json_array_size(con->slots); i++) {
        const json_t *s = json_array_get(con->slots, i), *impls = json_object_get(s, "impls");
        const char *slot = js_str(s, "slot", "");
        if (strchr(typed, '=') == NULL) {
            offer(c, typed, xasprintf("%s=", slot));
            continue;
        }
        for (size_t k = 0; k < json_array_size(impls); k++) {
            const json_t *e = json_array_get(impls, k);
            offer(c, typed, xasprintf("%s=%s", slot, json_is_string(e) ? json_string_value(e) : js_str(e, "name", "")));
        }
    }
}

/* Names that hold control characters are left out: they would go to the terminal. */
static void offer_files(struct complete *c, const char *typed)
{
    const char *slash = strrchr(typed, '/');
    size_t dir_len = slash != NULL ? (size_t)(slash - typed) + 1 : 0;
    char *dir = xstrndup(typed, dir_len), *real = paths_expand(dir_len > 0 ? dir : ".");
    const char *base = typed + dir_len;
    DIR *d = opendir(real);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char *clean = text_one_line(e->d_name), *path = xasprintf("%s/%s", real, e->d_name);
        struct stat st;
        bool hidden = e->d_name[0] == '.' && base[0] != '.', folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        bool dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        if (!hidden && !dots && strcmp(clean, e->d_name) == 0)
            offer(c, typed, xasprintf("%s%s%s", dir, e->d_name, folder ? "/" : ""));
        free(clean);
        free(path);
    }
    if (d != NULL)
        closedir(d);
    free(dir);
    free(real);
}

static void offer_args(struct con *con, struct complete *c, const struct rcmd_entry *e, const char *args, const char *typed)
{
    bool first = args == typed;
    switch (e->complete) {
    case RCMD_COMPLETE_NONE: break;
    case RCMD_COMPLETE_WORDS:
        if (first)
            offer_words(c, typed, e->words);
        break;
    case RCMD_COMPLETE_FILE: offer_files(c, typed); break;
    case RCMD_COMPLETE_PATCH:
        if (first)
            offer_words(c, typed, "list|set|revert|reset");
        if (first || strncmp(args, "set ", 4) == 0)
            offer_slots(con, c, typed);
        break;
    case RCMD_COMPLETE_SETTING: offer_settings(c, typed); break;
    case RCMD_COMPLETE_COMMAND: offer_commands(c, typed); break;
    case RCMD_COMPLETE_LUA: offer_lua(con, c, typed); break;
    }
}

struct added {
    struct complete *c;
    const char *typed;
};

static void take_added(void *ctx, const char *word, const char *help)
{
    struct added *a = ctx;
    (void)help;
    offer(a->c, a->typed, xasprintf("/%s", word));
}

static void offer_added(struct con *con, struct complete *c, const char *typed)
{
    struct added a = {c, typed};
    if (con->script != NULL)
        scr_script_commands(con->script, take_added, &a);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void complete_line(struct con *con, const char *line, size_t point, struct complete *out)
{
    *out = (struct complete){0};
    char *head = xstrndup(line, point);
    size_t name = strcspn(head, " \t");
    if (head[0] == '/' && head[name] == '\0') {
        offer_commands(out, head);
        offer_added(con, out, head);
    } else if (head[0] == '=') {
        const char *blank = strrchr(head, ' ');
        offer_lua(con, out, blank != NULL ? blank + 1 : head);
    } else if (head[0] == '/') {
        const char *args = head + name + strspn(head + name, " \t"), *typed = args;
        for (const char *p = args; *p != '\0'; p++)
            if (*p == ' ' || *p == '\t')
                typed = p + 1;
        head[name] = '\0';
        struct rs_error err;
        const struct rcmd_entry *e = rcmd_find(head + 1, &err);
        if (e != NULL)
            offer_args(con, out, e, args, typed);
    }
    if (out->n > 1)
        qsort(out->words, out->n, sizeof *out->words, by_text);
    free(head);
}

void complete_fini(struct complete *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->words[i]);
    free(c->words);
    *c = (struct complete){0};
}
