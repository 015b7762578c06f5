/* SPDX-License-Identifier: MIT
 *
 * join.c - ranks on other nodes join a communicator whose ranks meet here, or are refused.
 */
#include "daemon/worker/comm/join.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/worker/comm/unformed.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/clock.h"

/* Whether a rank has joined here from this peer, whose own number of the communicator is comm_there. */
static bool has_joined(const struct comm *c, const struct peer *p, uint32_t comm_there)
{
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].peer == p && c->members[r].comm_there == comm_there)
            return true;
    return false;
}

struct comm *nodes_comm_addressed(const struct worker *w, const struct peer *p, const struct peer_msg *m)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->nodes && c->nodes->number == m->comm && c->state != COMM_ABORTED &&
            (m->to ? m->to == c->number : has_joined(c, p, m->from)))
            return c;
    return NULL;
}

/* A device of the remote rank's kind; all ranks of a communicator have the same kind. A GPU need not be open, since no rank here is on it. */
static int join_remote_device(struct worker *w, const struct peer_join *m, const struct comm *c, struct device **out,
                              struct error *e)
{
    struct device *devices = w->devices;
    struct error why = {0};
    int n;

    if (m->device_kind != FCC_DEVICE_CPU &&
        (m->device_kind > FCC_DEVICE_CUDA || gpus_find(w, (enum fcc_device_kind)m->device_kind, &devices, &n, &why)))
        return error_set(e, why.status ? why.status : -EINVAL, "rank %d: device_kind: on node %s, where the ranks meet: %s",
                         m->rank, w->node, why.status ? why.text : "unknown");
    if (c && c->dev.ops != devices->ops)
        return error_set(e, -EINVAL, "rank %d: device_kind: %s: the ranks that joined before are on %s", m->rank,
                         devices->ops->kind, c->dev.ops->kind);
    *out = devices;
    return m->device_kind == FCC_DEVICE_CPU ? device_open(devices, e) : 0;
}

/* Whether the remote rank may join here; an error concerns this rank alone. */
static int join_remote_check_here(struct worker *w, const struct joining *who, const struct comm *c, struct error *e)
{
    if (w->draining)
        return error_set(e, -ESHUTDOWN, "%s", w->ending);
    if (!c && (unformed_tells(w, who->unique_id, who->rank, e) || join_check_id(w, who, e)))
        return e->status;
    if (w->control < 0 && !(c && c->here)) /* no client comes any more */
        return error_set(e, -ESTALE, "the job's process there is one of an fccd that is gone: it takes nothing new");
    return 0;
}

/* At the root: a rank on another node is refused. */
static void join_remote_refuse(struct worker *w, const struct fcc_unique_id *id, int rank, struct comm *c,
                               const struct error *e)
{
    if (!c) {
        unformed_note_rank(w, id, rank, w->config.time_limit_ms, e);
    } else if (!comm_is_complete(c)) {
        comm_abort(c, e->status, "%s", e->text);
        comm_release(c);
        unformed_told(w, id, rank);
    }
}

void nodes_deny_remote(struct peer *p, const struct peer_deny *m)
{
    bool named = strstr(m->text, " on node ") != NULL;
    struct error e;

    (void)error_set(&e, m->status < 0 ? m->status : -EPROTO, "%.400s%s%s%s", m->text, named ? "" : " (node ",
                    named ? "" : p->address, named ? "" : ")");
    (void)text_clean(e.text);
    join_remote_refuse(p->worker, &m->unique_id, m->rank, comm_find_forming(p->worker, &m->unique_id), &e);
}

void nodes_comm_deny(struct comm *c, int rank, const struct error *e)
{
    const struct fcc_unique_id id = c->unique_id; /* which outlives it */

    join_remote_refuse(c->worker, &id, rank, c, e);
}

void nodes_join_remote(struct peer *p, const struct peer_join *m)
{
    const struct joining who = {&m->unique_id, m->nranks, m->rank, m->time_limit_ms, m->pid, p->address};
    struct worker *w = p->worker;
    struct comm *c = comm_find_forming(w, &m->unique_id);
    struct device *d = NULL;
    struct error e = {0};
    int status = join_check_args(&who, &e);

    if (!status && join_remote_check_here(w, &who, c, &e)) {
        nodes_refuse(p, m, &e);
        return;
    }
    if (!status && c)
        status = join_check(&who, c, &e);
    if (!status)
        status = join_remote_device(w, m, c, &d, &e);
    assert(status || d);
    if (!status && !c && !(c = comm_make(w, &who, d, &e)))
        status = e.status;
    if (!status)
        status = nodes_begin(c, NULL, &e);
    if (status) {
        nodes_refuse(p, m, &e);
        join_remote_refuse(w, &m->unique_id, m->rank, c, &e);
        return;
    }
    assert(c);
    struct member *member = &c->members[m->rank];
    member->remote = true;
    member->peer = p;
    member->comm_there = m->msg.from;
    member->pid = m->pid;
    member->state = MEMBER_JOINED;
    member->arrived_ns = clock_ns();
    c->present++;
    join_limit(c, m->time_limit_ms);
    nodes_joined(c, p, m);
    if (c->present == c->nranks &&
        !c->nodes->root) /* otherwise this node is the root under another address, and does not know it yet */
        comm_complete(c);
    comm_deadline_set(c);
    comm_release(c);
}
