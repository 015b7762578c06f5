/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_nodes.c - what a fake GPU's kernels do besides if the operator is over several nodes, or adds up with flags: as in kernels/gpu/device/triggers.h and kernels/gpu/device/exchange/reduce_nodes.h.
 */
#include <string.h>

#include "tests/fake_gpu/fake_gpu_inside.h"

bool plan_goes_to(const struct gpu_plan *plan, uint32_t dst, uint32_t rank)
{
    if (dst != SLICE_DST_ALL && dst & SLICE_DST_SET)
        return plan->sets[dst - SLICE_DST_SET] >> rank & 1u;
    return dst == SLICE_DST_ALL || dst == rank;
}

bool nodes_is_remote(const struct task *t, uint32_t rank)
{
    return t->call.nodes.remote >> rank & 1u;
}

bool nodes_trigger_push(const struct gpu *g, const struct task *t, uint32_t rank, uint32_t dst, uint32_t what)
{
    const struct gpu_fifo *f = &t->call.nodes.fifo;
    _Atomic uint64_t *head = pointer(f->head), *slot;

    while ((int64_t)(atomic_load(head) - atomic_load_explicit((_Atomic uint64_t *)pointer(f->tail), memory_order_acquire)) >
           (int64_t)f->room) {
        gpu_stand(g);
        if (task_must_leave(t))
            return false;
        gpu_nap();
    }
    slot = (_Atomic uint64_t *)pointer(f->slots) + (atomic_fetch_add(head, 1) & (f->capacity - 1)) * 2;
    wrong(atomic_load_explicit(slot, memory_order_relaxed) != 0, "a slot of the FIFO is written that is not empty");
    atomic_store_explicit(slot, t->call.nodes.number | (uint64_t)rank << 32 | (uint64_t)dst << 48, memory_order_release);
    atomic_store_explicit(slot + 1, what | (t->call.epoch & UINT32_MAX) << 32, memory_order_release);
    return true;
}

bool nodes_slice_send(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, const struct slice *s,
                      uint32_t index)
{
    bool puts = slice_puts(s->kind);

    for (uint32_t r = 0; r < t->launch->fixed.shape.nranks && puts; r++)
        if (nodes_is_remote(t, r) && plan_goes_to(plan, s->dst, r) &&
            !nodes_trigger_push(g, t, plan->rank, r, FAKE_TRIGGER_PUT | index))
            return false;
    return true;
}

/* ---- partial sums with flags ---- */

/* Where a tile lies in a slot of rank `at`. */
static float *tile_of(const struct task *t, uint32_t at, uint32_t slot, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    uint32_t owner = 0;

    while (shape->first[owner + 1] <= (int64_t)(shape->by_rows ? s->row : s->col))
        owner++;
    return (float *)pointer(t->launch->fixed.staging[at] + shape->local_bytes + slot * shape->slot_bytes) +
           (shape->by_rows ? shape->n * ((int64_t)s->row - shape->first[owner]) + (int64_t)s->rows * s->col
                           : shape->m * ((int64_t)s->col - shape->first[owner]) + (int64_t)s->row * s->cols);
}

/* Of a sum in a slot, which is not there for the next operator then. */
static float term_take(const struct task *t, uint32_t at, uint32_t slot, const struct slice *s, uint32_t i)
{
    float *part = &tile_of(t, at, slot, s)[i], value = *part;

    *part = 0;
    return value;
}

/* n slots' in their order. */
static float terms_take(const struct task *t, uint32_t at, uint32_t first, uint32_t n, const struct slice *s, uint32_t i)
{
    float sum = term_take(t, at, first, s, i);

    for (uint32_t k = 1; k < n; k++)
        sum += term_take(t, at, first + k, s, i);
    return sum;
}

/* An own tile's: this node's ranks, then the nodes. */
static float sum_take(const struct task *t, uint32_t rank, const struct slice *s, uint32_t i)
{
    uint32_t nodes = t->launch->fixed.shape.nodes, own = s->slot, n = s->wait_count - (nodes - 1);
    float here = terms_take(t, rank, s->terms, n, s, i), total = 0;

    for (uint32_t j = 0; j < nodes; j++) {
        float sum = j == own ? here : term_take(t, rank, s->terms + n + j - (j > own), s, i);
        total = j ? total + sum : sum;
    }
    return total;
}

static uint32_t element_size(const struct task *t)
{
    return t->launch->fixed.shape.dtype == FCC_F32 ? 4 : 2;
}

static unsigned char *y_at(const struct task *t, uint32_t rank, const struct slice *s, uint32_t i)
{
    const struct gpu_output *y = &t->call.out[rank];

    return (unsigned char *)pointer(y->data) +
           ((int64_t)(s->dst_row + i / s->cols) * y->stride[0] + s->col + i % s->cols) * (int64_t)element_size(t);
}

void result_store(const struct task *t, const struct gpu_plan *plan, const struct slice *s, uint32_t i, const void *element)
{
    for (uint32_t r = 0; r < t->launch->fixed.shape.nranks; r++)
        if (plan_goes_to(plan, s->dst, r))
            memcpy(y_at(t, r, s, i), element, element_size(t));
}

/* What the epilogue adds to an f32 sum. */
static float stages_add(const struct task *t, const struct gpu_plan *plan, uint32_t row, uint32_t col, float sum)
{
    const struct gpu_input *in = &t->call.in[plan - t->launch->fixed.plans];

    if (in->bias)
        sum += ((const float *)pointer(in->bias))[col];
    if (in->residual)
        sum += ((const float *)pointer(in->residual))[row * in->residual_stride + col];
    return sum;
}

static void sums_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    enum fcc_dtype dtype = (enum fcc_dtype)t->launch->fixed.shape.dtype;
    unsigned char rounded[4], handed[4];

    for (uint32_t i = 0; i < s->rows * s->cols; i++) {
        switch (s->kind) {
        case SLICE_COMPUTE_PUT:
        case SLICE_PUT:
            tile_of(t, s->dst, s->slot, s)[i] = fake_partial(dtype, plan->rank, s->row + i / s->cols, s->col + i % s->cols);
            break;
        case SLICE_REDUCE_NODE:
            tile_of(t, s->dst, s->slot, s)[i] = terms_take(t, plan->rank, s->terms, s->wait_count, s, i);
            break;
        case SLICE_REDUCE:
            fake_round(dtype,
                       stages_add(t, plan, s->dst_row + i / s->cols, s->col + i % s->cols, sum_take(t, plan->rank, s, i)),
                       rounded);
            result_store(t, plan, s, i, rounded);
            break;
        case SLICE_FORWARD:
            memcpy(handed, y_at(t, plan->rank, s, i), element_size(t));
            result_store(t, plan, s, i, handed);
            break;
        default:
            break;
        }
    }
}

/* ---- the others ---- */

/* What goes to another rank, or to its own place: elements of embeddings [sample][table][dim], of products [row][column]. */
static void rows_put(const struct task *t, uint32_t rank, const struct slice *s)
{
    const struct gpu_output *out = &t->call.out[s->dst];
    bool pooled = t->launch->fixed.shape.compute == COMPUTE_BAG;
    int64_t dim = pooled ? t->launch->fixed.shape.dim : 1, col_stride = pooled ? out->stride[1] : 1;

    if (s->kind != SLICE_COMPUTE_PUT && s->kind != SLICE_PUT)
        return;
    for (int64_t i = s->dst_row; i < (int64_t)s->dst_row + s->rows; i++)
        for (int64_t j = s->dst_col; j < (int64_t)s->dst_col + s->cols; j++)
            for (int64_t d = 0; d < dim; d++)
                ((float *)pointer(out->data))[i * out->stride[0] + j * col_stride + d] = (float)(rank + 1);
}

void nodes_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;

    if (shape->exchange == EXCHANGE_REDUCE)
        sums_run(t, plan, s);
    else if (shape->dtype == FCC_F32)
        rows_put(t, plan->rank, s);
}
