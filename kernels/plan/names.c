/* SPDX-License-Identifier: MIT
 *
 * names.c - the names of operators, dtypes, schedules, routes and slices, and how many bytes elements and tensors take.
 */
#include <errno.h>
#include <string.h>

#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"
#include "proto/proto.h"

static const char *const slice_kinds[] = {
    [SLICE_COMPUTE_PUT] = "compute+put", [SLICE_COMPUTE] = "compute", [SLICE_PUT] = "put",
    [SLICE_REDUCE] = "reduce",           [SLICE_WAIT] = "wait",       [SLICE_REDUCE_NODE] = "reduce in node",
    [SLICE_FORWARD] = "forward",         [SLICE_TAKE] = "take",       [SLICE_ROWS] = "rows",
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
    [FCC_F32] = {"f32", 4},       [FCC_F16] = {"f16", 2},       [FCC_BF16] = {"bf16", 2}, [FCC_I32] = {"i32", 4},
    [FCC_I64] = {"i64", 8},       [FCC_U8] = {"u8", 1},         [FCC_I8] = {"i8", 1},     [FCC_F64] = {"f64", 8},
    [FCC_F8E4M3] = {"f8e4m3", 1}, [FCC_F8E5M2] = {"f8e5m2", 1},
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

const char *order_name(bool any_order)
{
    return any_order ? "any order" : "rank order";
}

const char *invariance_name(bool batch_invariant)
{
    return batch_invariant ? "batch invariant" : "no batch invariance";
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
        if (!op_spec(i)->inside && strcmp(op_spec(i)->name, name) == 0)
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

uint64_t wire_tensor_bytes(const struct fcc_wire_tensor *t)
{
    uint64_t last = 0, step, bytes, size = dtype_size((enum fcc_dtype)t->dtype);

    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] <= 0)
            return t->shape[d] ? UINT64_MAX : 0;
        if (__builtin_mul_overflow((uint64_t)t->shape[d] - 1, (uint64_t)t->stride[d], &step) ||
            __builtin_add_overflow(last, step, &last))
            return UINT64_MAX;
    }
    return __builtin_mul_overflow(last, size, &last) || __builtin_add_overflow(last, size, &bytes) ? UINT64_MAX : bytes;
}
