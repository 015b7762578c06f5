/* SPDX-License-Identifier: MIT
 *
 * regroup.c - what nodes say to each other of new groups (comm/regroup/regroup.h). They do so for communicators that have been aborted, too, which
 * get no other messages but that of ranks that leave: whoever has left is not waited for.
 */
#include "daemon/worker/comm/regroup/regroup.h"

#include <errno.h>

#include "daemon/worker/nodes/nodes.h"

void nodes_regroup_tell(const struct comm *c, int rank, const struct regroup_entry *entry)
{
    struct peer_regroup m = {.rank = rank, .entry = *entry};

    nodes_send_all(c, &m.msg, PEER_REGROUP, sizeof(m));
}

void nodes_regrouped(const struct comm *c, const struct regroup_decision *d)
{
    struct peer_regrouped m = {.decision = *d};

    nodes_send_all(c, &m.msg, PEER_REGROUPED, sizeof(m));
}

static struct comm *comm_aborted(const struct worker *w, const struct peer_msg *m)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->nodes && c->state == COMM_ABORTED && c->nodes->number == m->comm && m->to == c->number)
            return c;
    return NULL;
}

static void decision_take(struct peer *p, struct comm *c, const struct regroup_decision *d)
{
    for (int r = 0; r < c->nranks; r++)
        if (d->group[r] < -1 || d->group[r] >= c->nranks || d->rank[r] < -1 || d->rank[r] >= c->nranks) {
            peer_break(p, -EPROTO, "regrouped: rank %d is rank %d of group %d: there are %d ranks", r, d->rank[r], d->group[r],
                       c->nranks);
            return;
        }
    if (d->how > FCC_REGROUP_SHRINK)
        peer_break(p, -EPROTO, "regrouped: %u: unknown", d->how);
    else
        regroup_decided(c, d);
}

bool nodes_regroup_message(struct peer *p, struct comm *c, const struct peer_msg *m)
{
    const struct peer_regroup *come = (const struct peer_regroup *)m;

    if (!c && (m->type == PEER_REGROUP || m->type == PEER_REGROUPED || m->type == PEER_LEAVE))
        c = comm_aborted(p->worker, m);
    if (!c || nodes_peer_number(c, p) < 0)
        return false;
    if (m->type == PEER_REGROUPED) {
        decision_take(p, c, &((const struct peer_regrouped *)m)->decision);
    } else if (m->type == PEER_REGROUP) {
        struct member *member = nodes_member_at(c, p, come->rank);
        if (!member || come->entry.how >= FCC_REGROUP_COUNT)
            peer_break(p, -EPROTO, "regroup: rank %d, %u: no rank of that node, or unknown", come->rank, come->entry.how);
        else
            regroup_heard(c, come->rank, &come->entry);
    } else if (m->type == PEER_LEAVE && c->state == COMM_ABORTED) {
        struct member *member = nodes_member_at(c, p, ((const struct peer_turn *)m)->rank);
        if (member)
            member->gone = true;
        regroup_look(c);
    } else {
        return false;
    }
    comm_release(c);
    return true;
}
