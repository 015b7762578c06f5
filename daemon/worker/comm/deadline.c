/* SPDX-License-Identifier: MIT
 *
 * deadline.c - a communicator's time limit: for its ranks to join, to come to an operator, and for the operator to run.
 *
 * One timer event serves all deadlines. Operators only set comm.deadline_ns; the event compares it with the clock when it fires.
 */
#include <errno.h>
#include <stdio.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/request/submission.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/meter.h"
#include "proto/base/clock.h"

static void timer_start(struct comm *c, uint64_t ns)
{
    struct timeval t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_usec = (suseconds_t)(ns % 1000000000u / 1000u + 1)};
    if (!event_pending(c->timer, EV_TIMEOUT, NULL))
        (void)event_add(c->timer, &t);
}

void comm_deadline_set(struct comm *c)
{
    uint64_t first = 0;

    c->deadline_ns = 0;
    if (c->state == COMM_ABORTED)
        return;
    if (c->dev.current)
        first = c->dev.current->span.started_ns;
    for (int r = 0; !c->dev.current && r < c->nranks; r++) {
        const struct submission *sub = TAILQ_FIRST(&c->members[r].queue);
        uint64_t since = sub ? sub->arrived_ns : c->state == COMM_FORMING ? c->members[r].arrived_ns : 0;
        if (since && (!first || since < first))
            first = since;
    }
    if (!first)
        return;
    if (first < c->dev.turn_ns) /* submitted ahead: the wait for the other ranks counts from the beginning of the turn */
        first = c->dev.turn_ns;
    c->deadline_ns = first + (uint64_t)c->dev.time_limit_ms * 1000000u;
    timer_start(c, (uint64_t)c->dev.time_limit_ms * 1000000u);
}

void comm_limit_set(struct comm *c, uint32_t limit_ms)
{
    c->dev.time_limit_ms = limit_ms;
    (void)event_del(c->timer); /* the timer may be set for a later time */
    comm_deadline_set(c);
}

/* "rank 1, rank 3": the ranks that have not come to the next operator. */
static void comm_missing(const struct comm *c, char *text, size_t room)
{
    size_t n = 0;

    text[0] = '\0';
    for (int r = 0; r < c->nranks && n < room; r++)
        if (c->state == COMM_FORMING ? c->members[r].state == MEMBER_ABSENT : TAILQ_EMPTY(&c->members[r].queue))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", n ? ", " : "", r);
}

/* Ranks on this node that have made an allocation of their own while others wait for them in a symmetric one: probably of the wrong kind. */
static void alone_add(const struct comm *c, char *text, size_t room)
{
    size_t n = 0;

    text[0] = '\0';
    for (int r = 0; r < c->nranks && n < room; r++) {
        const struct member *m = &c->members[r];
        const char *kind = m->alone == FCC_BUFFER_LOCAL + 1    ? "local"
                           : m->alone == FCC_BUFFER_RESULT + 1 ? "result"
                                                               : "unknown";
        if (m->alone && TAILQ_EMPTY(&m->queue))
            n += (size_t)snprintf(text + n, room - n,
                                  "; since its last operator rank %d has called fcc_buffer_alloc of kind %llu (%s)", r,
                                  (unsigned long long)m->alone - 1, kind);
    }
}

void comm_apart_say(const struct comm *c, char *text, size_t room)
{
    bool submitted = false, launched = false;
    size_t n = 0;

    for (int r = 0; r < c->nranks && n < room; r++) {
        const struct submission *sub = TAILQ_FIRST(&c->members[r].queue);
        uint32_t run = 0;
        const char *own = sub ? NULL : prepared_run_of(&c->members[r], &run);
        if (sub)
            n += (size_t)snprintf(text + n, room - n, "; rank %d waits in %s, which fccd launches", r, submission_name(sub));
        else if (own)
            n += (size_t)snprintf(text + n, room - n, "; rank %d waits in %s, run %u, which it has launched itself", r, own,
                                  run);
        submitted |= sub != NULL;
        launched |= own != NULL;
    }
    if (!submitted || !launched)
        text[0] = '\0';
}

/* "node 1.2.3.4:7411, ..." Leaves the text as it is, and false, if none is waited for. */
static bool nodes_missing(const struct comm *c, char *text, size_t room)
{
    const char *addresses[SPAN_NODES];
    int awaited = c->nodes ? span(c)->awaited(c, addresses) : 0;
    size_t n = 0;

    for (int i = 0; i < awaited && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%snode %s", n ? ", " : "", addresses[i]);
    return awaited;
}

const char *comm_flight_hint(const struct comm *c)
{
    return c->flight ? " ('fccctl flight' shows the operators before it)" : "";
}

void comm_deadline_passed(evutil_socket_t sock, short what, void *arg)
{
    struct comm *c = arg;
    uint64_t now = clock_ns();
    char missing[256], alone[256] = "", apart[256];

    (void)sock, (void)what;
    /* The engine may have been busy: operators that have ended and requests that have come meanwhile count. */
    if (atomic_load_explicit(&c->worker->finished, memory_order_relaxed)) {
        timer_start(c, 0); /* the engine handles them first, which may free this communicator */
        return;
    }
    for (int r = 0; r < c->nranks && c->deadline_ns && now >= c->deadline_ns; r++) {
        struct session *s = c->members[r].session;
        if (s && s->memory && !s->broken)
            (void)s->worker->session_poll(s);
    }
    if (!c->deadline_ns)
        return;
    if (now < c->deadline_ns) {
        timer_start(c, c->deadline_ns - now);
        return;
    }
    comm_missing(c, missing, sizeof(missing));
    if (c->dev.current && c->dev.ops->number != FCC_DEVICE_CPU &&
        gpus_launch_missing(c->dev.current, missing, sizeof(missing))) {
        meter_limit(c->worker, METER_LIMIT_COME);
        comm_abort(c, -ETIMEDOUT, "%s #%llu: the stream of %s did not come to it within the time limit of %u ms%s",
                   op_name(c->dev.current->problem->op), (unsigned long long)c->dev.current->span.number, missing,
                   c->dev.time_limit_ms, comm_flight_hint(c));
    } else if (c->dev.current) {
        meter_limit(c->worker, METER_LIMIT_RUN);
        comm_abort(c, -ETIMEDOUT, "%s #%llu ran longer than the time limit of %u ms%s", op_name(c->dev.current->problem->op),
                   (unsigned long long)c->dev.current->span.number, c->dev.time_limit_ms, comm_flight_hint(c));
    } else if (nodes_missing(c, missing, sizeof(missing))) {
        meter_limit(c->worker, METER_LIMIT_FORM);
        comm_abort(c, -ETIMEDOUT, "the communicator did not form within %u ms: all ranks have joined; not ready: %s",
                   c->dev.time_limit_ms, missing);
    } else if (c->state == COMM_FORMING) {
        meter_limit(c->worker, METER_LIMIT_FORM);
        comm_abort(c, -ETIMEDOUT, "the communicator did not form within %u ms: %.180s did not join%s%s", c->dev.time_limit_ms,
                   missing, *c->worker->trouble ? "; not reached from here: " : "", c->worker->trouble);
    } else {
        const struct submission *first = NULL;
        for (int r = 0; r < c->nranks && !first; r++)
            first = TAILQ_FIRST(&c->members[r].queue);
        if (first && first->kind == SUBMISSION_ALLOC)
            alone_add(c, alone, sizeof(alone));
        comm_apart_say(c, apart, sizeof(apart));
        meter_limit(c->worker, METER_LIMIT_COME);
        comm_abort(c, -ETIMEDOUT, "%s #%llu: %s did not come within the time limit of %u ms%s%s%s",
                   first ? submission_name(first) : "?", (unsigned long long)c->operators + 1, missing, c->dev.time_limit_ms,
                   alone, apart, comm_flight_hint(c));
    }
    comm_release(c);
}
