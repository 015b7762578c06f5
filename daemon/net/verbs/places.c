/* SPDX-License-Identifier: MIT */
#include "daemon/net/verbs/places.h"

#include <string.h>

void places_begin(struct verbs_places *p, const struct verbs_place *own, const struct network *peer,
                  const struct net_options *net)
{
    *p = (struct verbs_places){.n = 1, .of = {*own}, .peer = *peer, .net = *net};
}

/* Sets the prefix of the network that an address is in for the choice of rails. Returns false if the address is not to be
 * used. */
static bool network_find(const struct verbs_places *p, struct network *at)
{
    static const struct network loopback_four = {NETWORK_IPV4, 8, {127}}, loopback_six = {NETWORK_IPV6, 128, {[15] = 1}};

    if (network_has(&loopback_four, at) || network_has(&loopback_six, at))
        return false;
    if (network_is_link_local(at) && at->family == NETWORK_IPV6)
        return false;
    if (!p->net.nnetworks)
        return !network_is_link_local(at) || network_has(at, &p->peer);
    for (uint32_t i = 0; i < p->net.nnetworks; i++)
        if (network_has(&p->net.networks[i], at)) {
            at->prefix = p->net.networks[i].prefix;
            return true;
        }
    return false;
}

/* The order of a device's addresses, smallest first: in the network of the socket's peer; of the peer's family; other. */
static int order_of(const struct verbs_places *p, const struct network *at)
{
    return network_has(at, &p->peer) ? 0 : at->family == p->peer.family ? 1 : 2;
}

void places_add(struct verbs_places *p, const struct verbs_place *place)
{
    struct verbs_place one = *place;
    uint32_t at = p->n;

    if (p->n == NET_HELLO_PLACES || !network_find(p, &one.at))
        return;
    for (uint32_t i = 1; i < p->n; i++)
        if (!strcmp(p->of[i].nic, one.nic) && network_is_shared(&p->of[i].at, &one.at))
            return; /* the device has an address in that network already */
    while (at > 1 && order_of(p, &p->of[at - 1].at) > order_of(p, &one.at))
        at--;
    memmove(&p->of[at + 1], &p->of[at], (p->n - at) * sizeof(p->of[0]));
    p->of[at] = one;
    p->n++;
}

/* Makes the rails with the devices of the places in `in` (NULL: all). Sets `names` to these devices, each once; the socket's
 * device comes first if it is among them. */
static void near_of(const struct verbs_places *p, const bool in[NET_HELLO_PLACES], const char *names[NEAR_DEVICES],
                    struct near_rails *out)
{
    int n = 0;

    for (uint32_t i = 1; i < p->n && !n; i++)
        if ((!in || in[i]) && !strcmp(p->of[i].nic, p->of[0].nic))
            names[n++] = p->of[i].nic;
    for (uint32_t i = 1; i < p->n && n < NEAR_DEVICES; i++) {
        bool is_known = in && !in[i];
        for (int k = 0; k < n; k++)
            is_known |= !strcmp(names[k], p->of[i].nic);
        if (!is_known)
            names[n++] = p->of[i].nic;
    }
    if (!n)
        names[n++] = p->of[0].nic;
    near_rails(p->topology, p->cpus, &p->net, names, n, out);
}

struct net_rails places_rails(const struct verbs_places *p)
{
    const char *names[NEAR_DEVICES];
    struct near_rails all;

    near_of(p, NULL, names, &all);
    return all.rails;
}

/* The place in `in` that the rail uses: that of the device which the rail's first GPU gets if only the devices in `in` exist.
 * So the remaining devices are shared evenly. If net lists no GPUs, the rails are dealt out to the remaining devices in turn.
 * Returns 0 if there are no places in `in`. */
static uint8_t rail_place(const struct verbs_places *p, const bool in[NET_HELLO_PLACES])
{
    const char *names[NEAR_DEVICES];
    struct near_rails all, some;

    near_of(p, NULL, names, &all);
    near_of(p, in, names, &some);
    uint32_t rail = p->net.rail % all.rails.n, gpu = 0;
    while (gpu < p->net.ndevices && all.rails.of[gpu] != rail)
        gpu++;
    const char *nic = names[gpu < p->net.ndevices ? some.nic_of[gpu] : some.nic[rail % some.rails.n]];
    for (uint32_t i = 1; i < p->n; i++)
        if (in[i] && !strcmp(p->of[i].nic, nic))
            return (uint8_t)i;
    return 0;
}

uint32_t places_offer(const struct verbs_places *p, uint8_t out[NET_HELLO_PLACES])
{
    bool is_done[NET_HELLO_PLACES] = {false}, in[NET_HELLO_PLACES];
    uint32_t n = 1;

    out[0] = 0;
    for (uint32_t i = 1; i < p->n; i++) {
        if (is_done[i])
            continue;
        memset(in, false, sizeof(in));
        for (uint32_t k = i; k < p->n; k++) {
            in[k] = !is_done[k] && network_is_shared(&p->of[i].at, &p->of[k].at);
            is_done[k] |= in[k];
        }
        out[n++] = rail_place(p, in);
    }
    return n;
}

struct network places_listed(const struct net_hello *hello, uint8_t place)
{
    const struct net_hello_place *listed = &hello->places[place];
    struct network at = {.family = listed->family, .prefix = listed->prefix};

    memcpy(at.address, listed->address, network_bits(at.family) / 8);
    return at;
}

int places_meet(const struct verbs_places *p, const struct net_hello *hello, struct places_pair *out, struct error *e)
{
    uint32_t n = hello->nplaces;
    uint8_t theirs[NET_HELLO_PLACES] = {0}; /* of each place of this node: the place of the hello in the same network */
    bool in[NET_HELLO_PLACES] = {false};

    if (!n || n > NET_HELLO_PLACES)
        return error_set(e, -EPROTO, "the other end listens at %u addresses: allowed are 1 to %u", n, NET_HELLO_PLACES);
    for (uint32_t k = 0; k < n; k++) {
        const struct net_hello_place *listed = &hello->places[k];
        unsigned bits = network_bits(listed->family);
        if (!bits || listed->prefix > bits || !listed->port)
            return error_set(e, -EPROTO, "the other end's address %u is none: of family %u, with %u bits of network, port %u",
                             k, listed->family, listed->prefix, listed->port);
        struct network at = places_listed(hello, (uint8_t)k);
        for (uint32_t i = 1; i < p->n && k; i++)
            if (!in[i] && network_is_shared(&p->of[i].at, &at)) {
                in[i] = true;
                theirs[i] = (uint8_t)k;
            }
    }
    out->mine = rail_place(p, in);
    out->theirs = theirs[out->mine];
    return 0;
}
