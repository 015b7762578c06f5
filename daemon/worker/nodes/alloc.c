/* SPDX-License-Identifier: MIT
 *
 * alloc.c - symmetric allocations of communicators over several nodes. Each is a turn (nodes.c), which ends when every rank's node has sent
 * its result (MEMORY): all ranks get their parts, or none does. FREE says that a rank has freed its part. RESULT announces a result buffer,
 * which only one rank has.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/worker/comm/bounce.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/nodes/puts.h"

/* A symmetric allocation. It holds a reference on each rank's buffer: a client may free its part as soon as its own node has told it (or
 * earlier, by guessing the handle), so its FREE may arrive here before another node's MEMORY. */
struct alloc_turn {
    int told; /* number of ranks whose result is known */
    struct alloc_part {
        struct buffer *buffer; /* of a remote rank: its bounce buffer */
        int fd;
        bool told;
    } parts[]; /* [nranks] */
};

/* The next allocation, made if there is none yet: a remote rank's MEMORY may come before the turn begins here. */
static struct alloc_turn *alloc_of(struct comm *c)
{
    struct alloc_turn *a = c->nodes->next_alloc;

    if (a)
        return a;
    a = calloc(1, sizeof(*a) + (size_t)c->nranks * sizeof(a->parts[0]));
    for (int r = 0; a && r < c->nranks; r++)
        a->parts[r].fd = -1;
    c->nodes->next_alloc = a;
    return a;
}

static bool has_bounce(const struct member *m, const struct buffer *bounce)
{
    const struct buffer *b;

    LIST_FOREACH(b, &m->bounces, link)
        if (b == bounce)
            return true;
    return false;
}

static void alloc_free(struct comm *c, bool keep)
{
    struct alloc_turn *a = c->nodes->next_alloc;

    for (int r = 0; a && r < c->nranks; r++) {
        struct buffer *b = a->parts[r].buffer;
        fd_close(&a->parts[r].fd);
        if (!b)
            continue;
        if (!keep && c->members[r].remote && has_bounce(&c->members[r], b))
            bounce_drop(b);
        else if (!keep && b->session)
            buffer_drop_handle(b);
        buffer_unref(b);
    }
    free(a);
    c->nodes->next_alloc = NULL;
    c->nodes->alloc = NULL;
    c->nodes->alloc_error.status = 0;
}

void nodes_alloc_drop(struct comm *c)
{
    alloc_free(c, false);
}

/* All results are known: all ranks get their parts, or none does. */
static void alloc_end(struct comm *c)
{
    struct alloc_turn *a = c->nodes->alloc;
    struct error e = c->nodes->alloc_error;

    for (int r = 0; !e.status && r < c->nranks; r++) {
        struct submission *sub = c->members[r].next;
        if (c->members[r].remote || !sub->session)
            continue;
        struct fcc_buffer_alloc_reply reply = {.reply.msg = {.type = FCC_MSG_BUFFER_ALLOC | FCC_REPLY, .id = sub->id},
                                               .buffer = a->parts[r].buffer->handle,
                                               .memory = a->parts[r].buffer->memory.kind,
                                               .map_bytes = a->parts[r].buffer->memory.bytes};
        session_reply(sub->session, &reply.reply, sizeof(reply), &a->parts[r].fd, 1);
        sub->session = NULL; /* told */
    }
    c->allocations += !e.status;
    for (int r = 0; !e.status && r < c->nranks; r++) {
        if (c->members[r].remote)
            a->parts[r].buffer->number = c->allocations;
        else if (buffer_publish(a->parts[r].buffer, c, a->parts[r].fd))
            a->parts[r].fd = -1;
    }
    alloc_free(c, !e.status);
    turn_end(c, &e);
}

void nodes_alloc(struct comm *c)
{
    struct comm_nodes *n = c->nodes;
    struct alloc_turn *a = alloc_of(c);

    if (!a) {
        comm_abort(c, -ENOMEM, "no memory for a symmetric allocation");
        return;
    }
    n->alloc = a;
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct peer_memory p = {.rank = r, .turn = n->turns};
        struct error e = {0};
        if (m->remote)
            continue;
        if (!m->session)
            (void)error_set(&e, -ECONNABORTED, "rank %d is gone", r);
        else if (!buffer_alloc(m, FCC_BUFFER_SYMMETRIC, m->next->alloc_bytes, &a->parts[r].buffer, &a->parts[r].fd, &e))
            a->parts[r].buffer->refs++;
        p.status = e.status;
        text_copy(p.text, sizeof(p.text), e.text);
        p.handle = a->parts[r].buffer ? a->parts[r].buffer->handle : 0;
        p.bytes = m->next->alloc_bytes;
        if (e.status && !n->alloc_error.status)
            n->alloc_error = e;
        a->told++;
        a->parts[r].told = true;
        nodes_send_all(c, &p.msg, PEER_MEMORY, sizeof(p));
    }
    if (a->told == c->nranks)
        alloc_end(c);
}

void nodes_alloc_received(struct peer *p, struct comm *c, const struct peer_memory *m)
{
    struct member *member = nodes_member_at(c, p, m->rank);
    struct alloc_turn *a = alloc_of(c);
    struct error e = {0};

    if (!member || m->turn != c->nodes->turns || m->status > 0 || (a && a->parts[m->rank].told)) {
        peer_break(p, -EPROTO, "memory of rank %d in turn %llu, status %d: expected is turn %llu, once", m->rank,
                   (unsigned long long)m->turn, m->status, (unsigned long long)c->nodes->turns);
        return;
    }
    if (!a || (!m->status && bounce_add(member, m->handle, m->bytes, &a->parts[m->rank].buffer, &e))) {
        comm_abort(c, -ENOMEM, "%s", a ? e.text : "no memory for a symmetric allocation");
        comm_release(c);
        return;
    }
    if (!m->status)
        a->parts[m->rank].buffer->refs++;
    else if (!c->nodes->alloc_error.status)
        (void)error_set(&c->nodes->alloc_error, m->status, "%s", m->text);
    a->told++;
    a->parts[m->rank].told = true;
    if (c->nodes->alloc && a->told == c->nranks) {
        alloc_end(c);
        comm_advance(c);
        comm_release(c);
    }
}

void nodes_result_send(const struct comm *c, const struct buffer *b)
{
    struct peer_result m = {.rank = b->rank, .handle = b->handle, .bytes = b->bytes};

    if (c->nodes->formed)
        nodes_send_all(c, &m.msg, PEER_RESULT, sizeof(m));
}

void nodes_result_received(struct peer *p, struct comm *c, const struct peer_result *m)
{
    struct member *member = nodes_member_at(c, p, m->rank);
    struct buffer *b;
    struct error e = {0};

    if (!member || m->bytes < 1 || m->bytes > BUFFER_BYTES_MAX || bounce_find(member, m->handle)) {
        peer_break(p, -EPROTO, "a result buffer %u of %llu bytes of rank %d, which is not there, or has it already", m->handle,
                   (unsigned long long)m->bytes, m->rank);
        return;
    }
    if (bounce_add(member, m->handle, m->bytes, &b, &e)) {
        comm_abort(c, -ENOMEM, "%s", e.text);
        comm_release(c);
    }
}

void nodes_buffer_freed(const struct comm *c, int rank, uint32_t handle)
{
    struct peer_free m = {.rank = rank, .handle = handle};

    if (c->nodes->formed)
        nodes_send_all(c, &m.msg, PEER_FREE, sizeof(m));
}

void nodes_free_received(struct peer *p, struct comm *c, const struct peer_free *m)
{
    struct member *member = nodes_member_at(c, p, m->rank);
    struct buffer *b = member ? bounce_find(member, m->handle) : NULL;

    if (member)
        puts_target_freed(c, m->rank, m->handle);
    if (b)
        bounce_drop(b);
}
