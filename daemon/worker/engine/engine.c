/* SPDX-License-Identifier: MIT
 *
 * engine.c - the calls by which other threads hand launches back to the engine and wake it.
 *
 * The engine polls. Before it sleeps it stores engine_sleeps, then checks once more everything that other threads store for it. A thread
 * stores its news, then loads engine_sleeps. All four accesses are sequentially consistent. So either the engine sees the news, or the thread
 * sees that the engine sleeps, and writes wake_fd.
 */
#include "daemon/worker/engine/engine.h"

#include <unistd.h>

#include "daemon/worker/engine/channel.h"

void worker_launch_give(struct worker *w, struct finished *f)
{
    struct finished *top = atomic_load_explicit(&w->finished, memory_order_relaxed);

    /* release: the engine sees all that the workgroups wrote; seq_cst: before the look at engine_sleeps */
    do
        f->next = top;
    while (!atomic_compare_exchange_weak_explicit(&w->finished, &top, f, memory_order_seq_cst, memory_order_relaxed));
}

void worker_launch_finished(struct worker *w, struct finished *f)
{
    worker_launch_give(w, f);
    worker_wake(w);
}

void worker_wake(struct worker *w)
{
    uint64_t one = 1;

    if (atomic_load_explicit(&w->engine_sleeps, memory_order_seq_cst) && write(w->wake_fd, &one, sizeof(one)) < 0)
        return; /* the counter is full: the engine has been woken */
}

struct finished *worker_launches_take(struct worker *w)
{
    struct finished *f, *next, *first = NULL;

    if (!atomic_load_explicit(&w->finished, memory_order_relaxed))
        return NULL;
    for (f = atomic_exchange_explicit(&w->finished, NULL, memory_order_acquire); f; f = next) {
        next = f->next;
        f->next = first;
        first = f;
    }
    return first;
}

void worker_on_wake(evutil_socket_t fd, short what, void *arg)
{
    uint64_t n;

    (void)what, (void)arg; /* the loop polls */
    if (read(fd, &n, sizeof(n)) < 0)
        return; /* read before */
}

void worker_idle_watch(struct worker *w, uint32_t at_least_ms)
{
    uint32_t ms = w->config.worker_idle_ms > at_least_ms ? w->config.worker_idle_ms : at_least_ms;
    struct timeval idle = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 + 1};

    if (TAILQ_EMPTY(&w->sessions)) {
        (void)event_add(w->idle_event, &idle);
    } else {
        (void)event_del(w->idle_event);
        w->idle_ns = 0;
    }
}

void worker_sessions_tell(struct worker *w)
{
    struct control_sessions m = {
        .msg = {.type = CONTROL_SESSIONS}, .sessions = w->nclients, .controls = w->ncontrols, .got = w->sessions_got};

    (void)control_send(w, &m.msg, sizeof(m)); /* if the broker is gone, nobody counts them */
}

void worker_sessions_changed(struct worker *w)
{
    worker_sessions_tell(w);
    worker_idle_watch(w, 0);
}
