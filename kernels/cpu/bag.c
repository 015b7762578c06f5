/* SPDX-License-Identifier: MIT
 *
 * bag.c - computes a tile of pooled vectors. A bag is pooled in registers and stored once, at its destination.
 */
#include "kernels/cpu/pool.h"

int cpu_bag(const struct run *run, const struct slice *s, const struct place *to, struct workgroup *wg, struct error *e)
{
    const struct op_args *args = &run->args[run->rank];
    const struct tensor *tables = &args->tensors[FCC_EMB_TABLES], *indices = &args->tensors[FCC_EMB_INDICES];
    size_t count;
    const int64_t *table_rows = op_attr(args, FCC_ATTR_TABLE_ROWS, &count);
    int64_t rows_before = 0, first = s->row; /* rows of the tables before; the slice's first sample of all */
    struct pool p = {
        .row_bytes = (size_t)tables->stride[0] * dtype_size(tables->dtype),
        .dtype = tables->dtype,
        .dim = run->problem->dim[DIM_VECTOR],
        .indices = indices->data,
        .offsets = args->tensors[FCC_EMB_OFFSETS].data,
        .wide = indices->dtype == FCC_I64,
        .nnz = indices->shape[0],
        .weights = (const float *)(const void *)args->tensors[FCC_EMB_WEIGHTS].data,
        .mean = *op_attr(args, FCC_ATTR_POOLING, &count) == FCC_POOLING_MEAN,
    };

    for (int r = 0; r < s->dst; r++)
        first += run->problem->rank_dim[DIM_M][r];
    for (uint32_t t = 0; t < s->col; t++)
        rows_before += table_rows[t];
    for (uint32_t t = s->col; t < s->col + s->cols; t++) {
        p.rows = tables->data + (size_t)rows_before * p.row_bytes;
        p.nrows = table_rows[t];
        p.table = (int)t;
        p.first_bag = t * run->problem->dim[DIM_M];
        int status = pool_bags(&p, first, s->rows, to->at + (t - s->col) * to->col_bytes, to->row_bytes, wg, e);
        if (status)
            return status;
        rows_before += table_rows[t];
    }
    return 0;
}
