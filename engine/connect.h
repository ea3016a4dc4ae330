/* For server.c: the greeting of a new connection. */
#ifndef RANKSCOPE_ENGINE_CONNECT_H
#define RANKSCOPE_ENGINE_CONNECT_H

#include <stdbool.h>

/* Send one byte with the snapshot page's descriptor. false: the peer is gone already. */
bool connect_send_page(int fd, int page_fd);

#endif
