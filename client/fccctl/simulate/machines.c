/* SPDX-License-Identifier: MIT
 *
 * machines.c - what a description says of the machine: its devices, nodes, fabric and stragglers.
 */
#include "client/fccctl/simulate/reading.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const targets[] = {[PLAN_CPU] = "cpu", [PLAN_GPU] = "gpu", NULL};
static const char *const links[] = {[SIM_LINK_MEMORY] = "memory", [SIM_LINK_MESH] = "mesh", [SIM_LINK_SWITCH] = "switch", NULL};
static const char *const fabrics[] = {[SIM_FAT_TREE] = "fat tree",   [SIM_RAIL] = "rail",   [SIM_TORUS] = "torus",
                                      [SIM_DRAGONFLY] = "dragonfly", [SIM_GRAPH] = "graph", NULL};
static const char *const spreads[] = {
    [SIM_UNIFORM] = "uniform", [SIM_NORMAL] = "normal", [SIM_EXPONENTIAL] = "exponential", NULL};

static const struct field device_fields[] = {
    {"kind", FIELD_CHOICE, true, AT(sim_device, target), .choices = targets},
    {"workgroups", FIELD_INT, true, AT(sim_device, workgroups), 1, 4096},
    RATE_AT("memory", sim_device, memory_bytes_s, true),
    RATE_AT("workgroup_memory", sim_device, workgroup_bytes_s, false),
    {"cache", FIELD_UNIT, false, AT(sim_device, cache_bytes), .least = 1, .unit = UNIT_BYTES},
    RATE_AT("cache_memory", sim_device, cache_bytes_s, false),
    {"cache_ranks", FIELD_INT, false, AT(sim_device, cache_ranks), 1, SIM_MAX_RANKS},
    {"near_cache", FIELD_UNIT, false, AT(sim_device, near_bytes), .least = 1, .unit = UNIT_BYTES},
    RATE_AT("near_memory", sim_device, near_bytes_s, false),
    {"table_cache", FIELD_UNIT, false, AT(sim_device, table_cache_bytes), .least = 1, .unit = UNIT_BYTES},
    RATE_AT("table_memory", sim_device, table_bytes_s, false),
    {"exposed", FIELD_UNIT, false, AT(sim_device, exposed), .unit = UNIT_PART},
    OTHER("rates", true),
    OTHER("tiles", false),
    TIME_AT("hand_over", sim_device, hand_over_s),
    TIME_AT("inline", sim_device, inline_s),
    TIME_AT("launch", sim_device, launch_s),
    TIME_AT("step", sim_device, step_s),
    TIME_AT("slice", sim_device, slice_s),
    TIME_AT("row", sim_device, row_s),
    {.key = "stores_wait", .kind = FIELD_BOOL, AT(sim_device, stores_wait)},
    {.key = NULL},
};
#define FLOPS_AT(name, which)                                                                                                  \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, .at = (which) * sizeof(double), .least = 1, .unit = UNIT_FLOPS_RATE                 \
    }
static const struct field rate_fields[] = {FLOPS_AT("bag", COMPUTE_BAG),
                                           FLOPS_AT("gemv", COMPUTE_GEMV),
                                           FLOPS_AT("gemm", COMPUTE_GEMM),
                                           FLOPS_AT("sum", COMPUTE_VECTOR),
                                           {.key = NULL}};
static const struct field tile_fields[] = {
    RATE_AT("load", sim_device, tile_bytes_s, true),
    RATE_AT("sums", sim_device, tile_sums_bytes_s, false),
    RATE_AT("store", sim_device, tile_store_bytes_s, false),
    TIME_AT("begin", sim_device, tile_begin_s),
    {.key = NULL},
};
static const struct field node_fields[] = {
    {"ranks", FIELD_INT, true, AT(sim_node, ranks), 1, SIM_MAX_RANKS},
    {"rails", FIELD_INT, false, AT(sim_node, rails), 1, SIM_MAX_RANKS},
    {"link", FIELD_CHOICE, true, AT(sim_node, link), .choices = links},
    {"shared_memory", FIELD_BOOL, false, AT(sim_node, shared_memory)},
    RATE_AT("bandwidth", sim_node, link_bytes_s, false),
    RATE_AT("workgroup", sim_node, store_bytes_s, false),
    TIME_AT("latency", sim_node, link_latency_s),
    {.key = NULL},
};
static const struct field fabric_fields[] = {
    {"kind", FIELD_CHOICE, true, AT(sim_fabric, kind), .choices = fabrics},
    RATE_AT("bandwidth", sim_fabric, bytes_s, true),
    TIME_AT("latency", sim_fabric, latency_s),
    TIME_AT("hop", sim_fabric, hop_s),
    {"leaf", FIELD_INT, false, AT(sim_fabric, leaf), 1, SIM_MAX_NODES},
    {"oversubscription", FIELD_NUMBER, false, AT(sim_fabric, oversubscription), 1, 1000},
    RATE_AT("between_groups", sim_fabric, global_bytes_s, false),
    RATE_AT("injection", sim_fabric, inject_bytes_s, false),
    OTHER("shape", false),
    OTHER("cables", false),
    TIME_AT("message", sim_fabric, message_s),
    TIME_AT("receive", sim_fabric, receive_s),
    RATE_AT("copy", sim_fabric, copy_bytes_s, false),
    TIME_AT("core_wait", sim_fabric, core_wait_s),
    {"in_flight", FIELD_INT, false, AT(sim_fabric, in_flight), 1, SIM_MAX_FLYING},
    {.key = "tolerance", .kind = FIELD_UNIT, AT(sim_fabric, tolerance), .unit = UNIT_PART},
    {.key = NULL},
};
static const struct field straggler_fields[] = {
    {"distribution", FIELD_CHOICE, true, AT(sim_stragglers, kind), .choices = spreads},
    {"ranks", FIELD_UNIT, false, AT(sim_stragglers, rank_spread), .unit = UNIT_PART},
    {"slices", FIELD_UNIT, false, AT(sim_stragglers, slice_spread), .unit = UNIT_PART},
    TIME_AT("start", sim_stragglers, start_s),
    {.key = NULL},
};
static const struct field machine_fields[] = {
    OTHER("device", true),  OTHER("node", true),        {"nodes", FIELD_INT, true, AT(sim_machine, nodes), 1, SIM_MAX_NODES},
    OTHER("fabric", false), OTHER("stragglers", false), {.key = NULL},
};

static int shape_take(const struct reading *r, const struct place *at, struct json_object *shape, struct sim_fabric *f)
{
    const struct place here = {.up = at, .key = "shape"};
    const size_t n = json_object_is_type(shape, json_type_array) ? json_object_array_length(shape) : 0;

    if (f->kind != SIM_TORUS)
        return shape ? reading_refuse(r, &here, "only a torus has one") : 0;
    if (!shape)
        return reading_refuse(r, at, "\"shape\" is missing");
    if (n < 1 || n > 3)
        return reading_refuse(r, &here, "needed are 1 to 3 numbers");
    for (size_t i = 0; i < n; i++) {
        const struct field size = {.kind = FIELD_INT, .least = 1, .most = SIM_MAX_NODES};
        const struct place element = {.up = &here, .index = i};
        if (reading_number(r, &element, &size, json_object_array_get_idx(shape, i), &f->shape[i]))
            return r->e->status;
    }
    f->dimensions = (int)n;
    return 0;
}

/* "node 3" or "switch 1". */
static int end_take(const struct reading *r, const struct place *at, const char *text, int nodes, int *out, int *switches)
{
    int number, used = 0;

    if (sscanf(text, "node %d%n", &number, &used) == 1 && !text[used] && number >= 0 && number < nodes) {
        *out = number;
        return 0;
    }
    if (sscanf(text, "switch %d%n", &number, &used) == 1 && used && !text[used] && number >= 0 && number < SIM_MAX_NODES) {
        *out = SIM_MAX_NODES + number;
        *switches = number + 1 > *switches ? number + 1 : *switches;
        return 0;
    }
    return reading_refuse(r, at, "\"%.40s\": allowed are \"node 0\" to \"node %d\" and \"switch 0\" to \"switch %d\"", text,
                          nodes - 1, SIM_MAX_NODES - 1);
}

static int cables_take(const struct reading *r, const struct place *at, struct json_object *cables, struct sim_machine *m)
{
    const struct place here = {.up = at, .key = "cables"};
    const size_t n = json_object_is_type(cables, json_type_array) ? json_object_array_length(cables) : 0;
    struct sim_fabric *f = &m->fabric;

    if (f->kind != SIM_GRAPH)
        return cables ? reading_refuse(r, &here, "only a graph has them") : 0;
    if (n < 1 || n > CABLES_MAX)
        return reading_refuse(r, cables ? &here : at, "a graph needs a list of 1 to %d cables", CABLES_MAX);
    f->cables = calloc(2 * n, sizeof(*f->cables));
    if (!f->cables)
        return error_set(r->e, -ENOMEM, "%s: no memory for %zu cables", r->name, n);
    for (size_t i = 0; i < n; i++) {
        const struct place element = {.up = &here, .index = i};
        struct json_object *cable = json_object_array_get_idx(cables, i);
        struct sim_cable *c = &f->cables[f->ncables];
        const struct field rate = {.unit = UNIT_RATE, .least = 1};
        if (!json_object_is_type(cable, json_type_array) || json_object_array_length(cable) != 3)
            return reading_refuse(r, &element, "needed are two ends and a bandwidth");
        for (size_t end = 0; end < 2; end++) {
            const struct place place = {.up = &element, .index = end};
            const char *text = json_object_get_string(json_object_array_get_idx(cable, end));
            if (end_take(r, &place, text ? text : "", m->nodes, end ? &c->to : &c->from, &f->nswitches))
                return r->e->status;
        }
        const struct place place = {.up = &element, .index = 2};
        if (reading_unit(r, &place, &rate, json_object_array_get_idx(cable, 2), &c->bytes_s))
            return r->e->status;
        c[1] = (struct sim_cable){.from = c->to, .to = c->from, .bytes_s = c->bytes_s};
        f->ncables += 2;
    }
    return 0;
}

/* What shows only when links are laid out: shapes that do not fit, nodes that no way leads to. */
static int fabric_try(const struct reading *r, const struct place *at, const struct sim_machine *m)
{
    struct sim *s = NULL;
    struct error why = {0};
    const int status = sim_new(m, 1, &s, &why);

    sim_free(s);
    return status ? reading_refuse(r, at, "%s", why.text) : 0;
}

static int tiles_take(const struct reading *r, const struct place *device, struct json_object *tiles, struct sim_machine *m)
{
    const struct place here = {.up = device, .key = "tiles"};

    if (!tiles)
        return 0;
    if (m->device.target != PLAN_GPU)
        return reading_refuse(r, &here, "only a gpu's products are computed in such");
    if (reading_object(r, &here, tiles, tile_fields, &m->device))
        return r->e->status;
    if (m->device.tile_store_bytes_s > 0 &&
        (m->node.link == SIM_LINK_MEMORY || m->device.tile_store_bytes_s > m->node.link_bytes_s))
        return reading_refuse(r, &here,
                              "store: allowed is at most the node's \"bandwidth\", and nothing where its link is memory");
    return 0;
}

int machine_take(const struct reading *r, const struct place *at, struct json_object *o)
{
    struct sim_machine *m = &r->d->machine;
    const struct place device = {.up = at, .key = "device"}, node = {.up = at, .key = "node"},
                       fabric = {.up = at, .key = "fabric"}, stragglers = {.up = at, .key = "stragglers"},
                       rates = {.up = &device, .key = "rates"};

    *m = (struct sim_machine){.node.rails = 1, .fabric = {.kind = SIM_FAT_TREE, .oversubscription = 1, .in_flight = 4}};
    if (reading_object(r, at, o, machine_fields, m) ||
        reading_object(r, &device, object_member(o, "device"), device_fields, &m->device) ||
        reading_object(r, &rates, object_member(object_member(o, "device"), "rates"), rate_fields, m->device.flops_s) ||
        reading_object(r, &node, object_member(o, "node"), node_fields, &m->node))
        return r->e->status;
    if (tiles_take(r, &device, object_member(object_member(o, "device"), "tiles"), m))
        return r->e->status;
    if ((m->device.cache_bytes > 0) != (m->device.cache_bytes_s > 0))
        return reading_refuse(r, &device, "\"cache\" and \"cache_memory\" go together");
    if ((m->device.near_bytes > 0) != (m->device.near_bytes_s > 0))
        return reading_refuse(r, &device, "\"near_cache\" and \"near_memory\" go together");
    if (!(m->device.cache_bytes > 0) && (m->device.near_bytes > 0 || m->device.cache_ranks > 0))
        return reading_refuse(r, &device, "\"near_cache\" and \"cache_ranks\" need a \"cache\"");
    if ((int64_t)m->node.ranks * m->nodes > SIM_MAX_RANKS)
        return reading_refuse(r, &node, "%d ranks on each of %d nodes: allowed are %d in all", m->node.ranks, m->nodes,
                              SIM_MAX_RANKS);
    if (m->node.rails > m->node.ranks)
        return reading_refuse(r, &node, "rails: %d: allowed are 1 to %d, the ranks of a node", m->node.rails, m->node.ranks);
    if (m->node.ranks > 1 && m->node.link != SIM_LINK_MEMORY && !(m->node.link_bytes_s > 0))
        return reading_refuse(r, &node, "\"bandwidth\" is missing");
    if (object_member(o, "stragglers") &&
        reading_object(r, &stragglers, object_member(o, "stragglers"), straggler_fields, &m->stragglers))
        return r->e->status;
    if (!object_member(o, "fabric"))
        return m->nodes > 1 ? reading_refuse(r, at, "\"fabric\" is missing: there are %d nodes", m->nodes) : 0;
    if (reading_object(r, &fabric, object_member(o, "fabric"), fabric_fields, &m->fabric) ||
        shape_take(r, &fabric, object_member(object_member(o, "fabric"), "shape"), &m->fabric))
        return r->e->status;
    return cables_take(r, &fabric, object_member(object_member(o, "fabric"), "cables"), m) || fabric_try(r, &fabric, m)
               ? r->e->status
               : 0;
}
