/* SPDX-License-Identifier: MIT
 *
 * messages.c - handles clients' messages, except operators (submission.c).
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/puts.h"
#include "daemon/worker/session/meeting.h"
#include "daemon/worker/session/session.h"
#include "daemon/worker/track/track.h"
#include "proto/session.h"

/* ---- requests: one handler for every row of FCC_MESSAGES ----
 *
 * A handler returns 0 when the reply is sent or will be, and otherwise the error, which session_handle() replies. */

#define ANSWER_TO(m)                                                                                                           \
    {                                                                                                                          \
        .type = (uint16_t)((m)->type | FCC_REPLY), .id = (m)->id                                                               \
    }

static int reply_done(struct session *s, const struct fcc_msg *m)
{
    session_reply_status(s, m, 0, "");
    return 0;
}

static int handle_hello(struct session *s, const struct fcc_hello *m, struct error *e)
{
    (void)s, (void)m;
    return error_set(e, -EPROTO, "hello: this connection has said it already");
}

static int handle_unique_id(struct session *s, const struct fcc_msg *m, struct error *e)
{
    struct fcc_unique_id_reply r = {.reply.msg = ANSWER_TO(m)};
    struct fcc_unique_id_layout id = {.zero = {0}};

    if (getrandom(id.secret, sizeof(id.secret), 0) != (ssize_t)sizeof(id.secret))
        return error_set(e, -EIO, "unique id: no random numbers");
    text_copy(id.root, sizeof(id.root), s->worker->node);
    memcpy(&r.unique_id, &id, sizeof(id));
    session_reply(s, &r.reply, sizeof(r), NULL, 0);
    return 0;
}

static int handle_meeting(struct session *s, const struct fcc_meeting *m, struct error *e)
{
    struct fcc_unique_id_reply r = {.reply.msg = ANSWER_TO(&m->msg)};
    int status = meeting_id(s->worker->meeting_key, s->worker->node, m, &r.unique_id, e);

    if (!status)
        session_reply(s, &r.reply, sizeof(r), NULL, 0);
    return status;
}

static int handle_comm_init(struct session *s, const struct fcc_comm_init_msg *m, struct error *e)
{
    if (m->msg.length != sizeof(*m) && !m->refused)
        return error_set(e, -EPROTO, "message comm_init: %u bytes: expected %zu", m->msg.length, sizeof(*m));
    comm_join(s, m);
    return 0;
}

/* The member with that handle; its communicator may still form. NULL: there is none. */
static struct member *member_named(struct session *s, uint32_t handle, struct error *e)
{
    struct member *member = member_find(s, handle);

    if (!member)
        (void)error_set(e, -ENOENT, "comm: %u: no such communicator in this session", handle);
    return member;
}

/* As member_named(), but the communicator must have formed. Before that a rank can only destroy it. */
static struct member *member_of(struct session *s, uint32_t handle, struct error *e)
{
    struct member *member = member_named(s, handle, e);

    return member && !member_may_use(member, e) ? member : NULL;
}

static int handle_comm_destroy(struct session *s, const struct fcc_comm_msg *m, struct error *e)
{
    struct member *member = member_named(s, m->comm, e);

    if (!member)
        return e->status;
    comm_leave(member, NULL);
    return reply_done(s, &m->msg);
}

static int handle_comm_abort(struct session *s, const struct fcc_comm_msg *m, struct error *e)
{
    struct member *member = member_named(s, m->comm, e);
    int length = (int)strnlen(m->reason, sizeof(m->reason) - 8);

    if (!member)
        return e->status;
    member->comm->asked = true;
    comm_abort(member->comm, -ECONNABORTED, "rank %d aborted the communicator: %.*s", member->rank, length ? length : 15,
               length ? m->reason : "no reason given");
    comm_release(member->comm); /* a communicator that was still forming has no ranks any more */
    return reply_done(s, &m->msg);
}

/* Replies with the handle of `b` and the memory of `part`: of `b` itself, or of another rank's part of it. */
static int memory_reply(struct session *s, const struct fcc_msg *m, const struct buffer *b, const struct buffer *part, int fd)
{
    struct fcc_buffer_alloc_reply r = {
        .reply.msg = ANSWER_TO(m), .buffer = b->handle, .memory = part->memory.kind, .map_bytes = part->memory.bytes};
    session_reply(s, &r.reply, sizeof(r), &fd, 1);
    return 0;
}

/* A request of all ranks, in the communicator's order. */
static int alloc_symmetric(struct session *s, struct member *member, const struct fcc_buffer_alloc_msg *m, struct error *e)
{
    struct submission *sub = submission_new(s, SUBMISSION_ALLOC, m->msg.id, 0);

    if (!sub) {
        session_reply_status(s, &m->msg, -ENOMEM, "buffer: out of memory");
        order_lose(member);
        return 0;
    }
    sub->alloc_bytes = m->bytes;
    if (buffer_bytes_check(m->bytes, e)) { /* all ranks get this error, and not that their requests differ */
        (void)error_set(&sub->error, e->status, "rank %d: %s: %s", member->rank, submission_name(sub), e->text);
        error_clear(e);
    }
    comm_submit(member, sub, NULL);
    return 0;
}

static int handle_buffer_alloc(struct session *s, const struct fcc_buffer_alloc_msg *m, struct error *e)
{
    struct member *member = member_of(s, m->comm, e);
    struct buffer *b;
    int fd, status;

    if (!member)
        return e->status;
    if (m->kind == FCC_BUFFER_SYMMETRIC)
        return alloc_symmetric(s, member, m, e);
    member->alone = (uint64_t)m->kind + 1;
    if (m->kind != FCC_BUFFER_LOCAL && m->kind != FCC_BUFFER_RESULT)
        return error_set(e, -EINVAL, "rank %d: fcc_buffer_alloc: kind: %u: allowed are %d to %d", member->rank, m->kind,
                         FCC_BUFFER_LOCAL, FCC_BUFFER_RESULT);
    if (member->comm->error.status) /* aborted, or a rank has died */
        return error_set(e, member->comm->error.status, "%s", member->comm->error.text);
    status = m->kind == FCC_BUFFER_RESULT ? buffer_alloc_result(member, m->bytes, &b, &fd, e)
                                          : buffer_alloc(member, FCC_BUFFER_LOCAL, m->bytes, &b, &fd, e);
    if (status)
        return status;
    (void)memory_reply(s, &m->msg, b, b, fd);
    (void)close(fd);
    return 0;
}

static int handle_stream_words(struct session *s, const struct fcc_stream_words_msg *m, struct error *e)
{
    struct fcc_stream_words_reply r = {.reply.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);
    struct device_memory memory;
    int fd = -1;

    if (!member || gpus_stream_words(s, &member->comm->dev, m->gpu, &memory, &fd, e))
        return e->status;
    r.memory = memory.kind;
    r.map_bytes = memory.bytes;
    session_reply(s, &r.reply, sizeof(r), &fd, 1);
    return 0;
}

static struct buffer *buffer_named(struct session *s, uint32_t handle, struct error *e)
{
    struct buffer *b = buffer_find(s, handle);

    if (!b)
        (void)error_set(e, -ENOENT, "buffer: %u: no such buffer in this session", handle);
    return b;
}

static int handle_buffer_free(struct session *s, const struct fcc_buffer_free_msg *m, struct error *e)
{
    struct buffer *b = buffer_named(s, m->buffer, e);

    if (!b)
        return e->status;
    prepared_buffer_freed(s, b);
    buffer_drop_handle(b);
    return reply_done(s, &m->msg);
}

static int handle_buffer_peer(struct session *s, const struct fcc_buffer_peer_msg *m, struct error *e)
{
    struct buffer *b = buffer_named(s, m->buffer, e), *part;

    if (!b || buffer_peer(b, m->rank, &part, e))
        return e->status;
    return memory_reply(s, &m->msg, b, part, part->fd);
}

static int handle_triggers(struct session *s, const struct fcc_triggers_msg *m, struct error *e)
{
    struct fcc_reply r = {.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);
    int fd;

    if (!member || puts_open(member, &fd, e))
        return e->status;
    session_reply(s, &r, sizeof(r), &fd, 1);
    return 0;
}

static int handle_put_register(struct session *s, const struct fcc_put_msg *m, struct error *e)
{
    struct fcc_put_reply r = {.reply.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);

    if (!member || puts_register(member, m, &r.number, e))
        return e->status;
    session_reply(s, &r.reply, sizeof(r), NULL, 0);
    return 0;
}

static int handle_prepared(struct session *s, const struct fcc_prepared_msg *m, struct error *e)
{
    struct fcc_prepared_reply r = {.reply.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);
    int fd;

    if (!member || prepared_give(member, m, &r, &fd, e))
        return e->status;
    session_reply(s, &r.reply, sizeof(r), &fd, 1);
    return 0;
}

static int handle_prepared_free(struct session *s, const struct fcc_prepared_msg *m, struct error *e)
{
    struct member *member = member_of(s, m->comm, e);

    if (!member || prepared_drop(member, m->number, e))
        return e->status;
    return reply_done(s, &m->msg);
}

static int handle_run_refused(struct session *s, const struct fcc_run_refused_msg *m, struct error *e)
{
    struct member *member = member_of(s, m->comm, e);

    if (!member || prepared_refuse(member, m, e))
        return e->status;
    return reply_done(s, &m->msg);
}

static int handle_tracker(struct session *s, const struct fcc_tracker_msg *m, struct error *e)
{
    struct fcc_reply r = {.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);
    int fds[2];

    if (!member)
        return e->status;
    if (m->tells) {
        const struct error *why = &member->comm->error;
        return why->status ? error_set(e, why->status, "%s", why->text)
                           : error_set(e, -EAGAIN, "rank %d: the communicator has not ended", member->rank);
    }
    if (track_open(member, fds, e))
        return e->status;
    session_reply(s, &r, sizeof(r), fds, 2);
    return 0;
}

static int handle_tracker_free(struct session *s, const struct fcc_tracker_msg *m, struct error *e)
{
    struct member *member = member_of(s, m->comm, e);

    if (!member || track_free(member, e))
        return e->status;
    return reply_done(s, &m->msg);
}

static int handle_rule(struct session *s, const struct fcc_rule_msg *m, struct error *e)
{
    struct fcc_rule_reply r = {.reply.msg = ANSWER_TO(&m->msg)};
    struct member *member = member_of(s, m->comm, e);

    if (!member || track_rule(member, m, &r.number, e))
        return e->status;
    session_reply(s, &r.reply, sizeof(r), NULL, 0);
    return 0;
}

static int handle_submit(struct session *s, const struct fcc_submit *m, struct error *e)
{
    (void)e;
    if (m->slot != FCC_NO_SLOT && m->slot >= FCC_SLOTS)
        session_break(s, "it names a slot that there is not");
    else
        submission_accept(s, m, m->msg.length);
    return 0;
}

static int handle_query(struct session *s, const struct fcc_query *m, struct error *e)
{
    (void)e;
    query_handle(s, m);
    return 0;
}

struct handler {
    const char *name;
    size_t bytes;
    bool longer; /* the fixed part may be followed by more */
    int (*handle)(struct session *s, const void *m, struct error *e);
};

/* The handlers take their own message types; these adapters are made from the list, so a missing handler fails the build. */
#define X(NAME, name, bytes, fds)                                                                                              \
    static int adapt_##name(struct session *s, const void *m, struct error *e)                                                 \
    {                                                                                                                          \
        return handle_##name(s, m, e);                                                                                         \
    }
FCC_MESSAGES(X)
#undef X

static const struct handler handlers[FCC_MSG_TYPES] = {
#define X(NAME, name_, bytes_, fds)                                                                                            \
    [FCC_MSG_##NAME] = {.name = #name_,                                                                                        \
                        .bytes = (bytes_),                                                                                     \
                        .longer = FCC_MSG_##NAME == FCC_MSG_SUBMIT || FCC_MSG_##NAME == FCC_MSG_COMM_INIT,                     \
                        .handle = adapt_##name_},
    FCC_MESSAGES(X)
#undef X
};

static bool role_may(uint32_t role, uint16_t type)
{
    return role == FCC_ROLE_CONTROL ? type == FCC_MSG_QUERY : type != FCC_MSG_QUERY;
}

void session_handle(struct session *s, const struct fcc_msg *m, size_t length, int nfds)
{
    const struct handler *h = m->type > FCC_MSG_NONE && m->type < FCC_MSG_TYPES ? &handlers[m->type] : NULL;
    struct error e = {0};

    if (!h)
        (void)error_set(&e, -EPROTO, "message type %u: allowed are 1 to %d", m->type, FCC_MSG_TYPES - 1);
    else if (length < h->bytes || (length > h->bytes && !h->longer))
        (void)error_set(&e, -EPROTO, "message %s: %zu bytes: expected %s%zu", h->name, length, h->longer ? "at least " : "",
                        h->bytes);
    else if (nfds)
        (void)error_set(&e, -EPROTO, "message %s: %d file descriptors: expected none", h->name, nfds);
    else if (!role_may(s->role, m->type))
        (void)error_set(&e, -EPERM, "message %s: not for this connection's role %u", h->name, s->role);
    else
        (void)h->handle(s, m, &e);
    if (e.status)
        session_reply_status(s, m, e.status, e.text);
}
