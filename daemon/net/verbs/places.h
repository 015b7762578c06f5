/* SPDX-License-Identifier: MIT
 *
 * places.h - the addresses of RDMA devices between which a link's queue pair may be made, and how its two ends choose. Pure
 * functions.
 *
 * Two devices are sure to reach each other only if both have an address in the same network. So
 *
 *   receiver   lists in its hello one address for each network in which its devices have any. If several devices are in one
 *              network, it lists the one that it would use for that rail itself. It listens at each listed address.
 *   sender     considers its devices that are in one of these networks. Of them it takes the one that it would use for that
 *              rail if there were no other devices (the nearest to the memory that the rail serves). It connects from that
 *              device to the receiver's address in that network.
 *
 * The sender decides, because a rail serves the sender's memory. The result is right whether all devices are in one network or
 * each has its own, and between nodes of different builds. It needs no settings and no further message.
 *
 * The first place of both ends is the socket's own address, over which the brokers have connected. It is used if no network is
 * common.
 *
 * An address's network is that of its interface's mask or, if RAIL_NETWORKS is set, the listed network that has the address;
 * then devices in no listed network are not used. So an administrator can keep rails off networks with another purpose, and can
 * declare networks that routers join, such as point-to-point networks between each device and its switch.
 *
 * Two networks may have the same addresses and not be connected. That is so everywhere for loopback and link-local addresses:
 * loopback is never used; link-local IPv6 is not used, as it needs an interface's index; link-local IPv4 is used if the
 * socket's peer is in that network, or if it is listed. For other networks it is found out by trying: if there is no queue pair
 * within VERBS_TRY_MS, the socket's own addresses are tried, and the log says which addresses failed (connect.c). Container
 * networks do no harm, as a bridge is not an RDMA device.
 */
#ifndef FCC_DAEMON_NET_VERBS_PLACES_H
#define FCC_DAEMON_NET_VERBS_PLACES_H

#include <hwloc.h>

#include "daemon/net/hello.h"
#include "daemon/net/net.h"

/* ---- near.c: the devices that are nearest to the memory that they serve, and thereby the number of rails ---- */

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

/* ---- places.c ---- */

struct verbs_place {
    struct network at;
    uint32_t scope;  /* interface index of a link-local IPv6 address, else 0 */
    const char *nic; /* libibverbs' name of the device, which lives as long as the process */
};

/* All addresses that a link can use at this node, and what the choice depends on. */
struct verbs_places {
    uint32_t n;                              /* number of places, at least 1 */
    struct verbs_place of[NET_HELLO_PLACES]; /* [0]: the socket's own address */
    struct network peer;                     /* the address of the socket's other end */
    hwloc_topology_t topology;               /* this machine's, which lives as long as the process; NULL: it cannot be read */
    hwloc_bitmap_t cpus;                     /* cores that this process may run on; freed with the places */
    struct net_options net;
};

/* Initializes the places with the socket's own address. */
void places_begin(struct verbs_places *p, const struct verbs_place *own, const struct network *peer,
                  const struct net_options *net);
/* Adds an address of this node's RDMA devices, with its interface's network, unless it is not to be used (see above). The
 * socket's own address is to be added as well. */
void places_add(struct verbs_places *p, const struct verbs_place *place);
/* The rails of this direction, on the assumption that all devices of this node reach the other node. */
struct net_rails places_rails(const struct verbs_places *p);

/* Receiver: sets `out` to the places to list, the socket's own first. Returns their number. */
uint32_t places_offer(const struct verbs_places *p, uint8_t out[NET_HELLO_PLACES]);

/* The sender's choice: the index of its own place, and of the place in the hello. Both are 0 if no network is common. */
struct places_pair {
    uint8_t mine, theirs;
};
/* Sender: chooses. Returns 0, or -EPROTO with the reason if the hello's list is malformed. */
int places_meet(const struct verbs_places *p, const struct net_hello *hello, struct places_pair *out, struct error *e);
/* An address of the hello. */
struct network places_listed(const struct net_hello *hello, uint8_t place);

#endif
