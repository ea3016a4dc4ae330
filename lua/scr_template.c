#include "config.h"

#include "lua/scr_template.h"

#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "lua/scr_state.h"

/* A template that needs more than this is broken: the shipped ones take a few hundred kilobytes and under a million instructions. */
static const struct scr_limits s_limits = {.memory = 256u << 20, .instructions = 500000000ul};

/* The state keeps two values in its registry: the module `templates` under MODULE, the chosen template under CHOSEN. */
#define MODULE "rankscope.templates"
#define CHOSEN "rankscope.template"

struct scr_template {
    lua_State *L;
    char *source; /* the model's own template, for details that differ between files; or NULL */
    char *name;
};

/* ---- loading ------------------------------------------------------------------------------------------------------------------------- */

struct load_args {
    const struct scr_template_hint *hint;
    const char *file; /* NULL: choose */
    struct scr_template *t;
    bool none; /* no template fits */
};

static void set_string(lua_State *L, const char *key, const char *value)
{
    if (value == NULL)
        return;
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

/* templates.choose(source, info) gives a template, or nil and why not. Leaves the template. */
static void choose(lua_State *L, struct load_args *a)
{
    lua_getfield(L, LUA_REGISTRYINDEX, MODULE);
    lua_getfield(L, -1, "choose");
    if (a->hint->source != NULL)
        lua_pushstring(L, a->hint->source);
    else
        lua_pushnil(L);
    lua_newtable(L);
    set_string(L, "arch", a->hint->arch);
    set_string(L, "pre", a->hint->pre);
    if (a->hint->context > 0) {
        lua_pushinteger(L, a->hint->context);
        lua_setfield(L, -2, "context");
    }
    lua_call(L, 2, 2);
    if (lua_isnil(L, -2)) {
        a->none = true;
        lua_error(L); /* with the second value */
    }
    lua_pop(L, 1);
}

static int load(lua_State *L)
{
    struct load_args *a = lua_touserdata(L, 1);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "templates");
    lua_call(L, 1, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, MODULE);
    if (a->file != NULL) {
        scr_state_load(L, a->file);
        lua_call(L, 0, 1);
    } else {
        choose(L, a);
    }
    if (!lua_istable(L, -1) || lua_getfield(L, -1, "render") != LUA_TFUNCTION)
        return luaL_error(L, "%s: not a chat template (it must return a table with a function render)",
                          a->file != NULL ? a->file : "templates");
    lua_pop(L, 1);
    bool named = lua_getfield(L, -1, "name") == LUA_TSTRING;
    a->t->name = strdup(named ? lua_tostring(L, -1) : a->file != NULL ? a->file : "unnamed");
    lua_pop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, CHOSEN);
    return a->t->name != NULL ? 0 : luaL_error(L, "out of memory");
}

static enum rs_result make(const char *folder, const struct scr_template_hint *hint, const char *file, struct scr_template **out,
                           struct rs_error *err)
{
    struct scr_template *t = calloc(1, sizeof *t);
    struct load_args a = {.hint = hint, .file = file, .t = t};
    if (t != NULL) {
        t->L = scr_state_new(&s_limits, folder);
        t->source = hint->source != NULL ? strdup(hint->source) : NULL;
    }
    if (t == NULL || t->L == NULL || (hint->source != NULL && t->source == NULL)) {
        scr_template_free(t);
        return scr_state_error(err, RS_ENOMEM, "out of memory");
    }
    enum rs_result r = scr_state_do(t->L, load, &a, err);
    if (r != RS_OK) {
        scr_template_free(t);
        if (a.none && err != NULL)
            err->code = RS_ENOTFOUND;
        return a.none ? RS_ENOTFOUND : r;
    }
    *out = t;
    return RS_OK;
}

enum rs_result scr_template_choose(const char *folder, const struct scr_template_hint *hint, struct scr_template **out,
                                   struct rs_error *err)
{
    return make(folder, hint, NULL, out, err);
}

enum rs_result scr_template_load(const char *folder, const char *file, const struct scr_template_hint *hint, struct scr_template **out,
                                 struct rs_error *err)
{
    return make(folder, hint, file, out, err);
}

const char *scr_template_name(const struct scr_template *t)
{
    return t->name;
}

void scr_template_free(struct scr_template *t)
{
    if (t == NULL)
        return;
    scr_state_free(t->L);
    free(t->source);
    free(t->name);
    free(t);
}

/* ---- rendering ----------------------------------------------------------------------------------------------------------------------- */

struct render_args {
    const struct scr_template *t;
    const struct scr_message *messages;
    size_t n;
    enum scr_think think;
    struct scr_rendered out; /* what was taken over so far, also after an error */
};

static void push_messages(lua_State *L, const struct render_args *a)
{
    lua_newtable(L);
    for (size_t i = 0; i < a->n; i++) {
        lua_newtable(L);
        set_string(L, "role", a->messages[i].role);
        set_string(L, "content", a->messages[i].content);
        set_string(L, "reasoning", a->messages[i].thinking);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

/* The list of segments is on top of the stack. */
static void take_segments(lua_State *L, struct render_args *a)
{
    size_t n = lua_rawlen(L, -1);
    a->out.segments = calloc(n + 1, sizeof *a->out.segments);
    if (a->out.segments == NULL)
        luaL_error(L, "out of memory");
    for (size_t i = 0; i < n; i++) {
        struct scr_segment *s = &a->out.segments[i];
        if (lua_rawgeti(L, -1, (lua_Integer)i + 1) != LUA_TTABLE || lua_getfield(L, -1, "text") != LUA_TSTRING)
            luaL_error(L, "chat template %s: segment %d is not a table with a text", a->t->name, (int)i + 1);
        const char *text = lua_tolstring(L, -1, &s->len);
        lua_getfield(L, -2, "special");
        s->special = lua_toboolean(L, -1);
        s->text = malloc(s->len + 1);
        if (s->text == NULL)
            luaL_error(L, "out of memory");
        memcpy(s->text, text, s->len + 1);
        a->out.n = i + 1;
        lua_pop(L, 3);
    }
}

/* templates.render(template, messages, options): segments, and whether they end inside a thought. */
static int render(lua_State *L)
{
    struct render_args *a = lua_touserdata(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, MODULE);
    lua_getfield(L, -1, "render");
    lua_getfield(L, LUA_REGISTRYINDEX, CHOSEN);
    push_messages(L, a);
    lua_newtable(L);
    set_string(L, "source", a->t->source);
    if (a->think != SCR_THINK_DEFAULT) {
        lua_pushboolean(L, a->think == SCR_THINK_ON);
        lua_setfield(L, -2, "enable_thinking");
    }
    lua_call(L, 3, 2);
    a->out.thinking = lua_toboolean(L, -1);
    lua_pop(L, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "chat template %s: it did not return a list of segments", a->t->name);
    take_segments(L, a);
    return 0;
}

enum rs_result scr_template_render(struct scr_template *t, const struct scr_message *messages, size_t n, enum scr_think think,
                                   struct scr_rendered *out, struct rs_error *err)
{
    struct render_args a = {.t = t, .messages = messages, .n = n, .think = think};
    enum rs_result r = scr_state_do(t->L, render, &a, err);
    if (r != RS_OK) {
        scr_rendered_fini(&a.out);
        return r;
    }
    *out = a.out;
    return RS_OK;
}

void scr_rendered_fini(struct scr_rendered *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->segments[i].text);
    free(r->segments);
    *r = (struct scr_rendered){0};
}
