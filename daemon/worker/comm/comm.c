/* SPDX-License-Identifier: MIT
 *
 * comm.c - communicators: whose turn it is.
 *
 * Each rank has a queue of submissions. The heads of all queues together are the communicator's next operator. One operator finishes on all
 * ranks before the next begins: ranks store into each other's result buffers, so a rank that ran ahead could overwrite data that a slower
 * one has not read yet. On GPUs the next operators may be enqueued meanwhile, and the GPUs keep this order (device/gpu/device.c); the engine
 * counts them as running, and they end in order. The engine gives operators of several communicators to all devices in one order, so
 * communicators that share devices cannot deadlock.
 *
 * A remote rank is a member without a session and a device. Its submissions come from its node's worker, and a turn begins when the turn
 * before has ended on that node, too (nodes/nodes.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/bound/launcher.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/request/overlap.h"
#include "daemon/worker/comm/share.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "kernels/plan/tensor.h"
#include "proto/base/clock.h"

#define UNPAID_MAX 8192 /* submissions of all ranks for which the account had no room: some 12 MiB */

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

bool comm_is_only(const struct comm *mine)
{
    const struct comm *c;

    LIST_FOREACH(c, &mine->worker->comms, link)
        if (c != mine && c->dev.ops == mine->dev.ops)
            return false;
    return true;
}

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
        (m->remote ? 2 * FCC_QUEUE_MAX : FCC_QUEUE_MAX)) { /* on a remote rank's node turns may already have ended */
        submission_tell(sub, -ENOMEM, "too many operators in flight: allowed are 1024", NULL, 0);
        submission_free(sub);
        comm_abort(c, -ENOMEM, "rank %d has %u operators in flight: allowed are %u", m->rank, m->queued + 1, FCC_QUEUE_MAX);
        return;
    }
    /* A remote rank's node has accepted the request, so this node cannot refuse it alone: it aborts the communicator. */
    if (submission_charge(&sub, c->worker, m->remote, &e) && (m->remote || c->worker->unpaid > UNPAID_MAX)) {
        submission_tell(sub, e.status, e.text, NULL, 0);
        submission_free(sub);
        comm_abort(c, e.status, "rank %d: %s", m->rank, e.text);
        return;
    }
    TAILQ_INSERT_TAIL(&m->queue, sub, link);
    m->queued++;
    METER_GAUGE(c->worker, queued, 1);
    flight_came(c->flight, ++m->turns, m->rank, sub->kind == SUBMISSION_ALLOC ? FCC_OP_COUNT : sub->args.op, sub->arrived_ns);
    m->alone = 0;
    if (!m->next)
        m->next = sub;
    if (c->nodes && !m->remote)
        span(c)->submitted(m, sub, submit);
    comm_advance(c);
    if (m->next && c->cache && c->cache->inline_)
        c->worker->awaits = c;
}

uint64_t turn_arrived_ns(const struct comm *c)
{
    uint64_t first = UINT64_MAX;

    for (int r = 0; r < c->nranks; r++) {
        const struct submission *sub = c->members[r].next;
        first = sub->arrived_ns < first ? sub->arrived_ns : first;
    }
    return first < c->dev.turn_ns ? c->dev.turn_ns : first; /* submitted ahead: it could not begin before */
}

/* The ranks' next turn, which begins and ends without a launch: a barrier on cpu devices, an allocation, or an error. */
static void turn_count(struct comm *c, int status)
{
    const struct submission *head = c->members[0].next;
    bool is_operator = head->kind == SUBMISSION_OPERATOR;
    uint64_t first_ns = turn_arrived_ns(c), now = clock_ns();

    c->dev.turn_ns = now;
    c->turns++;
    flight_begun(c->flight, c->turns, is_operator ? c->operators : 0, 0, now);
    flight_ended(c->flight, c->turns, status, now);
    if (!is_operator || head->prepare)
        return;
    meter_begun(c->worker, head->args.op, first_ns, now);
    meter_ended(c->worker, head->args.op, METER_SCHEDULE_NONE, status, 0);
}

void turn_end(struct comm *c, const struct error *e)
{
    (void)launch_early_take(c, NULL);
    turn_count(c, e->status);
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
    METER_GAUGE(c->worker, queued, -c->nranks);
    if (c->nodes)
        span(c)->turn_ended(c);
}

/* Whether the ranks' next submissions match; none of them is wrong by itself. Otherwise the error for all ranks. */
static int turn_match(const struct comm *c, struct error *e)
{
    const struct submission *first = c->members[0].next;
    struct error why = {.status = 0};
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
        if (match_schedules(&sub->args, r, &first->args, &why))
            return error_set(e, why.status, "%s: %s", submission_name(sub), why.text);
        if (sub->alloc_bytes != first->alloc_bytes)
            return error_set(e, -EINVAL, "%s: bytes: rank %d has %llu, rank 0 has %llu", submission_name(sub), r,
                             (unsigned long long)sub->alloc_bytes, (unsigned long long)first->alloc_bytes);
    }
    return reads_others ? overlap_match(c, e) : 0;
}

/* Check the ranks' next submissions. An error of one request by itself explains more than a mismatch, so it comes first. */
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

/* Make a symmetric allocation: all ranks get their parts, or none does. */
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
            comm_abort_left(c, r);
    return all && c->state == COMM_ACTIVE && (!c->nodes || span(c)->turn_ready(c));
}

/* Whether the next turn may begin while operators run. On GPUs an operator may that is on a stream of every rank. Everything else waits until
 * nothing runs: a symmetric allocation, and requests that end with an error. */
static bool turn_follows(struct comm *c)
{
    struct error ignored;

    switch (comm_launcher(c)) {
    case LAUNCH_BOUND:
        return bound_has_room(c);
    case LAUNCH_RECALLED:
        return false;
    case LAUNCH_WORKER:
        break;
    }
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].next->stream)
            return false;
    if (binding_is_asked(c))
        return false; /* it is bound when nothing runs */
    return c->dev.ops->launch_follows(&c->dev, &c->members[0].next->args) && !turn_check(c, &ignored);
}

static void on_hold_time(evutil_socket_t sock, short what, void *arg)
{
    struct comm *c = arg;

    (void)sock, (void)what;
    comm_advance(c);
    comm_release(c);
}

/* Whether the ranks' next turn has to wait because the job has had its share of a GPU. A run of a bound operator is in its GPUs' queues already, and what
 * is no operator launches nothing. */
static bool turn_is_held(struct comm *c)
{
    const struct submission *head = c->members[0].next;

    if (!comm_has_share(c) && head->kind == SUBMISSION_OPERATOR && !head->prepare && comm_launcher(c) != LAUNCH_BOUND)
        return comm_hold(c, on_hold_time);
    comm_hold_end(c);
    return false;
}

void comm_advance(struct comm *c)
{
    c->dev.exclusive = comm_is_only(c);
    c->dev.traced = !LIST_EMPTY(&c->trace_waiters);
    bindings_look(c);
    while (c->state == COMM_ACTIVE && turn_ready(c) && (!c->dev.current || turn_follows(c)) && !turn_is_held(c)) {
        const struct submission *head = c->members[0].next;
        struct error e;
        error_clear(&e);
        if (comm_launcher(c) == LAUNCH_BOUND) {
            if (!bound_begin(c))
                continue; /* it runs */
            comm_abort(c, -ENOMEM, "%s: no memory for its run", submission_name(head));
            break;
        }
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
            if (!c->dev.current && binding_is_asked(c))
                binding_make(c);
            c->operators++;
            if ((op_spec(head->args.op)->compute || c->dev.ops->number != FCC_DEVICE_CPU) && !launch_begin(c, &e))
                continue; /* it runs, or has run and ended its turn */
            if (c->state != COMM_ACTIVE)
                break;            /* that has ended it, and all its ranks have been told */
            if (c->dev.current) { /* what is wrong is told when nothing runs */
                c->operators--;
                break;
            }
        }
        turn_end(c, &e);
    }
    if (c->regroup)
        c->worker->regroup->look(c);
    if (c->worker->draining && !c->dev.current)
        comm_abort(c, -ESHUTDOWN, "%s", c->worker->ending);
    comm_deadline_set(c);
}
