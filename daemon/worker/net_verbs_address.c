/* SPDX-License-Identifier: MIT
 *
 * net_verbs_address.c - which RDMA device, by which address, a link takes.
 *
 * rdma_cm binds by address, and an address is one device's. The socket's own local address is of a device that reaches the peer, or verbs is not
 * used at all (verbs_usable()). Other devices of this node do, too, if they have an address in a network that the peer's address is in:
 * of these each rail takes the one that is nearest to the memory that it serves (net_verbs_near.h). Each end chooses by itself among
 * addresses of the network that they share, and the receiver tells the sender which it is. Two nodes of the same build choose alike, so that a rail joins
 * adapters of the same place: where these are on switches of their own, that is what reaches.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "net_verbs.h"
#include "net_verbs_near.h"

#define CANDIDATES 16

struct candidates {
    int n;
    const char *names[CANDIDATES]; /* libibverbs': as long as the process */
    struct sockaddr_storage addresses[CANDIDATES];
};

int verbs_address(int sock, bool remote, struct sockaddr_storage *out, struct error *e)
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

void *verbs_address_bytes(const struct sockaddr_storage *address, size_t *length)
{
    bool four = address->ss_family == AF_INET;

    *length = four ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    return four ? (void *)&((struct sockaddr_in *)address)->sin_addr : (void *)&((struct sockaddr_in6 *)address)->sin6_addr;
}

void verbs_address_port(struct sockaddr_storage *address, uint16_t port)
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

/* Are these two in one network, by the mask? */
static bool shares_network(const struct sockaddr_storage *a, const struct sockaddr_storage *b,
                           const struct sockaddr_storage *mask)
{
    size_t length;
    const unsigned char *x = verbs_address_bytes(a, &length), *y = verbs_address_bytes(b, &length),
                        *m = verbs_address_bytes(mask, &length);

    for (size_t i = 0; i < length; i++)
        if ((x[i] ^ y[i]) & m[i])
            return false;
    return true;
}

static void address_copy(struct sockaddr_storage *to, const struct sockaddr *from)
{
    memset(to, 0, sizeof(*to));
    memcpy(to, from, from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

/* The other devices that have an address in a network that the peer is in. */
static void candidates_add(struct candidates *c, struct rdma_event_channel *channel, const struct sockaddr_storage *peer)
{
    struct ifaddrs *all = NULL, *a;

    if (getifaddrs(&all))
        return;
    for (a = all; a && c->n < CANDIDATES; a = a->ifa_next) {
        struct sockaddr_storage at, mask;
        const char *name = "";
        struct error ignored;
        bool is_known = false;
        if (!a->ifa_addr || !a->ifa_netmask || a->ifa_addr->sa_family != peer->ss_family || !(a->ifa_flags & IFF_UP))
            continue;
        address_copy(&at, a->ifa_addr);
        address_copy(&mask, a->ifa_netmask);
        mask.ss_family = peer->ss_family; /* some kernels leave it out */
        if (!shares_network(&at, peer, &mask) || device_of(channel, &at, &name, &ignored))
            continue;
        for (int i = 0; i < c->n; i++)
            is_known |= !strcmp(c->names[i], name);
        if (is_known)
            continue;
        c->names[c->n] = name;
        c->addresses[c->n++] = at;
    }
    freeifaddrs(all);
}

/* This machine's, read once; NULL: it cannot be had. */
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

/* The rails, nearest to GPUs or, without any, to the cores that this process may run on: its ranks' memory is there. */
static void rails_choose(const struct candidates *c, const struct net_options *options, struct near_rails *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    hwloc_bitmap_t cpus = NULL;
    bool is_known = false;

    if (c->n > 1) { /* most nodes have one: nothing is read */
        (void)pthread_once(&once, topology_read);
        cpus = topology ? hwloc_bitmap_alloc() : NULL;
        is_known = cpus && !hwloc_get_cpubind(topology, cpus, HWLOC_CPUBIND_PROCESS);
    }
    near_rails(is_known ? topology : NULL, cpus, options, c->names, c->n, out);
    hwloc_bitmap_free(cpus);
}

int verbs_address_choose(int sock, const struct net_options *options, struct verbs_end *end, struct error *e)
{
    struct candidates c = {.n = 1, .names = {""}};
    struct rdma_event_channel *channel;
    struct sockaddr_storage peer;
    int status = verbs_address(sock, false, &c.addresses[0], e);

    if (!status)
        status = verbs_address(sock, true, &peer, e);
    if (status)
        return status;
    status = verbs_channel_open(&channel, e);
    if (status)
        return status;
    status = device_of(channel, &c.addresses[0], &c.names[0], e);
    if (!status) {
        candidates_add(&c, channel, &peer);
        struct near_rails chosen;
        rails_choose(&c, options, &chosen);
        int nic = chosen.nic[options->rail % chosen.rails.n];
        end->address = c.addresses[nic];
        end->nic = c.names[nic];
        end->rails = chosen.rails;
    }
    rdma_destroy_event_channel(channel);
    return status;
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
