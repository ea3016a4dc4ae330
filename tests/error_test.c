/* engine/error.c: what error_set() leaves behind. */
#include "engine/error.h"

#include <string.h>

#include "tests/tap.h"

static void test_set(void)
{
    struct rs_error err = {0};
    tap_eq_int(error_set(&err, RS_EFORMAT, "%s: offset %d", "x.gguf", 12), RS_EFORMAT, "the code is passed on");
    tap_eq_int(err.code, RS_EFORMAT, "the code is stored");
    tap_eq_str(err.msg, "x.gguf: offset 12", "the message is formatted");
    tap_eq_int(error_set(NULL, RS_EIO, "nobody listens"), RS_EIO, "a caller without an error struct still gets the code");
}

static void test_hostile(void)
{
    struct rs_error err = {0};
    error_set(&err, RS_EFORMAT, "tensor \"%s\"", "a\033[2J\n\x7f" "b");
    tap_eq_str(err.msg, "tensor \"a?[2J??b\"", "control bytes cannot reach a terminal");

    char name[2 * sizeof err.msg];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    error_set(&err, RS_EFORMAT, "%s", name);
    tap_eq_int((long long)strlen(err.msg), (long long)sizeof err.msg - 1, "a long message is cut to the buffer");
}

static void test_names(void)
{
    int unnamed = 0;
    for (int r = RS_OK; r >= RS_EINTERNAL; r--)
        unnamed += strcmp(rs_result_name((enum rs_result)r), "unknown") == 0;
    tap_eq_int(unnamed, 0, "every result has a name");
    tap_eq_str(rs_result_name((enum rs_result)-1000), "unknown", "a number that is no result is called unknown");
}

int main(void)
{
    tap_plan(8);
    test_set();
    test_hostile();
    test_names();
    return tap_done();
}
