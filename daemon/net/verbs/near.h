/* SPDX-License-Identifier: MIT
 *
 * near.h - chooses the RDMA devices that are nearest to the memory that they serve, and thereby the number of rails.
 */
#ifndef FCC_DAEMON_NET_VERBS_NEAR_H
#define FCC_DAEMON_NET_VERBS_NEAR_H

#include <hwloc.h>

#include "daemon/net/net.h"

#define NEAR_DEVICES 16 /* further devices are ignored */

struct near_rails {
    struct net_rails rails;          /* number of rails, and each GPU's rail */
    uint8_t nic[NET_RAILS_MAX];      /* each rail's device */
    uint8_t nic_of[NET_DEVICES_MAX]; /* each GPU's device */
};

/* Makes the rails to a peer that the devices (by libibverbs' names) reach. Each GPU gets the nearest device: the one that
 * shares the innermost object of the topology with it (a PCI switch, a NUMA node, a package). For a GPU that is not in the
 * topology the cores `cpus` take its place. Of equally near devices (two adapters and two GPUs behind one switch) the one that
 * serves the fewest GPUs so far, then the first, is taken; devices that are not in the topology come last. If net lists no
 * GPUs, net->rails (or one) devices near the cores are chosen in the same way.
 *
 * net->rails = 0: a rail for each device that was chosen, NET_RAILS_MAX at most. Otherwise: that many rails, which are dealt
 * out to the devices in turn; the GPUs of a device are dealt out to its rails in turn. topology NULL: all devices are equally
 * near. n is at least 1. */
void near_rails(hwloc_topology_t topology, hwloc_const_cpuset_t cpus, const struct net_options *net,
                const char *const devices[], int n, struct near_rails *out);

#endif
