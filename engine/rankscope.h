/* The public header of the rankscope engine. Work in progress: this first part fixes results and errors. */
#ifndef RANKSCOPE_H
#define RANKSCOPE_H

enum rs_result {
    RS_OK = 0,
    RS_EUSAGE = -1,       /* the caller's arguments are off */
    RS_ENOMEM = -2,       /* out of memory; what was there before is untouched */
    RS_EIO = -3,          /* the operating system said no */
    RS_EFORMAT = -4,      /* a file is not what it claims to be */
    RS_EUNSUPPORTED = -5, /* well-formed, but not something this build computes */
    RS_ESTATE = -6,       /* not now: no model, wrong mode, not in control */
    RS_ENOTFOUND = -7,
    RS_ECANCELLED = -8,
    RS_ETIMEOUT = -9,
    RS_EENGINE = -10,     /* the engine process is gone or a device failed */
    RS_EINTERNAL = -11,
};

struct rs_error {
    enum rs_result code;
    char msg[512]; /* one line, no newline, safe to print */
};

/* A short English name for r; static storage. Any thread. */
const char *rs_result_name(enum rs_result r);

#endif
