/* SPDX-License-Identifier: MIT
 *
 * step.c - compares all ranks' requests of a program's step, and says which elements are whose.
 */
#include "kernels/plan/compute/step.h"

#include <errno.h>

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/tensor.h"

static int64_t tile_of(const struct op_args *args)
{
    size_t count = 0;
    const int64_t *tile = op_attr(args, FCC_ATTR_TILE, &count);

    return count ? tile[0] : 0;
}

static int same_match(const struct op_args args[], int nranks, struct error *e)
{
    size_t first_count, count;
    const int64_t *first = op_attr(&args[0], FCC_ATTR_CODE, &first_count);

    for (int r = 1; r < nranks; r++) {
        const int64_t *words = op_attr(&args[r], FCC_ATTR_CODE, &count);
        if (code_match(words, count, r, first, first_count, e) ||
            match_value("chunk: elements of a tile", r, tile_of(&args[r]), tile_of(&args[0]), e))
            return e->status;
        for (int i = STEP_IN; i <= STEP_OUT; i++)
            if (args[r].tensors[i].data &&
                match_dtype(op_spec(args[0].op)->tensors[i].name, r, args[r].tensors[i].dtype, args[0].tensors[i].dtype, e))
                return e->status;
    }
    return 0;
}

/* Whether other ranks would read or store into a table's tensors. */
static bool tables_are_summed(const struct op_args args[], int nranks, const struct code *code)
{
    bool any = false;

    for (int r = 0; r < nranks; r++)
        any |= step_places(&args[r], code, STEP_IN) || step_places(&args[r], code, STEP_OUT);
    return any;
}

static int step_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct code code = step_code(&args[0]);

    if (match_schedule(args, nranks, e) || same_match(args, nranks, e))
        return e->status;
    if (code.head->kind == CODE_REDUCE && plan_is_over_nodes(out) && tables_are_summed(args, nranks, &code))
        return error_set(e, -EOPNOTSUPP, "tables: of what is added up, or of the result, on several nodes: allowed on one");
    out->dim[DIM_M] = 1;
    out->dim[DIM_ROOT] = code.head->kind;
    out->dim[DIM_REDUCTION] = FCC_SUM;
    out->dtype = code.head->kind == CODE_REDUCE ? args[0].tensors[STEP_IN].dtype : FCC_F32;
    if (code.head->kind == CODE_TEXT)
        return 0;
    out->dim[DIM_N] = code.head->rows * code.head->inner;
    out->dim[DIM_VECTOR] = code_sum_elements(&code);
    out->dim[DIM_FACTOR_BYTES] = tile_of(&args[0]);
    out->dim[DIM_GATHERED] = code_sums_tensors(&code) ? code.head->tensors : 0;
    out->dim[DIM_K] = code.head->kind == CODE_REDUCE ? args[0].tensors[STEP_OUT].dtype : 0;
    for (int r = 0; r < nranks; r++) {
        out->rank_dim[DIM_N][r] = step_begin_of(&code, nranks, r);
        out->rank_dim[DIM_K][r] = step_count_of(&code, nranks, r);
    }
    return 0;
}

/* A step reads and stores a few tensors besides what it adds up. */
static struct work step_work(const struct problem *problem, int rank)
{
    const double sum = step_reduces(problem) ? 2 * (double)problem->dim[DIM_N] * (double)dtype_size(problem->dtype) : 0;

    return (struct work){.bytes = sum + 4 * (double)sizeof(float) * (double)problem->rank_dim[DIM_K][rank],
                         .flops = 8 * (double)problem->rank_dim[DIM_K][rank]};
}

/* Tiles as they were asked for, but for no more of them than a plan has; otherwise as a collective's, by which `all_reduce` is cut. */
static void step_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    const int64_t unit = vector_unit(problem), asked = problem->dim[DIM_FACTOR_BYTES],
                  least = problem->dim[DIM_N] / (PLAN_MAX_SLICES / 2), tile = asked > least ? asked : least + 1;

    if (asked && !schedule->slice_cols)
        schedule->slice_cols = tile / unit > INT32_MAX ? INT32_MAX : (uint32_t)((tile + unit - 1) / unit);
    compute_vector.tile(problem, rank, schedule);
}

const struct compute_ops compute_step = {
    .words = {.dim = {[DIM_M] = {"rows", 1},
                      [DIM_N] = {"elements", VECTOR_MOST},
                      [DIM_K] = {"dtype of out", FCC_F8E5M2},
                      [DIM_VECTOR] = {"elements of a sum", VECTOR_MOST},
                      [DIM_FACTOR_BYTES] = {"elements of a tile", VECTOR_MOST},
                      [DIM_GATHERED] = {"tensors that are added up", PROGRAM_TABLE_MAX},
                      [DIM_ROOT] = {"kind", CODE_REDUCE},
                      [DIM_REDUCTION] = {"reduction", FCC_XOR}},
              .rank_dim = {[DIM_N] = {"begin", VECTOR_MOST}, [DIM_K] = {"elements", VECTOR_MOST}}},
    .check = step_check,
    .match = step_match,
    .work = step_work,
    .tile = step_tile,
};
