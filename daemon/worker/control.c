/* SPDX-License-Identifier: MIT
 *
 * control.c - the worker's end of the control channel (control.h), and the user's memory account that is kept over it.
 */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "msg.h"
#include "peer.h"
#include "worker.h"

#define ANSWER_MS 2000 /* the broker never waits for anything: it answers at once or is dead */

/* A message that came while the answer to a charge was awaited: handled afterwards, in order, by the event loop. */
struct deferred {
    TAILQ_ENTRY(deferred) link; /* worker.deferred */
    int fds[FCC_MAX_FDS], nfds; /* owned */
    size_t length;
    _Alignas(16) unsigned char bytes[];
};

void control_close(struct worker *w)
{
    if (w->control < 0)
        return;
    if (w->control_event)
        event_free(w->control_event);
    w->control_event = NULL;
    (void)close(w->control);
    w->control = -1;
}

static void control_handle(struct worker *w, const void *message, size_t length, const int *fds, int nfds)
{
    const struct fcc_msg *m = message;

    if (m->type == CONTROL_SESSION && length == sizeof(struct control_session) && nfds == 1) {
        worker_handed(w);
        w->sessions_got++;
        session_open(w, fds[0], message);
    } else if (m->type == CONTROL_PEER && length == sizeof(struct control_peer) && nfds == 1) {
        worker_handed(w);
        peer_arrived(w, message, fds[0]);
    } else if (m->type == CONTROL_CONNECTED && length == sizeof(struct control_connected) && nfds <= 1) {
        peer_connected(w, message, nfds ? fds[0] : -1);
    } else if (m->type == (CONTROL_CHARGE | FCC_REPLY)) {
        return; /* came too late: the charge was decided here */
    } else if (m->type == CONTROL_DRAIN) {
        worker_drain(w);
    } else if (m->type == CONTROL_RETIRE) {
        control_close(w); /* nothing comes after it */
        worker_retire(w);
    } else {
        log_error("the broker sent a message of type %u and %zu bytes with %d file descriptors", m->type, length, nfds);
        fds_close(fds, nfds);
    }
}

static void deferred_handle(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;
    struct deferred *d;

    (void)sock, (void)what;
    while ((d = TAILQ_FIRST(&w->deferred))) {
        TAILQ_REMOVE(&w->deferred, d, link);
        control_handle(w, d->bytes, d->length, d->fds, d->nfds);
        free(d);
    }
}

static void control_defer(struct worker *w, const void *message, size_t length, const int *fds, int nfds)
{
    static const struct timeval at_once;
    struct deferred *d = malloc(sizeof(*d) + length);

    if (!d) {
        log_error("out of memory: a message of the broker is lost");
        fds_close(fds, nfds);
        return;
    }
    memcpy(d->bytes, message, length);
    d->length = length;
    d->nfds = nfds;
    memcpy(d->fds, fds, (size_t)nfds * sizeof(fds[0]));
    TAILQ_INSERT_TAIL(&w->deferred, d, link);
    (void)event_add(w->deferred_event, &at_once);
}

static void control_read(evutil_socket_t sock, short what, void *arg)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX]; /* the engine is one thread */
    struct worker *w = arg;
    int fds[FCC_MAX_FDS], nfds = 0;

    (void)what;
    deferred_handle(-1, 0, w); /* what came before comes first */
    if (w->control < 0)
        return;
    ssize_t n = msg_recv(sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds);
    if (n > 0) {
        control_handle(w, buf, (size_t)n, fds, nfds);
    } else if (n != -EAGAIN) {
        log_warning("the broker is gone; serving on until the last client has left");
        control_close(w);
    }
}

int control_open(struct worker *w)
{
    w->control_event = event_new(w->base, w->control, EV_READ | EV_PERSIST, control_read, w);
    w->deferred_event = evtimer_new(w->base, deferred_handle, w);
    return !w->control_event || !w->deferred_event || event_add(w->control_event, NULL) ? -ENOMEM : 0;
}

void control_end(struct worker *w)
{
    struct deferred *d;

    control_close(w);
    while ((d = TAILQ_FIRST(&w->deferred))) {
        TAILQ_REMOVE(&w->deferred, d, link);
        fds_close(d->fds, d->nfds);
        free(d);
    }
    if (w->deferred_event)
        event_free(w->deferred_event);
}

/* ---- memory account ---- */

static int answer_await(struct worker *w, uint64_t id, struct control_charge *answer)
{
    _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    uint64_t until = clock_ns() + ANSWER_MS * 1000000ull;
    const struct control_charge *m = (const struct control_charge *)buf;

    while (clock_ns() < until) {
        struct pollfd p = {.fd = w->control, .events = POLLIN};
        int fds[FCC_MAX_FDS], nfds = 0;
        if (poll(&p, 1, ANSWER_MS) < 0 && errno != EINTR)
            return -errno;
        ssize_t n = msg_recv(w->control, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds);
        if (n == -EAGAIN)
            continue;
        if (n <= 0)
            return -EPIPE; /* the event loop will notice too */
        if (n != sizeof(*m) || m->msg.type != (CONTROL_CHARGE | FCC_REPLY)) {
            control_defer(w, buf, (size_t)n, fds, nfds);
            continue;
        }
        if (m->msg.id != id)
            continue; /* the answer to one that was given up */
        *answer = *m;
        return 0;
    }
    return -ETIMEDOUT;
}

int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e)
{
    struct control_charge m = {.msg = {.type = CONTROL_CHARGE, .id = ++w->charges}, .bytes = (int64_t)bytes};
    struct control_charge answer = {.limit = config_memory_per_user(&w->config), .used = w->memory_bytes};
    int status = w->control >= 0 ? msg_send(w->control, &m.msg, sizeof(m), NULL, 0) : -EPIPE;

    if (!status)
        status = answer_await(w, m.msg.id, &answer);
    if (status) /* the broker is gone: its limit stands, for what this worker knows of */
        answer.status = bytes > answer.limit || w->memory_bytes > answer.limit - bytes ? -ENOMEM : 0;
    if (answer.status)
        return error_set(e, -ENOMEM, "memory: %llu bytes: user %u has %llu of the %llu bytes allowed (MEMORY_PER_USER_MB)",
                         (unsigned long long)bytes, w->uid, (unsigned long long)answer.used, (unsigned long long)answer.limit);
    w->memory_bytes += bytes;
    return 0;
}

void worker_memory_release(struct worker *w, uint64_t bytes)
{
    struct control_charge m = {.msg = {.type = CONTROL_CHARGE}, .bytes = -(int64_t)bytes};

    w->memory_bytes -= bytes;
    if (w->control >= 0)
        (void)msg_send(w->control, &m.msg, sizeof(m), NULL, 0);
}
