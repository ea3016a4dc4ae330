/* The console's pure parts: text that is made safe, options, history, completion, layers, units, tables. */
#include "config.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console/complete.h"
#include "console/history.h"
#include "console/layers.h"
#include "console/load.h"
#include "console/opt.h"
#include "console/sampling.h"
#include "console/setting.h"
#include "console/sig.h"
#include "console/rcmd.h"
#include "console/table.h"
#include "console/text.h"
#include "console/units.h"
#include "tests/tap.h"

/* ---- text --------------------------------------------------------------------------------------------------------------------------- */

/* The safe form of text that arrives in pieces of `step` bytes. */
static char *clean(const char *text, size_t len, size_t step)
{
    struct text_filter f = {0};
    struct buf b = {0};
    for (size_t i = 0; i < len; i += step)
        text_clean(&f, text + i, len - i < step ? len - i : step, &b);
    text_clean_end(&f, &b);
    return buf_take(&b);
}

static void test_text(void)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        {"plain", "abc\tdef\n", "abc\tdef\n"},
        {"escape", "\033[31m", "^[[31m"},
        {"delete and bell", "a\177\a", "a^?^G"},
        {"C1", "\302\233H", "^[[H"},
        {"the last C1", "\302\237", "^[_"},
        {"no-break space is no control", "\302\240", "\302\240"},
        {"umlaut, kana, emoji", "\303\251\346\227\245\360\237\230\200", "\303\251\346\227\245\360\237\230\200"},
        {"a raw C1 byte", "a\233b", "a\357\277\275b"},
        {"a cut character", "a\346\227", "a\357\277\275"},
        {"a character that is interrupted", "\346\227x", "\357\277\275x"},
        {"an overlong slash", "\300\257", "\357\277\275\357\277\275"},
        {"a surrogate", "\355\240\200x", "\357\277\275"},
        {"beyond the last code point", "\364\220\200\200", "\357\277\275"},
        {"CR before LF", "a\r\nb", "a\nb"},
        {"CR alone", "a\rb\r", "a^Mb^M"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t len = strlen(cases[i].text);
        char *whole = clean(cases[i].text, len, len), *bytes = clean(cases[i].text, len, 1);
        /* How many replacement characters a bad sequence makes depends on where it was cut; that none is lost and none passes does not. */
        if (strncmp(cases[i].want, "\357\277\275", 3) != 0)
            tap_eq_str(whole, cases[i].want, "clean: %s", cases[i].name);
        else
            tap_ok(strncmp(whole, "\357\277\275", 3) == 0, "clean: %s", cases[i].name);
        size_t bad;
        tap_ok(text_valid(bytes, strlen(bytes), &bad) && strchr(bytes, '\033') == NULL, "clean: %s, byte by byte, is safe", cases[i].name);
        if (strstr(cases[i].want, "\357\277\275") == NULL)
            tap_eq_str(bytes, cases[i].want, "clean: %s, byte by byte, is the same", cases[i].name);
        free(whole);
        free(bytes);
    }
    char *line = text_one_line("a\nb\tc\033");
    tap_eq_str(line, "a^Jb^Ic^[", "one line");
    free(line);
}

/* Every byte string of length 1 to 3 over bytes that matter: the outcome is always UTF-8 without controls. */
static void test_text_all(void)
{
    static const unsigned char bytes[] = {'a', '\n', '\r', 0x1b, 0x7f, 0x80, 0x9b, 0xa0, 0xc2, 0xc0, 0xe2, 0xed, 0xf0, 0xf4, 0xff, 0};
    size_t k = sizeof bytes, wrong = 0, bad;
    for (size_t n = 0; n < k * k * k; n++) {
        char text[3] = {(char)bytes[n % k], (char)bytes[n / k % k], (char)bytes[n / k / k]};
        for (size_t step = 1; step <= 3; step++) {
            char *out = clean(text, 3, step);
            bool good = text_valid(out, strlen(out), &bad);
            for (const char *p = out; *p != '\0'; p++)
                good = good && ((unsigned char)*p >= 0x20 || *p == '\n') && *p != 0x7f &&
                       !((unsigned char)*p == 0xc2 && (unsigned char)p[1] < 0xa0);
            wrong += !good;
            free(out);
        }
    }
    tap_eq_int((long long)wrong, 0, "clean: every short string of bytes that matter comes out safe");
}

/* ---- options ------------------------------------------------------------------------------------------------------------------------ */

static void test_options(void)
{
    static const struct opt table[] = {
        {.name = "all", .letter = 'a', .type = OPT_FLAG},
        {.name = "number", .letter = 'n', .type = OPT_INT, .arg = "N", .min = 1, .max = 9},
        {.name = "word", .type = OPT_LIST, .arg = "W"},
        {0},
    };
    const struct opt *const tables[] = {table, NULL};
    const char *argv[] = {"x", "-an7", "one", "--word", "--all", "--word=", "-", "--", "-z", NULL};
    struct opt_values v;
    char msg[256] = "";
    const char *const *words;
    tap_ok(opt_parse(tables, 9, (char **)argv, false, &v, msg, sizeof msg), "options: joined, separate, after arguments");
    tap_ok(opt_set(&v, "all") && opt_int(&v, "number", 0) == 7, "options: letters joined with a value");
    tap_eq_int((long long)opt_list(&v, "word", &words), 2, "options: a list");
    tap_eq_str(words[0], "--all", "options: a value may look like an option");
    tap_eq_str(words[1], "", "options: an empty value");
    tap_eq_int((long long)v.n_args, 3, "options: arguments");
    tap_eq_str(v.args[2], "-z", "options: -- ends them");
    opt_fini(&v);
    const char *wrong[] = {"x", "--number", "10", NULL};
    tap_ok(!opt_parse(tables, 3, (char **)wrong, false, &v, msg, sizeof msg), "options: out of range");
    tap_eq_str(msg, "--number goes from 1 to 9, not 10", "options: the message");
    const char *huge[] = {"x", "-n", "99999999999999999999", NULL};
    tap_ok(!opt_parse(tables, 3, (char **)huge, false, &v, msg, sizeof msg), "options: a number too big to read");
}

static void test_settings(void)
{
    struct setting_patch p;
    struct rs_error err;
    tap_eq_int(setting_parse_patch("delay=3:50@blk.1.*", &p, &err), RS_OK, "patch: with sites");
    tap_ok(strcmp(p.slot, "delay") == 0 && strcmp(p.impl, "3:50") == 0 && strcmp(p.site, "blk.1.*") == 0, "patch: its parts");
    static const char *const bad[] = {"", "mla", "=x", "mla=", "mla=@x", "mla=x@"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        tap_eq_int(setting_parse_patch(bad[i], &p, &err), RS_EUSAGE, "patch: '%s' is none", bad[i]);
    json_t *o = json_object();
    tap_eq_int(setting_add(o, "graph.guard=off", &err), RS_OK, "setting");
    tap_ok(json_is_false(json_object_get(o, "graph_guard")), "setting: on and off are booleans");
    json_decref(o);
    char key[64];
    tap_eq_str(sampling_key(sampling_find("max"), key, sizeof key), "max_tokens", "sampling: the key of max");
    tap_eq_str(sampling_key(sampling_find("top_k"), key, sizeof key), "top_k", "sampling: the key of top-k");
}

/* ---- history ------------------------------------------------------------------------------------------------------------------------ */

static void test_history(void)
{
    struct history h;
    char path[512];
    snprintf(path, sizeof path, "%s", tap_scratch("history"));
    history_open(&h, path);
    tap_ok(history_add(&h, "one"), "history: a line is kept");
    tap_ok(!history_add(&h, "one"), "history: not twice in a row");
    tap_ok(!history_add(&h, " secret") && !history_add(&h, ""), "history: not after a space, not an empty one");
    history_add(&h, "two\nlines \\n");
    history_add(&h, "one");
    tap_eq_int((long long)h.n, 2, "history: an older one of the same text goes");
    history_close(&h);
    history_open(&h, path);
    tap_eq_int((long long)h.n, 2, "history: as many are read back");
    tap_eq_str(h.lines[0], "two\nlines \\n", "history: a line with a newline and a backslash comes back");
    tap_eq_str(h.lines[1], "one", "history: the last stays last");
    for (int i = 0; i < 2 * HISTORY_MAX; i++) {
        char line[32];
        snprintf(line, sizeof line, "line %d", i);
        history_add(&h, line);
    }
    tap_eq_int((long long)h.n, HISTORY_MAX, "history: has a cap");
    history_close(&h);
    history_open(&h, path); /* cuts the file */
    history_close(&h);
    history_open(&h, path);
    struct stat st;
    tap_ok(stat(path, &st) == 0 && st.st_size < 12 * HISTORY_MAX && (st.st_mode & 0777) == 0600,
           "history: the file is cut and the user's own");
    tap_eq_str(h.lines[0], "line 1000", "history: the newest are kept");
    history_close(&h);
    history_open(&h, "/nowhere/at/all");
    tap_ok(history_add(&h, "x"), "history: goes on without a file");
    history_close(&h);
}

/* ---- completion --------------------------------------------------------------------------------------------------------------------- */

/* The candidates, separated by spaces. */
static void completes(struct con *con, const char *line, const char *want)
{
    struct complete c;
    struct buf b = {0};
    complete_line(con, line, strlen(line), &c);
    for (size_t i = 0; i < c.n; i++)
        buf_printf(&b, "%s%s", i > 0 ? " " : "", c.words[i]);
    tap_eq_str(b.text != NULL ? b.text : "", want, "complete: '%s'", line);
    buf_fini(&b);
    complete_fini(&c);
}

static void test_complete(void)
{
    struct out_stdio out;
    struct con con;
    struct rs_error err;
    out_stdio_init(&out, stdout, stderr);
    con_init(&con, &out.out);
    completes(&con, "/to", "/top_k /top_p");
    completes(&con, "/patch mla=", "");
    tap_eq_int(con_start_local(&con, NULL, &err), RS_OK, "an engine starts");
    tap_eq_int(con_open(&con, json_pack("{s:s}", "path", tap_source("models/tiny-glm5-q4.gguf")), &err), RS_OK, "and opens a model");
    completes(&con, "/mode ", "eager graph");
    completes(&con, "/mode eager ", "");
    completes(&con, "/patch set m", "mla= moe.split=");
    completes(&con, "/patch set mla=", "mla=absorbed mla=direct mla=expanded");
    completes(&con, "/patch re", "reset revert");
    completes(&con, "/patch set mla=off @blk.5", "");
    completes(&con, "/patch set mla=off @blk.1.attn.al", "@blk.1.attn.allreduce");
    completes(&con, "/break o", "output.");
    completes(&con, "/break allr", "allreduce");
    completes(&con, "/print allr", "");
    completes(&con, "/break output.n", "output.norm");
    completes(&con, "/tap blk.*.attn.no", "blk.*.attn.norm");
    completes(&con, "/tap blk.0.attn.norm s", "save stats");
    completes(&con, "/watch * if n", "nan");
    completes(&con, "/exp m", "mla= mode= moe.split=");
    completes(&con, "/exp mode=graph,", "mode=graph,eager mode=graph,graph");
    completes(&con, "/exp qkv_a=split mla=absorbed,d", "mla=absorbed,direct");
    completes(&con, "/diff de", "default");
    completes(&con, "/diff default mode=eager,mla=d", "mode=eager,mla=direct");
    completes(&con, "/bisect mla=off : m", "");
    completes(&con, "/set numerics=i", "numerics=invariant");
    completes(&con, "/help /mo", "/mode");
    completes(&con, "/help mo", "mode model");
    completes(&con, "/help ", "all causes chat console debugger figures model");
    completes(&con, "/help model m", "");
    completes(&con, "/patch list ml", "mla");
    completes(&con, "hello /mo", "");
    completes(&con, "/foo x", "");
    mkdir(tap_scratch("files"), 0700);
    char line[1024], want[1200];
    static const char *const names[] = {"files/b.gguf", "files/a b.json", "files/.hidden", "files/esc\033"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        close(open(tap_scratch(names[i]), O_CREAT | O_WRONLY, 0600));
    snprintf(line, sizeof line, "/load %s", tap_scratch("fi"));
    snprintf(want, sizeof want, "%s/", tap_scratch("files"));
    completes(&con, line, want);
    snprintf(line, sizeof line, "/load %s", tap_scratch("files/"));
    struct complete c;
    complete_line(&con, line, strlen(line), &c);
    tap_ok(c.n == 2 && strstr(c.words[0], "/a b.json") != NULL, "complete: no hidden file, none with control characters");
    complete_fini(&c);
    con_fini(&con);
}

/* ---- layers, units, tables ---------------------------------------------------------------------------------------------------------- */

static void test_layers(void)
{
    static const char *const names[] = {"embed", "blk.0.x", "blk.2.x", "blk.1.x", "blk.5.x", "blk.3.y", "embed"};
    struct layers l = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        layers_add(&l, NULL, names[i], xstrdup(i == 4 ? "other" : "key"), 1.5);
    tap_eq_int((long long)l.n, 5, "layers: groups; names without a layer stay apart");
    char *r = layers_ranges(&l.groups[1]);
    tap_eq_str(r, "0-2", "layers: out of order, one range");
    tap_near(l.groups[1].sum, 4.5, 0, "layers: the sum");
    free(r);
    layers_fini(&l);
    char *pattern;
    tap_eq_int(layers_split("blk.x.y", &pattern), -1, "layers: blk.x is no layer");
    free(pattern);
}

static void test_units(void)
{
    char b[32];
    tap_eq_str(units_bytes(b, 467.08e9), "467.1 GB", "units: bytes");
    tap_eq_str(units_bytes(b, 512), "512 B", "units: few bytes");
    tap_eq_str(units_us(b, 135.24), "135.2 us", "units: us");
    tap_eq_str(units_us(b, 999.96), "1.00 ms", "units: just under a millisecond rounds up");
    tap_eq_str(units_us(b, 2.1e6), "2.10 s", "units: s");
    tap_eq_str(units_us(b, NAN), "n/a", "units: not a number is not zero");
    tap_eq_str(units_percent(b, 0.4249), "42.5 %", "units: percent");
}

static struct buf s_printed;

static void keep(struct out *o, enum out_role role, const char *text, size_t len)
{
    (void)o;
    (void)role;
    buf_add(&s_printed, text, len);
}

static size_t s_width;

static size_t width(struct out *o)
{
    (void)o;
    return s_width;
}

/* A table of four columns at this width is these lines, of which none is wider. */
static void table_is(size_t columns, size_t keys, const char *want, const char *name)
{
    struct out o = {.write = keep, .columns = width};
    struct table *t = table_new("name|>2size|~3kinds|~1what it is");
    s_width = columns;
    table_fold(t, keys);
    table_cell(t, "%s", "first");
    table_cell(t, "%d", 5);
    table_cell(t, "%s", "one, two, three, four");
    table_cell(t, "%s", "the first of them all");
    table_cell(t, "%s", "\xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac");
    table_cell(t, "%d", 1000);
    table_cell(t, "%s", "one");
    table_cell(t, "%s", "-");
    table_print(t, &o);
    tap_eq_str(s_printed.text, want, "%s", name);
    buf_fini(&s_printed);
}

static void test_table_width(void)
{
    static const char all[] = "  name      size  kinds                  what it is\n"
                              "  first        5  one, two, three, four  the first of them all\n"
                              "  \xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac  1000  one                    -\n";
    table_is(0, 0, all, "table: a file gets everything");
    table_is(62, 0, all, "table: as wide as it needs");
    table_is(60, 0,
             "  name      size  kinds                  what it is\n"
             "  first        5  one, two, three, four  the first of them..\n"
             "  \xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac  1000  one                    -\n"
             "  (60 columns here: shortened: what it is)\n",
             "table: the least important text is shortened first");
    table_is(36, 0,
             "  name      size  kinds\n"
             "  first        5  one, two, three,..\n"
             "  \xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac  1000  one\n"
             "  (36 columns here: without what it is; shortened: kinds)\n",
             "table: then columns are left out, in their order");
    table_is(8, 0, "  name\n  first\n  \xe6\x97\xa5\xe6\x9c\xac..\n  (8 columns here: without size, kinds, what it is; shortened: name)\n",
             "table: what is left loses its end rather than wrap");
    table_is(40, 1,
             "  name      size  kinds\n"
             "  first        5  one, two, three, four\n"
             "  \xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac  1000  one\n"
             "\n"
             "  name      what it is\n"
             "  first     the first of them all\n"
             "  \xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac  -\n",
             "table: one that folds goes on below");
}

/* What wraps has all its words, in lines of its column; what is in one line beside it is said once. */
static void test_table_wraps(void)
{
    struct out o = {.write = keep, .columns = width};
    struct table *t = table_new("name|>n|+what it says|1more");
    s_width = 46;
    table_cell(t, "a");
    table_cell(t, "1");
    table_cell(t, "one two three four five six seven eight nine ten eleven twelve");
    table_cell(t, "more of it");
    table_cell(t, "b");
    table_cell(t, "2");
    table_cell(t, "%s", "none_of_this_can_be_broken_at_a_word_so_it_is_at_its_\xe6\x97\xa5\xe6\x9c\xac");
    table_cell(t, "less");
    table_print(t, &o);
    tap_eq_str(s_printed.text,
               "  name  n  what it says\n"
               "  a     1  one two three four five six seven\n"
               "           eight nine ten eleven twelve\n"
               "  b     2  none_of_this_can_be_broken_at_a_wor\n"
               "           d_so_it_is_at_its_\xe6\x97\xa5\xe6\x9c\xac\n"
               "  (46 columns here: without more)\n",
               "table: sentences go on below");
    buf_fini(&s_printed);
}

/* Words of the engine's between those of an answer. */
static void test_out_answer(void)
{
    struct out_stdio o;
    char text[200] = "";
    FILE *f = tmpfile();
    if (f == NULL) {
        tap_ok(false, "out: a file");
        return;
    }
    out_stdio_init(&o, f, f);
    out_str(&o.out, OUT_ANSWER, "The");
    out_str(&o.out, OUT_NOTE, "engine: a ");
    out_str(&o.out, OUT_NOTE, "hit\n");
    out_str(&o.out, OUT_ANSWER, " capital");
    out_str(&o.out, OUT_ANSWER, ".\n");
    out_str(&o.out, OUT_NOTE, "verdict\n");
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    tap_eq_str(text, "The\nengine: a hit\n capital.\nverdict\n", "out: a note within an answer has a line of its own");
    fclose(f);
}

static void test_table_empty(void)
{
    struct out o = {.write = keep, .columns = width};
    struct table *t = table_new("name|1first|9other");
    s_width = 18;
    table_cell(t, "a");
    table_cell(t, "one, two");
    table_cell(t, "%s", "");
    table_print(t, &o);
    tap_eq_str(s_printed.text, "  name  first\n  a     one, two\n", "table: a column that says nothing goes first, unnoticed");
    buf_fini(&s_printed);
}

/* Each command is in one group, and no name means two things. */
static void test_groups(void)
{
    size_t in_groups = 0, n = 0, both = 0;
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++) {
        size_t members = 0;
        for (size_t i = 0; rcmd_table[i] != NULL; i++)
            members += rcmd_table[i]->group == g->about;
        both += rcmd_exact(g->name) != NULL || strcmp(g->name, "all") == 0;
        in_groups += members;
        tap_ok(members > 0 && members < 20, "help: %s has commands, and they fit a window", g->name);
    }
    while (rcmd_table[n] != NULL)
        n++;
    tap_eq_int((long long)in_groups, (long long)n, "help: every command is in a group");
    tap_eq_int((long long)both, 0, "help: no group is called as a command is");
    tap_ok(rcmd_group_find("debug") != NULL && rcmd_group_find("c") == NULL && rcmd_group_find("") == NULL, "help: a group's name may be cut short");
}

static void test_table(void)
{
    struct out o = {.write = keep};
    struct table *t = table_new("name|>n");
    table_cell(t, "%s", "日本");
    table_cell(t, "%d", 5);
    table_cell(t, "%s", "a\033");
    table_cell(t, "%d", 100);
    table_print(t, &o);
    tap_eq_str(s_printed.text, "  name    n\n  日本    5\n  a^[   100\n", "table: wide characters and controls keep their columns");
    buf_fini(&s_printed);
}

/* Two requests of ten tokens each, one a millisecond; the second begins after `later` milliseconds. */
static double steady(uint64_t later)
{
    enum { N = 10 };
    uint64_t us[2][N];
    struct load_request q[2] = {{0}};
    const struct load_result r = {.n = 2, .requests = q, .seconds = 1, .completed = 2, .output_tokens = 2 * N};
    struct load_summary s;
    for (uint64_t i = 0; i < 2; i++) {
        for (uint64_t k = 0; k < N; k++)
            us[i][k] = 1000 * (1 + k + i * later);
        q[i] = (struct load_request){.submit_us = 1, .first_us = us[i][0], .last_us = us[i][N - 1], .done_us = us[i][N - 1], .token_us = us[i], .n_tokens = N, .done = true};
    }
    load_summarise(&r, &s);
    return s.steady_rate;
}

static void test_steady(void)
{
    tap_ok(fabs(steady(2) - 2000) < 1, "load: two that generate together have a speed: %.0f", steady(2));
    tap_ok(isnan(steady(8)), "load: two that meet for a moment have none: %.0f", steady(8));
}

int main(void)
{
    sig_init();
    setlocale(LC_ALL, "");
    test_text();
    test_text_all();
    test_options();
    test_settings();
    test_history();
    test_complete();
    test_layers();
    test_units();
    test_steady();
    test_table();
    test_table_width();
    test_table_empty();
    test_table_wraps();
    test_out_answer();
    test_groups();
    return tap_done();
}
