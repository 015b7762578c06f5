/* SPDX-License-Identifier: MIT
 *
 * address.c - finds the addresses of this node that belong to RDMA devices.
 *
 * rdma_cm binds by address, and each address belongs to one device. The socket's own local address is that of a device that
 * reaches the peer; otherwise verbs is not used (verbs_usable()). places.h says how the two ends find other networks in common.
 * Two nodes of the same build choose alike, so a rail joins adapters in the same position of both nodes. If each position has a
 * switch of its own, only such adapters reach each other.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/verbs/places.h"
#include "daemon/net/verbs/verbs.h"

/* The address of a socket's local or remote end. IPv4-mapped IPv6 addresses become IPv4. */
static int verbs_address(int sock, bool remote, struct sockaddr_storage *out, struct error *e)
{
    socklen_t length = sizeof(*out);
    struct sockaddr_in6 six;

    memset(out, 0, sizeof(*out));
    if ((remote ? getpeername : getsockname)(sock, (struct sockaddr *)out, &length))
        return error_set(e, -errno, "a connection without an address: %s", strerror(errno));
    memcpy(&six, out, sizeof(six));
    if (out->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six.sin6_port};
        memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
        memset(out, 0, sizeof(*out));
        memcpy(out, &four, sizeof(four));
    }
    return out->ss_family == AF_INET || out->ss_family == AF_INET6
               ? 0
               : error_set(e, -EAFNOSUPPORT, "a connection that is not TCP");
}

static void *verbs_address_bytes(const struct sockaddr_storage *address, size_t *length)
{
    bool four = address->ss_family == AF_INET;

    *length = four ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    return four ? (void *)&((struct sockaddr_in *)address)->sin_addr : (void *)&((struct sockaddr_in6 *)address)->sin6_addr;
}

static void verbs_address_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
}

int verbs_bind(struct rdma_cm_id *id, const struct sockaddr_storage *at, struct error *e)
{
    struct sockaddr_storage local = *at;
    char text[INET6_ADDRSTRLEN] = "?";
    size_t length;

    verbs_address_port(&local, 0);
    (void)inet_ntop(local.ss_family, verbs_address_bytes(&local, &length), text, sizeof(text));
    if (rdma_bind_addr(id, (struct sockaddr *)&local))
        return error_set(e, errno == EADDRNOTAVAIL ? -ENODEV : -errno,
                         "%s is no address of an RDMA device: %s (rdma link shows them)", text, strerror(errno));
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
                     "RDMA's connection manager: %s (the kernel's module rdma_ucm and /dev/infiniband/rdma_cm are needed)",
                     strerror(errno));
}

/* The name of the device that has this address. */
static int device_of(struct rdma_event_channel *channel, const struct sockaddr_storage *at, const char **name, struct error *e)
{
    struct rdma_cm_id *id;

    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        return error_set(e, -errno, "rdma_create_id: %s", strerror(errno));
    int status = verbs_bind(id, at, e);
    if (!status)
        *name = ibv_get_device_name(id->verbs->device);
    (void)rdma_destroy_id(id);
    return status;
}

/* The number of leading bits that are set. */
static uint8_t prefix_of(const unsigned char *mask, size_t length)
{
    uint8_t bits = 0;

    while (bits < length * 8 && mask[bits / 8] >> (7 - bits % 8) & 1)
        bits++;
    return bits;
}

static struct sockaddr_storage address_copy(const struct sockaddr *from)
{
    struct sockaddr_storage to = {.ss_family = from->sa_family};

    memcpy(&to, from, from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return to;
}

static struct network network_of(const struct sockaddr_storage *address, const struct sockaddr_storage *mask)
{
    struct network n = {.family = address->ss_family == AF_INET ? NETWORK_IPV4 : NETWORK_IPV6};
    struct sockaddr_storage at = *address, bits;
    size_t length;
    const void *bytes = verbs_address_bytes(&at, &length);

    memcpy(n.address, bytes, length);
    n.prefix = (uint8_t)network_bits(n.family);
    if (mask) {
        bits = *mask;
        bits.ss_family = at.ss_family; /* some kernels do not set the mask's family */
        n.prefix = prefix_of(verbs_address_bytes(&bits, &length), length);
    }
    return n;
}

void verbs_address_of(const struct network *place, uint32_t scope, uint16_t port, struct sockaddr_storage *out)
{
    size_t length;

    *out = (struct sockaddr_storage){.ss_family = place->family == NETWORK_IPV4 ? AF_INET : AF_INET6};
    void *bytes = verbs_address_bytes(out, &length);
    memcpy(bytes, place->address, length);
    verbs_address_port(out, port);
    if (out->ss_family == AF_INET6 && network_is_link_local(place))
        ((struct sockaddr_in6 *)out)->sin6_scope_id = scope;
}

/* Adds all addresses of this node that belong to RDMA devices and whose interface is up and running. */
static void addresses_add(struct verbs_places *p, struct rdma_event_channel *channel)
{
    struct ifaddrs *all = NULL, *a;

    if (getifaddrs(&all))
        return;
    for (a = all; a; a = a->ifa_next) {
        struct verbs_place place;
        struct error ignored;
        if (!a->ifa_addr || !a->ifa_netmask || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6) ||
            (a->ifa_flags & (IFF_UP | IFF_RUNNING | IFF_LOOPBACK)) != (IFF_UP | IFF_RUNNING))
            continue;
        struct sockaddr_storage at = address_copy(a->ifa_addr), mask = address_copy(a->ifa_netmask);
        place = (struct verbs_place){.at = network_of(&at, &mask)};
        if (!device_of(channel, &at, &place.nic, &ignored))
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

int verbs_places_find(int sock, const struct net_options *options, struct verbs_places **out, struct error *e)
{
    struct verbs_places *p = calloc(1, sizeof(*p));
    struct sockaddr_storage local, remote;
    struct rdma_event_channel *channel;
    struct verbs_place own;

    if (!p)
        return error_set(e, -ENOMEM, "no memory for a link");
    int status = verbs_address(sock, false, &local, e);
    if (!status)
        status = verbs_address(sock, true, &remote, e);
    if (!status)
        status = verbs_channel_open(&channel, e);
    if (status) {
        free(p);
        return status;
    }
    status = device_of(channel, &local, &own.nic, e);
    if (!status) {
        struct network peer = network_of(&remote, NULL);
        own.at = network_of(&local, NULL);
        own.scope = local.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&local)->sin6_scope_id : 0;
        places_begin(p, &own, &peer, options);
        addresses_add(p, channel);
    }
    rdma_destroy_event_channel(channel);
    if (status) {
        free(p);
        return status;
    }
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
    struct sockaddr_storage local;
    struct rdma_event_channel *channel;
    const char *name = "";
    int status = verbs_address(sock, false, &local, e);

    if (!status)
        status = verbs_channel_open(&channel, e);
    if (status)
        return status;
    status = device_of(channel, &local, &name, e);
    rdma_destroy_event_channel(channel);
    return status;
}
