/* SPDX-License-Identifier: MIT
 *
 * query.c - answers fccctl's queries of a worker: communicators, the timeline of an operator (comm/trace.c), abort.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/trace.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/session/session.h"
#include "daemon/worker/track/track.h"
#include "proto/base/clock.h"
#include "proto/base/json_fd.h"

static struct json_object *milliseconds_since(uint64_t ns)
{
    return json_double((double)(clock_ns() - ns) / 1e6);
}

/* ---- comms ---- */

static const char *head_name(const struct submission *sub)
{
    return sub->kind == SUBMISSION_ALLOC ? "buffer_alloc" : op_name(sub->args.op);
}

/* The number of the operator at the head of the ranks' queues. */
static uint64_t head_number(const struct comm *c)
{
    return c->dev.current ? c->dev.current->span.number : c->operators + 1;
}

static struct json_object *rank_describe(const struct member *m)
{
    static const char *const states[] = {[MEMBER_ABSENT] = "not joined", [MEMBER_JOINED] = "idle", [MEMBER_LEFT] = "left"};
    const struct submission *head = TAILQ_FIRST(&m->queue);
    struct json_object *o =
        JSON_OBJECT({"rank", json_int(m->rank)}, {"state", json_text(head ? "in operator" : states[m->state])});
    if (m->state != MEMBER_ABSENT) {
        JSON_ADD(o, {"pid", json_int(m->pid)});
        if (m->peer)
            JSON_ADD(o, {"node", json_text(m->peer->address)});
        else if (!m->remote && *m->comm->worker->node && m->comm->nodes)
            JSON_ADD(o, {"node", json_text(m->comm->worker->node)});
        if (m->dev->device)
            JSON_ADD(o, {"device", json_int(m->dev->device->index)});
        JSON_ADD(o, {"kind", json_text(m->comm->dev.ops->kind)});
    }
    if (head) {
        JSON_ADD(o, {"op", json_text(head_name(head))}, {"number", json_int(head_number(m->comm))},
                 {"since_ms", milliseconds_since(head->arrived_ns)});
    } else if (m->comm->state == COMM_FORMING && m->state == MEMBER_JOINED)
        JSON_ADD(o, {"since_ms", milliseconds_since(m->arrived_ns)});
    JSON_ADD(o, {"queued", json_int(m->queued)});
    return o;
}

static struct json_object *operator_describe(const struct comm *c)
{
    struct json_object *missing = json_object_new_array();
    const struct submission *first = NULL;

    for (int r = 0; r < c->nranks; r++) {
        const struct submission *head = TAILQ_FIRST(&c->members[r].queue);
        if (!head)
            json_object_array_add(missing, json_int(r));
        else if (!first || head->arrived_ns < first->arrived_ns)
            first = head;
    }
    if (!first || c->state == COMM_ABORTED) {
        (void)json_object_put(missing);
        return NULL;
    }
    uint64_t since_ns = c->dev.current ? c->dev.current->span.started_ns : first->arrived_ns;
    if (c->dev.current && since_ns < c->dev.turn_ns) /* enqueued before its turn began */
        since_ns = c->dev.turn_ns;
    return JSON_OBJECT({"op", json_text(head_name(first))}, {"number", json_int(head_number(c))},
                       {"state", json_text(c->dev.current ? "running" : "waiting")}, {"since_ms", milliseconds_since(since_ns)},
                       {"missing", missing});
}

static struct json_object *awaited_describe(const struct comm *c)
{
    struct json_object *o = json_object_new_array();
    const char *addresses[SPAN_NODES];
    int n = nodes_awaited(c, addresses);

    for (int i = 0; i < n; i++)
        json_object_array_add(o, json_text(addresses[i]));
    return o;
}

static struct json_object *comm_describe(const struct comm *c)
{
    static const char *const states[] = {[COMM_FORMING] = "forming", [COMM_ACTIVE] = "active", [COMM_ABORTED] = "aborted"};
    struct json_object *ranks = json_object_new_array();

    for (int r = 0; r < c->nranks; r++)
        json_object_array_add(ranks, rank_describe(&c->members[r]));
    return JSON_OBJECT({"comm", json_int(c->number)}, {"nranks", json_int(c->nranks)}, {"state", json_text(states[c->state])},
                       {"error", json_text(c->error.text)}, {"operators", json_int(c->operators)},
                       {"bound", json_int(c->bound_runs)}, {"recalled", json_int(c->recalled)},
                       {"time_limit_ms", json_int(c->dev.time_limit_ms)}, {"operator", operator_describe(c)},
                       {"missing_nodes", awaited_describe(c)}, {"runs", prepared_describe(c)}, {"ranks", ranks});
}

static struct json_object *comms_describe(const struct worker *w)
{
    struct json_object *comms = json_object_new_array();
    const struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        json_object_array_add(comms, comm_describe(c));
    return JSON_OBJECT({"uid", json_int(w->uid)}, {"job", json_text(w->job)}, {"pid", json_int(getpid())}, {"comms", comms});
}

/* ---- abort ---- */

static void abort_query(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};
    struct json_object *o = NULL;
    struct comm *c = comm_by_number(s->worker, q->comm, &e);

    if (c) {
        int length = (int)strnlen(q->text, sizeof(q->text) - 8);
        o = JSON_OBJECT({"comm", json_int(c->number)}, {"aborted", json_object_new_boolean(c->state != COMM_ABORTED)});
        c->asked = true;
        comm_abort(c, -ECONNABORTED, "aborted by uid %u with fccctl: %.*s", s->uid, length ? length : 15,
                   length ? q->text : "no reason given");
        comm_release(c);
    }
    session_reply_json(s, q->msg.id, o, &e);
}

void query_handle(struct session *s, const struct fcc_query *q)
{
    struct error e = {0};

    switch (q->what) {
    case FCC_QUERY_COMMS:
        session_reply_json(s, q->msg.id, comms_describe(s->worker), &e);
        return;
    case FCC_QUERY_TRACE:
        trace_query(s, q);
        return;
    case FCC_QUERY_ABORT:
        abort_query(s, q);
        return;
    case FCC_QUERY_NODES: /* the broker adds what it knows of the nodes */
        session_reply_json(s, q->msg.id, nodes_links_describe(s->worker), &e);
        return;
    case FCC_QUERY_TRACK:
        session_reply_json(s, q->msg.id, track_describe(s->worker), &e);
        return;
    case FCC_QUERY_RULES: {
        struct json_object *o = track_runs_describe(s->worker, q->comm, &e);
        session_reply_json(s, q->msg.id, o, &e);
        return;
    }
    case FCC_QUERY_STATUS:
    case FCC_QUERY_DEVICES:
    case FCC_QUERY_PING:
    case FCC_QUERY_METRICS:
    case FCC_QUERY_FLIGHTS:
    case FCC_QUERY_FLIGHT:
    case FCC_QUERY_CONFIG:
    case FCC_QUERY_DRAIN:
        (void)error_set(&e, -EINVAL, "query: %u: the broker answers this; name no job in the HELLO", q->what);
        break;
    default:
        (void)error_set(&e, -EINVAL, "query: %u: allowed are 0 to %d", q->what, FCC_QUERY_COUNT - 1);
    }
    session_reply_json(s, q->msg.id, NULL, &e);
}
