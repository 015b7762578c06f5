/* SPDX-License-Identifier: MIT
 *
 * net_verbs_near.c - the device that is nearest, in a topology as hwloc knows it. A pure function.
 */
#include "net_verbs_near.h"

#include <string.h>

static int depth_of(const struct hwloc_obj *o)
{
    int depth = 0;

    for (; o->parent; o = o->parent)
        depth++;
    return depth;
}

/* How far from the root the innermost object is that has both. I/O objects have no depth of hwloc's own. */
static int nearness(const struct hwloc_obj *a, const struct hwloc_obj *b)
{
    int da = depth_of(a), db = depth_of(b);

    for (; da > db; da--)
        a = a->parent;
    for (; db > da; db--)
        b = b->parent;
    for (; a != b; da--) {
        a = a->parent;
        b = b->parent;
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

int near_choose(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct near_pci *gpu, const char *const devices[],
                int n)
{
    const struct hwloc_obj *to =
        gpu ? hwloc_get_pcidev_by_busid(topology, gpu->domain, gpu->bus, gpu->device, gpu->function) : NULL;
    int best = 0, best_nearness = -1;

    if (!to)
        to = hwloc_get_obj_covering_cpuset(topology, cpus);
    for (int i = 0; i < n && to; i++) {
        const struct hwloc_obj *device = device_find(topology, devices[i]);
        int near = device ? nearness(device, to) : -1;
        if (near > best_nearness) {
            best_nearness = near;
            best = i;
        }
    }
    return best;
}
