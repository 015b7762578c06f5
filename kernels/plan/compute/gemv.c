/* SPDX-License-Identifier: MIT
 *
 * gemv.c - y = sum over ranks r, in rank order, of x_r . w_r^T.
 *
 * The N columns of y are cut into one contiguous chunk for each rank, its owner, and the chunks into tiles; a tile is the unit
 * of everything. Phases of the fused schedule, for each rank, on one node (or in a flat plan over several):
 *   1. compute+put: each tile's partial sum goes straight into its owner's staging memory, into the slot of this rank; then the
 *      tile's flag for this rank is raised at the owner. Other ranks' chunks come first (plan_destination_order()).
 *   2. reduce, own tiles only: when the tile's flags of all ranks are there, the partial sums are added in rank order, rounded
 *      once, and stored into every rank's y; then the tile's result flag is raised at every rank.
 *   3. wait for all tiles' result flags.
 * Sequential: all partial sums into the rank's own staging memory, then each is put into its owner's slot, then 2 and 3.
 * Over nodes with several ranks, partial sums are added inside each node first: kernels/plan/exchange/reduce_nodes.c, which makes the plans.
 *
 * The order of additions: the ranks of a node in rank order; then the nodes' sums in the order of the nodes' first ranks. Flat,
 * as on one node: all ranks in rank order. A function of the problem and the route, not of who is how fast.
 *
 * Why the order of memory is right: a partial sum is read only after its flag (raise: release; wait: acquire), and is in a slot that
 * nothing else writes. A slot is written again by the next operator only: its ranks start it when they have finished this one,
 * that is, after the result flags of all tiles, which their owners raised after reading the slots; an owner has read a node's sum
 * after the deputy there had read the slots that it is the sum of.
 * Every rank computes the same tiles with any schedule, and one rank alone adds each sum, so all get the same bits.
 *
 * Flags and staging memory: kernels/plan/exchange/reduce.h. A tile lies dense, [M][columns].
 *
 * On the GPUs of one node partial sums travel otherwise: kernels/plan/exchange/reduce_packets.c. On those of several nodes as here: kernels/gpu/device/exchange/reduce_nodes.h.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "kernels/cpu/dense.h"
#include "kernels/plan/dtype.h"
#include "kernels/plan/exchange/reduce.h"
#include "kernels/plan/table.h"
#include "kernels/plan/tensor.h"

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
        status = match_dtype("y", r, y->dtype, y0->dtype, e);
        if (status == 0)
            status = match_value("y: shape[0]", r, y->shape[0], y0->shape[0], e);
        if (status == 0)
            status = match_value("y: shape[1]", r, y->shape[1], y0->shape[1], e);
    }
    if (status)
        return status;
    out->dtype = y0->dtype;
    out->gemv.m = y0->shape[0];
    out->gemv.n = y0->shape[1];
    for (int r = 0; r < nranks; r++)
        out->gemv.k[r] = args[r].tensors[FCC_GEMV_X].shape[1];
    return 0;
}

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

int64_t gemv_longest_k(const struct problem *problem)
{
    int64_t k = 1;

    for (int r = 0; r < problem->nranks; r++)
        k = problem->gemv.k[r] > k ? problem->gemv.k[r] : k;
    return k;
}

#define GPU_TILES 256 /* about */

/* About 1 MiB of w: long enough that a slice's overhead does not count, short enough to leave early. Large enough that there
 * are no more flags than allowed. */
static void choose_tile(const struct problem *problem, struct schedule *schedule)
{
    int64_t line = gemv_columns_per_line(problem), tile = schedule->slice_cols;
    struct gemv_layout l;

    if (tile == 0 && schedule->target == PLAN_GPU) /* over nodes: some for each workgroup, whole lines of y */
        tile = (problem->gemv.n / GPU_TILES + line) / line * line;
    if (tile == 0) {
        tile = (1 << 20) / (gemv_longest_k(problem) * (int64_t)dtype_size(problem->dtype)) / line * line;
        tile = tile < line ? line : tile;
    }
    for (;; tile *= 2) {
        schedule->slice_cols = (uint32_t)tile;
        gemv_layout_make(problem, schedule, &l);
        if (gemv_slot_flags(&l) + l.ntiles + 1 <= PLAN_MAX_FLAGS)
            break;
    }
    if (tile > l.columns[1])
        tile = l.columns[1] > 0 ? l.columns[1] : 1;
    schedule->slice_rows = (uint32_t)problem->gemv.m;
    schedule->slice_cols = (uint32_t)tile;
}

void gemv_add_wait(struct plan_builder *b, int64_t first, int64_t count, bool is_here)
{
    if (count > 0)
        plan_add_slice(b, (struct slice){.kind = SLICE_WAIT,
                                         .is_here = is_here,
                                         .dst = (uint16_t)b->plan->rank,
                                         .group = SLICE_NO_GROUP,
                                         .wait_first = (uint32_t)first,
                                         .wait_count = (uint32_t)count,
                                         .wait_stride = 1});
}

/* With g ranks on a node, flat sends each partial sum and each result g times as often between nodes as hierarchical does, which has
 * two steps more inside them. What is sent less has to be worth that: two nodes of two ranks, over tcp, take as long either way up to
 * 16 KiB of sums; from 64 KiB on hierarchical was faster, by up to the g-fold where the link is what takes time (make bench-nodes). */
#define HIERARCHY_LEAST_BYTES 32768

static void choose_route(const struct problem *problem, struct schedule *schedule)
{
    int64_t ranks = plan_node_ranks(problem), sums = problem->gemv.m * problem->gemv.n * (int64_t)sizeof(float);

    if (ranks == 1)
        schedule->route = PLAN_FLAT;
    else if (schedule->route == PLAN_ROUTE_RULE)
        schedule->route = sums * (ranks - 1) >= HIERARCHY_LEAST_BYTES ? PLAN_HIERARCHICAL : PLAN_FLAT;
}

static void gemv_plan(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b)
{
    choose_route(problem, schedule);
    if (schedule->target == PLAN_GPU && !plan_is_over_nodes(problem)) {
        gemv_words_plan(problem, rank, schedule, b);
        return;
    }
    choose_tile(problem, schedule);
    gemv_flags_plan(problem, rank, b);
}

static struct work gemv_work(const struct problem *problem, int rank)
{
    double m = (double)problem->gemv.m, n = (double)problem->gemv.n, k = (double)problem->gemv.k[rank];
    double size = (double)dtype_size(problem->dtype);

    return (struct work){.bytes = (n * k + m * k + m * n) * size + 2 * m * n * sizeof(float), .flops = 2 * m * n * k + m * n};
}

/* ---- execution ---- */

/* The slice's tile, dense, in one of the slots of a rank that collects its partial sums. */
static unsigned char *slot_at(const struct run *run, const struct gemv_layout *l, const struct slice *s, int at, int slot)
{
    return run->staging[at] + l->local_bytes + (uint64_t)slot * l->slot_bytes +
           (uint64_t)(run->problem->gemv.m * (s->col - l->columns[gemv_owner(l, s->col)])) * sizeof(float);
}

/* Where the partial sum goes that this rank puts: its own, or its node's. */
static unsigned char *partial_at(const struct run *run, const struct gemv_layout *l, const struct slice *s)
{
    return slot_at(run, l, s, s->dst, s->slot);
}

static unsigned char *local_at(const struct run *run, const struct slice *s)
{
    return run->staging[run->rank] + (uint64_t)(run->problem->gemv.m * s->col) * sizeof(float);
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

/* sum[i] = terms[0][i] + terms[1][i] + ..., in this order. sum may be one of them. */
FCC_CLONES
static void add_in_order(unsigned char *sum, const unsigned char *const terms[], int nterms, size_t n)
{
    size_t whole = n / 16 * 16;

    for (size_t i = 0; i < whole; i += 16) {
        f32x16 total, v;
        memcpy(&total, terms[0] + i * sizeof(float), sizeof(total));
        for (int t = 1; t < nterms; t++) {
            memcpy(&v, terms[t] + i * sizeof(float), sizeof(v));
            total += v;
        }
        memcpy(sum + i * sizeof(float), &total, sizeof(total));
    }
    for (size_t i = whole; i < n; i++) {
        float total, v;
        memcpy(&total, terms[0] + i * sizeof(float), sizeof(total));
        for (int t = 1; t < nterms; t++) {
            memcpy(&v, terms[t] + i * sizeof(float), sizeof(v));
            total += v;
        }
        memcpy(sum + i * sizeof(float), &total, sizeof(total));
    }
}

/* The partial sums of this node's ranks, in rank order, from element `at` of the tile on. Returns how many. */
static int node_terms(const struct run *run, const struct gemv_layout *l, const struct slice *s, size_t at,
                      const unsigned char *terms[FCC_MAX_RANKS])
{
    const unsigned char *first = slot_at(run, l, s, run->rank, s->terms) + at * sizeof(float);
    int n = 0;

    do
        terms[n] = first + (uint64_t)n * l->slot_bytes;
    while (++n < l->size[l->node[run->rank]]); /* this rank is one of them */
    return n;
}

static void reduce_in_node(const struct run *run, const struct gemv_layout *l, const struct slice *s)
{
    const unsigned char *terms[FCC_MAX_RANKS];
    int n = node_terms(run, l, s, 0, terms);

    add_in_order(partial_at(run, l, s), terms, n, (size_t)s->rows * s->cols);
}

/* n sums from element `at` of an own tile on: this node's ranks, then the nodes. Flat: there is one node. */
static void reduce_piece(const struct run *run, const struct gemv_layout *l, const struct slice *s, size_t at, size_t n,
                         unsigned char *sum)
{
    const unsigned char *terms[FCC_MAX_RANKS];
    int own = s->slot, nterms = node_terms(run, l, s, at, terms);

    add_in_order(sum, terms, nterms, n);
    if (l->nnodes == 1)
        return;
    for (int j = 0; j < l->nnodes; j++)
        terms[j] = j == own ? sum : slot_at(run, l, s, run->rank, gemv_node_slot(l, run->rank, j)) + at * sizeof(float);
    add_in_order(sum, terms, l->nnodes, n);
}

static void reduce_tile(const struct run *run, const struct gemv_layout *l, const struct slice *s)
{
    enum { PIECE = 1024 };
    _Alignas(64) float sum[PIECE];
    _Alignas(64) unsigned char rounded[PIECE * sizeof(float)];
    enum fcc_dtype dtype = run->problem->dtype;
    size_t size = dtype_size(dtype);

    for (uint32_t m = 0; m < s->rows; m++) {
        for (uint32_t done = 0; done < s->cols; done += PIECE) {
            size_t n = s->cols - done < PIECE ? s->cols - done : PIECE;
            reduce_piece(run, l, s, (size_t)m * s->cols + done, n, (unsigned char *)sum);
            dtype_from_f32(rounded, sum, dtype, n);
            for (int r = 0; r < run->problem->nranks; r++)
                if (plan_reaches(run->plan, s->dst, r))
                    memcpy(tensor_at(&run->args[r].tensors[FCC_GEMV_Y], m, (int64_t)s->col + done), rounded, n * size);
        }
    }
}

static void forward_tile(const struct run *run, const struct slice *s)
{
    const struct tensor *from = &run->args[run->rank].tensors[FCC_GEMV_Y];
    int64_t size = (int64_t)dtype_size(run->problem->dtype);

    for (int r = 0; r < run->problem->nranks; r++) {
        const struct tensor *to = &run->args[r].tensors[FCC_GEMV_Y];
        if (plan_reaches(run->plan, s->dst, r))
            rows_copy(tensor_at(to, 0, s->col), to->stride[0] * size, tensor_at(from, 0, s->col), from->stride[0] * size,
                      s->rows, (size_t)(s->cols * size));
    }
}

static int gemv_slice(const struct run *run, const struct slice *s, struct workgroup *wg, struct error *e)
{
    const struct gemv_layout *l = run->plan->layout;

    switch (s->kind) {
    case SLICE_COMPUTE_PUT:
        return compute_tile(run, s, partial_at(run, l, s), wg, e);
    case SLICE_COMPUTE:
        return compute_tile(run, s, local_at(run, s), wg, e);
    case SLICE_PUT:
        memcpy(partial_at(run, l, s), local_at(run, s), (size_t)s->rows * s->cols * sizeof(float));
        break;
    case SLICE_REDUCE_NODE:
        reduce_in_node(run, l, s);
        break;
    case SLICE_FORWARD:
        forward_tile(run, s);
        break;
    default:
        reduce_tile(run, l, s);
        break;
    }
    return 0;
}

/* Partial sums, a rank's or a node's, lie dense in staging memory; a result in y. */
static void gemv_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    const struct tensor *y = &run->args[dst].tensors[FCC_GEMV_Y];
    uint64_t size = dtype_size(run->problem->dtype), sums = (uint64_t)s->rows * s->cols * sizeof(float);
    const struct gemv_layout *l = run->plan->layout;

    if (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD) {
        *out = (struct put_area){.tensor = FCC_GEMV_Y,
                                 .planes = 1,
                                 .rows = s->rows,
                                 .at = tensor_at(y, 0, s->col),
                                 .row_bytes = s->cols * size,
                                 .row_stride = (uint64_t)y->stride[0] * size};
        return;
    }
    *out = (struct put_area){
        .tensor = PUT_STAGING, .planes = 1, .rows = 1, .at = partial_at(run, l, s), .row_bytes = sums, .row_stride = sums};
}

/* ---- on a GPU ---- */

static void gemv_gpu_shape(const struct problem *problem, const struct schedule *schedule, struct gpu_shape *out)
{
    if (!plan_is_over_nodes(problem)) {
        gemv_words_shape(problem, schedule, out);
        return;
    }
    struct gemv_layout l;
    gemv_layout_make(problem, schedule, &l);
    out->m = problem->gemv.m;
    out->n = problem->gemv.n;
    out->k = gemv_longest_k(problem);
    out->slot_bytes = l.slot_bytes;
    out->local_bytes = l.local_bytes;
    out->nodes = (uint32_t)l.nnodes;
    memcpy(out->first, l.columns, sizeof(out->first));
}

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
    .result = FCC_GEMV_Y,
    .check = gemv_check,
    .match = gemv_match,
    .plan = gemv_plan,
    .work = gemv_work,
    .slice = gemv_slice,
    .early = EARLY_AS_IT_IS,
    .area = gemv_area,
    .gpu_shape = gemv_gpu_shape,
    .gpu_rank = gemv_gpu_rank,
    .values = op_no_values,
};
