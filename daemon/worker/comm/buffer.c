/* SPDX-License-Identifier: MIT
 *
 * buffer.c - memory that clients use. The worker's device allocates it and the client imports it, so memory that an operator uses outlives a
 * client that dies.
 */
#include "daemon/worker/comm/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/comm/bounce.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/track.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"

int buffer_bytes_check(uint64_t bytes, struct error *e)
{
    if (bytes < 1 || bytes > BUFFER_BYTES_MAX)
        return error_set(e, -EINVAL, "bytes: %llu: allowed are 1 to %llu", (unsigned long long)bytes, BUFFER_BYTES_MAX);
    return 0;
}

int buffer_alloc(struct member *m, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd, struct error *e)
{
    struct buffer *b;

    if (buffer_bytes_check(bytes, e))
        return e->status;
    b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(e, -ENOMEM, "buffer: out of memory");
    *b = (struct buffer){.device = m->dev->device,
                         .refs = 1,
                         .fd = -1,
                         .session = m->session,
                         .kind = kind,
                         .comm = m->comm->number,
                         .rank = m->rank,
                         .handle = ++m->session->last_handle,
                         .bytes = bytes};
    struct error why = {0};
    if (device_memory_alloc(m->dev->device, bytes, &b->memory, fd, &why)) {
        free(b);
        return error_set(e, why.status, "buffer: %s", why.text);
    }
    if (buffer_takes_results(b) && m->comm->nodes && span(m->comm)->buffer_open(m, b, &why)) {
        device_memory_free(m->dev->device, &b->memory);
        (void)close(*fd);
        free(b);
        return error_set(e, why.status, "buffer: %s", why.text);
    }
    LIST_INSERT_HEAD(&m->session->buffers, b, link);
    *out = b;
    return 0;
}

int buffer_alloc_result(struct member *m, uint64_t bytes, struct buffer **out, int *fd, struct error *e)
{
    int status = buffer_alloc(m, FCC_BUFFER_RESULT, bytes, out, fd, e);

    if (status)
        return status;
    if (m->comm->here > 1 && ((*out)->fd = fcntl(*fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        status = error_set(e, -errno, "buffer: no descriptor for the other ranks: %s", strerror(errno));
        (void)close(*fd);
        buffer_drop_handle(*out);
        return status;
    }
    if (m->comm->nodes)
        span(m->comm)->result_made(m->comm, *out);
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

bool buffer_publish(struct buffer *b, const struct comm *c, int fd)
{
    b->number = c->allocations;
    if (c->here > 1)
        b->fd = fd;
    return c->here > 1;
}

/* The member that allocated the buffer. NULL: it has left. */
static const struct member *member_of(const struct buffer *b)
{
    const struct member *m;

    LIST_FOREACH(m, &b->session->members, link)
        if (m->comm->number == b->comm)
            return m;
    return NULL;
}

struct buffer *buffer_part(const struct member *m, uint32_t number)
{
    struct buffer *b;

    LIST_FOREACH(b, &m->session->buffers, link)
        if (b->comm == m->comm->number && b->rank == m->rank && b->number == number)
            return b;
    return NULL;
}

int buffer_peer(struct buffer *b, int rank, struct buffer **out, struct error *e)
{
    const struct member *mine = member_of(b), *other;
    struct buffer *part;

    if (!mine)
        return error_set(e, -ENOENT, "buffer %u: its communicator has ended", b->handle);
    if (!b->number)
        return error_set(e, -EINVAL, "rank %d: buffer %u: it is not symmetric: other ranks have no part of it", b->rank,
                         b->handle);
    if (rank < 0 || rank >= mine->comm->nranks)
        return error_set(e, -EINVAL, "rank: %d: allowed are 0 to %d", rank, mine->comm->nranks - 1);
    other = &mine->comm->members[rank];
    if (other->remote)
        return error_set(e, -EXDEV, "rank %d: it is on another node%s%s: its memory cannot be mapped here, only put into", rank,
                         *span(mine->comm)->address(other) ? ", " : "", span(mine->comm)->address(other));
    part = other->state == MEMBER_JOINED ? buffer_part(other, b->number) : NULL;
    if (!part || part->fd < 0)
        return error_set(e, -ENOENT, "rank %d: it has freed its part of the buffer, or has left the communicator", rank);
    if (!b->peers) {
        b->peers = calloc(1, sizeof(*b->peers) + (size_t)mine->comm->nranks * sizeof(void *));
        if (!b->peers)
            return error_set(e, -ENOMEM, "buffer: out of memory");
        b->peers->nranks = mine->comm->nranks;
    }
    if (!b->peers->of[rank]) {
        b->peers->of[rank] = part;
        part->refs++;
    }
    *out = part;
    return 0;
}

/* The buffer's communicator, if it is over several nodes and still exists. Otherwise the buffer has no region. */
static struct comm *comm_over_nodes(const struct buffer *b)
{
    struct comm *c = b->device && buffer_takes_results(b) ? comm_find_own(b->device->worker, b->comm) : NULL;

    return c && c->nodes ? c : NULL;
}

void buffer_unref(struct buffer *b)
{
    if (--b->refs)
        return;
    fd_close(&b->fd);
    struct comm *c = comm_over_nodes(b);
    if (c)
        span(c)->buffer_close(c, b);
    if (b->device)
        device_memory_free(b->device, &b->memory);
    else
        bounce_free(&b->memory);
    free(b);
}

void buffer_peers_drop(struct buffer *b)
{
    for (int r = 0; b->peers && r < b->peers->nranks; r++)
        if (b->peers->of[r])
            buffer_unref(b->peers->of[r]);
    free(b->peers);
    b->peers = NULL;
}

void buffer_drop_handle(struct buffer *b)
{
    const struct comm *c = comm_over_nodes(b);

    if (c && c->state != COMM_ABORTED)
        span(c)->buffer_freed(c, b);
    b->session->worker->span->puts_buffer_freed(b);
    b->session->worker->track->buffer_freed(b);
    LIST_REMOVE(b, link);
    b->session = NULL;
    buffer_peers_drop(b);
    buffer_unref(b);
}

/* ---- of remote ranks ---- */

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
