/* SPDX-License-Identifier: MIT
 *
 * plan.c - what all plans have in common: the builder, the order of destinations, and the names of things.
 */
#include "kernels/plan/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/program.h"
#include "kernels/plan/spec.h"

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

static int size_check(const char *name, int64_t value, int64_t most, struct error *e)
{
    if (value < 0 || value > most)
        return error_set(e, -EINVAL, "%s: %" PRId64 ": allowed are 0 to %" PRId64, name, value, most);
    return 0;
}

/* The sizes that a plan is made from fit into its slices. (match() makes only such problems.) */
static int embedding_check(const struct problem *p, struct error *e)
{
    int64_t batch = 0;
    int status = size_check("dim", p->embedding.dim, INT32_MAX, e);

    for (int r = 0; r < p->nranks && status == 0; r++) {
        status = size_check("tables", p->embedding.tables[r], FCC_MAX_TABLES, e);
        if (status == 0)
            status = size_check("batch_split", p->embedding.split[r], INT32_MAX - batch, e);
        if (status == 0)
            batch += p->embedding.split[r];
    }
    return status;
}

static int gemv_check(const struct problem *p, struct error *e)
{
    int status = size_check("m", p->gemv.m, FCC_GEMV_MAX_M, e);

    if (status == 0)
        status = size_check("n", p->gemv.n, INT32_MAX, e);
    for (int r = 0; r < p->nranks && status == 0; r++)
        status = size_check("k", p->gemv.k[r], INT32_MAX, e);
    return status;
}

static int gemm_check(const struct problem *p, struct error *e)
{
    int64_t sent, received;
    int status = size_check("n", p->gemm.n, INT32_MAX, e);

    for (int r = 0; r < p->nranks && status == 0; r++) {
        status = size_check("k", p->gemm.k[r], INT32_MAX, e);
        sent = received = 0;
        for (int q = 0; q < p->nranks && status == 0; q++) {
            status = size_check("send_rows", p->gemm.rows[r][q], INT32_MAX - sent, e);
            if (status == 0)
                status = size_check("send_rows", p->gemm.rows[q][r], INT32_MAX - received, e);
            if (status == 0) {
                sent += p->gemm.rows[r][q];
                received += p->gemm.rows[q][r];
            }
        }
    }
    return status;
}

static int problem_check(const struct problem *p, struct error *e)
{
    switch (p->op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        return embedding_check(p, e);
    case FCC_OP_GEMV_ALL_REDUCE:
        return gemv_check(p, e);
    case FCC_OP_GEMM_ALL_TO_ALL:
        return gemm_check(p, e);
    default:
        return 0;
    }
}

static int plan_check(const struct problem *problem, int rank, const struct schedule *schedule, struct error *e)
{
    if (!op_get(problem->op))
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
    b.plan->shared = op_spec(problem->op)->result < 0 ? 0 : 1u << op_spec(problem->op)->result;
    if (problem->op != FCC_OP_GEMV_ALL_REDUCE)
        b.plan->schedule.route = PLAN_FLAT; /* its slices have one destination each */
    op_get(problem->op)->plan(problem, rank, &b.plan->schedule, &b);
    /* Every plan has at least one slice, so that whoever runs it learns of its end from its slices. */
    if (b.status == 0 && b.plan->nslices == 0)
        plan_add_slice(&b, (struct slice){.kind = SLICE_WAIT, .dst = (uint16_t)rank, .group = SLICE_NO_GROUP});
    if (b.status == -EINVAL)
        status = error_set(e, -EINVAL, "slices: more than %u: larger slices are needed than %u rows, %u columns",
                           PLAN_MAX_SLICES, b.plan->schedule.slice_rows, b.plan->schedule.slice_cols);
    else if (b.status)
        status = error_set(e, b.status, "plan: no memory for %u slices", b.plan->nslices);
    else if (b.plan->nflags > PLAN_MAX_FLAGS)
        status = error_set(e, -EINVAL, "flags: %u: allowed are %u: larger slices are needed", b.plan->nflags, PLAN_MAX_FLAGS);
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
    free(plan->layout);
    free(plan);
}

struct work plan_work(const struct problem *problem, int rank)
{
    return op_get(problem->op)->work(problem, rank);
}

int plan_node_ranks(const struct problem *problem)
{
    int most = 1;

    for (int r = 0; r < problem->nranks; r++) {
        int n = 0;
        for (int q = 0; q < problem->nranks; q++)
            n += problem->node_of[q] == problem->node_of[r];
        most = n > most ? n : most;
    }
    return most < problem->nranks ? most : 1;
}

bool plan_is_over_nodes(const struct problem *problem)
{
    for (int r = 1; r < problem->nranks; r++)
        if (problem->node_of[r] != problem->node_of[0])
            return true;
    return false;
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
    static const char *const names[] = {
#define X(NAME, name, number) [FCC_OP_##NAME] = #name "_prepare",
        FCC_OPERATORS(X)
#undef X
    };

    return (unsigned)op < FCC_OP_COUNT ? names[op] : "unknown";
}

const char *op_name(enum fcc_op op)
{
    const struct op *row = op_get(op);

    return row ? row->name : "unknown";
}

int op_by_name(const char *name)
{
    for (int i = 0; i < FCC_OP_COUNT; i++)
        if (op_get((unsigned)i) && strcmp(op_name((enum fcc_op)i), name) == 0)
            return i;
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
