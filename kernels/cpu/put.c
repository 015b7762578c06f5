/* SPDX-License-Identifier: MIT
 *
 * put.c - tiles of an All-to-All on CPU cores. They are computed into the destination's result, or into the rank's own
 * staging memory and put from there (kernels/plan/exchange/put.h).
 *
 * Memory order: each tile of a result comes from one source, and tiles do not overlap, so the order of their stores does not
 * matter. A source's flag is raised (release) after its last tile; the receiver awaits it (acquire).
 */
#include "kernels/plan/exchange/put.h"

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/execute.h"
#include "kernels/plan/compute/vector.h"

/* The slice's place in the result of rank dst. */
static struct place place_in_result(const struct run *run, const struct slice *s, int dst)
{
    struct tensor room;
    const struct tensor *t = result_rows(run, dst, &room);
    size_t size = dtype_size(t->dtype);
    struct place place = {.row_bytes = (size_t)t->stride[0] * size, .col_bytes = size, .dtype = t->dtype};

    if (op_is_vector(run->plan->op)) {
        int64_t at = vector_part(run->problem, run->rank, dst).to + s->dst_col * vector_unit(run->problem);
        place.at = t->data + (uint64_t)at * size;
        return place;
    }
    if (t->ndim > 2)
        place.col_bytes *= (size_t)t->stride[1];
    place.at = t->data + s->dst_row * place.row_bytes + s->dst_col * place.col_bytes;
    return place;
}

static struct place place_in_staging(const struct run *run, const struct slice *s)
{
    const struct put_layout *l = run->plan->layout;

    return (struct place){.at = run->staging[run->rank] + l->at[s->dst] + s->row * l->row_bytes + s->col * l->element_bytes,
                          .row_bytes = l->row_bytes,
                          .col_bytes = l->element_bytes,
                          .dtype = run->problem->dtype};
}

static struct place place_of(const struct run *run, const struct slice *s)
{
    return s->kind == SLICE_COMPUTE ? place_in_staging(run, s) : place_in_result(run, s, s->dst);
}

/* Puts a tile: whole rows if their elements are dense, otherwise element by element. */
static void put_tile(const struct run *run, const struct slice *s)
{
    struct place to = place_in_result(run, s, s->dst), from = place_in_staging(run, s);
    size_t element = from.col_bytes;

    if (to.col_bytes == element || s->cols == 1) {
        rows_copy(to.at, to.row_bytes, from.at, from.row_bytes, s->rows, s->cols * element);
        return;
    }
    for (uint32_t i = 0; i < s->cols; i++)
        rows_copy(to.at + i * to.col_bytes, to.row_bytes, from.at + i * element, from.row_bytes, s->rows, element);
}

/* One area if a row's elements are dense, otherwise a plane for each column. */
static void put_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    const struct put_layout *l = run->plan->layout;
    struct place to = place_in_result(run, s, dst);
    uint64_t row =
        op_is_vector(run->plan->op) ? (uint64_t)vector_piece(run, s).count * to.col_bytes : s->cols * l->element_bytes;
    bool dense = to.col_bytes == l->element_bytes || op_is_vector(run->plan->op);

    *out = (struct put_area){.tensor = result_rows_place(run),
                             .planes = dense ? 1 : s->cols,
                             .rows = s->rows,
                             .at = to.at,
                             .plane_bytes = dense ? 0 : to.col_bytes,
                             .row_bytes = dense ? row : l->element_bytes,
                             .row_stride = to.row_bytes,
                             .from = op_is_vector(run->plan->op) ? cpu_vector_sent(run, s) : NULL,
                             .before = op_is_vector(run->plan->op) ? cpu_vector_before(run, s) : NULL};
}

const struct cpu_exchange cpu_put = {.place = place_of, .move = put_tile, .area = put_area};
