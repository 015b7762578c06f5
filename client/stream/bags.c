/* SPDX-License-Identifier: MIT
 *
 * bags.c - embedding_all_to_all through rings: what a call has, and what ranks hear of runs that were given up.
 */
#include "client/stream/bags.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "client/core/request.h"
#include "kernels/plan/compute/bag.h"
#include "kernels/plan/tensor.h"

int bags_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *out = &args->tensors[FCC_EMB_OUT];
    size_t ntables;
    int status = bag_check(args, nranks, rank, e);

    (void)op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    if (status)
        return status;
    if (out->shape[2] > RINGS_DIM_MOST)
        return error_set(e, -EOPNOTSUPP,
                         "out: shape[2] %" PRId64 ": allowed where this process launches the operator are 1 to %u",
                         out->shape[2], RINGS_DIM_MOST);
    if ((int64_t)ntables * out->shape[2] > INT32_MAX)
        return error_set(e, -EOPNOTSUPP,
                         "num_tables: %zu of %" PRId64
                         " columns: allowed where this process launches the operator are %d columns together",
                         ntables, out->shape[2], INT32_MAX);
    return 0;
}

static uint64_t address_of(const struct tensor *t)
{
    return (uint64_t)(uintptr_t)t->data;
}

void bags_fill(const struct op_args *args, int nranks, struct rings_product *out)
{
    const struct tensor *tables = &args->tensors[FCC_EMB_TABLES], *indices = &args->tensors[FCC_EMB_INDICES],
                        *result = &args->tensors[FCC_EMB_OUT];
    size_t ntables;
    const int64_t *table_rows = op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    const bool means = bag_number(args, FCC_ATTR_POOLING) == FCC_POOLING_MEAN;

    *out = (struct rings_product){
        .op = args->op,
        .dtype = result->dtype,
        .puts = 1,
        .m = bag_number(args, FCC_ATTR_BATCH),
        .n = (int64_t)ntables * result->shape[2],
        .w = address_of(tables),
        .w_stride = tables->data ? tables->stride[0] : 0,
        .y = address_of(result),
        .y_stride = result->stride[0],
        .room = result->shape[0],
        .bags = {.table_rows = table_rows,
                 .ntables = (uint32_t)ntables,
                 .flags = (indices->dtype == FCC_I64 ? GPU_INDEX_WIDE : 0u) | (means ? GPU_POOL_MEAN : 0u),
                 .dim = result->shape[2],
                 .nnz = indices->data ? indices->shape[0] : 0,
                 .table_stride = result->stride[1],
                 .tables = result->shape[1],
                 .indices = address_of(indices),
                 .offsets = address_of(&args->tensors[FCC_EMB_OFFSETS]),
                 .weights = address_of(&args->tensors[FCC_EMB_WEIGHTS])}};
    bag_split(args, nranks, out->rows);
    for (int r = 0; r < nranks; r++)
        out->expected[r] = -1;
}

/* ---- errors of runs, in the worker's words ---- */

void bags_other_text(const struct rings_failure *f, char text[FCC_TEXT_MAX])
{
    const uint32_t theirs = rings_bags_dim(f->theirs.whole), mine = rings_bags_dim(f->mine.whole);

    if (theirs != mine)
        (void)snprintf(text, FCC_TEXT_MAX, "out: shape[2]: rank %u has %u, rank %u has %u", f->rank, theirs, f->by, mine);
    else
        (void)snprintf(text, FCC_TEXT_MAX, "batch: rank %u has %" PRIu64 ", rank %u has %" PRIu64, f->rank,
                       f->theirs.whole >> RINGS_DIM_BITS, f->by, f->mine.whole >> RINGS_DIM_BITS);
}

static int data_text(const struct rings_failure *f, char text[FCC_TEXT_MAX])
{
    const uint32_t kind = (uint32_t)f->data[0], table = (uint32_t)(f->data[0] >> 32);
    int64_t n[RINGS_DATA_WORDS];
    struct error e = {.status = 0};

    for (int i = 0; i < RINGS_DATA_WORDS; i++)
        n[i] = (int64_t)f->data[i];
    if (kind == GPU_FAILURE_INDEX)
        (void)bag_index_error(&e, n[1], n[2], (int)table, n[3], n[4], n[6] + 1);
    else
        (void)bag_offset_error(&e, n[1], n[2], (int)table, kind == GPU_FAILURE_OFFSET_END, n[3], n[5], n[6]);
    (void)snprintf(text, FCC_TEXT_MAX, "%s", e.text);
    return e.status;
}

bool bags_failure_text(const struct rings_failure *f, char text[FCC_TEXT_MAX], int *status)
{
    *status = -EINVAL;
    switch (f->why) {
    case RINGS_SPLIT:
        (void)snprintf(text, FCC_TEXT_MAX, "batch_split[%u]: rank %u has %" PRIu64 ", rank %u has %" PRIu64, f->by, f->rank,
                       f->theirs.own >> RINGS_TABLES_BITS, f->by, f->mine.own >> RINGS_TABLES_BITS);
        return true;
    case RINGS_ROOM:
        (void)snprintf(text, FCC_TEXT_MAX, "out: rank %u has shape[1] %" PRIu64 ", all ranks together have %" PRIu64 " tables",
                       f->by, f->mine.own, f->theirs.own);
        return true;
    case RINGS_DATA:
        *status = data_text(f, text);
        return true;
    default:
        return false;
    }
}
