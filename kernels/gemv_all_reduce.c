/* SPDX-License-Identifier: MIT
 *
 * gemv_all_reduce.c - y = sum over ranks r, in rank order, of x_r . w_r^T.
 *
 * The N columns of y are cut into one contiguous chunk for each rank, its owner, and the chunks into tiles; a tile is the unit
 * of everything. Phases of the fused schedule, for each rank:
 *   1. compute+put: each tile's partial sum goes straight into its owner's staging memory, into the slot of this rank; then the
 *      tile's flag for this rank is raised at the owner. Other ranks' chunks come first (plan_destination_order()).
 *   2. reduce, own tiles only: when the tile's flags of all ranks are there, the partial sums are added in rank order, rounded
 *      once, and stored into every rank's y; then the tile's result flag is raised at every rank.
 *   3. wait for all tiles' result flags.
 * Sequential: all partial sums into the rank's own staging memory, then each is put into its owner's slot, then 2 and 3.
 *
 * Why the order is right: a partial sum is read only after its flag (raise: release; wait: acquire), and is in a slot that
 * nothing else writes. A slot is written again by the next operator only: its ranks start it when they have finished this one,
 * that is, after the result flags of all tiles, which their owners raised after reading the slots.
 * Every rank computes the same tiles with any schedule, and one rank alone adds each of them, so all get the same bits.
 *
 * Flags of every rank, with T tiles: [r * T + t] rank r's partial sum of (own) tile t is here; [nranks * T + t] tile t's result
 * is here; [nranks * T + T] own partial sums are computed. Staging: nranks slots of the longest chunk; then, unless fused, all
 * own partial sums. A tile lies dense, [M][columns].
 *
 * On GPUs partial sums travel otherwise: gemv_words.c.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "dense.h"
#include "dtype.h"
#include "gemv_plan.h"
#include "ops.h"
#include "tensor.h"

static const char *const names[] = {[FCC_GEMV_X] = "x", [FCC_GEMV_W] = "w", [FCC_GEMV_Y] = "y"};

static int gemv_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    const struct tensor *x = &args->tensors[FCC_GEMV_X], *w = &args->tensors[FCC_GEMV_W], *y = &args->tensors[FCC_GEMV_Y];
    int status = args_check(args, FCC_GEMV_TENSORS, 0, e);

    (void)nranks;
    (void)rank;
    for (int i = 0; i < FCC_GEMV_TENSORS && status == 0; i++)
        status = tensor_check(&args->tensors[i], names[i], DTYPES_FLOAT, 2, e);
    if (status == 0 && (x->shape[0] < 1 || x->shape[0] > FCC_GEMV_MAX_M))
        status = error_set(e, -EINVAL, "x: shape[0] %lld: allowed are 1 to %d", (long long)x->shape[0], FCC_GEMV_MAX_M);
    if (status == 0)
        status = tensor_check_dtype(w, "w", x->dtype, "x's", e);
    if (status == 0)
        status = tensor_check_shape(w, "w", 1, x->shape[1], "x's shape[1], K", e);
    if (status == 0)
        status = tensor_check_dtype(y, "y", x->dtype, "x's", e);
    if (status == 0)
        status = tensor_check_shape(y, "y", 0, x->shape[0], "x's shape[0], M", e);
    if (status == 0)
        status = tensor_check_shape(y, "y", 1, w->shape[0], "w's shape[0], N", e);
    if (status == 0)
        status = tensor_check_result(y, "y", e);
    return status;
}

static int gemv_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    const struct tensor *y0 = &args[0].tensors[FCC_GEMV_Y];
    int status = match_schedule(args, nranks, e);

    for (int r = 0; r < nranks && status == 0; r++) {
        const struct tensor *y = &args[r].tensors[FCC_GEMV_Y];
        status = match_dtype(r, y->dtype, y0->dtype, e);
        if (status == 0)
            status = match_value("m", r, y->shape[0], y0->shape[0], e);
        if (status == 0)
            status = match_value("n", r, y->shape[1], y0->shape[1], e);
    }
    if (status)
        return status;
    memset(&out->gemv, 0, sizeof(out->gemv));
    out->dtype = y0->dtype;
    out->gemv.m = y0->shape[0];
    out->gemv.n = y0->shape[1];
    for (int r = 0; r < nranks; r++)
        out->gemv.k[r] = args[r].tensors[FCC_GEMV_X].shape[1];
    return 0;
}

/* Where chunks, tiles and slots are: a function of the problem and the tile's size, so the same on all ranks. */
struct layout {
    int64_t columns[FCC_MAX_RANKS + 1]; /* chunk p is columns [columns[p], columns[p + 1]) */
    int64_t tiles[FCC_MAX_RANKS + 1];   /* and tiles [tiles[p], tiles[p + 1]) */
    int64_t ntiles;
    uint64_t slot_bytes;  /* of one rank's partial sums of one chunk */
    uint64_t local_bytes; /* of one rank's partial sums of all of y */
};

int64_t gemv_columns_per_line(const struct problem *problem)
{
    return (int64_t)(64 / dtype_size(problem->dtype));
}

void gemv_chunks(const struct problem *problem, int64_t columns[FCC_MAX_RANKS + 1])
{
    int64_t line = gemv_columns_per_line(problem), n = problem->gemv.n, lines = (n + line - 1) / line;
    int64_t each = lines / problem->nranks, more = lines % problem->nranks;

    columns[0] = 0;
    for (int p = 0; p < problem->nranks; p++) {
        int64_t end = columns[p] + (each + (p < more)) * line;
        columns[p + 1] = end < n ? end : n;
    }
}

static struct layout layout_make(const struct problem *problem, int64_t tile)
{
    int64_t n = problem->gemv.n;
    struct layout l = {.ntiles = 0};

    gemv_chunks(problem, l.columns);
    for (int p = 0; p < problem->nranks; p++)
        l.tiles[p + 1] = l.tiles[p] + (l.columns[p + 1] - l.columns[p] + tile - 1) / tile;
    l.ntiles = l.tiles[problem->nranks];
    l.slot_bytes = ((uint64_t)(problem->gemv.m * l.columns[1]) * sizeof(float) + 63) & ~(uint64_t)63;
    l.local_bytes = ((uint64_t)(problem->gemv.m * n) * sizeof(float) + 63) & ~(uint64_t)63;
    return l;
}

int64_t gemv_longest_k(const struct problem *problem)
{
    int64_t k = 1;

    for (int r = 0; r < problem->nranks; r++)
        k = problem->gemv.k[r] > k ? problem->gemv.k[r] : k;
    return k;
}

static int64_t flags_of(const struct problem *problem, const struct layout *l)
{
    return (problem->nranks + 1) * l->ntiles + 1;
}

/* About 1 MiB of w: long enough that a slice's overhead does not count, short enough to leave early. Large enough that there
 * are no more flags than allowed. */
static void choose_tile(const struct problem *problem, struct schedule *schedule)
{
    int64_t line = gemv_columns_per_line(problem), tile = schedule->slice_cols;
    struct layout l;

    if (tile == 0) {
        tile = (1 << 20) / (gemv_longest_k(problem) * (int64_t)dtype_size(problem->dtype)) / line * line;
        tile = tile < line ? line : tile;
    }
    for (l = layout_make(problem, tile); flags_of(problem, &l) > PLAN_MAX_FLAGS; l = layout_make(problem, tile))
        tile *= 2;
    if (tile > l.columns[1])
        tile = l.columns[1] > 0 ? l.columns[1] : 1;
    schedule->slice_rows = (uint32_t)problem->gemv.m;
    schedule->slice_cols = (uint32_t)tile;
}

/* Slices of the own or of all chunks' tiles. `like` has what they have in common; a group of its own for each tile unless
 * `like` has one, with flag first_flag + tile at group_dst. */
static void add_chunk(struct plan_builder *b, const struct layout *l, int owner, struct slice like, unsigned group_dst,
                      int64_t first_flag)
{
    bool own_group = like.group == SLICE_NO_GROUP;
    int64_t tile_cols = b->plan->schedule.slice_cols;

    like.rows = b->plan->schedule.slice_rows;
    for (int64_t t = l->tiles[owner]; t < l->tiles[owner + 1] && b->status == 0; t++) {
        int64_t col = l->columns[owner] + (t - l->tiles[owner]) * tile_cols, left = l->columns[owner + 1] - col;
        like.col = like.dst_col = (uint32_t)col;
        like.cols = (uint32_t)(left < tile_cols ? left : tile_cols);
        if (like.kind == SLICE_REDUCE)
            like.wait_first = (uint32_t)t;
        if (own_group)
            like.group = plan_add_group(b, group_dst, (uint32_t)(first_flag + t));
        plan_add_slice(b, like);
    }
}

void gemv_add_wait(struct plan_builder *b, int64_t first, int64_t count)
{
    if (count > 0)
        plan_add_slice(b, (struct slice){.kind = SLICE_WAIT,
                                         .dst = (uint16_t)b->plan->rank,
                                         .group = SLICE_NO_GROUP,
                                         .wait_first = (uint32_t)first,
                                         .wait_count = (uint32_t)count,
                                         .wait_stride = 1});
}

/* ---- on the cpu: flags ---- */

static void flags_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    int order[FCC_MAX_RANKS], nranks = problem->nranks;
    bool fused = schedule->kind == FCC_SCHEDULE_FUSED, computes = schedule->kind != FCC_SCHEDULE_COMM_ONLY;
    struct layout l;

    choose_tile(problem, schedule);
    l = layout_make(problem, schedule->slice_cols);
    plan_destination_order(problem, rank, order);
    b->plan->nflags = (uint32_t)flags_of(problem, &l);
    b->plan->staging_bytes = (uint64_t)nranks * l.slot_bytes + (fused ? 0 : l.local_bytes);

    int64_t results = nranks * l.ntiles, computed = results + l.ntiles;
    if (!fused && computes && l.ntiles > 0) {
        uint32_t group = plan_add_group(b, (unsigned)rank, (uint32_t)computed);
        for (int i = 0; i < nranks; i++)
            add_chunk(b, &l, order[i], (struct slice){.kind = SLICE_COMPUTE, .dst = (uint16_t)order[i], .group = group}, 0, 0);
        if (schedule->kind == FCC_SCHEDULE_COMPUTE_ONLY) {
            gemv_add_wait(b, computed, 1);
            return;
        }
    }
    struct slice put = {.kind = fused ? SLICE_COMPUTE_PUT : SLICE_PUT, .group = SLICE_NO_GROUP};
    if (!fused && computes) {
        put.wait_first = (uint32_t)computed;
        put.wait_count = put.wait_stride = 1;
    }
    for (int i = 0; i < nranks; i++) {
        put.dst = (uint16_t)order[i];
        add_chunk(b, &l, order[i], put, (unsigned)order[i], rank * l.ntiles);
    }
    add_chunk(b, &l, rank,
              (struct slice){.kind = SLICE_REDUCE,
                             .dst = SLICE_DST_ALL,
                             .group = SLICE_NO_GROUP,
                             .wait_count = (uint32_t)nranks,
                             .wait_stride = (uint32_t)l.ntiles},
              SLICE_DST_ALL, results);
    gemv_add_wait(b, results, l.ntiles);
}

static void gemv_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    (schedule->target == PLAN_GPU ? gemv_words_plan : flags_plan)(problem, rank, schedule, b);
}

static struct work gemv_work(const struct problem *problem, int rank)
{
    double m = (double)problem->gemv.m, n = (double)problem->gemv.n, k = (double)problem->gemv.k[rank];
    double size = (double)dtype_size(problem->dtype);

    return (struct work){.bytes = (n * k + m * k + m * n) * size + 2 * m * n * sizeof(float), .flops = 2 * m * n * k + m * n};
}

/* ---- execution ---- */

static unsigned char *slot_at(const struct run *run, const struct layout *l, int owner, int source, int64_t col)
{
    return run->staging[owner] + (uint64_t)source * l->slot_bytes +
           (uint64_t)(run->problem->gemv.m * (col - l->columns[owner])) * sizeof(float);
}

static unsigned char *local_at(const struct run *run, const struct layout *l, int64_t col)
{
    return run->staging[run->rank] + (uint64_t)run->problem->nranks * l->slot_bytes +
           (uint64_t)(run->problem->gemv.m * col) * sizeof(float);
}

static int compute_tile(const struct run *run, const struct slice *s, unsigned char *out, struct workgroup *wg, struct error *e)
{
    const struct tensor *x = &run->args[run->rank].tensors[FCC_GEMV_X], *w = &run->args[run->rank].tensors[FCC_GEMV_W];
    struct product p = {
        .b_transposed = true,
        .dtype = run->problem->dtype,
        .c_dtype = FCC_F32,
        .m = s->rows,
        .n = s->cols,
        .k = run->problem->gemv.k[run->rank],
        .a = x->data,
        .lda = x->stride[0],
        .b = tensor_at(w, s->col, 0),
        .ldb = w->stride[0],
        .c = out,
        .ldc = s->cols,
    };

    return dense_multiply(&p, wg, e);
}

/* sum[i] = slots[0][i] + slots[1][i] + ..., in this order. n is a multiple of 16; what is beyond a slot's end is not read. */
FCC_CLONES
static void add_in_order(float *sum, const unsigned char *first, uint64_t slot_bytes, int nranks, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        f32x16 total, v;
        memcpy(&total, first + i * sizeof(float), sizeof(total));
        for (int r = 1; r < nranks; r++) {
            memcpy(&v, first + (uint64_t)r * slot_bytes + i * sizeof(float), sizeof(v));
            total += v;
        }
        memcpy(sum + i, &total, sizeof(total));
    }
}

static void add_rest_in_order(float *sum, const unsigned char *first, uint64_t slot_bytes, int nranks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float total, v;
        memcpy(&total, first + i * sizeof(float), sizeof(total));
        for (int r = 1; r < nranks; r++) {
            memcpy(&v, first + (uint64_t)r * slot_bytes + i * sizeof(float), sizeof(v));
            total += v;
        }
        sum[i] = total;
    }
}

static void reduce_tile(const struct run *run, const struct layout *l, const struct slice *s)
{
    enum { PIECE = 1024 };
    _Alignas(64) float sum[PIECE];
    _Alignas(64) unsigned char rounded[PIECE * sizeof(float)];
    enum fcc_dtype dtype = run->problem->dtype;
    size_t size = dtype_size(dtype);

    for (uint32_t m = 0; m < s->rows; m++) {
        for (uint32_t done = 0; done < s->cols; done += PIECE) {
            size_t n = s->cols - done < PIECE ? s->cols - done : PIECE, whole = n / 16 * 16;
            const unsigned char *first = slot_at(run, l, run->rank, 0, s->col) + ((uint64_t)m * s->cols + done) * sizeof(float);
            add_in_order(sum, first, l->slot_bytes, run->problem->nranks, whole);
            add_rest_in_order(sum + whole, first + whole * sizeof(float), l->slot_bytes, run->problem->nranks, n - whole);
            dtype_from_f32(rounded, sum, dtype, n);
            for (int r = 0; r < run->problem->nranks; r++)
                memcpy(tensor_at(&run->args[r].tensors[FCC_GEMV_Y], m, (int64_t)s->col + done), rounded, n * size);
        }
    }
}

static int gemv_slice(const struct run *run, const struct slice *s, struct workgroup *wg, struct error *e)
{
    struct layout l = layout_make(run->problem, run->plan->schedule.slice_cols);

    switch (s->kind) {
    case SLICE_COMPUTE_PUT:
        return compute_tile(run, s, slot_at(run, &l, s->dst, run->rank, s->col), wg, e);
    case SLICE_COMPUTE:
        return compute_tile(run, s, local_at(run, &l, s->col), wg, e);
    case SLICE_PUT:
        memcpy(slot_at(run, &l, s->dst, run->rank, s->col), local_at(run, &l, s->col),
               (size_t)s->rows * s->cols * sizeof(float));
        return 0;
    default:
        reduce_tile(run, &l, s);
        return 0;
    }
}

/* Partial sums lie dense in their owner's staging memory; a result in each rank's y. */
static void gemv_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    struct layout l = layout_make(run->problem, run->plan->schedule.slice_cols);
    const struct tensor *y = &run->args[dst].tensors[FCC_GEMV_Y];
    uint64_t size = dtype_size(run->problem->dtype), sums = (uint64_t)s->rows * s->cols * sizeof(float);

    if (s->kind == SLICE_REDUCE)
        *out = (struct put_area){.tensor = FCC_GEMV_Y,
                                 .planes = 1,
                                 .rows = s->rows,
                                 .at = tensor_at(y, 0, s->col),
                                 .row_bytes = s->cols * size,
                                 .row_stride = (uint64_t)y->stride[0] * size};
    else
        *out = (struct put_area){.tensor = PUT_STAGING,
                                 .planes = 1,
                                 .rows = 1,
                                 .at = slot_at(run, &l, dst, run->rank, s->col),
                                 .row_bytes = sums,
                                 .row_stride = sums};
}

/* ---- on a GPU ---- */

static void gemv_gpu_rank(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    const struct tensor *x = &args->tensors[FCC_GEMV_X], *w = &args->tensors[FCC_GEMV_W], *y = &args->tensors[FCC_GEMV_Y];

    *out = (struct gpu_output){.data = (uint64_t)(uintptr_t)y->data, .stride = {y->stride[0]}};
    in->gemv.x = (uint64_t)(uintptr_t)x->data;
    in->gemv.x_stride = x->stride[0];
    in->gemv.w = (uint64_t)(uintptr_t)w->data;
    in->gemv.w_stride = w->stride[0];
    in->gemv.m = x->shape[0];
    in->gemv.n = w->shape[0];
    in->gemv.k = x->shape[1];
}

const struct op op_gemv_all_reduce = {
    .name = "gemv_all_reduce",
    .ntensors = FCC_GEMV_TENSORS,
    .tensor_names = names,
    .check = gemv_check,
    .match = gemv_match,
    .plan = gemv_plan,
    .work = gemv_work,
    .slice = gemv_slice,
    .area = gemv_area,
    .gpu_shape = gemv_words_shape,
    .gpu_rank = gemv_gpu_rank,
    .values = op_no_values,
};
