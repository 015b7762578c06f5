/* SPDX-License-Identifier: MIT
 *
 * adopt.c - buffers change their communicator.
 */
#include <errno.h>

#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/regroup/regroup.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/track.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"

int buffers_adopt(struct member *from, struct member *to, uint32_t allocations, struct error *e)
{
    struct session *s = from->session;
    struct comm *c = to->comm;
    struct buffer *b;

    if (from == to || from->comm->dev.ops != c->dev.ops)
        return error_set(e, -EINVAL, "rank %d: comm: buffers of ranks on %s cannot go to one on %s", from->rank,
                         from->comm->dev.ops->kind, c->dev.ops->kind);
    c->allocations = allocations > c->allocations ? allocations : c->allocations;
    LIST_FOREACH(b, &s->buffers, link) {
        struct error why = {0};
        if (b->comm != from->comm->number || b->rank != from->rank)
            continue;
        s->worker->span->puts_buffer_freed(b); /* what names it in the old communicator ends with that */
        s->worker->track->buffer_freed(b);
        buffer_peers_drop(b);
        if (from->comm->nodes && buffer_takes_results(b))
            span(from->comm)->buffer_close(from->comm, b);
        b->comm = c->number;
        b->rank = to->rank;
        if (!c->nodes || !buffer_takes_results(b))
            continue;
        if (span(c)->buffer_open(to, b, &why)) {
            comm_abort(c, why.status, "rank %d: buffer: %s", to->rank, why.text);
            return error_set(e, why.status, "rank %d: buffer: %s", to->rank, why.text);
        }
        span(c)->result_made(c, b);
    }
    return 0;
}
