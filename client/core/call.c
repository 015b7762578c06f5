/* SPDX-License-Identifier: MIT
 *
 * call.c - messages over the socket: calls, their replies, and the end of the connection.
 *
 * Several threads may wait for replies on the one socket. One of them is the reader (context->reading): it polls and receives
 * without holding the lock, hands each reply to the call with its id, and wakes the others. When the reader has its own reply,
 * or its time is over, another waiting thread becomes the reader. While no thread waits, the socket is not read. Replies that
 * come then (to calls that timed out) are read, and their descriptors closed, when the next thread waits.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "proto/session.h"

#define READ_BATCH 64 /* the most messages that the reader takes before it looks at the clock again */

static const struct {
    const char *name;
    int fds; /* number of descriptors that come with the reply */
} messages[] = {
#define X(NAME, name, size, fds) [FCC_MSG_##NAME] = {#name, fds},
    FCC_MESSAGES(X)
#undef X
};

/* For error texts: the public function behind each message. Operators have names of their own, and fcc_connect()'s errors
 * are about the daemon. */
static const char *const called[FCC_MSG_TYPES] = {
    [FCC_MSG_UNIQUE_ID] = "fcc_get_unique_id",     [FCC_MSG_COMM_INIT] = "fcc_comm_init",
    [FCC_MSG_COMM_DESTROY] = "fcc_comm_destroy",   [FCC_MSG_COMM_ABORT] = "fcc_comm_abort",
    [FCC_MSG_BUFFER_ALLOC] = "fcc_buffer_alloc",   [FCC_MSG_BUFFER_FREE] = "fcc_buffer_free",
    [FCC_MSG_MEETING] = "fcc_comm_init_env",       [FCC_MSG_BUFFER_PEER] = "fcc_buffer_peer",
    [FCC_MSG_TRIGGERS] = "fcc_comm_triggers",      [FCC_MSG_PUT_REGISTER] = "fcc_put_register",
    [FCC_MSG_STREAM_WORDS] = "fcc_comm_init",      [FCC_MSG_PREPARED] = "prepare",
    [FCC_MSG_PREPARED_FREE] = "fcc_prepared_free", [FCC_MSG_RUN_REFUSED] = "fcc_prepared_enqueue",
    [FCC_MSG_TRACKER] = "fcc_tracker_create",      [FCC_MSG_TRACKER_FREE] = "fcc_tracker_free",
    [FCC_MSG_RULE] = "fcc_tracker_rule",
};

void dead_text(const struct fcc_context *c, const char *name, char text[FCC_TEXT_MAX])
{
    (void)snprintf(text, FCC_TEXT_MAX, "%s%s%.*s", name ? name : "", name ? ": " : "", FCC_TEXT_MAX - 100, c->dead.text);
}

int context_dead(const struct fcc_context *c, const char *name)
{
    char text[FCC_TEXT_MAX];

    if (!c->dead.status)
        return 0;
    dead_text(c, name, text);
    return last_error_set(c->dead.status, "%s", text);
}

/* Locked. End a call without a reply. */
static void pending_fail(struct pending *p, int status, const char *text)
{
    *p->reply = (struct fcc_reply){.msg.id = p->id, .status = status};
    (void)snprintf(p->reply->text, sizeof(p->reply->text), "%s", text);
    p->done = true;
    LIST_REMOVE(p, link);
}

void statuses_raise(struct fcc_context *c, int status)
{
    const struct fcc_comm *comm;
    int32_t none;

    LIST_FOREACH(comm, &c->comms, link) {
        none = 0;
        if (comm->status_word < FCC_STATUS_WORDS)
            (void)atomic_compare_exchange_strong_explicit(&c->memory->status[comm->status_word], &none, status,
                                                          memory_order_release, memory_order_relaxed);
        none = 0;
        if (comm->tracker_ended)
            (void)atomic_compare_exchange_strong_explicit(comm->tracker_ended, &none, status, memory_order_release,
                                                          memory_order_relaxed);
    }
}

int status_of(const struct fcc_comm *comm)
{
    return comm->status_word < FCC_STATUS_WORDS
               ? status_taken(atomic_load_explicit(&comm->context->memory->status[comm->status_word], memory_order_acquire))
               : 0;
}

void streams_release(struct fcc_context *c)
{
    if (!c->memory)
        return;
    for (unsigned s = 0; s < FCC_SLOTS; s++)
        if (c->stream_count[s])
            atomic_store(&c->memory->slot[s].stream_finished, c->stream_count[s]);
}

void context_die(struct fcc_context *c, int status, const char *format, ...)
{
    char text[FCC_TEXT_MAX];
    struct pending *p;
    va_list ap;

    if (c->dead.status)
        return;
    c->dead.status = status;
    va_start(ap, format);
    (void)vsnprintf(c->dead.text, sizeof(c->dead.text), format, ap);
    va_end(ap);
    while ((p = LIST_FIRST(&c->pending))) {
        dead_text(c, p->called, text);
        pending_fail(p, status, text);
    }
    (void)shutdown(c->sock, SHUT_RDWR); /* tells the worker, if it lives, and the watch thread */
    /* before the streams are released: whoever waited for a stream then looks at the status */
    statuses_raise(c, status);
    streams_release(c);
    watch_wake(c);
    (void)pthread_cond_broadcast(&c->changed);
}

/* Locked. The worker has closed the socket: end the context. */
static void context_end(struct fcc_context *c)
{
    if (c->farewell.status)
        context_die(c, c->farewell.status, "%s", c->farewell.text);
    else if (!c->worker_pid)
        context_die(c, -ECONNRESET, "fccd closed the connection before it answered; its log says why");
    else
        context_die(c, -ECONNRESET, "the worker of job '%s' (pid %u) is gone; connect again (fccd's log says why it ended)",
                    c->job, c->worker_pid);
}

int64_t context_patience_ms(const struct fcc_context *c)
{
    return patience_ms(atomic_load_explicit(&c->time_limit_ms, memory_order_relaxed), LIMITS_OF_OPERATOR);
}

int64_t comm_patience_ms(const struct fcc_comm *comm)
{
    return patience_ms(comm->time_limit_ms, LIMITS_OF_OPERATOR);
}

int context_give_up(struct fcc_context *c, const char *name, int64_t waited_ms)
{
    if (c->worker_pid)
        context_die(
            c, -ETIMEDOUT,
            "the worker of job '%s' (pid %u) does not answer: nothing came from it for %lld ms, so it is stopped, or it "
            "hangs; the connection to it has been given up ('fccctl flight' shows its last operators)",
            c->job, c->worker_pid, (long long)waited_ms);
    else
        context_die(c, -ETIMEDOUT,
                    "no answer within %lld ms: fccd, or the worker of job '%s', does not answer: it is stopped, or it hangs "
                    "(fccctl status)",
                    (long long)waited_ms, c->job);
    return context_dead(c, name);
}

/* Locked. The received message is the reply to p: check it, and hand it over with its descriptors. */
static void pending_done(struct pending *p, const struct fcc_reply *reply, size_t length, const int *fds, int nfds)
{
    bool whole = length >= sizeof(*reply);
    bool error = reply->msg.type == FCC_MSG_ERROR;
    int status = whole ? reply->status : 0;
    int expected = status ? 0 : messages[p->type].fds;
    bool lost = nfds == MSG_FDS_LOST && expected && reply->fds == (uint32_t)expected;
    char text[FCC_TEXT_MAX];

    if (!whole || (!error && reply->msg.type != (p->type | FCC_REPLY)) || status_taken(status) != status ||
        (error && !status) || (!status && length != p->size) || (!lost && (nfds != expected || reply->fds != (uint32_t)nfds))) {
        (void)snprintf(
            text, sizeof(text),
            "malformed reply to %s: type 0x%x, status %d, %zu bytes with %d file descriptors (it says %u): expected are "
            "type 0x%x, %zu bytes, %d descriptors",
            messages[p->type].name, reply->msg.type, status, length, nfds, whole ? reply->fds : 0, p->type | FCC_REPLY, p->size,
            expected);
        fds_close(fds, nfds);
        pending_fail(p, -EPROTO, text);
        return;
    }
    memcpy(p->reply, reply, status ? sizeof(*reply) : p->size);
    p->reply->text[FCC_TEXT_MAX - 1] = 0;
    (void)text_clean(p->reply->text);
    if (lost) {
        p->reply->status = -EMFILE;
        (void)snprintf(p->reply->text, sizeof(p->reply->text),
                       "%s: this process has no room for the %d file descriptors of the answer (RLIMIT_NOFILE)",
                       messages[p->type].name, expected);
    } else if (status && !p->reply->text[0]) {
        (void)snprintf(p->reply->text, sizeof(p->reply->text), "%s: %s", messages[p->type].name, strerror(-status));
    }
    for (int i = 0; i < nfds; i++)
        p->fds[i] = fds[i];
    p->done = true;
    LIST_REMOVE(p, link);
}

/* Locked. Deliver a message of n bytes in the inbox to its call. */
static void context_deliver(struct fcc_context *c, size_t n, const int *fds, int nfds)
{
    const struct fcc_reply *reply = (const struct fcc_reply *)c->inbox;
    struct pending *p;

    LIST_FOREACH(p, &c->pending, link) {
        if (p->id == reply->msg.id) {
            pending_done(p, reply, n, fds, nfds);
            return;
        }
    }
    fds_close(fds, nfds);
    if (reply->msg.type == FCC_MSG_ERROR && n >= sizeof(*reply) && reply->status) {
        (void)error_set(&c->farewell, status_taken(reply->status), "%.*s", FCC_TEXT_MAX - 1, reply->text);
        (void)text_clean(c->farewell.text);
    }
}

/* Not locked, but in the reader's role: wait until the deadline for something to read, and deliver what there is. */
static void context_read(struct fcc_context *c, int64_t deadline)
{
    struct pollfd p = {.fd = c->sock, .events = POLLIN};
    int fds[FCC_MAX_FDS], nfds, wait_ms = ms_until(deadline);
    ssize_t n = 1;

    if (wait_ms)
        (void)poll(&p, 1, wait_ms); /* the result is not needed: receiving a message says what happened */
    for (int i = 0; i < READ_BATCH && n > 0; i++) {
        n = msg_recv(c->sock, c->inbox, sizeof(c->inbox), MSG_DONTWAIT, fds, &nfds);
        if (n == -EAGAIN)
            return;
        (void)pthread_mutex_lock(&c->lock);
        if (n > 0)
            context_deliver(c, (size_t)n, fds, nfds);
        else if (n == 0)
            context_end(c);
        else if (n == -EPROTO)
            context_die(c, -EPROTO, "the worker of job '%s' (pid %u) sent a malformed message", c->job, c->worker_pid);
        else
            context_die(c, (int)n, "receiving from the worker of job '%s' (pid %u): %s", c->job, c->worker_pid,
                        strerror((int)-n));
        (void)pthread_mutex_unlock(&c->lock);
    }
}

void context_pump(struct fcc_context *c, int64_t deadline)
{
    if (c->dead.status)
        return;
    if (c->reading) {
        int64_t until = now_ns() + WAIT_SLICE_NS;
        if (until > deadline)
            until = deadline;
        struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        (void)pthread_cond_timedwait(&c->changed, &c->lock, &t);
        return;
    }
    c->reading = true;
    (void)pthread_mutex_unlock(&c->lock);
    context_read(c, deadline);
    (void)pthread_mutex_lock(&c->lock);
    c->reading = false;
    (void)pthread_cond_broadcast(&c->changed);
}

bool context_hung_up(const struct fcc_context *c, int wait_ms)
{
    struct pollfd p = {.fd = c->sock, .events = POLLRDHUP};

    return poll(&p, 1, wait_ms) > 0;
}

void context_nap(struct fcc_context *c, struct spin *spin)
{
    bool hung_up;

    if (c->no_ring || !LIST_EMPTY(&c->pending)) {
        context_pump(c, deadline_in_ms(1));
        return;
    }
    (void)pthread_mutex_unlock(&c->lock);
    ring_hurry(c); /* runs of bound operators came without a doorbell */
    hung_up = !spin_more(spin) && context_hung_up(c, 1);
    (void)pthread_mutex_lock(&c->lock);
    if (hung_up)
        context_pump(c, 0);
}

void pending_add(struct fcc_context *c, struct pending *p)
{
    p->id = ++c->last_id;
    p->done = false;
    LIST_INSERT_HEAD(&c->pending, p, link);
}

int context_send(struct fcc_context *c, struct fcc_msg *msg, size_t length, const char *name)
{
    struct pollfd p = {.fd = c->sock, .events = POLLOUT};
    struct patience patience = {0};
    int64_t limit_ms = 0;
    int status;

    while ((status = msg_send(c->sock, msg, length, NULL, 0)) == -EAGAIN) {
        (void)poll(&p, 1, 10);
        (void)pthread_mutex_lock(&c->lock);
        if (!limit_ms) {
            limit_ms = context_patience_ms(c);
            patience_begin(&patience, limit_ms);
        }
        context_pump(c, 0); /* the worker may wait for this process to read */
        status = context_dead(c, name);
        if (!status && patience_over(&patience))
            status = context_give_up(c, name, limit_ms);
        (void)pthread_mutex_unlock(&c->lock);
        if (status)
            return status;
    }
    if (status == -EPIPE || status == -ECONNRESET) {
        (void)pthread_mutex_lock(&c->lock);
        context_pump(c, 0); /* the worker may have sent the reason */
        context_end(c);
        status = context_dead(c, name);
        (void)pthread_mutex_unlock(&c->lock);
    } else if (status) {
        (void)last_error_set(status, "sending to the worker of job '%s' (pid %u): %s", c->job, c->worker_pid,
                             strerror(-status));
    }
    return status;
}

/* Locked. */
static int64_t call_patience_ms(const struct fcc_context *c, const struct call *call)
{
    uint32_t time_limit_ms =
        call->behind ? call->behind->time_limit_ms : atomic_load_explicit(&c->time_limit_ms, memory_order_relaxed);
    bool is_behind = call->behind && comm_is_busy(call->behind);

    return (call->limit_ms ? call->limit_ms : patience_ms(time_limit_ms, is_behind ? LIMITS_OF_OPERATOR : LIMITS_OF_CALL)) +
           call->more_ms;
}

/* Locked; releases the lock. Wait until the reply has come, or the context has died. */
static void reply_await(struct fcc_context *c, const struct call *call, const struct pending *p)
{
    int64_t limit_ms = call_patience_ms(c, call);
    uint64_t completed = call->behind ? call->behind->completed : 0;
    struct patience patience;

    patience_begin(&patience, limit_ms);
    while (!p->done) {
        context_pump(c, deadline_in_ms(limit_ms));
        if (p->done || !patience_over(&patience))
            continue;
        if (call->behind)
            context_collect(c);
        if (call->behind && call->behind->completed != completed) {
            completed = call->behind->completed;
            patience_begin(&patience, limit_ms);
            continue;
        }
        (void)context_give_up(c, p->called, limit_ms);
    }
}

int context_call(struct fcc_context *c, const struct call *call)
{
    struct pending p = {.type = (uint16_t)call->type,
                        .called = call->called ? call->called : called[call->type],
                        .reply = call->reply,
                        .size = call->reply_size};
    int status;

    (void)pthread_mutex_lock(&c->lock);
    status = context_dead(c, p.called);
    if (!status)
        pending_add(c, &p);
    (void)pthread_mutex_unlock(&c->lock);
    if (status)
        return status;

    call->msg->type = p.type;
    call->msg->id = p.id;
    status = context_send(c, call->msg, call->length, p.called);

    (void)pthread_mutex_lock(&c->lock);
    if (!status)
        reply_await(c, call, &p);
    if (p.done) {
        status = p.reply->status;
        if (status)
            (void)last_error_set(status, "%s", p.reply->text);
        assert(call->fds || !messages[call->type].fds);
        for (int i = 0; !status && i < messages[call->type].fds; i++)
            call->fds[i] = p.fds[i];
    } else {
        LIST_REMOVE(&p, link);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

void context_tell(struct fcc_context *c, const struct call *call)
{
    char kept[FCC_TEXT_MAX];

    text_copy(kept, sizeof(kept), fcc_last_error());
    (void)context_call(c, call);
    (void)last_error_set(0, "%s", kept);
}

int comm_tell(struct fcc_comm *comm, enum fcc_msg_type type, const char *reason)
{
    struct fcc_comm_msg msg = {.comm = comm->handle};
    struct fcc_reply reply;

    const struct call call = {
        .type = type, .msg = &msg.msg, .length = sizeof(msg), .reply = &reply, .reply_size = sizeof(reply)};

    memcpy(msg.reason, reason, strlen(reason));
    return context_call(comm->context, &call);
}
