#include "config.h"

#include "console/oneshot.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/daemon.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/setting.h"
#include "console/sig.h"

const struct opt oneshot_table[] = {
    {.name = "model",
     .letter = 'm',
     .type = OPT_FILE,
     .arg = "FILE",
     .help = "the GGUF model (of a split one, the first file); without it, the model that comes with the program"},
    {.name = "synthetic",
     .type = OPT_CHOICE,
     .choices = ONESHOT_SHAPES,
     .help = "instead of a file: the shapes of a known model with random weights, for work on loading and speed"},
    {.name = "layers", .type = OPT_INT, .arg = "N", .min = 1, .max = 512, .help = "synthetic: only the first N layers"},
    {.name = "recipe", .type = OPT_FILE, .arg = "FILE", .help = "synthetic: lines \"GLOB TYPE\" for tensor names, the last match counts"},
    {.name = "rank",
     .type = OPT_STRING,
     .arg = "R/N",
     .help = "synthetic: only rank R of N; its all-reduces move the bytes that they would, to and from a stand-in"},
    {.name = "ranks",
     .type = OPT_INT,
     .arg = "N",
     .min = 1,
     .max = RS_MAX_RANKS,
     .help = "deal the model to N ranks; without it 8 for the model that comes with the program, else 1"},
    {.name = "backend", .type = OPT_CHOICE, .choices = "cpu|cuda", .help = "where ranks compute; without it cpu, where they are simulated"},
    {.name = "gpus",
     .type = OPT_STRING,
     .arg = "N|LIST",
     .help = "cuda: use N devices, or those listed by number (0,2; one alone: 2,); without it one for each rank, as far as there are"},
    {.name = "mode", .type = OPT_CHOICE, .choices = "eager|graph", .help = "how steps run; without it graph"},
    {.name = "patch",
     .type = OPT_LIST,
     .arg = "SLOT=IMPL[@SITES]",
     .help = "compute an operation another way, at the sites that match the pattern SITES or everywhere; may be repeated"},
    {.name = "set",
     .type = OPT_LIST,
     .arg = "NAME=VALUE",
     .help = "an option of the engine: numerics=invariant|fast, graph.guard=on|off; may be repeated"},
    {.name = "ctx", .type = OPT_INT, .arg = "N", .min = 16, .max = 16777216, .help = "room for N tokens in the cache"},
    {.name = "workers", .type = OPT_INT, .arg = "N", .min = 1, .max = 4096, .help = "CPU threads; without it one for each core"},
    {.name = "isa",
     .type = OPT_CHOICE,
     .choices = "portable|avx2|avx512",
     .help = "vector instructions to use; without it the best that this CPU has"},
    {.name = "hosts",
     .type = OPT_STRING,
     .arg = "A,B",
     .help = "deal the ranks to these hosts, an engine process on each; the first is this one, named as the others reach it"},
    {.name = "launch",
     .type = OPT_STRING,
     .arg = "WORDS",
     .help = "how engine processes start: words with {command} and {host}; without {host} they start all at once, as mpirun does; without it ssh, or "
             "srun in a Slurm job"},
    {.name = "host-timeout", .type = OPT_INT, .arg = "S", .min = 1, .max = 86400, .help = "seconds of silence after which a host is lost; without it 15"},
    {0},
};

/* {"slot": impl, "slot@glob": impl} in the order given: the last match wins. */
static enum rs_result add_patches(json_t *args, const struct opt_values *v, struct rs_error *err)
{
    const char *const *list;
    size_t n = opt_list(v, "patch", &list);
    json_t *patches = n > 0 ? json_object() : NULL;
    for (size_t i = 0; i < n; i++) {
        struct setting_patch p;
        enum rs_result r = setting_parse_patch(list[i], &p, err);
        if (r != RS_OK) {
            json_decref(patches);
            return r;
        }
        char *key = p.site[0] != '\0' ? xasprintf("%s@%s", p.slot, p.site) : xstrdup(p.slot);
        json_object_del(patches, key); /* so that setting it again moves it to the end */
        json_object_set_new(patches, key, js_text(p.impl, strlen(p.impl)));
        free(key);
    }
    if (patches != NULL)
        json_object_set_new(args, "patches", patches);
    return RS_OK;
}

enum rs_result oneshot_recipe(const struct opt_values *v, json_t *args, struct rs_error *err)
{
    char *text;
    if (!opt_set(v, "recipe"))
        return RS_OK;
    enum rs_result r = cmd_read_text(opt_string(v, "recipe", ""), &text, err);
    if (r != RS_OK)
        return r;
    json_object_set_new(args, "recipe", js_text(text, strlen(text)));
    free(text);
    return RS_OK;
}

enum rs_result oneshot_synthetic(const struct opt_values *v, bool file, bool opens, json_t *args, struct rs_error *err)
{
    static const char *const needy[] = {"layers", "recipe", "rank"};
    const bool synthetic = opt_set(v, "synthetic");
    for (size_t i = 0; !synthetic && i < (opens ? 3 : 2); i++)
        if (opt_set(v, needy[i]))
            return fail_set(err, RS_EUSAGE, "--%s belongs to --synthetic", needy[i]);
    if (!synthetic)
        return RS_OK;
    if (file)
        return fail_set(err, RS_EUSAGE, "either a file or --synthetic");
    json_object_set_new(args, "synthetic", json_string(opt_string(v, "synthetic", "")));
    if (opt_set(v, "layers"))
        json_object_set_new(args, "layers", json_integer(opt_int(v, "layers", 0)));
    if (opens && opt_set(v, "rank"))
        json_object_set_new(args, "rank", js_text(opt_string(v, "rank", ""), strlen(opt_string(v, "rank", ""))));
    return oneshot_recipe(v, args, err);
}

/* "2": how many; "0,2" or "2,": which. */
static enum rs_result add_gpus(json_t *args, const char *s, struct rs_error *err)
{
    json_t *list = json_array();
    const char *p = s;
    bool ok = *s != '\0';
    while (ok && *p != '\0') {
        char *end;
        long n = strtol(p, &end, 10);
        ok = end != p && *p >= '0' && *p <= '9' && n < 256 && (*end == ',' || *end == '\0');
        json_array_append_new(list, json_integer(n));
        p = *end == ',' ? end + 1 : end;
    }
    if (!ok) {
        json_decref(list);
        return fail_set(err, RS_EUSAGE, "--gpus %s: give a number of devices, or device numbers with commas (0,2)", s);
    }
    if (strchr(s, ',') != NULL) {
        json_object_set_new(args, "gpus", list);
    } else {
        json_object_set(args, "gpus", json_array_get(list, 0));
        json_decref(list);
    }
    return RS_OK;
}

enum rs_result oneshot_open_args(const struct opt_values *v, const char *path, json_t **args, struct rs_error *err)
{
    char *shipped = NULL;
    json_t *o = json_object();
    if (path == NULL)
        path = opt_string(v, "model", NULL);
    enum rs_result r = oneshot_synthetic(v, path != NULL, true, o, err);
    bool synthetic = json_object_get(o, "synthetic") != NULL;
    if (r == RS_OK && path == NULL && !synthetic && (path = shipped = paths_shipped_model()) == NULL)
        r = fail_set(err, RS_EIO, "the model that comes with the program is not there; name one with -m FILE, or its folder in RANKSCOPE_DATADIR");
    if (r != RS_OK) {
        json_decref(o);
        return r;
    }
    if (!synthetic)
        json_object_set_new(o, "path", js_text(path, strlen(path)));
    const int ranks = (int)opt_int(v, "ranks", synthetic ? 1 : con_default_ranks(path));
    if (opt_set(v, "ranks") || ranks > 1 || !(opt_set(v, "hosts") || opt_set(v, "launch"))) /* several hosts: one each, unless more were asked for */
        json_object_set_new(o, "ranks", json_integer(ranks));
    const char *mode = opt_string(v, "mode", "graph");
    json_object_set_new(o, "mode", json_string(strcmp(mode, "both") == 0 ? "graph" : mode)); /* both: the command goes on from there */
    if (opt_set(v, "backend"))
        json_object_set_new(o, "backend", json_string(opt_string(v, "backend", "cpu")));
    if (opt_set(v, "ctx"))
        json_object_set_new(o, "ctx", json_integer(opt_int(v, "ctx", 0)));
    free(shipped);
    r = opt_set(v, "gpus") ? add_gpus(o, opt_string(v, "gpus", ""), err) : RS_OK;
    if (r == RS_OK)
        r = add_patches(o, v, err);
    const char *const *list;
    size_t n = opt_list(v, "set", &list);
    for (size_t i = 0; i < n && r == RS_OK; i++)
        r = setting_add(o, list[i], err);
    if (r != RS_OK) {
        json_decref(o);
        return r;
    }
    *args = o;
    return RS_OK;
}

/* Of commands that open a model. */
static void set_hosts(struct rs_local_params *p, const struct opt_values *v)
{
    p->hosts = opt_string(v, "hosts", NULL);
    p->launch = opt_string(v, "launch", NULL);
    p->host_timeout = (unsigned)opt_int(v, "host-timeout", 0);
}

static void init(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v)
{
    s->entry = e;
    out_stdio_init(&s->out, stdout, stderr);
    con_init(&s->con, &s->out.out);
    s->con.params = (struct rs_local_params){.workers = (unsigned)opt_int(v, "workers", 0), .isa = opt_string(v, "isa", NULL)};
}

static enum exit_status start_bare(struct oneshot *s)
{
    struct rs_error err = {0};
    if (con_start_local(&s->con, &s->con.params, &err) != RS_OK)
        return oneshot_fail(s, &err);
    return EXIT_OK;
}

enum exit_status oneshot_start_bare(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v)
{
    init(s, e, v);
    return start_bare(s);
}

static enum exit_status start_apart_bare(struct oneshot *s)
{
    struct rs_error err = {0};
    char name[DAEMON_NAME_MAX];
    if (daemon_start(&s->con, &s->con.params, name, &err) != RS_OK)
        return oneshot_fail(s, &err);
    s->con.stop_engine = true;
    return EXIT_OK;
}

static enum exit_status start(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v, const char *path, bool apart)
{
    struct rs_error err = {0};
    json_t *args;
    /* Mistakes in the options are reported before anything starts. */
    if (oneshot_open_args(v, path, &args, &err) != RS_OK)
        return cmd_fail(e, &err);
    init(s, e, v);
    set_hosts(&s->con.params, v);
    apart = apart || daemon_is_job(s->con.params.launch); /* processes of a launcher are none of this one's threads */
    enum exit_status status = apart ? start_apart_bare(s) : start_bare(s);
    if (status != EXIT_OK) {
        json_decref(args);
        return status;
    }
    if (con_open(&s->con, args, &err) != RS_OK)
        return oneshot_fail(s, &err);
    return EXIT_OK;
}

enum exit_status oneshot_start(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v, const char *path)
{
    return start(s, e, v, path, false);
}

enum exit_status oneshot_start_apart(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v, const char *path)
{
    return start(s, e, v, path, true);
}

enum exit_status oneshot_end(struct oneshot *s, enum exit_status status)
{
    if (s->con.end_signal != 0) {
        fflush(NULL);
        sig_die(s->con.end_signal);
    }
    if (status == EXIT_INTERRUPT && !s->con.remote) {
        fflush(NULL);
        _exit(EXIT_INTERRUPT);
    }
    con_fini(&s->con);
    return status;
}

enum exit_status oneshot_fail(struct oneshot *s, const struct rs_error *err)
{
    return oneshot_end(s, cmd_fail(s->entry, err));
}
