/* SPDX-License-Identifier: MIT
 *
 * tensor.c - the checks that the operators have in common.
 */
#include "kernels/plan/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

int args_check(const struct op_args *args, struct error *e)
{
    const struct op_spec *spec = op_spec(args->op);
    /* A set of the operator's attributes, a bit each. */
    unsigned known = (spec->epilogue ? 1u << FCC_ATTR_EPILOGUE : 0) | (spec->inside ? 1u << FCC_ATTR_LIBRARY : 0);

    if (!op_may_have_tensors(spec, args->ntensors))
        return error_set(e, -EINVAL, "tensors: %d: allowed is %d", args->ntensors, spec->ntensors);
    if ((unsigned)args->schedule > FCC_SCHEDULE_COMM_ONLY)
        return error_set(e, -EINVAL, "schedule: %u: allowed are %d to %d", (unsigned)args->schedule, FCC_SCHEDULE_AUTO,
                         FCC_SCHEDULE_COMM_ONLY);
    for (int i = 0; i < spec->nattrs; i++)
        known |= 1u << spec->attrs[i].key;
    for (int key = FCC_ATTR_TABLE_ROWS; key < FCC_ATTR_END && args->nattrs; key++) {
        size_t count;
        if (!(known & (1u << key)) && op_attr(args, (enum fcc_attr)key, &count))
            return error_set(e, -EINVAL, "attributes: key %d: not one of this operator's", key);
    }
    return 0;
}

int tensor_check_dtypes(const struct tensor *t, const char *name, unsigned dtypes, struct error *e)
{
    char allowed[96] = "";
    size_t used = 0;

    if ((unsigned)t->dtype <= FCC_F8E5M2 && dtypes & (1u << t->dtype))
        return 0;
    for (unsigned i = 0; i <= FCC_F8E5M2; i++)
        if (dtypes & (1u << i))
            used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s%s", used ? ", " : "",
                                     dtype_name((enum fcc_dtype)i));
    return error_set(e, -EINVAL, "%s: dtype %s: allowed: %s", name, dtype_name(t->dtype), allowed);
}

int tensor_check(const struct tensor *t, const char *name, unsigned dtypes, int ndim, struct error *e)
{
    if (!t->data)
        return error_set(e, -EINVAL, "%s: absent: it must be there", name);
    if (tensor_check_dtypes(t, name, dtypes, e))
        return e->status;
    if (t->ndim != ndim)
        return error_set(e, -EINVAL, "%s: %d dimensions: allowed is %d", name, t->ndim, ndim);
    for (int i = 0; i < ndim; i++) {
        if (t->shape[i] < 0 || t->shape[i] > INT32_MAX)
            return error_set(e, -EINVAL, "%s: shape[%d] %" PRId64 ": allowed are 0 to %d", name, i, t->shape[i], INT32_MAX);
        if (t->shape[i] > 1 && (t->stride[i] < 0 || t->stride[i] > INT32_MAX))
            return error_set(e, -EINVAL, "%s: stride[%d] %" PRId64 ": allowed are 0 to %d", name, i, t->stride[i], INT32_MAX);
    }
    if (t->shape[ndim - 1] > 1 && t->stride[ndim - 1] != 1)
        return error_set(e, -EINVAL, "%s: stride[%d] %" PRId64 ": allowed is 1", name, ndim - 1, t->stride[ndim - 1]);
    return 0;
}

/* Whether elements of a tensor share memory. Checked from the smallest stride to the largest: each must step over all that
 * the smaller ones reach. */
static bool tensor_overlaps(const struct tensor *t)
{
    int order[FCC_MAX_DIMS], n = 0;
    int64_t reach = 1; /* does not overflow: a stride, below 2^31, is at least the reach of the dimensions before */

    for (int i = 0; i < t->ndim; i++) {
        int at = n;
        if (t->shape[i] == 0)
            return false;
        if (t->shape[i] == 1)
            continue;
        for (; at > 0 && t->stride[order[at - 1]] > t->stride[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        n++;
    }
    for (int i = 0; i < n; i++) {
        int64_t stride = t->stride[order[i]];
        if (stride < reach)
            return true;
        reach += (t->shape[order[i]] - 1) * stride;
    }
    return false;
}

/* `n` blocks of `bytes` each. The first is at `at`; each next one is `pitch` further. */
struct blocks {
    int64_t at, bytes, pitch, n; /* n 0: there are no blocks */
};

static struct blocks blocks_of(const struct tensor *t)
{
    struct blocks b = {.at = (int64_t)(uintptr_t)t->data, .n = 1};
    int64_t size = (int64_t)dtype_size(t->dtype), last = 0;
    int outer = -1;

    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 0)
            return (struct blocks){.n = 0};
        if (t->shape[d] > 1 && t->stride[d] > 0 && (outer < 0 || t->stride[d] > t->stride[outer]))
            outer = d;
    }
    for (int d = 0; d < t->ndim; d++)
        if (d != outer)
            last += (t->shape[d] - 1) * t->stride[d];
    if (outer >= 0 && t->stride[outer] > last + 1) {
        b.n = t->shape[outer];
        b.pitch = t->stride[outer] * size;
    } else if (outer >= 0) { /* the blocks have no gaps: one block */
        last += (t->shape[outer] - 1) * t->stride[outer];
    }
    b.bytes = (last + 1) * size;
    return b;
}

static int64_t blocks_extent(const struct blocks *b)
{
    return (b->n - 1) * b->pitch + b->bytes;
}

static int64_t divide_down(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* The greatest common divisor of two positive numbers. */
static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a > 0 ? a : 1;
}

/* Block i of a and block j of b overlap if i * a.pitch - j * b.pitch is strictly between low and high. The difference is a
 * multiple of the pitches' greatest common divisor. If both pitches are equal, it is the pitch times any difference of
 * block numbers. */
bool tensors_overlap(const struct tensor *s, const struct tensor *t)
{
    struct blocks a = blocks_of(s), b = blocks_of(t);
    int64_t low, high, step, least, most;

    if (!a.n || !b.n || a.at + blocks_extent(&a) <= b.at || b.at + blocks_extent(&b) <= a.at)
        return false;
    if (a.n == 1 && b.n == 1)
        return true;
    a.pitch = a.n == 1 ? b.pitch : a.pitch;
    b.pitch = b.n == 1 ? a.pitch : b.pitch;
    low = b.at - a.at - a.bytes;
    high = b.at - a.at + b.bytes;
    step = divisor(a.pitch, b.pitch);
    least = divide_down(low, step) + 1;
    most = divide_down(high - 1, step);
    if (a.pitch == b.pitch) {
        least = least < 1 - b.n ? 1 - b.n : least;
        most = most > a.n - 1 ? a.n - 1 : most;
    }
    return least <= most;
}

int64_t tensor_reach(const struct tensor *t)
{
    struct blocks b = blocks_of(t);

    return b.n ? blocks_extent(&b) : 0;
}

int tensor_check_result(const struct tensor *t, const char *name, struct error *e)
{
    if (!t->symmetric)
        return error_set(
            e, -EINVAL,
            "%s: in a buffer that takes no results of this communicator: allowed are its symmetric and result buffers", name);
    if (tensor_overlaps(t))
        return error_set(e, -EINVAL, "%s: stride[0] %" PRId64 "%s: elements overlap: allowed are strides beyond the inner rows",
                         name, t->stride[0], t->ndim > 2 ? " and the next ones" : "");
    return 0;
}

int tensor_check_shape(const struct tensor *t, const char *name, int dim, int64_t expected, const char *what, struct error *e)
{
    if (t->shape[dim] != expected)
        return error_set(e, -EINVAL, "%s: shape[%d] %" PRId64 ": allowed is %" PRId64 " (%s)", name, dim, t->shape[dim],
                         expected, what);
    return 0;
}

int tensor_check_dtype(const struct tensor *t, const char *name, enum fcc_dtype expected, const char *what, struct error *e)
{
    if (t->dtype != expected)
        return error_set(e, -EINVAL, "%s: dtype %s: allowed is %s (%s)", name, dtype_name(t->dtype), dtype_name(expected),
                         what);
    return 0;
}

unsigned char *tensor_at(const struct tensor *t, int64_t i, int64_t j)
{
    return t->data + (i * t->stride[0] + j) * (int64_t)dtype_size(t->dtype);
}

int counts_check(const int64_t *counts, size_t count, size_t expected, int64_t total, const char *name, const char *what,
                 struct error *e)
{
    int64_t sum = 0;

    if (count != expected)
        return error_set(e, -EINVAL, "%s: %zu values: allowed is %zu", name, count, expected);
    for (size_t i = 0; i < count; i++) {
        if (counts[i] < 0 || counts[i] > total - sum)
            return error_set(e, -EINVAL,
                             "%s[%zu]: %" PRId64 ": allowed are 0 to %" PRId64 ", for all to add up to %s, %" PRId64, name, i,
                             counts[i], total - sum, what, total);
        sum += counts[i];
    }
    if (sum != total)
        return error_set(e, -EINVAL, "%s: sum %" PRId64 ": allowed is %" PRId64 " (%s)", name, sum, total, what);
    return 0;
}

int match_value(const char *what, int rank, int64_t value, int64_t value0, struct error *e)
{
    if (value != value0)
        return error_set(e, -EINVAL, "%s: rank %d has %" PRId64 ", rank 0 has %" PRId64, what, rank, value, value0);
    return 0;
}

int match_dtype(const char *name, int rank, enum fcc_dtype dtype, enum fcc_dtype dtype0, struct error *e)
{
    if (dtype != dtype0)
        return error_set(e, -EINVAL, "%s: dtype: rank %d has %s, rank 0 has %s", name, rank, dtype_name(dtype),
                         dtype_name(dtype0));
    return 0;
}

int schedule_read(uint32_t schedule, struct op_args *args, struct error *e)
{
    const uint32_t route = schedule & FCC_SCHEDULE_ROUTES, options = FCC_SCHEDULE_BATCH_INVARIANT | FCC_SCHEDULE_ANY_ORDER,
                   kind = schedule & ~(FCC_SCHEDULE_ROUTES | options);
    const bool wrong = kind > FCC_SCHEDULE_COMM_ONLY || route == FCC_SCHEDULE_ROUTES;

    args->batch_invariant = schedule & FCC_SCHEDULE_BATCH_INVARIANT;
    args->any_order = schedule & FCC_SCHEDULE_ANY_ORDER;
    args->schedule = wrong ? FCC_SCHEDULE_AUTO : (enum fcc_schedule_kind)kind;
    args->route = route == FCC_SCHEDULE_HIERARCHICAL ? PLAN_HIERARCHICAL
                  : route == FCC_SCHEDULE_FLAT       ? PLAN_FLAT
                  : args->batch_invariant            ? PLAN_FLAT /* the rule looks at the number of rows */
                                                     : PLAN_ROUTE_RULE;
    if ((schedule & options) == options)
        return error_set(e, -EINVAL, "schedule: %u: batch invariant (%d) and in any order (%d): allowed is one of the two",
                         schedule, FCC_SCHEDULE_BATCH_INVARIANT, FCC_SCHEDULE_ANY_ORDER);
    return wrong ? error_set(e, -EINVAL,
                             "schedule: %u: allowed are %d to %d, with them flat (%d) or hierarchical (%d), and batch "
                             "invariant (%d) or in any order (%d)",
                             schedule, FCC_SCHEDULE_AUTO, FCC_SCHEDULE_COMM_ONLY, FCC_SCHEDULE_FLAT, FCC_SCHEDULE_HIERARCHICAL,
                             FCC_SCHEDULE_BATCH_INVARIANT, FCC_SCHEDULE_ANY_ORDER)
                 : 0;
}

int match_schedules(const struct op_args *args, int rank, const struct op_args *args0, struct error *e)
{
    const char *has = NULL, *has0 = NULL;

    if (args->schedule != args0->schedule) {
        has = schedule_name(args->schedule);
        has0 = schedule_name(args0->schedule);
    } else if (args->batch_invariant != args0->batch_invariant) {
        has = invariance_name(args->batch_invariant);
        has0 = invariance_name(args0->batch_invariant);
    } else if (args->any_order != args0->any_order) {
        has = order_name(args->any_order);
        has0 = order_name(args0->any_order);
    } else if (args->route != args0->route) {
        has = route_name(args->route);
        has0 = route_name(args0->route);
    }
    return has ? error_set(e, -EINVAL, "schedule: rank %d has %s, rank 0 has %s", rank, has, has0) : 0;
}

int match_schedule(const struct op_args args[], int nranks, struct error *e)
{
    int status = 0;

    for (int r = 1; r < nranks && !status; r++)
        status = match_schedules(&args[r], r, &args[0], e);
    return status;
}
