/* The page that monitoring reads: one rs_snapshot behind a sequence lock, in a memory file that clients map read-only. One writer (the control
 * thread), any number of readers, nobody waits for anybody. */
#ifndef RANKSCOPE_ENGINE_SNAPSHOT_H
#define RANKSCOPE_ENGINE_SNAPSHOT_H

#include "engine/rankscope.h"

struct snapshot_page;

/* A page in an anonymous memory file; *fd is the file (close-on-exec). It vanishes with its last user, also when that one is killed. */
enum rs_result snapshot_create(struct snapshot_page **out, int *fd, struct rs_error *err);
enum rs_result snapshot_map(int fd, const struct snapshot_page **out, struct rs_error *err);
void snapshot_unmap(const struct snapshot_page *p);

void snapshot_write(struct snapshot_page *p, const struct rs_snapshot *s);
/* false: nothing was written yet, or the writer is too fast (three tries). */
bool snapshot_read(const struct snapshot_page *p, struct rs_snapshot *out);

#endif
