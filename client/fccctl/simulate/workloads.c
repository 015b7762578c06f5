/* SPDX-License-Identifier: MIT
 *
 * workloads.c - what a description says of the workload: its entries, in an order in which they can run.
 */
#include "client/fccctl/simulate/reading.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

int sizes_take(const struct reading *r, const struct place *here, struct json_object *o, struct described *d)
{
    struct shape shape;

    if (!json_object_is_type(o, json_type_object))
        return reading_refuse(r, here, "needed is an object");
    shape_begin(&shape, d->number, 1, FCC_F32);
    json_object_object_foreach(o, key, value)
    {
        const struct place place = {.up = here, .key = key};
        const int64_t size = json_object_get_int64(value);
        if (!shape_size_set(&shape, key, size))
            return reading_refuse(r, &place, "%s has no such size", op_name(d->number));
        if (!json_object_is_type(value, json_type_int) || size < 1 || size > INT64_C(1) << 40)
            return reading_refuse(r, &place, "%s: allowed are whole numbers from 1 to 2^40", json_object_get_string(value));
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
    const char *name = json_object_get_string(object_member(o, "operator"));
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
        if (object_member(o, "sizes"))
            return reading_refuse(r, &sizes, "only operators have sizes");
        if (!(entry->flops > 0) && !(entry->bytes > 0))
            return reading_refuse(r, at, "needed is \"operator\", or \"flops\" or \"bytes\" that each rank computes by itself");
        if (entry->flops > 0 && entry->compute == 0)
            return reading_refuse(r, at, "\"compute\" is missing: which rate do the flops have?");
        return 0;
    }
    if (number < 0)
        return reading_refuse(r, &here, "\"%.40s\": no such operator; there are %s", name,
                              op_names(BIND_NEVER, ", ", names, sizeof(names)));
    if (entry->flops > 0 || entry->bytes > 0 || entry->compute)
        return reading_refuse(
            r, at,
            "an operator's work is what its sizes say: \"flops\", \"bytes\" and \"compute\" are for what has no operator");
    d->number = (enum fcc_op)number;
    return object_member(o, "sizes") ? sizes_take(r, &sizes, object_member(o, "sizes"), d) : 0;
}

static int entry_take(const struct reading *r, const struct place *at, struct json_object *o, struct described *d)
{
    const struct sim_machine *m = &r->d->machine;
    const int ranks = m->node.ranks * m->nodes;
    struct entry entry = {.repeat = 1, .share = 1, .size = ranks, .stride = 1, .schedule = -1};
    const struct place group = {.up = at, .key = "ranks"}, name = {.up = at, .key = "name"};

    if (reading_object(r, at, o, entry_fields, &entry))
        return r->e->status;
    if (!json_object_is_type(object_member(o, "name"), json_type_string) ||
        !*json_object_get_string(object_member(o, "name")) ||
        strlen(json_object_get_string(object_member(o, "name"))) >= SIM_NAME)
        return reading_refuse(r, &name, "needed is a text of 1 to %d characters", SIM_NAME - 1);
    if (object_member(o, "ranks") && reading_object(r, &group, object_member(o, "ranks"), group_fields, &entry))
        return r->e->status;
    if (ranks % ((int64_t)entry.size * entry.stride))
        return reading_refuse(r, &group, "groups of %d ranks, %d apart, do not divide the %d ranks that there are", entry.size,
                              entry.stride, ranks);
    text_copy(d->op.name, sizeof(d->op.name), json_object_get_string(object_member(o, "name")));
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
        return reading_refuse(r, &here, "needed is a list of at most %d names", SIM_MAX_AFTER);
    for (size_t k = 0; k < count; k++) {
        const struct place place = {.up = &here, .index = k};
        const char *name = json_object_get_string(json_object_array_get_idx(after, k));
        const int found = name ? entry_find(all, n, name) : -1;
        if (found < 0)
            return reading_refuse(r, &place, "\"%.40s\": no entry has this name", name ? name : "");
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

int workload_take(const struct reading *r, struct json_object *list)
{
    const struct place here = {.key = "workload"};
    const size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    struct description *d = r->d;

    if (n < 1 || n > DESCRIBED_MAX)
        return reading_refuse(r, &here, "needed is a list of 1 to %d entries", DESCRIBED_MAX);
    d->operators = calloc(n, sizeof(*d->operators));
    if (!d->operators)
        return error_set(r->e, -ENOMEM, "%s: no memory", r->name);
    for (size_t i = 0; i < n; i++) {
        const struct place at = {.up = &here, .index = i}, name = {.up = &at, .key = "name"};
        if (entry_take(r, &at, json_object_array_get_idx(list, i), &d->operators[i]))
            return r->e->status;
        if (entry_find(d->operators, i, d->operators[i].op.name) >= 0)
            return reading_refuse(r, &name, "\"%s\" is another entry's name", d->operators[i].op.name);
        d->noperators++;
    }
    for (size_t i = 0; i < n; i++) {
        const struct place at = {.up = &here, .index = i};
        if (after_take(r, &at, object_member(json_object_array_get_idx(list, i), "after"), d->operators, n, i))
            return r->e->status;
    }
    return entries_sort(r, d->operators, (int)n);
}
