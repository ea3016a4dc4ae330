/* See hosts_rig.h. */
#include "tests/hosts_rig.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/engine_client.h"
#include "tests/tap.h"

/* The other hosts' processes are the program itself, not this test. */
const char *hosts_launcher(const char *more)
{
    static char s_words[4400];
    const char *build = getenv("abs_builddir"), *program = getenv("RANKSCOPE_PROGRAM");
    if (program != NULL)
        snprintf(s_words, sizeof s_words, "env %s TEST_HOST={host} %s {args}", more, program);
    else
        snprintf(s_words, sizeof s_words, "env %s TEST_HOST={host} %s/rankscope {args}", more, build != NULL ? build : ".");
    return s_words;
}

enum rs_result hosts_try(const char *hosts, const char *launch, unsigned timeout, struct rs_engine **out, struct rs_error *err)
{
    const struct rs_local_params p = {.workers = 2, .hosts = hosts, .launch = launch, .host_timeout = timeout};
    return rs_engine_local(&p, out, err);
}

/* Processes that follow another one and that this one has started, so many ms from now. */
int hosts_followers(pid_t out[8])
{
    DIR *d = opendir("/proc");
    int n = 0;
    for (struct dirent *f; d != NULL && (f = readdir(d)) != NULL;) {
        char path[300], text[400] = "";
        snprintf(path, sizeof path, "/proc/%s/environ", f->d_name);
        FILE *in = fopen(path, "r");
        char *env = NULL;
        size_t cap = 0;
        bool ours = false;
        while (in != NULL && getdelim(&env, &cap, '\0', in) > 0)
            ours |= strncmp(env, "TEST_HOST=", 10) == 0;
        free(env);
        if (in != NULL)
            fclose(in);
        snprintf(path, sizeof path, "/proc/%s/stat", f->d_name);
        in = ours ? fopen(path, "r") : NULL;
        if (in != NULL && fgets(text, sizeof text, in) != NULL && strstr(text, ") Z ") == NULL && n < 8)
            out[n++] = (pid_t)atoi(f->d_name);
        if (in != NULL)
            fclose(in);
    }
    if (d != NULL)
        closedir(d);
    return n;
}

int hosts_left(void)
{
    pid_t pid[8];
    int n = 0;
    for (int i = 0; i < 400 && (n = hosts_followers(pid)) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return n;
}

void hosts_signalled(const struct hosts_loss *l)
{
    struct rs_engine *e;
    struct rs_error err;
    struct rs_event ev;
    pid_t pid[8];
    char *reply = NULL;
    bool named = false, told = false, over = false;
    int tokens = 0;
    unsigned others = 0;
    for (const char *p = l->hosts; *p != '\0'; p++)
        others += *p == ',';
    if (!tap_ok(hosts_try(l->hosts, hosts_launcher(l->env != NULL ? l->env : ""), 2, &e, &err) == RS_OK, "%s: %u hosts start", l->what, others + 1))
        return;
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ctx\":2048%s}", tap_source(l->model), l->more));
    tap_eq_int(hosts_followers(pid), (int)others, "%s: as many other processes run", l->what);
    if (rs_request(e, "submit", "{\"ids\":[1,40,9,17,5],\"max_tokens\":2000,\"ignore_eos\":true}", 60000, &reply, &err) != RS_OK)
        tap_diag("submit: %s", err.msg);
    free(reply);
    while (!over && rs_next(e, 30000, &ev, &err) == RS_OK) {
        if (ev.type == RS_EVENT_TOKEN && ++tokens == 20)
            kill(pid[0], l->sig);
        if (ev.type == RS_EVENT_DONE)
            tap_diag("%.300s", strstr(ev.json, "\"error\":") != NULL ? strstr(ev.json, "\"error\":") : ev.json);
        named |= ev.type == RS_EVENT_DONE && strstr(ev.json, "host localhost (rank") != NULL && strstr(ev.json, l->part) != NULL;
        told |= ev.type == RS_EVENT_LOG && strstr(ev.json, "host localhost (rank") != NULL;
        over = ev.type == RS_EVENT_LOST;
    }
    tap_ok(tokens >= 20 && named, "%s in an answer: it ends with an error that names host and ranks", l->what);
    tap_ok(told && over, "%s in an answer: who is connected learns it, and the engine ends", l->what);
    rs_engine_close(e);
    if (l->sig == SIGSTOP)
        kill(pid[0], SIGCONT);
    tap_eq_int(hosts_left(), 0, "%s in an answer: nothing is left", l->what);
}
