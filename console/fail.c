#include "config.h"

#include "console/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "console/buf.h"
#include "console/text.h"

enum rs_result fail_set(struct rs_error *err, enum rs_result code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    char *line = text_one_line(text);
    err->code = code;
    snprintf(err->msg, sizeof err->msg, "%s", line);
    free(line);
    free(text);
    return code;
}

enum exit_status fail_status(enum rs_result r)
{
    switch (r) {
    case RS_OK: return EXIT_OK;
    case RS_EUSAGE: return EXIT_USAGE;
    case RS_ESTATE: return EXIT_COMMAND;
    case RS_ECANCELLED: return EXIT_INTERRUPT;
    default: return EXIT_ENGINE;
    }
}
