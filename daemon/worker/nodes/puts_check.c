/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/nodes/puts.h"

/* The buffer of this rank that a put names. NULL with the reason. */
static struct buffer *own_find(const struct member *m, uint32_t handle, const char *name, struct error *e)
{
    struct buffer *b = buffer_find(m->session, handle);

    if (b && b->comm == m->comm->number && b->rank == m->rank)
        return b;
    (void)error_set(e, -ENOENT, "rank %d: put: %s: buffer %u: no such buffer of this rank", m->rank, name, handle);
    return NULL;
}

/* Another rank's part of the allocation of one of this rank's buffers. */
static int target_find(const struct member *m, const struct member *other, const struct buffer *mine, const char *name,
                       struct net_place *out, struct error *e)
{
    const struct buffer *b;

    if (!mine->number)
        return error_set(e, -EINVAL, "rank %d: put: %s: it is not symmetric: other ranks have no part of it", m->rank, name);
    LIST_FOREACH(b, &other->bounces, link)
        if (b->number == mine->number)
            break;
    if (!b)
        return error_set(e, -ENOENT, "rank %d: put: %s: rank %d has freed its part of the buffer", m->rank, name, other->rank);
    *out = (struct net_place){.comm = nodes_memory_there(other), .rank = (uint32_t)other->rank, .region = b->handle};
    return 0;
}

static int rows_check(const struct member *m, const struct fcc_put_msg *msg, uint64_t offset, const struct buffer *b,
                      const char *name, struct error *e)
{
    struct net_area area = {.row_bytes = msg->row_bytes, .stride = msg->stride, .rows = msg->rows};
    uint64_t length;

    if (!net_area_check(&area, offset, b->bytes, &length))
        return 0;
    return error_set(
        e, -EINVAL,
        "rank %d: put: %u rows of %llu bytes, %llu apart, from offset %llu: they do not lie in %s, which has %llu bytes, or "
        "within each other",
        m->rank, msg->rows, (unsigned long long)msg->row_bytes, (unsigned long long)msg->stride, (unsigned long long)offset,
        name, (unsigned long long)b->bytes);
}

static int put_rows(const struct member *m, const struct member *other, const struct fcc_put_msg *msg, struct put *put,
                    struct error *e)
{
    struct buffer *from = own_find(m, msg->from, "from", e);
    const struct buffer *to = from ? own_find(m, msg->to, "to", e) : NULL;

    if (!to)
        return e->status;
    int status = rows_check(m, msg, msg->from_offset, from, "from", e);
    if (!status)
        status = rows_check(m, msg, msg->to_offset, to, "to", e);
    if (!status)
        status = target_find(m, other, to, "to", &put->send.to, e);
    if (status)
        return status;
    put->send.to.offset = msg->to_offset;
    put->send.from = from->memory.data + msg->from_offset;
    put->send.area = (struct net_area){.row_bytes = msg->row_bytes, .stride = msg->stride, .rows = msg->rows};
    put->from = from;
    put->to = to;
    return 0;
}

static int put_signal(const struct member *m, const struct member *other, const struct fcc_put_msg *msg, struct put *put,
                      struct error *e)
{
    const struct buffer *b = own_find(m, msg->signals, "signals", e);

    if (!b)
        return e->status;
    if (msg->signal_offset % 8 || b->bytes < 8 || msg->signal_offset > b->bytes - 8)
        return error_set(e, -EINVAL, "rank %d: put: signal_offset: %llu: allowed are multiples of 8 up to %lld", m->rank,
                         (unsigned long long)msg->signal_offset, (long long)b->bytes - 8);
    int status = target_find(m, other, b, "signals", &put->send.signal, e);
    if (status)
        return status;
    put->send.signal.offset = msg->signal_offset;
    put->send.has_signal = true;
    put->signal = b;
    return 0;
}

int put_check(const struct member *m, const struct fcc_put_msg *msg, struct put *put, struct error *e)
{
    const struct member *other;

    if (msg->rank < 0 || msg->rank >= m->comm->nranks)
        return error_set(e, -EINVAL, "rank %d: put: rank: %d: allowed are 0 to %d", m->rank, msg->rank, m->comm->nranks - 1);
    other = &m->comm->members[msg->rank];
    if (!other->remote)
        return error_set(e, -EINVAL, "rank %d: put: rank: %d: it is on this node: fcc_buffer_peer() is the way there", m->rank,
                         msg->rank);
    if (!other->peer || other->state != MEMBER_JOINED)
        return error_set(e, -ENOENT, "rank %d: put: rank %d has left the communicator", m->rank, msg->rank);
    if (!msg->rows && !msg->signals)
        return error_set(e, -EINVAL, "rank %d: put: neither rows nor a signal", m->rank);
    put->send.node = other->peer->index;
    put->send.rail = nodes_rail(m, other->peer);
    int status = msg->rows ? put_rows(m, other, msg, put, e) : 0;
    return !status && msg->signals ? put_signal(m, other, msg, put, e) : status;
}
