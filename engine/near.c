/* near.c: which name was meant by a word that is none. */
#include "config.h"

#include "engine/rankscope.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 32, FAR = 99 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Letters to insert, delete, replace or swap with their neighbour to get from a to b (optimal string alignment distance, three rows). */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
    unsigned row[3][LONGEST + 1];
    unsigned *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        unsigned *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[m];
}

/* One name that begins the other is near from three letters on (max-tokens and max); else one slip, and one more for each four letters. */
static unsigned cost(const char *a, size_t n, const char *b, size_t m)
{
    if (n == 0 || n > LONGEST || m > LONGEST)
        return FAR;
    size_t shorter = n < m ? n : m;
    if (shorter >= 3 && memcmp(a, b, shorter) == 0)
        return 1;
    unsigned d = distance(a, n, b, m);
    return d <= 1 + shorter / 4 && d < shorter ? d : FAR;
}

void rs_near_init(struct rs_near *n, const char *word, size_t len)
{
    *n = (struct rs_near){.word = word, .len = len, .cost = FAR};
}

void rs_near_try(struct rs_near *n, const char *name)
{
    unsigned c = cost(n->word, n->len, name, strlen(name));
    if (c < n->cost) {
        n->best = name;
        n->cost = c;
    }
}

const char *rs_near_hint(const struct rs_near *n, const char *prefix, char *buf, size_t size)
{
    if (n->best == NULL)
        buf[0] = '\0';
    else
        snprintf(buf, size, " (did you mean %s%s?)", prefix, n->best);
    return buf;
}
