/* SPDX-License-Identifier: MIT
 *
 * leave.c - makes the kernels of an aborted launch leave.
 *
 * A kernel that has begun polls its ranks' failure epochs, in memory that no client can access. A kernel that has not begun waits for words
 * that clients can write: those of their streams. The worker stores values there that let it begin. A client may overwrite them, even after its connection has ended, before the GPU has read them. So the worker checks the
 * words periodically until the kernels have left.
 */
#include "daemon/worker/device/gpu/leave.h"

#include <errno.h>

#include "daemon/worker/device/gpu/stream.h"
#include "daemon/worker/device/launch.h"

#define AGAIN_MS 10

static void look_again(struct gpus *g)
{
    static const struct timeval period = {.tv_usec = AGAIN_MS * 1000};

    if (!evtimer_pending(g->leave_event, NULL))
        (void)event_add(g->leave_event, &period);
}

static void on_time(evutil_socket_t sock, short what, void *arg)
{
    struct gpus *g = arg;
    struct launch *l;
    bool any = false;

    (void)sock, (void)what;
    TAILQ_FOREACH(l, &g->leaving, leaving)
        if (!l->left) {
            streams_pass(l);
            any = true;
        }
    if (any)
        look_again(g);
}

int gpu_leave_open(struct gpus *g, struct error *e)
{
    g->leave_event = evtimer_new(g->worker->base, on_time, g);
    return g->leave_event ? 0 : error_set(e, -ENOMEM, "no memory for GPUs");
}

void gpu_leave_close(struct gpus *g)
{
    event_free(g->leave_event);
}

/* Set the ranks' failure epochs: the kernels of all launches up to this epoch leave. */
static void epoch_fail(struct device_comm *c, uint64_t epoch)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct device_rank *rank = &c->ranks[r];
        if (!rank->device)
            continue; /* another node's */
        uint64_t failed = (uint64_t)(uintptr_t)rank->flags.data + PLAN_MAX_FLAGS * sizeof(uint64_t);
        gpus_word_store(c->worker->gpus, rank->device->index, failed, epoch);
    }
}

static void launch_leave(struct launch *l)
{
    struct gpus *g = l->worker->gpus;

    if (!l->leaves)
        TAILQ_INSERT_TAIL(&g->leaving, l, leaving);
    l->leaves = true;
    streams_pass(l);
    look_again(g);
}

void gpu_launch_has_left(struct launch *l)
{
    if (l->leaves)
        TAILQ_REMOVE(&l->worker->gpus->leaving, l, leaving);
    l->leaves = false;
}

void gpus_launch_abort(struct launch *l)
{
    if (l->gated)
        return;
    epoch_fail(l->comm, l->epoch);
    launch_leave(l);
}

void gpus_comm_abort(struct device_comm *c)
{
    if (c->current->gated)
        return; /* it is the only one */
    epoch_fail(c, c->newest->epoch);
    for (struct launch *l = c->current; l; l = l->following) {
        launch_leave(l);
        atomic_store_explicit(&l->dropped, true, memory_order_relaxed);
    }
}
