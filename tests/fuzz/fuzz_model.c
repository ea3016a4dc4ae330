/* Fuzzing the reader of model files: whatever the bytes, opening either fails with one clear line or gives a model that may be read. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/vocab.h"
#include "engine/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A refusal is one line that can be printed. */
static void check_line(const struct rs_error *err)
{
    if (err->msg[0] == '\0' || memchr(err->msg, '\0', sizeof err->msg) == NULL || strpbrk(err->msg, "\n\r") != NULL)
        abort();
}

static void read_all(const struct gguf *g)
{
    static volatile uint8_t sink;
    char text[256];
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        struct gguf_kv kv = gguf_kv_at(g, i);
        gguf_print_value(&kv, text, sizeof text);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sink ^= t->data[0];
        sink ^= t->data[t->bytes - 1];
    }
}

static void use(const struct gguf *g)
{
    struct rs_error err = {.msg = ""};
    static struct hparams hp;
    struct weights w;
    struct vocab *v;
    read_all(g);
    if (hparams_read(g, &hp, &err) != RS_OK)
        check_line(&err);
    else if (weights_bind(g, &hp, &w, &err) != RS_OK)
        check_line(&err);
    else
        weights_free(&w);
    if (vocab_open(g, &v, &err) != RS_OK) {
        check_line(&err);
        return;
    }
    int32_t *ids = NULL;
    size_t n;
    struct vocab_segment s = {"Hello <|user|> w\xc3\xb6rld 123", 25, true};
    if (vocab_encode(v, &s, 1, &ids, &n, &err) == RS_OK)
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || (uint32_t)ids[i] >= vocab_size(v))
                abort();
    free(ids);
    vocab_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rs_error err = {.msg = ""};
    struct gguf *g;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(path, &g, &err) != RS_OK) {
        check_line(&err);
    } else {
        use(g);
        gguf_close(g);
    }
    close(fd);
    return 0;
}
