/* SPDX-License-Identifier: MIT
 *
 * net_verbs_near.h - which RDMA device is nearest to the memory that it is to serve.
 */
#ifndef FCCD_NET_VERBS_NEAR_H
#define FCCD_NET_VERBS_NEAR_H

#include <hwloc.h>

struct near_pci {
    unsigned domain, bus, device, function;
};

/* Which of these devices (as libibverbs calls them) is nearest to a GPU or, with gpu NULL or one that the topology does not have, to the cores
 * `cpus`: the one that shares the innermost object with it: a PCI switch, a NUMA node's or a package's root. Of equal ones the
 * first; one that the topology does not have comes last. n is at least 1. */
int near_choose(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct near_pci *gpu, const char *const devices[],
                int n);

#endif
