/* See stage.h. */
#include "engine/stage.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cpu.h"
#include "engine/cuda_user.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/patch_host.h"
#include "engine/patch_test.h"
#include "engine/server.h"

struct stage {
    pid_t pid;
    int slot;
    uint32_t id;
    uint64_t t0;
    bool activate;
    char site[OP_SITE_MAX];
    enum stage_language language;
    char dir[64];        /* temporary folder: patch.so, selftest, log, source */
    char path[PATH_MAX]; /* the file, absolute */
};

/* $1 compiler, $2 folder with engine/patch_api.h, $3 source, $4 temporary folder. Exit 41: does not compile; 42: not with its self-test; then
 * whatever becomes of the self-test, which may use 10 seconds of processor time. Twice that ends also what does not take the hint. */
#define SCRIPT \
    "\"$1\" -std=gnu11 -O2 -Wall -fPIC -ffp-contract=off -I\"$2\" -shared -o \"$4/patch.so\" \"$3\" -lm || exit 41\n" \
    "\"$1\" -std=gnu11 -O1 -ffp-contract=off -I\"$2\" -o \"$4/selftest\" \"$3\" \"$2/engine/patch_test.c\" \"$2/engine/patch_test_kinds.c\" \"$2/scripts/patches/selftest.c\" -lm || exit 42\n" \
    "ulimit -H -t 20; ulimit -S -t 10; ulimit -c 0; : >\"$4/log\"; exec \"$4/selftest\"\n"
enum { DOES_NOT_COMPILE = 41, DOES_NOT_LINK = 42 };

/* The same in CUDA C, where the program itself is the compiler and the self-test: see rs_stage_cuda(). Exit 43: the log says all. */
#define CUDA_SCRIPT "ulimit -t 60; ulimit -c 0; exec \"$1\" stage-cuda \"$3\" \"$2\" \"$4\"\n"
enum { IN_THE_LOG = 43 };

/* And for a hosted one, which needs no compiler: see rs_stage_hosted(). */
#define HOSTED_SCRIPT "ulimit -t 60; ulimit -c 0; exec \"$1\" stage-lua \"$4/source\" \"$3\"\n"
enum { MAX_SOURCE = 1 << 20 };

/* The folder that holds engine/patch_api.h and scripts/patches/selftest.c: named by the environment, installed, or the source tree. */
static const char *data_folder(char buf[PATH_MAX])
{
    const char *const tries[] = {getenv("RANKSCOPE_DATADIR"), PKGDATADIR, SRCDIR};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        if (tries[i] == NULL)
            continue;
        snprintf(buf, PATH_MAX, "%s/scripts/patches/selftest.c", tries[i]);
        if (access(buf, R_OK) != 0)
            continue;
        snprintf(buf, PATH_MAX, "%s", tries[i]);
        return buf;
    }
    return NULL;
}

static void remove_folder(const char *dir)
{
    static const char *const FILES[] = {"patch.so", "selftest", "log", "source", CUDA_USER_MODULE};
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        char p[128];
        snprintf(p, sizeof p, "%s/%s", dir, FILES[i]);
        unlink(p);
    }
    rmdir(dir);
}

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

enum stage_language stage_language(const struct engine *e, const char *path)
{
    if (e->host != NULL && ends_in(path, e->host->suffix))
        return STAGE_HOSTED;
    return ends_in(path, ".c") ? STAGE_C : ends_in(path, ".cu") ? STAGE_CUDA : STAGE_UNKNOWN;
}

/* The source as it is now: what is tested is what will be used, whatever becomes of the file meanwhile. */
static enum rs_result copy_source(const struct stage *s, struct rs_error *err)
{
    char to[128], buf[4096];
    size_t n, all = 0;
    snprintf(to, sizeof to, "%s/source", s->dir);
    FILE *in = fopen(s->path, "re"), *out = in != NULL ? fopen(to, "wex") : NULL;
    bool ok = out != NULL;
    while (ok && all <= MAX_SOURCE && (n = fread(buf, 1, sizeof buf, in)) > 0) {
        ok = fwrite(buf, 1, n, out) == n;
        all += n;
    }
    ok = ok && ferror(in) == 0;
    if (out != NULL)
        ok = fclose(out) == 0 && ok;
    if (in != NULL)
        fclose(in);
    if (!ok)
        return error_set(err, RS_EIO, "%s: cannot copy it to %s: %s", s->path, to, strerror(errno));
    return all <= MAX_SOURCE ? RS_OK : error_set(err, RS_EFORMAT, "%s: longer than %d bytes", s->path, MAX_SOURCE);
}

/* The file of this program; tests, which are other programs, name it. */
static bool program(char out[PATH_MAX])
{
    const char *named = getenv("RANKSCOPE_PROGRAM");
    if (named != NULL) {
        snprintf(out, PATH_MAX, "%s", named);
        return true;
    }
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n > 0)
        out[n] = '\0';
    return n > 0;
}

static enum rs_result spawn(struct stage *s, const char *data, struct rs_error *err)
{
    const char *cc = getenv("CC");
    char log[128];
    char compiler[PATH_MAX], folder[PATH_MAX], sh[] = "sh", opt[] = "-c", script[] = SCRIPT, cuda_script[] = CUDA_SCRIPT, hosted_script[] = HOSTED_SCRIPT;
    const bool itself = s->language != STAGE_C; /* the child is this program */
    char *argv[] = {sh, opt, s->language == STAGE_C ? script : s->language == STAGE_CUDA ? cuda_script : hosted_script, sh, compiler, folder, s->path, s->dir, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    extern char **environ;
    snprintf(log, sizeof log, "%s/log", s->dir);
    if (itself && !program(compiler))
        return error_set(err, RS_EIO, "cannot find this program's file: %s", strerror(errno));
    if (!itself)
        snprintf(compiler, sizeof compiler, "%s", cc != NULL && *cc != '\0' && strchr(cc, ' ') == NULL ? cc : "cc");
    snprintf(folder, sizeof folder, "%s", data);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&fa, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&fa, 1, 2);
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setsigdefault(&at, &all);
    int rc = posix_spawn(&s->pid, "/bin/sh", &fa, &at, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    return rc == 0 ? RS_OK : error_set(err, RS_EIO, "cannot start a process: %s", strerror(rc));
}

enum rs_result stage_start(struct engine *e, const struct stage_request *r, struct rs_error *err)
{
    char data[PATH_MAX];
    const char *tmp = getenv("TMPDIR");
    if (e->stage != NULL)
        return error_set(err, RS_ESTATE, "%s is still being staged", e->stage->path);
    if (e->patches.registry->n == PATCH_MAX_USER)
        return error_set(err, RS_ESTATE, "%d patches were loaded already, and none is ever unloaded; restart the engine", PATCH_MAX_USER);
    if (data_folder(data) == NULL)
        return error_set(err, RS_EIO, "engine/patch_api.h and scripts/patches are not installed (RANKSCOPE_DATADIR can name their folder)");
    struct stage *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory");
    s->slot = r->slot;
    s->id = r->id;
    s->activate = r->activate;
    s->language = stage_language(e, r->path);
    s->t0 = now_us();
    memcpy(s->site, r->site, sizeof s->site);
    snprintf(s->dir, sizeof s->dir, "%s/rankscope-patch-XXXXXX", tmp != NULL && strlen(tmp) < 30 ? tmp : "/tmp");
    enum rs_result rc = RS_OK;
    if (realpath(r->path, s->path) == NULL || access(s->path, R_OK) != 0)
        rc = error_set(err, RS_EIO, "%s: cannot open: %s", r->path, strerror(errno));
    if (rc == RS_OK && mkdtemp(s->dir) == NULL)
        rc = error_set(err, RS_EIO, "%s: cannot make a temporary folder: %s", s->dir, strerror(errno));
    else if (rc == RS_OK) {
        rc = s->language == STAGE_HOSTED ? copy_source(s, err) : RS_OK;
        if (rc == RS_OK)
            rc = spawn(s, data, err);
        if (rc != RS_OK)
            remove_folder(s->dir);
    }
    if (rc != RS_OK) {
        free(s);
        return rc;
    }
    e->stage = s;
    return RS_OK;
}

/* The first line of the log that says what is wrong, or the first line at all. */
static void read_log(const struct stage *s, char *out, size_t cap)
{
    char path[128], line[400];
    snprintf(path, sizeof path, "%s/log", s->dir);
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        bool says = strstr(line, "error") != NULL || strstr(line, "undefined") != NULL;
        if (out[0] == '\0' || says)
            snprintf(out, cap, "%.250s", line);
        if (says)
            break;
    }
    if (f != NULL)
        fclose(f);
}

static enum rs_result judge(const struct stage *s, int status, bool late, char *log, size_t cap, struct rs_error *err)
{
    read_log(s, log, cap);
    if (late)
        return error_set(err, RS_ETIMEOUT, "%s: compiling and self-test took more than %d s", s->path, STAGE_SECONDS);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
        return error_set(err, RS_EFORMAT, "%s: its self-test does not end: it has computed for too long (a loop?)", s->path);
    if (WIFSIGNALED(status))
        return error_set(err, RS_EFORMAT, "%s: its self-test ended by signal %d (%s)", s->path, WTERMSIG(status), strsignal(WTERMSIG(status)));
    switch (WEXITSTATUS(status)) {
    case 0: return RS_OK;
    case DOES_NOT_COMPILE: return error_set(err, RS_EFORMAT, "%s: does not compile: %s", s->path, log);
    case DOES_NOT_LINK: return error_set(err, RS_EFORMAT, "%s: does not export rankscope_patch: %s", s->path, log);
    case IN_THE_LOG: return error_set(err, RS_EFORMAT, "%s: %s", s->path, log);
    default: return error_set(err, RS_EFORMAT, "%s: self-test failed: %s", s->path, log[0] != '\0' ? log : "no reason given");
    }
}

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 28 && strcmp(s, "off") != 0 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n;
}

/* A name that is taken gets a number. */
static struct patch_user *enter(struct engine *e, const struct stage *s, const char *name, const char *help, struct op_impl impl)
{
    struct patch_registry *r = e->patches.registry;
    struct patch_user *u = &r->user[r->n];
    snprintf(u->name, sizeof u->name, "%s", name);
    for (unsigned v = 2; patch_find_user(r, u->name) != NULL; v++)
        snprintf(u->name, sizeof u->name, "%s.%u", name, v);
    snprintf(u->file, sizeof u->file, "%.255s", s->path);
    snprintf(u->help, sizeof u->help, "%s", help);
    u->impl = impl;
    u->impl.name = u->name;
    u->impl.help = u->help;
    r->n++;
    return u;
}

static enum rs_result enlist_cuda(struct engine *e, const struct stage *s, struct patch_user **out, struct rs_error *err)
{
    struct cuda_user *module;
    struct cuda_user_info info;
    enum rs_result rc = cuda_user_load(s->dir, &module, &info, err);
    if (rc == RS_OK && !good_name(info.name))
        rc = error_set(err, RS_EFORMAT, "%s: name is not allowed (see engine/patch_cuda.h)", s->path);
    if (rc != RS_OK)
        return rc;
    *out = enter(e, s, info.name, info.help, (struct op_impl){.kind = info.kind, .launch = module});
    (*out)->gpus = true;
    return RS_OK;
}

static enum rs_result enlist_hosted(struct engine *e, const struct stage *s, struct patch_user **out, struct rs_error *err)
{
    char source[128];
    enum op_kind kind = OP_KIND_COUNT;
    void *hosted;
    struct rankscope_patch_v1 p;
    struct patch_fault *fault = calloc(1, sizeof *fault);
    snprintf(source, sizeof source, "%s/source", s->dir);
    if (fault == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a patch");
    enum rs_result rc = e->host->open(source, s->path, pool_size(e->pool), &hosted, &p, err);
    if (rc == RS_OK && (!good_name(p.name) || !patch_kind(p.kind, false, &kind))) {
        rc = error_set(err, RS_EFORMAT, "%s: name '%.40s' or kind '%.40s' is not allowed (see engine/patch_api.h)", s->path, p.name, p.kind);
        e->host->close(hosted);
    }
    if (rc != RS_OK) {
        free(fault);
        return rc;
    }
    *out = enter(e, s, p.name, p.help, (struct op_impl){.kind = kind, .launch = &CPU_USER});
    (*out)->host = e->host;
    (*out)->hosted = hosted;
    (*out)->fault = fault;
    return RS_OK;
}

/* The object stays loaded for good: graphs, tables of older generations and revert may refer to it. */
static enum rs_result enlist(struct engine *e, const struct stage *s, struct patch_user **out, struct rs_error *err)
{
    char so[128];
    enum op_kind kind;
    snprintf(so, sizeof so, "%s/patch.so", s->dir);
    void *h = dlopen(so, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (h == NULL)
        return error_set(err, RS_EFORMAT, "%s: cannot load: %s", s->path, dlerror());
    const struct rankscope_patch_v1 *p = dlsym(h, "rankscope_patch");
    if (p == NULL || p->abi != RANKSCOPE_PATCH_ABI || p->size != sizeof *p || p->call_size != sizeof(struct rankscope_call) || p->run == NULL || p->help == NULL)
        return error_set(err, RS_EFORMAT, "%s: written for another interface than %u", s->path, RANKSCOPE_PATCH_ABI);
    if (p->name == NULL || !good_name(p->name))
        return error_set(err, RS_EFORMAT, "%s: the name of a patch is made of letters, digits, '-' and '_', 27 at most, and is not off", s->path);
    if (p->kind == NULL || !patch_kind(p->kind, false, &kind))
        return error_set(err, RS_EFORMAT, "%s: its kind is not allowed (see engine/patch_api.h)", s->path);
    *out = enter(e, s, p->name, p->help, (struct op_impl){.kind = kind, .launch = &CPU_USER});
    (*out)->api = p;
    return RS_OK;
}

static void finish(struct engine *e, int status, bool late)
{
    struct stage *s = e->stage;
    struct rs_error err;
    struct patch_user *u = NULL;
    char log[480];
    const unsigned long failures = engine_json_failures(e);
    struct msg m = {.slot = s->slot, .id = s->id, .reply = json_object()};
    enum rs_result rc = judge(s, status, late, log, sizeof log, &err);
    if (rc == RS_OK)
        rc = s->language == STAGE_CUDA ? enlist_cuda(e, s, &u, &err) : s->language == STAGE_HOSTED ? enlist_hosted(e, s, &u, &err) : enlist(e, s, &u, &err);
    if (rc == RS_OK && s->activate)
        rc = msg_patch_apply(e, &m, "user", u->name, s->site[0] != '\0' ? s->site : NULL, &err);
    if (rc == RS_OK) {
        json_object_set_new(m.reply, "name", json_string(u->name));
        json_object_set_new(m.reply, "kind", json_string(op_kind_name(u->impl.kind)));
        json_object_set_new(m.reply, "help", json_string(u->help));
        json_object_set_new(m.reply, "active", json_boolean(s->activate));
        json_object_set_new(m.reply, "selftest_worst", json_real(strtod(log, NULL)));
        json_object_set_new(m.reply, "staged_ms", json_real((double)(now_us() - s->t0) / 1e3));
    }
    remove_folder(s->dir);
    e->stage = NULL;
    if (s->slot >= 0)
        msg_reply(e, &m, rc, failures, &err);
    else
        json_decref(m.reply);
    free(s);
}

void stage_poll(struct engine *e)
{
    struct stage *s = e->stage;
    int status = 0;
    if (s == NULL)
        return;
    bool late = now_us() - s->t0 > STAGE_SECONDS * 1000000ull;
    if (late)
        kill(-s->pid, SIGKILL);
    pid_t p = waitpid(s->pid, &status, late ? 0 : WNOHANG);
    if (p == s->pid || (p < 0 && errno != EINTR))
        finish(e, status, late);
}

void stage_client_gone(struct engine *e, int slot)
{
    if (e->stage != NULL && e->stage->slot == slot)
        e->stage->slot = -1;
}

void stage_close(struct engine *e)
{
    if (e->stage == NULL)
        return;
    kill(-e->stage->pid, SIGKILL);
    waitpid(e->stage->pid, NULL, 0);
    remove_folder(e->stage->dir);
    free(e->stage);
    e->stage = NULL;
}

struct hosted_test {
    const struct rs_patch_host *host;
    void *hosted;
};

static bool run_hosted(void *arg, const struct rankscope_call *call, char *say, size_t cap)
{
    const struct hosted_test *t = arg;
    return t->host->run(t->hosted, 0, call, say, cap);
}

enum rs_result rs_stage_hosted(const struct rs_patch_host *host, const char *file, const char *name, double *worst, struct rs_error *err)
{
    struct hosted_test t = {.host = host};
    struct rankscope_patch_v1 p;
    char say[400];
    enum rs_result rc = host->open(file, name, 1, &t.hosted, &p, err);
    if (rc != RS_OK)
        return rc;
    if (!patch_test(&p, run_hosted, &t, false, NULL, worst, say, sizeof say))
        rc = error_set(err, RS_EFORMAT, "self-test failed: %s", say);
    host->close(t.hosted);
    return rc;
}
