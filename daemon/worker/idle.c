/* SPDX-License-Identifier: MIT
 *
 * idle.c - when a worker ends by itself: it has had no session for WORKER_IDLE_MS, none of its operators runs, and the broker says that no
 * session is on its way.
 */
#include "daemon/worker/idle.h"

#include <errno.h>

#include "daemon/worker/engine/channel.h"
#include "daemon/worker/nodes/peer.h"
#include "proto/base/clock.h"

#define IDLE_AGAIN_MS 20 /* interval at which an idle worker that cannot end yet checks again */

bool worker_anything_runs(const struct worker *w)
{
    const struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->dev.current)
            return true;
    return false;
}

void worker_adopted(struct worker *w)
{
    if (w->retiring)
        peers_resume(w);
    w->retiring = false;
    worker_idle_watch(w, 0);
}

void worker_handed(struct worker *w)
{
    w->handed++;
    worker_adopted(w); /* the connection has the full idle time to become a client or a peer with ranks */
}

void worker_retire(struct worker *w)
{
    w->quit = TAILQ_EMPTY(&w->sessions); /* always true: the broker answers only if it has handed over nothing since */
}

/* The worker has been idle: if it has no communicator and nothing unsent, ask the broker whether it may end. A connection that the broker hands
 * over meanwhile means that it may not (control.h). */
static void retire_ask(struct worker *w)
{
    struct control_retire m = {.msg = {.type = CONTROL_RETIRE}, .handed = w->handed};

    if (w->control < 0) {
        w->quit = true;
    } else if (!w->retiring && LIST_EMPTY(&w->comms) && !peers_are_busy(w)) {
        w->retiring = true;
        peers_pause(w);
        if (control_send(w, &m.msg, sizeof(m)))
            control_close(w);
    }
    worker_idle_watch(w, IDLE_AGAIN_MS); /* the worker may have to stay, or the broker may be gone */
}

void worker_on_idle(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;

    (void)sock, (void)what;
    if (worker_anything_runs(w) && !w->idle_ns)
        w->idle_ns = clock_ns();
    if (worker_anything_runs(w) && clock_ns() - w->idle_ns < (uint64_t)w->config.drain_ms * 1000000u) {
        worker_idle_watch(w,
                          IDLE_AGAIN_MS); /* an operator whose clients are gone has been told to leave, and has not left yet */
        return;
    }
    if (worker_anything_runs(w)) { /* its kernel does not return, so the device cannot be closed in order */
        (void)error_set(&w->lost, -EIO, "an operator without clients has not left its device within %u ms", w->config.drain_ms);
        w->quit = true;
        return;
    }
    retire_ask(w);
}
