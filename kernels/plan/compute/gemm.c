/* SPDX-License-Identifier: MIT
 *
 * gemm.c - C_r = A_r . B_r, whose rows are sent to the ranks. Without B_r, C_r = A_r: its rows are copied, bit for bit, which a
 * product with the identity would not do (infinities, NaNs, -0).
 *
 * The phases are those of kernels/plan/exchange/put.h. In compute+put the BLAS writes a tile of C straight into the destination's c (f32), or
 * the rounding does (f16, bf16). Tiles of a destination's c come from one source each and do not overlap, so the order of
 * stores does not matter; the flag of a source is raised (release) after its last tile and awaited (acquire) by the receiver.
 *
 * Staging, unless fused: all of C_r, dense [M_r][N], dtype of a. Fused, too, on a cpu if it is small: for tiles that are computed before
 * the destination has come.
 */
#include <errno.h>

#include "kernels/plan/exchange/put.h"
#include "kernels/plan/table.h"
#include "kernels/plan/tensor.h"

/* Of results that have room in staging memory, too, to be computed early. Those of a small operator: it works on no more in all. */
#define EARLY_BYTES (1u << 20)
#define GPU_TILES_WANTED 120
#define GPU_ROWS_TOGETHER 128 /* at most, of one tile */
#define GPU_FLAGS_MOST 256    /* for which a workgroup can wait as fast as for one: a thread for each */

static const char *const names[] = {[FCC_GEMM_A] = "a", [FCC_GEMM_B] = "b", [FCC_GEMM_C] = "c"};

/* The rows for each destination. With no counts given, all the same (check() saw that it works out). */
static void send_rows_get(const struct op_args *args, int nranks, int64_t rows[])
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_ROWS, &count);

    for (int p = 0; p < nranks; p++)
        rows[p] = given ? given[p] : args->tensors[FCC_GEMM_A].shape[0] / nranks;
}

static int send_rows_check(const struct op_args *args, int nranks, struct error *e)
{
    int64_t m = args->tensors[FCC_GEMM_A].shape[0];
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_ROWS, &count);

    if (given)
        return counts_check(given, count, (size_t)nranks, m, "send_rows", "a's shape[0], M", e);
    if (m % nranks)
        return error_set(e, -EINVAL, "a: shape[0] %lld: without send_rows, allowed are multiples of the number of ranks, %d",
                         (long long)m, nranks);
    return 0;
}

static int gemm_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *a = &args->tensors[FCC_GEMM_A], *b = &args->tensors[FCC_GEMM_B], *c = &args->tensors[FCC_GEMM_C];
    int status = args_check(args, FCC_GEMM_TENSORS, 1u << FCC_ATTR_SEND_ROWS, e);

    (void)rank;
    for (int i = 0; i < FCC_GEMM_TENSORS && status == 0; i++)
        if (i != FCC_GEMM_B || b->data)
            status = tensor_check(&args->tensors[i], names[i], DTYPES_FLOAT, 2, e);
    if (status == 0 && b->data)
        status = tensor_check_dtype(b, "b", a->dtype, "a's", e);
    if (status == 0 && b->data)
        status = tensor_check_shape(b, "b", 0, a->shape[1], "a's shape[1], K", e);
    if (status == 0)
        status = tensor_check_dtype(c, "c", a->dtype, "a's", e);
    if (status == 0 && b->data)
        status = tensor_check_shape(c, "c", 1, b->shape[1], "b's shape[1], N", e);
    else if (status == 0)
        status = tensor_check_shape(c, "c", 1, a->shape[1], "a's shape[1], as b is absent", e);
    if (status == 0)
        status = tensor_check_result(c, "c", e);
    if (status == 0)
        status = send_rows_check(args, nranks, e);
    return status;
}

static int64_t rows_received(const struct problem *problem, int rank)
{
    int64_t sum = 0;

    for (int r = 0; r < problem->nranks; r++)
        sum += problem->counts[r][rank];
    return sum;
}

static int gemm_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *c0 = &args[0].tensors[FCC_GEMM_C];
    int status = match_schedule(args, nranks, e);

    for (int r = 0; r < nranks && status == 0; r++) {
        status = match_dtype("c", r, args[r].tensors[FCC_GEMM_C].dtype, c0->dtype, e);
        if (status == 0)
            status = match_value("c: shape[1]", r, args[r].tensors[FCC_GEMM_C].shape[1], c0->shape[1], e);
    }
    if (status)
        return status;
    out->dtype = c0->dtype;
    out->dim[DIM_N] = c0->shape[1];
    for (int r = 0; r < nranks; r++) {
        out->rank_dim[DIM_K][r] = args[r].tensors[FCC_GEMM_A].shape[1];
        send_rows_get(&args[r], nranks, out->counts[r]);
    }
    for (int r = 0; r < nranks; r++) {
        int64_t received = rows_received(out, r), room = args[r].tensors[FCC_GEMM_C].shape[0];
        if (received > room)
            return error_set(e, -EINVAL, "c: rank %d receives %lld rows, its c has %lld", r, (long long)received,
                             (long long)room);
    }
    return 0;
}

static int64_t rows_of(const struct problem *problem, int rank)
{
    int64_t sum = 0;

    for (int p = 0; p < problem->nranks; p++)
        sum += problem->counts[rank][p];
    return sum;
}

static int64_t tiles_apart(const struct problem *problem, int rank, int64_t rows, int64_t cols)
{
    int64_t high = 0;

    for (int p = 0; p < problem->nranks; p++)
        high += (problem->counts[rank][p] + rows - 1) / rows;
    return high * ((problem->dim[DIM_N] + cols - 1) / cols);
}

/* The BLAS packs b anew for each slice: with M = N = K = 1024 it loses 2 to 4 % with blocks of 256 rows, 4 to 8 % with 128,
 * and more with less. Within a node a put costs nothing beside the store, so long slices are better, as long as there are two for
 * each of several workgroups, who are not all as quick: the longer side is halved until there are. Between nodes a put takes as long as
 * computing it, or longer: nothing is under way before the first slice is done, so that is to be soon. Wide results are cut so that a
 * slice stays below some tens of milliseconds: who waits for a workgroup to leave waits for its slice.
 */
static void choose_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    enum { LEAST = 64 };
    int64_t half = (rows_of(problem, rank) / 2 + 15) / 16 * 16, most = 512, n = problem->dim[DIM_N];
    int64_t wanted = schedule->workgroups > 1 ? 2 * (int64_t)schedule->workgroups : 0;

    for (int r = 0; r < problem->nranks && schedule->kind == FCC_SCHEDULE_FUSED; r++)
        most = problem->node_of[r] != problem->node_of[rank] ? 128 : most;
    int64_t rows = half < LEAST ? LEAST : half > most ? most : half, cols = n > 6144 ? 4096 : n > 0 ? n : 1;
    while (tiles_apart(problem, rank, rows, cols) < wanted && (rows >= 2 * LEAST || cols >= 2 * LEAST)) {
        int64_t *longer = cols > rows ? &cols : &rows;
        *longer = (*longer / 2 + 15) / 16 * 16;
    }
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

/* The most rows that go to one destination. */
static int64_t longest_part(const struct problem *problem, int rank)
{
    int64_t longest = 0;

    for (int p = 0; p < problem->nranks; p++)
        longest = problem->counts[rank][p] > longest ? problem->counts[rank][p] : longest;
    return longest;
}

/* The tiles of all destinations. Where none gets more rows than a tile has, several share one that has room for them. */
static int64_t tiles_of(const struct problem *problem, int rank, int64_t rows, int64_t cols)
{
    bool shared = longest_part(problem, rank) <= rows;
    int64_t high = 0, left = 0; /* rows that the last tile has room for */

    for (int p = 0; p < problem->nranks; p++) {
        int64_t part = problem->counts[rank][p];
        bool joins = shared && part <= left;
        high += joins ? 0 : (part + rows - 1) / rows;
        left = joins ? left - part : part < GPU_ROWS_TOGETHER ? GPU_ROWS_TOGETHER - part : 0;
    }
    return high * ((problem->dim[DIM_N] + cols - 1) / cols);
}

/* A GPU's slice is one tile of its matrix units, so that the first ones leave early: 128 rows of 256 columns of f16 and bf16, or of
 * 128 of f32; 64 rows where no destination gets more. Narrower where there would be fewer tiles than a GPU has multiprocessors,
 * some 130; where all rows make one of 64, as narrow as can be: that is bound by reading b. */
static void choose_gpu_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    bool f32 = problem->dtype == FCC_F32, one = rows_of(problem, rank) <= 64;
    int64_t rows = longest_part(problem, rank) <= 64 && !f32 ? 64 : 128, cols = f32 ? 128 : 256, least = f32 || !one ? 128 : 64;

    while (cols > least && tiles_of(problem, rank, rows, cols) < GPU_TILES_WANTED)
        cols /= 2;
    schedule->slice_rows = schedule->slice_rows ? schedule->slice_rows : (uint32_t)rows;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

/* Whether no destination gets more rows than a tile has: a GPU then multiplies the same columns for several of them together, or
 * side by side. */
static bool are_short(const struct problem *problem, int rank, const struct schedule *schedule)
{
    return schedule->target == PLAN_GPU && longest_part(problem, rank) <= schedule->slice_rows;
}

/* All ranks' tiles, if on GPUs of one node they are so few that each can have its flag: `asked` are the sizes that were asked for. On
 * GPUs it takes 1.4 us to find the last of a destination's tiles, by a counter in their memory and a second fence. */
static bool tiles_get(const struct problem *problem, const struct schedule *asked, struct all_to_all_tiles *out)
{
    uint64_t all[FCC_MAX_RANKS] = {0};

    if (asked->kind != FCC_SCHEDULE_FUSED || asked->target != PLAN_GPU || plan_is_over_nodes(problem))
        return false;
    for (int r = 0; r < problem->nranks; r++) {
        struct schedule s = *asked;
        choose_gpu_tile(problem, r, &s);
        uint64_t wide = ((uint64_t)problem->dim[DIM_N] + s.slice_cols - 1) / s.slice_cols;
        for (int p = 0; p < problem->nranks; p++) {
            uint64_t count = ((uint64_t)problem->counts[r][p] + s.slice_rows - 1) / s.slice_rows * wide;
            if ((all[p] += count) > GPU_FLAGS_MOST)
                return false;
            out->count[r][p] = (uint32_t)count;
        }
    }
    return true;
}

static void gemm_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    struct rectangle parts[FCC_MAX_RANKS];
    struct all_to_all_tiles tiles;
    bool from[FCC_MAX_RANKS], few = tiles_get(problem, schedule, &tiles);
    int64_t row = 0;

    (schedule->target == PLAN_GPU ? choose_gpu_tile : choose_tile)(problem, rank, schedule);
    for (int p = 0; p < problem->nranks; p++) {
        int64_t dst_row = 0, rows = problem->counts[rank][p];
        for (int r = 0; r < rank; r++)
            dst_row += problem->counts[r][p];
        parts[p] = (struct rectangle){
            .row = (uint32_t)row, .rows = (uint32_t)rows, .cols = (uint32_t)problem->dim[DIM_N], .dst_row = (uint32_t)dst_row};
        row += rows;
        from[p] = problem->counts[p][rank] > 0 && problem->dim[DIM_N] > 0;
    }
    uint64_t bytes = (uint64_t)row * (uint64_t)problem->dim[DIM_N] * dtype_size(problem->dtype);
    if (schedule->kind != FCC_SCHEDULE_FUSED ||
        (schedule->target == PLAN_CPU && !plan_is_over_nodes(problem) && bytes <= EARLY_BYTES))
        b->plan->staging_bytes = bytes;
    if (schedule->kind == FCC_SCHEDULE_SEQUENTIAL || schedule->kind == FCC_SCHEDULE_COMPUTE_ONLY)
        b->plan->start_level = LEVEL_PUT;
    all_to_all_plan(problem, rank, schedule, parts, dtype_size(problem->dtype), from,
                    are_short(problem, rank, schedule) ? ALL_TO_ALL_TOGETHER
                    : schedule->target == PLAN_GPU     ? ALL_TO_ALL_IN_BANDS
                                                       : ALL_TO_ALL_IN_PARTS,
                    few ? &tiles : NULL, b);
}

static struct work gemm_work(const struct problem *problem, int rank)
{
    double m = (double)rows_of(problem, rank), n = (double)problem->dim[DIM_N], k = (double)problem->rank_dim[DIM_K][rank];

    return (struct work){.bytes = (m * k + k * n + m * n) * (double)dtype_size(problem->dtype), .flops = 2 * m * n * k};
}

static bool gemm_attrs_fit(const struct problem *problem, int rank, const struct op_args *args)
{
    int64_t rows[FCC_MAX_RANKS];
    bool fit = true;

    send_rows_get(args, problem->nranks, rows);
    for (int p = 0; p < problem->nranks; p++)
        fit &= rows[p] == problem->counts[rank][p];
    return fit;
}

static int gemm_values(const struct problem *problem, int rank, int64_t values[])
{
    for (int r = 0; r < problem->nranks; r++)
        values[r] = problem->counts[r][rank];
    return problem->nranks;
}

const struct op op_gemm_all_to_all = {
    .name = "gemm_all_to_all",
    .ntensors = FCC_GEMM_TENSORS,
    .tensor_names = names,
    .result = FCC_GEMM_C,
    .words = {.dim = {[DIM_N] = {"n", INT32_MAX}}, .rank_dim = {[DIM_K] = {"k", INT32_MAX}}, .counts = "send_rows"},
    .check = gemm_check,
    .match = gemm_match,
    .plan = gemm_plan,
    .work = gemm_work,
    .attrs_fit = gemm_attrs_fit,
    .values = gemm_values,
};
