/* SPDX-License-Identifier: MIT
 *
 * rails.c - which of several links to another node a rank's data takes.
 *
 * To each node there are one or several links, its rails, each with a network adapter of its own. How many there are, and which adapters,
 * the sender's transport says when the first one is there (net_rails): over verbs as many as there are adapters that are nearest to GPUs
 * here (daemon/net/verbs/near.c), otherwise one, or as many as RAILS says. Each direction is its sender's choice; the receiver learns
 * the number of the rail with its connection, and offers one adapter in each network that it has adapters in: the one that it would have for
 * that rail itself. Of these networks the sender takes the one that its own adapter for the rail is in (daemon/net/verbs/places.h).
 *
 *   GPU 0 (ranks) -- rail 0: mlx5_0 ---------> mlx5_0
 *   GPU 1 (ranks) -- rail 1: mlx5_1 ---------> mlx5_1     node B: receives from both, in one thread
 *                    DONE on both               in one network, or each pair in one of its own
 *
 * What a rank sends takes one rail, that of its device: a GPU's is the one whose adapter is nearest to it. Ranks on cpu devices, which all
 * adapters are equally near to, take them in turn. This does not change while a communicator lives. So a rank's data, flags and signals keep
 * their order, as with one link.
 *
 * There is no order between rails. None is needed, because receivers draw only these conclusions from what has come:
 * - A flag of an operator is raised by the rank whose slices are in its signal group (struct signal_group belongs to one plan), so it follows
 *   them on that rank's rail. In hierarchical plans a rank that sends a node's sum has waited for the others by flags in this node's memory,
 *   and sends from its own bounce buffer by its own triggers; a rank that receives for others of its node raises flags for them there. A rank
 *   that waits for several ranks waits for a flag of each.
 * - A signal of a program's put follows the rows of that put, and of the rank's earlier puts. Puts of two ranks have no promised order
 *   (fccclient.h).
 * - LEFT follows the puts of the rank that leaves, on its rail.
 * - DONE stands for all ranks of a node: after it regions are replaced and freed, the next operator stores into them, and copies to GPUs are
 *   awaited. So it is sent over each rail that ranks of the communicator use, and counts when it has come over all of them (done_raise()).
 *   Its flag number says how many these are.
 * - The end of a connection says that nothing more comes. A node's rails are closed together, and it has ended when all have
 *   (proxy_connections.c). Data for a removed region, or for a communicator that has ended, is dropped on each link separately
 *   (daemon/net/region.h), and keys are revoked when each link has finished with them (daemon/net/verbs/verbs.h).
 * - Messages (peer.c) have a connection of their own, or go over rail 0. What a message says of data (turns that have ended, in a request) is
 *   said only where rail 0 is the only one that the communicator's data takes (nodes_messages_follow()).
 *
 * A rail is opened when a communicator forms that has a rank here which takes it, and kept. The first one opens before all ranks are known:
 * a receiver that does not know its GPUs yet, as none of its ranks has come, offers the adapters that are nearest to its cores for that one.
 */
#include <stdio.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/nodes/inside.h"

static_assert(GPU_MAX_GPUS <= NET_DEVICES_MAX, "each has a rail");
static_assert(SOURCES < SOURCE_NONE, "a number each");

void nodes_rails_options(const struct worker *w, struct net_options *net)
{
    const struct gpus *g = w->gpus;

    net->rails = config_rails(&w->config);
    net->nnetworks = (uint32_t)networks_parse(w->config.rail_networks, net->networks); /* it has been checked (config.c) */
    net->ndevices = 0;
    for (int i = 0; g && i < g->count; i++) {
        struct net_pci *at = &net->devices[net->ndevices++];
        if (sscanf(g->descriptions[i].pci, "%x:%x:%x.%x", &at->domain, &at->bus, &at->device, &at->function) != 4)
            *at = (struct net_pci){.domain = NET_PCI_UNKNOWN}; /* not in the topology: taken for a device near the cores */
    }
}

void nodes_rails_set(struct peer *p, const struct net_rails *rails)
{
    struct nodes_data *d = p->worker->data;

    p->rails = *rails;
    for (uint32_t s = 0; s < SOURCES; s++) {
        uint32_t gpu = s - (SOURCES - NET_DEVICES_MAX);
        uint32_t rail = s < SOURCES - NET_DEVICES_MAX ? s % rails->n : rails->of[gpu];
        atomic_store_explicit(&d->rail_of[p->index][s], (uint8_t)rail, memory_order_relaxed);
    }
}

uint8_t nodes_source(const struct member *m)
{
    const struct comm *c = m->comm;
    uint32_t place = 0;

    if (m->remote)
        return SOURCE_NONE;
    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return (uint8_t)(SOURCES - NET_DEVICES_MAX + (uint32_t)m->dev->device->index);
    for (int r = 0; r < m->rank; r++)
        place += !c->members[r].remote;
    return (uint8_t)(place % (SOURCES - NET_DEVICES_MAX)); /* which only spreads them over the rails */
}

uint32_t nodes_rail(const struct member *m, const struct peer *p)
{
    return nodes_rail_of(p->worker->data, p->index, nodes_source(m));
}

uint32_t nodes_rails_used(const struct comm *c, const struct peer *p, uint16_t ranks[NET_RAILS_MAX])
{
    uint32_t n = 0, seen = 0;

    for (int r = 0; r < c->nranks && n < p->rails.n; r++) {
        uint32_t rail = c->members[r].remote ? NET_RAILS_MAX : nodes_rail(&c->members[r], p);
        if (rail == NET_RAILS_MAX || seen >> rail & 1u)
            continue;
        seen |= 1u << rail;
        ranks[n++] = (uint16_t)r;
    }
    return n;
}
