#include "config.h"

#include "console/js.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/text.h"

json_t *js_at(const json_t *obj, const char *path)
{
    char key[64];
    while (obj != NULL) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        obj = json_object_get(obj, key);
        if (path[n] == '\0')
            return (json_t *)obj;
        path += n + 1;
    }
    return NULL;
}

json_t *js_parse(const char *text)
{
    return json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

const char *js_str(const json_t *obj, const char *path, const char *def)
{
    const json_t *v = js_at(obj, path);
    return json_is_string(v) ? json_string_value(v) : def;
}

double js_num(const json_t *obj, const char *path, double def)
{
    const json_t *v = js_at(obj, path);
    return json_is_number(v) ? json_number_value(v) : def;
}

json_int_t js_int(const json_t *obj, const char *path, json_int_t def)
{
    const json_t *v = js_at(obj, path);
    return json_is_integer(v) ? json_integer_value(v) : json_is_real(v) ? (json_int_t)json_real_value(v) : def;
}

bool js_bool(const json_t *obj, const char *path, bool def)
{
    const json_t *v = js_at(obj, path);
    return json_is_boolean(v) ? json_is_true(v) : def;
}

json_t *js_or_null(const json_t *obj, const char *path)
{
    json_t *v = js_at(obj, path);
    return v != NULL ? json_incref(v) : json_null();
}

json_t *js_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

char *js_dump(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (text == NULL)
        return xstrdup("null");
    struct buf b = {0};
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char next = (unsigned char)p[1];
        if ((unsigned char)*p == 0xc2 && next >= 0x80 && next < 0xa0) {
            buf_printf(&b, "\\u%04x", next);
            p++;
        } else if (*p == 0x7f) {
            buf_str(&b, "\\u007f");
        } else {
            buf_char(&b, *p);
        }
    }
    free(text);
    return buf_take(&b);
}

json_t *js_text(const char *text, size_t len)
{
    json_t *v = json_stringn(text, len);
    if (v != NULL)
        return v;
    struct buf b = {0};
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        unsigned cp;
        int n = text_utf8(s + i, len - i, &cp);
        if (n > 0)
            buf_add(&b, text + i, (size_t)n);
        else
            buf_str(&b, "\xef\xbf\xbd");
        i += n > 0 ? (size_t)n : 1;
    }
    v = json_stringn(b.text != NULL ? b.text : "", b.len);
    buf_fini(&b);
    return v;
}

static atomic_ulong s_failures;

static void *counted_malloc(size_t n)
{
    void *p = malloc(n);
    if (p == NULL && n != 0)
        atomic_fetch_add(&s_failures, 1);
    return p;
}

void js_count_failures(void)
{
    json_set_alloc_funcs(counted_malloc, free);
}

unsigned long js_failures(void)
{
    return atomic_load(&s_failures);
}
