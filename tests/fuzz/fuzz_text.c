/* Fuzzing the tokenizer: any bytes become tokens of the vocabulary, and those give the bytes back. The first byte chooses whether special tokens are
 * recognised. RANKSCOPE_FUZZ_MODEL names the model file. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vocab *open_vocab(void)
{
    static struct gguf *g; /* of the harness, for all inputs */
    static struct vocab *v;
    struct rs_error err;
    const char *path = getenv("RANKSCOPE_FUZZ_MODEL");
    if (v == NULL && (path == NULL || gguf_open(path, &g, &err) != RS_OK || vocab_open(g, &v, &err) != RS_OK)) {
        fprintf(stderr, "RANKSCOPE_FUZZ_MODEL names no model\n");
        exit(2);
    }
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vocab *v = open_vocab();
    struct rs_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    if (size == 0)
        return 0;
    struct vocab_segment s = {(const char *)data + 1, size - 1, (data[0] & 1) != 0};
    enum rs_result rc = vocab_encode(v, &s, 1, &ids, &n, &err);
    if (rc != RS_OK)
        abort(); /* only memory can fail */
    size_t bound = vocab_stream_bound(v), at = 1;
    char *out = malloc(bound + 8);
    struct vocab_stream st = {{0}, 0};
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab_size(v))
            abort();
        const char *piece = vocab_piece(v, ids[i], &len);
        if (piece == NULL || len > size - at || memcmp(piece, data + at, len) != 0)
            abort();
        at += len;
        if (vocab_stream_put(v, &st, ids[i], true, out, bound) > bound)
            abort();
    }
    if (at != size || vocab_stream_flush(&st, out, 8) > 3)
        abort();
    free(out);
    free(ids);
    return 0;
}
