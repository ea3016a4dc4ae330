#!/bin/sh
# Models without a file on the command line: audit, bench, chat, one rank of several.
. "${abs_srcdir:-$(dirname "$0")}/tap.sh"
