/* See pred.h. A recursive descent that writes postfix. */
#include "engine/pred.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

enum { NUMBER, VARIABLE, NOT, NEGATE, ABS, MUL, DIV, ADD, SUB, LT, LE, GT, GE, EQ, NE, AND, OR };

static const char *const VARS[PRED_VAR_COUNT] = {
    "step", "pos", "pos0", "token", "rows", "prompt", "layer", "op", "rank", "min", "max", "absmax", "mean", "rms", "zeros", "nan", "inf", "n",
};

/* Binary operators by how tightly they bind, loosest first. Longer spellings stand before their beginnings. */
static const struct { const char *text; uint8_t op, level; } BINARY[] = {
    {"||", OR, 0}, {"&&", AND, 1}, {"==", EQ, 2}, {"!=", NE, 2}, {"<=", LE, 3}, {">=", GE, 3}, {"<", LT, 3}, {">", GT, 3},
    {"+", ADD, 4}, {"-", SUB, 4}, {"*", MUL, 5}, {"/", DIV, 5},
};
enum { LEVELS = 6, MAX_DEPTH = 32 };

struct parser {
    const char *text, *at;
    struct pred *p;
    struct rs_error *err;
    enum rs_result rc;
    uint32_t depth, stack; /* nesting; values on the stack when run */
};

static void fail(struct parser *x, const char *what)
{
    if (x->rc == RS_OK)
        x->rc = error_set(x->err, RS_EUSAGE, "condition '%.80s', character %u: %s", x->text, (unsigned)(x->at - x->text) + 1, what);
}

static void skip(struct parser *x)
{
    while (isspace((unsigned char)*x->at))
        x->at++;
}

static void emit(struct parser *x, uint8_t op, uint8_t var, double number)
{
    if (x->p->n == PRED_MAX_CODE) {
        fail(x, "the condition is too long");
        return;
    }
    x->stack += op == NUMBER || op == VARIABLE;
    x->stack -= op >= MUL;
    if (x->stack > PRED_MAX_STACK)
        fail(x, "the condition is nested too deeply");
    x->p->code[x->p->n].op = op;
    x->p->code[x->p->n].var = var;
    x->p->code[x->p->n++].number = number;
}

static void parse_level(struct parser *x, uint8_t level);

static void parse_name(struct parser *x)
{
    const char *from = x->at;
    while (isalnum((unsigned char)*x->at) || *x->at == '_')
        x->at++;
    size_t n = (size_t)(x->at - from);
    for (uint8_t i = 0; i < PRED_VAR_COUNT; i++)
        if (strlen(VARS[i]) == n && memcmp(VARS[i], from, n) == 0) {
            x->p->uses |= 1u << i;
            emit(x, VARIABLE, i, 0);
            return;
        }
    if (n == 3 && memcmp(from, "abs", 3) == 0) {
        skip(x);
        if (*x->at != '(') {
            fail(x, "abs needs '('");
            return;
        }
        x->at++;
        parse_level(x, 0);
        skip(x);
        if (*x->at == ')')
            x->at++;
        else
            fail(x, "')' is missing");
        emit(x, ABS, 0, 0);
        return;
    }
    x->at = from;
    fail(x, "there is no such variable; there are step, pos, pos0, token, rows, prompt, layer, op, rank, min, max, absmax, mean, rms, zeros, nan, inf, n");
}

static void parse_unary(struct parser *x)
{
    skip(x);
    if (++x->depth > MAX_DEPTH) {
        fail(x, "the condition is nested too deeply");
    } else if (*x->at == '!' || *x->at == '-') {
        uint8_t op = *x->at++ == '!' ? NOT : NEGATE;
        parse_unary(x);
        emit(x, op, 0, 0);
    } else if (*x->at == '(') {
        x->at++;
        parse_level(x, 0);
        skip(x);
        if (*x->at == ')')
            x->at++;
        else
            fail(x, "')' is missing");
    } else if (isdigit((unsigned char)*x->at) || *x->at == '.') {
        char *end;
        double v = strtod(x->at, &end);
        if (end == x->at)
            fail(x, "a number is expected");
        x->at = end;
        emit(x, NUMBER, 0, v);
    } else if (isalpha((unsigned char)*x->at)) {
        parse_name(x);
    } else {
        fail(x, *x->at == '\0' ? "something is missing at the end" : "a number, a variable or '(' is expected");
    }
    x->depth--;
}

static void parse_level(struct parser *x, uint8_t level)
{
    if (level == LEVELS) {
        parse_unary(x);
        return;
    }
    parse_level(x, (uint8_t)(level + 1));
    while (x->rc == RS_OK) {
        size_t i = 0, n = sizeof BINARY / sizeof BINARY[0];
        skip(x);
        while (i < n && !(BINARY[i].level == level && strncmp(x->at, BINARY[i].text, strlen(BINARY[i].text)) == 0))
            i++;
        if (i == n)
            return;
        x->at += strlen(BINARY[i].text);
        parse_level(x, (uint8_t)(level + 1));
        emit(x, BINARY[i].op, 0, 0);
    }
}

enum rs_result pred_compile(const char *text, struct pred *out, struct rs_error *err)
{
    struct pred p = {.n = 0};
    struct parser x = {.text = text, .at = text, .p = &p, .err = err, .rc = RS_OK};
    skip(&x);
    if (*x.at != '\0') {
        parse_level(&x, 0);
        skip(&x);
        if (*x.at != '\0')
            fail(&x, "an operator is expected");
    }
    if (x.rc == RS_OK)
        *out = p;
    return x.rc;
}

static double binary(uint8_t op, double a, double b)
{
    switch (op) {
    case MUL: return a * b;
    case DIV: return a / b;
    case ADD: return a + b;
    case SUB: return a - b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQ: return a == b;
    case NE: return a != b;
    case AND: return a != 0 && b != 0;
    default: return a != 0 || b != 0;
    }
}

double pred_eval(const struct pred *p, const double var[PRED_VAR_COUNT])
{
    double s[PRED_MAX_STACK + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint8_t op = p->code[i].op;
        switch (op) {
        case NUMBER: s[n++] = p->code[i].number; break;
        case VARIABLE: s[n++] = var[p->code[i].var]; break;
        case NOT: s[n - 1] = s[n - 1] == 0; break;
        case NEGATE: s[n - 1] = -s[n - 1]; break;
        case ABS: s[n - 1] = fabs(s[n - 1]); break;
        default:
            n--;
            s[n - 1] = binary(op, s[n - 1], s[n]);
        }
    }
    return n != 0 ? s[0] : 1;
}
