/* SPDX-License-Identifier: MIT
 *
 * comm.c - communicators: whose turn it is, and how it ends.
 *
 * Each rank has a queue of submissions. The communicator takes the heads of all queues together as its next operator, and one
 * operator is finished on all ranks before the next begins: peers store into each other's result buffers, so a rank that
 * ran ahead could overwrite what a slower one has not read yet. On GPUs the next ones may be enqueued meanwhile, and then the
 * GPUs keep to that (device/gpu/device.c); here they count as running, and end in their order. Operators of several communicators are
 * given to the devices by this one engine, in one order for all devices, so communicators that share devices cannot wait for
 * each other in a circle.
 *
 * A rank on another node is a member without a session and a device: its submissions come from that node's worker, and the next
 * turn begins when that one has done with the one before, too (nodes/nodes.c).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/bound/offers.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/overlap.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/trace.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/comm/unformed.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "kernels/plan/spec.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define UNPAID_MAX 8192 /* submissions of all ranks that only say that there was no memory for them: some 12 MiB */

struct member *member_find(const struct session *s, uint32_t handle)
{
    struct member *m;

    LIST_FOREACH(m, &s->members, link)
        if (m->handle == handle)
            return m;
    return NULL;
}

int member_may_use(const struct member *m, struct error *e)
{
    if (m->comm->state != COMM_FORMING)
        return 0;
    return error_set(e, -EAGAIN, "rank %d: comm: %u: it still forms: not all ranks have joined", m->rank, m->handle);
}

/* ---- the end ---- */

static void queue_fail(struct member *m, int status, const char *text)
{
    struct submission *sub, *next;
    bool kept = true; /* what has begun belongs to its launch: its memory may still be in use */

    (void)pthread_mutex_lock(&m->comm->worker->tell_lock);
    for (sub = TAILQ_FIRST(&m->queue); sub; sub = next) {
        kept &= sub != m->next;
        next = TAILQ_NEXT(sub, link);
        /* A kernel that still runs will set the slot's stream word: the slot must not have a new owner before. It leaves at
         * once. */
        if (!kept || !sub->stream)
            submission_tell(sub, status, text, NULL, 0);
        if (kept)
            continue;
        TAILQ_REMOVE(&m->queue, sub, link);
        m->queued--;
        submission_free(sub);
    }
    (void)pthread_mutex_unlock(&m->comm->worker->tell_lock);
    m->next = NULL;
}

static void member_go(struct member *m)
{
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
    c->deadline_ns = 0;
    /* The word that every wait polls. Relaxed: it carries no data; who leaves hands its part back with a release. */
    atomic_store_explicit(&c->dev.shared->status, status, memory_order_relaxed);
    if (c->dev.current && c->dev.ops->number != FCC_DEVICE_CPU)
        gpus_comm_abort(&c->dev);
    prepared_abort(c);
    comm_status_raise(c, status);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        queue_fail(m, status, text); /* told at once; what runs leaves by itself and is freed then */
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

/* Its rank comes no more, and the next of its operators is wrong: the others, who wait for it in theirs, hear what it would have told them.
 * True: they have, or will hear of it in why the communicator has ended. */
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
        submission_tell(sub, refused->status, refused->text, NULL, 0);
        submission_free(sub);
    }
    (void)pthread_mutex_unlock(&c->worker->tell_lock);
    return true;
}

/* Ranks wait for one that has left in good order. Nodes where operators still run that have ended here let them end. */
static void abort_left(struct comm *c, int rank, const char *where)
{
    if (c->nodes && !c->dev.current)
        span(c)->ends_well(c);
    comm_abort(c, -ECONNABORTED, "rank %d (%s) has left the communicator", rank, where);
}

/* Its rank comes no more: how the communicator ends for the others, if they wait for it. */
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
    else if (c->state == COMM_FORMING && !m->remote) /* another node's may have heard GO before */
        comm_abort(c, -ECONNABORTED, "rank %d (%s) destroyed the communicator before all ranks had joined", m->rank, where);
    else if (head || c->dev.current)
        comm_abort(c, -ECONNABORTED, "rank %d (%s) destroyed the communicator with operators in flight", m->rank, where);
    else if (busy) /* the others wait for an operator to which this one will not come */
        abort_left(c, m->rank, where);
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

    if (m->puts)
        span(c)->puts_close(m);
    leave_tell(m, why);
    if (c->nodes)
        span(c)->left(m, why);
    comm_release(c);
}

void comm_leave_remote(struct member *m, const char *why)
{
    if (m->state == MEMBER_JOINED)
        leave_tell(m, why);
}

bool comm_is_only(const struct comm *mine)
{
    const struct comm *c;

    LIST_FOREACH(c, &mine->worker->comms, link)
        if (c != mine && c->dev.ops == mine->dev.ops)
            return false;
    return true;
}

void comm_release(struct comm *c)
{
    /* One that forms here may have ranks on other nodes only, so far. */
    if ((c->state == COMM_FORMING ? c->present : c->here) > 0 || c->dev.current)
        return;
    trace_waiters_answer(c, &(struct error){.status = -ENOENT, .text = "the communicator has ended"});
    prepared_close(c);
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
    event_free(c->timer);
    LIST_REMOVE(c, link);
    if (c->worker->awaits == c)
        c->worker->awaits = NULL;
    free(c->tune);
    free(c->args);
    free(c->problem);
    free(c->dev.ranks);
    free(c);
}

void comm_drain(struct worker *w)
{
    struct comm *c, *next;

    for (c = LIST_FIRST(&w->comms); c; c = next) {
        next = LIST_NEXT(c, link);
        if (!c->dev.current)
            comm_abort(c, -ESHUTDOWN, "%s", c->worker->ending);
        comm_release(c);
    }
}

/* ---- turns ---- */

void comm_submit(struct member *m, struct submission *sub, const struct fcc_submit *submit)
{
    struct comm *c = m->comm;
    struct error e = {0};

    if (c->state == COMM_ABORTED || c->worker->draining) {
        submission_tell(sub, c->state == COMM_ABORTED ? c->error.status : -ESHUTDOWN,
                        c->state == COMM_ABORTED ? c->error.text : c->worker->ending, NULL, 0);
        submission_free(sub);
        return;
    }
    if (m->queued >=
        (m->remote ? 2 * FCC_QUEUE_MAX : FCC_QUEUE_MAX)) { /* another node's rank: there its turns may have ended already */
        submission_tell(sub, -ENOMEM, "too many operators in flight: allowed are 1024", NULL, 0);
        submission_free(sub);
        comm_abort(c, -ENOMEM, "rank %d has %u operators in flight: allowed are %u", m->rank, m->queued + 1, FCC_QUEUE_MAX);
        return;
    }
    /* Another node's rank has been charged there: what this node does with its request, all do. */
    if (submission_charge(&sub, c->worker, &e) && (m->remote || c->worker->unpaid > UNPAID_MAX)) {
        submission_tell(sub, e.status, e.text, NULL, 0);
        submission_free(sub);
        comm_abort(c, e.status, "rank %d: %s", m->rank, e.text);
        return;
    }
    TAILQ_INSERT_TAIL(&m->queue, sub, link);
    m->queued++;
    m->alone = 0;
    if (!m->next)
        m->next = sub;
    if (c->nodes && !m->remote)
        span(c)->submitted(m, sub, submit);
    comm_advance(c);
    if (m->next && c->cache && c->cache->inline_)
        c->worker->awaits = c;
}

void turn_end(struct comm *c, const struct error *e)
{
    (void)launch_early_take(c, NULL);
    c->dev.turn_ns = clock_ns();
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct submission *sub = TAILQ_FIRST(&m->queue);
        assert(sub == m->next); /* nothing runs */
        m->next = TAILQ_NEXT(sub, link);
        TAILQ_REMOVE(&m->queue, sub, link);
        m->queued--;
        submission_tell(sub, e->status, e->text, NULL, 0);
        submission_free(sub);
    }
    if (c->nodes)
        span(c)->turn_ended(c);
}

/* Do the next submissions, none of which is wrong by itself, want the same? Otherwise: the error for all. */
static int turn_match(const struct comm *c, struct error *e)
{
    const struct submission *first = c->members[0].next;
    bool reads_others = false;

    for (int r = 0; r < c->nranks; r++) {
        const struct submission *sub = c->members[r].next;
        reads_others |= sub->reads_others;
        if (sub->kind != first->kind || (sub->kind == SUBMISSION_OPERATOR && sub->args.op != first->args.op))
            return error_set(e, -EINVAL, "the ranks are out of step: rank %d calls %s, rank 0 calls %s", r,
                             submission_name(sub), submission_name(first));
        if (sub->prepare != first->prepare)
            return error_set(e, -EINVAL, "the ranks are out of step: rank %d %s %s, rank 0 %s it", r,
                             sub->prepare ? "prepares" : "runs", op_name(sub->args.op), first->prepare ? "prepares" : "runs");
        if (sub->args.schedule != first->args.schedule)
            return error_set(e, -EINVAL, "%s: schedule: rank %d has %s, rank 0 has %s", submission_name(sub), r,
                             schedule_name(sub->args.schedule), schedule_name(first->args.schedule));
        if (sub->args.route != first->args.route)
            return error_set(e, -EINVAL, "%s: schedule: rank %d has %s, rank 0 has %s", submission_name(sub), r,
                             route_name(sub->args.route), route_name(first->args.route));
        if (sub->alloc_bytes != first->alloc_bytes)
            return error_set(e, -EINVAL, "%s: bytes: rank %d has %llu, rank 0 has %llu", submission_name(sub), r,
                             (unsigned long long)sub->alloc_bytes, (unsigned long long)first->alloc_bytes);
    }
    return reads_others ? overlap_match(c, e) : 0;
}

/* What is wrong with one of the next submissions by itself explains more than that they do not fit together. */
static int turn_check(const struct comm *c, struct error *e)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct submission *sub = c->members[r].next;
        if (sub->error.status) {
            *e = sub->error;
            return e->status;
        }
    }
    return turn_match(c, e);
}

/* A symmetric allocation: all ranks get theirs, or none does. */
static int turn_alloc(struct comm *c, struct error *e)
{
    struct part {
        struct buffer *buffer;
        int fd;
    } *parts = calloc((size_t)c->nranks, sizeof(*parts));
    int done = 0, status = 0;

    if (!parts)
        return error_set(e, -ENOMEM, "no memory for a symmetric allocation");
    for (; !status && done < c->nranks; done += !status) {
        struct submission *sub = c->members[done].next;
        struct part *part = &parts[done];
        status = buffer_alloc(&c->members[done], FCC_BUFFER_SYMMETRIC, sub->alloc_bytes, &part->buffer, &part->fd, e);
    }
    c->allocations += !status;
    for (int r = 0; r < done; r++) {
        struct buffer *b = parts[r].buffer;
        assert(b);
        struct submission *sub = c->members[r].next;
        struct fcc_buffer_alloc_reply reply = {.reply.msg = {.type = FCC_MSG_BUFFER_ALLOC | FCC_REPLY, .id = sub->id},
                                               .buffer = b->handle,
                                               .memory = b->memory.kind,
                                               .map_bytes = b->memory.bytes};
        if (status) {
            buffer_drop_handle(b);
        } else {
            session_reply(sub->session, &reply.reply, sizeof(reply), &parts[r].fd, 1);
            sub->session = NULL; /* told */
        }
        if (status || !buffer_publish(b, c, parts[r].fd))
            (void)close(parts[r].fd);
    }
    free(parts);
    return status;
}

static bool turn_ready(struct comm *c)
{
    char where[FCC_NODE_MAX + 32];
    bool all = true, any = false;

    for (int r = 0; r < c->nranks; r++) {
        bool has = c->members[r].next != NULL;
        all &= has;
        any |= has;
    }
    if (any && c->present < c->nranks && c->error.status)
        comm_abort(c, c->error.status, "%s", c->error.text);
    for (int r = 0; any && c->state == COMM_ACTIVE && r < c->nranks; r++)
        if (c->members[r].state == MEMBER_LEFT)
            abort_left(c, r, member_where(&c->members[r], where));
    return all && c->state == COMM_ACTIVE && (!c->nodes || span(c)->turn_ready(c));
}

/* Whether the ranks' next turn may begin though operators run: on GPUs, an operator that has its place on a stream of every
 * rank. All else waits until nothing runs: a symmetric allocation, and what an error is to be told of. */
static bool turn_follows(const struct comm *c)
{
    struct error ignored;

    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].next->stream)
            return false;
    if (offers_are_asked(c))
        return false; /* it is prepared when nothing runs */
    return c->dev.ops->launch_follows(&c->dev) && !turn_check(c, &ignored);
}

void comm_advance(struct comm *c)
{
    c->dev.exclusive = comm_is_only(c);
    c->dev.traced = !LIST_EMPTY(&c->trace_waiters);
    while (c->state == COMM_ACTIVE && turn_ready(c) && (!c->dev.current || turn_follows(c))) {
        const struct submission *head = c->members[0].next;
        struct error e;
        error_clear(&e);
        int status = turn_check(c, &e);

        if (c->nodes)
            span(c)->tune(c);
        if (!status && head->kind == SUBMISSION_ALLOC && c->nodes) {
            span(c)->alloc(c);
            continue; /* it has ended its turn, or will */
        } else if (!status && head->kind == SUBMISSION_ALLOC) {
            (void)turn_alloc(c, &e);
        } else if (!status && head->prepare) {
            (void)prepared_make(c, &e);
        } else if (!status) {
            if (!c->dev.current && offers_are_asked(c))
                offers_make(c);
            c->operators++;
            if ((op_spec(head->args.op)->compute || c->dev.ops->number != FCC_DEVICE_CPU) && !launch_begin(c, &e))
                continue;         /* it runs, or has run and ended its turn */
            if (c->dev.current) { /* what is wrong is told when nothing runs */
                c->operators--;
                break;
            }
        }
        turn_end(c, &e);
    }
    if (c->worker->draining && !c->dev.current)
        comm_abort(c, -ESHUTDOWN, "%s", c->worker->ending);
    comm_deadline_set(c);
}
