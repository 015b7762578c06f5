/* SPDX-License-Identifier: MIT
 *
 * near.h - which RDMA devices are nearest to the memory that they are to serve, and so how many rails there are.
 */
#ifndef FCC_DAEMON_NET_VERBS_NEAR_H
#define FCC_DAEMON_NET_VERBS_NEAR_H

#include <hwloc.h>

#include "daemon/net/net.h"

/* Which of these devices (as libibverbs calls them) is nearest to a GPU or, with gpu NULL or one that the topology does not have, to the cores
 * `cpus`: the one that shares the innermost object with it: a PCI switch, a NUMA node's or a package's root. Of equal ones the
 * first; one that the topology does not have comes last. n is at least 1. */
int near_choose(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct net_pci *gpu, const char *const devices[],
                int n);

#define NEAR_DEVICES 16 /* more are not looked at */

struct near_rails {
    struct net_rails rails;          /* how many, and the one of each GPU */
    uint8_t nic[NET_RAILS_MAX];      /* of each rail: its device */
    uint8_t nic_of[NET_DEVICES_MAX]; /* of each GPU: the device that it takes */
};

/* The rails to a peer that these devices reach: which GPU takes which, and the device of each. Every GPU takes the device that is nearest to it; of
 * equal ones (two adapters and two GPUs behind one switch) the one that the fewest have taken. Without GPUs the cores stand for as many as there are to be rails.
 *
 * net->rails 0: a rail for each device that was taken, NET_RAILS_MAX at most. Another number: that many; the devices have them
 * in turn, and the GPUs of a device have its rails in turn. topology NULL: all are equally near. n is at least 1. */
void near_rails(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct net_options *net,
                const char *const devices[], int n, struct near_rails *out);

#endif
