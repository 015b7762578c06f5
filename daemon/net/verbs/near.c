/* SPDX-License-Identifier: MIT
 *
 * near.c - the nearest devices in an hwloc topology. Pure functions.
 */
#include "daemon/net/verbs/places.h"

#include <assert.h>
#include <string.h>

static int depth_of(const struct hwloc_obj *o)
{
    int depth = 0;

    for (; o->parent; o = o->parent)
        depth++;
    return depth;
}

/* Depth of the innermost object that contains both. (hwloc's own depth is not usable for I/O objects.) */
static int nearness(const struct hwloc_obj *a, const struct hwloc_obj *b)
{
    int da = depth_of(a), db = depth_of(b);

    while (a != b) {
        if (da >= db) {
            a = a->parent;
            da--;
        } else {
            b = b->parent;
            db--;
        }
    }
    return da;
}

static const struct hwloc_obj *device_find(hwloc_topology_t topology, const char *name)
{
    hwloc_obj_t o = NULL;

    while ((o = hwloc_get_next_osdev(topology, o)))
        if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && o->name && !strcmp(o->name, name))
            return o;
    return NULL;
}

/* The device nearest to a GPU or to the cores; of equally near ones the one with the smallest `taken`, then the first. */
static int nearest(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct net_pci *gpu, const char *const devices[],
                   int n, const unsigned taken[])
{
    const struct hwloc_obj *to =
        gpu && topology ? hwloc_get_pcidev_by_busid(topology, gpu->domain, gpu->bus, gpu->device, gpu->function) : NULL;
    int best = 0, best_nearness = -2;

    if (!to && topology)
        to = hwloc_get_obj_covering_cpuset(topology, cpus);
    for (int i = 0; i < n; i++) {
        const struct hwloc_obj *device = to ? device_find(topology, devices[i]) : NULL;
        int near = device ? nearness(device, to) : -1;
        if (near < best_nearness || (near == best_nearness && taken[i] >= taken[best]))
            continue;
        best_nearness = near;
        best = i;
    }
    return best;
}

/* Devices that were chosen, in the order of their first choice, and how often each was. */
struct groups {
    uint32_t n;
    uint8_t nic[NEAR_DEVICES], members[NEAR_DEVICES];
};

/* The index of a device's group, which is added if it does not exist. */
static uint32_t group_of(struct groups *g, int nic)
{
    uint32_t i = 0;

    while (i < g->n && g->nic[i] != nic)
        i++;
    if (i == g->n) {
        g->nic[i] = (uint8_t)nic;
        g->members[i] = 0;
        g->n++;
    }
    return i;
}

void near_rails(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct net_options *net,
                const char *const devices[], int n, struct near_rails *out)
{
    uint32_t takers = net->ndevices ? net->ndevices
                      : net->rails  ? net->rails
                                    : 1,
             group[NET_DEVICES_MAX] = {0}, place[NET_DEVICES_MAX] = {0};
    unsigned taken[NEAR_DEVICES] = {0};
    struct groups groups = {.n = 0};
    struct net_rails *rails = &out->rails;

    n = n < NEAR_DEVICES ? n : NEAR_DEVICES;
    for (uint32_t t = 0; t < takers; t++) {
        int nic = nearest(topology, cpus, net->ndevices ? &net->devices[t] : NULL, devices, n, taken);
        taken[nic]++;
        out->nic_of[t] = (uint8_t)nic;
        group[t] = group_of(&groups, nic);
        place[t] = groups.members[group[t]]++;
    }
    *rails = net_rails_plain(net);
    if (!net->rails)
        rails->n = groups.n < NET_RAILS_MAX ? groups.n : NET_RAILS_MAX;
    assert(rails->n && groups.n); /* takers is at least 1 */
    for (uint32_t r = 0; r < rails->n; r++)
        out->nic[r] = groups.nic[r % groups.n];
    for (uint32_t t = 0; t < NET_DEVICES_MAX; t++) {
        if (t >= net->ndevices) {
            rails->of[t] = (uint8_t)(t % rails->n); /* not one of net->devices */
        } else if (groups.n >= rails->n) {
            rails->of[t] = (uint8_t)(group[t] % rails->n);
        } else { /* group g has the rails g, g + groups.n, g + 2 * groups.n, ... */
            uint32_t its = (rails->n - group[t] + groups.n - 1) / groups.n;
            rails->of[t] = (uint8_t)(group[t] + groups.n * (place[t] % its));
        }
    }
}
