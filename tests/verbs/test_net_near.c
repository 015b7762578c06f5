/* SPDX-License-Identifier: MIT
 *
 * test_net_near.c - which RDMA device is nearest, and how many rails there are: on machines that hwloc is told of, with adapters and GPUs
 * behind PCI switches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/verbs/near_bed.h"

static const char *chosen(hwloc_topology_t t, unsigned long cpus, unsigned gpu_bus, const char *const devices[], int n)
{
    const struct net_pci gpu = {.bus = gpu_bus};
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    hwloc_bitmap_from_ulong(set, cpus);
    struct net_options net = {.rails = 1, .ndevices = gpu_bus ? 1 : 0, .devices = {gpu}};
    struct near_rails rails;
    near_rails(t, set, &net, devices, n, &rails);
    int best = rails.nic_of[0];
    hwloc_bitmap_free(set);
    assert_true(best >= 0 && best < n);
    return devices[best];
}

static const char *const forward[] = {"mlx5_0", "mlx5_1", "mlx5_2"}, *const backward[] = {"mlx5_2", "mlx5_1", "mlx5_0"};

/* The one behind the same switch; else one of the same package, the first; else the first. */
static void of_gpus(void **state)
{
    hwloc_topology_t t = machine();

    (void)state;
    for (int way = 0; way < 2; way++) {
        const char *const *devices = way ? backward : forward;
        assert_string_equal(chosen(t, 0xf, 0x03, devices, 3), "mlx5_0");
        assert_string_equal(chosen(t, 0xf, 0x06, devices, 3), "mlx5_1");
        assert_string_equal(chosen(t, 0xf, 0x83, devices, 3), "mlx5_2");
        assert_string_equal(chosen(t, 0xf, 0x86, devices, 3), "mlx5_2");
    }
    assert_string_equal(chosen(t, 0xf, 0x86, forward, 2), "mlx5_0"); /* none of its package reaches the peer */
    assert_string_equal(chosen(t, 0xf, 0x03, forward + 1, 2), "mlx5_1");
    assert_string_equal(chosen(t, 0x4, 0x77, forward, 3), "mlx5_2"); /* no such GPU: by the cores */
    hwloc_topology_destroy(t);
}

/* Of the cores' package; of equal ones the first, and who may run anywhere has all equal. */
static void of_cores(void **state)
{
    hwloc_topology_t t = machine();

    (void)state;
    assert_string_equal(chosen(t, 0x1, 0, forward, 3), "mlx5_0");
    assert_string_equal(chosen(t, 0x3, 0, backward, 3), "mlx5_1");
    assert_string_equal(chosen(t, 0x8, 0, forward, 3), "mlx5_2");
    assert_string_equal(chosen(t, 0xc, 0, forward, 3), "mlx5_2");
    assert_string_equal(chosen(t, 0xf, 0, forward, 3), "mlx5_0");
    assert_string_equal(chosen(t, 0x6, 0, backward, 3), "mlx5_2");
    hwloc_topology_destroy(t);
}

/* Devices that the machine does not have, soft ones for example, come last; and something is always chosen. */
static void of_unknown(void **state)
{
    static const char *const devices[] = {"rxe0", "mlx5_2", "rxe1"};
    hwloc_topology_t t = machine();

    (void)state;
    assert_string_equal(chosen(t, 0x1, 0, devices, 3), "mlx5_2");
    assert_string_equal(chosen(t, 0x1, 0x03, devices, 3), "mlx5_2");
    assert_string_equal(chosen(t, 0x1, 0, devices, 1), "rxe0");
    assert_string_equal(chosen(t, 0, 0, forward, 3), "mlx5_0");
    hwloc_topology_destroy(t);
}

/* ---- rails ---- */

/* The rails for GPUs on these buses (0: the end), of cores that may be anywhere. */
static struct near_rails rails_of(hwloc_topology_t t, unsigned wanted, const unsigned buses[], const char *const devices[],
                                  int n)
{
    struct net_options options = {.rails = wanted};
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    struct near_rails out;

    for (; buses[options.ndevices]; options.ndevices++)
        options.devices[options.ndevices].bus = buses[options.ndevices];
    hwloc_bitmap_from_ulong(set, 0xf);
    memset(&out, 0xee, sizeof(out));
    near_rails(t, set, &options, devices, n, &out);
    hwloc_bitmap_free(set);
    assert_in_range(out.rails.n, 1, NET_RAILS_MAX);
    for (uint32_t r = 0; r < out.rails.n; r++)
        assert_in_range(out.nic[r], 0, n - 1);
    for (uint32_t d = 0; d < NET_DEVICES_MAX; d++)
        assert_in_range(out.rails.of[d], 0, out.rails.n - 1);
    return out;
}

/* So many rails; the devices of the rails in their order; and for each GPU the rail, as a digit. */
static void expect(const struct near_rails *r, const char *const devices[], const char *nics, const char *of)
{
    char names[256] = "";

    for (uint32_t i = 0, n = 0; i < r->rails.n; i++)
        n += (uint32_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? " " : "", devices[r->nic[i]]);
    assert_string_equal(names, nics);
    for (uint32_t i = 0; of[i]; i++)
        assert_int_equal(r->rails.of[i], of[i] - '0');
}

static const unsigned all_gpus[] = {0x03, 0x06, 0x83, 0x86, 0}, two_gpus[] = {0x83, 0x03, 0}, far_gpus[] = {0x83, 0x86, 0},
                      no_gpus[] = {0};

/* As many as there are adapters that are nearest to a GPU and reach the peer. */
static void rails_by_gpus(void **state)
{
    hwloc_topology_t t = machine();
    struct near_rails r;

    (void)state;
    r = rails_of(t, 0, all_gpus, forward, 3);
    expect(&r, forward, "mlx5_0 mlx5_1 mlx5_2", "0122");
    r = rails_of(t, 0, all_gpus, backward, 3);
    expect(&r, backward, "mlx5_0 mlx5_1 mlx5_2", "0122"); /* in the order of GPUs: nodes of one build agree */
    r = rails_of(t, 0, two_gpus, forward, 3);
    expect(&r, forward, "mlx5_2 mlx5_0", "01");
    r = rails_of(t, 0, far_gpus, forward, 3);
    expect(&r, forward, "mlx5_2", "00");
    r = rails_of(t, 0, all_gpus, forward, 2); /* mlx5_2 does not reach the peer: its GPUs share the others evenly */
    expect(&r, forward, "mlx5_0 mlx5_1", "0101");
    r = rails_of(t, 0, all_gpus, forward, 1);
    expect(&r, forward, "mlx5_0", "0000");
    hwloc_topology_destroy(t);
}

/* As many as are asked for, whatever adapters there are: each has them in turn, and its GPUs have those in turn. */
static void rails_by_number(void **state)
{
    hwloc_topology_t t = machine();
    struct near_rails r;

    (void)state;
    r = rails_of(t, 1, all_gpus, forward, 3);
    expect(&r, forward, "mlx5_0", "0000");
    r = rails_of(t, 2, all_gpus, forward, 3);
    expect(&r, forward, "mlx5_0 mlx5_1", "0100"); /* fewer than adapters: some are left out */
    r = rails_of(t, 4, all_gpus, forward, 3);
    expect(&r, forward, "mlx5_0 mlx5_1 mlx5_2 mlx5_0", "0122");
    r = rails_of(t, 6, all_gpus, forward, 3);
    expect(&r, forward, "mlx5_0 mlx5_1 mlx5_2 mlx5_0 mlx5_1 mlx5_2", "0125");
    r = rails_of(t, 4, all_gpus, forward, 1);
    expect(&r, forward, "mlx5_0 mlx5_0 mlx5_0 mlx5_0", "0123");
    r = rails_of(t, 8, two_gpus, forward, 3);
    expect(&r, forward, "mlx5_2 mlx5_0 mlx5_2 mlx5_0 mlx5_2 mlx5_0 mlx5_2 mlx5_0", "01");
    hwloc_topology_destroy(t);
}

/* Without GPUs one, at the cores' adapter, or as many as are asked for, on all that are equally near. */
static void rails_by_cores(void **state)
{
    static const char *const soft[] = {"rxe0", "rxe1"};
    hwloc_topology_t t = machine();
    struct near_rails r;

    (void)state;
    r = rails_of(t, 0, no_gpus, forward, 3);
    expect(&r, forward, "mlx5_0", "");
    r = rails_of(t, 2, no_gpus, forward, 3); /* cores of both packages */
    expect(&r, forward, "mlx5_0 mlx5_1", "01");
    r = rails_of(t, 2, no_gpus, soft, 2);
    expect(&r, soft, "rxe0 rxe1", "01");
    r = rails_of(t, 3, no_gpus, soft, 2);
    expect(&r, soft, "rxe0 rxe1 rxe0", "012");
    r = rails_of(t, 2, no_gpus, soft, 1);
    expect(&r, soft, "rxe0 rxe0", "01");
    r = rails_of(NULL, 2, no_gpus, soft, 2); /* a machine that cannot be read */
    expect(&r, soft, "rxe0 rxe1", "01");
    r = rails_of(NULL, 0, all_gpus, soft, 2);
    expect(&r, soft, "rxe0 rxe1", "0101");
    hwloc_topology_destroy(t);
}

/* Two adapters and two GPUs behind each switch, as many machines have them: each GPU has one of its own. */
static void rails_shared_switch(void **state)
{
    static const unsigned gpus[] = {0x03, 0x04, 0x07, 0};
    static const char *const devices[] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"};
    static char xml[XML_MAX];
    hwloc_topology_t t;
    struct near_rails r;

    (void)state;
    machine_begin(xml);
    package_begin(xml, 0);
    switch_begin(xml, 1, 4);
    pci_say(xml, 0x01, "0207", "mlx5_0");
    pci_say(xml, 0x02, "0207", "mlx5_1");
    pci_say(xml, 0x03, "0302", NULL);
    pci_say(xml, 0x04, "0302", NULL);
    say(xml, "</object>");
    switch_say(xml, 0x05, "mlx5_2");
    say(xml, "</object></object>");
    package_say(xml, 1, "mlx5_3", NULL);
    t = machine_end(xml);
    r = rails_of(t, 0, gpus, devices, 4);
    expect(&r, devices, "mlx5_0 mlx5_1 mlx5_2", "012");
    r = rails_of(t, 1, gpus, devices, 4);
    expect(&r, devices, "mlx5_0", "000");
    hwloc_topology_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_gpus),
                                       cmocka_unit_test(of_cores),
                                       cmocka_unit_test(of_unknown),
                                       cmocka_unit_test(rails_by_gpus),
                                       cmocka_unit_test(rails_by_number),
                                       cmocka_unit_test(rails_by_cores),
                                       cmocka_unit_test(rails_shared_switch)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
