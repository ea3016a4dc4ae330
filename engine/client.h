/* Making handles: for client.c and connect.c only. */
#ifndef RANKSCOPE_ENGINE_CLIENT_H
#define RANKSCOPE_ENGINE_CLIENT_H

struct rs_engine;
struct snapshot_page;

/* A handle over a connected socket, which it owns from then on. NULL: out of memory, the socket stays the caller's. */
struct rs_engine *client_new(int fd);
/* The page of a remote engine, mapped; the handle unmaps it. */
void client_set_page(struct rs_engine *e, const struct snapshot_page *page);

#endif
