/* Pre-tokenizers: how a text is cut into the pieces inside which byte pairs are merged.
 *
 * A pre-tokenizer is a chain of regular expressions. Each is applied to every piece that the one before left: matches and the gaps between
 * them become pieces. The expressions are those that the models were trained with, in spellings chosen so that matching stays linear:
 *   - \s is written out (class S): PCRE2's own counts U+180E, which Unicode no longer does;
 *   - "\s*[\r\n]+" (a run of white space up to its last line break) is a possessive loop that never backtracks;
 *   - "\s+$" starts only where a run starts, else a long run that does not end the piece would be scanned from each of its characters;
 *   - class intersections with \p{Han}, which PCRE2 lacks, are complements: every character has one general category.
 * Text that is not UTF-8 is cut out first: a run of bad bytes is a piece of its own. */
#include "engine/vocab_int.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S_SET "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define S "[" S_SET "]"
#define S_NO_BREAK "[\\t\\x{B}\\x{C} \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}]"
#define NOT_S "[^" S_SET "]"
/* \s*[\r\n]+ | \s+(?!\S) | \s+ */
#define SPACES "(?:" S_NO_BREAK "*+[\\r\\n]++)++|" S "+(?!" NOT_S ")|" S "+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD_START "[^\\r\\n\\p{L}\\p{N}]?"
#define MARKS_RUN " ?[^" S_SET "\\p{L}\\p{N}]+[\\r\\n]*"

/* Letters and marks outside Han, without lower case / without upper and title case. */
#define NOT_HAN_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define NOT_HAN_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"

/* Cased letters as deepseek-llm lists them. */
/* clang-format off */
#define CASED \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}" \
    "\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}" \
    "\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}" \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}" \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}" \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}" \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}" \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}" \
    "\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}" \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}" \
    "\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
/* clang-format on */

enum { MAX_STEPS = 6 };

struct pre_def {
    const char *name;
    bool ignore_merges; /* the models' own tokenizers say so; see vocab_pre_ignores_merges() */
    bool glm;
    const char *step[MAX_STEPS];
};

#define GLM4 CONTRACTION "|" WORD_START "\\p{L}+|\\p{N}{1,3}|" MARKS_RUN "|" SPACES

/* clang-format off */
static const struct pre_def s_defs[] = {
    {"glm4", true, true, {GLM4}},
    {"chatglm-bpe", true, true, {GLM4}},
    {"deepseek-v3", false, false, {
        "\\p{N}{1,3}",
        "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
        "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES,
    }},
    {"deepseek-llm", false, false, {
        "[\\r\\n]",
        S "?[" CASED "]+",
        S "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
        "(?<!" S ")" S "++\\z",
        "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
        "\\p{N}+",
    }},
    {"kimi-k2", false, false, {
        "\\p{sc:Han}+|" WORD_START NOT_HAN_UPPER "*" NOT_HAN_LOWER "+" CONTRACTION "?|" WORD_START NOT_HAN_UPPER "+" NOT_HAN_LOWER "*"
        CONTRACTION "?|\\p{N}{1,3}|" MARKS_RUN "|" SPACES,
    }},
};
/* clang-format on */
enum { N_DEFS = sizeof s_defs / sizeof *s_defs };

struct vocab_pre {
    const struct pre_def *def;
    pcre2_code *code[MAX_STEPS];
    int n;
};

static const struct pre_def *find_def(const char *name, size_t len)
{
    for (int i = 0; i < N_DEFS; i++)
        if (strlen(s_defs[i].name) == len && memcmp(s_defs[i].name, name, len) == 0)
            return &s_defs[i];
    return NULL;
}

enum rs_result vocab_pre_open(const char *name, size_t name_len, struct vocab_pre **out, struct rs_error *err)
{
    const struct pre_def *def = find_def(name, name_len);
    if (def == NULL) {
        char known[120] = "";
        for (int i = 0; i < N_DEFS; i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", s_defs[i].name);
        return error_set(err, RS_EUNSUPPORTED, "pre-tokenizer \"%.*s\" is not known; the known ones are %s",
                         name_len < 60 ? (int)name_len : 60, name, known);
    }
    struct vocab_pre *p = calloc(1, sizeof *p);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the pre-tokenizer");
    p->def = def;
    while (p->n < MAX_STEPS && def->step[p->n] != NULL) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)def->step[p->n], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (re == NULL) {
            PCRE2_UCHAR why[120];
            pcre2_get_error_message(code, why, sizeof why);
            error_set(err, RS_EINTERNAL, "pre-tokenizer %s, expression %d, offset %zu: %s (PCRE2 10.40 or later is needed)", def->name,
                      p->n + 1, (size_t)at, (const char *)why);
            vocab_pre_close(p);
            return RS_EINTERNAL;
        }
        pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* where there is no JIT the interpreter gives the same matches */
        p->code[p->n++] = re;
    }
    *out = p;
    return RS_OK;
}

void vocab_pre_close(struct vocab_pre *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

const char *vocab_pre_known_name(const struct vocab_pre *p)
{
    return p->def->name;
}

bool vocab_pre_ignores_merges(const struct vocab_pre *p)
{
    return p->def->ignore_merges;
}

bool vocab_pre_is_glm(const struct vocab_pre *p)
{
    return p->def->glm;
}

static bool push(struct vocab_ends *e, size_t end)
{
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 64;
        size_t *p = realloc(e->end, cap * sizeof *p);
        if (p == NULL)
            return false;
        e->end = p;
        e->cap = cap;
    }
    e->end[e->n++] = end;
    return true;
}

/* What one call of vocab_pre_run() needs from PCRE2. */
struct matcher {
    pcre2_match_data *md;
    pcre2_match_context *mc;
};

static bool matcher_init(struct matcher *m, size_t len)
{
    m->md = pcre2_match_data_create(1, NULL);
    m->mc = pcre2_match_context_create(NULL);
    if (m->md == NULL || m->mc == NULL)
        return false;
    /* No expression needs more than a few steps per character; a limit far above that turns a mistake in one into an error, not a hang. */
    uint64_t limit = 1000000 + 16 * (uint64_t)len;
    pcre2_set_match_limit(m->mc, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    return true;
}

static void matcher_fini(struct matcher *m)
{
    pcre2_match_data_free(m->md);
    pcre2_match_context_free(m->mc);
}

static int match(const pcre2_code *re, const char *s, size_t len, size_t from, struct matcher *m)
{
    const uint32_t opts = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY; /* the caller has checked the encoding */
    int rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, opts, m->md, m->mc);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, opts | PCRE2_NO_JIT, m->md, m->mc);
    return rc;
}

/* One expression over one piece [from, to) of text. */
static enum rs_result split_piece(const struct vocab_pre *p, int step, const char *text, size_t from, size_t to, struct matcher *m,
                                  struct vocab_ends *out, struct rs_error *err)
{
    const char *s = text + from;
    size_t len = to - from, pos = 0;
    bool room = true;
    while (pos < len && room) {
        int rc = match(p->code[step], s, len, pos, m);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) {
            PCRE2_UCHAR why[120];
            pcre2_get_error_message(rc, why, sizeof why);
            return error_set(err, RS_EINTERNAL, "pre-tokenizer %s, expression %d, at byte %zu of the text: %s", p->def->name, step + 1,
                             from + pos, (const char *)why);
        }
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(m->md);
        room = (ov[0] <= pos || push(out, from + ov[0])) && push(out, from + ov[1]);
        pos = ov[1];
    }
    if (room && pos < len)
        room = push(out, to);
    return room ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for a text of %zu bytes", len);
}

/* The whole chain over text[from, to), which is valid UTF-8. Piece ends are appended to `out`; a and b are scratch. */
static enum rs_result split_valid(const struct vocab_pre *p, const char *text, size_t from, size_t to, struct matcher *m,
                                  struct vocab_ends *out, struct vocab_ends *a, struct vocab_ends *b, struct rs_error *err)
{
    enum rs_result r = RS_OK;
    a->n = 0;
    if (!push(a, to))
        return error_set(err, RS_ENOMEM, "out of memory for a text of %zu bytes", to - from);
    for (int step = 0; step < p->n && r == RS_OK; step++) {
        struct vocab_ends *dst = step == p->n - 1 ? out : b;
        if (dst == b)
            b->n = 0;
        size_t start = from;
        for (size_t i = 0; i < a->n && r == RS_OK; i++) {
            r = split_piece(p, step, text, start, a->end[i], m, dst, err);
            start = a->end[i];
        }
        struct vocab_ends t = *a;
        *a = *b;
        *b = t;
    }
    return r;
}

size_t vocab_utf8(const uint8_t *p, size_t n, size_t *bad, bool *unfinished)
{
    uint8_t c = p[0], lo = 0x80, hi = 0xBF;
    size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    *unfinished = false;
    *bad = 1;
    if (len < 2)
        return len;
    if (c == 0xE0) /* overlong */
        lo = 0xA0;
    else if (c == 0xED) /* surrogates */
        hi = 0x9F;
    else if (c == 0xF0) /* overlong */
        lo = 0x90;
    else if (c == 0xF4) /* above U+10FFFF */
        hi = 0x8F;
    for (size_t i = 1; i < len; i++, lo = 0x80, hi = 0xBF) {
        *bad = i;
        if (i == n) {
            *unfinished = true;
            return 0;
        }
        if (p[i] < lo || p[i] > hi)
            return 0;
    }
    return len;
}

/* Length of the leading run of text that is (valid) or is not (invalid) UTF-8. */
static size_t run_length(const char *text, size_t len, bool valid)
{
    size_t pos = 0;
    while (pos < len) {
        size_t bad;
        bool unfinished;
        size_t n = vocab_utf8((const uint8_t *)text + pos, len - pos, &bad, &unfinished);
        if ((n > 0) != valid)
            break;
        pos += n > 0 ? n : bad;
    }
    return pos;
}

enum rs_result vocab_pre_run(const struct vocab_pre *p, const char *text, size_t len, struct vocab_ends *ends, struct rs_error *err)
{
    struct matcher m;
    struct vocab_ends a = {0}, b = {0};
    enum rs_result r = RS_OK;
    ends->n = 0;
    if (!matcher_init(&m, len))
        r = error_set(err, RS_ENOMEM, "out of memory for the pre-tokenizer");
    for (size_t pos = 0; pos < len && r == RS_OK;) {
        size_t n = run_length(text + pos, len - pos, true);
        if (n > 0)
            r = split_valid(p, text, pos, pos + n, &m, ends, &a, &b, err);
        pos += n;
        n = run_length(text + pos, len - pos, false);
        if (n > 0 && r == RS_OK && !push(ends, pos + n))
            r = error_set(err, RS_ENOMEM, "out of memory for a text of %zu bytes", len);
        pos += n;
    }
    matcher_fini(&m);
    free(a.end);
    free(b.end);
    return r;
}

enum rs_result vocab_pre_split(const char *pre, const char *text, size_t len, size_t **ends, size_t *n_ends, struct rs_error *err)
{
    struct vocab_pre *p;
    enum rs_result r = vocab_pre_open(pre, strlen(pre), &p, err);
    if (r != RS_OK)
        return r;
    struct vocab_ends e = {0};
    r = vocab_pre_run(p, text, len, &e, err);
    vocab_pre_close(p);
    if (r != RS_OK) {
        free(e.end);
        return r;
    }
    *ends = e.end;
    *n_ends = e.n;
    return RS_OK;
}
