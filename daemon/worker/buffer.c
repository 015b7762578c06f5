/* SPDX-License-Identifier: MIT
 *
 * buffer.c - memory that clients use. The worker's device makes it and maps it, the client imports it: a client that dies never
 * takes memory with it that an operator still uses.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "nodes.h"

#define BUFFER_BYTES_MAX (1ull << 46)

int buffer_alloc(struct member *m, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd, struct error *e)
{
    struct buffer *b;

    if (bytes < 1 || bytes > BUFFER_BYTES_MAX)
        return error_set(e, -EINVAL, "buffer: %llu bytes: allowed are 1 to %llu", (unsigned long long)bytes, BUFFER_BYTES_MAX);
    b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(e, -ENOMEM, "buffer: out of memory");
    *b = (struct buffer){.device = m->device,
                         .refs = 1,
                         .session = m->session,
                         .kind = kind,
                         .comm = m->comm,
                         .rank = m->rank,
                         .handle = ++m->session->last_handle,
                         .bytes = bytes};
    struct error why = {0};
    if (device_memory_alloc(m->device, bytes, &b->memory, fd, &why)) {
        free(b);
        return error_set(e, why.status, "buffer: %s", why.text);
    }
    if (kind == FCC_BUFFER_SYMMETRIC && m->comm->nodes) {
        if (nodes_region_add(m->comm, m->rank, b->handle, b->memory.data, b->bytes, &why)) {
            device_memory_free(m->device, &b->memory);
            (void)close(*fd);
            free(b);
            return error_set(e, why.status, "buffer: %s", why.text);
        }
        b->nodes_number = m->comm->nodes->number;
    }
    LIST_INSERT_HEAD(&m->session->buffers, b, link);
    *out = b;
    return 0;
}

struct buffer *buffer_find(const struct session *s, uint32_t handle)
{
    struct buffer *b;

    LIST_FOREACH(b, &s->buffers, link)
        if (b->handle == handle)
            return b;
    return NULL;
}

void buffer_unref(struct buffer *b)
{
    if (--b->refs)
        return;
    if (b->device && b->nodes_number)
        nodes_region_remove(b->device->worker, b->nodes_number, b->rank, b->handle);
    if (b->device)
        device_memory_free(b->device, &b->memory);
    else
        shadow_free(&b->memory);
    free(b);
}

void buffer_drop_handle(struct buffer *b)
{
    const struct comm *c = b->device && b->nodes_number ? comm_find_number(b->device->worker, b->nodes_number) : NULL;

    if (c)
        nodes_buffer_freed(c, b->rank, b->handle);
    LIST_REMOVE(b, link);
    b->session = NULL;
    buffer_unref(b);
}
