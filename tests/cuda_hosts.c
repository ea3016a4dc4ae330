/* GPUs of several hosts. All hosts are this machine, and two processes share GPU 0, which NCCL takes only when it is told that they are two machines:
 * then it goes over sockets, as between two that have nothing better. Skipped where there is no GPU. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_backend.h"
#include "tests/engine_client.h"
#include "tests/hosts_rig.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define IDS "\"ids\":[1,5,9,33,7,100,12,45,3,99,201,77,5,5,61,8,19,250,31,44]"
#define HERE ",\"backend\":\"cuda\",\"gpus\":1,\"numerics\":\"invariant\""
#define NCCL ",\"patches\":{\"allreduce\":\"nccl\"}"
#define APART "NCCL_HOSTID=b"

static struct rs_engine *must_open(const char *hosts, const char *env)
{
    struct rs_engine *e;
    struct rs_error err;
    if (hosts_try(hosts, hosts_launcher(env), 0, &e, &err) == RS_OK)
        return e;
    printf("Bail out! %s: %s\n", hosts, err.msg);
    exit(1);
}

static void load(struct rs_engine *e, int ranks, const char *more)
{
    json_decref(ec_call(e, "patch.reset", "{}"));
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":%d,\"ctx\":2048" HERE "%s}", tap_source(MODEL), ranks, more));
}

static float *forward(struct rs_engine *e, size_t *n)
{
    float *x;
    json_decref(ec_blob(e, "forward", json_loads("{" IDS ",\"logits\":\"all\"}", 0, NULL), &x, n));
    return x;
}

enum { STREAMS = 3 };

/* Several answers at once, one of them greedy. */
static void answer(struct rs_engine *e, struct ec_answer a[STREAMS])
{
    json_t *args[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        args[i] = json_pack("{s:[i,i,i,i,i],s:f,s:i,s:i,s:b}", "ids", 1, 40 + i, 9, 17 * i, 5, "temp", i == 0 ? 0.0 : 0.8, "seed", 7 + i, "max_tokens",
                            20 + 5 * i, "ignore_eos", 1);
    ec_answers(e, STREAMS, args, a);
}

static bool same_answers(struct rs_engine *a, struct rs_engine *b)
{
    struct ec_answer x[STREAMS], y[STREAMS];
    bool same = true;
    answer(a, x);
    answer(b, y);
    for (int i = 0; i < STREAMS; i++)
        same &= x[i].n >= 20 && x[i].n == y[i].n && memcmp(x[i].ids, y[i].ids, x[i].n * sizeof x[i].ids[0]) == 0;
    ec_answers_free(STREAMS, x);
    ec_answers_free(STREAMS, y);
    return same;
}

static double distance(struct rs_engine *a, struct rs_engine *b)
{
    size_t n, m;
    float *x = forward(a, &n), *y = forward(b, &m);
    const double far = n == m && n > 1000 ? ec_rel_f(x, y, n) : INFINITY;
    free(x);
    free(y);
    return far;
}

/* Through host memory the summands are added in the order of one process: the same bits. */
static void through_host(struct rs_engine *one)
{
    static const struct { const char *hosts; int ranks; const char *more; } T[] = {
        {"localhost,localhost", 2, ",\"patches\":{\"allreduce\":\"flat\",\"allreduce.dtype\":\"f32\"}"},
        {"localhost,localhost", 4, ",\"mode\":\"eager\",\"patches\":{\"allreduce\":\"flat\",\"allreduce.dtype\":\"f32\"}"},
        {"localhost,localhost,localhost", 3, ",\"spec\":2,\"patches\":{\"allreduce\":\"flat\",\"allreduce.dtype\":\"bf16\"}"},
    };
    for (size_t i = 0; i < sizeof T / sizeof T[0]; i++) {
        struct rs_engine *many = must_open(T[i].hosts, "");
        load(one, T[i].ranks, T[i].more);
        load(many, T[i].ranks, T[i].more);
        const double far = distance(one, many);
        tap_ok(far == 0, "%d ranks on %s%s: the bits of one process (%.1e)", T[i].ranks, T[i].hosts, T[i].more, far);
        tap_ok(same_answers(one, many), "%d ranks on %s%s: the answers of one process", T[i].ranks, T[i].hosts, T[i].more);
        if (i == 0) {
            json_decref(ec_call(many, "set", "{\"mode\":\"eager\"}"));
            tap_ok(distance(one, many) == 0 && same_answers(one, many), "eager as in a graph");
            json_decref(ec_call(many, "patch.set", "{\"slot\":\"delay\",\"impl\":\"1:300\"}"));
            tap_ok(same_answers(one, many), "a rank elsewhere that is late changes nothing");
        }
        rs_engine_close(many);
    }
}

/* All-reduces of every rank are timed, with the host's name. */
static bool timed(struct rs_engine *e, size_t n)
{
    json_t *ar = ec_call(e, "allreduce", "{}"), *ranks = json_object_get(ar, "ranks");
    bool ok = json_array_size(ranks) == n;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        json_t *x = json_array_get(ranks, r);
        ok &= json_integer_value(json_object_get(x, "count")) > 0 && json_number_value(json_object_get(x, "mean_us")) > 0 && json_object_get(x, "host") != NULL;
        tap_diag("rank %zu: %.1f us, of which transfer %.1f", r, json_number_value(json_object_get(x, "mean_us")), json_number_value(json_object_get(x, "transfer_mean_us")));
    }
    json_decref(ar);
    return ok;
}

static void by_nccl(struct rs_engine *one, const char *env)
{
    struct rs_engine *many = must_open("localhost,localhost", env);
    tap_diag("%s", env);
    load(one, 2, ",\"patches\":{\"allreduce.dtype\":\"f32\"}");
    load(many, 2, ",\"patches\":{\"allreduce.dtype\":\"f32\"}");
    json_t *list = ec_call(many, "patch.list", "{}");
    char *text = json_dumps(list, JSON_COMPACT);
    tap_ok(strstr(text, "\"default\":\"nccl\"") != NULL, "NCCL is what joins GPUs of several hosts by default");
    free(text);
    json_decref(list);
    const double far = distance(one, many); /* two summands have one order */
    tap_ok(far == 0, "2 ranks by NCCL: the bits of one process (%.1e)", far);
    tap_ok(same_answers(one, many) && timed(many, 2), "answers in a graph, with NCCL inside");
    json_decref(ec_call(many, "set", "{\"mode\":\"eager\"}"));
    tap_ok(distance(one, many) == 0 && same_answers(one, many), "eager as in a graph");
    json_decref(ec_call(many, "set", "{\"mode\":\"graph\"}"));
    json_decref(ec_call(many, "patch.set", "{\"slot\":\"nccl\",\"impl\":\"ring-simple\"}"));
    tap_ok(distance(one, many) == 0 && same_answers(one, many), "other communicators, made while the model is loaded");
    json_decref(ec_call(many, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"flat\"}"));
    tap_ok(distance(one, many) == 0, "from NCCL to host memory");
    json_decref(ec_call(many, "patch.revert", "{}"));
    json_decref(ec_call(many, "patch.set", "{\"slot\":\"delay\",\"impl\":\"1:2000\"}"));
    tap_ok(same_answers(one, many) && timed(many, 2), "and back, with a rank elsewhere that is late");
    load(many, 2, "");
    load(one, 2, "");
    tap_ok(distance(one, many) < 2e-2, "bf16: %.1e from one process", distance(one, many)); /* NCCL rounds the sum too */
    rs_engine_close(many);
    tap_eq_int(hosts_left(), 0, "nothing is left");
}

/* Fails to open by all of these words, with what was open still there. */
static void refused(struct rs_engine *e, const char *more, const char *a, const char *b)
{
    char msg[512];
    enum rs_result rc = ec_fails(e, msg, "open", "{\"path\":\"%s\"%s}", tap_source(MODEL), more);
    tap_ok(rc != RS_OK && strstr(msg, a) != NULL && strstr(msg, b) != NULL, "%s (%s)", a, msg);
}

static void refusals(void)
{
    char msg[512];
    size_t n;
    struct rs_engine *e = must_open("localhost,localhost", "NCCL_HOSTID=a");
    load(e, 2, ",\"patches\":{\"allreduce\":\"flat\"}");
    refused(e, ",\"ranks\":2" HERE NCCL, "the same GPU", "host localhost (rank 1)");
    refused(e, ",\"ranks\":4" HERE NCCL, "2 ranks on 1", "one rank per GPU");
    refused(e, ",\"ranks\":4,\"backend\":\"cuda\",\"gpus\":[99]", "GPU 99 is not there", "GPU");
    enum rs_result rc = ec_fails(e, msg, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"nccl\",\"site\":\"blk.1.*\"}");
    tap_ok(rc == RS_EUNSUPPORTED && strstr(msg, "all sites") != NULL, "two ways at once (%s)", msg);
    rc = ec_fails(e, msg, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"nccl\"}");
    tap_ok(rc == RS_EUNSUPPORTED && strstr(msg, "the same GPU") != NULL, "NCCL while the model is loaded (%s)", msg);
    free(forward(e, &n));
    tap_ok(n > 1000, "what was open still runs");
    rs_engine_close(e);
    e = must_open("localhost,localhost", "CUDA_VISIBLE_DEVICES=");
    refused(e, ",\"ranks\":2" HERE, "no GPU to run on", "host localhost (rank 1)");
    rs_engine_close(e);
    e = must_open("localhost,localhost", APART " LD_LIBRARY_PATH=/nowhere");
    struct rs_error err;
    char args[4400];
    snprintf(args, sizeof args, "{\"path\":\"%s\",\"ranks\":2" HERE "}", tap_source(MODEL));
    rc = rs_request(e, "open", args, 60000, NULL, &err);
    if (rc == RS_OK)
        tap_skip(1, "a host without NCCL: it is where the loader finds it anyway");
    else
        tap_ok(rc == RS_EUNSUPPORTED && strstr(err.msg, "host localhost (rank 1): allreduce=nccl: NCCL cannot be loaded") != NULL, "a host without NCCL (%s)", err.msg);
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":2}", tap_source(MODEL)));
    tap_ok(true, "and then on the CPU");
    rs_engine_close(e);
    tap_eq_int(hosts_left(), 0, "nothing is left");
}

int main(void)
{
    const char *why;
    const int gpus = backend_cuda_devices(&why);
    if (gpus == 0)
        tap_skip_all("no GPU: %s", why);
    setenv("NCCL_HOSTID", "a", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    const char *part = getenv("CUDA_HOSTS_TEST"); /* one of: host nccl two refusals loss */
    struct rs_engine *one = ec_open();
    if (part == NULL || strcmp(part, "host") == 0)
        through_host(one);
    if (part == NULL || strcmp(part, "nccl") == 0)
        by_nccl(one, APART);
    if (gpus > 1 && (part == NULL || strcmp(part, "two") == 0)) {
        by_nccl(one, "NCCL_HOSTID=a CUDA_VISIBLE_DEVICES=1"); /* on one machine NCCL goes over peer memory */
        by_nccl(one, APART " CUDA_VISIBLE_DEVICES=1");
    } else if (gpus == 1) {
        tap_skip(1, "two GPUs, one in each process: there is one GPU");
    }
    rs_engine_close(one);
    if (part == NULL || strcmp(part, "refusals") == 0)
        refusals();
    if (part == NULL || strcmp(part, "loss") == 0) {
        hosts_signalled(&(struct hosts_loss){SIGKILL, "killed, NCCL", "is gone", "localhost,localhost", MODEL, HERE, APART});
        hosts_signalled(&(struct hosts_loss){SIGKILL, "killed, NCCL, eager", "is gone", "localhost,localhost", MODEL, HERE ",\"mode\":\"eager\"", APART});
        hosts_signalled(&(struct hosts_loss){SIGSTOP, "stopped, NCCL", "silent", "localhost,localhost", MODEL, HERE, APART});
        hosts_signalled(&(struct hosts_loss){SIGKILL, "killed, host memory", "is gone", "localhost,localhost", MODEL,
                                             HERE ",\"patches\":{\"allreduce\":\"flat\"}", APART});
    }
    return tap_done();
}
