/* SPDX-License-Identifier: MIT
 *
 * places.h - the addresses of RDMA devices that a link may have at its two ends, and how these agree. Pure functions.
 *
 * A device reaches another one for sure only where both have an address in one network. So
 *
 *   receiver   lists in its hello one address for each network in which its devices have any: of several devices that are in one network, the
 *              one that it would have for that rail itself. It listens at each of them.
 *   sender     takes, of its devices that are in one of these networks, the one that it would have for that rail if there were no
 *              others (the nearest to the memory that the rail serves), and connects from there to the receiver's address in that network.
 *
 * The sender decides, as a rail is its own memory's. So it is right whether all devices are in one network or each is in its own, and between nodes
 * that are not built alike. Nothing has to be set, and nothing is asked back.
 *
 * The first place of both is the socket's own address. The brokers have met there: it is in use if there is nothing in common.
 *
 * A network is what an interface's mask says, or, with networks that were listed (RAIL_NETWORKS), the listed one that the address is in; devices
 * in none of these do not count. So an administrator keeps rails off networks that are for something else, and tells of networks that
 * routers join, such as one of two addresses between each device and its switch.
 *
 * Two networks may look the same and not be joined. Loopback and link-local ones do so everywhere: loopback never counts, nor does
 * link-local IPv6, which is nothing without an interface's number; link-local IPv4 counts if it is where the socket is, or is listed.
 * Of others it is found out by trying: what has not come about within VERBS_TRY_MS goes to the socket's own places, and the log
 * says which addresses did not meet (connect.c). A container's network is no danger: its bridge is no RDMA device.
 */
#ifndef FCC_DAEMON_NET_VERBS_PLACES_H
#define FCC_DAEMON_NET_VERBS_PLACES_H

#include "daemon/net/hello.h"
#include "daemon/net/verbs/near.h"

struct verbs_place {
    struct network at;
    uint32_t scope;  /* a link-local IPv6 address's interface, otherwise 0 */
    const char *nic; /* libibverbs' name of the device: as long as the process */
};

/* How one link chooses. */
struct verbs_places {
    uint32_t n; /* at least 1 */
    struct verbs_place of[NET_HELLO_PLACES];
    struct network peer;       /* the socket's other end */
    hwloc_topology_t topology; /* NULL: it cannot be read. It stays */
    hwloc_bitmap_t cpus;       /* that this process may run on. Its owner's */
    struct net_options net;
};

/* Begin with the socket's own address. All else but its ends and options is nothing. */
void places_begin(struct verbs_places *p, const struct verbs_place *own, const struct network *peer,
                  const struct net_options *net);
/* One more address of this node's RDMA devices, with its interface's network; the socket's own one, too. It is left out if it does not
 * count (above). */
void places_add(struct verbs_places *p, const struct verbs_place *place);
/* The rails of this direction, if all devices of this node reached the other one. */
struct net_rails places_rails(const struct verbs_places *p);

/* The receiver: the places to list, the socket's own first. How many. */
uint32_t places_offer(const struct verbs_places *p, uint8_t out[NET_HELLO_PLACES]);

/* What the sender has chosen: its own place, and the place in the hello. Both are 0 where nothing else is in common. */
struct places_pair {
    uint8_t mine, theirs;
};
/* The sender: choose. -EPROTO with the reason: this is no list of places. */
int places_meet(const struct verbs_places *p, const struct net_hello *hello, struct places_pair *out, struct error *e);
/* An address of the hello, as it is here. */
struct network places_listed(const struct net_hello *hello, uint8_t place);

#endif
