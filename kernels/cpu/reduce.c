/* SPDX-License-Identifier: MIT
 *
 * reduce.c - an AllReduce on CPU cores: partial sums go into slots of the rank that adds them up, sums are added in the
 * plan's order, and results are stored (kernels/plan/exchange/reduce_nodes.c). A tile of partial sums is dense, [M][cols];
 * a slice is some rows of it. Of sums whose rows are scattered a tile has all columns, and slices, some columns each, are dense.
 *
 * Memory order: a partial sum is read only after its flag (raised with release, awaited with acquire), and no other store
 * goes to its slot. The next operator writes the slot again. A rank starts that operator after it has finished this one, that
 * is, after the result flags of all tiles. The owners raised these after reading the slots. An owner has read a node's sum
 * only after the deputy there had read the slots that the sum was made of.
 */
#include "kernels/plan/exchange/reduce.h"

#include "kernels/cpu/combine.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/step.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/dtype.h"
#include "kernels/plan/tensor.h"

/* Bytes from the beginning of partial sums, whose first column (by rows: row) is `first`, to the slice's. */
static uint64_t sums_before(const struct run *run, const struct slice *s, int64_t first)
{
    const struct reduce_layout *l = run->plan->layout;

    if (l->by_rows)
        return (uint64_t)(l->across * (s->row - first) + (int64_t)s->rows * s->col) * l->column_bytes;
    return (uint64_t)(run->problem->dim[DIM_M] * (s->col - first) + (int64_t)s->row * s->cols) * l->column_bytes;
}

/* The slice's sums in a slot of the rank that collects its partial sums. */
static unsigned char *slot_at(const struct run *run, const struct reduce_layout *l, const struct slice *s, int at, int slot)
{
    return run->staging[at] + l->local_bytes + (uint64_t)slot * l->slot_bytes +
           sums_before(run, s, l->columns[reduce_slice_owner(l, s)]);
}

/* The destination of the partial sum that this rank puts: its own sum, or its node's. */
static unsigned char *partial_at(const struct run *run, const struct reduce_layout *l, const struct slice *s)
{
    return slot_at(run, l, s, s->dst, s->slot);
}

/* The slice's part of the rank's own partial sums. */
static unsigned char *local_at(const struct run *run, const struct slice *s)
{
    return run->staging[run->rank] + sums_before(run, s, 0);
}

/* sum[i] = terms[0][i] + terms[1][i] + ..., in this order. sum may be one of the terms. */
FCC_CLONES
static void add_in_order(unsigned char *sum, const unsigned char *const terms[], int nterms, size_t n)
{
    size_t whole = n / 16 * 16;

    for (size_t i = 0; i < whole; i += 16) { /* vectors that all processors have: memory is the limit */
        f32x4 total[4], v;
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++)
            memcpy(&total[j], terms[0] + (i + 4 * j) * sizeof(float), sizeof(v));
        for (int t = 1; t < nterms; t++) {
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++) {
                memcpy(&v, terms[t] + (i + 4 * j) * sizeof(float), sizeof(v));
                total[j] += v;
            }
        }
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++)
            memcpy(sum + (i + 4 * j) * sizeof(float), &total[j], sizeof(v));
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

/* Collects the partial sums of this node's ranks in rank order, from byte `at` of the slice on. Returns their number. */
static int node_terms(const struct run *run, const struct reduce_layout *l, const struct slice *s, size_t at,
                      const unsigned char *terms[FCC_MAX_RANKS])
{
    const unsigned char *first = slot_at(run, l, s, run->rank, s->terms) + at;
    int n = 0;

    do
        terms[n] = first + (uint64_t)n * l->slot_bytes;
    while (++n < l->size[l->node[run->rank]] && !l->adds); /* the loop ends, as this rank is one of the node's */
    return n;
}

/* Collects the nodes' sums in order; of this node it is `own`. */
static void nodes_terms(const struct run *run, const struct reduce_layout *l, const struct slice *s, size_t at,
                        const unsigned char *own, const unsigned char *terms[FCC_MAX_RANKS])
{
    for (int j = 0; j < l->nnodes; j++)
        terms[j] = j == s->slot ? own : slot_at(run, l, s, run->rank, reduce_node_slot(l, run->rank, j)) + at;
}

static void reduce_in_node(const struct run *run, const struct reduce_layout *l, const struct slice *s)
{
    const unsigned char *terms[FCC_MAX_RANKS];
    int n = node_terms(run, l, s, 0, terms);

    add_in_order(partial_at(run, l, s), terms, n, (size_t)s->rows * s->cols);
}

/* Reduces n elements from `at` of an own tile on: first this node's ranks, then the nodes. A flat plan has one node. */
static void reduce_piece(const struct run *run, const struct reduce_layout *l, const struct slice *s, size_t at, size_t n,
                         unsigned char *sum)
{
    const unsigned char *terms[FCC_MAX_RANKS];
    int nterms = node_terms(run, l, s, at * sizeof(float), terms);
    const unsigned char *here = sum;

    if (nterms == 1 && l->nnodes > 1)
        here = terms[0]; /* the only one is read where it lies */
    else
        add_in_order(sum, terms, nterms, n);
    if (l->nnodes == 1)
        return;
    nodes_terms(run, l, s, at * sizeof(float), here, terms);
    add_in_order(sum, terms, l->nnodes, n);
}

/* ---- collectives: the same for any dtype and reduction, from slots, or from all ranks' inputs ---- */

/* Combines n elements from `at` of the slice on, which is a piece of the whole vector. in_node: of this node's ranks only. */
static void vector_combine(const struct run *run, const struct slice *s, const struct vector_piece *piece, int64_t at, size_t n,
                           bool in_node, unsigned char *sum)
{
    const struct reduce_layout *l = run->plan->layout;
    const struct problem *p = run->problem;
    enum fcc_reduction reduction = (enum fcc_reduction)p->dim[DIM_REDUCTION];
    enum fcc_dtype dtype = vector_sum_dtype(p->dtype);
    uint64_t byte = (uint64_t)at * dtype_size(dtype);
    _Alignas(64) unsigned char own[COMBINE_BLOCK_BYTES]; /* this node's */
    const unsigned char *terms[FCC_MAX_RANKS];

    if (l->direct) {
        uint64_t begin = (uint64_t)(piece->at + at) * dtype_size(p->dtype);
        for (int r = 0; r < p->nranks; r++)
            terms[r] = run->args[r].tensors[FCC_VECTOR_IN].data + begin;
        combine(reduction, p->dtype, dtype, terms, p->nranks, n, sum);
        return;
    }
    bool last = l->nnodes == 1 || in_node;
    int here = node_terms(run, l, s, byte, terms);
    const unsigned char *sum_here = own;
    for (int i = 0; i < here; i++) {
        int r = l->member[l->first[l->node[run->rank]] + i];
        if (cpu_vector_read(run, r))
            terms[i] = run->args[r].tensors[FCC_VECTOR_IN].data + (uint64_t)(piece->at + at) * dtype_size(p->dtype);
    }
    if (here == 1 && !last)
        sum_here = terms[0]; /* the only one is read where it lies */
    else
        combine(reduction, dtype, dtype, terms, here, n, last ? sum : own);
    if (last)
        return;
    nodes_terms(run, l, s, byte, sum_here, terms);
    combine(reduction, dtype, dtype, terms, l->nnodes, n, sum);
}

/* Applies an epilogue to n elements, from element `at` of the vector on, which is a matrix of `cols` columns. */
static void vector_stages(const struct tile_stages *stages, int64_t cols, int64_t at, float *sums, size_t n)
{
    for (size_t done = 0, count; done < n; done += count) {
        const int64_t row = (at + (int64_t)done) / cols, col = (at + (int64_t)done) % cols;
        count = n - done < (size_t)(cols - col) ? n - done : (size_t)(cols - col);
        tile_stages_apply(stages, row, col, sums + done, count);
    }
}

/* The same for elements of a program's step: n from element `at` of all on, read where each rank has them, which are the places of a table's
 * tensor, or slots. */
static void step_combine(const struct run *run, const struct slice *s, const struct vector_piece *piece, int64_t at, size_t n,
                         struct step *step)
{
    const struct reduce_layout *l = run->plan->layout;
    const struct problem *p = run->problem;
    const unsigned char *terms[FCC_MAX_RANKS];

    if (!l->direct || !step->code.begins) {
        vector_combine(run, s, piece, at, n, false, (unsigned char *)step->block[0]);
        return;
    }
    for (int r = 0; r < p->nranks; r++)
        terms[r] = step_place(step, &run->args[r], STEP_IN, piece->at + at);
    combine(FCC_SUM, p->dtype, FCC_F32, terms, p->nranks, n, (unsigned char *)step->block[0]);
}

/* Where a rank gets an element of the vector. */
static unsigned char *vector_result(const struct run *run, int rank, int64_t element)
{
    const size_t size = dtype_size(step_result_dtype(run->problem));

    if (run->plan->has_rows)
        return run->staging[rank] + run->plan->rows_at + (uint64_t)element * size;
    return run->args[rank].tensors[FCC_VECTOR_OUT].data + (uint64_t)vector_result_at(run->problem, rank, element) * size;
}

/* Whether a result for a rank on another node is sent from this rank's own, which has the same elements. */
static bool is_sent(const struct run *run, const struct slice *s, int rank)
{
    return !problem_is_here(run->problem, rank) && plan_reaches(run->plan, s->dst, run->rank);
}

/* REDUCE of a program's step: what it does, with the sums over the ranks if it has such, is stored into the results if it has such; all else it stores
 * itself. */
static void step_reduce(const struct run *run, const struct slice *s)
{
    const struct reduce_layout *l = run->plan->layout;
    const struct problem *p = run->problem;
    const struct vector_piece piece = vector_piece(run, s);
    const enum fcc_dtype dtype = step_result_dtype(p);
    _Alignas(64) unsigned char rounded[COMBINE_BLOCK_BYTES];
    struct step step;
    size_t n;

    step_begin(&step, &run->args[run->rank], step_code(&run->args[run->rank]), p->rank_dim[DIM_N][run->rank],
               p->rank_dim[DIM_N][run->rank] + p->rank_dim[DIM_K][run->rank]);
    for (int64_t at = 0; at < piece.count; at += (int64_t)n) {
        n = step_block_size(&step, piece.at + at, piece.count - at);
        if (step_reduces(p))
            step_combine(run, s, &piece, at, n, &step);
        step_block(&step, piece.at + at, n);
        if (!step_has_result(p))
            continue;
        combine_convert(rounded, dtype, step_result(&step), FCC_F32, n);
        for (int r = 0; r < p->nranks; r++)
            if (plan_reaches(run->plan, s->dst, r) && !is_sent(run, s, r))
                memcpy(l->direct ? step_place(&step, &run->args[r], STEP_OUT, piece.at + at)
                                 : vector_result(run, r, piece.at + at),
                       rounded, n * dtype_size(dtype));
    }
}

/* The rank whose result alone gets the slice's elements from this one, as they are combined. -1: there are several, or none, or something is done with
 * the sums before they are stored. */
static int sole_result(const struct run *run, const struct slice *s, const struct tile_stages *stages)
{
    const struct problem *p = run->problem;
    int sole = -1;

    if (s->kind == SLICE_REDUCE_NODE || p->dim[DIM_REDUCTION] == FCC_AVERAGE || stages ||
        p->dtype != vector_sum_dtype(p->dtype))
        return -1;
    for (int r = 0; r < p->nranks; r++) {
        if (!plan_reaches(run->plan, s->dst, r) || is_sent(run, s, r))
            continue;
        if (sole >= 0)
            return -1;
        sole = r;
    }
    return sole;
}

/* REDUCE: rounds the combined elements and stores them into the results. REDUCE_NODE: puts them to the owner. */
static void vector_reduce(const struct run *run, const struct slice *s)
{
    _Alignas(64) unsigned char sum[COMBINE_BLOCK_BYTES], rounded[COMBINE_BLOCK_BYTES];
    const struct problem *p = run->problem;
    const struct vector_piece piece = vector_piece(run, s);
    enum fcc_dtype dtype = vector_sum_dtype(p->dtype);
    size_t size = dtype_size(p->dtype), sum_size = dtype_size(dtype), n;
    bool in_node = s->kind == SLICE_REDUCE_NODE;
    struct tile_stages room;
    const struct tile_stages *stages = tile_stages_at(run, &(struct slice){.row = 0}, &room); /* of the whole matrix */
    const int sole = sole_result(run, s, stages);

    for (int64_t at = 0; at < piece.count; at += (int64_t)n) {
        n = piece.count - at < COMBINE_BLOCK ? (size_t)(piece.count - at) : COMBINE_BLOCK;
        vector_combine(run, s, &piece, at, n, in_node, sole < 0 ? sum : vector_result(run, sole, piece.at + at));
        if (sole >= 0)
            continue;
        if (in_node) {
            memcpy(partial_at(run, run->plan->layout, s) + (uint64_t)at * sum_size, sum, n * sum_size);
            continue;
        }
        if (p->dim[DIM_REDUCTION] == FCC_AVERAGE)
            combine_divide(dtype, p->nranks, n, sum);
        if (stages)
            vector_stages(stages, p->epilogue.cols, piece.at + at, (float *)(void *)sum, n);
        if (p->dtype != dtype)
            combine_convert(rounded, p->dtype, sum, dtype, n);
        for (int r = 0; r < p->nranks; r++)
            if (plan_reaches(run->plan, s->dst, r) && !is_sent(run, s, r))
                memcpy(vector_result(run, r, piece.at + at), p->dtype != dtype ? rounded : sum, n * size);
    }
}

/* Where the slice's elements are in a rank's result, as one row. */
static struct put_area result_area(const struct run *run, const struct slice *s, int rank)
{
    struct tensor room;
    const struct tensor *y = result_rows(run, rank, &room);
    size_t size = dtype_size(step_result_dtype(run->problem));

    if (!op_is_vector(run->plan->op))
        return (struct put_area){.tensor = result_rows_place(run),
                                 .planes = 1,
                                 .rows = s->rows,
                                 .at = tensor_at(y, s->dst_row, s->col),
                                 .row_bytes = s->cols * size,
                                 .row_stride = (uint64_t)y->stride[0] * size};
    const struct vector_piece piece = vector_piece(run, s);
    return (struct put_area){.tensor = result_rows_place(run),
                             .planes = 1,
                             .rows = 1,
                             .at = vector_result(run, rank, piece.at),
                             .row_bytes = (uint64_t)piece.count * size,
                             .row_stride = (uint64_t)piece.count * size,
                             .from = s->kind == SLICE_REDUCE && is_sent(run, s, rank) ? vector_result(run, run->rank, piece.at)
                                                                                      : NULL};
}

static void reduce_tile(const struct run *run, const struct reduce_layout *l, const struct slice *s)
{
    enum { PIECE = 1024 };
    _Alignas(64) float sum[PIECE];
    _Alignas(64) unsigned char rounded[PIECE * sizeof(float)];
    enum fcc_dtype dtype = run->problem->dtype;
    size_t size = dtype_size(dtype);
    const struct slice result = {.row = s->dst_row, .col = s->dst_col}; /* where the rank's result has the tile */
    struct tile_stages room;
    const struct tile_stages *stages = tile_stages_at(run, &result, &room);
    struct tensor rows;

    for (uint32_t m = 0; m < s->rows; m++) {
        for (uint32_t done = 0; done < s->cols; done += PIECE) {
            size_t n = s->cols - done < PIECE ? s->cols - done : PIECE;
            reduce_piece(run, l, s, (size_t)m * s->cols + done, n, (unsigned char *)sum);
            if (stages)
                tile_stages_apply(stages, m, done, sum, n);
            dtype_from_f32(rounded, sum, dtype, n);
            for (int r = 0; r < run->problem->nranks; r++)
                if (plan_reaches(run->plan, s->dst, r))
                    memcpy(tensor_at(result_rows(run, r, &rows), (int64_t)s->dst_row + m, (int64_t)s->col + done), rounded,
                           n * size);
        }
    }
}

static void forward_tile(const struct run *run, const struct slice *s)
{
    const struct put_area from = result_area(run, s, run->rank);

    for (int r = 0; r < run->problem->nranks; r++) {
        if (!plan_reaches(run->plan, s->dst, r))
            continue;
        const struct put_area to = result_area(run, s, r);
        rows_copy(to.at, to.row_stride, from.at, from.row_stride, from.rows, from.row_bytes);
    }
}

/* Where a tile is added into the result of its owner. */
static struct place place_in_result(const struct run *run, const struct slice *s)
{
    const struct tensor *c = &run->args[s->dst].tensors[op_spec(run->plan->op)->result];

    return (struct place){.at = tensor_at(c, s->dst_row, s->col),
                          .row_bytes = (size_t)c->stride[0] * sizeof(float),
                          .col_bytes = sizeof(float),
                          .dtype = FCC_F32,
                          .tile = &run->added[s->dst][reduce_added_tile(run->plan->layout, &run->plan->schedule, s)]};
}

static struct place place_of(const struct run *run, const struct slice *s)
{
    const struct reduce_layout *l = run->plan->layout;

    if (run->plan->adds_into_result)
        return place_in_result(run, s);
    return (struct place){.at = s->kind == SLICE_COMPUTE ? local_at(run, s) : partial_at(run, l, s),
                          .row_bytes = (size_t)s->cols * l->column_bytes,
                          .col_bytes = l->column_bytes,
                          .tile = l->adds ? &run->added[s->dst][reduce_added_tile(l, &run->plan->schedule, s)] : NULL,
                          .dtype = op_is_vector(run->plan->op) ? vector_sum_dtype(run->problem->dtype) : FCC_F32};
}

static void move(const struct run *run, const struct slice *s)
{
    const struct reduce_layout *l = run->plan->layout;

    if (op_is_step(run->plan->op) && s->kind == SLICE_REDUCE) {
        step_reduce(run, s);
        return;
    }
    if (op_is_vector(run->plan->op) && s->kind != SLICE_FORWARD) {
        vector_reduce(run, s);
        return;
    }
    switch (s->kind) {
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
}

/* The area of a slice at its destination. Partial sums of a rank or node are dense in staging memory; a result is in the
 * result tensor. */
static void reduce_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    const struct reduce_layout *l = run->plan->layout;
    uint64_t sums = (uint64_t)s->rows * s->cols * l->column_bytes;

    if (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD) {
        *out = result_area(run, s, dst);
        return;
    }
    *out = (struct put_area){
        .tensor = PUT_STAGING, .planes = 1, .rows = 1, .at = partial_at(run, l, s), .row_bytes = sums, .row_stride = sums};
    if (!op_is_vector(run->plan->op))
        return;
    out->from = cpu_vector_sent(run, s);
    out->before = cpu_vector_before(run, s);
    if (out->before) {
        /* the last column may be shorter, and the input ends there */
        out->row_bytes = out->row_stride = (uint64_t)vector_piece(run, s).count * dtype_size(run->problem->dtype);
    }
}

const struct cpu_exchange cpu_reduce = {.place = place_of, .move = move, .area = reduce_area};
