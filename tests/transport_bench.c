/* What it costs that engine and console are two processes. Three arms, in turns:
 *
 *   inside    engine and client are threads of one process (rs_engine_local, what one-shot commands use)
 *   attached  the engine is a process of its own, this one is the client
 *   alone     the engine is a process of its own and nobody is connected while it computes
 *
 * The clients do what a console does: read what is there, write every token's text to a file, flush. attached against inside is what the transport
 * between two processes costs; attached against alone is that and the client's own work, which on a machine whose cores all compute is taken from
 * them. Speeds are the engine's own measurements. Latency: from a token computed to its text flushed. Not a test: scripts/bench-transport runs it.
 *
 * usage: transport_bench PROGRAM MODEL WORKERS TOKENS ROUNDS */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/now.h"
#include "tests/engine_client.h"

#define NAME "transport"

enum { INSIDE, ATTACHED, ALONE, ARMS };

static void die(const char *why)
{
    fprintf(stderr, "transport_bench: %s\n", why);
    exit(1);
}

static pid_t start_engine(const char *prog, const char *workers)
{
    char ready[16], byte;
    int fd[2];
    if (pipe(fd) != 0)
        die("no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(ready, sizeof ready, "%d", fd[1]);
        execl(prog, "rankscope", "engine", "--name", NAME, "--workers", workers, "--ready-fd", ready, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    if (pid < 0 || read(fd[0], &byte, 1) != 1)
        die("the engine did not start");
    close(fd[0]);
    return pid;
}

static struct rs_engine *reach(void)
{
    struct rs_engine *e;
    struct rs_error err;
    if (rs_engine_connect(NAME, &e, &err) != RS_OK)
        die(err.msg);
    return e;
}

/* Processor time of a process: unlike wall time it hardly changes when others use the machine. */
static double cpu_us(pid_t pid)
{
    clockid_t id;
    struct timespec t;
    if (clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &t) != 0)
        die("no processor time of the engine");
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t submit(struct rs_engine *e, int tokens)
{
    json_t *o = ec_call(e, "submit", "{\"ids\":[154,822,300,400,500,600],\"max_tokens\":%d,\"ignore_eos\":true}", tokens);
    uint32_t id = (uint32_t)json_integer_value(json_object_get(o, "stream"));
    json_decref(o);
    return id;
}

/* Tokens per second of a stream whose text this client writes to `out`; latencies of its tokens go to late[0 .. *n). */
static double printed(struct rs_engine *e, int tokens, FILE *out, double *late, size_t *n)
{
    uint32_t id = submit(e, tokens);
    double rate = NAN;
    size_t fresh = 0;
    for (struct rs_event ev; rs_next(e, 60000, &ev, NULL) == RS_OK && ev.type != RS_EVENT_LOST;) {
        if (ev.type == RS_EVENT_TOKEN && ev.id == id) {
            fwrite(ev.text, 1, ev.text_len, out);
            late[*n + fresh++] = (double)ev.time_us;
        } else if (ev.type == RS_EVENT_DONE && ev.id == id) {
            json_t *o = json_loads(ev.json, 0, NULL);
            rate = json_number_value(json_object_get(o, "tok_per_s"));
            json_decref(o);
        }
        if (fresh != 0 && !rs_pending(e)) {
            fflush(out);
            double now = (double)now_us();
            for (; fresh > 0; fresh--, ++*n)
                late[*n] = now - late[*n];
        }
        if (!isnan(rate))
            break;
    }
    return rate;
}

/* One engine and its client in a process of their own; it answers each byte on `in` with a rate. */
static void inside_main(const char *model, unsigned workers, int tokens, int in, int out_fd)
{
    struct rs_engine *e;
    struct rs_error err;
    double *late = calloc((size_t)tokens + 8, sizeof *late);
    FILE *out = tmpfile();
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (rs_engine_local(&(struct rs_local_params){.workers = workers}, &e, &err) != RS_OK || out == NULL || late == NULL)
        _exit(1);
    json_decref(ec_call(e, "open", "{\"path\":\"%s\"}", model));
    while (read(in, &byte, 1) == 1) {
        size_t n = 0;
        double rate = printed(e, tokens, out, late, &n);
        if (write(out_fd, &rate, sizeof rate) != sizeof rate)
            break;
    }
    _exit(0);
}

struct inside {
    pid_t pid;
    int ask, answer;
};

static struct inside start_inside(const char *model, unsigned workers, int tokens)
{
    int ask[2], answer[2];
    if (pipe(ask) != 0 || pipe(answer) != 0)
        die("no pipe");
    struct inside x = {.pid = fork(), .ask = ask[1], .answer = answer[0]};
    if (x.pid == 0)
        inside_main(model, workers, tokens, ask[0], answer[1]);
    if (x.pid < 0)
        die("cannot fork");
    close(ask[0]);
    close(answer[1]);
    return x;
}

static double inside(const struct inside *x)
{
    double rate;
    if (write(x->ask, "g", 1) != 1 || read(x->answer, &rate, sizeof rate) != sizeof rate)
        die("the engine inside a process is gone");
    return rate;
}

/* The same with nobody connected while it runs. */
static double alone(int tokens, double seconds)
{
    struct rs_engine *e = reach();
    uint32_t id = submit(e, tokens);
    double rate = NAN;
    rs_engine_close(e);
    for (int i = 0; i < 600 && isnan(rate); i++) {
        usleep((useconds_t)(seconds * 1.3e6) + 20000);
        e = reach();
        json_t *o = ec_call(e, "stream.get", "{\"stream\":%u}", id), *done = json_object_get(o, "done");
        if (json_is_object(done))
            rate = json_number_value(json_object_get(done, "tok_per_s"));
        json_decref(o);
        rs_engine_close(e);
    }
    return rate;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double mean, sd, median;
};

static struct summary summary(const double *v, int n)
{
    struct summary s = {0};
    double *sorted = malloc((size_t)n * sizeof *v), square = 0;
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *v, by_value);
    for (int i = 0; i < n; i++)
        s.mean += v[i] / n;
    for (int i = 0; i < n; i++)
        square += (v[i] - s.mean) * (v[i] - s.mean);
    s.sd = n > 1 ? sqrt(square / (n - 1)) : 0;
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    free(sorted);
    return s;
}

/* What arm `a` costs against arm `b`, in percent of b's speed: the median over the rounds, because what disturbs a machine lasts longer than a round. */
static struct summary cost(const double *a, const double *b, int n)
{
    double *d = malloc((size_t)n * sizeof *d);
    for (int i = 0; i < n; i++)
        d[i] = 100 * (1 - a[i] / b[i]);
    struct summary s = summary(d, n);
    free(d);
    return s;
}

static void print_summary(const char *name, struct summary s)
{
    printf("\"%s\":{\"median\":%.2f,\"mean\":%.2f,\"stddev\":%.2f},", name, s.median, s.mean, s.sd);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        die("usage: transport_bench PROGRAM MODEL WORKERS TOKENS ROUNDS");
    const int tokens = atoi(argv[4]), rounds = atoi(argv[5]);
    if (tokens < 2 || rounds < 1)
        die("TOKENS must be at least 2, ROUNDS at least 1");
    double *rate[ARMS], *own = calloc((size_t)rounds, sizeof *own), *late = calloc((size_t)rounds * ((size_t)tokens + 8), sizeof *late);
    FILE *out = tmpfile();
    size_t n = 0;
    for (int a = 0; a < ARMS; a++)
        rate[a] = calloc((size_t)rounds, sizeof(double));
    struct inside local = start_inside(argv[2], (unsigned)atoi(argv[3]), tokens);
    pid_t pid = start_engine(argv[1], argv[3]);
    struct rs_engine *e = reach();
    json_decref(ec_call(e, "open", "{\"path\":\"%s\"}", argv[2]));
    double usual = printed(e, tokens, out, late, &n); /* warm up */
    inside(&local);
    rs_engine_close(e);
    n = 0;
    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < ARMS; k++) {
            const int arm = (i + k) % ARMS; /* each arm follows each other one as often */
            if (arm == INSIDE) {
                rate[arm][i] = inside(&local);
            } else if (arm == ALONE) {
                rate[arm][i] = alone(tokens, tokens / usual);
            } else {
                e = reach();
                double t0 = cpu_us(getpid());
                rate[arm][i] = printed(e, tokens, out, late, &n);
                own[i] = (cpu_us(getpid()) - t0) / tokens;
                rs_engine_close(e);
            }
        }
    kill(pid, SIGKILL);
    kill(local.pid, SIGKILL);
    waitpid(pid, NULL, 0);
    waitpid(local.pid, NULL, 0);
    qsort(late, n, sizeof *late, by_value);
    printf("{\"workers\":%s,\"tokens\":%d,\"rounds\":%d,", argv[3], tokens, rounds);
    print_summary("inside", summary(rate[INSIDE], rounds));
    print_summary("attached", summary(rate[ATTACHED], rounds));
    print_summary("alone", summary(rate[ALONE], rounds));
    print_summary("attached_against_inside_percent", cost(rate[ATTACHED], rate[INSIDE], rounds));
    print_summary("attached_against_alone_percent", cost(rate[ATTACHED], rate[ALONE], rounds));
    print_summary("client_cpu_us_per_token", summary(own, rounds));
    printf("\"latency_us\":{\"p50\":%.0f,\"p99\":%.0f,\"max\":%.0f}}\n", late[n / 2], late[n * 99 / 100], late[n - 1]);
    for (int a = 0; a < ARMS; a++)
        free(rate[a]);
    free(own);
    free(late);
    fclose(out);
    return 0;
}
