/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/bounce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/host_memory.h"

int bounce_make(struct comm *c, uint64_t bytes, struct device_memory *out, struct error *e)
{
    struct device_memory m = {.bytes = bytes, .kind = FCC_MEMORY_HOST};

    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return gpus_host_alloc(c->worker, bytes, out, e);
    m.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.data == MAP_FAILED)
        return error_set(e, -ENOMEM, "%llu bytes for a bounce buffer: %s", (unsigned long long)bytes, strerror(errno));
    *out = m;
    return 0;
}

void bounce_free(struct device_memory *m)
{
    if (m->gpus)
        gpus_host_free(m);
    else if (m->data)
        (void)munmap(m->data, m->bytes);
    *m = (struct device_memory){.data = NULL};
}

int bounce_add(struct member *m, uint32_t handle, uint64_t bytes, struct buffer **out, struct error *e)
{
    struct buffer *b = calloc(1, sizeof(*b));
    struct error why = {.text = "out of memory"};

    if (!b || bounce_make(m->comm, bytes, &b->memory, &why)) {
        free(b);
        return error_set(e, -ENOMEM, "rank %d: no memory for the bounce buffer of its buffer of %llu bytes: %s", m->rank,
                         (unsigned long long)bytes, why.text);
    }
    b->refs = 1;
    b->fd = -1;
    b->kind = FCC_BUFFER_SYMMETRIC;
    b->comm = m->comm->number;
    b->rank = m->rank;
    b->handle = handle;
    b->bytes = bytes;
    LIST_INSERT_HEAD(&m->bounces, b, link);
    *out = b;
    return 0;
}

struct buffer *bounce_find(const struct member *m, uint32_t handle)
{
    struct buffer *b;

    LIST_FOREACH(b, &m->bounces, link)
        if (b->handle == handle)
            return b;
    return NULL;
}

void bounce_drop(struct buffer *b)
{
    LIST_REMOVE(b, link);
    buffer_unref(b);
}
