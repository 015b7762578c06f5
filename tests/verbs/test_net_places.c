/* SPDX-License-Identifier: MIT
 *
 * test_net_places.c - at which addresses the two ends of a link over verbs meet: lists of addresses that two nodes might have.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/verbs/places.h"
#include "tests/verbs/near_bed.h"

/* A node of the machine of near_bed.h. */
struct node {
    const char *own;        /* the socket's address */
    const char *places[40]; /* "device address/bits", as getifaddrs() has them; NULL: the end */
    unsigned gpus[5];       /* their buses; 0: the end */
    unsigned rails;         /* RAILS; 0: auto */
    const char *networks;   /* RAIL_NETWORKS; NULL: auto */
};

static const char *device_of(const char *name)
{
    static const char *const names[] = {"mlx5_0", "mlx5_1", "mlx5_2", "rxe0", "rxe1"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strncmp(names[i], name, strlen(names[i])))
            return names[i];
    fail_msg("%s", name);
    return NULL;
}

static struct verbs_place place_of(const char *text)
{
    struct network n[NETWORKS_MAX];
    const char *space = strchr(text, ' ');

    assert_non_null(space);
    assert_int_equal(networks_parse(space + 1, n), 1);
    return (struct verbs_place){.at = n[0], .nic = device_of(text)};
}

static void places_of(struct verbs_places *p, hwloc_topology_t t, const struct node *n, const struct node *peer, uint32_t rail)
{
    struct verbs_place own = place_of(n->own), other = place_of(peer->own);
    struct net_options options = {.rail = rail, .rails = n->rails};

    for (int i = 0; n->gpus[i]; i++)
        options.devices[options.ndevices++] = (struct net_pci){.bus = n->gpus[i]};
    int listed = n->networks ? networks_parse(n->networks, options.networks) : 0;
    assert_true(listed >= 0);
    options.nnetworks = (uint32_t)listed;
    places_begin(p, &own, &other.at, &options);
    for (int i = 0; n->places[i]; i++) {
        struct verbs_place one = place_of(n->places[i]);
        places_add(p, &one);
    }
    p->topology = t;
    p->cpus = hwloc_bitmap_alloc_full();
}

/* What a receiver says. The port of a place is 1000 + its number in `p`. */
static struct net_hello hello_of(const struct verbs_places *p)
{
    uint8_t offered[NET_HELLO_PLACES];
    uint32_t n = places_offer(p, offered);
    struct net_hello hello = {.nplaces = htole32(n)};

    assert_in_range(n, 1, NET_HELLO_PLACES);
    assert_int_equal(offered[0], 0);
    for (uint32_t i = 0; i < n; i++) {
        const struct verbs_place *from = &p->of[offered[i]];
        hello.places[i] = (struct net_hello_place){
            .family = from->at.family, .prefix = from->at.prefix, .port = htole16((uint16_t)(1000 + offered[i]))};
        memcpy(hello.places[i].address, from->at.address, sizeof(from->at.address));
    }
    return hello;
}

/* Where the rail of the first one's that has this number goes: "device address > device address". */
static const char *meet(const struct node *from, const struct node *to, uint32_t rail)
{
    static char text[256];
    char mine[NETWORK_TEXT_MAX], theirs[NETWORK_TEXT_MAX];
    struct verbs_places a, b;
    struct places_pair pair;
    struct error e = {0};
    hwloc_topology_t t = machine();

    places_of(&a, t, from, to, rail);
    places_of(&b, t, to, from, rail);
    const struct net_hello hello = hello_of(&b);
    assert_int_equal(places_meet(&a, &hello, &pair, &e), 0);
    assert_true(pair.mine < a.n && pair.theirs < le32toh(hello.nplaces) && !pair.mine == !pair.theirs);
    const struct verbs_place *other = &b.of[le16toh(hello.places[pair.theirs].port) - 1000];
    const struct network listed = places_listed(&hello, pair.theirs);
    assert_memory_equal(listed.address, other->at.address, sizeof(listed.address));
    network_address_text(&a.of[pair.mine].at, mine);
    network_address_text(&listed, theirs);
    (void)snprintf(text, sizeof(text), "%s %s > %s %s", a.of[pair.mine].nic, mine, other->nic, theirs);
    hwloc_bitmap_free(a.cpus);
    hwloc_bitmap_free(b.cpus);
    hwloc_topology_destroy(t);
    return text;
}

static uint32_t rails(const struct node *n, const struct node *peer)
{
    struct verbs_places p;
    hwloc_topology_t t = machine();

    places_of(&p, t, n, peer, 0);
    uint32_t rails = places_rails(&p).n;
    hwloc_bitmap_free(p.cpus);
    hwloc_topology_destroy(t);
    return rails;
}

/* clang-format off */
#define GPUS .gpus = {0x03, 0x06, 0x83, 0x86}
static const struct node
    own_a = {"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_1 10.0.1.1/24", "mlx5_2 10.0.2.1/24"}, GPUS},
    own_b = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.0.1.2/24", "mlx5_2 10.0.2.2/24"}, GPUS},
    own_b_bare = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.0.1.2/24", "mlx5_2 10.0.2.2/24"}, .rails = 0},
    flat_a = {"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_1 10.0.0.11/24", "mlx5_2 10.0.0.21/24"}, GPUS},
    flat_b = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.0.0.12/24", "mlx5_2 10.0.0.22/24"}, GPUS},
    flat_b_bare = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.0.0.12/24", "mlx5_2 10.0.0.22/24"}, .rails = 0};

/* Each GPU's rail is at the adapter that is nearest to it, and goes to the receiver's in the same network, whatever its receiver knows of
 * its own GPUs, and wherever its adapters sit. */
static void own_networks(void **state)
{
    static const struct node turned = {"mlx5_2 10.0.0.2/24", {"mlx5_0 10.0.2.2/24", "mlx5_1 10.0.1.2/24", "mlx5_2 10.0.0.2/24"}, GPUS};

    (void)state;
    assert_int_equal(rails(&own_a, &own_b), 3);
    assert_string_equal(meet(&own_a, &own_b, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&own_a, &own_b, 1), "mlx5_1 10.0.1.1 > mlx5_1 10.0.1.2");
    assert_string_equal(meet(&own_a, &own_b, 2), "mlx5_2 10.0.2.1 > mlx5_2 10.0.2.2");
    assert_string_equal(meet(&own_a, &own_b_bare, 2), "mlx5_2 10.0.2.1 > mlx5_2 10.0.2.2");
    assert_string_equal(meet(&own_a, &turned, 2), "mlx5_2 10.0.2.1 > mlx5_0 10.0.2.2");
    assert_string_equal(meet(&turned, &own_a, 0), "mlx5_0 10.0.2.2 > mlx5_2 10.0.2.1"); /* its GPU 0 is near that one */
    assert_string_equal(meet(&turned, &own_a, 2), "mlx5_2 10.0.0.2 > mlx5_0 10.0.0.1");
}

/* All adapters in one network: each end takes its own nearest. */
static void one_network(void **state)
{
    (void)state;
    assert_int_equal(rails(&flat_a, &flat_b), 3);
    assert_string_equal(meet(&flat_a, &flat_b, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&flat_a, &flat_b, 1), "mlx5_1 10.0.0.11 > mlx5_1 10.0.0.12");
    assert_string_equal(meet(&flat_a, &flat_b, 2), "mlx5_2 10.0.0.21 > mlx5_2 10.0.0.22");
    assert_string_equal(meet(&flat_a, &flat_b_bare, 2), "mlx5_2 10.0.0.21 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&flat_b_bare, &flat_a, 0), "mlx5_0 10.0.0.2 > mlx5_0 10.0.0.1");
}

/* What the other one has not is served by what is left, nearest first and evenly. */
static void few_in_common(void **state)
{
    static const struct node
        one = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.7.1.2/24"}, GPUS},
        two = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_2 10.0.2.2/24"}, GPUS},
        last = {"mlx5_0 10.0.0.2/24", {"mlx5_1 10.0.1.2/24", "mlx5_2 10.0.2.2/24"}, GPUS}, /* the socket's own does not count */
        far_a = {"mlx5_2 10.0.2.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_1 10.0.1.1/24", "mlx5_2 10.0.2.1/24"}, .gpus = {0x83, 0x86}};

    (void)state;
    for (uint32_t rail = 0; rail < 3; rail++)
        assert_string_equal(meet(&own_a, &one, rail), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&own_a, &two, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&own_a, &two, 1), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&own_a, &two, 2), "mlx5_2 10.0.2.1 > mlx5_2 10.0.2.2");
    assert_string_equal(meet(&own_a, &last, 0), "mlx5_1 10.0.1.1 > mlx5_1 10.0.1.2");
    assert_int_equal(rails(&far_a, &own_b), 1);
    assert_string_equal(meet(&far_a, &own_b, 0), "mlx5_2 10.0.2.1 > mlx5_2 10.0.2.2");
    assert_string_equal(meet(&far_a, &one, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
}

/* Without GPUs, and on a machine that has no such adapters, they have the rails in turn. */
static void by_number(void **state)
{
    static const struct node
        a = {"rxe0 10.77.0.1/24", {"rxe0 10.77.0.1/24", "rxe1 10.78.0.1/24"}, .rails = 2},
        b = {"rxe0 10.77.0.2/24", {"rxe0 10.77.0.2/24", "rxe1 10.78.0.2/24"}, .rails = 2},
        single = {"rxe0 10.77.0.2/24", {"rxe0 10.77.0.2/24"}, .rails = 2};

    (void)state;
    assert_int_equal(rails(&a, &b), 2);
    assert_string_equal(meet(&a, &b, 0), "rxe0 10.77.0.1 > rxe0 10.77.0.2");
    assert_string_equal(meet(&a, &b, 1), "rxe1 10.78.0.1 > rxe1 10.78.0.2");
    assert_string_equal(meet(&a, &single, 1), "rxe0 10.77.0.1 > rxe0 10.77.0.2");
    assert_string_equal(meet(&single, &a, 1), "rxe0 10.77.0.2 > rxe0 10.77.0.1");
}

/* Both sides have to see the other in their network, in IPv4 and IPv6. */
static void masks_and_kinds(void **state)
{
    static const struct node
        wide = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 10.0.1.2/16", "mlx5_2 10.0.3.2/16"}, GPUS},
        six_a = {"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_0 fd00:9::1/64", "mlx5_1 fd00:1::1/64", "mlx5_2 fd00:2::1/60"}, GPUS},
        six_b = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_0 fd00:9::2/64", "mlx5_1 fd00:1::2/64", "mlx5_2 fd00:2:0:1::2/64"}, GPUS},
        dual_a = {"mlx5_0 fd00:9::1/64", {"mlx5_1 10.0.1.1/24", "mlx5_0 fd00:9::1/64", "mlx5_1 fd00:1::1/64"}, GPUS},
        dual_b = {"mlx5_0 fd00:9::2/64", {"mlx5_1 10.0.1.2/24", "mlx5_0 fd00:9::2/64", "mlx5_1 fd00:1::2/64"}, GPUS};

    (void)state;
    assert_string_equal(meet(&own_a, &wide, 1), "mlx5_1 10.0.1.1 > mlx5_1 10.0.1.2");
    assert_string_equal(meet(&own_a, &wide, 2), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2"); /* 10.0.2.1/24 does not see 10.0.3.2 */
    assert_string_equal(meet(&six_a, &six_b, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2"); /* where the socket is comes first */
    assert_string_equal(meet(&six_a, &six_b, 1), "mlx5_1 fd00:1::1 > mlx5_1 fd00:1::2");
    assert_string_equal(meet(&six_a, &six_b, 2), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2"); /* fd00:2::1 is not in fd00:2:0:1::/64 */
    assert_string_equal(meet(&dual_a, &dual_b, 1), "mlx5_1 fd00:1::1 > mlx5_1 fd00:1::2"); /* then the socket's kind */
}

/* Networks that look the same everywhere are none, unless the nodes know each other by them, or they are listed. */
static void local_networks(void **state)
{
    static const struct node
        a = {"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_1 169.254.1.1/16", "mlx5_2 fe80::1/64", "mlx5_2 127.0.0.1/8", "mlx5_2 ::1/128"}, GPUS},
        b = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 169.254.1.2/16", "mlx5_2 fe80::2/64", "mlx5_2 127.0.0.1/8", "mlx5_2 ::1/128"}, GPUS},
        there_a = {"mlx5_0 169.254.0.1/16", {"mlx5_0 169.254.0.1/16", "mlx5_1 169.254.1.1/16"}, GPUS},
        there_b = {"mlx5_0 169.254.0.2/16", {"mlx5_0 169.254.0.2/16", "mlx5_1 169.254.1.2/16"}, GPUS},
        listed_a = {"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_1 169.254.1.1/16"}, GPUS, .networks = "10.0.0.0/24,169.254.1.0/24"},
        listed_b = {"mlx5_0 10.0.0.2/24", {"mlx5_0 10.0.0.2/24", "mlx5_1 169.254.1.2/16"}, GPUS, .networks = "10.0.0.0/24,169.254.1.0/24"};

    (void)state;
    assert_int_equal(rails(&a, &b), 1);
    for (uint32_t rail = 0; rail < 3; rail++)
        assert_string_equal(meet(&a, &b, rail), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&there_a, &there_b, 1), "mlx5_1 169.254.1.1 > mlx5_1 169.254.1.2");
    assert_string_equal(meet(&listed_a, &listed_b, 1), "mlx5_1 169.254.1.1 > mlx5_1 169.254.1.2");
}

/* RAIL_NETWORKS keeps rails off others, and tells of what routers join. It is enough if one side has it to be kept off. */
static void listed(void **state)
{
    static const char some[] = "10.0.0.0/24,10.0.2.0/24", none[] = "192.168.0.0/16", routed[] = "10.1.0.0/16,10.2.0.0/16,fd00:3::/32";
    static const struct node
        routed_a = {"mlx5_0 10.1.0.1/31", {"mlx5_0 10.1.0.1/31", "mlx5_1 10.2.0.1/31", "mlx5_2 fd00:3:1::1/127"}, GPUS, .networks = routed},
        routed_b = {"mlx5_0 10.1.9.1/31", {"mlx5_0 10.1.9.1/31", "mlx5_1 10.2.9.1/31", "mlx5_2 fd00:3:9::1/127"}, GPUS, .networks = routed};
    struct node a = own_a, b = own_b, bare_a = routed_a, bare_b = routed_b;

    (void)state;
    a.networks = some;
    assert_int_equal(rails(&a, &b), 2);
    assert_string_equal(meet(&a, &b, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&a, &b, 1), "mlx5_2 10.0.2.1 > mlx5_2 10.0.2.2");
    assert_string_equal(meet(&b, &a, 1), "mlx5_0 10.0.0.2 > mlx5_0 10.0.0.1");
    assert_string_equal(meet(&b, &a, 2), "mlx5_2 10.0.2.2 > mlx5_2 10.0.2.1");
    a.networks = none;
    assert_int_equal(rails(&a, &b), 1);
    assert_string_equal(meet(&a, &b, 0), "mlx5_0 10.0.0.1 > mlx5_0 10.0.0.2");
    assert_string_equal(meet(&b, &a, 2), "mlx5_0 10.0.0.2 > mlx5_0 10.0.0.1");
    assert_string_equal(meet(&routed_a, &routed_b, 0), "mlx5_0 10.1.0.1 > mlx5_0 10.1.9.1");
    assert_string_equal(meet(&routed_a, &routed_b, 1), "mlx5_1 10.2.0.1 > mlx5_1 10.2.9.1");
    assert_string_equal(meet(&routed_a, &routed_b, 2), "mlx5_2 fd00:3:1::1 > mlx5_2 fd00:3:9::1");
    bare_a.networks = bare_b.networks = NULL;
    for (uint32_t rail = 0; rail < 3; rail++)
        assert_string_equal(meet(&bare_a, &bare_b, rail), "mlx5_0 10.1.0.1 > mlx5_0 10.1.9.1");
}
/* clang-format on */

/* A device with more addresses than a hello holds; of two in one network the first is enough. */
static void many(void **state)
{
    static char texts[38][32];
    struct node n = {.own = "mlx5_0 10.0.0.1/24"};
    struct verbs_places p;
    uint8_t offered[NET_HELLO_PLACES];

    (void)state;
    for (int i = 0; i < 38; i++) {
        (void)snprintf(texts[i], sizeof(texts[i]), "mlx5_%d 10.0.%d.1/24", i % 3, i);
        n.places[i] = texts[i];
    }
    places_of(&p, NULL, &n, &own_b, 0);
    assert_int_equal(p.n, NET_HELLO_PLACES);
    assert_int_equal(places_offer(&p, offered), NET_HELLO_PLACES);
    hwloc_bitmap_free(p.cpus);
    n = (struct node){"mlx5_0 10.0.0.1/24", {"mlx5_0 10.0.0.1/24", "mlx5_0 10.0.0.3/24", "mlx5_1 10.0.0.5/24"}, .rails = 0};
    places_of(&p, NULL, &n, &own_b, 0);
    assert_int_equal(p.n, 3);
    assert_int_equal(places_offer(&p, offered), 2);
    hwloc_bitmap_free(p.cpus);
}

/* What another node says is judged whole, and nothing is taken of what is refused. */
static void garbage(void **state)
{
    static const struct {
        uint32_t n;
        struct net_hello_place last;
        const char *says;
    } cases[] = {
        {0, {.family = NETWORK_IPV4}, "listens at 0 addresses: allowed are 1 to 32"},
        {33, {.family = NETWORK_IPV4}, "listens at 33 addresses"},
        {0xffffffff, {.family = NETWORK_IPV4}, "listens at 4294967295 addresses"},
        {2, {.family = 0, .prefix = 0, .port = 7}, "address 1 is none: of family 0"},
        {2, {.family = 5, .prefix = 24, .port = 7}, "address 1 is none: of family 5, with 24 bits"},
        {2, {.family = NETWORK_IPV4, .prefix = 33, .port = 7}, "of family 4, with 33 bits of network"},
        {2, {.family = NETWORK_IPV6, .prefix = 129, .port = 7}, "of family 6, with 129 bits of network"},
        {1, {.family = NETWORK_IPV4, .prefix = 24}, "address 0 is none: of family 4, with 24 bits of network, port 0"},
        {32, {.family = 255, .prefix = 255, .port = 7}, "address 31 is none: of family 255"},
    };
    struct places_pair pair = {7, 7};
    struct verbs_places a, b;
    struct error e;

    (void)state;
    places_of(&a, NULL, &own_a, &own_b, 0);
    places_of(&b, NULL, &own_b, &own_a, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct net_hello hello = hello_of(&b);
        for (uint32_t k = le32toh(hello.nplaces); k < NET_HELLO_PLACES; k++)
            hello.places[k] = hello.places[0];
        hello.nplaces = htole32(cases[i].n);
        if (cases[i].n >= 1 && cases[i].n <= NET_HELLO_PLACES)
            hello.places[cases[i].n - 1] = cases[i].last;
        assert_int_equal(places_meet(&a, &hello, &pair, &e), -EPROTO);
        if (!strstr(e.text, cases[i].says))
            fail_msg("%s", e.text);
        assert_int_equal(pair.mine, 7);
    }
    hwloc_bitmap_free(a.cpus);
    hwloc_bitmap_free(b.cpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(own_networks),    cmocka_unit_test(one_network),
                                       cmocka_unit_test(few_in_common),   cmocka_unit_test(by_number),
                                       cmocka_unit_test(masks_and_kinds), cmocka_unit_test(local_networks),
                                       cmocka_unit_test(listed),          cmocka_unit_test(many),
                                       cmocka_unit_test(garbage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
