/* SPDX-License-Identifier: MIT
 *
 * session.c - a client's (or fccctl's) connection, from the worker's side.
 */
#include "daemon/worker/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/trace.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/process.h"
#include "proto/base/log.h"
#include "proto/msg.h"

#define LAST_MESSAGES 1024 /* of a process that has ended */
#define EVENTS_BYTES 1024  /* what libevent keeps of a session, about */

/* One message. False: there is none. */
static bool session_take(struct session *s)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX]; /* the engine is one thread */
    int fds[FCC_MAX_FDS], nfds = 0;
    ssize_t n;

    (void)launches_collect(s->worker); /* what the client has been told of is over */
    if (s->broken)
        return false;
    n = msg_recv(s->sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds);
    if (n > 0) {
        fds_discard(fds, nfds); /* no request carries any */
        if (s->memory)
            (void)ring_poll(s); /* requests in the ring were submitted before this message */
        session_handle(s, (const struct fcc_msg *)buf, (size_t)n, nfds);
    } else if (n == -EPROTO) {
        const struct fcc_msg none = {0};
        session_reply_status(s, &none, -EPROTO, "malformed message: truncated, oversized, or its length field lies");
        session_break(s, "it sent a malformed message");
    } else if (n != -EAGAIN) {
        if (s->memory)
            (void)ring_poll(s); /* the client's last requests still count */
        session_break(s, "its connection closed");
    }
    return n > 0;
}

static void session_read(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    (void)session_take(arg); /* one message a call: the loop polls the rings in between */
}

/* The client's last messages still count, up to LAST_MESSAGES: a child process that has the socket may go on sending. */
static void process_ended(evutil_socket_t fd, short what, void *arg)
{
    struct session *s = arg;

    (void)fd, (void)what;
    for (int i = 0; i < LAST_MESSAGES && session_take(s); i++) {
    }
    if (s->memory)
        (void)ring_poll(s);
    session_break(s, "its process has ended");
}

static void doorbell_rung(evutil_socket_t fd, short what, void *arg)
{
    uint64_t n;

    (void)what, (void)arg; /* the loop polls the rings itself */
    /* The client shares this descriptor. It may have read it meanwhile, and may have cleared O_NONBLOCK. */
    struct iovec v = {.iov_base = &n, .iov_len = sizeof(n)};
    if (preadv2(fd, &v, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP && read(fd, &n, sizeof(n)) < 0)
        return; /* Linux before 5.8, and somebody's ring was heard before */
}

/* ---- life ---- */

static int session_events_open(struct session *s)
{
    struct event_base *base = s->worker->base;

    s->event = event_new(base, s->sock, EV_READ | EV_PERSIST, session_read, s);
    s->write_event = event_new(base, s->sock, EV_WRITE, session_on_room, s);
    s->again_event = evtimer_new(base, session_on_room, s);
    if (!s->event || !s->write_event || !s->again_event || event_add(s->event, NULL))
        return -ENOMEM;
    s->process_event = s->process < 0 ? NULL : event_new(base, s->process, EV_READ, process_ended, s);
    if (s->process >= 0 && (!s->process_event || event_add(s->process_event, NULL)))
        return -ENOMEM;
    if (s->role != FCC_ROLE_CLIENT)
        return 0;
    s->doorbell_event = event_new(base, s->doorbell, EV_READ | EV_PERSIST, doorbell_rung, s);
    return !s->doorbell_event || event_add(s->doorbell_event, NULL) ? -ENOMEM : 0;
}

/* Charge the session. fccctl's are not charged: they need little, and must work when memory is short; CONNECTIONS_PER_JOB bounds them. */
static int session_charge(struct session *s, struct error *e)
{
    uint64_t bytes = sizeof(*s) + sizeof(*s->memory) + EVENTS_BYTES;
    int status = s->role == FCC_ROLE_CLIENT ? worker_memory_charge(s->worker, bytes, e) : 0;

    if (!status && s->role == FCC_ROLE_CLIENT)
        s->charged = bytes;
    return status;
}

/* Send the first and last reply of a refused session. Its socket is empty, so this does not block. */
static void session_refuse(struct session *s, uint64_t id, const struct error *e)
{
    struct fcc_reply r = {.msg = {.type = FCC_MSG_ERROR, .id = id}, .status = e->status};

    text_copy(r.text, sizeof(r.text), e->text);
    (void)msg_send(s->sock, &r.msg, sizeof(r), NULL, 0); /* if it cannot be told, the closed connection says enough */
}

void session_open(struct worker *w, int sock, const struct control_session *who)
{
    struct fcc_welcome welcome = {.reply.msg = {.type = FCC_MSG_HELLO | FCC_REPLY, .id = who->msg.id},
                                  .version = who->version,
                                  .devices = (uint32_t)w->ndevices,
                                  .worker_pid = (uint32_t)getpid(),
                                  .spin_us = w->config.spin_us};
    struct session *s = calloc(1, sizeof(*s));
    struct error e = {0};
    int memory_fd = -1;

    if (!s) {
        log_error("pid %d: refused: out of memory", who->pid);
        (void)close(sock);
        worker_sessions_changed(w); /* it is not on its way any more */
        return;
    }
    *s = (struct session){.worker = w,
                          .sock = sock,
                          .role = who->role,
                          .version = who->version,
                          .uid = who->uid,
                          .pid = who->pid,
                          .doorbell = -1,
                          .process = -1};
    TAILQ_INIT(&s->outbox);
    LIST_INIT(&s->members);
    LIST_INIT(&s->buffers);
    TAILQ_INSERT_TAIL(&w->sessions, s, link);
    w->nclients += s->role == FCC_ROLE_CLIENT;
    w->ncontrols += s->role != FCC_ROLE_CLIENT;
    int status = session_charge(s, &e);
    if (!status)
        status = process_watch(sock, who->pid, &s->process, &e);
    if (!status && s->role == FCC_ROLE_CLIENT)
        status = ring_open(s, &memory_fd, &e);
    if (!status)
        status = session_events_open(s);
    if (!status) {
        int fds[] = {memory_fd, s->doorbell};
        session_reply(s, &welcome.reply, sizeof(welcome), fds, s->role == FCC_ROLE_CLIENT ? 2 : 0);
        log_debug("pid %d: connected", s->pid);
        if (s->role == FCC_ROLE_CLIENT && strcmp(who->mps_pipe, w->mps_pipe) != 0)
            log_warning(
                "pid %d: its CUDA_MPS_PIPE_DIRECTORY is \"%s\", that of the job's first client was \"%s\": on NVIDIA GPUs "
                "each hand-over between it and this worker costs about 0.3 ms instead of 3 to 4 us",
                s->pid, who->mps_pipe, w->mps_pipe);
    } else {
        if (!e.status)
            (void)error_set(&e, status, "job %s: its worker has no room for another connection: %s", w->job, strerror(-status));
        log_warning("pid %d: refused: %s", who->pid, e.text);
        session_refuse(s, who->msg.id, &e);
        session_break(s, "there is no room for it");
    }
    fd_close(&memory_fd);
    worker_sessions_changed(w);
}

static void session_free(struct session *s)
{
    struct worker *w = s->worker;
    struct member *m;
    struct buffer *b;

    log_debug("pid %d: closed: %s", s->pid, s->broken);
    while ((m = LIST_FIRST(&s->members)))
        comm_leave(m, s->broken);
    trace_waiters_forget(s);
    while ((b = LIST_FIRST(&s->buffers)))
        buffer_drop_handle(b);
    session_outbox_free(s);
    event_drop(&s->event);
    event_drop(&s->write_event);
    event_drop(&s->again_event);
    event_drop(&s->doorbell_event);
    event_drop(&s->process_event);
    fd_close(&s->process);
    ring_close(s);
    (void)close(s->sock);
    TAILQ_REMOVE(&w->sessions, s, link);
    w->nclients -= s->role == FCC_ROLE_CLIENT;
    w->ncontrols -= s->role != FCC_ROLE_CLIENT;
    worker_memory_release(w, s->charged);
    free(s);
    worker_sessions_changed(w);
}

void sessions_sweep(struct worker *w)
{
    while (w->sweep) { /* a session that ends may break others: their replies do not fit */
        struct session *s, *next;
        w->sweep = false;
        TAILQ_FOREACH_SAFE(s, &w->sessions, link, next) {
            if (s->broken)
                session_free(s);
        }
    }
}
