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

/* What only ranks of one node do, which read and store into each other's memory. A program's text says whether its steps do such: then it is cut anew. */
static int nodes_match(const struct op_args args[], int nranks, const struct code *code, struct error *e)
{
    if (code->head->kind == CODE_TEXT && code->head->result == CODE_TEXT_SHARES)
        return error_set(e, -EOPNOTSUPP,
                         "program: its steps, as they are cut for ranks of one node, on several: allowed on one");
    if (code_is_of_one_node(code))
        return error_set(e, -EOPNOTSUPP,
                         "program: a sum of all ranks without a result, a result without such a sum, or other sums beside "
                         "that, on several nodes: allowed on one");
    if (code_reduces(code) && tables_are_summed(args, nranks, code))
        return error_set(e, -EOPNOTSUPP, "tables: of what is added up, or of the result, on several nodes: allowed on one");
    return 0;
}

static int step_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct code code = step_code(&args[0]);

    if (match_schedule(args, nranks, e) || same_match(args, nranks, e))
        return e->status;
    if (plan_is_over_nodes(out) && nodes_match(args, nranks, &code, e))
        return e->status;
    out->dim[DIM_M] = 1;
    out->dim[DIM_ROOT] = code.head->kind;
    out->dim[DIM_REDUCTION] = FCC_SUM;
    out->dtype = code_reduces(&code) ? args[0].tensors[STEP_IN].dtype : FCC_F32;
    if (code.head->kind == CODE_TEXT)
        return 0;
    out->dim[DIM_N] = code.head->rows * code.head->inner;
    out->dim[DIM_VECTOR] = code_sum_elements(&code);
    out->dim[DIM_FACTOR_BYTES] = tile_of(&args[0]);
    out->dim[DIM_GATHERED] = code_sums_tensors(&code) ? code.head->tensors : 0;
    out->dim[DIM_K] = code_has_result(&code) ? args[0].tensors[STEP_OUT].dtype : 0;
    for (int r = 0; r < nranks; r++) {
        out->rank_dim[DIM_N][r] = step_begin_of(&code, nranks, r);
        out->rank_dim[DIM_K][r] = step_count_of(&code, nranks, r);
    }
    return 0;
}

/* A step reads and stores a few tensors besides what it adds up. */
static struct work step_work(const struct problem *problem, int rank)
{
    const double n = (double)problem->dim[DIM_N], sum = step_reduces(problem) ? n * (double)dtype_size(problem->dtype) : 0,
                 result = step_has_result(problem) ? n * (double)dtype_size((enum fcc_dtype)problem->dim[DIM_K]) : 0;

    return (struct work){.bytes = sum + result + 4 * (double)sizeof(float) * (double)problem->rank_dim[DIM_K][rank],
                         .flops = 8 * (double)problem->rank_dim[DIM_K][rank]};
}

/* On GPUs: tiles of whole sums. Of the two numbers of these that are about as many elements, that with which a workgroup has less to do. */
static void sums_tile(const struct problem *problem, struct schedule *schedule)
{
    const int64_t sum = problem->dim[DIM_VECTOR] / vector_unit(problem), n = schedule->slice_cols;
    int64_t own = 0, best = 0, least = INT64_MAX;

    if (schedule->target != PLAN_GPU || sum < 1 || sum > INT32_MAX / 2 || problem->dim[DIM_GATHERED])
        return;
    for (int r = 0; r < problem->nranks; r++)
        own = problem->rank_dim[DIM_K][r] > own ? problem->rank_dim[DIM_K][r] : own;
    const int64_t sums = (own + problem->dim[DIM_VECTOR] - 1) / problem->dim[DIM_VECTOR];
    for (int64_t each = n / sum + !(n / sum); each <= n / sum + 1; each++) {
        const int64_t tiles = (sums + each - 1) / each, turns = (tiles + VECTOR_GPU_TILES - 1) / VECTOR_GPU_TILES;
        if (turns * each < least) {
            least = turns * each;
            best = each;
        }
    }
    schedule->slice_cols = (uint32_t)(best * sum);
}

/* Tiles as they were asked for, but for no more of them than a plan has; otherwise as a collective's, by which `all_reduce` is cut. */
static void step_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    const int64_t unit = vector_unit(problem), asked = problem->dim[DIM_FACTOR_BYTES],
                  least = problem->dim[DIM_N] / (PLAN_MAX_SLICES / 2), tile = asked > least ? asked : least + 1;

    if (asked && !schedule->slice_cols)
        schedule->slice_cols = tile / unit > INT32_MAX ? INT32_MAX : (uint32_t)((tile + unit - 1) / unit);
    compute_vector.tile(problem, rank, schedule);
    if (!asked)
        sums_tile(problem, schedule);
}

const struct compute_ops compute_step = {
    .words = {.dim = {[DIM_M] = {"rows", 1},
                      [DIM_N] = {"elements", VECTOR_MOST},
                      [DIM_K] = {"dtype of out", FCC_F8E5M2},
                      [DIM_VECTOR] = {"elements of a sum", VECTOR_MOST},
                      [DIM_FACTOR_BYTES] = {"elements of a tile", VECTOR_MOST},
                      [DIM_GATHERED] = {"tensors that are added up", PROGRAM_TABLE_MAX},
                      [DIM_ROOT] = {"kind", CODE_GATHER},
                      [DIM_REDUCTION] = {"reduction", FCC_XOR}},
              .rank_dim = {[DIM_N] = {"begin", VECTOR_MOST}, [DIM_K] = {"elements", VECTOR_MOST}}},
    .check = step_check,
    .match = step_match,
    .work = step_work,
    .tile = step_tile,
};
