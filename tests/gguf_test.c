/* engine/gguf*.c: what a good file gives, and that every way of breaking one is refused with one clear line. */
#include "engine/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/type.h"
#include "tests/gguf_make.h"
#include "tests/tap.h"

enum { F32 = KRN_F32, Q8_0 = KRN_Q8_0 };

/* ---- good files ---- */

static void good_file(struct gm *m, uint32_t version, uint32_t align)
{
    const uint64_t a[] = {64, 2, 3}, b[] = {5}, c[] = {32, 1};
    gm_head(m, version, 3, 14);
    gm_kv_str(m, "general.architecture", "glm-dsa");
    gm_kv_u32(m, "general.alignment", align);
    gm_key(m, "t.u8", 0), gm_u8(m, 200);
    gm_key(m, "t.i8", 1), gm_u8(m, (uint8_t)-7);
    gm_key(m, "t.u16", 2), gm_u16(m, 60000);
    gm_key(m, "t.i16", 3), gm_u16(m, (uint16_t)-300);
    gm_key(m, "t.i32", 5), gm_u32(m, (uint32_t)-70000);
    gm_key(m, "t.f32", 6), gm_u32(m, 0x3FC00000); /* 1.5 */
    gm_kv_bool(m, "t.bool", 1);
    gm_key(m, "t.u64", 10), gm_u64(m, UINT64_C(1) << 40);
    gm_key(m, "t.i64", 11), gm_u64(m, (uint64_t)-5);
    gm_key(m, "t.f64", 12), gm_u64(m, UINT64_C(0xC004000000000000)); /* -2.5 */
    gm_array(m, "t.words", 8, 3), gm_str(m, "one"), gm_str(m, ""), gm_str(m, "three");
    gm_array(m, "t.layers", 5, 3), gm_u32(m, 4), gm_u32(m, 5), gm_u32(m, 6);
    uint64_t q = 6 * 2 * 34, q_pad = (q + align - 1) / align * align;
    gm_tensor(m, "blk.0.w", 3, a, Q8_0, 0);
    gm_tensor(m, "norm", 1, b, F32, q_pad);
    gm_tensor(m, "last", 2, c, Q8_0, q_pad + align); /* 5 x 4 bytes, padded */
    gm_pad(m, align);
    for (uint64_t i = 0; i < q; i++)
        gm_u8(m, (uint8_t)i);
    gm_pad(m, align);
    gm_u32(m, 0x3FC00000);
    gm_zero(m, 16);
    gm_pad(m, align);
    gm_zero(m, 34); /* the last tensor is not padded */
}

static struct gguf *open_made(struct gm *m, const char *name)
{
    struct gguf *g = NULL;
    struct rs_error err = {0};
    if (!gm_save(m, tap_scratch(name)) || gguf_open(tap_scratch(name), &g, &err) != RS_OK)
        tap_diag("%s: %s", name, err.msg);
    gm_free(m);
    return g;
}

static void check_tensors(const struct gguf *g, uint32_t align)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.w"), *last = gguf_find_tensor(g, "last");
    tap_eq_int((long long)gguf_n_tensors(g), 3, "three tensors");
    if (t == NULL || last == NULL) {
        tap_ok(false, "tensors are found by name");
        return;
    }
    tap_ok(t->n_dims == 3 && t->ne[0] == 64 && t->ne[1] == 2 && t->ne[2] == 3 && t->ne[3] == 1, "dims, missing ones are 1");
    tap_ok(t->type == Q8_0 && t->bytes == 408 && t->ordinal == 0 && t->file == 0 && t->offset % align == 0, "type, size, place");
    tap_ok(t->data[0] == 0 && t->data[407] == (407 & 255), "data");
    tap_ok(last->ordinal == 2 && gguf_tensor_at(g, 2) == last && last->bytes == 34, "order of the header is kept");
    tap_ok(gguf_find_tensor(g, "nope") == NULL, "an unknown tensor is not found");
}

static void check_values(const struct gguf *g)
{
    struct rs_error err = {0};
    uint32_t u = 0, u3[3] = {0};
    int64_t x = 0;
    float f = 0;
    bool b = false, found = true;
    char *s = NULL;
    size_t len = 0;
    struct gguf_array words = {0}, layers = {0};
    tap_ok(gguf_get_u32(g, "t.u8", &u, NULL, &err) == RS_OK && u == 200, "u8 as u32");
    tap_ok(gguf_get_u32(g, "t.u16", &u, NULL, &err) == RS_OK && u == 60000, "u16 as u32");
    tap_ok(gguf_get_i64(g, "t.i8", &x, NULL, &err) == RS_OK && x == -7, "i8");
    tap_ok(gguf_get_i64(g, "t.i16", &x, NULL, &err) == RS_OK && x == -300, "i16");
    tap_ok(gguf_get_i64(g, "t.i32", &x, NULL, &err) == RS_OK && x == -70000, "i32");
    tap_ok(gguf_get_i64(g, "t.i64", &x, NULL, &err) == RS_OK && x == -5, "i64");
    tap_ok(gguf_get_i64(g, "t.u64", &x, NULL, &err) == RS_OK && x == INT64_C(1) << 40, "u64");
    tap_ok(gguf_get_f32(g, "t.f32", &f, NULL, &err) == RS_OK && f == 1.5f, "f32");
    tap_ok(gguf_get_f32(g, "t.f64", &f, NULL, &err) == RS_OK && f == -2.5f, "f64");
    tap_ok(gguf_get_bool(g, "t.bool", &b, NULL, &err) == RS_OK && b, "bool");
    tap_ok(gguf_dup_str(g, "general.architecture", &s, NULL, &err) == RS_OK && strcmp(s, "glm-dsa") == 0, "a string");
    free(s);
    tap_ok(gguf_get_array(g, "t.words", GGUF_WANT_STR, &words, NULL, &err) == RS_OK && words.count == 3 &&
               memcmp(gguf_array_str(&words, 2, &len), "three", 5) == 0 && len == 5 &&
               memcmp(gguf_array_str(&words, 0, &len), "one", 3) == 0 && gguf_array_str(&words, 1, &len) != NULL && len == 0,
           "an array of strings, in any order");
    tap_ok(gguf_get_array(g, "t.layers", GGUF_WANT_INT, &layers, NULL, &err) == RS_OK && gguf_array_i64(&layers, 2) == 6,
           "an array of i32");
    tap_ok(gguf_get_u32s(g, "t.layers", u3, 3, NULL, &err) == RS_OK && u3[0] == 4 && u3[2] == 6, "one number per layer");
    tap_ok(gguf_get_u32s(g, "t.u8", u3, 3, NULL, &err) == RS_OK && u3[0] == 200 && u3[2] == 200, "one number for all layers");
    tap_ok(gguf_get_u32(g, "absent", &u, &found, &err) == RS_OK && !found, "an absent optional key");
}

static void refused(enum rs_result r, enum rs_result want, const struct rs_error *err, const char *part, const char *name)
{
    if (!tap_ok(r == want && err->code == want && strstr(err->msg, part) != NULL, "%s", name))
        tap_diag("result %d, message \"%s\", wanted %d and \"%s\"", (int)r, err->msg, (int)want, part);
}

static void check_confusion(const struct gguf *g)
{
    struct rs_error err = {0};
    uint32_t u, u2[2];
    float f;
    bool b;
    const char *s;
    size_t len;
    struct gguf_array a;
    refused(gguf_get_u32(g, "absent", &u, NULL, &err), RS_EFORMAT, &err, "key \"absent\" is missing", "a required key is missed by name");
    refused(gguf_get_u32(g, "t.f32", &u, NULL, &err), RS_EFORMAT, &err, "\"t.f32\" (f32) should be an integer", "f32 is not read as u32");
    refused(gguf_get_u32(g, "t.i8", &u, NULL, &err), RS_EFORMAT, &err, "out of range", "a negative number is not read as u32");
    refused(gguf_get_u32(g, "t.u64", &u, NULL, &err), RS_EFORMAT, &err, "out of range", "a large number is not read as u32");
    refused(gguf_get_f32(g, "t.u8", &f, NULL, &err), RS_EFORMAT, &err, "should be f32", "u8 is not read as f32");
    refused(gguf_get_bool(g, "t.u8", &b, NULL, &err), RS_EFORMAT, &err, "should be bool", "u8 is not read as bool");
    refused(gguf_get_str(g, "t.words", &s, &len, NULL, &err), RS_EFORMAT, &err, "(array of str) should be a string",
            "an array is not read as a string");
    refused(gguf_get_array(g, "t.layers", GGUF_WANT_F32, &a, NULL, &err), RS_EFORMAT, &err, "array of f32", "i32s are not read as f32s");
    refused(gguf_get_array(g, "t.words", GGUF_WANT_INT, &a, NULL, &err), RS_EFORMAT, &err, "array of integers",
            "strings are not read as integers");
    refused(gguf_get_array(g, "t.u8", GGUF_WANT_INT, &a, NULL, &err), RS_EFORMAT, &err, "array of integers",
            "a scalar is not read as an array");
    refused(gguf_get_u32s(g, "t.layers", u2, 2, NULL, &err), RS_EFORMAT, &err, "one entry per layer",
            "a per-layer array of another length");
}

static void check_listing(const struct gguf *g)
{
    static const struct {
        size_t i;
        const char *key, *value;
    } want[] = {{0, "general.architecture", "glm-dsa"},
                {3, "t.i8", "-7"},
                {7, "t.f32", "1.5"},
                {8, "t.bool", "true"},
                {9, "t.u64", "1099511627776"},
                {12, "t.words", "3 str: one  three"},
                {13, "t.layers", "3 i32: 4 5 6"}};
    char buf[64], tiny[4];
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        struct gguf_kv kv = gguf_kv_at(g, want[k].i);
        size_t n = gguf_print_value(&kv, buf, sizeof buf);
        tap_ok(strcmp(kv.key, want[k].key) == 0 && strcmp(buf, want[k].value) == 0 && n == strlen(buf), "%s is printed", want[k].key);
    }
    struct gguf_kv kv = gguf_kv_at(g, 0);
    tap_ok(gguf_print_value(&kv, tiny, sizeof tiny) == 7 && strcmp(tiny, "glm") == 0, "a small buffer is not overrun");
}

static void test_good(void)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct gm m = {0};
        uint32_t align = version == 2 ? 64 : 32;
        good_file(&m, version, align);
        size_t size = m.n;
        struct gguf *g = open_made(&m, "good.gguf");
        if (!tap_ok(g != NULL, "version %u, alignment %u", version, align))
            continue;
        tap_ok(gguf_version(g) == version && gguf_n_files(g) == 1 && gguf_file_bytes(g) == size && gguf_n_kv(g) == 14, "file facts");
        check_tensors(g, align);
        check_values(g);
        check_confusion(g);
        check_listing(g);
        gguf_close(g);
    }
    struct gm m = {0};
    gm_head(&m, 3, 0, 1);
    gm_kv_str(&m, "general.architecture", "x");
    struct gguf *g = open_made(&m, "empty.gguf");
    tap_ok(g != NULL && gguf_n_tensors(g) == 0, "a file of keys alone needs no padding");
    gguf_close(g);
    gguf_close(NULL);
}

static void test_fixtures(void)
{
    static const struct {
        const char *file;
        size_t tensors, keys;
    } want[] = {{"models/tiny-glm5-q4.gguf", 163, 51},
                {"tests/golden/fixture-dsa.gguf", 67, 39},
                {"tests/golden/fixture-flash.gguf", 52, 36},
                {"tests/golden/fixture-kquant.gguf", 44, 39},
                {"tests/golden/fixture-v2lite.gguf", 41, 37}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct gguf *g = NULL;
        struct rs_error err = {0};
        enum rs_result r = gguf_open(tap_source(want[i].file), &g, &err);
        if (!tap_ok(r == RS_OK && gguf_n_tensors(g) == want[i].tensors && gguf_n_kv(g) == want[i].keys, "%s", want[i].file))
            tap_diag("%s", err.msg);
        gguf_close(g);
    }
}

/* ---- bad files ---- */

static const uint64_t one_dim[] = {8};

/* A header with one tensor "t" of 8 f32 whose info the case writes itself. */
static void head1(struct gm *m)
{
    gm_head(m, 3, 1, 0);
}

static void data32(struct gm *m)
{
    gm_pad(m, 32);
    gm_zero(m, 32);
}

static void shape(struct gm *m, uint32_t n_dims, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t type)
{
    const uint64_t ne[] = {a, b, c, d};
    head1(m);
    gm_tensor(m, "t", n_dims, ne, type, 0);
    data32(m);
}

static void two(struct gm *m, const char *second, uint64_t offset)
{
    gm_head(m, 3, 2, 0);
    gm_tensor(m, "t", 1, one_dim, F32, 0);
    gm_tensor(m, second, 1, one_dim, F32, offset);
    gm_pad(m, 32);
    gm_zero(m, 64);
}

/* clang-format off */
static void b_magic(struct gm *m) { gm_raw(m, "PK\3\4 some archive, not a model", 30); }
static void b_zero(struct gm *m) { gm_zero(m, 4096); }
static void b_lfs(struct gm *m) { gm_raw(m, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 56); }
static void b_html(struct gm *m) { gm_raw(m, "<!DOCTYPE html><html>not found</html>", 37); }
static void b_short_head(struct gm *m) { gm_raw(m, "GGUF\3\0\0\0\1\0\0\0", 12); }
static void b_v1(struct gm *m) { gm_head(m, 1, 0, 0); }
static void b_v4(struct gm *m) { gm_head(m, 4, 0, 0); }
static void b_v0(struct gm *m) { gm_head(m, 0, 0, 0); }
static void b_swapped(struct gm *m) { gm_head(m, 0x03000000, 0, 0); }
static void b_many_tensors(struct gm *m) { gm_head(m, 3, UINT64_C(1) << 60, 0); gm_zero(m, 100); }
static void b_minus_tensors(struct gm *m) { gm_head(m, 3, UINT64_MAX, 0); gm_zero(m, 100); }
static void b_many_keys(struct gm *m) { gm_head(m, 3, 0, UINT64_C(1) << 61); gm_zero(m, 100); }
static void b_missing_keys(struct gm *m) { gm_head(m, 3, 0, 2); gm_kv_u32(m, "a", 1); gm_zero(m, 20); }
static void b_key_length(struct gm *m) { gm_head(m, 3, 0, 1); gm_u64(m, UINT64_MAX - 3); gm_zero(m, 40); }
static void b_key_long(struct gm *m) { gm_head(m, 3, 0, 1); gm_u64(m, 70000); gm_zero(m, 80000); }
static void b_key_empty(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_u32(m, "", 7); gm_zero(m, 8); }
static void b_key_nul(struct gm *m) { gm_head(m, 3, 0, 1); gm_u64(m, 3); gm_raw(m, "a\0b", 3); gm_u32(m, 4); gm_u32(m, 0); }
static void b_key_type(struct gm *m) { gm_head(m, 3, 0, 1); gm_key(m, "k", 13); gm_u32(m, 0); }
static void b_key_cut(struct gm *m) { gm_head(m, 3, 0, 1); gm_key(m, "key.name", 10); gm_u32(m, 0); }
static void b_str_length(struct gm *m) { gm_head(m, 3, 0, 1); gm_key(m, "k", 8); gm_u64(m, UINT64_C(1) << 40); gm_zero(m, 8); }
static void b_bool(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_bool(m, "k", 2); }
static void b_bools(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 7, 3); gm_raw(m, "\1\0\7", 3); }
static void b_array_count(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 4, UINT64_C(1) << 62); gm_zero(m, 8); }
static void b_array_strings(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 8, 1000); gm_zero(m, 800); }
static void b_array_in_string(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 8, 2); gm_str(m, "ok"); gm_u64(m, 500); gm_zero(m, 20); }
static void b_array_type(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 99, 1); gm_zero(m, 20); }
static void b_array_nested(struct gm *m) { gm_head(m, 3, 0, 1); gm_array(m, "k", 9, 1); gm_zero(m, 20); }
static void b_key_twice(struct gm *m) { gm_head(m, 3, 0, 3); gm_kv_u32(m, "k", 1); gm_kv_u32(m, "j", 1); gm_kv_u32(m, "k", 2); }
static void b_align_zero(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_u32(m, "general.alignment", 0); }
static void b_align_odd(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_u32(m, "general.alignment", 48); }
static void b_align_type(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_str(m, "general.alignment", "32"); }
static void b_name_long(struct gm *m)
{
    char name[65];
    memset(name, 'n', 64);
    name[64] = '\0';
    head1(m);
    gm_tensor(m, name, 1, one_dim, F32, 0);
    data32(m);
}
static void b_name_empty(struct gm *m) { head1(m); gm_tensor(m, "", 1, one_dim, F32, 0); data32(m); }
static void b_name_control(struct gm *m) { head1(m); gm_tensor(m, "x\033[2J\ny", 1, one_dim, 77, 0); data32(m); }
static void b_info_cut(struct gm *m) { head1(m); gm_str(m, "some.tensor"); gm_u32(m, 1); gm_zero(m, 7); }
static void b_dims0(struct gm *m) { shape(m, 0, 0, 0, 0, 0, F32); }
static void b_dims5(struct gm *m) { const uint64_t ne[] = {1, 1, 1, 1, 1}; head1(m); gm_tensor(m, "t", 5, ne, F32, 0); data32(m); }
static void b_dims_huge(struct gm *m) { head1(m); gm_str(m, "t"); gm_u32(m, 0x20000001); gm_zero(m, 100); }
static void b_ne_zero(struct gm *m) { shape(m, 2, 8, 0, 0, 0, F32); }
static void b_ne_negative(struct gm *m) { shape(m, 1, UINT64_MAX, 0, 0, 0, F32); }
static void b_ne_product(struct gm *m) { shape(m, 2, (UINT64_C(1) << 42) + 1, (UINT64_C(1) << 42) + 1, 0, 0, F32); }
static void b_ne_wraps(struct gm *m) { shape(m, 4, UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16, F32); }
static void b_ne_bytes(struct gm *m) { shape(m, 2, UINT64_C(1) << 62, 1, 0, 0, F32); }
static void b_ne_block(struct gm *m) { shape(m, 1, 33, 0, 0, 0, Q8_0); }
static void b_type_removed(struct gm *m) { shape(m, 1, 32, 0, 0, 0, 4); }
static void b_type_removed2(struct gm *m) { shape(m, 1, 32, 0, 0, 0, 37); }
static void b_type_private(struct gm *m) { shape(m, 1, 256, 0, 0, 0, 144); }
static void b_type_act(struct gm *m) { shape(m, 1, 256, 0, 0, 0, 15); }
static void b_type_int(struct gm *m) { shape(m, 1, 8, 0, 0, 0, 26); }
static void b_type_none(struct gm *m) { shape(m, 1, 8, 0, 0, 0, 0xDEAD); }
static void b_no_data(struct gm *m) { head1(m); gm_tensor(m, "t", 1, one_dim, F32, 0); }
static void b_data_cut(struct gm *m) { shape(m, 1, 9, 0, 0, 0, F32); }
static void b_offset_unaligned(struct gm *m) { two(m, "u", 16); }
static void b_offset_outside(struct gm *m) { two(m, "u", 64); }
static void b_offset_wraps(struct gm *m) { two(m, "u", UINT64_MAX - 31); }
static void b_offset_overlap(struct gm *m)
{
    const uint64_t ne[] = {16};
    gm_head(m, 3, 2, 0);
    gm_tensor(m, "second", 1, one_dim, F32, 32);
    gm_tensor(m, "first", 1, ne, F32, 0);
    gm_pad(m, 32);
    gm_zero(m, 64);
}
static void b_offset_same(struct gm *m) { two(m, "u", 0); }
static void b_name_twice(struct gm *m) { two(m, "t", 32); }
static void b_split_type(struct gm *m) { gm_head(m, 3, 0, 1); gm_kv_str(m, "split.count", "2"); }
static void b_split_range(struct gm *m) { gm_head(m, 3, 0, 1); gm_key(m, "split.no", 5); gm_u32(m, (uint32_t)-1); }
static void b_split_name(struct gm *m) { gm_head(m, 3, 0, 2); gm_kv_u16(m, "split.no", 0); gm_kv_u16(m, "split.count", 2); }
static void b_split_order(struct gm *m) { gm_head(m, 3, 0, 2); gm_kv_u16(m, "split.no", 2); gm_kv_u16(m, "split.count", 2); }

static const struct bad {
    const char *name;
    void (*make)(struct gm *);
    enum rs_result code;
    const char *part;
} s_bad[] = {
    {"another kind of file", b_magic, RS_EFORMAT, "offset 0: not a GGUF file"},
    {"zeros", b_zero, RS_EFORMAT, "incomplete download"},
    {"a Git LFS pointer", b_lfs, RS_EFORMAT, "Git LFS pointer"},
    {"a web page", b_html, RS_EFORMAT, "web page"},
    {"a header cut short", b_short_head, RS_EFORMAT, "offset 0: the file ends inside its first 24 bytes"},
    {"version 0", b_v0, RS_EUNSUPPORTED, "GGUF version 0"},
    {"version 1", b_v1, RS_EUNSUPPORTED, "GGUF version 1"},
    {"version 4", b_v4, RS_EUNSUPPORTED, "GGUF version 4"},
    {"a byte-swapped file", b_swapped, RS_EUNSUPPORTED, "big-endian"},
    {"too many tensors", b_many_tensors, RS_EFORMAT, "offset 8: 1152921504606846976 tensors do not fit"},
    {"a negative number of tensors", b_minus_tensors, RS_EFORMAT, "tensors do not fit"},
    {"too many keys", b_many_keys, RS_EFORMAT, "offset 16: 2305843009213693952 keys do not fit"},
    {"fewer keys than promised", b_missing_keys, RS_EFORMAT, "key number 1 has no name"},
    {"a key of impossible length", b_key_length, RS_EFORMAT, "the name of a key has a string of 18446744073709551612 bytes"},
    {"a key that is too long", b_key_long, RS_EFORMAT, "the limit is 65535"},
    {"a key without a name", b_key_empty, RS_EFORMAT, "key number 0 has no name"},
    {"a NUL in a key", b_key_nul, RS_EFORMAT, "NUL in its name"},
    {"an unknown value type", b_key_type, RS_EFORMAT, "key \"k\": no value type has number 13"},
    {"a value cut short", b_key_cut, RS_EFORMAT, "the file ends inside the value of key \"key.name\""},
    {"a string longer than the file", b_str_length, RS_EFORMAT, "key \"k\" has a string of 1099511627776 bytes"},
    {"a bool that is 2", b_bool, RS_EFORMAT, "key \"k\": 2 is not a bool"},
    {"a bool in an array that is 7", b_bools, RS_EFORMAT, "offset 51: key \"k\": 7 is not a bool"},
    {"an array larger than the file", b_array_count, RS_EFORMAT, "an array of 4611686018427387904 u32 does not fit"},
    {"an array of more strings than bytes", b_array_strings, RS_EFORMAT, "an array of 1000 str does not fit"},
    {"a string inside an array longer than the file", b_array_in_string, RS_EFORMAT, "the array of key \"k\" has a string of 500 bytes"},
    {"an unknown element type", b_array_type, RS_EFORMAT, "no array element type has number 99"},
    {"an array of arrays", b_array_nested, RS_EUNSUPPORTED, "key \"k\" is an array of arrays"},
    {"a key that appears twice", b_key_twice, RS_EFORMAT, "key \"k\" appears twice"},
    {"alignment 0", b_align_zero, RS_EFORMAT, "general.alignment\": 0 is not a power of two"},
    {"alignment 48", b_align_odd, RS_EFORMAT, "general.alignment\": 48 is not a power of two"},
    {"alignment as a string", b_align_type, RS_EFORMAT, "general.alignment\" is str, not u32"},
    {"a tensor name of 64 bytes", b_name_long, RS_EFORMAT, "the limit is 63"},
    {"a tensor without a name", b_name_empty, RS_EFORMAT, "tensor number 0 has no name"},
    {"control bytes in a name", b_name_control, RS_EFORMAT, "tensor \"x?[2J?y\": no weight type has number 77"},
    {"a tensor info cut short", b_info_cut, RS_EFORMAT, "the file ends inside tensor \"some.tensor\""},
    {"no dimensions", b_dims0, RS_EFORMAT, "tensor \"t\" has 0 dimensions"},
    {"five dimensions", b_dims5, RS_EFORMAT, "tensor \"t\" has 5 dimensions"},
    {"half a billion dimensions", b_dims_huge, RS_EFORMAT, "tensor \"t\" has 536870913 dimensions"},
    {"a zero dimension", b_ne_zero, RS_EFORMAT, "tensor \"t\": dimension 1 is 0"},
    {"a negative dimension", b_ne_negative, RS_EFORMAT, "tensor \"t\": dimension 0 is -1"},
    {"a product above 63 bits", b_ne_product, RS_EFORMAT, "tensor \"t\": 4398046511105 x 4398046511105 x 1 x 1 elements overflow"},
    {"a product that wraps to zero", b_ne_wraps, RS_EFORMAT, "elements overflow"},
    {"a size above 64 bits", b_ne_bytes, RS_EFORMAT, "its size in bytes overflows"},
    {"a row that cuts a block", b_ne_block, RS_EFORMAT, "a row of 33 elements is not a multiple of Q8_0's block of 32"},
    {"a removed type", b_type_removed, RS_EUNSUPPORTED, "weight type 4 was removed"},
    {"another removed type", b_type_removed2, RS_EUNSUPPORTED, "weight type 37 was removed"},
    {"a fork's type", b_type_private, RS_EUNSUPPORTED, "weight type 144 is private"},
    {"an activation type", b_type_act, RS_EUNSUPPORTED, "weight type 15 is for activations"},
    {"an integer type", b_type_int, RS_EUNSUPPORTED, "weight type 26 is an integer"},
    {"no type at all", b_type_none, RS_EFORMAT, "no weight type has number 57005"},
    {"no data section", b_no_data, RS_EFORMAT, "the file ends before its tensor data"},
    {"data cut short", b_data_cut, RS_EFORMAT, "tensor \"t\": 36 bytes at data offset 0 end outside the file (32 bytes of data)"},
    {"an unaligned offset", b_offset_unaligned, RS_EFORMAT, "tensor \"u\": data offset 16 is not a multiple of the alignment 32"},
    {"an offset outside", b_offset_outside, RS_EFORMAT, "tensor \"u\": 32 bytes at data offset 64 end outside"},
    {"an offset that wraps", b_offset_wraps, RS_EFORMAT, "end outside the file"},
    {"overlapping tensors", b_offset_overlap, RS_EFORMAT, "tensor \"second\" overlaps tensor \"first\""},
    {"two tensors at one place", b_offset_same, RS_EFORMAT, "overlaps tensor"},
    {"a tensor name that appears twice", b_name_twice, RS_EFORMAT, "tensor \"t\" appears twice"},
    {"split.count as a string", b_split_type, RS_EFORMAT, "key \"split.count\" is str, not an integer"},
    {"split.no -1", b_split_range, RS_EFORMAT, "key \"split.no\" is out of range"},
    {"a shard without a shard's name", b_split_name, RS_EFORMAT, "does not end in -00001-of-00002.gguf"},
    {"a shard number beyond the count", b_split_order, RS_EFORMAT, "\"split.no\" is 2, but \"split.count\" is 2"},
};

/* clang-format on */
/* One line, names the file, no control bytes, nothing left behind in *out. */
static void check_bad(const char *path, enum rs_result code, const char *part, const char *name)
{
    struct gguf *g = NULL;
    struct rs_error err = {0};
    enum rs_result r = gguf_open(path, &g, &err);
    bool clean = strlen(err.msg) < sizeof err.msg - 1 && strstr(err.msg, "bad.gguf") != NULL;
    for (const char *p = err.msg; *p != '\0'; p++)
        clean = clean && (unsigned char)*p >= 0x20 && *p != 0x7f;
    if (!tap_ok(r == code && err.code == code && g == NULL && clean && strstr(err.msg, part) != NULL, "%s", name))
        tap_diag("result %d, message \"%s\", wanted %d and \"%s\"", (int)r, err.msg, (int)code, part);
    if (r == RS_OK)
        gguf_close(g);
}

static void test_bad(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", tap_scratch("bad.gguf"));
    for (size_t i = 0; i < sizeof s_bad / sizeof *s_bad; i++) {
        struct gm m = {0};
        s_bad[i].make(&m);
        gm_save(&m, path);
        gm_free(&m);
        check_bad(path, s_bad[i].code, s_bad[i].part, s_bad[i].name);
    }
    struct gm empty = {0};
    gm_save(&empty, path);
    check_bad(path, RS_EFORMAT, "it is empty", "an empty file");
    unlink(path);
    check_bad(path, RS_EIO, "cannot open: No such file", "no file");
    mkdir(path, 0700);
    check_bad(path, RS_EIO, "not a regular file", "a folder");
    rmdir(path);
    mkfifo(path, 0600);
    check_bad(path, RS_EIO, "not a regular file", "a FIFO does not hang");
    unlink(path);
}

/* Every prefix of a good file is refused. */
static void test_truncated(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", tap_scratch("bad.gguf"));
    struct gm m = {0};
    good_file(&m, 3, 32);
    size_t full = m.n, accepted = 0, silent = 0;
    for (m.n = 0; m.n < full; m.n++) {
        struct gguf *g = NULL;
        struct rs_error err = {0};
        gm_save(&m, path);
        if (gguf_open(path, &g, &err) == RS_OK) {
            accepted++;
            gguf_close(g);
        } else if (err.code != RS_EFORMAT || strstr(err.msg, "bad.gguf: offset ") == NULL) {
            silent++;
        }
    }
    tap_ok(accepted == 0 && silent == 0, "none of %zu prefixes of a good file is accepted", full);
    gm_free(&m);
}

/* ---- split sets ---- */

struct shard {
    uint16_t no, count;
    int32_t tensors;  /* split.tensors.count; -1: leave the key out */
    const char *name; /* of its one tensor; NULL: it has none */
};

static void write_shard(const char *file, const struct shard *s)
{
    struct gm m = {0};
    gm_head(&m, 3, s->name != NULL, s->tensors >= 0 ? 4 : 3);
    gm_kv_str(&m, "general.architecture", s->no == 0 ? "first" : "later");
    gm_kv_u16(&m, "split.no", s->no);
    gm_key(&m, "split.count", 11), gm_u64(&m, s->count); /* writers differ in the type */
    if (s->tensors >= 0)
        gm_key(&m, "split.tensors.count", 5), gm_u32(&m, (uint32_t)s->tensors);
    if (s->name != NULL) {
        gm_tensor(&m, s->name, 1, one_dim, F32, 0);
        gm_pad(&m, 32);
        for (uint32_t i = 0; i < 8; i++)
            gm_u32(&m, s->no);
    }
    gm_save(&m, tap_scratch(file));
    gm_free(&m);
}

static void good_set(void)
{
    write_shard("m-00001-of-00003.gguf", &(struct shard){0, 3, 2, NULL});
    write_shard("m-00002-of-00003.gguf", &(struct shard){1, 3, -1, "b"});
    write_shard("m-00003-of-00003.gguf", &(struct shard){2, 3, -1, "a"});
}

static void check_set(const char *file)
{
    struct gguf *g = NULL;
    struct rs_error err = {0};
    const char *arch = NULL;
    size_t len = 0;
    if (!tap_ok(gguf_open(tap_scratch(file), &g, &err) == RS_OK, "the set opens from %s", file)) {
        tap_diag("%s", err.msg);
        return;
    }
    const struct gguf_tensor *a = gguf_find_tensor(g, "a"), *b = gguf_find_tensor(g, "b");
    tap_ok(gguf_n_files(g) == 3 && gguf_n_tensors(g) == 2 && strstr(gguf_path(g, 2), "m-00003-of-00003.gguf") != NULL,
           "three files, two tensors");
    tap_ok(a != NULL && a->file == 2 && a->ordinal == 1 && a->data[0] == 2 && b != NULL && b->file == 1 && b->ordinal == 0 &&
               b->data[0] == 1,
           "tensors know their file and order");
    tap_ok(gguf_get_str(g, "general.architecture", &arch, &len, NULL, &err) == RS_OK && len == 5 && memcmp(arch, "first", 5) == 0,
           "the first shard speaks for the model");
    gguf_close(g);
}

static void check_bad_set(enum rs_result code, const char *part, const char *name)
{
    struct gguf *g = NULL;
    struct rs_error err = {0};
    refused(gguf_open(tap_scratch("m-00001-of-00003.gguf"), &g, &err), code, &err, part, name);
    gguf_close(g);
    good_set();
}

static void test_split(void)
{
    good_set();
    check_set("m-00001-of-00003.gguf");
    check_set("m-00003-of-00003.gguf");
    unlink(tap_scratch("m-00002-of-00003.gguf"));
    check_bad_set(RS_EIO, "m-00002-of-00003.gguf: cannot open", "a missing shard is named");
    write_shard("m-00002-of-00003.gguf", &(struct shard){2, 3, -1, "b"});
    check_bad_set(RS_EFORMAT, "m-00002-of-00003.gguf: its keys say shard 3 of 3, its name says shard 2 of 3", "a shard in the wrong place");
    write_shard("m-00002-of-00003.gguf", &(struct shard){1, 4, -1, "b"});
    check_bad_set(RS_EFORMAT, "its keys say shard 2 of 4", "a shard of another set");
    write_shard("m-00003-of-00003.gguf", &(struct shard){2, 3, -1, "b"});
    check_bad_set(RS_EFORMAT, "tensor \"b\" appears twice", "one tensor in two shards");
    write_shard("m-00001-of-00003.gguf", &(struct shard){0, 3, 5, NULL});
    check_bad_set(RS_EFORMAT, "\"split.tensors.count\" is 5, but the 3 shards have 2 tensors", "a wrong number of tensors");
    struct gm html = {0};
    gm_raw(&html, "<html>", 6);
    gm_save(&html, tap_scratch("m-00003-of-00003.gguf"));
    gm_free(&html);
    check_bad_set(RS_EFORMAT, "m-00003-of-00003.gguf: offset 0: not a GGUF file", "a web page in place of a shard");
}

int main(void)
{
    test_good();
    test_fixtures();
    test_bad();
    test_truncated();
    test_split();
    return tap_done();
}
