/* SPDX-License-Identifier: MIT
 *
 * vector.c - collectives: requests, and the parts of the vectors.
 */
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/epilogue.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "kernels/plan/tensor.h"

#define TILE_BYTES (INT64_C(256) << 10)
#define TILES_MOST (1 << 16)
/* Of a GPU: tiles of VECTOR_GPU_TILES, or of a multiple of that; unless they would take no longer than a workgroup takes to get one. */
#define GPU_TILE_LEAST (8 << 10)
#define GPU_TILE_STEP (1 << 10)

/* ---- all ranks' requests ---- */

/* The dtype of a request; 0: it has no tensor. */
static enum fcc_dtype dtype_of(const struct op_args *args)
{
    for (int i = 0; i < FCC_VECTOR_TENSORS; i++)
        if (args->tensors[i].data)
            return args->tensors[i].dtype;
    return (enum fcc_dtype)0;
}

static int same_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    int first = 0; /* the first rank with a tensor */

    while (first < nranks - 1 && !dtype_of(&args[first]))
        first++;
    out->dtype = dtype_of(&args[first]) ? dtype_of(&args[first]) : FCC_F32;
    out->dim[DIM_M] = 1;
    out->dim[DIM_ROOT] = vector_number(&args[0], FCC_ATTR_ROOT, 0);
    out->dim[DIM_REDUCTION] = vector_number(&args[0], FCC_ATTR_REDUCTION, FCC_SUM);
    out->dim[DIM_K] = vector_row_elements(&args[0]);
    for (int r = 1; r < nranks; r++) {
        enum fcc_dtype dtype = dtype_of(&args[r]);
        int64_t reduction = vector_number(&args[r], FCC_ATTR_REDUCTION, FCC_SUM);
        int status = match_value("root", r, vector_number(&args[r], FCC_ATTR_ROOT, 0), out->dim[DIM_ROOT], e);
        if (status == 0)
            status = match_value("row_elements", r, vector_row_elements(&args[r]), out->dim[DIM_K], e);
        if (status)
            return status;
        if (reduction != out->dim[DIM_REDUCTION])
            return error_set(e, -EINVAL, "reduction: rank %d has %s, rank 0 has %s", r, reduction_name(reduction),
                             reduction_name(out->dim[DIM_REDUCTION]));
        if (dtype && dtype != out->dtype)
            return error_set(e, -EINVAL, "dtype: rank %d has %s, rank %d has %s", r, dtype_name(dtype), first,
                             dtype_name(out->dtype));
    }
    return 0;
}

/* The length that all whole vectors have, by their first one. */
static int whole_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct op_spec *op = op_spec(args[0].op);
    int first = -1, first_tensor = 0;

    for (int i = 0; i < FCC_VECTOR_TENSORS; i++) {
        uint8_t part = i == FCC_VECTOR_IN ? op->in : op->out;
        for (int r = 0; r < nranks && (part == VECTOR_ALL || part == VECTOR_ROOT); r++) {
            const struct tensor *t = &args[r].tensors[i];
            if (!t->data)
                continue;
            if (first < 0) {
                first = r;
                first_tensor = i;
                out->dim[DIM_N] = t->shape[0];
            }
            if (t->shape[0] != out->dim[DIM_N])
                return error_set(e, -EINVAL, "%s: rank %d has %" PRId64 " elements, rank %d's %s has %" PRId64,
                                 op->tensors[i].name, r, t->shape[0], first, op->tensors[first_tensor].name, out->dim[DIM_N]);
        }
    }
    return 0;
}

/* The ranks' own parts, which follow each other in the whole vector. */
static int parts_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct op_spec *op = op_spec(args[0].op);
    int own = op->in == VECTOR_OWN ? FCC_VECTOR_IN : FCC_VECTOR_OUT;
    int64_t sum = 0;

    if (op->in != VECTOR_OWN && op->out != VECTOR_OWN)
        return 0;
    for (int r = 0; r < nranks; r++) {
        out->rank_dim[DIM_N][r] = sum;
        out->rank_dim[DIM_K][r] = args[r].tensors[own].shape[0];
        sum += out->rank_dim[DIM_K][r]; /* does not overflow: 2^10 ranks of at most 2^48 */
    }
    if (sum == out->dim[DIM_N])
        return 0;
    return error_set(e, -EINVAL, "%s: the ranks' have %" PRId64 " elements together, %s has %" PRId64, op->tensors[own].name,
                     sum, op->tensors[!own].name, out->dim[DIM_N]);
}

/* How many elements the request has for each rank. */
static void counts_get(const struct op_args *args, int nranks, int64_t counts[])
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_COUNTS, &count), *peer = op_attr(args, FCC_ATTR_DESTINATION, &count);

    for (int p = 0; p < nranks; p++)
        counts[p] = peer ? 0 : given ? given[p] : args->tensors[FCC_VECTOR_IN].shape[0] / nranks;
    if (peer && *peer >= 0)
        counts[*peer] = args->tensors[FCC_VECTOR_IN].shape[0];
}

/* Who sends to whom: both must say the same. */
static int peers_match(const struct op_args args[], int nranks, struct error *e)
{
    for (int r = 0; r < nranks; r++) {
        int64_t to = vector_number(&args[r], FCC_ATTR_DESTINATION, -1), from = vector_number(&args[r], FCC_ATTR_SOURCE, -1);
        if (to >= 0 && vector_number(&args[to], FCC_ATTR_SOURCE, -1) != r)
            return error_set(e, -EINVAL, "destination: rank %d has %" PRId64 ", rank %" PRId64 "'s source is %" PRId64, r, to,
                             to, vector_number(&args[to], FCC_ATTR_SOURCE, -1));
        if (from >= 0 && vector_number(&args[from], FCC_ATTR_DESTINATION, -1) != r)
            return error_set(e, -EINVAL, "source: rank %d has %" PRId64 ", rank %" PRId64 "'s destination is %" PRId64, r, from,
                             from, vector_number(&args[from], FCC_ATTR_DESTINATION, -1));
    }
    return 0;
}

/* What a rank sends is what those expect that say so. */
static int expected_match(const struct op_args args[], int nranks, int source, const int64_t counts[], struct error *e)
{
    for (int r = 0; r < nranks; r++) {
        size_t count;
        const int64_t *expected = op_attr(&args[r], FCC_ATTR_EXPECTED_COUNTS, &count);
        if (expected && expected[source] != counts[r])
            return error_set(e, -EINVAL,
                             "expected_counts: rank %d sends %" PRId64 " elements to rank %d, which expects %" PRId64, source,
                             counts[r], r, expected[source]);
    }
    return 0;
}

static int counts_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    size_t count;
    int64_t counts[FCC_MAX_RANKS];

    if (op_attr(&args[0], FCC_ATTR_DESTINATION, &count) && peers_match(args, nranks, e))
        return e->status;
    for (int r = 0; r < nranks; r++) {
        counts_get(&args[r], nranks, counts);
        if (expected_match(args, nranks, r, counts, e))
            return e->status;
        problem_counts_set(out, r, counts);
    }
    for (int r = 0; r < nranks; r++) {
        int64_t room = args[r].tensors[FCC_VECTOR_OUT].shape[0];
        if (out->received[r] > room)
            return error_set(e, -EINVAL, "out: rank %d receives %" PRId64 " elements, its out has %" PRId64, r,
                             out->received[r], room);
    }
    return 0;
}

/* An input that shares memory with its rank's result lies exactly where the result would have it. */
static int in_place_match(const struct op_args args[], int nranks, const struct problem *p, struct error *e)
{
    const struct op_spec *op = op_spec(p->op);
    int64_t size = (int64_t)dtype_size(p->dtype);

    for (int r = 0; r < nranks; r++) {
        const struct tensor *in = &args[r].tensors[FCC_VECTOR_IN], *out = &args[r].tensors[FCC_VECTOR_OUT];
        int64_t at = op->in == VECTOR_OWN ? p->rank_dim[DIM_N][r] : op->out == VECTOR_OWN ? -p->rank_dim[DIM_N][r] : 0;
        if (!in->data || !out->data || !tensors_overlap(in, out) ||
            (op->in != VECTOR_COUNTED && in->data == out->data + at * size))
            continue;
        if (op->in == VECTOR_COUNTED)
            return error_set(e, -EINVAL, "in: rank %d: overlaps out: not allowed", r);
        return error_set(e, -EINVAL, "in: rank %d: overlaps out: allowed is in place: in begins %" PRId64 " elements %s out", r,
                         at < 0 ? -at : at, at < 0 ? "before" : "after the begin of");
    }
    return 0;
}

/* The rows that an epilogue makes of the vector, and the epilogue. */
static int rows_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const int64_t cols = epilogue_cols(&args[0], out->dim[DIM_N]);

    if (epilogue_match(args, nranks, cols, &out->epilogue, e))
        return e->status;
    for (int r = 1; r < nranks; r++)
        if (epilogue_cols(&args[r], out->dim[DIM_N]) != cols)
            return match_value("epilogue: elements of a row", r, epilogue_cols(&args[r], out->dim[DIM_N]), cols, e);
    return 0;
}

static int vector_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    int status = match_schedule(args, nranks, e);

    if (status == 0)
        status = same_match(args, nranks, out, e);
    if (status == 0)
        status = whole_match(args, nranks, out, e);
    if (status == 0 && op_spec(out->op)->epilogue)
        status = rows_match(args, nranks, out, e);
    if (status == 0)
        status = parts_match(args, nranks, out, e);
    if (status == 0 && op_counts(out->op))
        status = counts_match(args, nranks, out, e);
    return status ? status : in_place_match(args, nranks, out, e);
}

static bool vector_attrs_fit(const struct problem *problem, int rank, const struct op_args *args)
{
    int64_t counts[FCC_MAX_RANKS];
    size_t count;
    bool fit = vector_number(args, FCC_ATTR_ROOT, 0) == problem->dim[DIM_ROOT] &&
               vector_number(args, FCC_ATTR_REDUCTION, FCC_SUM) == problem->dim[DIM_REDUCTION] &&
               vector_row_elements(args) == problem->dim[DIM_K] &&
               !op_attr(args, FCC_ATTR_DESTINATION, &count); /* where the problem does not say who the source is */

    if (!fit || !op_counts(problem->op))
        return fit && epilogue_fits(&problem->epilogue, args);
    const int64_t *expected = op_attr(args, FCC_ATTR_EXPECTED_COUNTS, &count);
    counts_get(args, problem->nranks, counts);
    for (int p = 0; p < problem->nranks; p++)
        fit &= counts[p] == problem->counts[rank].to[p] && (!expected || expected[p] == problem->counts[rank].from[p]);
    return fit;
}

/* ---- the parts ---- */

int64_t vector_unit(const struct problem *problem)
{
    int64_t longest = problem->dim[DIM_N], unit = 1;
    const bool counts = op_counts(problem->op);

    for (int r = 0; r < problem->nranks && counts; r++) {
        longest = problem->sent[r] > longest ? problem->sent[r] : longest;
        longest = problem->received[r] > longest ? problem->received[r] : longest;
    }
    while (longest / unit >= INT32_MAX)
        unit *= 2;
    return unit;
}

struct vector_part vector_part(const struct problem *problem, int source, int destination)
{
    const struct op_spec *op = op_spec(problem->op);
    const int64_t *begin = problem->rank_dim[DIM_N], *count = problem->rank_dim[DIM_K];

    if (op->in == VECTOR_COUNTED)
        return (struct vector_part){.to = problem->counts[source].at[destination],
                                    .count = problem->counts[source].to[destination]};
    if ((op->in == VECTOR_ROOT && source != problem->dim[DIM_ROOT]) ||
        (op->out == VECTOR_ROOT && destination != problem->dim[DIM_ROOT]))
        return (struct vector_part){.count = 0};
    if (op->in == VECTOR_OWN)
        return (struct vector_part){.to = begin[source], .count = count[source]};
    return (struct vector_part){.count = op->out == VECTOR_OWN ? count[destination] : problem->dim[DIM_N]};
}

void vector_parts_at(const struct problem *problem, int source, uint64_t at[])
{
    const struct op_spec *op = op_spec(problem->op);
    uint64_t size = dtype_size(problem->dtype), before = 0;

    for (int p = 0; p < problem->nranks; p++) {
        at[p] = before;
        if (op->in == VECTOR_COUNTED)
            before += (uint64_t)problem->counts[source].to[p] * size;
        else if (op->in == VECTOR_ROOT && op->out == VECTOR_OWN)
            before += (uint64_t)problem->rank_dim[DIM_K][p] * size;
    }
}

/* Whether the root reduces all of the vector. Of two ranks on two nodes, the other one's chunk would go to it and, reduced, come back, as many
 * bytes to the root as the whole input of the other one has. */
static bool root_has_all(const struct problem *problem)
{
    return op_spec(problem->op)->out == VECTOR_ROOT && problem->nranks == 2 && problem->node_of[0] != problem->node_of[1];
}

/* Chunks of whole cache lines, of which the first is the longest; but where each rank gets its part of the sum, these. */
void vector_chunks(const struct problem *problem, int64_t elements[])
{
    int64_t line = (int64_t)(64 / dtype_size(problem->dtype)), n = problem->dim[DIM_N], lines = (n + line - 1) / line;
    const int64_t node_ranks = plan_is_over_nodes(problem) ? plan_node_ranks(problem) : 0;
    bool own = op_spec(problem->op)->out == VECTOR_OWN || op_is_step(problem->op), root = root_has_all(problem);

    for (int p = 0; p < problem->nranks; p++) {
        int64_t begin = plan_lines_before(lines, problem->nranks, node_ranks, p) * line;
        if (root)
            begin = p > problem->dim[DIM_ROOT] ? n : 0;
        elements[p] = own ? problem->rank_dim[DIM_N][p] : begin < n ? begin : n;
    }
    elements[problem->nranks] = n;
}

int vector_receiver(const struct problem *problem, int owner)
{
    uint8_t out = op_spec(problem->op)->out;

    return out == VECTOR_OWN ? owner : out == VECTOR_ROOT ? (int)problem->dim[DIM_ROOT] : -1;
}

int64_t vector_result_at(const struct problem *problem, int rank, int64_t element)
{
    return element - (op_spec(problem->op)->out == VECTOR_OWN ? problem->rank_dim[DIM_N][rank] : 0);
}

enum fcc_dtype vector_sum_dtype(enum fcc_dtype dtype)
{
    return dtype == FCC_F16 || dtype == FCC_BF16 ? FCC_F32 : dtype;
}

static struct work vector_work(const struct problem *problem, int rank)
{
    double elements =
        op_counts(problem->op) ? (double)(problem->sent[rank] + problem->received[rank]) : 2 * (double)problem->dim[DIM_N];

    return (struct work){.bytes = elements * (double)dtype_size(problem->dtype)};
}

/* Bytes of a tile, where a rank moves or reduces so many. */
static int64_t tile_bytes(enum plan_target target, int64_t all)
{
    const int64_t turns = (all + VECTOR_GPU_TILES * TILE_BYTES - 1) / (VECTOR_GPU_TILES * TILE_BYTES), /* of a workgroup */
        tiles = VECTOR_GPU_TILES * (turns + !turns), steps = (all + GPU_TILE_STEP - 1) / GPU_TILE_STEP,
                  share = (steps + tiles - 1) / tiles * GPU_TILE_STEP;

    if (target == PLAN_CPU)
        return TILE_BYTES;
    return share > GPU_TILE_LEAST ? share : GPU_TILE_LEAST;
}

static void vector_tile(const struct problem *problem, int rank, struct schedule *schedule)
{
    const bool puts = op_spec(problem->op)->exchange == EXCHANGE_PUT;
    int64_t unit = vector_unit(problem), size = (int64_t)dtype_size(problem->dtype) * unit;
    int64_t all = puts ? 0 : problem->dim[DIM_N]; /* reduce: the same on all ranks */

    for (int p = 0; p < problem->nranks && puts; p++)
        all += vector_part(problem, rank, p).count;
    int64_t share = puts ? all : all / problem->nranks, cols = tile_bytes(schedule->target, share * (size / unit)) / size;
    cols = cols < 1 ? 1 : cols;
    while (all / unit / cols > TILES_MOST)
        cols *= 2;
    schedule->slice_rows = 1;
    schedule->slice_cols = schedule->slice_cols ? schedule->slice_cols : (uint32_t)cols;
}

static void vector_domain(const struct problem *problem, int rank, const struct schedule *schedule, struct domain *out)
{
    const int64_t unit = vector_unit(problem);
    const bool counts = op_counts(problem->op);

    (void)schedule;
    out->element_bytes = dtype_size(problem->dtype) * (uint64_t)unit;
    out->order = ORDER_IN_TURNS;
    for (int p = 0; p < problem->nranks && problem_is_here(problem, rank); p++) {
        int64_t count = vector_part(problem, rank, p).count;
        out->part[p] = (struct rectangle){.rows = count > 0, .cols = (uint32_t)vector_columns(count, unit)};
        out->from[p] = (counts ? problem->counts[rank].from[p] : vector_part(problem, p, rank).count) > 0;
    }
}

const struct compute_ops compute_vector = {
    .words = {.dim = {[DIM_M] = {"rows", 1},
                      [DIM_N] = {"elements", VECTOR_MOST},
                      [DIM_K] = {"row_elements", VECTOR_MOST},
                      [DIM_ROOT] = {"root", PLAN_MAX_RANKS - 1},
                      [DIM_REDUCTION] = {"reduction", FCC_XOR}},
              .rank_dim = {[DIM_N] = {"begin", VECTOR_MOST}, [DIM_K] = {"elements", VECTOR_MOST}},
              .counts = "send_counts",
              .counts_most = VECTOR_MOST},
    .check = vector_check,
    .match = vector_match,
    .attrs_fit = vector_attrs_fit,
    .work = vector_work,
    .tile = vector_tile,
    .domain = vector_domain,
};
