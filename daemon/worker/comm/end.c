/* SPDX-License-Identifier: MIT
 *
 * end.c - how a communicator ends: aborted, left by its ranks, or drained with its worker.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/share.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/trace.h"
#include "daemon/worker/comm/track.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/comm/unformed.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "proto/base/log.h"

static void queue_fail(struct member *m, int status, const char *text)
{
    struct submission *sub, *next;
    bool kept = true; /* what has begun belongs to its launch: its memory may still be in use */

    (void)pthread_mutex_lock(&m->comm->worker->tell_lock);
    for (sub = TAILQ_FIRST(&m->queue); sub; sub = next) {
        kept &= sub != m->next;
        next = TAILQ_NEXT(sub, link);
        /* A kernel that still runs will set the slot's stream word: the slot must not have a new owner before. It leaves at
         * once. Over nodes the proxy sends from the rank's inputs and results until END has come back (nodes/triggers.c): they are
         * not the client's again before, so it is told when the launch is handed back (launch_finish()). */
        if (!kept || (!sub->stream && !m->comm->nodes))
            submission_tell(sub, status, text, NULL, 0);
        if (kept)
            continue;
        TAILQ_REMOVE(&m->queue, sub, link);
        m->queued--;
        METER_GAUGE(m->comm->worker, queued, -1);
        submission_free(sub);
    }
    (void)pthread_mutex_unlock(&m->comm->worker->tell_lock);
    m->next = NULL;
}

static void member_go(struct member *m)
{
    if (m->comm->regroup)
        m->comm->worker->regroup->forget(m);
    if (!m->remote) {
        prepared_leave(m);
        LIST_REMOVE(m, link);
        status_word_give(m->session, m->status_word);
        m->comm->here--;
    } else {
        span(m->comm)->puts_rank_gone(m->comm, m->rank);
    }
    m->state = MEMBER_LEFT;
    m->session = NULL;
    m->comm->present--;
}

void comm_status_raise(const struct comm *c, int status)
{
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].state == MEMBER_JOINED && !c->members[r].remote)
            status_word_raise(c->members[r].session, c->members[r].status_word, status);
    c->worker->track->ended(c, status);
}

/* "pid 123", or "pid 123 on node 10.0.0.2:7711" */
static const char *member_where(const struct member *m, char text[FCC_NODE_MAX + 32])
{
    const char *address = m->remote ? span(m->comm)->address(m) : "";

    (void)snprintf(text, FCC_NODE_MAX + 32, "pid %d%s%s", m->pid, *address ? " on node " : "", address);
    return text;
}

void comm_abort(struct comm *c, int status, const char *format, ...)
{
    enum comm_state before = c->state;
    char text[FCC_TEXT_MAX];
    struct rankset told = {{0}};
    va_list ap;

    if (before == COMM_ABORTED)
        return;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    (void)text_clean(text);
    (void)error_set(&c->error, status, "%s", text);
    log_warning("comm %u: aborted: %s", c->number, text);
    c->state = COMM_ABORTED;
    meter_aborted(c->worker, status, c->asked);
    flight_close(c->flight, FLIGHT_COMM_ABORTED, status, text);
    c->deadline_ns = 0;
    comm_hold_end(c);
    /* The word that every wait polls. Relaxed: it carries no data; who leaves hands its part back with a release. */
    atomic_store_explicit(&c->dev.shared->status, status, memory_order_relaxed);
    if (c->dev.current && c->dev.ops->number != FCC_DEVICE_CPU)
        gpus_comm_abort(&c->dev);
    prepared_abort(c);
    comm_status_raise(c, status);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        queue_fail(m, status, text); /* clients are told at once; a running launch leaves by itself and is freed then */
        if (before == COMM_FORMING && m->state == MEMBER_JOINED) {
            rankset_add(&told, r);
            if (!m->remote)
                comm_join_answer(m, status, text);
            member_go(m);
        }
    }
    if (before == COMM_FORMING && (!c->nodes || span(c)->is_root(c)) && status != -ESHUTDOWN)
        unformed_note(c->worker, &c->unique_id, &told, c->dev.time_limit_ms, &c->error);
    if (c->nodes)
        span(c)->aborted(c, before == COMM_FORMING);
    trace_waiters_answer(c, &c->error);
}

/* m leaves, and its next request is wrong. Other ranks that already wait in the same turn get that error. True: there was such an error; the
 * caller names it in the reason for which the communicator ends. */
static bool refusal_tell(struct member *m, struct error *refused)
{
    struct comm *c = m->comm;

    if (!m->next || !m->next->error.status || c->state != COMM_ACTIVE)
        return false;
    *refused = m->next->error;
    (void)pthread_mutex_lock(&c->worker->tell_lock);
    for (int r = 0; r < c->nranks; r++) {
        struct member *other = &c->members[r];
        struct submission *sub = other->next;
        if (!sub || other == m)
            continue;
        other->next = TAILQ_NEXT(sub, link);
        TAILQ_REMOVE(&other->queue, sub, link);
        other->queued--;
        METER_GAUGE(c->worker, queued, -1);
        submission_tell(sub, refused->status, refused->text, NULL, 0);
        submission_free(sub);
    }
    (void)pthread_mutex_unlock(&c->worker->tell_lock);
    return true;
}

void comm_abort_left(struct comm *c, int rank)
{
    char where[FCC_NODE_MAX + 32];

    if (c->nodes && !c->dev.current)
        span(c)->ends_well(c);
    comm_abort(c, -ECONNABORTED, "rank %d (%s) has left the communicator", rank, member_where(&c->members[rank], where));
}

/* m leaves: end the communicator for the other ranks, if they wait for it. */
static void leave_tell(struct member *m, const char *why)
{
    struct comm *c = m->comm;
    const struct submission *head = TAILQ_FIRST(&m->queue);
    char where[FCC_NODE_MAX + 32];
    struct error refused = {0};
    bool busy = false;

    (void)member_where(m, where);
    if (refusal_tell(m, &refused))
        comm_abort(c, -ECONNABORTED, "rank %d (%s) %s; before that: %.300s", m->rank, where,
                   why ? "is gone" : "has left the communicator", refused.text);
    for (int r = 0; r < c->nranks; r++)
        busy |= !TAILQ_EMPTY(&c->members[r].queue);
    busy |= prepared_awaits(m, why != NULL);
    if (why && c->dev.current)
        comm_abort(c, -ECONNABORTED, "rank %d (%s) is gone: %s while %s #%llu was running", m->rank, where, why,
                   op_name(c->dev.current->problem->op), (unsigned long long)c->dev.current->span.number);
    else if (why && (busy || c->state == COMM_FORMING))
        comm_abort(c, -ECONNABORTED, "rank %d (%s) is gone: %s before %s", m->rank, where, why,
                   c->state == COMM_FORMING ? "all ranks had joined" : "it came to the others' operator");
    else if (c->state == COMM_FORMING && !m->remote) /* a remote rank may have left after its node received GO */
        comm_abort(c, -ECONNABORTED, "rank %d (%s) destroyed the communicator before all ranks had joined", m->rank, where);
    else if (head || c->dev.current)
        comm_abort(c, -ECONNABORTED, "rank %d (%s) destroyed the communicator with operators in flight", m->rank, where);
    else if (busy) /* the others wait for an operator that m will not submit */
        comm_abort_left(c, m->rank);
    if (m->state != MEMBER_JOINED)
        return; /* comm_abort() of a forming one has let it go */
    struct submission *sub;
    (void)pthread_mutex_lock(&c->worker->tell_lock);
    TAILQ_FOREACH(sub, &m->queue, link)
        sub->session = NULL;
    (void)pthread_mutex_unlock(&c->worker->tell_lock);
    member_go(m);
    if (why || !m->remote) /* what another node's rank has put last may still be on its way: it tells by LEFT */
        comm_status_raise(c, -ECONNABORTED);
    if (why && c->state == COMM_ACTIVE) /* the others will hear who, at their next operator */
        (void)error_set(&c->error, -ECONNABORTED, "rank %d (%s) is gone: %s", m->rank, where, why);
}

void comm_leave(struct member *m, const char *why)
{
    struct comm *c = m->comm;

    c->worker->track->close(m); /* before its puts, which its rules trigger */
    if (m->puts)
        span(c)->puts_close(m);
    leave_tell(m, why);
    if (c->nodes)
        span(c)->left(m, why);
    if (c->regroup)
        c->worker->regroup->look(c);
    comm_release(c);
}

void comm_leave_remote(struct member *m, const char *why)
{
    if (m->state == MEMBER_JOINED)
        leave_tell(m, why);
    if (m->comm->regroup)
        m->comm->worker->regroup->look(m->comm);
}

void comm_release(struct comm *c)
{
    /* One that forms here may have ranks on other nodes only, so far. */
    if ((c->state == COMM_FORMING ? c->present : c->here) > 0 || c->dev.current)
        return;
    flight_close(c->flight, FLIGHT_COMM_LEFT, 0, "");
    METER_GAUGE(c->worker, communicators, -(int)c->counted);
    for (int r = 0; r < c->nranks; r++) /* of remote ranks, whose operators will not come */
        METER_GAUGE(c->worker, queued, -(int)c->members[r].queued);
    trace_waiters_answer(c, &(struct error){.status = -ENOENT, .text = "the communicator has ended"});
    prepared_close(c);
    if (c->regroup)
        c->worker->regroup->free(c);
    if (c->nodes)
        span(c)->release(c);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        if (m->dev->device) {
            device_memory_free(m->dev->device, &m->dev->staging);
            device_memory_free(m->dev->device, &m->dev->slots);
            device_memory_free(m->dev->device, &m->dev->flags);
        }
    }
    while (c->cache) {
        struct launch *l = c->cache;
        c->cache = l->next_cached;
        launch_forget(l);
    }
    c->dev.ops->comm_close(&c->worker->devices[0], &c->dev);
    comm_hold_end(c);
    event_drop(&c->hold_event);
    event_free(c->timer);
    LIST_REMOVE(c, link);
    if (c->worker->awaits == c)
        c->worker->awaits = NULL;
    free(c->tune);
    free(c->args);
    problem_free(c->problem);
    free(c->dev.ranks);
    worker_count_give(c->worker, ACCOUNT_COMMS);
    free(c);
}

void comm_drain(struct worker *w)
{
    struct comm *c, *next;

    LIST_FOREACH_SAFE(c, &w->comms, link, next) {
        if (!c->dev.current)
            comm_abort(c, -ESHUTDOWN, "%s", c->worker->ending);
        comm_release(c);
    }
}
