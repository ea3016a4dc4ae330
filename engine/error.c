/* Filling struct rs_error. */
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>

enum rs_result error_set(struct rs_error *err, enum rs_result code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    for (char *p = err->msg; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return code;
}

const char *rs_result_name(enum rs_result r)
{
    switch (r) {
    case RS_OK: return "ok";
    case RS_EUSAGE: return "usage";
    case RS_ENOMEM: return "out of memory";
    case RS_EIO: return "input/output";
    case RS_EFORMAT: return "bad file";
    case RS_EUNSUPPORTED: return "unsupported";
    case RS_ESTATE: return "wrong state";
    case RS_ENOTFOUND: return "not found";
    case RS_ECANCELLED: return "cancelled";
    case RS_ETIMEOUT: return "timeout";
    case RS_EENGINE: return "engine failed";
    case RS_EINTERNAL: return "internal";
    }
    return "unknown";
}
