/* units.h: numbers as people read them. Not-a-number becomes "n/a", never 0. Each function fills a buffer of 32 bytes and returns it. */
#ifndef RANKSCOPE_CONSOLE_UNITS_H
#define RANKSCOPE_CONSOLE_UNITS_H

char *units_bytes(char *buf, double bytes);   /* "467.1 GB"; powers of 1000 */
char *units_count(char *buf, double n);       /* "743.9 B" */
char *units_us(char *buf, double us);         /* "135.2 us", "1.35 ms", "2.10 s" */
char *units_percent(char *buf, double share); /* 0..1 as "42.0 %" */
char *units_num(char *buf, double x, int digits);

#endif
