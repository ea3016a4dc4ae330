/* tui_script.c: the panels without a terminal: a screen that exists only as a grid, and keys from a file, one step a line:
 *
 *   key NAME...          press keys ("Enter", "C-c", "M-2", "q")
 *   text TEXT            type it
 *   paste TEXT           paste it; \n, \t, \\ and \xHH work in TEXT
 *   bytes TEXT           what a terminal might send, with the same escapes
 *   random SEED N        N random bytes, the same for the same seed
 *   resize WxH           another size
 *   wait MS              let time pass; with --fake-time it does so at once
 *   wait-idle            until nothing runs and nothing is outstanding
 *   wait-text TEXT       until TEXT is on the screen (60 s at most, which is an error)
 *   save-screen FILE     the screen as text
 *   save-roles FILE      the screen and what each cell means
 *   save-times FILE      memory, time since the beginning, frames drawn, and how long keys waited for theirs
 *
 * After the last step the console ends. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "console/tui.h"

#define TICK_US 50000 /* of fake time at once */
#define WAIT_TEXT_US 60000000

struct tui_script {
    struct tui_screen screen;
    int rows, cols;
    FILE *f;
    char *line; /* the present step; NULL: read the next one */
    uint64_t begun_us, until_us;
    unsigned line_number;
    bool failed;
};

/* Real time, whatever the time of the panels is. */
static uint64_t clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void script_size(struct tui_screen *screen, int *rows, int *cols)
{
    struct tui_script *s = (struct tui_script *)screen;
    *rows = s->rows;
    *cols = s->cols;
}

static void script_show(struct tui_screen *screen, const struct grid *g, int y, int x, bool all)
{
    (void)screen;
    (void)g;
    (void)y;
    (void)x;
    (void)all;
}

static void script_nothing(struct tui_screen *screen)
{
    (void)screen;
}

static void script_send(struct tui_screen *screen, const char *bytes, size_t n)
{
    (void)screen;
    (void)bytes;
    (void)n;
}

static void script_theme(struct tui_screen *screen, const struct tui_theme *theme)
{
    (void)screen;
    (void)theme;
}

static void script_mouse(struct tui_screen *screen, bool on)
{
    (void)screen;
    (void)on;
}

static bool parse_size(const char *text, int *rows, int *cols)
{
    char end;
    return sscanf(text, "%dx%d%c", cols, rows, &end) == 2 && *rows >= 1 && *cols >= 1 && *rows <= 1000 && *cols <= 1000;
}

bool tui_script_open(const char *size, const char *path, struct tui_script **out, char *msg, size_t msg_size)
{
    struct tui_script *s = xcalloc(1, sizeof *s);
    s->screen = (struct tui_screen){script_size, script_show, script_nothing, script_nothing, script_send, script_theme, script_mouse, -1, -1};
    if (!parse_size(size, &s->rows, &s->cols)) {
        snprintf(msg, msg_size, "'%s' is not a size such as 120x40", size);
        free(s);
        return false;
    }
    s->f = path != NULL ? fopen(path, "r") : NULL;
    if (path != NULL && s->f == NULL) {
        snprintf(msg, msg_size, "%s: %s", path, strerror(errno));
        free(s);
        return false;
    }
    s->begun_us = clock_us();
    *out = s;
    return true;
}

void tui_script_close(struct tui_script *s)
{
    if (s == NULL)
        return;
    if (s->f != NULL)
        fclose(s->f);
    free(s->line);
    free(s);
}

struct tui_screen *tui_script_screen(struct tui_script *s)
{
    return &s->screen;
}

bool tui_script_failed(const struct tui_script *s)
{
    return s->failed;
}

static void fail(struct tui_script *s, const char *why)
{
    fprintf(stderr, "rankscope: keys line %u: %s: %s\n", s->line_number, s->line, why);
    s->failed = true;
}

/* The screen as it is now, with a frame drawn for it. */
static void draw(struct tui *t, struct buf *out, bool roles)
{
    int y = -1, x = 0, rows, cols;
    t->screen->size(t->screen, &rows, &cols);
    grid_resize(&t->grid, rows, cols);
    t->grid.ascii = t->ascii;
    tui_draw(t, &y, &x);
    grid_save(&t->grid, roles, out);
    if (roles && y >= 0)
        buf_printf(out, "cursor %d %d\n", y, x);
}

static void save(struct tui_script *s, struct tui *t, const char *path, bool roles)
{
    struct buf b = {0};
    draw(t, &b, roles);
    FILE *f = fopen(path, "w");
    bool good = f != NULL && fwrite(b.text, 1, b.len, f) == b.len;
    if ((f != NULL && fclose(f) != 0) || !good)
        fail(s, strerror(errno));
    buf_fini(&b);
}

static void save_times(struct tui_script *s, struct tui *t, const char *path)
{
    uint64_t n = 0, seen = 0;
    unsigned p99 = 0;
    for (int i = 0; i < 64; i++)
        n += t->key_ms[i];
    for (int i = 0; i < 64 && seen * 100 < n * 99; i++) {
        seen += t->key_ms[i];
        p99 = 2 * (unsigned)(i + 1);
    }
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        fail(s, strerror(errno));
        return;
    }
    long pages = 0;
    FILE *m = fopen("/proc/self/statm", "r");
    if (m != NULL) {
        if (fscanf(m, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(m);
    }
    fprintf(f, "rss_kb %ld\n", pages * (sysconf(_SC_PAGESIZE) / 1024));
    fprintf(f, "ms %llu\n", (unsigned long long)(clock_us() - s->begun_us) / 1000);
    fprintf(f, "frames %llu\nkeys %llu\np99_ms %u\nworst_ms %.1f\nlines %llu\n", (unsigned long long)t->frames, (unsigned long long)n, p99,
            (double)t->slowest_key_us / 1e3, (unsigned long long)(t->chat.first_id + t->chat.n));
    fclose(f);
}

static void type(struct tui *t, const char *bytes, size_t n)
{
    if (t->key_us == 0)
        t->key_us = tui_now_us(t);
    tui_input_bytes(t, bytes, n);
}

static void press(struct tui_script *s, struct tui *t, char *names)
{
    for (char *save_at = NULL, *name = strtok_r(names, " ", &save_at); name != NULL; name = strtok_r(NULL, " ", &save_at)) {
        struct tui_key k;
        if (!tui_key_parse(name, &k)) {
            fail(s, "no such key");
            return;
        }
        /* Alone in its read, as from a keyboard: an escape is not the beginning of the next key. */
        type(t, k.bytes, k.n);
        t->last_byte_us = 0;
        tui_input_tick(t, TUI_ESCAPE_US);
    }
}

static size_t unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p != '\0'; p++) {
        unsigned x;
        if (*p != '\\' || p[1] == '\0') {
            *to++ = *p;
        } else if (p[1] == 'x' && sscanf(p + 2, "%2x", &x) == 1) {
            *to++ = (char)x;
            p += 3;
        } else {
            p++;
            *to++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p == 'e' ? '\033' : *p;
        }
    }
    *to = '\0';
    return (size_t)(to - text);
}

/* Ctrl-D and the plain console would end it early: they are left out. */
static void random_bytes(struct tui *t, unsigned long seed, unsigned long n)
{
    uint64_t x = seed * 2654435761u + 1;
    char bytes[256];
    while (n > 0) {
        size_t k = n < sizeof bytes ? n : sizeof bytes;
        for (size_t i = 0; i < k; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            /* Half of it text and escape sequences, the rest anything. */
            bytes[i] = x & 1 ? (char)(x >> 32) : "\033[OA~;120M<q?/ \r\tjk"[(x >> 32) % 20];
            if (bytes[i] == 4)
                bytes[i] = 'd';
        }
        type(t, bytes, k);
        n -= k;
        t->quit = t->toggle = false;
    }
}

static enum tui_script_state wait_until(struct tui_script *s, struct tui *t, bool done, uint64_t *wait_us)
{
    if (done) {
        free(s->line);
        s->line = NULL;
        s->until_us = 0;
        return TUI_SCRIPT_STEP;
    }
    /* Fake time stands still while replies are on their way, so what is seen does not depend on how fast they come. */
    if (t->fake_time && s->until_us > t->fake_us && !tui_data_waiting(&t->data)) {
        uint64_t left = s->until_us - t->fake_us;
        t->fake_us += left < TICK_US ? left : TICK_US;
        return TUI_SCRIPT_STEP;
    }
    *wait_us = 10000;
    return TUI_SCRIPT_WAIT;
}

static bool on_screen(struct tui *t, const char *text)
{
    struct buf b = {0};
    draw(t, &b, false);
    bool found = strstr(b.text, text) != NULL;
    buf_fini(&b);
    return found;
}

/* In real time always: what is waited for comes from elsewhere. */
static enum tui_script_state wait_text(struct tui_script *s, struct tui *t, const char *text, uint64_t *wait_us)
{
    uint64_t us = clock_us();
    if (s->until_us == 0)
        s->until_us = us + WAIT_TEXT_US;
    bool found = on_screen(t, text);
    if (us >= s->until_us && !found)
        fail(s, "it did not come");
    if (!found && !s->failed) {
        *wait_us = 20000;
        return TUI_SCRIPT_WAIT;
    }
    free(s->line);
    s->line = NULL;
    s->until_us = 0;
    return TUI_SCRIPT_STEP;
}

static void do_step(struct tui_script *s, struct tui *t, const char *name, char *rest)
{
    unsigned long seed, n;
    if (strcmp(name, "key") == 0) {
        press(s, t, rest);
    } else if (strcmp(name, "text") == 0) {
        type(t, rest, strlen(rest));
    } else if (strcmp(name, "bytes") == 0) {
        size_t len = unescape(rest);
        type(t, rest, len);
    } else if (strcmp(name, "paste") == 0) {
        size_t len = unescape(rest);
        type(t, "\033[200~", 6);
        type(t, rest, len);
        type(t, "\033[201~", 6);
    } else if (strcmp(name, "random") == 0 && sscanf(rest, "%lu %lu", &seed, &n) == 2) {
        random_bytes(t, seed, n);
    } else if (strcmp(name, "resize") == 0 && parse_size(rest, &s->rows, &s->cols)) {
        t->dirty = t->repaint = true;
    } else if (strcmp(name, "save-screen") == 0 || strcmp(name, "save-roles") == 0) {
        save(s, t, rest, strcmp(name, "save-roles") == 0);
    } else if (strcmp(name, "save-times") == 0) {
        save_times(s, t, rest);
    } else {
        fail(s, "no such step");
    }
}

enum tui_script_state tui_script_step(struct tui_script *s, struct tui *t, bool idle, uint64_t *wait_us)
{
    char name[16];
    int n = 0;
    while (s->line == NULL) {
        size_t cap = 0;
        ssize_t len = s->f != NULL ? getline(&s->line, &cap, s->f) : -1;
        if (len < 0 || s->failed) {
            free(s->line);
            s->line = NULL;
            return TUI_SCRIPT_END;
        }
        s->line_number++;
        if (s->line[len - 1] == '\n')
            s->line[len - 1] = '\0';
        if (sscanf(s->line, "%15s%n", name, &n) != 1 || name[0] == '#') {
            free(s->line);
            s->line = NULL;
        }
    }
    sscanf(s->line, "%15s%n", name, &n);
    char *rest = s->line + n + (s->line[n] == ' ');
    if (strcmp(name, "wait-idle") == 0)
        return wait_until(s, t, idle, wait_us);
    if (strcmp(name, "wait-text") == 0)
        return wait_text(s, t, rest, wait_us);
    if (strcmp(name, "wait") == 0) {
        if (s->until_us == 0)
            s->until_us = tui_now_us(t) + strtoul(rest, NULL, 10) * 1000;
        return wait_until(s, t, tui_now_us(t) >= s->until_us && !(t->fake_time && tui_data_waiting(&t->data)), wait_us);
    }
    do_step(s, t, name, rest);
    free(s->line);
    s->line = NULL;
    return TUI_SCRIPT_STEP;
}
