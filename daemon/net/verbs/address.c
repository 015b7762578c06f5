/* SPDX-License-Identifier: MIT
 *
 * address.c - finds the addresses of this node that belong to RDMA devices.
 *
 * rdma_cm binds by address, and each address belongs to one device. The socket's own local address is that of a device that
 * reaches the peer; otherwise verbs is not used (verbs_usable()). places.h says how the two ends find other networks in common.
 * Two nodes of the same build choose alike, so a rail joins adapters in the same position of both nodes. If each position has a
 * switch of its own, only such adapters reach each other.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/verbs/places.h"
#include "daemon/net/verbs/verbs.h"

/* The bytes of an address of that family (NETWORK_IPV4 or NETWORK_IPV6). The kernel does not set all masks' family. */
static const unsigned char *address_bytes(const struct sockaddr *address, uint8_t family)
{
    size_t at = family == NETWORK_IPV4 ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr);

    return (const unsigned char *)address + at;
}

/* The number of leading bits that are set. */
static uint8_t prefix_of(const unsigned char *mask, unsigned most)
{
    uint8_t bits = 0;

    while (bits < most && mask[bits / 8] >> (7 - bits % 8) & 1)
        bits++;
    return bits;
}

/* An address, with the prefix of that mask or, if it is NULL, with all bits. */
static struct network network_of(const struct sockaddr *address, const struct sockaddr *mask)
{
    struct network n = {.family = address->sa_family == AF_INET ? NETWORK_IPV4 : NETWORK_IPV6};
    unsigned bits = network_bits(n.family);

    memcpy(n.address, address_bytes(address, n.family), bits / 8);
    n.prefix = mask ? prefix_of(address_bytes(mask, n.family), bits) : (uint8_t)bits;
    return n;
}

/* The address of a socket's local or remote end. IPv4-mapped IPv6 addresses become IPv4. */
static int socket_address(int sock, bool remote, struct verbs_place *out, struct error *e)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct sockaddr_in6 address = {0};
    struct sockaddr *general = (struct sockaddr *)&address;
    socklen_t length = sizeof(address);

    if ((remote ? getpeername : getsockname)(sock, general, &length))
        return error_set(e, -errno, "a connection without an address: %m");
    if (general->sa_family != AF_INET && general->sa_family != AF_INET6)
        return error_set(e, -EAFNOSUPPORT, "a connection that is not TCP");
    *out = (struct verbs_place){.at = network_of(general, NULL)};
    if (out->at.family == NETWORK_IPV6 && !memcmp(out->at.address, mapped, sizeof(mapped))) {
        out->at = (struct network){.family = NETWORK_IPV4, .prefix = 32};
        memcpy(out->at.address, address.sin6_addr.s6_addr + sizeof(mapped), 4);
    } else if (out->at.family == NETWORK_IPV6) {
        out->scope = address.sin6_scope_id;
    }
    return 0;
}

void verbs_address_of(const struct network *at, uint32_t scope, uint16_t port, struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){.ss_family = at->family == NETWORK_IPV4 ? AF_INET : AF_INET6};
    if (out->ss_family == AF_INET) {
        struct sockaddr_in *four = (struct sockaddr_in *)out;
        four->sin_port = htons(port);
        memcpy(&four->sin_addr, at->address, sizeof(four->sin_addr));
    } else {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
        six->sin6_port = htons(port);
        memcpy(&six->sin6_addr, at->address, sizeof(six->sin6_addr));
        six->sin6_scope_id = network_is_link_local(at) ? scope : 0;
    }
}

int verbs_bind(struct rdma_cm_id *id, const struct verbs_place *at, struct error *e)
{
    struct sockaddr_storage local;
    char text[NETWORK_TEXT_MAX];

    verbs_address_of(&at->at, at->scope, 0, &local);
    network_address_text(&at->at, text);
    if (rdma_bind_addr(id, (struct sockaddr *)&local))
        return error_set(e, errno == EADDRNOTAVAIL ? -ENODEV : -errno,
                         "%s is no address of an RDMA device: %m (rdma link shows them)", text);
    if (!id->verbs)
        return error_set(e, -ENODEV, "%s is no address of an RDMA device (rdma link shows them)", text);
    return 0;
}

int verbs_channel_open(struct rdma_event_channel **out, struct error *e)
{
    *out = rdma_create_event_channel();
    if (*out)
        return 0;
    return error_set(e, -ENODEV,
                     "RDMA's connection manager: %m (the kernel's module rdma_ucm and /dev/infiniband/rdma_cm are needed)");
}

/* Sets at->nic to the name of the device that has the address. */
static int device_find(struct rdma_event_channel *channel, struct verbs_place *at, struct error *e)
{
    struct rdma_cm_id *id;

    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        return error_set(e, -errno, "rdma_create_id: %m");
    int status = verbs_bind(id, at, e);
    if (!status)
        at->nic = ibv_get_device_name(id->verbs->device);
    (void)rdma_destroy_id(id);
    return status;
}

/* Adds all addresses of this node that belong to RDMA devices and whose interface is up and running. */
static void addresses_add(struct verbs_places *p, struct rdma_event_channel *channel)
{
    struct ifaddrs *all = NULL, *a;

    if (getifaddrs(&all))
        return;
    for (a = all; a; a = a->ifa_next) {
        struct error ignored;
        if (!a->ifa_addr || !a->ifa_netmask || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6) ||
            (a->ifa_flags & (IFF_UP | IFF_RUNNING | IFF_LOOPBACK)) != (IFF_UP | IFF_RUNNING))
            continue;
        struct verbs_place place = {.at = network_of(a->ifa_addr, a->ifa_netmask)};
        if (!device_find(channel, &place, &ignored))
            places_add(p, &place);
    }
    freeifaddrs(all);
}

/* This machine's topology, read once; NULL: it could not be read. */
static hwloc_topology_t topology;

static void topology_read(void)
{
    hwloc_topology_t t;

    if (hwloc_topology_init(&t))
        return;
    if (hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) || hwloc_topology_load(t))
        hwloc_topology_destroy(t);
    else
        topology = t;
}

/* Sets what nearness depends on: the topology, and the cores that this process may run on, as its ranks' memory is near
 * them. */
static void machine_see(struct verbs_places *p)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, topology_read);
    p->cpus = topology ? hwloc_bitmap_alloc() : NULL;
    if (p->cpus && !hwloc_get_cpubind(topology, p->cpus, HWLOC_CPUBIND_PROCESS))
        p->topology = topology;
}

/* Finds the socket's own address and its device. The caller destroys the channel. */
static int own_find(int sock, struct rdma_event_channel **channel, struct verbs_place *own, struct error *e)
{
    int status = socket_address(sock, false, own, e);

    if (!status)
        status = verbs_channel_open(channel, e);
    if (status)
        return status;
    status = device_find(*channel, own, e);
    if (status)
        rdma_destroy_event_channel(*channel);
    return status;
}

int verbs_places_find(int sock, const struct net_options *options, struct verbs_places **out, struct error *e)
{
    struct rdma_event_channel *channel;
    struct verbs_place own = {.scope = 0}, peer;
    int status = socket_address(sock, true, &peer, e);

    if (!status)
        status = own_find(sock, &channel, &own, e);
    if (status)
        return status;
    struct verbs_places *p = calloc(1, sizeof(*p));
    if (p) {
        places_begin(p, &own, &peer.at, options);
        addresses_add(p, channel);
    }
    rdma_destroy_event_channel(channel);
    if (!p)
        return error_set(e, -ENOMEM, "no memory for a link");
    for (uint32_t i = 1; i < p->n && !p->cpus; i++) /* with a single device, as in most nodes, the topology is not needed */
        if (strcmp(p->of[i].nic, own.nic) != 0)
            machine_see(p);
    *out = p;
    return 0;
}

void verbs_places_free(struct verbs_places *p)
{
    if (p)
        hwloc_bitmap_free(p->cpus);
    free(p);
}

int verbs_usable(int sock, struct error *e)
{
    struct rdma_event_channel *channel;
    struct verbs_place own = {.scope = 0};
    int status = own_find(sock, &channel, &own, e);

    if (!status)
        rdma_destroy_event_channel(channel);
    return status;
}
