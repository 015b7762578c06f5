/* SPDX-License-Identifier: MIT
 *
 * hello.c - messages of connections that are not handed to a worker: HELLO, and fccctl's queries to the broker itself.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "proto/base/log.h"
#include "proto/msg.h"
#include "proto/version.h"

#define HELLO_LIMIT_S 5 /* time limit for a connection's HELLO, and for each query of fccctl */

const struct timeval visitor_limit = {.tv_sec = HELLO_LIMIT_S};

void visitor_refuse(struct visitor *v, uint64_t id, const struct error *e)
{
    struct fcc_reply reply = {.msg = {.type = FCC_MSG_ERROR, .id = id}, .status = e->status};

    log_about(LOG_LEVEL_INFO, log_user(v->uid), "refused uid %u pid %d: %s", v->uid, v->pid, e->text);
    v->broker->refused++;
    text_copy(reply.text, sizeof(reply.text), e->text);
    (void)msg_send(v->sock, &reply.msg, sizeof(reply), NULL, 0); /* if this fails, the closed connection says enough */
    visitor_free(v);
}

int version_refuse(uint32_t version, uint32_t oldest, uint32_t newest, struct error *e)
{
    return error_set(e, -EPROTO,
                     "hello: protocol version %u: this fccd (" VERSION_TEXT ") speaks versions %u to %u: upgrade %s", version,
                     oldest, newest, version > newest ? "fccd" : "libfccclient (or the Python package fccd)");
}

static int hello_check(const struct visitor *v, const struct fcc_hello *h, size_t length, int nfds, struct error *e)
{
    /* The version's offset is the same in all versions, so it is checked before the length. */
    if (length < sizeof(struct fcc_msg) + 8 || h->msg.type != FCC_MSG_HELLO || h->magic != FCC_PROTO_MAGIC)
        return error_set(e, -EPROTO, "hello: message type %u of %zu bytes: expected a HELLO of %zu bytes", h->msg.type, length,
                         sizeof(*h));
    if (h->version < FCC_PROTO_OLDEST || h->version > FCC_PROTO_VERSION)
        return version_refuse(h->version, FCC_PROTO_OLDEST, FCC_PROTO_VERSION, e);
    if (length != sizeof(*h))
        return error_set(e, -EPROTO, "hello: %zu bytes: expected %zu", length, sizeof(*h));
    if (nfds)
        return error_set(e, -EPROTO, "hello: %d file descriptors: expected none", nfds);
    if (h->role != FCC_ROLE_CLIENT && h->role != FCC_ROLE_CONTROL)
        return error_set(e, -EPROTO, "hello: role %u: allowed are %d and %d", h->role, FCC_ROLE_CLIENT, FCC_ROLE_CONTROL);
    if (!memchr(h->job, 0, sizeof(h->job)) || (h->role == FCC_ROLE_CLIENT && !h->job[0]))
        return error_set(e, -EINVAL, "hello: job: allowed are 1 to %d characters", FCC_JOB_MAX - 1);
    for (const char *p = h->job; *p; p++)
        if (*p <= ' ' || *p > '~')
            return error_set(e, -EINVAL, "hello: job: character %d: allowed are printable ASCII characters without space", *p);
    if (!memchr(h->mps_pipe, 0, sizeof(h->mps_pipe)) || (h->mps_pipe[0] && h->mps_pipe[0] != '/'))
        return error_set(e, -EINVAL,
                         "hello: mps_pipe (CUDA_MPS_PIPE_DIRECTORY): allowed is an absolute path of at most %d characters",
                         FCC_MPS_PIPE_MAX - 1);
    for (const char *p = h->mps_pipe; *p; p++)
        if (*p < ' ' || *p > '~')
            return error_set(e, -EINVAL,
                             "hello: mps_pipe (CUDA_MPS_PIPE_DIRECTORY): character %d: allowed are printable ASCII characters",
                             *p);
    if (h->role == FCC_ROLE_CONTROL && h->job[0] && v->uid && v->uid != geteuid() && v->uid != h->uid)
        return error_set(e, -EPERM, "hello: uid %u may not look into the jobs of uid %u", v->uid, h->uid);
    if (v->uid != geteuid() && geteuid() != 0)
        return error_set(e, -EPERM, "hello: uid %u: this fccd runs as uid %u and serves that user only", v->uid, geteuid());
    return 0;
}

static void visitor_welcome(struct visitor *v, uint64_t id)
{
    struct error e;
    struct fcc_welcome w = {.reply.msg = {.type = FCC_MSG_HELLO | FCC_REPLY, .id = id},
                            .version = v->hello.version,
                            .devices = devices_count(v->broker),
                            .worker_pid = (uint32_t)getpid()};

    if (!visitor_may_ask(v)) {
        (void)error_set(&e, -EUSERS, "uid %u has as many connections of fccctl that wait for an answer as a user may have",
                        v->uid);
        visitor_refuse(v, id, &e);
        return;
    }
    if (msg_send(v->sock, &w.reply.msg, sizeof(w), NULL, 0))
        visitor_free(v);
}

/* Hands the visitor over to its job, which is started with these groups if it does not exist. Frees the visitor. */
static void visitor_hand_over(struct visitor *v, const struct groups *groups)
{
    struct error e = {0};
    int status = v->broker->draining ? error_set(&e, -ESHUTDOWN, "fccd is shutting down") : 0;

    if (!status)
        status = job_hand_over(v->broker, v, &v->hello, groups, &e);
    v->handed_over = !status;
    if (status)
        visitor_refuse(v, v->hello.msg.id, &e);
    else
        visitor_free(v);
}

void visitor_grouped(struct visitor *v, const struct groups *groups, const struct error *e)
{
    v->lookup = NULL;
    if (groups)
        visitor_hand_over(v, groups);
    else
        visitor_refuse(v, v->hello.msg.id, e);
}

static void hello_handle(struct visitor *v, const struct fcc_hello *h, size_t length, int nfds)
{
    static const struct groups none;
    struct error e = {0};
    int status = hello_check(v, h, length, nfds, &e);

    if (status) {
        visitor_refuse(v, h->msg.id, &e);
        return;
    }
    v->hello = *h;
    if (h->role == FCC_ROLE_CONTROL && !h->job[0] && !v->broker->draining) {
        visitor_welcome(v, h->msg.id);
    } else if (!job_needs_groups(v->broker, v, h)) {
        visitor_hand_over(v, &none);
    } else if (groups_ask(v, &e)) {
        visitor_refuse(v, h->msg.id, &e);
    } else {
        (void)event_del(&v->event); /* nothing is read until visitor_grouped() */
    }
}

/* Answers a query with the memfd `fd`, which is closed, or (fd < 0) with the error. May free the visitor. */
static void visitor_reply(struct visitor *v, uint64_t id, int fd, const struct error *e)
{
    struct fcc_reply reply = {.msg = {.type = FCC_MSG_QUERY | FCC_REPLY, .id = id}};

    reply.status = fd < 0 ? e->status : 0;
    reply.fds = fd >= 0;
    text_copy(reply.text, sizeof(reply.text), e->text);
    int status = msg_send(v->sock, &reply.msg, sizeof(reply), &fd, fd >= 0);
    fd_close(&fd);
    if (status)
        visitor_free(v);
}

/* Answers a query at once. May free the visitor. */
static void query_reply(struct visitor *v, const struct fcc_query *q)
{
    struct error e = {0};
    int fd = q->what == FCC_QUERY_DRAIN ? jobs_drain_asked(v->broker, q, v, &e) : query_answer(v->broker, q, v->uid, &e);

    visitor_reply(v, q->msg.id, fd, &e);
}

void visitor_pinged(struct visitor *v, int fd, const struct error *e)
{
    v->ping = NULL;
    if (!event_add(&v->event, &visitor_limit)) {
        visitor_reply(v, v->query_id, fd, e);
        return;
    }
    fd_close(&fd);
    visitor_free(v);
}

static void ping_handle(struct visitor *v, const struct fcc_query *q)
{
    struct error e = {0};

    v->query_id = q->msg.id;
    if (ping_start(v, q, &e))
        visitor_reply(v, q->msg.id, -1, &e);
    else
        (void)event_del(&v->event);
}

void visitors_answer(struct broker *b)
{
    struct visitor *v, *next;

    LIST_FOREACH_SAFE(v, &b->visitors, link, next) {
        if (!v->waits)
            continue;
        v->waits = false;
        if (event_add(&v->event, &visitor_limit))
            visitor_free(v);
        else
            query_reply(v, &(struct fcc_query){.msg.id = v->query_id, .what = FCC_QUERY_DEVICES});
    }
}

static void query_handle(struct visitor *v, const struct fcc_query *q, size_t length, int nfds)
{
    struct error e = {0};

    if (q->msg.type != FCC_MSG_QUERY || length != sizeof(*q) || nfds) {
        (void)error_set(&e, -EPROTO,
                        "message type %u of %zu bytes with %d file descriptors: the broker answers queries of %zu bytes",
                        q->msg.type, length, nfds, sizeof(*q));
        visitor_refuse(v, q->msg.id, &e);
        return;
    }
    if (q->what == FCC_QUERY_DEVICES && !v->broker->probe.ended) {
        v->waits = true;
        v->query_id = q->msg.id;
        (void)event_del(&v->event);
        return;
    }
    if (q->what == FCC_QUERY_PING)
        ping_handle(v, q);
    else
        query_reply(v, q);
}

void visitor_read(evutil_socket_t sock, short what, void *arg)
{
    struct visitor *v = arg;
    struct error e = {0};
    int fds[FCC_MAX_FDS], nfds = 0;
    _Alignas(16) static unsigned char buf[FCC_MSG_MAX]; /* the broker has one thread */
    const struct fcc_msg *msg = (const struct fcc_msg *)buf;

    if (what & EV_TIMEOUT) {
        if (!v->control)
            log_about(LOG_LEVEL_INFO, log_user(v->uid), "uid %u pid %d said nothing for %d s; closed", v->uid, v->pid,
                      HELLO_LIMIT_S);
        visitor_free(v);
        return;
    }
    ssize_t n = msg_recv(sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds);
    if (n == -EAGAIN)
        return;
    if (n == -EPROTO) {
        (void)error_set(&e, -EPROTO, "malformed message: truncated, longer than %u bytes, or its length field lies",
                        FCC_MSG_MAX);
        visitor_refuse(v, 0, &e);
        return;
    }
    if (n <= 0) {
        visitor_free(v);
        return;
    }
    v->heard_ns = clock_ns();
    memset(buf + n, 0, sizeof(struct fcc_hello) > (size_t)n ? sizeof(struct fcc_hello) - (size_t)n : 0);
    fds_discard(fds, nfds); /* no message to the broker has descriptors; hello_check() and query_handle() refuse nfds != 0 */
    if (v->control)
        query_handle(v, (const struct fcc_query *)buf, (size_t)n, nfds);
    else
        hello_handle(v, (const struct fcc_hello *)(const void *)msg, (size_t)n, nfds);
}
