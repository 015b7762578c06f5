/* SPDX-License-Identifier: MIT
 *
 * describe.c - reads the objects of a description by tables of their keys, and refuses what no table has.
 */
#include "client/fccctl/simulate/describe.h"

#include <errno.h>
#include <json-c/json.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum field_kind { FIELD_INT, FIELD_NUMBER, FIELD_CHOICE, FIELD_BOOL, FIELD_UNIT, FIELD_OTHER };

struct field {
    const char *key;
    enum field_kind kind;
    bool needed;
    size_t at;
    double least, most; /* INT, NUMBER: bounds; UNIT: least 1: more than 0, least 0: 0 or more */
    enum unit_kind unit;
    const char *const *choices;
};

/* What all functions here know. */
struct reading {
    const char *text, *name;
    struct description *d;
    struct error *e;
};

static int wrong(const struct reading *r, const struct place *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int wrong(const struct reading *r, const struct place *at, const char *format, ...)
{
    struct words why;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(why.text, sizeof(why.text), format, ap);
    va_end(ap);
    return error_set(r->e, -EINVAL, "%s:%d: %s%s%s", r->name, place_line(r->text, at), place_text(at).text, at ? ": " : "",
                     why.text);
}

static int number_take(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                       void *into)
{
    const enum json_type type = json_object_get_type(value);
    const double number = json_object_get_double(value);

    if (f->kind == FIELD_INT ? type != json_type_int : type != json_type_int && type != json_type_double)
        return wrong(r, at, "needed is a %s", f->kind == FIELD_INT ? "whole number" : "number");
    if (!(number >= f->least && number <= f->most))
        return wrong(r, at, "%s: allowed are %.15g to %.15g", json_object_get_string(value), f->least, f->most);
    if (f->kind == FIELD_INT)
        *(int *)into = (int)number;
    else
        *(double *)into = number;
    return 0;
}

static int unit_take(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                     double *into)
{
    struct error why = {0};
    struct words text = words("%s", json_object_get_string(value));

    if (!json_object_is_type(value, json_type_string) && !json_object_is_type(value, json_type_int) &&
        !json_object_is_type(value, json_type_double))
        return wrong(r, at, "needed is a text with a number and a unit");
    if (unit_parse(text.text, f->unit, into, &why))
        return wrong(r, at, "%s", why.text);
    if (f->least > 0 ? !(*into > 0) : !(*into >= 0))
        return wrong(r, at, "%s: allowed is more than 0%s", text.text, f->least > 0 ? "" : ", or 0");
    return 0;
}

static int choice_take(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                       int *into)
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    struct words known = {""};

    for (int i = 0; f->choices[i]; i++) {
        if (!strcmp(f->choices[i], text)) {
            *into = i;
            return 0;
        }
        words_add(&known, "%s%s", i ? ", " : "", f->choices[i]);
    }
    return wrong(r, at, "\"%.40s\": allowed are %s", json_object_get_string(value), known.text);
}

/* Takes all keys of an object that the table has into the struct, and refuses others. OTHER fields are the caller's. */
static int object_take(const struct reading *r, const struct place *at, struct json_object *o, const struct field *fields,
                       void *into)
{
    if (!json_object_is_type(o, json_type_object))
        return wrong(r, at, "needed is an object");
    json_object_object_foreach(o, key, value)
    {
        const struct place here = {.up = at, .key = key};
        const struct field *f = fields;
        void *to;
        int status = 0;
        if (!strcmp(key, "about") && json_object_is_type(value, json_type_string))
            continue;
        while (f->key && strcmp(f->key, key) != 0)
            f++;
        if (!f->key) {
            struct words known = {""};
            for (f = fields; f->key; f++)
                words_add(&known, "%s%s", f == fields ? "" : ", ", f->key);
            return wrong(r, &here, "unknown key; there are %s", known.text);
        }
        to = (char *)into + f->at;
        if (f->kind == FIELD_INT || f->kind == FIELD_NUMBER)
            status = number_take(r, &here, f, value, to);
        else if (f->kind == FIELD_CHOICE)
            status = choice_take(r, &here, f, value, to);
        else if (f->kind == FIELD_UNIT)
            status = unit_take(r, &here, f, value, to);
        else if (f->kind == FIELD_BOOL && !json_object_is_type(value, json_type_boolean))
            status = wrong(r, &here, "allowed are true and false");
        else if (f->kind == FIELD_BOOL)
            *(bool *)to = json_object_get_boolean(value);
        if (status)
            return status;
    }
    for (const struct field *f = fields; f->key; f++)
        if (f->needed && !json_object_object_get_ex(o, f->key, NULL))
            return wrong(r, at, "\"%s\" is missing", f->key);
    return 0;
}

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *value = NULL;

    (void)json_object_object_get_ex(o, key, &value);
    return value;
}

/* ---- machines ---- */

#define OTHER(name, is_needed)                                                                                                 \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_OTHER, .needed = (is_needed)                                                              \
    }
#define AT(type, member) .at = offsetof(struct type, member)
#define TIME_AT(name, type, member)                                                                                            \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, AT(type, member), .unit = UNIT_TIME                                                 \
    }
#define RATE_AT(name, type, member, is_needed)                                                                                 \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, .needed = (is_needed), AT(type, member), .least = 1, .unit = UNIT_RATE              \
    }

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
    OTHER("rates", true),
    TIME_AT("hand_over", sim_device, hand_over_s),
    TIME_AT("launch", sim_device, launch_s),
    TIME_AT("step", sim_device, step_s),
    TIME_AT("slice", sim_device, slice_s),
    {.key = "stores_wait", .kind = FIELD_BOOL, AT(sim_device, stores_wait)},
    {.key = NULL},
};
#define FLOPS_AT(name, which)                                                                                                  \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, .at = (which) * sizeof(double), .least = 1, .unit = UNIT_FLOPS_RATE                 \
    }
static const struct field rate_fields[] = {
    FLOPS_AT("bag", COMPUTE_BAG), FLOPS_AT("gemv", COMPUTE_GEMV), FLOPS_AT("gemm", COMPUTE_GEMM), {.key = NULL}};
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
        return shape ? wrong(r, &here, "only a torus has one") : 0;
    if (!shape)
        return wrong(r, at, "\"shape\" is missing");
    if (n < 1 || n > 3)
        return wrong(r, &here, "needed are 1 to 3 numbers");
    for (size_t i = 0; i < n; i++) {
        const struct field size = {.kind = FIELD_INT, .least = 1, .most = SIM_MAX_NODES};
        const struct place element = {.up = &here, .index = i};
        if (number_take(r, &element, &size, json_object_array_get_idx(shape, i), &f->shape[i]))
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
    return wrong(r, at, "\"%.40s\": allowed are \"node 0\" to \"node %d\" and \"switch 0\" to \"switch %d\"", text, nodes - 1,
                 SIM_MAX_NODES - 1);
}

static int cables_take(const struct reading *r, const struct place *at, struct json_object *cables, struct sim_machine *m)
{
    const struct place here = {.up = at, .key = "cables"};
    const size_t n = json_object_is_type(cables, json_type_array) ? json_object_array_length(cables) : 0;
    struct sim_fabric *f = &m->fabric;

    if (f->kind != SIM_GRAPH)
        return cables ? wrong(r, &here, "only a graph has them") : 0;
    if (n < 1 || n > CABLES_MAX)
        return wrong(r, cables ? &here : at, "a graph needs a list of 1 to %d cables", CABLES_MAX);
    f->cables = calloc(2 * n, sizeof(*f->cables));
    if (!f->cables)
        return error_set(r->e, -ENOMEM, "%s: no memory for %zu cables", r->name, n);
    for (size_t i = 0; i < n; i++) {
        const struct place element = {.up = &here, .index = i};
        struct json_object *cable = json_object_array_get_idx(cables, i);
        struct sim_cable *c = &f->cables[f->ncables];
        const struct field rate = {.unit = UNIT_RATE, .least = 1};
        if (!json_object_is_type(cable, json_type_array) || json_object_array_length(cable) != 3)
            return wrong(r, &element, "needed are two ends and a bandwidth");
        for (size_t end = 0; end < 2; end++) {
            const struct place place = {.up = &element, .index = end};
            const char *text = json_object_get_string(json_object_array_get_idx(cable, end));
            if (end_take(r, &place, text ? text : "", m->nodes, end ? &c->to : &c->from, &f->nswitches))
                return r->e->status;
        }
        const struct place place = {.up = &element, .index = 2};
        if (unit_take(r, &place, &rate, json_object_array_get_idx(cable, 2), &c->bytes_s))
            return r->e->status;
        c[1] = (struct sim_cable){.from = c->to, .to = c->from, .bytes_s = c->bytes_s};
        f->ncables += 2;
    }
    return 0;
}

static int machine_take(const struct reading *r, const struct place *at, struct json_object *o)
{
    struct sim_machine *m = &r->d->machine;
    const struct place device = {.up = at, .key = "device"}, node = {.up = at, .key = "node"},
                       fabric = {.up = at, .key = "fabric"}, stragglers = {.up = at, .key = "stragglers"},
                       rates = {.up = &device, .key = "rates"};

    *m = (struct sim_machine){.node.rails = 1, .fabric = {.kind = SIM_FAT_TREE, .oversubscription = 1, .in_flight = 4}};
    if (object_take(r, at, o, machine_fields, m) || object_take(r, &device, member(o, "device"), device_fields, &m->device) ||
        object_take(r, &rates, member(member(o, "device"), "rates"), rate_fields, m->device.flops_s) ||
        object_take(r, &node, member(o, "node"), node_fields, &m->node))
        return r->e->status;
    if ((int64_t)m->node.ranks * m->nodes > SIM_MAX_RANKS)
        return wrong(r, &node, "%d ranks on each of %d nodes: allowed are %d in all", m->node.ranks, m->nodes, SIM_MAX_RANKS);
    if (m->node.rails > m->node.ranks)
        return wrong(r, &node, "rails: %d: allowed are 1 to %d, the ranks of a node", m->node.rails, m->node.ranks);
    if (m->node.ranks > 1 && m->node.link != SIM_LINK_MEMORY && !(m->node.link_bytes_s > 0))
        return wrong(r, &node, "\"bandwidth\" is missing");
    if (member(o, "stragglers") && object_take(r, &stragglers, member(o, "stragglers"), straggler_fields, &m->stragglers))
        return r->e->status;
    if (!member(o, "fabric"))
        return m->nodes > 1 ? wrong(r, at, "\"fabric\" is missing: there are %d nodes", m->nodes) : 0;
    if (object_take(r, &fabric, member(o, "fabric"), fabric_fields, &m->fabric) ||
        shape_take(r, &fabric, member(member(o, "fabric"), "shape"), &m->fabric))
        return r->e->status;
    return cables_take(r, &fabric, member(member(o, "fabric"), "cables"), m);
}

/* ---- workloads ---- */

static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
static const char *const schedules[] = {"fused", "sequential", NULL};
static const char *const routes[] = {
    [PLAN_ROUTE_RULE] = "rule", [PLAN_FLAT] = "flat", [PLAN_HIERARCHICAL] = "hierarchical", NULL};
static const char *const computes[] = {"none", "bag", "gemv", "gemm", NULL};

/* What an entry says, as it is said. */
struct entry {
    int dtype, schedule, route, compute, repeat, slice_rows, slice_cols;
    double flops, bytes, share;
    int size, stride;
};
static const struct field entry_fields[] = {
    OTHER("name", true),
    OTHER("operator", false),
    OTHER("sizes", false),
    OTHER("after", false),
    OTHER("ranks", false),
    {"dtype", FIELD_CHOICE, false, AT(entry, dtype), .choices = dtypes},
    {"schedule", FIELD_CHOICE, false, AT(entry, schedule), .choices = schedules},
    {"route", FIELD_CHOICE, false, AT(entry, route), .choices = routes},
    {"compute", FIELD_CHOICE, false, AT(entry, compute), .choices = computes},
    {"flops", FIELD_UNIT, false, AT(entry, flops), .unit = UNIT_FLOPS},
    {"bytes", FIELD_UNIT, false, AT(entry, bytes), .unit = UNIT_BYTES},
    {"share", FIELD_NUMBER, false, AT(entry, share), 0.001, 1},
    {"repeat", FIELD_INT, false, AT(entry, repeat), 1, DESCRIBED_MAX},
    {"slice_rows", FIELD_INT, false, AT(entry, slice_rows), 0, INT32_MAX},
    {"slice_cols", FIELD_INT, false, AT(entry, slice_cols), 0, INT32_MAX},
    {.key = NULL},
};
static const struct field group_fields[] = {{"size", FIELD_INT, true, AT(entry, size), 1, SIM_MAX_RANKS},
                                            {"stride", FIELD_INT, false, AT(entry, stride), 1, SIM_MAX_RANKS},
                                            {.key = NULL}};

static int sizes_take(const struct reading *r, const struct place *at, struct json_object *o, struct described *d)
{
    const struct place here = {.up = at, .key = "sizes"};
    struct shape shape;

    if (!o)
        return 0;
    if (!json_object_is_type(o, json_type_object))
        return wrong(r, &here, "needed is an object");
    shape_begin(&shape, d->number, 1, FCC_F32);
    json_object_object_foreach(o, key, value)
    {
        const struct place place = {.up = &here, .key = key};
        const int64_t size = json_object_get_int64(value);
        if (!shape_size_set(&shape, key, size))
            return wrong(r, &place, "%s has no such size", op_name(d->number));
        if (!json_object_is_type(value, json_type_int) || size < 1 || size > INT64_C(1) << 40)
            return wrong(r, &place, "%s: allowed are whole numbers from 1 to 2^40", json_object_get_string(value));
        for (size_t i = 0; shape_size_name(i); i++)
            if (!strcmp(shape_size_name(i), key))
                d->sizes[d->nsizes].name = shape_size_name(i);
        d->sizes[d->nsizes++].value = size;
    }
    return 0;
}

static int operator_take(const struct reading *r, const struct place *at, struct json_object *o, struct described *d,
                         const struct entry *entry)
{
    const struct place here = {.up = at, .key = "operator"}, sizes = {.up = at, .key = "sizes"};
    const char *name = json_object_get_string(member(o, "operator"));
    const int number = name ? op_by_name(name) : -1;
    char names[512];

    if (!name) {
        d->number = FCC_OP_COUNT;
        d->op.compute = entry->compute == 1   ? COMPUTE_BAG
                        : entry->compute == 2 ? COMPUTE_GEMV
                        : entry->compute == 3 ? COMPUTE_GEMM
                                              : COMPUTE_NONE;
        d->op.flops = entry->flops;
        d->op.bytes = entry->bytes;
        if (member(o, "sizes"))
            return wrong(r, &sizes, "only operators have sizes");
        if (!(entry->flops > 0) && !(entry->bytes > 0))
            return wrong(r, at, "needed is \"operator\", or \"flops\" or \"bytes\" that each rank computes by itself");
        if (entry->flops > 0 && entry->compute == 0)
            return wrong(r, at, "\"compute\" is missing: which rate do the flops have?");
        return 0;
    }
    if (number < 0)
        return wrong(r, &here, "\"%.40s\": no such operator; there are %s", name,
                     op_names(BIND_NEVER, ", ", names, sizeof(names)));
    if (entry->flops > 0 || entry->bytes > 0 || entry->compute)
        return wrong(
            r, at,
            "an operator's work is what its sizes say: \"flops\", \"bytes\" and \"compute\" are for what has no operator");
    d->number = (enum fcc_op)number;
    return sizes_take(r, at, member(o, "sizes"), d);
}

static int entry_take(const struct reading *r, const struct place *at, struct json_object *o, struct described *d)
{
    const struct sim_machine *m = &r->d->machine;
    const int ranks = m->node.ranks * m->nodes;
    struct entry entry = {.repeat = 1, .share = 1, .size = ranks, .stride = 1, .schedule = -1};
    const struct place group = {.up = at, .key = "ranks"}, name = {.up = at, .key = "name"};

    if (object_take(r, at, o, entry_fields, &entry))
        return r->e->status;
    if (!json_object_is_type(member(o, "name"), json_type_string) || !*json_object_get_string(member(o, "name")) ||
        strlen(json_object_get_string(member(o, "name"))) >= SIM_NAME)
        return wrong(r, &name, "needed is a text of 1 to %d characters", SIM_NAME - 1);
    if (member(o, "ranks") && object_take(r, &group, member(o, "ranks"), group_fields, &entry))
        return r->e->status;
    if (ranks % ((int64_t)entry.size * entry.stride))
        return wrong(r, &group, "groups of %d ranks, %d apart, do not divide the %d ranks that there are", entry.size,
                     entry.stride, ranks);
    text_copy(d->op.name, sizeof(d->op.name), json_object_get_string(member(o, "name")));
    d->op.size = entry.size;
    d->op.stride = entry.stride;
    d->op.share = entry.share;
    d->op.schedule = (struct schedule){.kind = entry.schedule == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED,
                                       .target = m->device.target,
                                       .route = (enum plan_route)entry.route,
                                       .workgroups = m->device.workgroups,
                                       .slice_rows = (uint32_t)entry.slice_rows,
                                       .slice_cols = (uint32_t)entry.slice_cols};
    d->sequential_too = entry.schedule < 0;
    d->repeat = entry.repeat;
    d->dtype = entry.dtype == 1 ? FCC_F16 : entry.dtype == 2 ? FCC_BF16 : FCC_F32;
    d->line = place_line(r->text, at);
    return operator_take(r, at, o, d, &entry);
}

static int entry_find(const struct described *all, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(all[i].op.name, name))
            return (int)i;
    return -1;
}

static int after_take(const struct reading *r, const struct place *at, struct json_object *after, struct described *all,
                      size_t n, size_t i)
{
    const struct place here = {.up = at, .key = "after"};
    const size_t count = json_object_is_type(after, json_type_array) ? json_object_array_length(after) : 0;

    if (!after)
        return 0;
    if (!json_object_is_type(after, json_type_array) || count > SIM_MAX_AFTER)
        return wrong(r, &here, "needed is a list of at most %d names", SIM_MAX_AFTER);
    for (size_t k = 0; k < count; k++) {
        const struct place place = {.up = &here, .index = k};
        const char *name = json_object_get_string(json_object_array_get_idx(after, k));
        const int found = name ? entry_find(all, n, name) : -1;
        if (found < 0)
            return wrong(r, &place, "\"%.40s\": no entry has this name", name ? name : "");
        all[i].op.after[all[i].op.nafter++] = found;
    }
    return 0;
}

/* Copies the entries into an order in which each comes after those that it waits for, as early as its place in the list allows.
 * to[i] becomes where entry i went; -1: nowhere, as it waits for itself. */
static void entries_place(const struct described all[], int n, struct described sorted[], int to[])
{
    int placed = 0;

    for (int i = 0; i < n; i++)
        to[i] = -1;
    for (bool some = true; some;) {
        some = false;
        for (int i = 0; i < n; i++) {
            bool ready = to[i] < 0;
            for (int k = 0; k < all[i].op.nafter; k++)
                ready &= to[all[i].op.after[k]] >= 0;
            if (!ready)
                continue;
            sorted[placed] = all[i];
            for (int k = 0; k < all[i].op.nafter; k++)
                sorted[placed].op.after[k] = to[all[i].op.after[k]];
            to[i] = placed++;
            some = true;
        }
    }
}

/* Sorts the entries such that each comes after those that it waits for. */
static int entries_sort(const struct reading *r, struct described *all, int n)
{
    int *to = calloc((size_t)n, sizeof(*to)), status = 0;
    struct described *sorted = calloc((size_t)n, sizeof(*sorted));

    if (to && sorted) {
        entries_place(all, n, sorted, to);
        for (int i = 0; !status && i < n; i++)
            if (to[i] < 0)
                status = error_set(r->e, -EINVAL, "%s:%d: workload: \"%s\" waits for itself, by way of what it comes after",
                                   r->name, all[i].line, all[i].op.name);
        if (!status)
            memcpy(all, sorted, (size_t)n * sizeof(*all));
    } else {
        status = error_set(r->e, -ENOMEM, "%s: no memory", r->name);
    }
    free(to);
    free(sorted);
    return status;
}

static int workload_take(const struct reading *r, struct json_object *list)
{
    const struct place here = {.key = "workload"};
    const size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    struct description *d = r->d;

    if (n < 1 || n > DESCRIBED_MAX)
        return wrong(r, &here, "needed is a list of 1 to %d entries", DESCRIBED_MAX);
    d->operators = calloc(n, sizeof(*d->operators));
    if (!d->operators)
        return error_set(r->e, -ENOMEM, "%s: no memory", r->name);
    for (size_t i = 0; i < n; i++) {
        const struct place at = {.up = &here, .index = i}, name = {.up = &at, .key = "name"};
        if (entry_take(r, &at, json_object_array_get_idx(list, i), &d->operators[i]))
            return r->e->status;
        if (entry_find(d->operators, i, d->operators[i].op.name) >= 0)
            return wrong(r, &name, "\"%s\" is another entry's name", d->operators[i].op.name);
        d->noperators++;
    }
    for (size_t i = 0; i < n; i++) {
        const struct place at = {.up = &here, .index = i};
        if (after_take(r, &at, member(json_object_array_get_idx(list, i), "after"), d->operators, n, i))
            return r->e->status;
    }
    return entries_sort(r, d->operators, (int)n);
}

/* ---- files ---- */

struct top {
    int seed;
};
static const struct field top_fields[] = {OTHER("name", false),
                                          {"seed", FIELD_INT, false, AT(top, seed), 0, INT32_MAX},
                                          OTHER("machine", true),
                                          OTHER("workload", true),
                                          {.key = NULL}};

/* The text as JSON; NULL: it is none, which *e says. */
static struct json_object *text_parse(const char *text, size_t length, const char *name, struct error *e)
{
    struct json_tokener *tokener = json_tokener_new_ex(16);
    struct json_object *o = NULL;
    char key[64];
    int line = 1;

    if (!tokener) {
        (void)error_set(e, -ENOMEM, "%s: no memory", name);
        return NULL;
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    if (memchr(text, 0, length))
        (void)error_set(e, -EINVAL, "%s: a NUL byte: no JSON", name);
    else
        o = json_tokener_parse_ex(tokener, text, (int)length + 1);
    const enum json_tokener_error why = json_tokener_get_error(tokener);
    for (size_t i = 0; i < json_tokener_get_parse_end(tokener) && i < length; i++)
        line += text[i] == '\n';
    if (!o && !e->status)
        (void)error_set(e, -EINVAL, "%s:%d: no JSON: %s", name, line,
                        why == json_tokener_continue ? "it ends too early" : json_tokener_error_desc(why));
    json_tokener_free(tokener);
    if (o && (line = places_twice(text, key))) {
        (void)error_set(e, -EINVAL, "%s:%d: \"%s\" stands twice", name, line, key);
        (void)json_object_put(o);
        return NULL;
    }
    return o;
}

static int object_read(struct reading *r, struct json_object *o, struct json_object *machine,
                       const struct reading *machine_reading)
{
    const struct place at = {.key = "machine"};
    struct top top = {.seed = 1};

    if (object_take(r, NULL, o, top_fields, &top))
        return r->e->status;
    r->d->seed = (uint64_t)top.seed;
    if (json_object_is_type(member(o, "name"), json_type_string))
        text_copy(r->d->name, sizeof(r->d->name), json_object_get_string(member(o, "name")));
    if (machine ? machine_take(machine_reading, NULL, machine) : machine_take(r, &at, member(o, "machine")))
        return r->e->status;
    return workload_take(r, member(o, "workload"));
}

int description_parse(const char *text, size_t length, const char *name, struct description *out, struct error *e)
{
    struct reading r = {.text = text, .name = name, .d = out, .e = e};

    *out = (struct description){.noperators = 0};
    error_clear(e);
    struct json_object *o = text_parse(text, length, name, e);
    if (!o)
        return e->status;
    const int status = object_read(&r, o, NULL, NULL);
    (void)json_object_put(o);
    if (status)
        description_free(out);
    return status;
}

/* A file's text, to be freed. NULL: *e says why. */
static char *file_read(const char *path, struct error *e)
{
    FILE *in = fopen(path, "re");
    char *text = in ? malloc(DESCRIPTION_BYTES + 1) : NULL;

    if (!in || !text) {
        (void)error_set(e, in ? -ENOMEM : -errno, "%s: %s", path, in ? "no memory" : strerror(errno));
    } else {
        const size_t n = fread(text, 1, DESCRIPTION_BYTES + 1, in);
        if (ferror(in))
            (void)error_set(e, -EIO, "%s: %s", path, strerror(errno));
        else if (n > DESCRIPTION_BYTES)
            (void)error_set(e, -EINVAL, "%s: larger than %d bytes", path, DESCRIPTION_BYTES);
        text[n <= DESCRIPTION_BYTES ? n : 0] = '\0';
    }
    if (in)
        (void)fclose(in);
    if (e->status) {
        free(text);
        return NULL;
    }
    return text;
}

int description_read(const char *path, struct description *out, struct error *e)
{
    struct reading r = {.name = path, .d = out, .e = e}, m = r;
    struct json_object *machine = NULL, *o;
    char *other = NULL, *text;
    struct words folder = words("%s", path);

    *out = (struct description){.noperators = 0};
    error_clear(e);
    r.text = text = file_read(path, e);
    o = text ? text_parse(text, strlen(text), path, e) : NULL;
    struct json_object *named = o ? member(o, "machine") : NULL;
    struct words file; /* outlives m, which calls it by name */
    if (json_object_is_type(named, json_type_string)) {
        file = words("%s/%s", dirname(folder.text), json_object_get_string(named));
        m.name = file.text;
        m.text = other = file_read(file.text, e);
        machine = other ? text_parse(other, strlen(other), file.text, e) : NULL;
    }
    if (!e->status)
        (void)object_read(&r, o, machine, &m);
    (void)json_object_put(o);
    (void)json_object_put(machine);
    free(text);
    free(other);
    if (e->status)
        description_free(out);
    return e->status;
}

void description_free(struct description *d)
{
    free(d->operators);
    free(d->machine.fabric.cables);
    *d = (struct description){.noperators = 0};
}
