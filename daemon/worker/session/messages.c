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

/* ---- requests: one handler for every row of FCC_MESSAGES ---- */

static void handle_hello(struct session *s, const struct fcc_hello *m)
{
    session_reply_status(s, &m->msg, -EPROTO, "hello: this connection has said it already");
}

static void handle_unique_id(struct session *s, const struct fcc_msg *m)
{
    struct fcc_unique_id_reply r = {.reply.msg = {.type = (uint16_t)(m->type | FCC_REPLY), .id = m->id}};
    struct fcc_unique_id_layout id = {.zero = {0}};

    if (getrandom(id.secret, sizeof(id.secret), 0) != (ssize_t)sizeof(id.secret)) {
        session_reply_status(s, m, -EIO, "unique id: no random numbers");
        return;
    }
    text_copy(id.root, sizeof(id.root), s->worker->node);
    memcpy(&r.unique_id, &id, sizeof(id));
    session_reply(s, &r.reply, sizeof(r), NULL, 0);
}

static void handle_meeting(struct session *s, const struct fcc_meeting *m)
{
    struct fcc_unique_id_reply r = {.reply.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id}};
    struct error e;

    if (meeting_id(s->worker->meeting_key, s->worker->node, m, &r.unique_id, &e))
        session_reply_status(s, &m->msg, e.status, e.text);
    else
        session_reply(s, &r.reply, sizeof(r), NULL, 0);
}

static void handle_comm_init(struct session *s, const struct fcc_comm_init_msg *m)
{
    struct error e;

    if (m->msg.length == sizeof(*m) || m->refused) {
        comm_join(s, m);
        return;
    }
    (void)error_set(&e, -EPROTO, "message comm_init: %u bytes: expected %zu", m->msg.length, sizeof(*m));
    session_reply_status(s, &m->msg, e.status, e.text);
}

/* The member that a message names; its communicator may still form. NULL after an error reply. */
static struct member *member_named(struct session *s, const struct fcc_msg *m, uint32_t handle)
{
    struct member *member = member_find(s, handle);
    struct error e;

    if (!member) {
        (void)error_set(&e, -ENOENT, "comm: %u: no such communicator in this session", handle);
        session_reply_status(s, m, e.status, e.text);
    }
    return member;
}

/* The same, but the communicator must have formed. Before that a rank can only destroy it. */
static struct member *member_of(struct session *s, const struct fcc_msg *m, uint32_t handle)
{
    struct member *member = member_named(s, m, handle);
    struct error e;

    if (!member || !member_may_use(member, &e))
        return member;
    session_reply_status(s, m, e.status, e.text);
    return NULL;
}

static void handle_comm_destroy(struct session *s, const struct fcc_comm_msg *m)
{
    struct member *member = member_named(s, &m->msg, m->comm);

    if (member) {
        comm_leave(member, NULL);
        session_reply_status(s, &m->msg, 0, "");
    }
}

static void handle_comm_abort(struct session *s, const struct fcc_comm_msg *m)
{
    struct member *member = member_named(s, &m->msg, m->comm);

    if (member) {
        int length = (int)strnlen(m->reason, sizeof(m->reason) - 8);
        comm_abort(member->comm, -ECONNABORTED, "rank %d aborted the communicator: %.*s", member->rank, length ? length : 15,
                   length ? m->reason : "no reason given");
        comm_release(member->comm); /* a communicator that was still forming has no ranks any more */
        session_reply_status(s, &m->msg, 0, "");
    }
}

static void alloc_reply(struct session *s, const struct fcc_msg *request, const struct buffer *b, int fd)
{
    struct fcc_buffer_alloc_reply r = {.reply.msg = {.type = (uint16_t)(request->type | FCC_REPLY), .id = request->id},
                                       .buffer = b->handle,
                                       .memory = b->memory.kind,
                                       .map_bytes = b->memory.bytes};
    session_reply(s, &r.reply, sizeof(r), &fd, 1);
    (void)close(fd);
}

static void handle_buffer_alloc(struct session *s, const struct fcc_buffer_alloc_msg *m)
{
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};
    struct buffer *b;
    int fd;

    if (!member)
        return;
    if (m->kind == FCC_BUFFER_SYMMETRIC) { /* a request of all ranks, in the communicator's order */
        struct submission *sub = submission_new(s, SUBMISSION_ALLOC, m->msg.id, 0);
        if (!sub) {
            session_reply_status(s, &m->msg, -ENOMEM, "buffer: out of memory");
            order_lose(member);
            return;
        }
        sub->alloc_bytes = m->bytes;
        if (buffer_bytes_check(m->bytes, &e)) /* all ranks get this error, and not that their requests differ */
            (void)error_set(&sub->error, e.status, "rank %d: %s: %s", member->rank, submission_name(sub), e.text);
        comm_submit(member, sub, NULL);
        return;
    }
    member->alone = (uint64_t)m->kind + 1;
    if (m->kind != FCC_BUFFER_LOCAL && m->kind != FCC_BUFFER_RESULT) {
        (void)error_set(&e, -EINVAL, "rank %d: fcc_buffer_alloc: kind: %u: allowed are %d to %d", member->rank, m->kind,
                        FCC_BUFFER_LOCAL, FCC_BUFFER_RESULT);
        session_reply_status(s, &m->msg, e.status, e.text);
    } else if (member->comm->error.status) { /* aborted, or a rank has died */
        session_reply_status(s, &m->msg, member->comm->error.status, member->comm->error.text);
    } else if (m->kind == FCC_BUFFER_RESULT ? buffer_alloc_result(member, m->bytes, &b, &fd, &e)
                                            : buffer_alloc(member, FCC_BUFFER_LOCAL, m->bytes, &b, &fd, &e)) {
        session_reply_status(s, &m->msg, e.status, e.text);
    } else {
        alloc_reply(s, &m->msg, b, fd);
    }
}

static void handle_stream_words(struct session *s, const struct fcc_stream_words_msg *m)
{
    struct fcc_stream_words_reply r = {.reply.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id}};
    struct member *member = member_of(s, &m->msg, m->comm);
    struct device_memory memory;
    struct error e = {0};
    int fd = -1;

    if (!member)
        return;
    if (gpus_stream_words(s, &member->comm->dev, m->gpu, &memory, &fd, &e)) {
        session_reply_status(s, &m->msg, e.status, e.text);
        return;
    }
    r.memory = memory.kind;
    r.map_bytes = memory.bytes;
    session_reply(s, &r.reply, sizeof(r), &fd, 1);
}

static void handle_buffer_free(struct session *s, const struct fcc_buffer_free_msg *m)
{
    struct buffer *b = buffer_find(s, m->buffer);
    struct error e = {0};

    if (b) {
        prepared_buffer_freed(s, b);
        buffer_drop_handle(b);
    } else {
        (void)error_set(&e, -ENOENT, "buffer: %u: no such buffer in this session", m->buffer);
    }
    session_reply_status(s, &m->msg, e.status, e.text);
}

static void handle_buffer_peer(struct session *s, const struct fcc_buffer_peer_msg *m)
{
    struct buffer *b = buffer_find(s, m->buffer), *part;
    struct error e = {0};

    if (!b)
        (void)error_set(&e, -ENOENT, "buffer: %u: no such buffer in this session", m->buffer);
    if (!b || buffer_peer(b, m->rank, &part, &e)) {
        session_reply_status(s, &m->msg, e.status, e.text);
        return;
    }
    struct fcc_buffer_alloc_reply r = {.reply.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id},
                                       .buffer = b->handle,
                                       .memory = part->memory.kind,
                                       .map_bytes = part->memory.bytes};
    session_reply(s, &r.reply, sizeof(r), &part->fd, 1);
}

static void handle_triggers(struct session *s, const struct fcc_triggers_msg *m)
{
    struct fcc_reply r = {.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id}};
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};
    int fd;

    if (!member)
        return;
    if (puts_open(member, &fd, &e))
        session_reply_status(s, &m->msg, e.status, e.text);
    else
        session_reply(s, &r, sizeof(r), &fd, 1);
}

static void handle_put_register(struct session *s, const struct fcc_put_msg *m)
{
    struct fcc_put_reply r = {.reply.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id}};
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};

    if (!member)
        return;
    if (puts_register(member, m, &r.number, &e))
        session_reply_status(s, &m->msg, e.status, e.text);
    else
        session_reply(s, &r.reply, sizeof(r), NULL, 0);
}

static void handle_prepared(struct session *s, const struct fcc_prepared_msg *m)
{
    struct fcc_prepared_reply r = {.reply.msg = {.type = (uint16_t)(m->msg.type | FCC_REPLY), .id = m->msg.id}};
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};
    int fd;

    if (!member)
        return;
    if (prepared_give(member, m, &r, &fd, &e))
        session_reply_status(s, &m->msg, e.status, e.text);
    else
        session_reply(s, &r.reply, sizeof(r), &fd, 1);
}

static void handle_prepared_free(struct session *s, const struct fcc_prepared_msg *m)
{
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};

    if (!member)
        return;
    (void)prepared_drop(member, m->number, &e);
    session_reply_status(s, &m->msg, e.status, e.text);
}

static void handle_run_refused(struct session *s, const struct fcc_run_refused_msg *m)
{
    struct member *member = member_of(s, &m->msg, m->comm);
    struct error e = {0};

    if (!member)
        return;
    (void)prepared_refuse(member, m, &e);
    session_reply_status(s, &m->msg, e.status, e.text);
}

static void handle_submit(struct session *s, const struct fcc_submit *m)
{
    if (m->slot != FCC_NO_SLOT && m->slot >= FCC_SLOTS)
        session_break(s, "it names a slot that there is not");
    else
        submission_accept(s, m, m->msg.length);
}

static void handle_query(struct session *s, const struct fcc_query *m)
{
    query_handle(s, m);
}

struct handler {
    const char *name;
    size_t bytes;
    bool longer; /* the fixed part may be followed by more */
    void (*handle)(struct session *s, const void *m);
};

/* The handlers take their own message types; these adapters are made from the list, so a missing handler fails the build. */
#define X(NAME, name, bytes, fds)                                                                                              \
    static void adapt_##name(struct session *s, const void *m)                                                                 \
    {                                                                                                                          \
        handle_##name(s, m);                                                                                                   \
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
        h->handle(s, m);
    if (e.status)
        session_reply_status(s, m, e.status, e.text);
}
