/* SPDX-License-Identifier: MIT
 *
 * members.c - who is who in a communicator over several nodes: its nodes, their ranks, and what a node's memory for it is known by.
 */
#include "daemon/worker/nodes/nodes.h"

int nodes_peer_number(const struct comm *c, const struct peer *p)
{
    for (int i = 0; i < c->nodes->npeers; i++)
        if (c->nodes->peers[i] == p)
            return i;
    return -1;
}

/* The number by which senders address a node's memory of a communicator; `comm` is that node's own number of it. Data still in
 * flight for a communicator that has ended is never stored for a later one with the same id. */
static uint64_t nodes_memory_number(const struct comm *c, uint32_t comm)
{
    return c->nodes->number + comm; /* random, and each number of a worker's is given once */
}

uint64_t nodes_memory_here(const struct comm *c)
{
    return nodes_memory_number(c, c->number);
}

uint64_t nodes_memory_there(const struct member *m)
{
    return nodes_memory_number(m->comm, m->comm_there);
}

struct member *nodes_member_at(struct comm *c, const struct peer *p, int32_t rank)
{
    return rank >= 0 && rank < c->nranks && c->members[rank].peer == p && c->members[rank].state == MEMBER_JOINED
               ? &c->members[rank]
               : NULL;
}
