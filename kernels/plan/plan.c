/* SPDX-License-Identifier: MIT
 *
 * plan.c - what all plans have in common: the builder, the order of destinations, and the names of things.
 */
#include "kernels/plan/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/program.h"

/* ---- making a plan ---- */

/* Makes room for one more element of an array. */
static int array_grow(void *array, uint32_t used, uint32_t *room, size_t size)
{
    void **p = array, *grown;
    uint32_t more = *room ? 2 * *room : 32;

    if (used < *room)
        return 0;
    grown = realloc(*p, more * size);
    if (!grown)
        return -ENOMEM;
    *p = grown;
    *room = more;
    return 0;
}

uint32_t plan_add_group(struct plan_builder *b, unsigned dst, uint32_t flag)
{
    struct plan *plan = b->plan;

    if (b->status == 0 && plan->ngroups == PLAN_MAX_SLICES)
        b->status = -EINVAL;
    if (b->status == 0)
        b->status = array_grow(&plan->groups, plan->ngroups, &b->groups_room, sizeof(*plan->groups));
    if (b->status)
        return SLICE_NO_GROUP;
    plan->groups[plan->ngroups] = (struct signal_group){.dst = (uint16_t)dst, .flag = flag};
    return plan->ngroups++;
}

void plan_add_level(struct plan_builder *b, uint32_t level)
{
    struct plan *plan = b->plan;

    while (b->status == 0 && plan->nlevels <= level) {
        b->status = array_grow(&plan->level_first, plan->nlevels, &b->levels_room, sizeof(*plan->level_first));
        if (b->status == 0)
            plan->level_first[plan->nlevels++] = plan->nslices;
    }
    assert(b->status || plan->nlevels == level + 1); /* levels never descend */
}

void plan_add_slice(struct plan_builder *b, struct slice slice)
{
    struct plan *plan = b->plan;

    if (b->status == 0 && plan->nslices == PLAN_MAX_SLICES)
        b->status = -EINVAL;
    if (b->status == 0)
        b->status = array_grow(&plan->slices, plan->nslices, &b->slices_room, sizeof(*plan->slices));
    if (b->status)
        return;
    plan->slices[plan->nslices++] = slice;
    if (slice.group != SLICE_NO_GROUP)
        plan->groups[slice.group].slices++;
}

void plan_keep_layout(struct plan_builder *b, const void *layout, size_t bytes)
{
    b->plan->layout = malloc(bytes);
    if (b->plan->layout)
        memcpy(b->plan->layout, layout, bytes);
    else if (b->status == 0)
        b->status = -ENOMEM;
}

static int plan_check(const struct problem *problem, int rank, const struct schedule *schedule, struct error *e)
{
    if (!op_spec(problem->op))
        return error_set(e, -EINVAL, "operator: %u: unknown", (unsigned)problem->op);
    if (problem->nranks < 1 || problem->nranks > FCC_MAX_RANKS)
        return error_set(e, -EINVAL, "nranks: %d: allowed are 1 to %d", problem->nranks, FCC_MAX_RANKS);
    if (rank < 0 || rank >= problem->nranks)
        return error_set(e, -EINVAL, "rank: %d: allowed are 0 to %d", rank, problem->nranks - 1);
    if (schedule->kind < FCC_SCHEDULE_FUSED || schedule->kind > FCC_SCHEDULE_COMM_ONLY)
        return error_set(e, -EINVAL, "schedule: %s: a plan is fused, sequential, or one half of sequential",
                         schedule_name(schedule->kind));
    return problem_check(problem, e);
}

int plan_make(const struct problem *problem, int rank, const struct schedule *schedule, struct plan **out, struct error *e)
{
    struct plan_builder b = {.plan = NULL};
    int status = plan_check(problem, rank, schedule, e);

    if (status)
        return status;
    b.plan = calloc(1, sizeof(*b.plan));
    if (!b.plan)
        return error_set(e, -ENOMEM, "plan: no memory");
    b.plan->op = problem->op;
    b.plan->rank = rank;
    b.plan->nranks = problem->nranks;
    b.plan->schedule = *schedule;
    plan_add_level(&b, 0);
    op_exchange(problem->op)->plan(problem, rank, op_compute(problem->op), &b);
    /* Every plan has at least one slice, so that whoever runs it learns of its end from its slices. */
    if (b.status == 0 && b.plan->nslices == 0) {
        plan_add_level(&b, b.plan->nlevels > LEVELS ? b.plan->nlevels - 1 : LEVEL_WAIT);
        plan_add_slice(&b, (struct slice){.kind = SLICE_WAIT, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP});
    }
    plan_add_level(&b, b.plan->nlevels); /* their end */
    if (b.status == -EINVAL)
        status = error_set(e, -EINVAL, "slices: more than %u: larger slices are needed than %u rows, %u columns",
                           PLAN_MAX_SLICES, b.plan->schedule.slice_rows, b.plan->schedule.slice_cols);
    else if (b.status)
        status = error_set(e, b.status, "plan: no memory for %u slices", b.plan->nslices);
    else if (b.plan->nflags > PLAN_MAX_FLAGS)
        status = error_set(e, -EINVAL, "flags: %u: allowed are %u: larger slices are needed", b.plan->nflags, PLAN_MAX_FLAGS);
    b.plan->nlevels--;
    if (status) {
        plan_free(b.plan);
        return status;
    }
    *out = b.plan;
    return 0;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    free(plan->slices);
    free(plan->groups);
    free(plan->level_first);
    free(plan->layout);
    free(plan);
}

struct work plan_work(const struct problem *problem, int rank)
{
    return op_compute(problem->op)->work(problem, rank);
}

void plan_destination_order(const struct problem *problem, int rank, int order[])
{
    int n = 0;

    for (int own_node = 0; own_node <= 1; own_node++) {
        for (int i = 1; i < problem->nranks; i++) {
            int r = (rank + i) % problem->nranks;
            if ((problem->node_of[r] == problem->node_of[rank]) == own_node)
                order[n++] = r;
        }
    }
    order[n] = rank;
}

/* ---- names ---- */

static const char *const slice_kinds[] = {
    [SLICE_COMPUTE_PUT] = "compute+put", [SLICE_COMPUTE] = "compute", [SLICE_PUT] = "put",
    [SLICE_REDUCE] = "reduce",           [SLICE_WAIT] = "wait",       [SLICE_REDUCE_NODE] = "reduce in node",
    [SLICE_FORWARD] = "forward",
};
static const char *const routes[] = {[PLAN_ROUTE_RULE] = "by rule", [PLAN_FLAT] = "flat", [PLAN_HIERARCHICAL] = "hierarchical"};
static const char *const schedules[] = {
    [FCC_SCHEDULE_AUTO] = "auto",
    [FCC_SCHEDULE_FUSED] = "fused",
    [FCC_SCHEDULE_SEQUENTIAL] = "sequential",
    [FCC_SCHEDULE_COMPUTE_ONLY] = "compute_only",
    [FCC_SCHEDULE_COMM_ONLY] = "comm_only",
};
static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [FCC_F32] = {"f32", 4}, [FCC_F16] = {"f16", 2}, [FCC_BF16] = {"bf16", 2}, [FCC_I32] = {"i32", 4}, [FCC_I64] = {"i64", 8},
};
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

const char *slice_kind_name(enum slice_kind kind)
{
    return (unsigned)kind < COUNT_OF(slice_kinds) && slice_kinds[kind] ? slice_kinds[kind] : "unknown";
}

const char *schedule_name(enum fcc_schedule_kind kind)
{
    return (unsigned)kind < COUNT_OF(schedules) ? schedules[kind] : "unknown";
}

const char *route_name(enum plan_route route)
{
    return (unsigned)route < COUNT_OF(routes) ? routes[route] : "unknown";
}

const char *op_prepare_name(enum fcc_op op)
{
    return op_spec(op) ? op_spec(op)->prepare_name : "unknown";
}

const char *op_name(enum fcc_op op)
{
    return op_spec(op) ? op_spec(op)->name : "unknown";
}

int op_by_name(const char *name)
{
    for (unsigned i = 0; i < FCC_OP_COUNT; i++)
        if (strcmp(op_spec(i)->name, name) == 0)
            return (int)i;
    return -ENOENT;
}

const char *dtype_name(enum fcc_dtype dtype)
{
    return (unsigned)dtype < COUNT_OF(dtypes) && dtypes[dtype].name ? dtypes[dtype].name : "unknown";
}

int dtype_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(dtypes); i++)
        if (dtypes[i].name && strcmp(dtypes[i].name, name) == 0)
            return (int)i;
    return -ENOENT;
}

size_t dtype_size(enum fcc_dtype dtype)
{
    return (unsigned)dtype < COUNT_OF(dtypes) ? dtypes[dtype].size : 0;
}
