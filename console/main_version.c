/* The program's entry until libengine.a has the calls of engine/rankscope.h; then console/main.c takes its place. */
#include "config.h"

#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: rankscope [--version | --help]\n";

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("rankscope %s\n", PACKAGE_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    fputs(usage, stderr);
    return 2;
}
