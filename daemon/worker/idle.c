/* SPDX-License-Identifier: MIT
 *
 * idle.c - when a worker ends by itself: it has had no session for WORKER_IDLE_MS, none of its operators runs, and the broker says that no
 * session is on its way.
 */
#include "daemon/worker/idle.h"

#include <errno.h>

#include "daemon/worker/nodes/peer.h"
#include "daemon/worker/worker.h"
#include "proto/base/clock.h"

#define IDLE_AGAIN_MS 20 /* who is idle and has to stay looks this often whether it still has to, at most */

static void idle_watch_for(struct worker *w, uint32_t ms)
{
    struct timeval idle = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 + 1};

    if (TAILQ_EMPTY(&w->sessions)) {
        (void)event_add(w->idle_event, &idle);
    } else {
        (void)event_del(w->idle_event);
        w->idle_ns = 0;
    }
}

static void idle_watch(struct worker *w)
{
    idle_watch_for(w, w->config.worker_idle_ms);
}

/* It could not go: look again soon, but not all the time. */
static void idle_watch_again(struct worker *w)
{
    idle_watch_for(w, w->config.worker_idle_ms > IDLE_AGAIN_MS ? w->config.worker_idle_ms : IDLE_AGAIN_MS);
}

void worker_sessions_changed(struct worker *w)
{
    struct control_sessions m = {
        .msg = {.type = CONTROL_SESSIONS}, .sessions = w->nclients, .controls = w->ncontrols, .got = w->sessions_got};

    (void)control_send(w, &m.msg, sizeof(m)); /* if the broker is gone, nobody counts them */
    idle_watch(w);
}

bool worker_anything_runs(const struct worker *w)
{
    const struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->current)
            return true;
    return false;
}

void worker_handed(struct worker *w)
{
    w->handed++;
    if (w->retiring)
        peers_resume(w);
    w->retiring = false;
    idle_watch(w); /* what was handed over has the whole time to become a client or a rank */
}

void worker_retire(struct worker *w)
{
    w->quit = TAILQ_EMPTY(&w->sessions); /* always so: the broker has counted what it handed over */
}

/* No client for a while, no rank of another node's that waits for one, nothing unsent: ask the broker whether something is on its way.
 * What it has handed over meanwhile is the answer no (control.h). */
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
    idle_watch_again(w); /* if it has to stay, or the broker is gone */
}

void worker_on_idle(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;

    (void)sock, (void)what;
    if (worker_anything_runs(w) && !w->idle_ns)
        w->idle_ns = clock_ns();
    if (worker_anything_runs(w) && clock_ns() - w->idle_ns < (uint64_t)w->config.drain_ms * 1000000u) {
        idle_watch_again(w); /* an operator of clients that are gone: it has been told to leave */
        return;
    }
    if (worker_anything_runs(w)) { /* its kernel does not come back: there is nothing that can be taken down in order */
        (void)error_set(&w->lost, -EIO, "an operator without clients has not left its device within %u ms", w->config.drain_ms);
        w->quit = true;
        return;
    }
    retire_ask(w);
}
