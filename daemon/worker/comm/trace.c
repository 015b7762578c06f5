/* SPDX-License-Identifier: MIT
 *
 * trace.c - the timeline of an operator, for fccctl trace.
 */
#include "daemon/worker/comm/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/engine.h"
#include "proto/base/json_fd.h"

#define WAITERS_MS_MAX 3600000u

/* A query of fccctl trace --next that waits. Owned by the communicator. */
struct trace_waiter {
    LIST_ENTRY(trace_waiter) link; /* comm.trace_waiters */
    struct session *session;
    struct comm *comm;
    uint64_t id;
    struct event *timer;
};

struct comm *comm_by_number(const struct worker *w, uint32_t n, struct error *e)
{
    struct comm *c, *found = NULL;

    LIST_FOREACH(c, &w->comms, link) {
        if (n ? c->number == n
              : !found || (c->last && (!found->last || c->last->span_shown.started_ns > found->last->span_shown.started_ns)))
            found = c;
    }
    if (!found && n && !LIST_EMPTY(&w->comms)) {
        char list[200] = "";
        size_t used = 0;
        LIST_FOREACH(c, &w->comms, link)
            if (used < sizeof(list))
                used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%u", used ? ", " : "", c->number);
        (void)error_set(e, -ENOENT, "comm: %u: job \"%s\" has no such communicator; there are: %s", n, w->job, list);
    } else if (!found && n)
        (void)error_set(e, -ENOENT, "comm: %u: job \"%s\" has no communicator", n, w->job);
    else if (!found)
        (void)error_set(e, -ENOENT, "job \"%s\" has no communicator", w->job);
    return found;
}

static struct json_object *event_describe(const struct launch *l, const struct slice *s, uint32_t index, const char *kind,
                                          uint64_t start, uint64_t end)
{
    return JSON_OBJECT(
        {"slice", json_int(index)}, {"kind", json_text(kind)}, {"dst", json_int(s->dst & SLICE_DST_SET ? -1 : s->dst)},
        {"row", json_int(s->row)}, {"rows", json_int(s->rows)}, {"col", json_int(s->col)}, {"cols", json_int(s->cols)},
        {"start_ns", json_int(start - l->span_shown.started_ns)}, {"end_ns", json_int(end - l->span_shown.started_ns)});
}

/* The slices that one workgroup handled, in plan order, which is the order in which it took them. */
static struct json_object *workgroup_describe(const struct launch *l, int rank, uint32_t workgroup)
{
    struct json_object *events = json_object_new_array();
    const struct slice_time *times = launch_times_shown(l, rank);
    const struct launch_run *run = &l->runs[rank];

    for (uint32_t i = 0; i < run->plan->nslices; i++) {
        const struct slice *s = &run->plan->slices[i];
        const struct slice_time *t = &times[i];
        if (!t->start_ns || t->workgroup != workgroup)
            continue;
        if (t->wait_ns)
            json_object_array_add(events, event_describe(l, s, i, "wait", t->wait_ns, t->start_ns));
        if (s->kind != SLICE_WAIT)
            json_object_array_add(events, event_describe(l, s, i, slice_kind_name(s->kind), t->start_ns, t->end_ns));
    }
    return JSON_OBJECT({"workgroup", json_int(workgroup)}, {"events", events});
}

/* What runs a rank's step of a program on a GPU; NULL: nothing like that. */
static const char *code_text_of(const struct launch *l, int rank)
{
    for (int p = 0; p < l->nparts; p++)
        for (int i = 0; i < l->parts[p].nruns; i++)
            if (l->parts[p].ranks[i] == rank)
                return l->parts[p].code_text;
    return NULL;
}

/* The timeline of a launch. NULL with the reason if its times are not available. */
static struct json_object *trace_describe(struct launch *l, struct error *e)
{
    if (l->comm->ops->times_fetch(l->parts[0].device, l, e))
        return NULL;
    struct json_object *ranks = json_object_new_array();
    struct json_object *o = JSON_OBJECT(
        {"comm", json_int(l->comm->number)}, {"op", json_text(op_name(l->problem->op))},
        {"number", json_int(l->span_shown.number)}, {"schedule", json_text(schedule_name(l->schedule.kind))},
        {"route", json_text(route_name(l->runs[0].plan->schedule.route))}, {"dtype", json_text(dtype_name(l->problem->dtype))},
        {"nranks", json_int(l->nranks)}, {"started_ns", json_int(l->span_shown.started_ns)}, /* CLOCK_MONOTONIC */
        {"duration_ns", json_int(l->span_shown.finished_ns - l->span_shown.started_ns)}, {"ranks", ranks});
    for (int r = 0; r < l->nranks; r++) {
        const struct launch_run *run = &l->runs[r];
        if (!run->device)
            continue; /* a remote rank's times are on its own node */
        struct json_object *workgroups = json_object_new_array();
        uint32_t n = 1;
        const struct slice_time *times = launch_times_shown(l, r);
        for (uint32_t i = 0; i < run->plan->nslices; i++)
            n = times[i].workgroup >= n ? times[i].workgroup + 1 : n;
        for (uint32_t wg = 0; wg < n; wg++)
            json_object_array_add(workgroups, workgroup_describe(l, r, wg));
        struct json_object *rank = JSON_OBJECT({"rank", json_int(r)}, {"device", json_int(run->device->index)},
                                               {"kind", json_text(run->device->ops->kind)}, {"workgroups", workgroups});
        if (code_text_of(l, r))
            JSON_ADD(rank, {"code", json_text(code_text_of(l, r))});
        json_object_array_add(ranks, rank);
    }
    return o;
}

static void trace_waiter_free(struct trace_waiter *t)
{
    LIST_REMOVE(t, link);
    event_free(t->timer);
    free(t);
}

static void trace_waiter_late(evutil_socket_t sock, short what, void *arg)
{
    struct trace_waiter *t = arg;
    struct error e;

    (void)sock, (void)what;
    (void)error_set(&e, -ETIMEDOUT, "comm %u: no operator finished while this waited", t->comm->number);
    session_reply_json(t->session, t->id, NULL, &e);
    trace_waiter_free(t);
}

void trace_waiters_answer(struct comm *c, const struct error *error)
{
    struct trace_waiter *t, *next;

    for (t = LIST_FIRST(&c->trace_waiters); t; t = next) {
        struct error e = *error;
        next = LIST_NEXT(t, link);
        session_reply_json(t->session, t->id, e.status || !c->last ? NULL : trace_describe(c->last, &e), &e);
        trace_waiter_free(t);
    }
}

void trace_waiters_forget(struct session *s)
{
    struct comm *c;
    struct trace_waiter *t, *next;

    LIST_FOREACH(c, &s->worker->comms, link)
        LIST_FOREACH_SAFE(t, &c->trace_waiters, link, next) {
            if (t->session == s)
                trace_waiter_free(t);
        }
}

static void trace_await(struct session *s, struct comm *c, const struct fcc_query *q, struct error *e)
{
    uint32_t ms = q->wait_ms < WAITERS_MS_MAX ? q->wait_ms : WAITERS_MS_MAX;
    struct trace_waiter *t = calloc(1, sizeof(*t));

    if (t)
        *t = (struct trace_waiter){.session = s, .comm = c, .id = q->msg.id};
    if (t && (t->timer = evtimer_new(s->worker->base, trace_waiter_late, t)) && !event_add_ms(t->timer, ms)) {
        LIST_INSERT_HEAD(&c->trace_waiters, t, link);
        return;
    }
    if (t && t->timer)
        event_free(t->timer);
    free(t);
    (void)error_set(e, -ENOMEM, "trace: out of memory");
}

void trace_query(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};
    struct comm *c = comm_by_number(s->worker, q->comm, &e);

    /* A GPU overwrites the times when the same launch runs again: then this run is shown. */
    bool running = c && c->last && c->last->running && c->dev.ops->number != FCC_DEVICE_CPU;

    if (c && !q->next && c->last && !running) {
        session_reply_json(s, q->msg.id, trace_describe(c->last, &e), &e);
        return;
    }
    if (running && !q->next) {
        struct fcc_query next = *q;
        next.wait_ms = c->dev.time_limit_ms;
        trace_await(s, c, &next, &e);
    } else if (c && q->next && c->state == COMM_ABORTED)
        (void)error_set(&e, -ECONNABORTED, "comm %u: aborted: %s", c->number, c->error.text);
    else if (c && q->next)
        trace_await(s, c, q, &e);
    else if (c)
        (void)error_set(&e, -ENOENT, "comm %u: no operator has finished yet%s", c->number,
                        c->dev.current ? "; one is running" : "");
    if (e.status)
        session_reply_json(s, q->msg.id, NULL, &e);
}
