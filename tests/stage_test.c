/* Patches from files: the examples of every language load and compute the same, bad ones change nothing, one that fails in use is taken out and costs no
 * token. Swaps of loaded patches lose no token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/scr_op.h"
#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"

#define HEAD "#include \"engine/patch_api.h\"\n"
#define TAIL(name, kind) "const struct rankscope_patch_v1 rankscope_patch = {RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), \"" name "\", \"" kind "\", \"x\", run};\n"
#define ADD_LOOP(what) "static void run(const struct rankscope_call *c) { size_t f, t; rankscope_share(c, c->in[0].rows, 1, &f, &t);\n" \
    "for (size_t i = f; i < t; i++) for (uint32_t j = 0; j < c->in[0].width; j++) " what "; }\n"
#define NOTHING "static void run(const struct rankscope_call *c) { (void)c; }\n"
#define ROWS_LOOP(what) "static void run(const struct rankscope_call *c) { for (uint32_t i = 0; i < c->in[0].rows; i++) " what "; }\n"

#define LUA(kind, run) "return {name = \"a\", kind = \"" kind "\", help = \"x\",\nrun = function(call)\n" run "\nend}\n"
#define LUA_ADD "for i = 1, call.rows do\nlocal x, y = call.x:row(i), call.y:row(i)\nfor j = 1, #x do y[j] = y[j] + x[j] end\ncall.y:set(i, y)\nend\n"

struct bad {
    const char *name, *text, *says;
};

/* The first rows of the table for tokens that another rank holds too. */
#define FIRST_ROWS \
    "static void run(const struct rankscope_call *c){for(uint32_t i=0;i<c->out[0].rows;i++){const struct rankscope_weight*w=&c->w[0];" \
    "uint32_t r=(uint32_t)c->tokens[i]-c->first_token;w->dequant(w->type,w->data+(r<w->rows?r:0)*w->stride,c->out[0].data+i*c->out[0].stride,w->k);}}\n"
#define DOT \
    "static float dot(const float*a,const float*b,uint32_t n){float s=0;for(uint32_t k=0;k<n;k++)s+=a[k]*b[k];return s;}\n" \
    "static const float*at(const struct rankscope_weight*w,uint32_t e,uint32_t r){return (const float*)(const void*)(w->data+e*w->mat_stride+r*w->stride);}\n"
#define AS_ROWS DOT \
    "static void run(const struct rankscope_call *c){for(uint32_t e=0;e<c->experts.n;e++)for(int32_t p=c->experts.group[e];p<c->experts.group[e+1];p++)" \
    "for(uint32_t j=0;j<c->out[0].width;j++)c->out[0].data[(size_t)p*c->out[0].stride+j]=dot(at(&c->w[j<c->w[0].rows?0:1],e,j%c->w[0].rows)," \
    "c->in[0].data+(size_t)p%c->in[0].rows*c->in[0].stride,c->w[0].k);}\n"
#define ONLY_PAIRS DOT \
    "static void run(const struct rankscope_call *c){for(uint32_t i=0;i<c->out[0].rows;i++)for(uint32_t j=0;j<c->out[0].width;j++){float s=0;int any=0;" \
    "for(uint32_t e=0;e<c->experts.n;e++)for(int32_t p=c->experts.group[e];p<c->experts.group[e+1];p++)if(c->experts.row[p]==(int32_t)i){any=1;" \
    "s+=c->experts.weight[p]*dot(at(&c->w[0],e,j),c->in[0].data+(size_t)p*c->in[0].stride,c->w[0].k);}if(any)c->out[0].data[i*c->out[0].stride+j]=s;}}\n"

/* For the long form: it takes all the time that it may. */
static const struct bad ENDLESS_C[] = {
    {"an endless loop", HEAD "static void run(const struct rankscope_call *c) { for (volatile uint32_t i = c->lo;; i++) {} }\n" TAIL("a", "add"), "does not end"},
};

static const struct bad BAD_C[] = {
    {"does not compile", HEAD "static void run(const struct rankscope_call *c) { c->nothing; }\n" TAIL("a", "add"), "patch.c:2:"},
    {"exports nothing", HEAD "int x;\n", "does not export"},
    {"wrong result", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] -= c->in[0].data[i * c->in[0].stride + j]") TAIL("a", "add"), "wrong"},
    {"writes outside", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j + 96] = 0") TAIL("a", "add"), "outside"},
    {"not a number", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] = 0.0f / 0.0f") TAIL("a", "add"), "not a number"},
    {"crashes", HEAD "static void run(const struct rankscope_call *c) { *(volatile int *)8 = (int)c->lo; }\n" TAIL("a", "add"), "signal 11"},
    {"aborts", HEAD "#include <stdlib.h>\nstatic void run(const struct rankscope_call *c) { (void)c; abort(); }\n" TAIL("a", "add"), "signal 6"},
    {"computes for longer than it may", HEAD "#include <signal.h>\nstatic void run(const struct rankscope_call *c) { (void)c; raise(SIGXCPU); }\n" TAIL("a", "add"), "does not end"},
    {"unknown kind", HEAD NOTHING TAIL("a", "pick_rows"), "kind 'pick_rows' is none of rmsnorm, linear, qkv_a, gate_up, silu_mul, moe_silu_mul, add, rope, kv_store, mla, "
     "index_q, index_store, index_scores, index_topk, router, allreduce, embed, moe_gate_up, moe_down, gather"},
    {"scores of some positions", HEAD ROWS_LOOP("c->out[0].data[i * c->out[0].stride] = 1") TAIL("a", "index_scores"), "leaves a part of its output"},
    {"keys that are not there yet", HEAD ROWS_LOOP("{ float x[1024]; c->cache_get(c, i, (uint32_t)c->pos[i] + 1, x); }") TAIL("a", "index_scores"), "where nothing is"},
    {"a selection of the first positions", HEAD ROWS_LOOP("{ int32_t *s = (int32_t *)(void *)(c->out[0].data + i * c->out[0].stride); int all = (uint32_t)c->pos[i] < c->top_k; "
     "s[0] = all ? -1 : (int32_t)c->top_k; for (uint32_t k = 0; k < c->top_k; k++) s[1 + k] = (int32_t)k; }") TAIL("a", "index_topk"), "wrong: relative L2"},
    {"an indexer's key that is not kept", HEAD NOTHING TAIL("a", "index_store"), "each row"},
    {"other ranks' logits", HEAD ROWS_LOOP("for (uint32_t j = 0; j < c->out[0].stride; j++) c->out[0].data[i * c->out[0].stride + j] = j < c->in[0].width ? c->in[0].data[i * c->in[0].stride + j] : 0")
     TAIL("a", "gather"), "outside"},
    {"every token in this rank's table", HEAD FIRST_ROWS TAIL("a", "embed"), "wrong: relative L2"},
    {"experts' rows as if they were the batch's", HEAD AS_ROWS TAIL("a", "moe_gate_up"), "wrong: relative L2"},
    {"a row without experts left alone", HEAD ONLY_PAIRS TAIL("a", "moe_down"), "wrong: it leaves a part of its output as it was"},
    {"another interface", HEAD NOTHING "const struct rankscope_patch_v1 rankscope_patch = {99, 1, 1, \"a\", \"add\", \"x\", run};\n", "interface"},
    {"a bad name", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] += c->in[0].data[i * c->in[0].stride + j]") TAIL("a b;c", "add"), "name"},
    {"attention that does nothing", HEAD NOTHING TAIL("a", "mla"), "wrong"},
    {"attention to what is not there yet", HEAD ROWS_LOOP("{ float x[1024]; c->cache_get(c, i, (uint32_t)c->pos[i] + 1, x); }") TAIL("a", "mla"), "where nothing is"},
    {"a store that does not store", HEAD NOTHING TAIL("a", "kv_store"), "each row"},
    {"an expert chosen twice", HEAD ROWS_LOOP("for (uint32_t k = 0; k < c->router.n_used; k++) c->router.ids[i * c->router.stride + k] = 1") TAIL("a", "router"), "twice"},
    {"an expert that is not there", HEAD ROWS_LOOP("c->router.ids[i * c->router.stride] = 1000") TAIL("a", "router"), "there are not"},
    {"a rank left out of a sum", HEAD "static void run(const struct rankscope_call *c) { size_t f, t; rankscope_share(c, (size_t)c->out[0].rows * c->out[0].width, 16, &f, &t);\n"
     "for (size_t i = f; i < t; i++) { float s = c->ranks[0][i] + c->ranks[1][i]; for (uint32_t r = 0; r < c->n_ranks; r++) c->ranks[r][i] = s; } }\n" TAIL("a", "allreduce"), "wrong"},
};

static const struct bad BAD_LUA[] = {
    {"does not parse", "return {\nname = = 1}\n", "patch.lua:2:"},
    {"returns nothing", "local x = 1\n", "must return a table"},
    {"no function", "return {name = 'a', kind = 'add', help = 'x'}\n", "needs run"},
    {"no name", "return {kind = 'add', help = 'x', run = print}\n", "needs name"},
    {"an error when it is read", "local t = nil\nt.x = 1\n", "patch.lua:2:"},
    {"unknown kind", LUA("hidden", ""), "kind 'hidden' is none of"},
    {"a selection elsewhere", LUA("add", "call:select(1)"), "only ops of kind index_topk"},
    {"rows without a selection", LUA("index_topk", "call:select(1)"), "without call:select() for row 2"},
    {"a selection that descends", LUA("index_topk", "call:select(5, {7, 3})"), "position 2 of the selection of row 5 is not one of 0 to 39 that ascend"},
    {"a selection of what is not there", LUA("index_topk", "call:select(4, {21})"), "is not one of 0 to 20"},
    {"too many positions", LUA("index_topk", "call:select(5, {0, 1, 2, 3, 4, 5, 6})"), "7 positions are selected; 1 to 6 can be"},
    {"scores past a row's own position", LUA("index_scores", "call.y:set(1, {1, 2})"), "1 values expected, got 2"},
    {"a second input where there is none", LUA("add", "call.x2:row(1)"), "has no x2"},
    {"a token where there are none", LUA("add", "call:token(1)"), "only ops of kind embed"},
    {"pairs where there are none", LUA("add", "call:pairs(1)"), "only ops of kinds moe_gate_up and moe_down"},
    {"the input of an op that has none", LUA("embed", "call.x:row(1)"), "has no x"},
    {"a position of a pair", LUA("moe_silu_mul", "call:pos(1)"), "are pairs"},
    {"a pair that is not there", LUA("moe_down", "call:pair(1000)"), "pair 1000 is out of range"},
    {"an expert that is not there", LUA("moe_gate_up", "call:pairs(call.experts + 1)"), "is out of range"},
    {"an expert left out", LUA("moe_gate_up", "for e = 2, call.experts do call:pairs(e) end"), "wrong"},
    {"a bad name", "return {name = 'a b;c', kind = 'add', help = 'x', run = function(call)\n" LUA_ADD "end}\n", "is not allowed"},
    {"an error in use", LUA("add", "local t = nil\nt.x = 1"), "patch.lua:4:"},
    {"wrong result", LUA("add", "for i = 1, call.rows do call.y:set(i, call.x:row(i)) end"), "wrong"},
    {"a row too short", LUA("add", "call.y:set(1, {1, 2})"), "patch.lua:3: 96 values expected, got 2"},
    {"no numbers", LUA("add", "local y = call.y:row(1)\ny[7] = 'x'\ncall.y:set(1, y)"), "value 7 is a string"},
    {"a row that is not there", LUA("add", "call.x:row(call.rows + 1)"), "row 6 is out of range"},
    {"a write to the input", LUA("add", "call.x:set(1, call.x:row(1))"), "only call.y"},
    {"not a number", LUA("add", "local y = call.y:row(1)\ny[1] = 0 / 0\ncall.y:set(1, y)"), "not a number"},
    {"an endless loop", LUA("add", "while true do\nend"), "runs too long"},
    {"an endless loop that catches errors", LUA("add", "while true do\npcall(function() while true do end end)\nend"), "runs too long"},
    {"an endless loop when it is read", "while true do\nend\n", "runs too long"},
    {"endless recursion", LUA("add", "local function f() return 1 + f() end\nf()"), "stack overflow"},
    {"endless memory", LUA("add", "local t = {}\nwhile true do\nt[#t + 1] = {}\nend"), "memory"},
    {"files", LUA("add", "io.open('/etc/passwd')"), "global 'io'"},
    {"a store that does not store", LUA("kv_store", ""), "without call:store() for row 1"},
    {"a store elsewhere", LUA("add", "call:store(1, call.x:row(1))"), "kind kv_store and index_store"},
    {"attention to what is not there yet", LUA("mla", "call:cached(2, call:pos(2) + 1)"), "row 2 sees positions 0 to 1, not 2"},
    {"a router that does not choose", LUA("router", "call:choose(1, {1, 2, 3, 4}, {1, 1, 1, 1})"), "without call:choose() for row 2"},
    {"an expert chosen twice", LUA("router", "call:choose(1, {1, 2, 1, 4}, {1, 1, 1, 1})"), "twice"},
    {"an expert that is not there", LUA("router", "call:choose(1, {1, 2, 3, 0}, {1, 1, 1, 1})"), "out of range"},
};

static void test_bad(struct rs_engine *e, const char *file, const struct bad *cases, size_t n)
{
    const char *msg;
    json_t *before = talk(e, "patch.list", "{}");
    for (size_t i = 0; i < n; i++) {
        enum rs_result rc = talk_error(e, &msg, "patch.load", "{'path':'%s','activate':true}", talk_file(file, cases[i].text));
        tap_ok(rc == RS_EFORMAT && strstr(msg, cases[i].says) != NULL && strstr(msg, file) != NULL, "%s: %s: %s", file, cases[i].name, msg);
    }
    json_t *after = talk(e, "patch.list", "{}");
    tap_ok(json_equal(before, after), "%s: nothing has changed", file);
    json_decref(before);
    json_decref(after);
}

static void test_arguments(struct rs_engine *e)
{
    const char *msg;
    tap_eq_int(talk_error(e, NULL, "patch.load", "{'path':'/nowhere.c'}"), RS_EIO, "a missing file");
    tap_eq_int(talk_error(e, NULL, "patch.load", "{'path':'/nowhere.lua'}"), RS_EIO, "a missing file in Lua");
    tap_eq_int(talk_error(e, NULL, "patch.load", "{}"), RS_EUSAGE, "no file");
    enum rs_result rc = talk_error(e, &msg, "patch.load", "{'path':'/etc/passwd'}");
    tap_ok(rc == RS_EUNSUPPORTED && strstr(msg, ".lua") != NULL, "a file of no known language: %s", msg);
    tap_eq_int(talk_error(e, NULL, "patch.load", "{'path':'x.cu'}"), RS_EUNSUPPORTED, "CUDA C is not for the CPU backend");
    tap_eq_int(talk_error(e, NULL, "patch.set", "{'slot':'user','impl':'never-loaded'}"), RS_ENOTFOUND, "an implementation that was never loaded");
    tap_eq_int(talk_error(e, NULL, "patch.shadow", "{'impl':'never-loaded','ids':[1]}"), RS_ENOTFOUND, "nor can it be shadowed");
    json_decref(talk(e, "patch.load", "{'path':'%s'}", tap_source("scripts/patches/index_topk.lua")));
    rc = talk_error(e, &msg, "patch.set", "{'slot':'user','impl':'index_topk-lua'}");
    tap_ok(rc == RS_ENOTFOUND && strstr(msg, "is for ops of kind index_topk, and there is none at '*'") != NULL, "a patch for what this model does not have: %s", msg);
    rc = talk_error(e, &msg, "patch.set", "{'slot':'allreduce','impl':'auto'}");
    tap_ok(rc == RS_ENOTFOUND && strstr(msg, "no implementation 'auto' (it has flat, tree)") != NULL, "what this backend does not have: %s", msg);
}

/* limit: of the distance from the built-in ones. The built-in projections (those inside of attention too) round activations to int8, the plain ones do not;
 * the others differ by the order of sums. least: ops of the kind that a step has. */
static const struct { const char *file, *name, *kind; double limit; unsigned least; } EXAMPLES[] = {
    {"rmsnorm-plain.c", "rmsnorm-plain", "rmsnorm", 1e-6, 4}, {"linear-plain.c", "linear-plain", "linear", 3e-2, 4}, {"mla-plain.c", "mla-plain", "mla", 3e-2, 4},
    {"kv_store-plain.c", "kv_store-plain", "kv_store", 1e-4, 4}, {"router-plain.c", "router-plain", "router", 1e-5, 4},
    {"allreduce-exact.c", "allreduce-exact", "allreduce", 1e-6, 4}, {"rmsnorm.lua", "rmsnorm-lua", "rmsnorm", 1e-6, 4}, {"swiglu.lua", "swiglu-lua", "moe_silu_mul", 1e-5, 4},
    {"router.lua", "router-lua", "router", 1e-5, 4}, {"moe_gate_up-plain.c", "moe_gate_up-plain", "moe_gate_up", 3e-2, 4},
    {"moe_down-plain.c", "moe_down-plain", "moe_down", 3e-2, 4}, {"embed-plain.c", "embed-plain", "embed", 0, 1},
    {"moe_gate_up.lua", "moe_gate_up-lua", "moe_gate_up", 3e-2, 4}, {"moe_down.lua", "moe_down-lua", "moe_down", 3e-2, 4}, {"embed.lua", "embed-lua", "embed", 0, 1},
    {"gather-plain.c", "gather-plain", "gather", 0, 1}};
enum { N_EXAMPLES = sizeof EXAMPLES / sizeof EXAMPLES[0] };

/* How many ops of the last step ran this. */
static size_t ran(struct rs_engine *e, const char *impl)
{
    json_t *l = talk(e, "ledger", "{}");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(talk_at(l, "ops")); i++)
        n += strcmp(talk_str(json_array_get(talk_at(l, "ops"), i), "impl"), impl) == 0;
    json_decref(l);
    return n;
}

/* Those of the indexer, where it selects: 16 of the positions. */
#define SPARSE "tests/golden/fixture-dsa.gguf"
#define TURN \
    "static void turn(const struct rankscope_call*c,uint32_t row,float*x){uint32_t h=c->rope_dim/2;for(uint32_t p=0;p<h;p++){" \
    "float*u=c->interleaved?x+2*p:x+p,*v=c->interleaved?u+1:u+h,a=*u,b=*v,s=c->sin[(uint32_t)c->pos[row]*h+p],o=c->cos[(uint32_t)c->pos[row]*h+p];*u=a*o-b*s;*v=b*o+a*s;}}\n"
#define INDEX_Q TURN \
    "static void run(const struct rankscope_call*c){size_t f,t;rankscope_share(c,(size_t)c->in[0].rows*c->n_heads,1,&f,&t);" \
    "for(size_t i=f;i<t;i++)turn(c,(uint32_t)(i/c->n_heads),c->out[0].data+i/c->n_heads*c->out[0].stride+i%c->n_heads*c->head_dim);}\n"
#define INDEX_STORE "#include <math.h>\n" TURN \
    "static void run(const struct rankscope_call*c){size_t f,t;const float*w=(const float*)(const void*)c->w[0].data,*o=(const float*)(const void*)c->w[1].data;" \
    "rankscope_share(c,c->in[0].rows,1,&f,&t);for(size_t i=f;i<t;i++){float*x=c->out[0].data+i*c->out[0].stride;double m=0,v=0;uint32_t n=c->head_dim;" \
    "for(uint32_t j=0;j<n;j++)m+=(double)x[j]/n;for(uint32_t j=0;j<n;j++)v+=((double)x[j]-m)*((double)x[j]-m)/n;" \
    "for(uint32_t j=0;j<n;j++)x[j]=(float)(((double)x[j]-m)/sqrt(v+(double)c->eps)*(double)w[j]+(c->w[1].rows!=0?(double)o[j]:0));" \
    "turn(c,(uint32_t)i,x);c->cache_put(c,(uint32_t)i,x);}}\n"

static void test_indexer(struct rs_engine *e)
{
    static const struct { const char *file, *text, *name; } FILES[] = {
        {"scripts/patches/index_scores-plain.c", NULL, "index_scores-plain"}, {"scripts/patches/index_topk.lua", NULL, "index_topk-lua.2"},
        {"q.c", HEAD INDEX_Q TAIL("index-q", "index_q"), "index-q"}, {"store.c", HEAD INDEX_STORE TAIL("index-store", "index_store"), "index-store"}};
    enum { N = sizeof FILES / sizeof FILES[0], PROMPT_IDS = 60 };
    int32_t plain[20], with[20];
    size_t n, m;
    char prompt[8 * PROMPT_IDS] = "'ids':[1";
    for (int i = 1; i < PROMPT_IDS; i++)
        snprintf(prompt + strlen(prompt), sizeof prompt - strlen(prompt), ",%d", 3 + i * 37 % 2000);
    strcat(prompt, "]");
    json_decref(talk(e, "open", "{'path':'%s','ranks':2,'mode':'graph','patches':{'matmul':'f32','cache':'f32'}}", tap_source(SPARSE)));
    json_decref(talk_generate(e, prompt, 20, plain, 20, &n));
    for (int i = 0; i < N; i++) {
        json_t *r = talk(e, "patch.load", "{'path':'%s'}", FILES[i].text != NULL ? talk_file(FILES[i].file, FILES[i].text) : tap_source(FILES[i].file));
        tap_eq_str(talk_str(r, "name"), FILES[i].name, "the patch of the indexer is loaded");
        json_decref(r);
        r = talk(e, "patch.shadow", "{%s,'impl':'%s'}", prompt, FILES[i].name);
        tap_ok(talk_num(r, "compared") >= 1 && talk_num(r, "worst") <= 1e-5 && talk_num(r, "worst") >= 0, "%s in the shadow of the built-in: %g comparisons, worst %.2g at %s",
               FILES[i].name, talk_num(r, "compared"), talk_num(r, "worst"), talk_str(r, "worst_site"));
        json_decref(r);
        json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", FILES[i].name));
        json_decref(talk_generate(e, prompt, 20, with, 20, &m));
        tap_ok(ran(e, FILES[i].name) >= 1, "the ledger names it at %zu ops", ran(e, FILES[i].name));
        tap_ok(n == m && memcmp(plain, with, n * sizeof *plain) == 0, "the answer is the same");
        r = talk(e, "replay", "{%s}", prompt);
        tap_eq_int((long long)talk_num(r, "out_of_tolerance"), 0, "the reference agrees with it");
        json_decref(r);
    }
    json_t *l = talk(e, "diff", "{%s,'decode':2,'tolerance':0,'a':{'mode':'eager'},'b':{'mode':'graph'}}", prompt);
    tap_eq_int((long long)talk_num(l, "out_of_tolerance"), 0, "eager and graph agree to the bit with all of them");
    json_decref(l);
}

static void test_examples(struct rs_engine *e)
{
    int32_t plain[20], with[20];
    size_t n, m;
    char path[512];
    json_decref(talk_generate(e, PROMPT, 20, plain, 20, &n));
    for (int i = 0; i < N_EXAMPLES; i++) {
        snprintf(path, sizeof path, "scripts/patches/%s", EXAMPLES[i].file);
        json_t *r = talk(e, "patch.load", "{'path':'%s'}", tap_source(path));
        tap_ok(strcmp(talk_str(r, "name"), EXAMPLES[i].name) == 0 && strcmp(talk_str(r, "kind"), EXAMPLES[i].kind) == 0, "%s is loaded, self-test %.2g, %.0f ms",
               EXAMPLES[i].file, talk_num(r, "selftest_worst"), talk_num(r, "staged_ms"));
        json_decref(r);
        const unsigned least = EXAMPLES[i].least;
        r = talk(e, "patch.shadow", "{%s,'impl':'%s'}", PROMPT, EXAMPLES[i].name);
        tap_ok(talk_num(r, "compared") > 4 * least && talk_num(r, "worst") <= EXAMPLES[i].limit, "%s in the shadow of the built-in: %g comparisons, worst %.2g at %s",
               EXAMPLES[i].name, talk_num(r, "compared"), talk_num(r, "worst"), talk_str(r, "worst_site"));
        json_decref(r);
        json_decref(talk(e, "patch.reset", "{}"));
        json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", EXAMPLES[i].name));
        json_decref(talk_generate(e, PROMPT, 20, with, 20, &m));
        tap_ok(ran(e, EXAMPLES[i].name) >= least, "the ledger names %s at %zu ops", EXAMPLES[i].name, ran(e, EXAMPLES[i].name));
        tap_ok(n == m && memcmp(plain, with, n * sizeof *plain) == 0, "the answer is the same");
        r = talk(e, "replay", "{%s}", PROMPT);
        tap_eq_int((long long)talk_num(r, "out_of_tolerance"), 0, "the reference agrees with it");
        json_decref(r);
    }
    for (int i = 0; i < N_EXAMPLES; i++)
        json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", EXAMPLES[i].name));
    json_t *l = talk(e, "diff", "{%s,'decode':2,'tolerance':0,'a':{'mode':'eager'},'b':{'mode':'graph'}}", PROMPT);
    tap_eq_int((long long)talk_num(l, "out_of_tolerance"), 0, "eager and graph agree to the bit with all of them");
    json_decref(l);
    json_t *again = talk(e, "patch.load", "{'path':'%s','activate':true,'site':'blk.1.*'}", tap_source("scripts/patches/rmsnorm-plain.c"));
    tap_eq_str(talk_str(again, "name"), "rmsnorm-plain.2", "a name that is taken gets a number");
    json_decref(again);
    json_decref(talk(e, "patch.revert", "{}"));
    json_decref(talk(e, "patch.reset", "{}"));
    l = talk(e, "info", "{}");
    tap_eq_int((long long)json_object_size(talk_at(l, "state.patches")), 0, "all can be taken back");
    json_decref(l);
}

/* The text of the next LOG event that has `word`; others are thrown away. */
static bool told(struct rs_engine *e, const char *word, char *text, size_t cap)
{
    for (int i = 0; i < 1000; i++) {
        json_t *o = talk_wait(e, RS_EVENT_LOG);
        if (o == NULL)
            return false;
        snprintf(text, cap, "%s", talk_str(o, "text"));
        json_decref(o);
        if (strstr(text, word) != NULL)
            return true;
    }
    return false;
}

/* What passes the self-test and fails in the model is taken out, and nobody who waits for an answer notices. */
static void test_late(struct rs_engine *e, const char *mode)
{
    static const struct { const char *name, *text, *says; } LATE[] = {
        {"an error", LUA("add", "if call.layer == 3 then error('not this one') end\n" LUA_ADD), "late.lua:3: not this one"},
        {"an endless loop", LUA("add", "if call.layer == 2 then while true do end end\n" LUA_ADD), "late.lua:3: runs too long"},
        {"half of an answer", LUA("add", "if call.layer == 4 then call.y:set(1, call.x:row(1)); call.y:set(1, {}) end\n" LUA_ADD), "values expected, got 0"}};
    int32_t plain[20], with[20];
    size_t n, m;
    char text[600] = "";
    json_decref(talk(e, "set", "{'mode':'%s'}", mode));
    json_decref(talk_generate(e, PROMPT, 20, plain, 20, &n));
    for (size_t i = 0; i < sizeof LATE / sizeof LATE[0]; i++) {
        json_t *r = talk(e, "patch.load", "{'path':'%s','activate':true}", talk_file("late.lua", LATE[i].text));
        json_decref(r);
        json_decref(talk(e, "submit", "{%s,'temp':0,'max_tokens':20,'ignore_eos':true}", PROMPT));
        tap_ok(told(e, "was taken out", text, sizeof text) && strstr(text, LATE[i].says) != NULL, "%s: %s: %s", mode, LATE[i].name, text);
        json_t *done = talk_wait(e, RS_EVENT_DONE);
        tap_ok(talk_num(done, "tokens") == 20 && strcmp(talk_str(done, "stop"), "length") == 0, "the answer ends as it should");
        json_decref(done);
        r = talk(e, "patch.list", "{}");
        json_t *journal = talk_at(r, "journal"), *last = json_array_get(journal, json_array_size(journal) - 1);
        tap_ok(strncmp(talk_str(last, "to"), "without a", 9) == 0 && strcmp(talk_str(last, "by"), "engine") == 0, "the journal says so: %s by %s", talk_str(last, "to"),
               talk_str(last, "by"));
        json_decref(r);
        json_decref(talk_generate(e, PROMPT, 20, with, 20, &m));
        tap_ok(n == m && memcmp(plain, with, n * sizeof *plain) == 0, "the next one is as before");
        tap_eq_int(talk_error(e, NULL, "patch.shadow", "{%s,'impl':'%s'}", PROMPT, "a"), RS_EFORMAT, "in a shadow it is an error, and no more");
    }
}

/* While a stream runs, in every layout of the work: no token is lost. */
static void test_swaps(struct rs_engine *e)
{
    static const int RANKS[] = {1, 2, 8};
    static const char *const IMPLS[] = {"rmsnorm-plain", "mla-plain", "rmsnorm-lua", "router-lua", "allreduce-exact", "off"};
    const int want = tap_short() ? 60 : 300;
    for (size_t k = 0; k < 3; k++) {
        struct rs_event ev;
        struct rs_error err;
        int tokens = 0, swaps = 0;
        bool done = false;
        json_decref(talk(e, "set", "{'ranks':%d}", RANKS[k]));
        json_decref(talk(e, "submit", "{%s,'temp':0,'max_tokens':%d,'ignore_eos':true}", PROMPT, want));
        while (!done && rs_next(e, 60000, &ev, &err) == RS_OK) {
            done = ev.type == RS_EVENT_DONE;
            tokens += ev.type == RS_EVENT_TOKEN && ev.token >= 0;
            if (ev.type == RS_EVENT_TOKEN && tokens % (want / 30) == 0) {
                json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", IMPLS[swaps % 6]));
                swaps++;
            }
        }
        tap_ok(done && tokens == want && swaps > 10, "%d ranks: %d swaps, %d tokens", RANKS[k], swaps, tokens);
        json_decref(talk(e, "patch.reset", "{}"));
    }
}

int main(void)
{
    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0)
        tap_skip_all("no C compiler");
    struct rs_engine *e = talk_open_hosted(MODEL, "\"ranks\":4,\"mode\":\"graph\"", scr_op_host());
    test_bad(e, "patch.c", BAD_C, sizeof BAD_C / sizeof BAD_C[0]);
    if (getenv("RANKSCOPE_LONG") != NULL)
        test_bad(e, "patch.c", ENDLESS_C, sizeof ENDLESS_C / sizeof ENDLESS_C[0]);
    test_bad(e, "patch.lua", BAD_LUA, sizeof BAD_LUA / sizeof BAD_LUA[0]);
    test_arguments(e);
    test_examples(e);
    test_late(e, "graph");
    test_late(e, "eager");
    test_swaps(e);
    test_indexer(e);
    rs_engine_close(e);
    return tap_done();
}
