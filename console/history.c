#include "config.h"

#include "console/history.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console/buf.h"

static void escape(struct buf *b, const char *line)
{
    for (const char *p = line; *p != '\0'; p++) {
        if (*p == '\\' || *p == '\n')
            buf_char(b, '\\');
        buf_char(b, *p == '\n' ? 'n' : *p);
    }
    buf_char(b, '\n');
}

static void unescape(char *line)
{
    char *to = line;
    for (const char *p = line; *p != '\0'; p++) {
        if (*p == '\\' && p[1] != '\0') {
            p++;
            *to++ = *p == 'n' ? '\n' : *p;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

/* Put line (consumed) last; an equal one before it goes, and the oldest when there are too many. */
static void push(struct history *h, char *line)
{
    for (size_t i = 0; i < h->n; i++) {
        if (strcmp(h->lines[i], line) != 0)
            continue;
        free(h->lines[i]);
        memmove(h->lines + i, h->lines + i + 1, (h->n - i - 1) * sizeof *h->lines);
        h->n--;
        break;
    }
    if (h->n == HISTORY_MAX) {
        free(h->lines[0]);
        memmove(h->lines, h->lines + 1, (h->n - 1) * sizeof *h->lines);
        h->n--;
    }
    h->lines = xreallocarray(h->lines, h->n + 1, sizeof *h->lines);
    h->lines[h->n++] = line;
}

static bool write_text(int fd, const struct buf *b)
{
    return write(fd, b->text, b->len) == (ssize_t)b->len;
}

/* Write the file anew without what was dropped. Under the lock of the old file, so that what another console appends is not lost. */
static void rewrite(struct history *h)
{
    char *temporary = xasprintf("%s.XXXXXX", h->file);
    struct buf b = {0};
    for (size_t i = 0; i < h->n; i++)
        escape(&b, h->lines[i]);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd >= 0) {
        bool good = b.len == 0 || write_text(fd, &b);
        good = close(fd) == 0 && good;
        if (!good || rename(temporary, h->file) != 0)
            unlink(temporary);
    }
    buf_fini(&b);
    free(temporary);
}

void history_open(struct history *h, const char *path)
{
    *h = (struct history){.file = path != NULL ? xstrdup(path) : NULL};
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    if (f == NULL)
        return;
    (void)flock(fileno(f), LOCK_EX);
    (void)fchmod(fileno(f), 0600);
    char *line = NULL;
    size_t cap = 0, entries = 0;
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n')
            line[--n] = '\0';
        entries++;
        if (n == 0 || n > HISTORY_MAX_LINE || strlen(line) != (size_t)n)
            continue;
        unescape(line);
        push(h, xstrdup(line));
    }
    free(line);
    if (entries > HISTORY_MAX + HISTORY_MAX / 2)
        rewrite(h);
    fclose(f);
}

/* Open for appending, and hold the lock. Another console may have put a new file in its place while this one waited: then again. */
static int open_locked(const char *file)
{
    for (int tries = 0; file != NULL && tries < 3; tries++) {
        struct stat st;
        int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        close(fd);
    }
    return -1;
}

bool history_add(struct history *h, const char *line)
{
    if (*line == '\0' || *line == ' ' || strlen(line) > HISTORY_MAX_LINE)
        return false;
    if (h->n > 0 && strcmp(h->lines[h->n - 1], line) == 0)
        return false;
    push(h, xstrdup(line));
    int fd = open_locked(h->file);
    if (fd >= 0) {
        struct buf b = {0};
        escape(&b, line);
        (void)write_text(fd, &b);
        close(fd);
        buf_fini(&b);
    }
    return true;
}

void history_close(struct history *h)
{
    for (size_t i = 0; i < h->n; i++)
        free(h->lines[i]);
    free(h->lines);
    free(h->file);
    *h = (struct history){0};
}
