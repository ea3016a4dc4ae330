#include "config.h"

#include "console/conv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console/buf.h"
#include "console/fail.h"
#include "console/js.h"

#define CONV_VERSION 1
#define MAX_FILE (64L << 20)

void conv_add(struct conv *c, enum conv_role role, const char *text, const char *thinking, bool cut)
{
    c->messages = xreallocarray(c->messages, c->n + 1, sizeof *c->messages);
    c->messages[c->n++] = (struct conv_message){
        .role = role,
        .text = xstrdup(text),
        .thinking = thinking != NULL && *thinking != '\0' ? xstrdup(thinking) : NULL,
        .cut = cut,
    };
}

void conv_drop_last(struct conv *c)
{
    if (c->n == 0)
        return;
    c->n--;
    free(c->messages[c->n].text);
    free(c->messages[c->n].thinking);
}

void conv_clear(struct conv *c)
{
    while (c->n > 0)
        conv_drop_last(c);
    free(c->messages);
    c->messages = NULL;
}

void conv_fini(struct conv *c)
{
    conv_clear(c);
    free(c->system);
    c->system = NULL;
}

json_t *conv_to_json(const struct conv *c)
{
    json_t *messages = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const struct conv_message *m = &c->messages[i];
        json_t *o = json_object();
        json_object_set_new(o, "role", json_string(m->role == CONV_USER ? "user" : "assistant"));
        json_object_set_new(o, "content", js_text(m->text, strlen(m->text)));
        if (m->thinking != NULL)
            json_object_set_new(o, "thinking", js_text(m->thinking, strlen(m->thinking)));
        if (m->cut)
            json_object_set_new(o, "cut", json_true());
        json_array_append_new(messages, o);
    }
    json_t *root = json_object();
    json_object_set_new(root, "rankscope_conversation", json_integer(CONV_VERSION));
    json_object_set_new(root, "system", c->system != NULL ? js_text(c->system, strlen(c->system)) : json_null());
    json_object_set_new(root, "messages", messages);
    return root;
}

static enum rs_result read_message(const json_t *m, size_t i, struct conv *c, struct rs_error *err)
{
    const char *role = js_str(m, "role", ""), *content = js_str(m, "content", NULL);
    bool user = strcmp(role, "user") == 0;
    if (!user && strcmp(role, "assistant") != 0)
        return fail_set(err, RS_EFORMAT, "messages[%zu].role is neither user nor assistant", i);
    if (content == NULL)
        return fail_set(err, RS_EFORMAT, "messages[%zu].content is not a string", i);
    conv_add(c, user ? CONV_USER : CONV_ASSISTANT, content, user ? NULL : js_str(m, "thinking", NULL), js_bool(m, "cut", false));
    return RS_OK;
}

enum rs_result conv_from_json(const json_t *json, struct conv *out, struct rs_error *err)
{
    json_int_t version = js_int(json, "rankscope_conversation", 0);
    if (version < 1)
        return fail_set(err, RS_EFORMAT, "not a conversation (no rankscope_conversation)");
    if (version > CONV_VERSION)
        return fail_set(err, RS_EFORMAT, "written by a newer program (version %lld, this one reads up to %d)", (long long)version,
                        CONV_VERSION);
    const json_t *messages = js_at(json, "messages"), *system = js_at(json, "system");
    if (!json_is_array(messages))
        return fail_set(err, RS_EFORMAT, "messages is not a list");
    if (system != NULL && !json_is_null(system) && !json_is_string(system))
        return fail_set(err, RS_EFORMAT, "system is not a string");
    struct conv c = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        enum rs_result r = read_message(json_array_get(messages, i), i, &c, err);
        if (r != RS_OK) {
            conv_fini(&c);
            return r;
        }
    }
    c.system = json_is_string(system) ? xstrdup(json_string_value(system)) : NULL;
    *out = c;
    return RS_OK;
}

static bool write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

/* The folder entry must be on disk as well, or a power cut could bring the old file back; failing to do so is no error. */
static void sync_folder(const char *path)
{
    char *folder = xstrdup(path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = '\0';
    int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(folder);
}

enum rs_result conv_save(const char *path, const json_t *root, struct rs_error *err)
{
    char *text = js_dump(root, JSON_INDENT(1));
    char *temporary = xasprintf("%s.XXXXXX", path);
    struct stat old;
    enum rs_result r = RS_OK;
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) {
        r = fail_set(err, RS_EIO, "cannot save %s: not a regular file", path);
        goto out;
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        r = fail_set(err, RS_EIO, "cannot save %s: %s", path, strerror(errno));
        goto out;
    }
    bool good = write_all(fd, text, strlen(text)) && write_all(fd, "\n", 1) && fsync(fd) == 0;
    int e = errno;
    if (close(fd) != 0 && good) {
        good = false;
        e = errno;
    }
    if (good && rename(temporary, path) != 0) {
        good = false;
        e = errno;
    }
    if (!good) {
        unlink(temporary);
        r = fail_set(err, RS_EIO, "cannot save %s: %s", path, strerror(e));
        goto out;
    }
    sync_folder(path);
out:
    free(temporary);
    free(text);
    return r;
}

enum rs_result conv_load(const char *path, json_t **root, struct rs_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        enum rs_result r = fail_set(err, RS_EIO, "cannot open %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return r;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE) {
        close(fd);
        return fail_set(err, RS_EFORMAT, "cannot open %s: %s", path, S_ISREG(st.st_mode) ? "over 64 MiB" : "not a regular file");
    }
    json_error_t je;
    json_t *json = json_loadfd(fd, JSON_REJECT_DUPLICATES, &je);
    close(fd);
    if (json == NULL)
        return fail_set(err, RS_EFORMAT, "%s line %d: %s", path, je.line, je.text);
    *root = json;
    return RS_OK;
}
