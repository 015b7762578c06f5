/* SPDX-License-Identifier: MIT
 *
 * channel.c - the worker's end of the control channel (control.h). The engine never waits for the broker: what its socket has no room
 * for is kept in order, and sent by the event loop.
 */
#include "daemon/worker/engine/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/common/ledger.h"
#include "daemon/worker/engine/adopt.h"
#include "daemon/worker/engine/engine.h"
#include "daemon/worker/engine/rights.h"
#include "proto/base/log.h"
#include "proto/msg.h"

#define AGAIN_MS 5 /* where the kernel, not the socket, has no room */

/* A message that waits for room in the socket. There are at most as many as peers have links, and two. */
struct letter {
    TAILQ_ENTRY(letter) link; /* worker.letters */
    size_t length;
    _Alignas(16) unsigned char bytes[];
};

static void letters_drop(struct worker *w)
{
    struct letter *l, *next;

    TAILQ_FOREACH_SAFE(l, &w->letters, link, next) {
        TAILQ_REMOVE(&w->letters, l, link);
        free(l);
    }
}

static void spare_let_go(struct worker *w)
{
    fd_close(&w->spare);
}

/* False: the descriptor table is full. */
static bool spare_take(struct worker *w)
{
    if (w->spare < 0)
        w->spare = fcntl(w->wake_fd, F_DUPFD_CLOEXEC, 0);
    return w->spare >= 0;
}

void control_close(struct worker *w)
{
    struct event *events[] = {w->control_event, w->control_write_event};

    if (w->control < 0) {
        broker_forget(w); /* channel_over() may still watch it */
        return;
    }
    for (int i = 0; i < 2; i++)
        event_drop(&events[i]);
    w->control_event = w->control_write_event = NULL;
    letters_drop(w);
    spare_let_go(w);
    broker_forget(w);
    (void)close(w->control);
    w->control = -1;
}

/* ---- to the broker ---- */

static bool is_full(int status)
{
    return status == -EAGAIN || status == -ENOBUFS || status == -ENOMEM;
}

/* EAGAIN: when there is room in the socket. Otherwise there is, but not in the kernel: soon. */
static void letters_later(struct worker *w, int status)
{
    (void)(status == -EAGAIN ? event_add(w->control_write_event, NULL) : event_add_ms(w->control_write_event, AGAIN_MS));
}

static void letters_send(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;
    struct letter *l, *next;

    (void)what;
    for (l = TAILQ_FIRST(&w->letters); l; l = next) {
        int status = msg_send(sock, (struct fcc_msg *)l->bytes, l->length, NULL, 0);
        if (is_full(status)) {
            letters_later(w, status);
            return;
        }
        next = TAILQ_NEXT(l, link);
        TAILQ_REMOVE(&w->letters, l, link);
        free(l); /* sent, or the broker is dead, which the next read reports */
    }
}

int control_send(struct worker *w, struct fcc_msg *m, size_t length)
{
    question_keep(w, m, length);
    return control_say(w, m, length);
}

int control_say(struct worker *w, struct fcc_msg *m, size_t length)
{
    struct letter *last = TAILQ_LAST(&w->letters, letters_head);
    int status = w->control < 0 ? -EPIPE : last ? -EAGAIN : msg_send(w->control, m, length, NULL, 0);

    if (!is_full(status))
        return status;
    if (last && m->type == CONTROL_SESSIONS && ((struct fcc_msg *)last->bytes)->type == CONTROL_SESSIONS) {
        m->length = (uint32_t)length;
        memcpy(last->bytes, m, length); /* replace the unsent number of sessions by the new one */
        return 0;
    }
    struct letter *l = malloc(sizeof(*l) + length);
    if (!l)
        return -ENOMEM;
    l->length = length;
    memcpy(l->bytes, m, length);
    TAILQ_INSERT_TAIL(&w->letters, l, link);
    if (!last)
        letters_later(w, status);
    return 0;
}

/* ---- the first words ---- */

int control_start(int argc, char *argv[], struct control_start *start)
{
    struct fcc_msg closed = {.type = CONTROL_CLOSED};
    int fds[FCC_MAX_FDS], nfds = 0;
    char *end = NULL;
    struct error e = {0};

    if (argc == 1 && rights_take((uid_t)strtoul(argv[0], &end, 10), &e)) {
        (void)fprintf(stderr, "fccd: worker: %s\n", e.text);
        return -1;
    }
    if (!end || *end || msg_send(CONTROL_FD, &closed, sizeof(closed), NULL, 0)) {
        (void)fprintf(stderr, "fccd: --worker is how the broker starts a worker; it is not for the command line\n");
        return -1;
    }
    ssize_t n = msg_recv(CONTROL_FD, start, FCC_MSG_MAX, 0, fds, &nfds);
    if (n == sizeof(*start) && start->msg.type == CONTROL_START && nfds == 1)
        return fds[0];
    fds_close(fds, n > 0 ? nfds : 0);
    (void)fprintf(stderr, "fccd: worker: the broker has not said what to do\n");
    return -1;
}

/* ---- from the broker ---- */

/* The descriptor table is full, and a received descriptor uses the spare one's place: refuse that connection, which frees the place. */
static void refuse_full(struct worker *w, const struct fcc_msg *m, int fd)
{
    const struct control_session *who = (const struct control_session *)m;
    struct fcc_reply reply = {.msg = {.type = FCC_MSG_ERROR, .id = m->id}, .status = -EMFILE};
    struct error e;

    (void)error_set(&e, -EMFILE,
                    "job %s: its worker (pid %d) has no file descriptor left for another connection (RLIMIT_NOFILE)", w->job,
                    getpid());
    log_warning("refused a connection: %s", e.text);
    w->channel_ops->handed(w);
    if (m->type == CONTROL_SESSION) {
        w->sessions_got++;
        text_copy(reply.text, sizeof(reply.text), e.text);
        (void)msg_send(fd, &reply.msg, sizeof(reply), NULL, 0); /* it is not full: nothing has been sent there */
        log_debug("pid %d is told", who->pid);
        worker_sessions_changed(w);
    }
    (void)close(fd); /* another node's worker sees its connection's end */
}

/* CONNECTED without the descriptor that it should have had. */
static void connected_lost(struct worker *w, const struct control_connected *m)
{
    struct control_connected lost = *m;

    lost.status = -EMFILE;
    text_copy(lost.text, sizeof(lost.text), "this job's worker has no file descriptor left for the connection (RLIMIT_NOFILE)");
    w->channel_ops->connected(w, &lost, -1);
}

/* Without it the worker only counts and records nothing. */
static void ledger_take(struct worker *w, int fd)
{
    int status = w->flight ? -EALREADY : ledger_open(fd, &w->flight, &w->meters);

    if (status) {
        log_warning("the broker's ledger: %s: operators are not counted", strerror(-status));
        (void)close(fd);
        return;
    }
    w->ledger = fd;
    w->flight->pid = (int32_t)getpid();
}

static void drain_told(struct worker *w, const void *message, size_t length)
{
    const struct control_drain *m = message;
    char why[sizeof(m->text)];

    if (length != sizeof(*m)) {
        w->channel_ops->drain(w, "fccd is shutting down");
        return;
    }
    text_copy(why, sizeof(why), m->text);
    drain_within(w, why);
}

static void control_handle(struct worker *w, const void *message, size_t length, const int *fds, int nfds)
{
    const struct fcc_msg *m = message;
    bool session = m->type == CONTROL_SESSION && length == sizeof(struct control_session);
    bool peer = m->type == CONTROL_PEER && length == sizeof(struct control_peer);
    bool connected = m->type == CONTROL_CONNECTED && length == sizeof(struct control_connected);
    bool adopt = m->type == CONTROL_ADOPT && length == sizeof(struct control_adopt);
    bool room = spare_take(w);

    if (connected)
        question_answered(w, m->id);
    w->arrivals += peer;
    if (adopt && nfds == 1) {
        broker_adopts(w, message, fds[0]);
    } else if (nfds == 1 && !room && (session || peer)) {
        refuse_full(w, m, fds[0]);
    } else if (nfds == MSG_FDS_LOST && (session || peer)) {
        log_warning("a connection is lost: no file descriptor was left for it");
        w->channel_ops->handed(w);
        w->sessions_got += session;
        worker_sessions_changed(w);
    } else if (session && nfds == 1) {
        w->channel_ops->handed(w);
        w->sessions_got++;
        w->channel_ops->session(w, fds[0], message);
    } else if (peer && nfds == 1) {
        w->channel_ops->handed(w);
        w->channel_ops->peer(w, message, fds[0]);
    } else if (connected && (nfds == MSG_FDS_LOST || (nfds == 1 && !room))) {
        fds_close(fds, nfds);
        connected_lost(w, message);
    } else if (connected && nfds <= 1) {
        w->channel_ops->connected(w, message, nfds ? fds[0] : -1);
    } else if (m->type == CONTROL_LEDGER && length == sizeof(*m) && nfds == 1) {
        ledger_take(w, fds[0]);
    } else if (m->type == CONTROL_DENIED && length == sizeof(struct control_denied) && !nfds) {
        w->channel_ops->denied(w, message);
    } else if (m->type == CONTROL_TROUBLE && length == sizeof(struct control_trouble) && !nfds) {
        text_copy(w->trouble, sizeof(w->trouble), ((const struct control_trouble *)message)->text);
    } else if (m->type == CONTROL_DRAIN) {
        drain_told(w, message, length);
    } else if (m->type == CONTROL_RETIRE) {
        control_close(w); /* nothing comes after it */
        w->channel_ops->retire(w);
    } else {
        log_error("the broker sent a message of type %u and %zu bytes with %d file descriptors", m->type, length, nfds);
        fds_close(fds, nfds);
    }
    if (w->control >= 0)
        (void)spare_take(w);
}

/* The spare descriptor makes room for the one that a message may bring, so that it can be answered though the table is full. Another
 * thread may take that place in between: then the message has lost its descriptor, which is that message's error and no more. */
static void control_read(evutil_socket_t sock, short what, void *arg)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX]; /* the engine is one thread */
    struct worker *w = arg;
    int fds[FCC_MAX_FDS], nfds = 0;

    (void)what;
    spare_let_go(w);
    ssize_t n = msg_recv(sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds);
    if (n > 0) {
        control_handle(w, buf, (size_t)n, fds, nfds);
    } else if (n != -EAGAIN) {
        channel_over(w);
    }
}

int control_open(struct worker *w)
{
    w->control_event = event_new(w->base, w->control, EV_READ | EV_PERSIST, control_read, w);
    w->control_write_event = event_new(w->base, w->control, EV_WRITE, letters_send, w);
    if (!w->control_event || !w->control_write_event || event_add(w->control_event, NULL))
        return -ENOMEM;
    (void)spare_take(w);
    return 0;
}
