/* SPDX-License-Identifier: MIT
 *
 * reduce.c - an AllReduce on CPU cores: partial sums go into slots of the rank that adds them up, sums are added in the
 * plan's order, and results are stored (kernels/plan/exchange/reduce_nodes.c). A tile of partial sums is dense, [M][cols];
 * a slice is some rows of it.
 *
 * Memory order: a partial sum is read only after its flag (raised with release, awaited with acquire), and no other store
 * goes to its slot. The next operator writes the slot again. A rank starts that operator after it has finished this one, that
 * is, after the result flags of all tiles. The owners raised these after reading the slots. An owner has read a node's sum
 * only after the deputy there had read the slots that the sum was made of.
 */
#include "kernels/plan/exchange/reduce.h"

#include "kernels/cpu/epilogue.h"
#include "kernels/plan/dtype.h"
#include "kernels/plan/tensor.h"

static int result_of(const struct run *run)
{
    return op_spec(run->plan->op)->result;
}

/* Bytes from the beginning of partial sums, whose first column is `first`, to the slice's. */
static uint64_t sums_before(const struct run *run, const struct slice *s, int64_t first)
{
    return (uint64_t)(run->problem->dim[DIM_M] * (s->col - first) + (int64_t)s->row * s->cols) * sizeof(float);
}

/* The slice's sums in a slot of the rank that collects its partial sums. */
static unsigned char *slot_at(const struct run *run, const struct reduce_layout *l, const struct slice *s, int at, int slot)
{
    return run->staging[at] + l->local_bytes + (uint64_t)slot * l->slot_bytes +
           sums_before(run, s, l->columns[reduce_owner(l, s->col)]);
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

/* Collects the partial sums of this node's ranks in rank order, from element `at` of the slice on. Returns their number. */
static int node_terms(const struct run *run, const struct reduce_layout *l, const struct slice *s, size_t at,
                      const unsigned char *terms[FCC_MAX_RANKS])
{
    const unsigned char *first = slot_at(run, l, s, run->rank, s->terms) + at * sizeof(float);
    int n = 0;

    do
        terms[n] = first + (uint64_t)n * l->slot_bytes;
    while (++n < l->size[l->node[run->rank]]); /* the loop ends, as this rank is one of the node's */
    return n;
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
    int own = s->slot, nterms = node_terms(run, l, s, at, terms);

    add_in_order(sum, terms, nterms, n);
    if (l->nnodes == 1)
        return;
    for (int j = 0; j < l->nnodes; j++)
        terms[j] = j == own ? sum : slot_at(run, l, s, run->rank, reduce_node_slot(l, run->rank, j)) + at * sizeof(float);
    add_in_order(sum, terms, l->nnodes, n);
}

static void reduce_tile(const struct run *run, const struct reduce_layout *l, const struct slice *s)
{
    enum { PIECE = 1024 };
    _Alignas(64) float sum[PIECE];
    _Alignas(64) unsigned char rounded[PIECE * sizeof(float)];
    enum fcc_dtype dtype = run->problem->dtype;
    size_t size = dtype_size(dtype);
    struct epilogue room;
    const struct epilogue *epilogue = epilogue_at(run, s, &room);

    for (uint32_t m = 0; m < s->rows; m++) {
        for (uint32_t done = 0; done < s->cols; done += PIECE) {
            size_t n = s->cols - done < PIECE ? s->cols - done : PIECE;
            reduce_piece(run, l, s, (size_t)m * s->cols + done, n, (unsigned char *)sum);
            if (epilogue)
                epilogue_add(epilogue, m, done, sum, n);
            dtype_from_f32(rounded, sum, dtype, n);
            for (int r = 0; r < run->problem->nranks; r++)
                if (plan_reaches(run->plan, s->dst, r))
                    memcpy(tensor_at(&run->args[r].tensors[result_of(run)], (int64_t)s->row + m, (int64_t)s->col + done),
                           rounded, n * size);
        }
    }
}

static void forward_tile(const struct run *run, const struct slice *s)
{
    const struct tensor *from = &run->args[run->rank].tensors[result_of(run)];
    size_t size = dtype_size(run->problem->dtype);

    for (int r = 0; r < run->problem->nranks; r++) {
        const struct tensor *to = &run->args[r].tensors[result_of(run)];
        if (plan_reaches(run->plan, s->dst, r))
            rows_copy(tensor_at(to, s->row, s->col), (size_t)to->stride[0] * size, tensor_at(from, s->row, s->col),
                      (size_t)from->stride[0] * size, s->rows, s->cols * size);
    }
}

static struct place place_of(const struct run *run, const struct slice *s)
{
    unsigned char *at = s->kind == SLICE_COMPUTE ? local_at(run, s) : partial_at(run, run->plan->layout, s);

    return (struct place){.at = at, .row_bytes = s->cols * sizeof(float), .col_bytes = sizeof(float), .dtype = FCC_F32};
}

static void move(const struct run *run, const struct slice *s)
{
    const struct reduce_layout *l = run->plan->layout;

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
    const struct tensor *y = &run->args[dst].tensors[result_of(run)];
    uint64_t size = dtype_size(run->problem->dtype), sums = (uint64_t)s->rows * s->cols * sizeof(float);
    const struct reduce_layout *l = run->plan->layout;

    if (s->kind == SLICE_REDUCE || s->kind == SLICE_FORWARD) {
        *out = (struct put_area){.tensor = result_of(run),
                                 .planes = 1,
                                 .rows = s->rows,
                                 .at = tensor_at(y, s->row, s->col),
                                 .row_bytes = s->cols * size,
                                 .row_stride = (uint64_t)y->stride[0] * size};
        return;
    }
    *out = (struct put_area){
        .tensor = PUT_STAGING, .planes = 1, .rows = 1, .at = partial_at(run, l, s), .row_bytes = sums, .row_stride = sums};
}

const struct cpu_exchange cpu_reduce = {.place = place_of, .move = move, .area = reduce_area};
