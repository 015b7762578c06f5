/* SPDX-License-Identifier: MIT
 *
 * query.c - what fccctl asks a worker: its communicators, the timeline of an operator, an abort.
 */
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/comm/bound.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/json_fd.h"

#define WAITERS_MS_MAX 3600000u

/* fccctl trace --next. Owned by the communicator. */
struct trace_waiter {
    LIST_ENTRY(trace_waiter) link; /* comm.trace_waiters */
    struct session *session;
    struct comm *comm;
    uint64_t id;
    struct event *timer;
};

static void add(struct json_object *o, const char *key, struct json_object *value)
{
    json_object_object_add(o, key, value);
}

static struct json_object *number(uint64_t n)
{
    return json_object_new_int64((int64_t)n);
}

static struct json_object *milliseconds_since(uint64_t ns)
{
    return json_object_new_double((double)(clock_ns() - ns) / 1e6);
}

/* Answer with a JSON object (whose reference this takes), or with an error. */
static void query_reply(struct session *s, uint64_t id, struct json_object *o, struct error *e)
{
    struct fcc_reply r = {.msg = {.type = FCC_MSG_QUERY | FCC_REPLY, .id = id}};
    int fd = e->status ? -1 : json_to_fd(o, e);

    r.status = e->status;
    text_copy(r.text, sizeof(r.text), e->text);
    session_reply(s, &r, sizeof(r), &fd, fd >= 0);
    if (fd >= 0)
        (void)close(fd);
}

/* ---- comms ---- */

static const char *head_name(const struct submission *sub)
{
    return sub->kind == SUBMISSION_ALLOC ? "buffer_alloc" : op_name(sub->args.op);
}

/* The number of the operator that is at the head of the ranks' queues. */
static uint64_t head_number(const struct comm *c)
{
    return c->current ? c->current->span.number : c->operators + 1;
}

static struct json_object *rank_describe(const struct member *m)
{
    static const char *const states[] = {[MEMBER_ABSENT] = "not joined", [MEMBER_JOINED] = "idle", [MEMBER_LEFT] = "left"};
    const struct submission *head = TAILQ_FIRST(&m->queue);
    struct json_object *o = json_object_new_object();

    add(o, "rank", json_object_new_int(m->rank));
    add(o, "state", json_object_new_string(head ? "in operator" : states[m->state]));
    if (m->state != MEMBER_ABSENT) {
        add(o, "pid", json_object_new_int(m->pid));
        if (m->peer)
            add(o, "node", json_object_new_string(m->peer->address));
        else if (!m->remote && *m->comm->worker->node && m->comm->nodes)
            add(o, "node", json_object_new_string(m->comm->worker->node));
        if (m->device)
            add(o, "device", json_object_new_int(m->device->index));
        add(o, "kind", json_object_new_string(m->comm->ops->kind));
    }
    if (head) {
        add(o, "op", json_object_new_string(head_name(head)));
        add(o, "number", number(head_number(m->comm)));
        add(o, "since_ms", milliseconds_since(head->arrived_ns));
    } else if (m->comm->state == COMM_FORMING && m->state == MEMBER_JOINED)
        add(o, "since_ms", milliseconds_since(m->arrived_ns));
    add(o, "queued", json_object_new_int64(m->queued));
    return o;
}

static struct json_object *operator_describe(const struct comm *c)
{
    struct json_object *o, *missing = json_object_new_array();
    const struct submission *first = NULL;

    for (int r = 0; r < c->nranks; r++) {
        const struct submission *head = TAILQ_FIRST(&c->members[r].queue);
        if (!head)
            json_object_array_add(missing, json_object_new_int(r));
        else if (!first || head->arrived_ns < first->arrived_ns)
            first = head;
    }
    if (!first || c->state == COMM_ABORTED) {
        (void)json_object_put(missing);
        return NULL;
    }
    o = json_object_new_object();
    add(o, "op", json_object_new_string(head_name(first)));
    add(o, "number", number(head_number(c)));
    add(o, "state", json_object_new_string(c->current ? "running" : "waiting"));
    uint64_t since_ns = c->current ? c->current->span.started_ns : first->arrived_ns;
    if (c->current && since_ns < c->turn_ns) /* it was enqueued before its turn came */
        since_ns = c->turn_ns;
    add(o, "since_ms", milliseconds_since(since_ns));
    add(o, "missing", missing);
    return o;
}

static struct json_object *awaited_describe(const struct comm *c)
{
    struct json_object *o = json_object_new_array();
    const char *addresses[FCC_MAX_RANKS];
    int n = nodes_awaited(c, addresses);

    for (int i = 0; i < n; i++)
        json_object_array_add(o, json_object_new_string(addresses[i]));
    return o;
}

static struct json_object *comm_describe(const struct comm *c)
{
    static const char *const states[] = {[COMM_FORMING] = "forming", [COMM_ACTIVE] = "active", [COMM_ABORTED] = "aborted"};
    struct json_object *o = json_object_new_object(), *ranks = json_object_new_array();

    add(o, "comm", number(c->number));
    add(o, "nranks", json_object_new_int(c->nranks));
    add(o, "state", json_object_new_string(states[c->state]));
    add(o, "error", json_object_new_string(c->error.text));
    add(o, "operators", number(c->operators));
    add(o, "granted", number(c->granted));
    add(o, "declined", number(c->declined));
    add(o, "time_limit_ms", number(c->time_limit_ms));
    add(o, "operator", operator_describe(c));
    add(o, "missing_nodes", awaited_describe(c));
    add(o, "runs", prepared_describe(c));
    for (int r = 0; r < c->nranks; r++)
        json_object_array_add(ranks, rank_describe(&c->members[r]));
    add(o, "ranks", ranks);
    return o;
}

static struct json_object *comms_describe(const struct worker *w)
{
    struct json_object *o = json_object_new_object(), *comms = json_object_new_array();
    const struct comm *c;

    add(o, "uid", number(w->uid));
    add(o, "job", json_object_new_string(w->job));
    add(o, "pid", json_object_new_int(getpid()));
    LIST_FOREACH(c, &w->comms, link)
        json_object_array_add(comms, comm_describe(c));
    add(o, "comms", comms);
    return o;
}

/* The communicator with this number; with 0 the one that began an operator last. */
static struct comm *comm_by_number(const struct worker *w, uint32_t n, struct error *e)
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

/* ---- trace ---- */

static struct json_object *event_describe(const struct launch *l, const struct slice *s, uint32_t index, const char *kind,
                                          uint64_t start, uint64_t end)
{
    struct json_object *o = json_object_new_object();

    add(o, "slice", json_object_new_int64(index));
    add(o, "kind", json_object_new_string(kind));
    add(o, "dst", json_object_new_int(s->dst & SLICE_DST_SET ? -1 : s->dst));
    add(o, "row", json_object_new_int64(s->row));
    add(o, "rows", json_object_new_int64(s->rows));
    add(o, "col", json_object_new_int64(s->col));
    add(o, "cols", json_object_new_int64(s->cols));
    add(o, "start_ns", number(start - l->span_shown.started_ns));
    add(o, "end_ns", number(end - l->span_shown.started_ns));
    return o;
}

/* The slices that one workgroup handled, in plan order, which is the order in which it took them. */
static struct json_object *workgroup_describe(const struct launch *l, int rank, uint32_t workgroup)
{
    struct json_object *o = json_object_new_object(), *events = json_object_new_array();
    const struct slice_time *times = launch_times_shown(l, rank);
    const struct launch_run *run = &l->runs[rank];

    add(o, "workgroup", json_object_new_int64(workgroup));
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
    add(o, "events", events);
    return o;
}

/* NULL with the reason if the times cannot be had. */
static struct json_object *trace_describe(struct launch *l, struct error *e)
{
    if (l->comm->ops->times_fetch(l->parts[0].device, l, e))
        return NULL;
    struct json_object *o = json_object_new_object(), *ranks = json_object_new_array();

    add(o, "comm", number(l->comm->number));
    add(o, "op", json_object_new_string(op_name(l->problem->op)));
    add(o, "number", number(l->span_shown.number));
    add(o, "schedule", json_object_new_string(schedule_name(l->schedule.kind)));
    add(o, "route", json_object_new_string(route_name(l->runs[0].plan->schedule.route)));
    add(o, "dtype", json_object_new_string(dtype_name(l->problem->dtype)));
    add(o, "nranks", json_object_new_int(l->nranks));
    add(o, "started_ns", number(l->span_shown.started_ns)); /* CLOCK_MONOTONIC */
    add(o, "duration_ns", number(l->span_shown.finished_ns - l->span_shown.started_ns));
    for (int r = 0; r < l->nranks; r++) {
        const struct launch_run *run = &l->runs[r];
        if (!run->device)
            continue; /* its own node has its times */
        struct json_object *rank = json_object_new_object(), *workgroups = json_object_new_array();
        add(rank, "rank", json_object_new_int(r));
        add(rank, "device", json_object_new_int(run->device->index));
        add(rank, "kind", json_object_new_string(run->device->ops->kind));
        uint32_t n = 1;
        const struct slice_time *times = launch_times_shown(l, r);
        for (uint32_t i = 0; i < run->plan->nslices; i++)
            n = times[i].workgroup >= n ? times[i].workgroup + 1 : n;
        for (uint32_t wg = 0; wg < n; wg++)
            json_object_array_add(workgroups, workgroup_describe(l, r, wg));
        add(rank, "workgroups", workgroups);
        json_object_array_add(ranks, rank);
    }
    add(o, "ranks", ranks);
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
    query_reply(t->session, t->id, NULL, &e);
    trace_waiter_free(t);
}

void trace_waiters_answer(struct comm *c, const struct error *error)
{
    struct trace_waiter *t, *next;

    for (t = LIST_FIRST(&c->trace_waiters); t; t = next) {
        struct error e = *error;
        next = LIST_NEXT(t, link);
        query_reply(t->session, t->id, e.status || !c->last ? NULL : trace_describe(c->last, &e), &e);
        trace_waiter_free(t);
    }
}

void trace_waiters_forget(struct session *s)
{
    struct comm *c;
    struct trace_waiter *t, *next;

    LIST_FOREACH(c, &s->worker->comms, link)
        for (t = LIST_FIRST(&c->trace_waiters); t; t = next) {
            next = LIST_NEXT(t, link);
            if (t->session == s)
                trace_waiter_free(t);
        }
}

static void trace_await(struct session *s, struct comm *c, const struct fcc_query *q, struct error *e)
{
    uint32_t ms = q->wait_ms < WAITERS_MS_MAX ? q->wait_ms : WAITERS_MS_MAX;
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 + 1};
    struct trace_waiter *t = calloc(1, sizeof(*t));

    if (t)
        *t = (struct trace_waiter){.session = s, .comm = c, .id = q->msg.id};
    if (t && (t->timer = evtimer_new(s->worker->base, trace_waiter_late, t)) && !event_add(t->timer, &limit)) {
        LIST_INSERT_HEAD(&c->trace_waiters, t, link);
        return;
    }
    if (t && t->timer)
        event_free(t->timer);
    free(t);
    (void)error_set(e, -ENOMEM, "trace: out of memory");
}

static void trace_query(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};
    struct comm *c = comm_by_number(s->worker, q->comm, &e);

    /* A GPU overwrites the last operator's times while the same one runs again: then it is this one that is shown. */
    bool running = c && c->last && c->last->running && c->ops->number != FCC_DEVICE_CPU;

    if (c && !q->next && c->last && !running) {
        query_reply(s, q->msg.id, trace_describe(c->last, &e), &e);
        return;
    }
    if (running && !q->next) {
        struct fcc_query next = *q;
        next.wait_ms = c->time_limit_ms;
        trace_await(s, c, &next, &e);
    } else if (c && q->next && c->state == COMM_ABORTED)
        (void)error_set(&e, -ECONNABORTED, "comm %u: aborted: %s", c->number, c->error.text);
    else if (c && q->next)
        trace_await(s, c, q, &e);
    else if (c)
        (void)error_set(&e, -ENOENT, "comm %u: no operator has finished yet%s", c->number,
                        c->current ? "; one is running" : "");
    if (e.status)
        query_reply(s, q->msg.id, NULL, &e);
}

/* ---- abort ---- */

static void abort_query(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};
    struct json_object *o = NULL;
    struct comm *c = comm_by_number(s->worker, q->comm, &e);

    if (c) {
        int length = (int)strnlen(q->text, sizeof(q->text) - 8);
        o = json_object_new_object();
        add(o, "comm", number(c->number));
        add(o, "aborted", json_object_new_boolean(c->state != COMM_ABORTED));
        comm_abort(c, -ECONNABORTED, "aborted by uid %u with fccctl: %.*s", s->uid, length ? length : 15,
                   length ? q->text : "no reason given");
        comm_release(c);
    }
    query_reply(s, q->msg.id, o, &e);
}

void query_handle(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};

    switch (q->what) {
    case FCC_QUERY_COMMS:
        query_reply(s, q->msg.id, comms_describe(s->worker), &e);
        return;
    case FCC_QUERY_TRACE:
        trace_query(s, q);
        return;
    case FCC_QUERY_ABORT:
        abort_query(s, q);
        return;
    case FCC_QUERY_NODES: /* the broker tells of the nodes themselves */
        query_reply(s, q->msg.id, nodes_links_describe(s->worker), &e);
        return;
    case FCC_QUERY_STATUS:
    case FCC_QUERY_DEVICES:
    case FCC_QUERY_PING:
        (void)error_set(&e, -EINVAL, "query: %u: the broker answers this; name no job in the HELLO", q->what);
        break;
    default:
        (void)error_set(&e, -EINVAL, "query: %u: allowed are 0 to %d", q->what, FCC_QUERY_COUNT - 1);
    }
    query_reply(s, q->msg.id, NULL, &e);
}
