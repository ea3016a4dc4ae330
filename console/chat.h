/* chat.h: from a conversation to an answer: template, submit, the stream of tokens. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_CHAT_H
#define RANKSCOPE_CONSOLE_CHAT_H

#include "console/con.h"

/* con->tmpl for the open model, chosen once. */
enum rs_result chat_need_template(struct con *con, struct rs_error *err);

/* Render con->conv with the model's template and submit it. Answer text is shown as con->answer.show* say. */
enum rs_result chat_start(struct con *con, struct rs_error *err);

/* Submit text as it is; special tokens in it are parsed. */
enum rs_result chat_start_raw(struct con *con, const char *text, struct rs_error *err);

/* Wait until the answer has ended. Ctrl-C cancels it, a second one stops waiting for the engine to do so; a signal that ends the process
 * stops waiting too. RS_OK also when it was cut short by the person (answer.done says "cancelled"); RS_ECANCELLED when not waited for. */
enum rs_result chat_wait(struct con *con, struct rs_error *err);

/* One turn of a conversation: add the person's text, get the answer, add it. What the answer's DONE object says in the way of a verdict or
 * an error is shown. On failure the conversation is as it was. */
enum rs_result chat_turn(struct con *con, const char *text, struct rs_error *err);

/* The engine is stopped inside a step: have it go on by "continue", "step" or "next" (args consumed), and wait for the answer's end or the next stop. */
enum rs_result chat_go_on(struct con *con, const char *method, json_t *args, struct rs_error *err);

/* Ctrl-C while nothing is waited for: when the engine is stopped, its answer is asked to end, and what lets it run on is said. */
void chat_interrupted(struct con *con);

/* Answer again after the last message of the person; the answer that was there is replaced. RS_ESTATE: nothing to answer. */
enum rs_result chat_again(struct con *con, struct rs_error *err);

/* Take the last n tokens of the answer back and have it go on from there with the settings of now; fork: in a copy of the conversation, and the old one
 * stays in the engine. The cache of what stays is found again. RS_EUSAGE: the answer has fewer tokens; RS_ESTATE: there is none. */
enum rs_result chat_rewind(struct con *con, json_int_t n, bool fork, struct rs_error *err);

/* Follow the stream of an attached session: show what there is of it and wait for the rest. */
enum rs_result chat_follow(struct con *con, uint32_t stream, struct rs_error *err);

/* Go on with a conversation that the engine holds: show what was said, follow an answer that runs. */
enum rs_result chat_attach(struct con *con, json_int_t session, struct rs_error *err);

/* If control came to this console, read what was said in the conversation meanwhile. Nothing happens while something runs. */
void chat_catch_up(struct con *con);

/* Keep the conversation in the engine's session store, so that another console can go on with it. */
enum rs_result chat_keep(struct con *con, struct rs_error *err);

/* Conversation, model, sampling and think setting as one JSON object: what is kept in the engine and what /save writes. New reference. */
json_t *chat_to_json(const struct con *con);

/* Take conversation and settings from such an object; a new session begins. RS_EFORMAT says what is wrong, and nothing has changed then. */
enum rs_result chat_restore(struct con *con, const json_t *root, struct rs_error *err);

/* Forget the session in the engine; the next chat_keep() makes a new one. */
void chat_forget(struct con *con);

/* The object that `chat --json` prints, from the answer that ended. New reference. */
json_t *chat_result(const struct con *con);

/* Tell what a person should know about the answer that ended besides its text: stopped or cut, only thinking, a verdict that is not ok. */
void chat_outcome(struct con *con);

/* One line of numbers about the answer that ended; caller frees. */
char *chat_numbers(const struct con *con);

/* Called by con_take_event(). */
void chat_token(struct con *con, const struct rs_event *ev);
void chat_done(struct con *con, uint32_t stream, json_t *done);
void chat_lost(struct con *con);
void chat_pause(struct con *con); /* something else is about to be shown */

void chat_fini(struct con_answer *a);

#endif
