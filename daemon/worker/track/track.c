/* SPDX-License-Identifier: MIT
 *
 * track.c - trackers and their rules: how they begin and end.
 */
#include "daemon/worker/track/track.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/track/inside.h"
#include "proto/sealed.h"

/* ---- the thread ---- */

/* What the kernel has refused: among the errors that fccclient.h names. */
static void kernel_error(struct error *e, int status, const char *what)
{
    (void)error_set(e,
                    status == -ENFILE                        ? -EMFILE
                    : status == -EAGAIN || status == -ENOSPC ? -ENOMEM
                                                             : status,
                    "tracker: its %s: %s", what, strerror(-status));
}

/* Makes an eventfd that wakes the thread. 0 or -errno, with *fd to be closed. */
static int bell_make(const struct tracking *all, int *fd)
{
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET};

    *fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return *fd < 0 || epoll_ctl(all->epoll, EPOLL_CTL_ADD, *fd, &edge) ? -errno : 0;
}

/* The client may have the file still, so closing the descriptor does not take it out of the thread's sight. */
static void bell_end(const struct tracking *all, int *fd)
{
    if (*fd >= 0)
        (void)epoll_ctl(all->epoll, EPOLL_CTL_DEL, *fd, NULL);
    fd_close(fd);
}

static void tracking_free(struct tracking *all)
{
    fd_close(&all->wake);
    fd_close(&all->epoll);
    (void)pthread_mutex_destroy(&all->lock);
    free(all);
}

/* On an error w->tracking stays NULL. */
static void tracking_start(struct worker *w, struct error *e)
{
    struct tracking *all = calloc(1, sizeof(*all));
    int status;

    if (!all) {
        (void)error_set(e, -ENOMEM, "tracker: out of memory");
        return;
    }
    all->worker = w;
    all->wake = -1;
    (void)pthread_mutex_init(&all->lock, NULL);
    LIST_INIT(&all->trackers);
    all->epoll = epoll_create1(EPOLL_CLOEXEC);
    status = all->epoll < 0 ? -errno : bell_make(all, &all->wake);
    if (!status)
        status = -pthread_create(&all->thread, NULL, work_main, all);
    if (status) {
        tracking_free(all);
        kernel_error(e, status, "thread");
        return;
    }
    w->tracking = all;
}

void track_close(struct worker *w)
{
    struct tracking *all = w->tracking;

    if (!all)
        return;
    assert(LIST_EMPTY(&all->trackers));
    atomic_store_explicit(&all->stop, true, memory_order_seq_cst);
    (void)eventfd_write(all->wake, 1);
    (void)pthread_join(all->thread, NULL);
    tracking_free(all);
    w->tracking = NULL;
}

/* ---- trackers ---- */

static void tracker_free(struct tracker *t)
{
    gpu_words_close(t); /* it looks at the rules */
    for (uint32_t i = 0; i < t->nrules; i++) {
        puts_rule_end(&t->rules[i]->put);
        free(t->rules[i]);
    }
    bell_end(t->all, &t->bell);
    if (t->memory) {
        (void)munmap(t->memory, sizeof(*t->memory));
        (void)close(t->fd);
        worker_memory_release(t->all->worker, sizeof(*t->memory) + sizeof(*t->runs));
    }
    free(t->runs);
    free(t);
}

static int memory_make(struct tracker *t, struct error *e)
{
    const uint64_t bytes = sizeof(*t->memory) + sizeof(*t->runs);
    void *memory = NULL;
    int status = worker_memory_charge(t->all->worker, bytes, e);

    if (status)
        return status;
    t->runs = calloc(1, sizeof(*t->runs));
    status = !t->runs ? -ENOMEM : sealed_memory_make("fccd-tracker", sizeof(*t->memory), &memory, &t->fd);
    if (status) {
        worker_memory_release(t->all->worker, bytes);
        return error_set(e, status == -ENOSPC ? -ENOMEM : status, "tracker: %s", strerror(-status));
    }
    t->memory = memory;
    return 0;
}

/* Whether the rank may have a tracker, or rules. */
static int member_check(const struct member *m, struct error *e)
{
    const struct comm *c = m->comm;

    if (c->error.status)
        return error_set(e, c->error.status, "%s", c->error.text);
    return 0;
}

int track_open(struct member *m, int fds[2], struct error *e)
{
    struct worker *w = m->comm->worker;
    struct tracker *t;
    int status;

    if (member_check(m, e))
        return e->status;
    if (m->tracker)
        return error_set(e, -EALREADY, "rank %d: tracker: it has one of this communicator already", m->rank);
    if (!w->tracking)
        tracking_start(w, e);
    if (!w->tracking)
        return e->status;
    t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, -ENOMEM, "tracker: out of memory");
    t->all = w->tracking;
    t->member = m;
    t->fd = t->bell = -1;
    status = bell_make(t->all, &t->bell);
    if (status)
        kernel_error(e, status, "bell");
    if (status || memory_make(t, e) || (m->dev->device->ops->number != FCC_DEVICE_CPU && gpu_words_open(t, e))) {
        tracker_free(t);
        return e->status;
    }
    tracking_lock(t->all);
    LIST_INSERT_HEAD(&t->all->trackers, t, link);
    tracking_unlock(t->all);
    (void)eventfd_write(t->all->wake, 1); /* a thread that sleeps already has not said so to this tracker's producers */
    m->tracker = t;
    fds[0] = t->fd;
    fds[1] = t->bell;
    return 0;
}

/* Streams of the client that wait for a rule go on, and nobody takes that back. */
static void streams_release(struct tracker *t, int status)
{
    int32_t none = 0;

    (void)atomic_compare_exchange_strong_explicit(&t->memory->ended, &none, status, memory_order_release, memory_order_relaxed);
}

static void ops_close(struct member *m)
{
    struct tracker *t = m->tracker;

    if (!t)
        return;
    m->tracker = NULL;
    tracking_lock(t->all); /* from here on the thread is not in it */
    LIST_REMOVE(t, link);
    for (uint32_t i = 0; i < t->nrules; i++) { /* a thread of the client may wait for it, and there is no time limit any more */
        if (!t->rules[i]->status)
            t->rules[i]->status = -ENOENT;
        rule_tell(t, t->rules[i]);
    }
    streams_release(t, -ENOENT);
    gpu_rules_settle(t);
    tracking_unlock(t->all);
    tracker_free(t);
}

int track_free(struct member *m, struct error *e)
{
    if (!m->tracker)
        return error_set(e, -ENOENT, "rank %d: tracker: it has none of this communicator", m->rank);
    ops_close(m);
    return 0;
}

/* ---- rules ---- */

int track_rule(struct member *m, const struct fcc_rule_msg *msg, uint32_t *number, struct error *e)
{
    struct tracker *t = m->tracker;
    struct rule *r;

    if (member_check(m, e))
        return e->status;
    if (!t)
        return error_set(e, -ENOENT, "rank %d: rule: the rank has no tracker of this communicator", m->rank);
    if (t->nrules == FCC_RULES_MAX)
        return error_set(e, -ENOMEM, "rank %d: rule: the tracker has %u rules, and places for no more", m->rank, t->nrules);
    r = malloc(sizeof(*r));
    if (!r)
        return error_set(e, -ENOMEM, "rule: out of memory");
    if (rule_check(m, msg, r, e)) {
        free(r);
        return e->status;
    }
    tracking_lock(t->all);
    r->number = t->nrules;
    t->rules[t->nrules++] = r;
    atomic_store_explicit(&t->memory->rule[r->number].need, r->need, memory_order_release);
    tracking_unlock(t->all);
    *number = r->number;
    return 0;
}

/* ---- ends ---- */

static bool names(const struct rule *r, const struct buffer *b)
{
    for (size_t i = 0; i < sizeof(r->buffers) / sizeof(r->buffers[0]); i++)
        if (r->buffers[i] == b)
            return true;
    for (int i = 0; i < FCC_RULE_AWAITS; i++)
        if (r->awaits[i].buffer == b)
            return true;
    return false;
}

static void ops_buffer_freed(const struct buffer *b)
{
    struct tracking *all = b->device ? b->device->worker->tracking : NULL;
    struct tracker *t;

    if (!all)
        return;
    tracking_lock(all);
    LIST_FOREACH(t, &all->trackers, link)
        gpu_rules_settle(t); /* all of them: a look at words may be older than the end of the rule that names the buffer */
    LIST_FOREACH(t, &all->trackers, link)
        for (uint32_t i = 0; i < t->nrules; i++)
            if (names(t->rules[i], b)) {
                memset(t->rules[i]->awaits, 0, sizeof(t->rules[i]->awaits));
                t->rules[i]->status = -ENOENT;
                rule_tell(t, t->rules[i]);
            }
    tracking_unlock(all);
}

static void ops_ended(const struct comm *c, int status)
{
    struct tracking *all = c->worker->tracking;
    struct tracker *t;

    if (!all)
        return;
    tracking_lock(all);
    LIST_FOREACH(t, &all->trackers, link) {
        if (t->member->comm != c)
            continue;
        t->ended = true;
        streams_release(t, status); /* others learn it from their status words, which are raised already */
        for (uint32_t i = 0; i < t->nrules; i++)
            rule_tell(t, t->rules[i]);
    }
    tracking_unlock(all);
}

const struct track_ops track_over_rules = {
    .close = ops_close,
    .buffer_freed = ops_buffer_freed,
    .ended = ops_ended,
};

bool track_has_news(const struct worker *w)
{
    return w->tracking && atomic_load_explicit(&w->tracking->news, memory_order_seq_cst);
}

/* A tracker whose time limit has passed, and whose communicator has not been told yet. NULL: there is none. */
static struct comm *late_take(struct tracking *all, struct error *why)
{
    struct comm *c = NULL;
    struct tracker *t;

    tracking_lock(all);
    LIST_FOREACH(t, &all->trackers, link)
        if (t->late.status && !t->ended && t->member->comm->state == COMM_ACTIVE) {
            c = t->member->comm;
            *why = t->late;
            break;
        }
    tracking_unlock(all);
    return c;
}

bool track_poll(struct worker *w)
{
    struct error why;
    struct comm *c;

    if (!w->tracking || !atomic_load_explicit(&w->tracking->news, memory_order_relaxed))
        return false;
    atomic_store_explicit(&w->tracking->news, 0, memory_order_seq_cst);
    while ((c = late_take(w->tracking, &why))) {
        comm_abort(c, why.status, "%s", why.text);
        comm_release(c);
    }
    return true;
}
