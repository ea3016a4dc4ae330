/* cmd_input.c: what subcommands read: files, stdin, lists of numbers. */
#include "config.h"

#include "console/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/sig.h"
#include "console/text.h"

#define MAX_TEXT (64u << 20)

/* Wait for input; false when Ctrl-C says to stop. Nothing is open yet that would have to be closed before a signal ends the process. */
static bool wait_input(int fd)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        unsigned bits = p[1].revents != 0 ? sig_take() : 0;
        if (bits & (SIG_BIT_TERM | SIG_BIT_HUP))
            sig_die(bits & SIG_BIT_TERM ? SIGTERM : SIGHUP);
        if (bits & SIG_BIT_TSTP)
            sig_stop();
        if (bits & SIG_BIT_INT)
            return false;
        if (p[0].revents != 0)
            return true;
    }
}

static enum rs_result read_fd(int fd, const char *name, struct buf *b, struct rs_error *err)
{
    char piece[65536];
    for (;;) {
        if (!wait_input(fd))
            return fail_set(err, RS_ECANCELLED, "interrupted");
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0)
            return RS_OK;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return fail_set(err, RS_EUSAGE, "cannot read %s: %s", name, strerror(errno));
        if (n > 0)
            buf_add(b, piece, (size_t)n);
        if (b->len > MAX_TEXT)
            return fail_set(err, RS_EUSAGE, "%s is over 64 MiB", name);
    }
}

enum rs_result cmd_read_text(const char *path, char **text, struct rs_error *err)
{
    bool in = strcmp(path, "-") == 0;
    const char *name = in ? "standard input" : path;
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_set(err, RS_EUSAGE, "cannot read %s: %s", path, strerror(errno));
    struct buf b = {0};
    enum rs_result r = read_fd(fd, name, &b, err);
    if (!in)
        close(fd);
    size_t bad;
    if (r == RS_OK && b.len > 0 && !text_valid(b.text, b.len, &bad))
        r = fail_set(err, RS_EUSAGE, "%s is not UTF-8 text: byte %zu is 0x%02x", name, bad, (unsigned char)b.text[bad]);
    if (r != RS_OK) {
        buf_fini(&b);
        return r;
    }
    *text = buf_take(&b);
    return RS_OK;
}

enum rs_result cmd_parse_ids(const char *text, json_t **ids, struct rs_error *err)
{
    json_t *list = json_array();
    const char *p = text;
    for (;;) {
        p += strspn(p, ", \t\r\n");
        if (*p == '\0')
            break;
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno != 0 || id < 0 || id > INT_MAX || (*end != '\0' && strchr(", \t\r\n", *end) == NULL)) {
            json_decref(list);
            return fail_set(err, RS_EUSAGE, "'%.*s' is not a token id", (int)strcspn(p, ", \t\r\n"), p);
        }
        json_array_append_new(list, json_integer(id));
        p = end;
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return fail_set(err, RS_EUSAGE, "no token ids given");
    }
    *ids = list;
    return RS_OK;
}
