/* SPDX-License-Identifier: MIT
 *
 * near_bed.h - a machine that hwloc is told of, with adapters and GPUs behind PCI switches. Include after cmocka.h.
 */
#ifndef FCC_TEST_NEAR_BED_H
#define FCC_TEST_NEAR_BED_H

#include <stdio.h>
#include <string.h>

#include "daemon/net/verbs/places.h"

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

/* Behind it are the buses up to `last`. */
static void switch_begin(char *xml, unsigned bus, unsigned last)
{
    say(xml,
        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[%02x-%02x]\" "
        "pci_busid=\"0000:%02x:%02x.0\" pci_type=\"0604 [11f8:4000] [0000:0000] 00\" pci_link_speed=\"31.5\">",
        ++index_next, bus, last, bus & 0x80u, bus & 0x1fu);
}

static void switch_say(char *xml, unsigned bus, const char *adapter)
{
    switch_begin(xml, bus, bus + 2);
    if (adapter)
        pci_say(xml, bus + 1, "0207", adapter);
    pci_say(xml, bus + 2, "0302", NULL);
    say(xml, "</object>");
}

/* With its bridge. */
static void package_begin(char *xml, unsigned n)
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
}

static void package_say(char *xml, unsigned n, const char *first, const char *second)
{
    package_begin(xml, n);
    switch_say(xml, n ? 0x81 : 1, first);
    switch_say(xml, n ? 0x84 : 4, second);
    say(xml, "</object></object>");
}

static void machine_begin(char *xml)
{
    used = index_next = 0;
    say(xml,
        /* hwloc's own parser, which there is without its plug-ins, wants a line for each of these */
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">"
        "<object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" allowed_cpuset=\"0xf\" nodeset=\"0x3\" "
        "complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"%d\">",
        ++index_next);
}

static hwloc_topology_t machine_end(char *xml)
{
    hwloc_topology_t t;

    say(xml, "</object></topology>");
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL), 0);
    assert_int_equal(hwloc_topology_set_xmlbuffer(t, xml, (int)strlen(xml) + 1), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    return t;
}

static hwloc_topology_t machine(void)
{
    static char xml[XML_MAX];

    machine_begin(xml);
    package_say(xml, 0, "mlx5_0", "mlx5_1");
    package_say(xml, 1, "mlx5_2", NULL);
    return machine_end(xml);
}

#endif
