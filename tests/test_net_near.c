/* SPDX-License-Identifier: MIT
 *
 * test_net_near.c - which RDMA device is nearest: on machines that hwloc is told of, with adapters and GPUs behind PCI switches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "net_verbs_near.h"

enum { XML_MAX = 16384 };

/* Two packages of two cores; each with a NUMA node and a bridge, behind which there are two switches. Each switch has an adapter and a GPU, but
 * for the last one, which has a GPU alone:
 *
 *   package 0   switch 01: mlx5_0, GPU 03    switch 04: mlx5_1, GPU 06
 *   package 1   switch 81: mlx5_2, GPU 83    switch 84: GPU 86
 */
static int used;

static void say(char *xml, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(char *xml, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    used += vsnprintf(xml + used, XML_MAX - (size_t)used, format, ap);
    va_end(ap);
    assert_true(used < XML_MAX);
}

static int index_next;

static void pci_say(char *xml, unsigned bus, const char *type, const char *adapter)
{
    say(xml,
        "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" pci_type=\"%s [15b3:1021] [15b3:0023] 00\" "
        "pci_link_speed=\"63.0\">",
        ++index_next, bus, type);
    if (adapter) /* of type OpenFabrics */
        say(xml, "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"3\"/>", ++index_next, adapter);
    say(xml, "</object>");
}

static void switch_say(char *xml, unsigned bus, const char *adapter)
{
    say(xml,
        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[%02x-%02x]\" "
        "pci_busid=\"0000:%02x:%02x.0\" pci_type=\"0604 [11f8:4000] [0000:0000] 00\" pci_link_speed=\"31.5\">",
        ++index_next, bus, bus + 2, bus & 0x80u, bus & 0x1fu);
    if (adapter)
        pci_say(xml, bus + 1, "0207", adapter);
    pci_say(xml, bus + 2, "0302", NULL);
    say(xml, "</object>");
}

static void package_say(char *xml, unsigned n, const char *first, const char *second)
{
    unsigned cpus = 3u << 2 * n;

    say(xml,
        "<object type=\"Package\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" "
        "complete_nodeset=\"0x%x\" gp_index=\"%d\">",
        n, cpus, cpus, 1u << n, 1u << n, ++index_next);
    say(xml,
        "<object type=\"NUMANode\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" "
        "complete_nodeset=\"0x%x\" gp_index=\"%d\" "
        "local_memory=\"1073741824\"/>",
        n, cpus, cpus, 1u << n, 1u << n, ++index_next);
    for (unsigned core = 2 * n; core < 2 * n + 2; core++) {
        for (int level = 0; level < 2; level++)
            say(xml,
                "<object type=\"%s\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" "
                "complete_nodeset=\"0x%x\" gp_index=\"%d\">",
                level ? "PU" : "Core", core, 1u << core, 1u << core, 1u << n, 1u << n, ++index_next);
        say(xml, "</object></object>");
    }
    say(xml, "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[%02x-%02x]\">",
        ++index_next, n ? 0x80 : 0, n ? 0x8f : 0x0f);
    switch_say(xml, n ? 0x81 : 1, first);
    switch_say(xml, n ? 0x84 : 4, second);
    say(xml, "</object></object>");
}

static hwloc_topology_t machine(void)
{
    static char xml[XML_MAX];
    hwloc_topology_t t;

    used = index_next = 0;
    say(xml,
        /* hwloc's own parser, which there is without its plug-ins, wants a line for each of these */
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">"
        "<object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" allowed_cpuset=\"0xf\" nodeset=\"0x3\" "
        "complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"%d\">",
        ++index_next);
    package_say(xml, 0, "mlx5_0", "mlx5_1");
    package_say(xml, 1, "mlx5_2", NULL);
    say(xml, "</object></topology>");
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL), 0);
    assert_int_equal(hwloc_topology_set_xmlbuffer(t, xml, (int)strlen(xml) + 1), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    return t;
}

static const char *chosen(hwloc_topology_t t, unsigned long cpus, unsigned gpu_bus, const char *const devices[], int n)
{
    const struct near_pci gpu = {.bus = gpu_bus};
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    hwloc_bitmap_from_ulong(set, cpus);
    int best = near_choose(t, set, gpu_bus ? &gpu : NULL, devices, n);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_gpus), cmocka_unit_test(of_cores), cmocka_unit_test(of_unknown)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
