/* rcmd_copy.c: /copy: an answer, the conversation or the chosen part, to the clipboard or a file. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/tui.h"

/* The n-th last answer, the one that is on its way included. */
static enum rs_result take_answer(const struct con *con, long n, struct buf *out, struct rs_error *err)
{
    const struct conv *c = &con->conv;
    if (con->answer.running && con->answer.text.len > 0 && --n == 0) {
        buf_add(out, con->answer.text.text, con->answer.text.len);
        return RS_OK;
    }
    for (size_t i = c->n; i-- > 0;) {
        if (c->messages[i].role != CONV_ASSISTANT || --n > 0)
            continue;
        buf_str(out, c->messages[i].text);
        return RS_OK;
    }
    return fail_set(err, RS_ENOTFOUND, "there %s", c->n == 0 ? "is no answer yet" : "are not so many answers");
}

static void take_all(const struct con *con, struct buf *out)
{
    for (size_t i = 0; i < con->conv.n; i++)
        buf_printf(out, "%s%s\n", con->conv.messages[i].role == CONV_USER ? "> " : "", con->conv.messages[i].text);
}

/* What the first word names; *file: the rest. Without such a word all of it is a file. */
static enum rs_result take(const struct con *con, const char *args, struct buf *out, const char **file, struct rs_error *err)
{
    size_t n = strcspn(args, " \t");
    char *end;
    long which = strtol(args, &end, 10);
    *file = args + n + strspn(args + n, " \t");
    if (n > 0 && end == args + n)
        return which >= 1 ? take_answer(con, which, out, err) : fail_set(err, RS_EUSAGE, "answers count from 1, the last one");
    if (n == 3 && strncmp(args, "all", n) == 0) {
        take_all(con, out);
        return RS_OK;
    }
    if (n == 9 && strncmp(args, "selection", n) == 0) {
        if (con->tui == NULL || con->tui->clip.len == 0)
            return fail_set(err, RS_ENOTFOUND, "nothing was selected; v in Chat does that");
        buf_add(out, con->tui->clip.text, con->tui->clip.len);
        return RS_OK;
    }
    *file = args;
    return take_answer(con, 1, out, err);
}

static enum rs_result write_file(struct con *con, const char *name, const struct buf *text, struct rs_error *err)
{
    char *path = paths_expand(name);
    FILE *f = fopen(path, "w");
    bool good = f != NULL && fwrite(text->text, 1, text->len, f) == text->len;
    if ((f != NULL && fclose(f) != 0) || !good) {
        enum rs_result r = fail_set(err, RS_EIO, "%s: %s", path, strerror(errno));
        free(path);
        return r;
    }
    out_printf(con->out, OUT_NOTE, "copy: %zu bytes to %s\n", text->len, path);
    free(path);
    return RS_OK;
}

static enum rs_result exec_copy(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    const char *file;
    struct buf text = {0};
    (void)self;
    enum rs_result r = take(con, args, &text, &file, err);
    if (r == RS_OK && text.len == 0)
        r = fail_set(err, RS_ENOTFOUND, "that is empty");
    if (r == RS_OK && *file != '\0')
        r = write_file(con, file, &text, err);
    else if (r == RS_OK && (con->tui == NULL || !con->out->terminal))
        r = fail_set(err, RS_ESTATE, "there is no terminal whose clipboard could take it; give a file");
    else if (r == RS_OK) {
        tui_clip(con->tui, text.text, text.len);
        out_printf(con->out, OUT_NOTE, "copy: %zu bytes offered to the clipboard\n", text.len);
    }
    buf_fini(&text);
    return r;
}

const struct rcmd_entry rcmd_copy_entry = {
    .name = "copy",
    .group = RCMD_CHAT,
    .args = "[N|all|selection] [FILE]",
    .summary = "copy an answer to the clipboard or a file",
    .help = "Copies the last answer, the Nth last one, the whole conversation, or what was selected in Chat or Log (v there), to the clipboard of the "
            "terminal or to FILE. The clipboard is reached by the sequence OSC 52, so it works over ssh; some terminals ask, or want it allowed.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "all|selection",
    .exec = exec_copy,
};
