/* js.h: reading and writing JSON with jansson, without a page of checks at each place.
 *
 * The readers never fail: what is missing or of another type gives the default, because an engine of another version may leave a key out,
 * and what it does not know is shown as N/A. Any thread. */
#ifndef RANKSCOPE_CONSOLE_JS_H
#define RANKSCOPE_CONSOLE_JS_H

#include <jansson.h>
#include <stdbool.h>

/* Member by dotted path ("state.mode"); NULL when any part is missing. Borrowed. */
json_t *js_at(const json_t *obj, const char *path);

const char *js_str(const json_t *obj, const char *path, const char *def); /* borrowed */
double js_num(const json_t *obj, const char *path, double def);           /* NAN is a good default */
json_int_t js_int(const json_t *obj, const char *path, json_int_t def);
bool js_bool(const json_t *obj, const char *path, bool def);

/* What the engine says, whatever kind of value it is. A model may write any character, U+0000 too. New reference; NULL: it is no JSON. */
json_t *js_parse(const char *text);

/* A new reference to the member, or a new JSON null. */
json_t *js_or_null(const json_t *obj, const char *path);

/* A number, or null for one that JSON has no word for. New reference. */
json_t *js_real(double x);

/* One line of JSON; caller frees. C1 characters are written as \u escapes, so that the line is safe on a terminal. Floats get 9 digits. */
char *js_dump(const json_t *value, size_t flags);

/* A JSON string of text; bytes that are no UTF-8 become U+FFFD. New reference. */
json_t *js_text(const char *text, size_t len);

/* Count from now on how often the JSON library finds no memory: before anything else in a program. */
void js_count_failures(void);
unsigned long js_failures(void); /* so far; any thread */

#endif
