/* SPDX-License-Identifier: MIT
 *
 * fabric.c - which links there are, and which of them a message takes.
 *
 * Links of each sort stand together: out of the adapters, into the adapters, those of the fabric, those inside of the nodes. A bundle of a fat tree is one link
 * with all its bandwidth, as if every message were spread over its cables.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/inside.h"

static double whole(double rate)
{
    const double w = (double)(uint64_t)rate;

    return w < 1 ? 1 : w;
}

static void link_set(struct sim *s, uint32_t i, double bytes_s)
{
    link_make(s, i, whole(bytes_s), false);
}

/* ---- graphs ---- */

/* The link towards each node, from everywhere: breadth first from that node. */
static int graph_routes(struct sim *s, struct error *e)
{
    const struct sim_fabric *f = &s->m.fabric;
    const int places = s->m.nodes + f->nswitches;
    int *queue = calloc((size_t)places, sizeof(*queue));

    s->next_hop = malloc((size_t)places * (size_t)s->m.nodes * sizeof(*s->next_hop));
    s->link_to = calloc((size_t)f->ncables + 1, sizeof(*s->link_to));
    if (!queue || !s->next_hop || !s->link_to) {
        free(queue);
        return error_set(e, -ENOMEM, "no memory for a fabric of %d nodes", s->m.nodes);
    }
    memset(s->next_hop, 0xff, (size_t)places * (size_t)s->m.nodes * sizeof(*s->next_hop));
#define PLACE(end) ((end) >= SIM_MAX_NODES ? s->m.nodes + (end)-SIM_MAX_NODES : (end))
    for (int i = 0; i < f->ncables; i++)
        s->link_to[i] = PLACE(f->cables[i].to);
    for (int node = 0; node < s->m.nodes; node++) {
        int n = 0;
        queue[n++] = node;
        for (int at = 0; at < n; at++)
            for (int i = 0; i < f->ncables; i++) {
                const int from = PLACE(f->cables[i].from);
                uint32_t *hop = &s->next_hop[(size_t)from * (size_t)s->m.nodes + (size_t)node];
                if (s->link_to[i] != queue[at] || from == node || *hop != NONE)
                    continue;
                *hop = s->fabric_first + (uint32_t)i;
                queue[n++] = from;
            }
    }
#undef PLACE
    free(queue);
    for (int from = 0; from < s->m.nodes; from++)
        for (int to = 0; to < s->m.nodes; to++)
            if (from != to && s->next_hop[(size_t)from * (size_t)s->m.nodes + (size_t)to] == NONE)
                return error_set(e, -EINVAL, "fabric: disconnected: no way from node %d to node %d", from, to);
    return 0;
}

/* ---- making ---- */

/* Where each node of a torus stands. */
static bool torus_places(struct sim *s)
{
    const struct sim_fabric *f = &s->m.fabric;

    s->torus_at = calloc((size_t)s->m.nodes, sizeof(*s->torus_at));
    for (int node = 0; s->torus_at && node < s->m.nodes; node++)
        for (int d = 0, rest = node; d < f->dimensions; rest /= f->shape[d++])
            s->torus_at[node][d] = (uint16_t)(rest % f->shape[d]);
    return s->torus_at;
}

static uint32_t fabric_links(const struct sim *s)
{
    const struct sim_fabric *f = &s->m.fabric;

    switch (f->kind) {
    case SIM_FAT_TREE:
        return 2 * (uint32_t)s->leaves;
    case SIM_RAIL:
        return 2 * (uint32_t)(s->leaves * s->m.node.rails);
    case SIM_TORUS:
        return 2 * (uint32_t)(f->dimensions * s->m.nodes);
    case SIM_DRAGONFLY:
        return (uint32_t)(s->leaves * s->leaves);
    default:
        return (uint32_t)f->ncables;
    }
}

static uint32_t inside_links(const struct sim *s)
{
    const uint32_t ranks = (uint32_t)s->m.node.ranks;

    return s->m.node.link == SIM_LINK_MEMORY
               ? 0
               : (uint32_t)s->m.nodes * (s->m.node.link == SIM_LINK_MESH ? ranks * ranks : 2 * ranks);
}

/* The most links that a way between two nodes has. */
static unsigned path_most(const struct sim *s)
{
    unsigned far = 2; /* both adapters */

    if (s->m.fabric.kind == SIM_GRAPH)
        return PATH_MAX_LINKS;
    for (int i = 0; s->m.fabric.kind == SIM_TORUS && i < s->m.fabric.dimensions; i++)
        far += (unsigned)s->m.fabric.shape[i] / 2;
    return far > 8 ? far : 8; /* other fabrics have four at most, nodes three */
}

/* Marks the links that can never be full, whatever flows there are: an adapter of a torus that carries as much as all links that lead to its node, and bundles
 * as wide as all adapters below them. */
static void wide_mark(struct sim *s)
{
    const struct sim_fabric *f = &s->m.fabric;
    uint32_t first = 0, end = 0;

    if (f->kind == SIM_TORUS && !(f->inject_bytes_s > 0)) {
        end = s->fabric_first;
    } else if ((f->kind == SIM_FAT_TREE || f->kind == SIM_RAIL) && !(f->oversubscription > 1)) {
        first = s->fabric_first;
        end = s->node_first;
    }
    for (uint32_t i = first; i < end; i++)
        s->links[i].wide = true;
}

static int shape_check(const struct sim *s, struct error *e)
{
    const struct sim_fabric *f = &s->m.fabric;
    int nodes = 1, far = 0;

    if (f->kind == SIM_TORUS) {
        for (int i = 0; i < f->dimensions; i++) {
            nodes *= f->shape[i];
            far += f->shape[i] / 2;
        }
        if (nodes != s->m.nodes)
            return error_set(e, -EINVAL, "fabric: shape: a torus of %d nodes: there are %d", nodes, s->m.nodes);
        if (far + 2 > PATH_MAX_LINKS)
            return error_set(e, -EINVAL, "fabric: shape: %d links from one end to the other: allowed are %d", far,
                             PATH_MAX_LINKS - 2);
    }
    if (f->kind == SIM_DRAGONFLY && s->leaves > 1 && !(f->global_bytes_s > 0))
        return error_set(e, -EINVAL, "fabric: disconnected: no bandwidth between groups");
    return 0;
}

/* What flows may have together is counted up to 2^61. Before a link is shared among those that begin at one moment, each has as much as an adapter, or a rank's link,
 * carries, at most, and those that come from other links as much as these. */
static int counts_check(const struct sim *s, struct error *e)
{
    const double flows = (double)s->m.node.ranks * s->m.device.workgroups * s->m.nodes +
                         (double)s->m.fabric.in_flight * s->m.node.rails * s->m.nodes;
    double widest = s->m.node.link == SIM_LINK_MEMORY ? 0 : s->m.node.link_bytes_s, all = 0;

    for (uint32_t i = 0; i < s->nlinks; i++)
        all += s->links[i].bytes_s;
    for (uint32_t i = 0; i < s->fabric_first; i++)
        widest = s->links[i].bytes_s > widest ? s->links[i].bytes_s : widest;
    if (flows * widest + all < 0x1p61)
        return 0;
    return error_set(
        e, -EINVAL,
        "links of %.3g bytes a second for %.3g flows at a time: allowed are 2^61 bytes a second for all flows together", widest,
        flows);
}

int fabric_make(struct sim *s, struct error *e)
{
    const struct sim_fabric *f = &s->m.fabric;
    const uint32_t adapters = (uint32_t)(s->m.nodes * s->m.node.rails);
    const int leaf = f->leaf > 0 ? f->leaf : s->m.nodes;

    s->leaves = (s->m.nodes + leaf - 1) / leaf;
    if (shape_check(s, e))
        return e->status;
    s->nic_out = 0;
    s->nic_in = adapters;
    s->fabric_first = 2 * adapters;
    s->node_first = s->fabric_first + fabric_links(s);
    if (!links_new(s, s->node_first + inside_links(s) + 1, path_most(s)))
        return error_set(e, -ENOMEM, "no memory for the links");
    const double torus = f->inject_bytes_s > 0 ? f->inject_bytes_s : 2 * f->dimensions * f->bytes_s;
    for (uint32_t i = 0; i < 2 * adapters; i++)
        link_set(s, i, f->kind == SIM_TORUS ? torus : f->bytes_s);
    for (uint32_t i = s->fabric_first; i < s->node_first; i++) {
        const double bundle = f->bytes_s * leaf / (f->oversubscription > 0 ? f->oversubscription : 1);
        link_set(s, i,
                 f->kind == SIM_FAT_TREE    ? bundle * s->m.node.rails
                 : f->kind == SIM_RAIL      ? bundle
                 : f->kind == SIM_TORUS     ? f->bytes_s
                 : f->kind == SIM_DRAGONFLY ? f->global_bytes_s
                                            : f->cables[i - s->fabric_first].bytes_s);
    }
    for (uint32_t i = s->node_first; i + 1 < s->nlinks; i++)
        link_set(s, i, s->m.node.link_bytes_s);
    s->store_link = s->m.node.store_bytes_s > 0 ? s->nlinks - 1 : NONE;
    if (s->store_link != NONE)
        link_make(s, s->store_link, whole(s->m.node.store_bytes_s), true);
    wide_mark(s);
    if (counts_check(s, e))
        return e->status;
    if (f->kind == SIM_TORUS && !torus_places(s))
        return error_set(e, -ENOMEM, "no memory for a torus of %d nodes", s->m.nodes);
    return f->kind == SIM_GRAPH && s->m.nodes > 1 ? graph_routes(s, e) : 0;
}

/* ---- ways ---- */

static unsigned torus_path(const struct sim *s, int from, int to, uint32_t path[])
{
    const struct sim_fabric *f = &s->m.fabric;
    const uint16_t *a_at = s->torus_at[from], *b_at = s->torus_at[to];
    unsigned n = 0;

    for (int d = 0, stride = 1; d < f->dimensions; stride *= f->shape[d++]) {
        const int size = f->shape[d], a = a_at[d], b = b_at[d];
        const int up = b >= a ? b - a : b - a + size, down = size - up;
        const bool forward =
            up < down || (up == down && (a & 1) == 0); /* of two ways as long, even nodes take one, odd ones the other */
        const int step = forward ? 1 : size - 1;
        for (int left = up == 0 ? 0 : forward ? up : down, at = a; left > 0; left--) {
            const int further = at + step, next = further < size ? further : further - size;
            path[n++] = s->fabric_first + 2 * (uint32_t)(d * s->m.nodes + from) + !forward;
            from += (next - at) * stride;
            at = next;
        }
    }
    return n;
}

static unsigned graph_path(const struct sim *s, int from, int to, uint32_t path[])
{
    unsigned n = 0;

    for (int at = from; at != to && n < PATH_MAX_LINKS - 2;) {
        path[n] = s->next_hop[(size_t)at * (size_t)s->m.nodes + (size_t)to];
        at = s->link_to[path[n++] - s->fabric_first];
    }
    return n;
}

unsigned fabric_path(const struct sim *s, int from, int to, int rail, uint32_t path[PATH_MAX_LINKS], uint64_t *latency)
{
    const struct sim_fabric *f = &s->m.fabric;
    const int leaf = f->leaf > 0 ? f->leaf : s->m.nodes, a = from / leaf, b = to / leaf, rails = s->m.node.rails;
    const uint32_t first = s->fabric_first;
    unsigned n = 0, hops = 0;

    path[n++] = s->nic_out + (uint32_t)(from * rails + rail);
    if (f->kind == SIM_TORUS) {
        n += torus_path(s, from, to, path + n);
        hops = n - 2;
    } else if (f->kind == SIM_GRAPH) {
        n += graph_path(s, from, to, path + n);
        hops = n > 2 ? n - 3 : 0;
    } else if (a != b && f->kind == SIM_DRAGONFLY) {
        path[n++] = first + (uint32_t)(a * s->leaves + b);
        hops = 1;
    } else if (a != b) {
        const uint32_t trees = f->kind == SIM_RAIL ? (uint32_t)rails : 1, tree = f->kind == SIM_RAIL ? (uint32_t)rail : 0;
        path[n++] = first + 2 * ((uint32_t)a * trees + tree);
        path[n++] = first + 2 * ((uint32_t)b * trees + tree) + 1;
        hops = 2;
    }
    path[n++] = s->nic_in + (uint32_t)(to * rails + rail);
    *latency = ps_of(f->latency_s + hops * f->hop_s);
    return n;
}

unsigned node_path(const struct sim *s, int from, int to, uint32_t path[PATH_MAX_LINKS])
{
    const int ranks = s->m.node.ranks, node = node_of(s, from);
    unsigned n = 0;

    if (s->m.node.link == SIM_LINK_MESH) {
        path[n++] = s->node_first + (uint32_t)(node * ranks * ranks + from % ranks * ranks + to % ranks);
    } else {
        path[n++] = s->node_first + 2 * (uint32_t)from;
        path[n++] = s->node_first + 2 * (uint32_t)to + 1;
    }
    if (s->store_link != NONE)
        path[n++] = s->store_link;
    return n;
}

void link_name(const struct sim *s, uint32_t link, char out[SIM_NAME])
{
    const int rails = s->m.node.rails;

    if (link < s->nic_in)
        (void)snprintf(out, SIM_NAME, "node %d, adapter %d, out", (int)link / rails, (int)link % rails);
    else if (link < s->fabric_first)
        (void)snprintf(out, SIM_NAME, "node %d, adapter %d, in", (int)(link - s->nic_in) / rails,
                       (int)(link - s->nic_in) % rails);
    else if (link < s->node_first)
        (void)snprintf(out, SIM_NAME, "link %u of the fabric", link - s->fabric_first);
    else
        (void)snprintf(out, SIM_NAME, "link %u inside of the nodes", link - s->node_first);
}
