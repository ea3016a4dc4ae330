#include "config.h"

#include "console/tui_layout.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *title;
} s_names[TUI_CUSTOM] = {{"chat", "Chat"}, {"ranks", "Ranks"},     {"allreduce", "All-reduce"}, {"step", "Step"},
                         {"ops", "Ops"},   {"patches", "Patches"}, {"log", "Log"},              {"requests", "Requests"}};

const char *tui_panel_name(int panel)
{
    return panel == TUI_NOTEBOOK ? "notebook" : panel < TUI_CUSTOM ? s_names[panel].name : tui_custom_name(panel - TUI_CUSTOM);
}

const char *tui_panel_title(int panel)
{
    return panel == TUI_NOTEBOOK ? "Notebook" : panel < TUI_CUSTOM ? s_names[panel].title : tui_custom_title(panel - TUI_CUSTOM);
}

int tui_panel_find(const char *name)
{
    for (int i = 0; i < TUI_PANELS; i++)
        if (tui_panel_name(i) != NULL && strcmp(tui_panel_name(i), name) == 0)
            return i;
    return -1;
}

const struct tui_preset tui_presets[] = {
    {"desk", "(chat*3/ranks)*3|(allreduce/step/log)*2", "chat with the ranks below; on a wide screen times beside it"},
    {"watch", "ranks/(allreduce|step)/log", "what the ranks do"},
    {"patch", "chat/(patches|ops)", "chat with patches and ops below"},
    {"ops", "ops*2/(step|ranks)", "the ops of a step"},
    {"serve", "requests*2/(step|ranks)/log", "who is served, and how fast"},
    {"chat", "chat", "chat alone"},
    {"all", "(chat*2/ranks)*3|(allreduce/step/patches)*2|(ops/log)*2", "everything that fits"},
    {NULL, NULL, NULL},
};

const enum tui_panel tui_layout_drop_order[TUI_PANELS] = {
    TUI_LOG,        TUI_STEP,       TUI_ALLREDUCE,  TUI_OPS,        TUI_PATCHES,    TUI_NOTEBOOK,   TUI_CUSTOM + 1, TUI_CUSTOM + 2, TUI_CUSTOM + 3,
    TUI_CUSTOM + 4, TUI_CUSTOM + 5, TUI_CUSTOM + 6, TUI_CUSTOM + 7, TUI_CUSTOM + 8, TUI_REQUESTS,   TUI_RANKS,      TUI_CHAT,
};

/* Rows and columns inside the frame below which a panel says nothing useful. */
static const struct {
    int rows, cols;
} s_least[TUI_CUSTOM + 1] = {
    [TUI_CHAT] = {3, 48}, [TUI_RANKS] = {3, 36},   [TUI_ALLREDUCE] = {5, 40}, [TUI_STEP] = {4, 32},
    [TUI_OPS] = {4, 38},  [TUI_PATCHES] = {4, 34}, [TUI_LOG] = {2, 30},
    [TUI_REQUESTS] = {3, 40},
    [TUI_CUSTOM] = {3, 24}, /* all of them */
};

static int least(enum tui_panel p)
{
    return p < TUI_CUSTOM ? p : TUI_CUSTOM;
}

/* ---- arrangements as text ------------------------------------------------------------------------------------------------------------ */

struct parser {
    const char *at;
    struct tui_tree *tree;
    unsigned seen;
    int depth;
};

static int new_node(struct parser *p, struct tui_node n)
{
    if (p->tree->n == TUI_MAX_NODES)
        return -1;
    p->tree->nodes[p->tree->n] = n;
    return p->tree->n++;
}

static int parse_level(struct parser *p, enum tui_node_kind kind);

static int parse_leaf(struct parser *p)
{
    for (int i = 0; i < TUI_PANELS; i++) {
        const char *name = tui_panel_name(i);
        size_t len = name != NULL ? strlen(name) : 0;
        if (len == 0 || strncmp(p->at, name, len) != 0 || isalnum((unsigned char)p->at[len]) || p->at[len] == '-' || p->seen & 1u << i)
            continue;
        p->at += len;
        p->seen |= 1u << i;
        return new_node(p, (struct tui_node){TUI_LEAF, (enum tui_panel)i, 1, -1, -1});
    }
    return -1;
}

static int parse_item(struct parser *p)
{
    int node;
    if (*p->at == '(') {
        p->at++;
        if (++p->depth > 8)
            return -1;
        node = parse_level(p, TUI_ROW);
        p->depth--;
        if (node < 0 || *p->at != ')')
            return -1;
        p->at++;
    } else {
        node = parse_leaf(p);
    }
    if (node >= 0 && *p->at == '*') {
        char *end;
        double w = strtod(p->at + 1, &end);
        if (end == p->at + 1 || !(w >= 0.05 && w <= 100))
            return -1;
        p->tree->nodes[node].weight = w;
        p->at = end;
    }
    return node;
}

/* '/' binds more loosely than '|' inside brackets would suggest, so mixing needs no rule: a row is made of stacks. */
static int parse_level(struct parser *p, enum tui_node_kind kind)
{
    char sign = kind == TUI_ROW ? '|' : '/';
    int first = kind == TUI_ROW ? parse_level(p, TUI_STACK) : parse_item(p);
    if (first < 0 || *p->at != sign)
        return first;
    int last = first;
    while (*p->at == sign) {
        p->at++;
        int next = kind == TUI_ROW ? parse_level(p, TUI_STACK) : parse_item(p);
        if (next < 0)
            return -1;
        p->tree->nodes[last].next = next;
        last = next;
    }
    return new_node(p, (struct tui_node){kind, TUI_CHAT, 1, first, -1});
}

bool tui_tree_parse(const char *spec, struct tui_tree *out, size_t *bad)
{
    struct tui_tree tree = {.root = -1};
    struct parser p = {.at = spec, .tree = &tree};
    tree.root = parse_level(&p, TUI_ROW);
    *bad = (size_t)(p.at - spec);
    if (tree.root < 0 || *p.at != '\0')
        return false;
    *out = tree;
    return true;
}

static void print_node(const struct tui_tree *t, int i, bool brackets, struct buf *out)
{
    const struct tui_node *n = &t->nodes[i];
    if (n->kind == TUI_LEAF) {
        buf_str(out, tui_panel_name(n->panel) != NULL ? tui_panel_name(n->panel) : "chat");
    } else {
        if (brackets)
            buf_char(out, '(');
        for (int c = n->first; c >= 0; c = t->nodes[c].next) {
            if (c != n->first)
                buf_char(out, n->kind == TUI_ROW ? '|' : '/');
            print_node(t, c, true, out);
        }
        if (brackets)
            buf_char(out, ')');
    }
    if (n->weight != 1 && i != t->root)
        buf_printf(out, "*%.3g", n->weight);
}

void tui_tree_print(const struct tui_tree *t, struct buf *out)
{
    print_node(t, t->root, false, out);
}

/* Whether the panel is below node i; the shares on the way to it change. */
static bool weigh(struct tui_tree *t, int i, enum tui_panel panel, double factor)
{
    struct tui_node *n = &t->nodes[i];
    bool found = n->kind == TUI_LEAF && n->panel == panel;
    for (int c = n->first; c >= 0 && !found; c = t->nodes[c].next)
        found = weigh(t, c, panel, factor);
    double w = n->weight * factor;
    if (found && w >= 0.05 && w <= 100)
        n->weight = w;
    return found;
}

bool tui_tree_weigh(struct tui_tree *t, enum tui_panel panel, double factor)
{
    return weigh(t, t->root, panel, factor);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------------------------- */

struct work {
    const struct tui_tree *tree;
    struct tui_layout *out;
    int want_ranks;
};

struct size {
    int h, w;
};

static bool present(const struct work *k, int i)
{
    const struct tui_node *n = &k->tree->nodes[i];
    if (n->kind == TUI_LEAF)
        return k->out->shown[n->panel];
    for (int c = n->first; c >= 0; c = k->tree->nodes[c].next)
        if (present(k, c))
            return true;
    return false;
}

/* What makes panels comfortable: that some lines of the chat are in sight, then all ranks, in Ranks, then in All-reduce as well, which has a line more above
 * them. */
enum comfort { LEAST, LINES, RANKS, REDUCES };

#define CHAT_LINES 5

/* What a branch needs with its frames. */
static struct size need(const struct work *k, int i, enum comfort comfort)
{
    const struct tui_node *n = &k->tree->nodes[i];
    struct size s = {0, 0};
    if (n->kind == TUI_LEAF) {
        int rows = s_least[least(n->panel)].rows;
        int want = n->panel == TUI_CHAT && comfort >= LINES          ? CHAT_LINES
                   : n->panel == TUI_RANKS && comfort >= RANKS       ? k->want_ranks
                   : n->panel == TUI_ALLREDUCE && comfort >= REDUCES ? k->want_ranks + 1
                                                                     : 0;
        rows = want > rows ? want : rows;
        return (struct size){rows + (k->out->boxed ? 2 : 1), s_least[least(n->panel)].cols + (k->out->boxed ? 2 : 1)};
    }
    for (int c = n->first; c >= 0; c = k->tree->nodes[c].next) {
        if (!present(k, c))
            continue;
        struct size one = need(k, c, comfort);
        if (n->kind == TUI_STACK) {
            s.h += one.h;
            s.w = one.w > s.w ? one.w : s.w;
        } else {
            s.w += one.w;
            s.h = one.h > s.h ? one.h : s.h;
        }
    }
    return s;
}

#define TALL 36 /* rows from which on All-reduce draws histograms of several rows a rank beside others in its stack */

/* A panel that has nothing to do with more rows than it wants, in a stack of so many. */
static bool is_full(const struct work *k, int i, int rows)
{
    const struct tui_node *n = &k->tree->nodes[i];
    return n->kind == TUI_LEAF && (n->panel == TUI_RANKS || (n->panel == TUI_ALLREDUCE && rows < TALL));
}

/* Deal `length` to n branches: first the least that each needs, then what makes it comfortable, then the rest by weight. */
static void deal(const struct work *k, const int *child, int n, bool rows, int length, int *size)
{
    int used = 0, open = 0;
    double weights = 0;
    for (int i = 0; i < n; i++) {
        struct size s = need(k, child[i], LEAST);
        size[i] = rows ? s.h : s.w;
        used += size[i];
    }
    for (enum comfort comfort = LINES; comfort <= REDUCES; comfort++)
        for (int i = 0; i < n; i++) {
            struct size s = need(k, child[i], comfort);
            int more = (rows ? s.h : s.w) - size[i], left = length - used;
            more = more < 0 ? 0 : more > left ? (left > 0 ? left : 0) : more;
            size[i] += more;
            used += more;
        }
    for (int i = 0; i < n; i++)
        open += !(rows && is_full(k, child[i], length));
    for (int i = 0; i < n; i++)
        if (open == 0 || !(rows && is_full(k, child[i], length)))
            weights += k->tree->nodes[child[i]].weight;
    /* Rounded as running sums, so that the parts add up. */
    double sum = 0;
    int left = length - used, given = 0;
    for (int i = 0; i < n; i++) {
        if (open != 0 && rows && is_full(k, child[i], length))
            continue;
        sum += k->tree->nodes[child[i]].weight;
        int upto = (int)floor(left * sum / weights + 0.5);
        size[i] += upto - given;
        given = upto;
    }
}

static void place(const struct work *k, int i, struct grid_rect r)
{
    const struct tui_node *n = &k->tree->nodes[i];
    if (n->kind == TUI_LEAF) {
        bool boxed = k->out->boxed;
        int left = boxed || r.x > 0;
        k->out->panel[n->panel] = r;
        k->out->inner[n->panel] = (struct grid_rect){r.y + 1, r.x + left, r.h - 1 - boxed, r.w - left - boxed};
        return;
    }
    int child[TUI_MAX_NODES], size[TUI_MAX_NODES], count = 0;
    for (int c = n->first; c >= 0; c = k->tree->nodes[c].next)
        if (present(k, c))
            child[count++] = c;
    bool rows = n->kind == TUI_STACK;
    deal(k, child, count, rows, rows ? r.h : r.w, size);
    for (int c = 0; c < count; c++) {
        struct grid_rect part = rows ? (struct grid_rect){r.y, r.x, size[c], r.w} : (struct grid_rect){r.y, r.x, r.h, size[c]};
        place(k, child[c], part);
        r.y += rows ? size[c] : 0;
        r.x += rows ? 0 : size[c];
    }
}

static void show_all(const struct tui_tree *t, struct tui_layout *out)
{
    for (int i = 0; i < t->n; i++)
        if (t->nodes[i].kind == TUI_LEAF)
            out->shown[t->nodes[i].panel] = true;
}

static bool fits(const struct work *k, enum comfort comfort, struct size room)
{
    struct size s = need(k, k->tree->root, comfort);
    return s.h <= room.h && s.w <= room.w;
}

/* Leave out panels until the rest fits. Ranks that would have to scroll make others go, but not chat or themselves. */
static void drop(struct work *k, struct size room)
{
    /* The log goes first, and already where without it all ranks are in sight in All-reduce. */
    bool log = k->out->shown[TUI_LOG], crowded = !fits(k, REDUCES, room);
    k->out->shown[TUI_LOG] = false;
    k->out->shown[TUI_LOG] = log && !(crowded && k->out->shown[TUI_ALLREDUCE] && fits(k, REDUCES, room));
    for (int i = 0; i < TUI_PANELS; i++) {
        enum tui_panel p = tui_layout_drop_order[i];
        int left = 0;
        for (int j = 0; j < TUI_PANELS; j++)
            left += k->out->shown[j];
        if (left <= 1 || fits(k, p != TUI_RANKS && p != TUI_CHAT ? RANKS : LEAST, room))
            return;
        k->out->shown[p] = false;
    }
}

void tui_layout_compute(const struct tui_tree *t, const struct tui_layout_args *a, struct tui_layout *out)
{
    bool looks = a->prompt_rows == 0;
    *out = (struct tui_layout){.too_small = a->rows < (looks ? TUI_LOOK_ROWS : TUI_MIN_ROWS) || a->cols < (looks ? TUI_LOOK_COLS : TUI_MIN_COLS)};
    if (out->too_small)
        return;
    int prompt = a->prompt_rows == 0 ? 0 : a->prompt_rows < TUI_PROMPT_ROWS ? TUI_PROMPT_ROWS : a->prompt_rows;
    int most = a->rows / 3 > TUI_PROMPT_ROWS ? a->rows / 3 : TUI_PROMPT_ROWS;
    prompt = (prompt > most ? most : prompt) + (prompt > 0);
    out->boxed = a->rows >= 36 && a->cols >= 100;
    out->status = (struct grid_rect){0, 0, 1, a->cols};
    out->hint = (struct grid_rect){a->rows - 1, 0, 1, a->cols};
    out->prompt = (struct grid_rect){a->rows - 1 - prompt, 0, prompt, a->cols};
    out->area = (struct grid_rect){1, 0, a->rows - 2 - prompt, a->cols};
    struct work k = {t, out, a->ranks};
    struct tui_tree alone = {.n = 1, .nodes = {{TUI_LEAF, (enum tui_panel)a->zoom, 1, -1, -1}}};
    if (a->zoom >= 0)
        k.tree = &alone;
    show_all(k.tree, out);
    drop(&k, (struct size){out->area.h, out->area.w});
    place(&k, k.tree->root, out->area);
}
