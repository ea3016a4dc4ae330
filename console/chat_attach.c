/* chat_attach.c: a conversation that the engine holds: shown, followed and gone on with by another console than the one that began it. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/js.h"

static void show_message(struct con *con, const struct conv_message *m)
{
    struct text_filter f = {0};
    struct buf b = {0};
    text_clean(&f, m->text, strlen(m->text), &b);
    text_clean_end(&f, &b);
    buf_char(&b, '\n');
    if (m->role == CONV_USER)
        out_str(con->out, OUT_HEADING, "> ");
    out_write(con->out, m->role == CONV_USER ? OUT_HEADING : OUT_ANSWER, b.text, b.len);
    buf_fini(&b);
}

static bool same_message(const struct conv_message *a, const struct conv_message *b)
{
    return a->role == b->role && strcmp(a->text, b->text) == 0;
}

/* Show what data has beyond what is shown already, and go on with it. */
static enum rs_result take_conversation(struct con *con, const json_t *data, bool same, struct rs_error *err)
{
    struct conv seen = con->conv;
    const json_int_t session = con->session;
    con->conv = (struct conv){0};
    con->session = same ? 0 : session; /* what is restored over is forgotten in the engine too, but not this one */
    enum rs_result r = chat_restore(con, data, err);
    size_t i = 0;
    if (r != RS_OK) {
        conv_fini(&con->conv);
        con->conv = seen;
        con->session = session;
        return r;
    }
    while (same && i < con->conv.n && i < seen.n && same_message(&con->conv.messages[i], &seen.messages[i]))
        i++;
    for (; i < con->conv.n; i++)
        show_message(con, &con->conv.messages[i]);
    conv_fini(&seen);
    return RS_OK;
}

enum rs_result chat_attach(struct con *con, json_int_t session, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, "session.get", json_pack("{s:I}", "session", session), &reply, err);
    if (r != RS_OK)
        return r;
    const json_t *data = json_object_get(reply, "data");
    json_int_t stream = js_int(reply, "stream", 0);
    r = json_is_object(data) ? take_conversation(con, data, session == con->session, err) : RS_OK;
    json_decref(reply);
    if (r != RS_OK)
        return r;
    con->session = session;
    bool unanswered = con->conv.n > 0 && con->conv.messages[con->conv.n - 1].role == CONV_USER;
    return unanswered && stream > 0 ? chat_follow(con, (uint32_t)stream, err) : RS_OK;
}

void chat_catch_up(struct con *con)
{
    struct rs_error err = {0};
    if (!con->took_over || con->await_id != 0 || con->answer.running)
        return;
    con->took_over = false;
    if (con->session != 0 && chat_attach(con, con->session, &err) != RS_OK)
        out_error(con->out, "%s", err.msg);
}
