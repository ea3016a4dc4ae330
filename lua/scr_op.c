#include "config.h"

#include "lua/scr_op.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lualib.h>

#include "engine/patch_host.h"
#include "lua/scr_state.h"

#define TENSOR "rs.patch.tensor"
#define WEIGHT "rs.patch.weight"
#define RUN "rs.patch.run"   /* in the registry: the file's function */
#define CALL "rs.patch.call" /* and its argument */

/* An endless loop ends after a fraction of a second; honest work, ten to thirty instructions for a multiplication, is far below. */
enum { BASE_INSTRUCTIONS = 20000000, INSTRUCTIONS_PER_VALUE = 64, MEMORY_MIB = 256, MAX_SOURCE = 2 << 20 };

/* What a run writes, until it has succeeded. Capacities in elements. */
struct staging {
    float *y, *rows, *weights;
    int32_t *ids;
    uint8_t *done; /* [rows] this row went to the cache, has its choice */
    size_t cap_y, cap_rows, cap_choice, cap_done;
};

/* What rows of the output are: rows of the batch, pairs of a row and an expert whose tables the call has (moe_gate_up), or has not (moe_silu_mul). */
enum rows { ROWS_BATCH, ROWS_PAIRS, ROWS_PAIRS_ALONE };
/* Which tensor has a value for every position up to its row's own, and no more: what index_scores writes, what index_topk reads. */
enum by_position { NONE_BY_POSITION, Y_BY_POSITION, X_BY_POSITION };

struct op_state {
    lua_State *L;
    const struct rankscope_call *call; /* NULL: none runs */
    enum rows rows;
    enum by_position by_position;
    struct staging out;
};

/* Userdata of both kinds: which tensor of the call it is. */
enum { TENSOR_X2 = -3, TENSOR_X = -2, TENSOR_Y = -1 }; /* else a rank, or for weights the slot */
struct view {
    struct op_state *st;
    int which;
};

struct hosted {
    unsigned n;
    struct op_state *state; /* [n] */
    char name[64], kind[64], help[128];
    bool cache, router, selects; /* a kind that must do that for each row */
    char chunk[200];        /* "@FILE.lua" */
    char *source;
    size_t source_len;
};

/* ---- the call, seen from Lua ---- */

static const struct rankscope_call *running(lua_State *L, const struct op_state *st)
{
    if (st->call == NULL)
        luaL_error(L, "used outside of run()");
    return st->call;
}

static struct op_state *self(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* Argument i as a number from 1 to n, minus 1. */
static uint32_t check_index(lua_State *L, int i, const char *what, uint32_t n)
{
    lua_Integer k = luaL_checkinteger(L, i);
    if (k < 1 || k > (lua_Integer)n)
        luaL_error(L, "%s %I is out of range: there are %d", what, (LUAI_UACINT)k, (int)n);
    return (uint32_t)k - 1;
}

/* A row of the batch: what has a position, a token, a choice. */
static uint32_t check_row(lua_State *L, int i, const struct op_state *st)
{
    if (st->rows == ROWS_PAIRS_ALONE)
        luaL_error(L, "the rows of this call are pairs of a row and an expert");
    return check_index(L, i, "row", st->rows == ROWS_PAIRS ? st->call->in[0].rows : st->call->out[0].rows);
}

static void push_floats(lua_State *L, const float *x, uint32_t n)
{
    lua_createtable(L, (int)n, 0);
    for (uint32_t j = 0; j < n; j++) {
        lua_pushnumber(L, (lua_Number)x[j]);
        lua_rawseti(L, -2, j + 1);
    }
}

/* Argument i, an array of exactly n numbers, to dst. */
static void read_floats(lua_State *L, int i, uint32_t n, float *dst)
{
    luaL_checktype(L, i, LUA_TTABLE);
    if (lua_rawlen(L, i) != n)
        luaL_error(L, "%d values expected, got %d", (int)n, (int)lua_rawlen(L, i));
    for (uint32_t j = 0; j < n; j++) {
        int number;
        lua_rawgeti(L, i, j + 1);
        dst[j] = (float)lua_tonumberx(L, -1, &number);
        if (!number)
            luaL_error(L, "value %d is a %s, not a number", (int)j + 1, luaL_typename(L, -1));
        lua_pop(L, 1);
    }
}

/* Where row `row` of a tensor lies; what was written already is read back. */
static float *tensor_row(lua_State *L, const struct view *v, const struct rankscope_call *c, uint32_t row)
{
    if (v->which >= 0) {
        if ((uint32_t)v->which >= c->n_ranks || c->ranks == NULL)
            luaL_error(L, "there is no rank %d", v->which + 1);
        return c->ranks[v->which] + row * c->out[0].stride;
    }
    if (v->which == TENSOR_X2)
        return c->in[1].data + row * c->in[1].stride;
    if (v->which == TENSOR_X && c->in[0].data != c->out[0].data)
        return c->in[0].data + row * c->in[0].stride;
    return v->st->out.y + (size_t)row * c->out[0].width;
}

static const struct rankscope_tensor *tensor_of(const struct view *v, const struct rankscope_call *c)
{
    return v->which == TENSOR_X ? &c->in[0] : v->which == TENSOR_X2 ? &c->in[1] : &c->out[0];
}

static uint32_t tensor_rows(const struct view *v, const struct rankscope_call *c)
{
    return tensor_of(v, c)->rows;
}

/* Values of a row. */
static uint32_t tensor_width(const struct view *v, const struct rankscope_call *c, uint32_t row)
{
    const enum by_position by = v->st->by_position;
    const bool short_row = (by == Y_BY_POSITION && v->which == TENSOR_Y) || (by == X_BY_POSITION && v->which == TENSOR_X);
    return short_row ? (uint32_t)c->pos[row] + 1 : tensor_of(v, c)->width;
}

static uint32_t check_tensor_row(lua_State *L, int i, const struct view *v, const struct rankscope_call *c)
{
    if (tensor_of(v, c)->data == NULL)
        luaL_error(L, "this call has no %s", v->which == TENSOR_X ? "x" : "x2");
    return check_index(L, i, "row", tensor_rows(v, c));
}

static int tensor_get_row(lua_State *L)
{
    const struct view *v = luaL_checkudata(L, 1, TENSOR);
    const struct rankscope_call *c = running(L, v->st);
    const uint32_t row = check_tensor_row(L, 2, v, c);
    push_floats(L, tensor_row(L, v, c, row), tensor_width(v, c, row));
    return 1;
}

static int tensor_get(lua_State *L)
{
    const struct view *v = luaL_checkudata(L, 1, TENSOR);
    const struct rankscope_call *c = running(L, v->st);
    const uint32_t i = check_tensor_row(L, 2, v, c);
    const float *row = tensor_row(L, v, c, i);
    lua_pushnumber(L, (lua_Number)row[check_index(L, 3, "column", tensor_width(v, c, i))]);
    return 1;
}

static int tensor_set(lua_State *L)
{
    const struct view *v = luaL_checkudata(L, 1, TENSOR);
    const struct rankscope_call *c = running(L, v->st);
    if (v->which != TENSOR_Y)
        return luaL_error(L, "only call.y can be written");
    const uint32_t row = check_tensor_row(L, 2, v, c);
    read_floats(L, 3, tensor_width(v, c, row), tensor_row(L, v, c, row));
    return 0;
}

static const luaL_Reg TENSOR_METHODS[] = {{"row", tensor_get_row}, {"get", tensor_get}, {"set", tensor_set}, {NULL, NULL}};

static int tensor_index(lua_State *L)
{
    const struct view *v = luaL_checkudata(L, 1, TENSOR);
    const char *key = luaL_checkstring(L, 2);
    if (strcmp(key, "rows") == 0)
        lua_pushinteger(L, tensor_rows(v, running(L, v->st)));
    else if (strcmp(key, "width") == 0)
        lua_pushinteger(L, tensor_of(v, running(L, v->st))->width);
    else
        lua_getfield(L, lua_upvalueindex(1), key);
    return 1;
}

static const struct rankscope_weight *check_weight(lua_State *L, uint32_t *mat, int at)
{
    const struct view *v = luaL_checkudata(L, 1, WEIGHT);
    const struct rankscope_weight *w = &running(L, v->st)->w[v->which];
    if (w->rows == 0)
        luaL_error(L, "this call has no such weight");
    *mat = lua_isnoneornil(L, at) ? 0 : check_index(L, at, "matrix", w->n_mats);
    return w;
}

/* Row `row` of matrix `mat` as floats in memory that Lua owns, on the stack. */
static float *dequantised(lua_State *L, const struct rankscope_weight *w, uint32_t mat, uint32_t row)
{
    float *x = lua_newuserdatauv(L, ((size_t)w->k + 1) * sizeof *x, 0);
    w->dequant(w->type, w->data + mat * w->mat_stride + row * w->stride, x, w->k);
    return x;
}

static int weight_row(lua_State *L)
{
    uint32_t mat;
    const struct rankscope_weight *w = check_weight(L, &mat, 3);
    const float *x = dequantised(L, w, mat, check_index(L, 2, "row", w->rows));
    push_floats(L, x, w->k);
    return 1;
}

static int weight_dot(lua_State *L)
{
    uint32_t mat;
    const struct rankscope_weight *w = check_weight(L, &mat, 4);
    const uint32_t row = check_index(L, 2, "row", w->rows);
    float *x = lua_newuserdatauv(L, ((size_t)w->k + 1) * sizeof *x, 0);
    read_floats(L, 3, w->k, x);
    const float *y = dequantised(L, w, mat, row);
    double sum = 0;
    for (uint32_t j = 0; j < w->k; j++)
        sum += (double)x[j] * (double)y[j];
    lua_pushnumber(L, sum);
    return 1;
}

static const luaL_Reg WEIGHT_METHODS[] = {{"row", weight_row}, {"dot", weight_dot}, {NULL, NULL}};

static int weight_index(lua_State *L)
{
    const struct view *v = luaL_checkudata(L, 1, WEIGHT);
    const char *key = luaL_checkstring(L, 2);
    const struct rankscope_weight *w = &running(L, v->st)->w[v->which];
    if (strcmp(key, "rows") == 0)
        lua_pushinteger(L, w->rows);
    else if (strcmp(key, "k") == 0)
        lua_pushinteger(L, w->k);
    else if (strcmp(key, "mats") == 0)
        lua_pushinteger(L, w->n_mats);
    else
        lua_getfield(L, lua_upvalueindex(1), key);
    return 1;
}

static int call_pos(lua_State *L)
{
    const struct rankscope_call *c = running(L, self(L));
    lua_pushinteger(L, c->pos[check_row(L, 2, self(L))]);
    return 1;
}

/* The row of the table that a token has, from 1; nothing where another rank has it. */
static int call_token(lua_State *L)
{
    const struct rankscope_call *c = running(L, self(L));
    const uint32_t row = check_row(L, 2, self(L));
    if (c->tokens == NULL)
        return luaL_error(L, "only ops of kind embed have tokens");
    const int64_t at = (int64_t)c->tokens[row] - c->first_token;
    if (at < 0 || at >= c->w[0].rows)
        return 0;
    lua_pushinteger(L, at + 1);
    return 1;
}

static const struct rankscope_experts *need_experts(lua_State *L)
{
    const struct rankscope_experts *x = &running(L, self(L))->experts;
    if (x->group == NULL)
        luaL_error(L, "only ops of kinds moe_gate_up and moe_down have pairs");
    return x;
}

static int call_pairs(lua_State *L)
{
    const struct rankscope_experts *x = need_experts(L);
    const uint32_t e = check_index(L, 2, "expert", x->n);
    lua_pushinteger(L, x->group[e] + 1);
    lua_pushinteger(L, x->group[e + 1]);
    return 2;
}

static int call_pair(lua_State *L)
{
    const struct rankscope_experts *x = need_experts(L);
    const uint32_t p = check_index(L, 2, "pair", x->n_pairs);
    lua_pushinteger(L, x->row[p] + 1);
    lua_pushnumber(L, (lua_Number)x->weight[p]);
    return 2;
}

static int call_angles(lua_State *L)
{
    const struct rankscope_call *c = running(L, self(L));
    const uint32_t half = c->rope_dim / 2;
    const size_t at = (size_t)c->pos[check_row(L, 2, self(L))] * half;
    push_floats(L, c->cos + at, half);
    push_floats(L, c->sin + at, half);
    return 2;
}

static void need_cache(lua_State *L, const struct rankscope_call *c)
{
    if (c->cache_get == NULL || c->cache_put == NULL || c->selected == NULL)
        luaL_error(L, "this call has no cache");
}

static int call_cached(lua_State *L)
{
    const struct rankscope_call *c = running(L, self(L));
    const uint32_t row = check_row(L, 2, self(L)), n = rankscope_cache_width(c);
    lua_Integer pos = luaL_checkinteger(L, 3);
    need_cache(L, c);
    if (pos < 0 || pos > c->pos[row])
        return luaL_error(L, "row %d sees positions 0 to %d, not %I", (int)row + 1, (int)c->pos[row], (LUAI_UACINT)pos);
    float *x = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *x, 0);
    c->cache_get(c, row, (uint32_t)pos, x);
    push_floats(L, x, n);
    return 1;
}

static int call_selected(lua_State *L)
{
    const struct rankscope_call *c = running(L, self(L));
    const uint32_t row = check_row(L, 2, self(L));
    uint32_t n = 0;
    need_cache(L, c);
    const int32_t *sel = c->selected(c, row, &n);
    if (sel == NULL)
        return 0;
    lua_createtable(L, (int)n, 0);
    for (uint32_t i = 0; i < n; i++) {
        lua_pushinteger(L, sel[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int call_store(lua_State *L)
{
    struct op_state *st = self(L);
    const struct rankscope_call *c = running(L, st);
    const uint32_t row = check_row(L, 2, st), n = rankscope_cache_width(c);
    if (st->out.rows == NULL)
        return luaL_error(L, "only ops of kind kv_store and index_store write to the cache");
    read_floats(L, 3, n, st->out.rows + (size_t)row * n);
    st->out.done[row] = 1;
    return 0;
}

static int call_choose(lua_State *L)
{
    struct op_state *st = self(L);
    const struct rankscope_call *c = running(L, st);
    const uint32_t row = check_row(L, 2, st), n = c->router.n_used;
    int32_t *ids = st->out.ids + (size_t)row * n;
    float *weights = st->out.weights + (size_t)row * n;
    if (n == 0)
        return luaL_error(L, "only ops of kind router choose experts");
    read_floats(L, 3, n, weights);
    for (uint32_t i = 0; i < n; i++) {
        const float e = weights[i];
        if (!(e >= 1 && e <= (float)c->router.n_experts))
            return luaL_error(L, "expert %f is out of range: there are %d, counted from 1", (lua_Number)e, (int)c->router.n_experts);
        ids[i] = (int32_t)e - 1;
        for (uint32_t k = 0; k < i; k++)
            if (ids[k] == ids[i])
                return luaL_error(L, "expert %d is chosen twice", (int)ids[i] + 1);
    }
    read_floats(L, 4, n, weights);
    st->out.done[row] = 1;
    return 0;
}

/* A row of a selection: as many positions as top_k says, ascending, or nothing. */
static int call_select(lua_State *L)
{
    struct op_state *st = self(L);
    const struct rankscope_call *c = running(L, st);
    if (st->by_position != X_BY_POSITION)
        return luaL_error(L, "only ops of kind index_topk select");
    const uint32_t row = check_row(L, 2, st);
    float *out = st->out.y + (size_t)row * c->out[0].width;
    int32_t n = -1, last = -1, sel;
    if (!lua_isnoneornil(L, 3)) {
        luaL_checktype(L, 3, LUA_TTABLE);
        n = (int32_t)lua_rawlen(L, 3);
        if (n < 1 || (uint32_t)n > c->top_k)
            return luaL_error(L, "%d positions are selected; 1 to %d can be", (int)n, (int)c->top_k);
    }
    memcpy(out, &n, sizeof n);
    for (int32_t i = 1; i <= n; i++) {
        int whole;
        lua_rawgeti(L, 3, i);
        const lua_Integer pos = lua_tointegerx(L, -1, &whole);
        lua_pop(L, 1);
        if (!whole || pos <= last || pos > c->pos[row])
            return luaL_error(L, "position %d of the selection of row %d is not one of 0 to %d that ascend", (int)i, (int)row + 1, (int)c->pos[row]);
        sel = last = (int32_t)pos;
        memcpy(out + i, &sel, sizeof sel);
    }
    st->out.done[row] = 1;
    return 0;
}

static const luaL_Reg CALL_METHODS[] = {{"pos", call_pos}, {"token", call_token}, {"pairs", call_pairs}, {"pair", call_pair}, {"angles", call_angles}, {"cached", call_cached}, {"selected", call_selected},
                                        {"store", call_store}, {"choose", call_choose}, {"select", call_select}, {NULL, NULL}};

int scr_op_methods(lua_State *L)
{
    static const struct { const char *object; const luaL_Reg *methods; } ALL[] = {{"call", CALL_METHODS}, {"tensor", TENSOR_METHODS}, {"weight", WEIGHT_METHODS}};
    lua_Integer n = 0;
    lua_newtable(L);
    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++)
        for (const luaL_Reg *m = ALL[i].methods; m->name != NULL; m++) {
            lua_pushfstring(L, "%s:%s", ALL[i].object, m->name);
            lua_rawseti(L, -2, ++n);
        }
    return 1;
}

/* ---- reading a file ---- */

static void new_view(lua_State *L, struct op_state *st, int which, const char *type)
{
    struct view *v = lua_newuserdatauv(L, sizeof *v, 0);
    *v = (struct view){st, which};
    luaL_setmetatable(L, type);
}

static void new_type(lua_State *L, const char *type, const luaL_Reg *methods, lua_CFunction index)
{
    luaL_newmetatable(L, type);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_pushcclosure(L, index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
}

/* A finaliser cannot be interrupted, a pattern can take for ever inside of one instruction, and an op needs neither. */
static void restrict_state(lua_State *L)
{
    static const char *const REMOVED[] = {"setmetatable", "getmetatable", "utf8"};
    for (size_t i = 0; i < sizeof REMOVED / sizeof REMOVED[0]; i++) {
        lua_pushnil(L);
        lua_setglobal(L, REMOVED[i]);
    }
    lua_getglobal(L, LUA_TABLIBNAME);
    lua_pushnil(L);
    lua_setfield(L, -2, "move");
    lua_getglobal(L, LUA_STRLIBNAME);
    lua_newtable(L);
    lua_getfield(L, -2, "format");
    lua_setfield(L, -2, "format");
    lua_pushvalue(L, -1);
    lua_setglobal(L, LUA_STRLIBNAME);
    lua_pushliteral(L, "");
    if (lua_getmetatable(L, -1)) {
        lua_pushvalue(L, -3);
        lua_setfield(L, -2, "__index");
    }
    lua_settop(L, 0);
}

/* The argument of run(): fields come with each call. */
static void make_call(lua_State *L, struct op_state *st)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_newtable(L);
    lua_pushlightuserdata(L, st);
    luaL_setfuncs(L, CALL_METHODS, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    new_view(L, st, TENSOR_X, TENSOR);
    lua_setfield(L, -2, "x");
    new_view(L, st, TENSOR_X2, TENSOR);
    lua_setfield(L, -2, "x2");
    new_view(L, st, TENSOR_Y, TENSOR);
    lua_setfield(L, -2, "y");
    lua_setfield(L, LUA_REGISTRYINDEX, CALL);
}

struct loading {
    struct hosted *h;
    struct op_state *st;
};

/* A field of the table that the file returned, index 1. */
static void take_text(lua_State *L, const char *key, char *to, size_t cap, const char *chunk)
{
    if (lua_getfield(L, 1, key) != LUA_TSTRING)
        luaL_error(L, "%s: the table that it returns needs %s, a string", chunk + 1, key);
    if (lua_rawlen(L, -1) >= cap)
        luaL_error(L, "%s: %s is longer than %d characters", chunk + 1, key, (int)cap - 1);
    snprintf(to, cap, "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
}

static int load_file(lua_State *L)
{
    const struct loading *a = lua_touserdata(L, 1);
    struct hosted *h = a->h;
    new_type(L, TENSOR, TENSOR_METHODS, tensor_index);
    new_type(L, WEIGHT, WEIGHT_METHODS, weight_index);
    restrict_state(L);
    make_call(L, a->st);
    if (luaL_loadbufferx(L, h->source, h->source_len, h->chunk, "t") != LUA_OK)
        return lua_error(L);
    lua_call(L, 0, 1);
    if (lua_type(L, 1) != LUA_TTABLE)
        return luaL_error(L, "%s: it must return a table with name, kind, help and run", h->chunk + 1);
    take_text(L, "name", h->name, sizeof h->name, h->chunk);
    take_text(L, "kind", h->kind, sizeof h->kind, h->chunk);
    take_text(L, "help", h->help, sizeof h->help, h->chunk);
    if (lua_getfield(L, 1, "run") != LUA_TFUNCTION)
        return luaL_error(L, "%s: the table that it returns needs run, a function", h->chunk + 1);
    lua_setfield(L, LUA_REGISTRYINDEX, RUN);
    return 0;
}

static enum rs_result read_source(struct hosted *h, const char *file, const char *name, struct rs_error *err)
{
    FILE *f = fopen(file, "re");
    if (f == NULL)
        return scr_state_error(err, RS_EIO, "%s: cannot open: %s", name, strerror(errno));
    h->source = malloc(MAX_SOURCE);
    h->source_len = h->source != NULL ? fread(h->source, 1, MAX_SOURCE, f) : 0;
    bool bad = ferror(f) != 0;
    fclose(f);
    if (h->source == NULL)
        return scr_state_error(err, RS_ENOMEM, "%s: out of memory", name);
    return bad ? scr_state_error(err, RS_EIO, "%s: cannot read: %s", name, strerror(errno)) : RS_OK;
}

static void op_close(void *hosted)
{
    struct hosted *h = hosted;
    for (unsigned i = 0; h->state != NULL && i < h->n; i++) {
        struct staging *s = &h->state[i].out;
        scr_state_free(h->state[i].L);
        free(s->y);
        free(s->rows);
        free(s->ids);
        free(s->weights);
        free(s->done);
    }
    free(h->state);
    free(h->source);
    free(h);
}

static enum rs_result op_open(const char *file, const char *name, unsigned n_threads, void **out, struct rankscope_patch_v1 *patch, struct rs_error *err)
{
    static const struct scr_limits LIMITS = {(size_t)MEMORY_MIB << 20, BASE_INSTRUCTIONS};
    const char *base = strrchr(name, '/');
    struct hosted *h = calloc(1, sizeof *h);
    if (h == NULL || (h->state = calloc(n_threads, sizeof *h->state)) == NULL) {
        free(h);
        return scr_state_error(err, RS_ENOMEM, "%s: out of memory", name);
    }
    h->n = n_threads;
    snprintf(h->chunk, sizeof h->chunk, "@%s", base != NULL ? base + 1 : name);
    enum rs_result rc = read_source(h, file, name, err);
    for (unsigned i = 0; i < n_threads && rc == RS_OK; i++) {
        struct loading a = {h, &h->state[i]};
        a.st->L = scr_state_new(&LIMITS, NULL);
        rc = a.st->L == NULL ? scr_state_error(err, RS_ENOMEM, "%s: out of memory", name) : scr_state_do(a.st->L, load_file, &a, err);
    }
    if (rc != RS_OK) {
        op_close(h);
        return rc;
    }
    h->cache = strcmp(h->kind, "kv_store") == 0 || strcmp(h->kind, "index_store") == 0;
    h->selects = strcmp(h->kind, "index_topk") == 0;
    h->router = strcmp(h->kind, "router") == 0;
    for (unsigned i = 0; i < n_threads; i++) {
        h->state[i].rows = strcmp(h->kind, "moe_gate_up") == 0 ? ROWS_PAIRS : strcmp(h->kind, "moe_silu_mul") == 0 ? ROWS_PAIRS_ALONE : ROWS_BATCH;
        h->state[i].by_position = h->selects ? X_BY_POSITION : strcmp(h->kind, "index_scores") == 0 ? Y_BY_POSITION : NONE_BY_POSITION;
    }
    *patch = (struct rankscope_patch_v1){RANKSCOPE_PATCH_ABI, sizeof *patch, sizeof(struct rankscope_call), h->name, h->kind, h->help, NULL};
    *out = h;
    return RS_OK;
}

/* ---- running ---- */

static bool grow(void *at, size_t *cap, size_t n, size_t size)
{
    void **p = at;
    if (*p != NULL && *cap >= n)
        return true;
    void *q = realloc(*p, (n + 1) * size);
    if (q == NULL)
        return false;
    *p = q;
    *cap = n;
    return true;
}

/* Memory for what a run writes; y starts as what the output holds. */
static bool stage(const struct hosted *h, struct op_state *st, const struct rankscope_call *c)
{
    struct staging *s = &st->out;
    const size_t rows = c->out[0].rows, width = c->out[0].width, choice = rows * c->router.n_used;
    size_t cap_ids = s->cap_choice;
    if (!grow(&s->y, &s->cap_y, rows * width, sizeof *s->y) || !grow(&s->done, &s->cap_done, rows, 1))
        return false;
    if (h->cache && !grow(&s->rows, &s->cap_rows, rows * rankscope_cache_width(c), sizeof *s->rows))
        return false;
    if (!grow(&s->ids, &cap_ids, choice, sizeof *s->ids) || !grow(&s->weights, &s->cap_choice, choice, sizeof *s->weights))
        return false;
    memset(s->done, 0, rows);
    for (size_t i = 0; i < rows; i++)
        memcpy(s->y + i * width, c->out[0].data + i * c->out[0].stride, width * sizeof *s->y);
    return true;
}

static void set_int(lua_State *L, const char *key, lua_Integer x)
{
    lua_pushinteger(L, x);
    lua_setfield(L, -2, key);
}

static void set_fields(lua_State *L, struct op_state *st, const struct rankscope_call *c)
{
    const struct rankscope_router *r = &c->router;
    const struct { const char *key; lua_Integer x; } INTS[] = {
        {"rows", c->out[0].rows}, {"layer", c->layer}, {"rank", c->rank}, {"n_ranks", c->n_ranks}, {"head_dim", c->head_dim}, {"rope_dim", c->rope_dim},
        {"kv_lora", c->kv_lora}, {"v_head", c->v_head}, {"n_heads", c->n_heads}, {"n_experts", r->n_experts}, {"n_used", r->n_used},
        {"n_groups", r->n_groups}, {"n_groups_used", r->n_groups_used}, {"experts", c->experts.n}, {"top_k", c->top_k}};
    const struct { const char *key; bool x; } BOOLS[] = {{"accumulate", c->accumulate != 0}, {"sigmoid", r->sigmoid != 0}, {"normalise", r->normalise != 0},
                                                             {"interleaved", c->interleaved != 0}};
    for (size_t i = 0; i < sizeof INTS / sizeof INTS[0]; i++)
        set_int(L, INTS[i].key, INTS[i].x);
    for (size_t i = 0; i < sizeof BOOLS / sizeof BOOLS[0]; i++) {
        lua_pushboolean(L, BOOLS[i].x);
        lua_setfield(L, -2, BOOLS[i].key);
    }
    lua_pushstring(L, c->site);
    lua_setfield(L, -2, "site");
    lua_pushnumber(L, (lua_Number)c->eps);
    lua_setfield(L, -2, "eps");
    lua_pushnumber(L, (lua_Number)(r->n_experts != 0 ? r->scale : c->scale));
    lua_setfield(L, -2, "scale");
    lua_createtable(L, 2, 0);
    for (int s = 0; s < 2 && c->w[s].rows != 0; s++) {
        new_view(L, st, s, WEIGHT);
        lua_rawseti(L, -2, s + 1);
    }
    lua_setfield(L, -2, "w");
    lua_createtable(L, 0, 0);
    for (uint32_t k = 0; c->ranks != NULL && k < c->n_ranks; k++) {
        new_view(L, st, (int)k, TENSOR);
        lua_rawseti(L, -2, k + 1);
    }
    lua_setfield(L, -2, "ranks");
}

static int call_run(lua_State *L)
{
    struct op_state *st = lua_touserdata(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, RUN);
    lua_getfield(L, LUA_REGISTRYINDEX, CALL);
    set_fields(L, st, st->call);
    lua_call(L, 1, 0);
    return 0;
}

static void commit(const struct hosted *h, const struct op_state *st, const struct rankscope_call *c)
{
    const struct staging *s = &st->out;
    const size_t width = c->out[0].width, used = c->router.n_used;
    for (size_t i = 0; i < c->out[0].rows; i++) {
        for (uint32_t r = 0; c->ranks != NULL && r < c->n_ranks; r++)
            memcpy(c->ranks[r] + i * c->out[0].stride, s->y + i * width, width * sizeof *s->y);
        if (c->ranks == NULL)
            memcpy(c->out[0].data + i * c->out[0].stride, s->y + i * width, width * sizeof *s->y);
        if (h->cache)
            c->cache_put(c, (uint32_t)i, s->rows + i * rankscope_cache_width(c));
        if (h->router) {
            memcpy(c->router.ids + i * c->router.stride, s->ids + i * used, used * sizeof *s->ids);
            memcpy(c->router.weights + i * c->router.stride, s->weights + i * used, used * sizeof *s->weights);
        }
    }
}

/* Rises with what there is to multiply: rows by weights, pairs by an expert's, rows by cached keys. */
static unsigned long budget(const struct op_state *st, const struct rankscope_call *c)
{
    const bool experts = c->experts.group != NULL;
    const double rows = experts ? c->experts.n_pairs : c->out[0].rows;
    double values = rows * c->in[0].width + (double)c->out[0].rows * c->out[0].width, keys = 0;
    for (int s = 0; s < 2; s++)
        values += rows * c->w[s].rows * c->w[s].k * (!experts && c->w[s].n_mats != 0 ? c->w[s].n_mats : 1);
    for (uint32_t i = 0; i < c->out[0].rows && c->n_heads != 0 && st->rows == ROWS_BATCH; i++)
        keys += c->pos[i] + 1;
    values += keys * c->n_heads * rankscope_cache_width(c);
    values += c->ranks != NULL ? (double)c->out[0].rows * c->out[0].width * c->n_ranks : 0;
    return (unsigned long)(BASE_INSTRUCTIONS + INSTRUCTIONS_PER_VALUE * values);
}

static bool op_run(void *hosted, unsigned thread, const struct rankscope_call *call, char *why, size_t cap)
{
    const struct hosted *h = hosted;
    struct op_state *st = &h->state[thread];
    struct rs_error err;
    if (!stage(h, st, call)) {
        snprintf(why, cap, "out of memory for its output");
        return false;
    }
    st->call = call;
    scr_state_limit(st->L, budget(st, call));
    enum rs_result rc = scr_state_do(st->L, call_run, st, &err);
    st->call = NULL;
    for (uint32_t i = 0; i < call->out[0].rows && rc == RS_OK && (h->cache || h->router || h->selects); i++)
        if (!st->out.done[i])
            rc = scr_state_error(&err, RS_EFORMAT, "%s: run() ended without call:%s() for row %u", h->chunk + 1,
                                 h->cache ? "store" : h->router ? "choose" : "select", i + 1);
    if (rc != RS_OK) {
        snprintf(why, cap, "%s", err.msg);
        return false;
    }
    commit(h, st, call);
    return true;
}

const struct rs_patch_host *scr_op_host(void)
{
    static const struct rs_patch_host HOST = {".lua", op_open, op_run, op_close};
    return &HOST;
}
