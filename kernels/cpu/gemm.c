/* SPDX-License-Identifier: MIT
 *
 * gemm.c - tiles of dense products: C = A . B, and y = x . w^T. Without B, C = A: rows are copied bit for bit, which a
 * product with the identity matrix would not do (infinities, NaNs, -0).
 *
 * The BLAS packs B for each product: with M = N = K = 1024, two products of half the rows take 1 to 5 % longer than one. A
 * workgroup that executes all slices of its rank gains nothing from separate slices within a node. So it computes slices of
 * the same columns together, up to some tens of milliseconds.
 */
#include "kernels/cpu/dense.h"
#include "kernels/cpu/view.h"
#include "kernels/plan/tensor.h"

/* A rank's factor from a row and a column on. */
static struct factor factor_at(const struct op_args *args, int factor, int64_t row, int64_t col)
{
    const struct tensor *t = &args->tensors[factor];

    return (struct factor){.at = tensor_at(t, row, col),
                           .ld = t->stride[0],
                           .dtype = t->dtype,
                           .scale = factor_scale_of(args, factor),
                           .row = row,
                           .col = col};
}

/* Multiplies `rows` rows, beginning with the slice's first one, in the slice's columns. */
static int rows_multiply(const struct run *run, const struct slice *s, uint32_t rows, bool b_transposed, const struct place *to,
                         struct workgroup *wg, struct error *e)
{
    const struct op_args *args = &run->args[run->rank];
    const struct tensor *a = &args->tensors[FCC_GEMM_A], *b = &args->tensors[FCC_GEMM_B];
    const bool sums = op_spec(run->plan->op)->exchange == EXCHANGE_REDUCE; /* the tile is a part of a sum, not the result */
    const bool gathers = op_spec(run->plan->op)->exchange == EXCHANGE_GATHER;
    size_t size = dtype_size(run->problem->dtype);
    struct tile_stages stages;

    if (!b->data) {
        rows_copy(to->at, to->row_bytes, tensor_at(a, s->row, s->col), (size_t)a->stride[0] * size, rows, s->cols * size);
        return 0;
    }
    struct product p = {
        .b_transposed = b_transposed,
        .batch_invariant = args->batch_invariant,
        .c_dtype = to->dtype,
        .adds = to->adds,
        .m = rows,
        .n = s->cols,
        .k = a->shape[1],
        .a = gathers ? gathered_factor(run, s) : factor_at(args, FCC_GEMM_A, s->row, 0),
        .b = b_transposed ? factor_at(args, FCC_GEMM_B, s->col, 0) : factor_at(args, FCC_GEMM_B, 0, s->col),
        .c = to->at,
        .ldc = (int64_t)(to->row_bytes / dtype_size(to->dtype)),
        .stages = sums ? NULL : tile_stages_at(run, s, &stages),
    };
    return dense_multiply(&p, wg, e);
}

int cpu_gemm(const struct run *run, const struct slice *s, const struct place *to, struct workgroup *wg, struct error *e)
{
    return rows_multiply(run, s, s->rows, false, to, wg, e);
}

int cpu_gemv(const struct run *run, const struct slice *s, const struct place *to, struct workgroup *wg, struct error *e)
{
    static_assert((int)FCC_GEMV_X == (int)FCC_GEMM_A && (int)FCC_GEMV_W == (int)FCC_GEMM_B, "the same tensors' places");

    return rows_multiply(run, s, s->rows, true, to, wg, e);
}

/* ---- several slices by one product ---- */

#define TOGETHER_FLOPS 4e9
enum { TOGETHER_SLICES = VIEW_PIECES };

uint32_t gemm_together(const struct run *run, uint32_t first)
{
    const struct slice *s = &run->plan->slices[first];
    double flops = 2.0 * s->rows * s->cols * (double)run->problem->rank_dim[DIM_K][run->rank], all = flops;
    const struct tensor *factors = run->args[run->rank].tensors;
    const bool converts = run->problem->dtype != FCC_F32 || factors[FCC_GEMM_A].dtype != FCC_F32 ||
                          (factors[FCC_GEMM_B].data && factors[FCC_GEMM_B].dtype != FCC_F32);
    uint32_t count = 1, left = run->plan->nslices - first;

    if (converts || (s->kind != SLICE_COMPUTE_PUT && s->kind != SLICE_COMPUTE))
        return 1; /* operands that are converted are processed block by block, whatever the rows */
    while (count < left && count < TOGETHER_SLICES && s[count].kind == s->kind && s[count].col == s->col &&
           s[count].cols == s->cols) {
        all += flops / s->rows * s[count].rows;
        if (all > TOGETHER_FLOPS)
            break;
        count++;
    }
    return count;
}

/* Multiplies slices with consecutive rows as one product. False: their destinations cannot be mapped side by side. */
static bool multiply_together(const struct run *run, const struct slice slices[], uint32_t count, struct workgroup *wg,
                              struct error *e, int *status)
{
    size_t row_bytes = (size_t)run->problem->dim[DIM_N] * dtype_size(run->problem->dtype), before = 0;
    struct view_piece pieces[TOGETHER_SLICES];
    struct place to = {0};
    uint32_t rows = 0;
    int npieces = 0;

    pieces[0] = (struct view_piece){0};
    for (uint32_t i = 0; i < count; i++) {
        to = cpu_put.place(run, &slices[i]);
        if (to.row_bytes != row_bytes)
            return false;
        before = slices[i].col * to.col_bytes; /* bytes of a row before the tile */
        unsigned char *at = to.at - before;
        size_t bytes = slices[i].rows * row_bytes;
        if (npieces > 0 && pieces[npieces - 1].at + pieces[npieces - 1].bytes == at)
            pieces[npieces - 1].bytes += bytes;
        else
            pieces[npieces++] = (struct view_piece){.at = at, .bytes = bytes};
        rows += slices[i].rows;
    }
    if (npieces > 1 && !wg->views)
        return false;
    unsigned char *all = npieces > 1 ? views_get(wg->views, pieces, npieces) : pieces[0].at;
    if (!all)
        return false;
    to.at = all + before;
    *status = rows_multiply(run, &slices[0], rows, false, &to, wg, e);
    if (npieces > 1)
        views_release(wg->views, all);
    return true;
}

/* Sorts a few slices by row. They are nearly sorted: two ascending sequences, because the rank's own rows come last. */
static void slices_sort(struct slice out[], const struct slice in[], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && out[at - 1].row > in[i].row; at--)
            out[at] = out[at - 1];
        out[at] = in[i];
    }
}

int gemm_slices(const struct run *run, uint32_t first, uint32_t count, struct workgroup *wg, struct error *e)
{
    struct slice slices[TOGETHER_SLICES];
    int status = 0;

    slices_sort(slices, &run->plan->slices[first], count);
    for (uint32_t i = 0, end; i < count && status == 0; i = end) {
        for (end = i + 1; end < count && slices[end].row == slices[end - 1].row + slices[end - 1].rows;)
            end++;
        if (multiply_together(run, slices + i, end - i, wg, e, &status))
            continue;
        for (uint32_t j = i; j < end && status == 0; j++)
            status = cpu_slice(run, &slices[j], wg, e);
    }
    return status;
}
