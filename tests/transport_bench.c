/* What the socket between engine and client costs: decode speed with and without anybody who receives the tokens, in turns, and the time from a token
 * computed to a token received. The engine is a process of its own; speeds are its own measurements. Not a test: scripts/bench-transport runs it.
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

#include "tests/engine_client.h"

#define NAME "transport"

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

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

/* Tokens per second of a stream that this client receives; latencies of its tokens are added to late[*n]. */
static double received(int tokens, double *late, size_t *n)
{
    struct rs_engine *e = reach();
    uint32_t id = submit(e, tokens);
    double rate = NAN;
    for (struct rs_event ev; rs_next(e, 60000, &ev, NULL) == RS_OK && ev.type != RS_EVENT_LOST;) {
        if (ev.id != id)
            continue;
        if (ev.type == RS_EVENT_TOKEN)
            late[(*n)++] = now_us() - (double)ev.time_us;
        if (ev.type == RS_EVENT_DONE) {
            json_t *o = json_loads(ev.json, 0, NULL);
            rate = json_number_value(json_object_get(o, "tok_per_s"));
            json_decref(o);
            break;
        }
    }
    rs_engine_close(e);
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

static void summary(const double *v, int n, double *mean, double *sd, double *median)
{
    double sum = 0, square = 0, *sorted = malloc((size_t)n * sizeof *v);
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *v, by_value);
    for (int i = 0; i < n; i++)
        sum += v[i];
    *mean = sum / n;
    for (int i = 0; i < n; i++)
        square += (v[i] - *mean) * (v[i] - *mean);
    *sd = n > 1 ? sqrt(square / (n - 1)) : 0;
    *median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    free(sorted);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        die("usage: transport_bench PROGRAM MODEL WORKERS TOKENS ROUNDS");
    int tokens = atoi(argv[4]), rounds = atoi(argv[5]);
    if (tokens < 2 || rounds < 1)
        die("TOKENS must be at least 2, ROUNDS at least 1");
    double *with = calloc((size_t)rounds, sizeof *with), *without = calloc((size_t)rounds, sizeof *without), m[4], sd[4], med[4];
    double *late = calloc((size_t)(rounds + 1) * ((size_t)tokens + 8), sizeof *late);
    size_t n = 0;
    pid_t pid = start_engine(argv[1], argv[3]);
    struct rs_engine *e = reach();
    json_decref(ec_call(e, "open", "{\"path\":\"%s\"}", argv[2]));
    rs_engine_close(e);
    double rate = received(tokens, late, &n); /* warm up */
    double *cpu_with = calloc((size_t)rounds, sizeof(double)), *cpu_without = calloc((size_t)rounds, sizeof(double));
    n = 0;
    for (int i = 0; i < rounds; i++) {
        double t0 = cpu_us(pid);
        with[i] = received(tokens, late, &n);
        double t1 = cpu_us(pid);
        without[i] = alone(tokens, tokens / rate);
        cpu_with[i] = (t1 - t0) / tokens;
        cpu_without[i] = (cpu_us(pid) - t1) / tokens;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    summary(with, rounds, &m[0], &sd[0], &med[0]);
    summary(without, rounds, &m[1], &sd[1], &med[1]);
    summary(cpu_with, rounds, &m[2], &sd[2], &med[2]);
    summary(cpu_without, rounds, &m[3], &sd[3], &med[3]);
    qsort(late, n, sizeof *late, by_value);
    printf("{\"workers\":%s,\"tokens\":%d,\"rounds\":%d,\"received\":{\"mean\":%.1f,\"stddev\":%.1f,\"median\":%.1f},"
           "\"alone\":{\"mean\":%.1f,\"stddev\":%.1f,\"median\":%.1f},\"cost_percent\":%.2f,\"cpu_us_per_token\":{\"received\":%.1f,\"alone\":%.1f},\"cpu_cost_percent\":%.2f,\"latency_us\":{\"p50\":%.0f,\"p99\":%.0f,\"max\":%.0f}}\n",
           argv[3], tokens, rounds, m[0], sd[0], med[0], m[1], sd[1], med[1], 100 * (1 - med[0] / med[1]), med[2], med[3], 100 * (med[2] / med[3] - 1), late[n / 2], late[n * 99 / 100], late[n - 1]);
    free(with);
    free(cpu_with);
    free(cpu_without);
    free(without);
    free(late);
    return 0;
}
