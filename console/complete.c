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

/* What /help explains: groups, and commands with or without their slash. */
static void offer_topics(struct complete *c, const char *typed)
{
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++)
        offer(c, typed, xstrdup(g->name));
    offer(c, typed, xstrdup("all"));
    for (size_t i = 0; *typed != '\0' && rcmd_table[i] != NULL; i++)
        offer(c, typed, xstrdup(rcmd_table[i]->name));
    if (*typed == '/')
        offer_commands(c, typed);
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

static const char *impl_name(const json_t *slot, size_t k)
{
    const json_t *e = json_array_get(json_object_get(slot, "impls"), k);
    return json_is_string(e) ? json_string_value(e) : js_str(e, "name", "");
}

static void offer_slot_names(struct con *con, struct complete *c, const char *typed)
{
    need_slots(con);
    for (size_t i = 0; i < json_array_size(con->slots); i++)
        offer(c, typed, xstrdup(js_str(json_array_get(con->slots, i), "slot", "")));
}

/* SLOT=IMPL; the first `before` bytes of typed stand before it. */
static void offer_slots(struct con *con, struct complete *c, const char *typed, size_t before)
{
    need_slots(con);
    for (size_t i = 0; i < json_array_size(con->slots); i++) {
        const json_t *s = json_array_get(con->slots, i);
        const char *slot = js_str(s, "slot", "");
        if (strchr(typed + before, '=') == NULL) {
            offer(c, typed, xasprintf("%.*s%s=", (int)before, typed, slot));
            continue;
        }
        for (size_t k = 0; k < json_array_size(json_object_get(s, "impls")); k++)
            offer(c, typed, xasprintf("%.*s%s=%s", (int)before, typed, slot, impl_name(s, k)));
    }
}

/* Settings and slots, joined by commas: "mode=eager,mla=off". In a list of levels ("mla=absorbed,off") what follows a comma is a level. */
static void offer_config(struct con *con, struct complete *c, const char *typed, bool levels)
{
    static const char *const words[] = {"mode=eager", "mode=graph", "numerics=invariant", "numerics=fast", "ranks="};
    const char *comma = strrchr(typed, ','), *equals = strchr(typed, '=');
    size_t before = comma != NULL ? (size_t)(comma - typed) + 1 : 0;
    if (levels && equals != NULL && comma != NULL) {
        need_slots(con);
        for (size_t i = 0; i < json_array_size(con->slots); i++) {
            const json_t *s = json_array_get(con->slots, i);
            const char *slot = js_str(s, "slot", "");
            if (strlen(slot) != (size_t)(equals - typed) || strncmp(slot, typed, strlen(slot)) != 0)
                continue;
            for (size_t k = 0; k < json_array_size(json_object_get(s, "impls")); k++)
                offer(c, typed, xasprintf("%.*s%s", (int)before, typed, impl_name(s, k)));
        }
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t name = strcspn(words[i], "=");
        if (levels && comma != NULL && equals != NULL && strncmp(typed, words[i], name + 1) == 0)
            offer(c, typed, xasprintf("%.*s%s", (int)before, typed, words[i] + name + 1));
        else if (!(levels && comma != NULL))
            offer(c, typed, xasprintf("%.*s%.*s", (int)before, typed, strchr(typed + before, '=') != NULL ? (int)strlen(words[i]) : (int)name + 1, words[i]));
    }
    if (!(levels && comma != NULL))
        offer_slots(con, c, typed, before);
}

/* How a pattern for sites could go on towards this site: up to the next dot. A part that is "*" stands for any. Caller frees; NULL: not at all. */
static char *site_word(const char *site, const char *typed)
{
    const char *start = typed;
    for (const char *dot; (dot = strchr(typed, '.')) != NULL; typed = dot + 1) {
        size_t n = (size_t)(dot - typed), m = strcspn(site, ".");
        bool any = n == 1 && *typed == '*';
        if (site[m] != '.' || (!any && (n != m || memcmp(site, typed, n) != 0)))
            return NULL;
        site += m + 1;
    }
    if (strncmp(site, typed, strlen(typed)) != 0)
        return NULL;
    size_t m = strcspn(site, ".");
    return xasprintf("%.*s%.*s", (int)(typed - start), start, (int)(m + (site[m] == '.')), site);
}

/* Sites of the loaded program; the first `before` bytes of typed stand before the pattern. names: a beginning without a dot may be that of sites' last names too. */
static void offer_sites(struct con *con, struct complete *c, const char *typed, size_t before, bool names)
{
    names = names && typed[before] != '\0' && strpbrk(typed + before, ".*?") == NULL;
    json_t *reply;
    if (con->engine == NULL || con->lost || con->await_id != 0 || con_request(con, "program", NULL, &reply, NULL) != RS_OK)
        return;
    const json_t *ops = json_object_get(reply, "ops");
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const char *site = js_str(json_array_get(ops, i), "site", ""), *dot = strrchr(site, '.');
        char *word = site_word(site, typed + before);
        if (names && dot != NULL)
            offer(c, typed, xasprintf("%.*s%s", (int)before, typed, dot + 1));
        if (word != NULL)
            offer(c, typed, xasprintf("%.*s%s", (int)before, typed, word));
        free(word);
    }
    json_decref(reply);
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
            offer_words(c, typed, "list|set|load|revert|reset");
        if (!first && strncmp(args, "load ", 5) == 0)
            offer_files(c, typed);
        else if (!first && strncmp(args, "list ", 5) == 0)
            offer_slot_names(con, c, typed);
        else if (strchr(typed, '@') != NULL)
            offer_sites(con, c, typed, (size_t)(strchr(typed, '@') - typed) + 1, false);
        else if (first || strncmp(args, "set ", 4) == 0)
            offer_slots(con, c, typed, 0);
        break;
    case RCMD_COMPLETE_CONFIG:
    case RCMD_COMPLETE_LEVELS:
        if (strstr(args, ": ") != NULL || strstr(args, "-p ") != NULL)
            break; /* the question, which is anything */
        offer_words(c, typed, e->words);
        offer_config(con, c, typed, e->complete == RCMD_COMPLETE_LEVELS);
        break;
    case RCMD_COMPLETE_SITE:
    case RCMD_COMPLETE_SITES:
        if (first)
            offer_sites(con, c, typed, 0, e->complete == RCMD_COMPLETE_SITES);
        offer_words(c, typed, first ? e->words : e->later);
        break;
    case RCMD_COMPLETE_SETTING: offer_settings(c, typed); break;
    case RCMD_COMPLETE_COMMAND:
        if (first)
            offer_topics(c, typed);
        if (first && *typed == '/')
            offer_added(con, c, typed);
        break;
    case RCMD_COMPLETE_LUA: offer_lua(con, c, typed); break;
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sort, each word once. */
static void sort(struct complete *c)
{
    size_t n = 0;
    if (c->n > 1)
        qsort(c->words, c->n, sizeof *c->words, by_text);
    for (size_t i = 0; i < c->n; i++) {
        if (n > 0 && strcmp(c->words[n - 1], c->words[i]) == 0)
            free(c->words[i]);
        else
            c->words[n++] = c->words[i];
    }
    c->n = n;
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
    sort(out);
    free(head);
}

void complete_fini(struct complete *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->words[i]);
    free(c->words);
    *c = (struct complete){0};
}
