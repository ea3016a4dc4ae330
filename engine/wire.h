/* Frames on the socket between a client and an engine: a fixed head, then JSON or text, then a blob. Both ends are the same machine and the same
 * build protocol (checked in the handshake), so the head is a struct in native byte order. */
#ifndef RANKSCOPE_ENGINE_WIRE_H
#define RANKSCOPE_ENGINE_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC 0x72736301u
#define WIRE_MAX_TEXT (256u << 20)
#define WIRE_MAX_BLOB (1u << 30)

enum wire_type { WIRE_REQUEST = 100 }; /* below: enum rs_event_type */

struct wire_head {
    uint32_t magic;
    uint16_t type;
    int16_t status;     /* enum rs_result */
    uint32_t id;
    uint32_t text_len;  /* request: method, NUL, JSON; token: text; else JSON */
    uint32_t blob_len;
    int32_t token;
    uint32_t flags;
    uint32_t pad;
    uint64_t time_us;
};

_Static_assert(sizeof(struct wire_head) == 40, "frame heads have no holes");

#endif
