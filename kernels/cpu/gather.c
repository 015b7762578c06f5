/* SPDX-License-Identifier: MIT
 *
 * gather.c - the rows of A on CPU cores: where they are, and how they get there (kernels/plan/exchange/gather.h).
 *
 * Memory order: rows in a rank's `a` on this node were there before the operator began. Those in staging memory, or in `gathered`, are read
 * after the flag that was raised behind their last store, by a rank of this node (release) or by the thread that receives from another one.
 * Each rank awaits the flags of all ranks of its node (acquire), which these raise when they have read its rows, so its program may then store
 * into them.
 */
#include "kernels/plan/exchange/gather.h"

#include <string.h>

#include "kernels/cpu/dense.h"
#include "kernels/plan/tensor.h"

static const struct gather_layout *layout_of(const struct run *run)
{
    return run->plan->layout;
}

/* Rows that lie row_bytes apart. */
struct rows_place {
    unsigned char *at;
    size_t row_bytes;
};

static struct rows_place in_tensor(const struct tensor *t, int64_t row)
{
    return (struct rows_place){.at = tensor_at(t, row, 0), .row_bytes = (size_t)t->stride[0] * dtype_size(t->dtype)};
}

static struct rows_place in_staging(const struct run *run, int rank, uint64_t begin, int64_t row)
{
    const uint64_t bytes = layout_of(run)->row_bytes;

    return (struct rows_place){.at = run->staging[rank] + begin + (uint64_t)row * bytes, .row_bytes = bytes};
}

/* The slice's row among those of its source. */
static int64_t row_of(const struct run *run, const struct slice *s)
{
    return (int64_t)s->row - layout_of(run)->first[s->slot];
}

static struct rows_place at_source(const struct run *run, const struct slice *s)
{
    return in_tensor(&run->args[s->slot].tensors[FCC_GATHER_A], row_of(run, s));
}

/* Where this rank reads the slice's rows, when they have come. */
static struct rows_place rows_here(const struct run *run, const struct slice *s)
{
    const struct gather_layout *l = layout_of(run);

    if (l->place[s->slot] == GATHER_AT_SOURCE)
        return at_source(run, s);
    if (l->place[s->slot] == GATHER_IN_GATHERED)
        return in_tensor(&run->args[run->rank].tensors[FCC_GATHER_GATHERED], s->row);
    return in_staging(run, l->place[s->slot], l->at[s->slot], row_of(run, s));
}

static bool comes_from_elsewhere(const struct run *run, int source)
{
    return run->problem->node_of[source] != run->problem->node_of[run->rank];
}

struct factor gathered_factor(const struct run *run, const struct slice *s)
{
    const struct gather_layout *l = layout_of(run);
    const enum fcc_dtype dtype = run->args[run->rank].tensors[FCC_GATHER_A].dtype;
    const struct rows_place from = rows_here(run, s);
    struct factor f = {
        .at = from.at, .ld = (int64_t)(from.row_bytes / dtype_size(dtype)), .dtype = dtype, .row = row_of(run, s)};

    if (!comes_from_elsewhere(run, s->slot)) {
        f.scale = factor_scale_of(&run->args[s->slot], FCC_GATHER_A);
    } else if (l->scales_at) { /* a row's scales follow it */
        f.scale = (struct factor_scale){
            .at = (const float *)(const void *)(in_staging(run, l->place[s->slot], l->at[s->slot], 0).at + l->scales_at),
            .rows = 1,
            .cols = FACTOR_BLOCK,
            .stride = (int64_t)(l->row_bytes / sizeof(float))};
    }
    return f;
}

/* ---- copies ---- */

static void copy(const struct run *run, const struct slice *s, struct rows_place to, struct rows_place from)
{
    rows_copy(to.at, to.row_bytes, from.at, from.row_bytes, s->rows, s->cols * (size_t)run->problem->dim[DIM_FACTOR_BYTES]);
}

/* The scales of this rank's rows: each row gets one for each block of its columns. */
static void scales_copy(const struct run *run, const struct slice *s, struct rows_place to)
{
    const struct factor_scale scale = factor_scale_of(&run->args[run->rank], FCC_GATHER_A);
    const int64_t blocks = ((int64_t)s->cols + FACTOR_BLOCK - 1) / FACTOR_BLOCK;

    for (uint32_t i = 0; i < s->rows; i++)
        for (int64_t block = 0; block < blocks; block++)
            memcpy(to.at + i * to.row_bytes + layout_of(run)->scales_at + (size_t)block * sizeof(float),
                   &scale.at[(row_of(run, s) + i) / scale.rows * scale.stride + block * FACTOR_BLOCK / scale.cols],
                   sizeof(float));
}

static struct rows_place sent_to(const struct run *run, const struct slice *s, int dst)
{
    return in_staging(run, dst, layout_of(run)->sent[dst], row_of(run, s));
}

/* PUT: this rank's rows to the memory of another node's rank, or rows of this node to where this rank multiplies them. FORWARD: to `gathered`. */
static void gather_move(const struct run *run, const struct slice *s)
{
    if (s->kind == SLICE_FORWARD) {
        copy(run, s, in_tensor(&run->args[run->rank].tensors[FCC_GATHER_GATHERED], s->row), rows_here(run, s));
        return;
    }
    if (s->dst == run->rank) {
        copy(run, s, rows_here(run, s), at_source(run, s));
        return;
    }
    copy(run, s, sent_to(run, s, s->dst), at_source(run, s));
    if (layout_of(run)->scales_at)
        scales_copy(run, s, sent_to(run, s, s->dst));
}

/* What is sent to another node is dense. */
static void gather_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    const struct rows_place to = sent_to(run, s, dst);

    *out = (struct put_area){.tensor = PUT_STAGING,
                             .planes = 1,
                             .rows = 1,
                             .at = to.at,
                             .row_bytes = s->rows * to.row_bytes,
                             .row_stride = s->rows * to.row_bytes};
}

/* A tile of C goes to this rank's rows. */
static struct place gather_place(const struct run *run, const struct slice *s)
{
    struct tensor room;
    const struct tensor *t = result_rows(run, run->rank, &room);
    const size_t size = dtype_size(t->dtype);

    return (struct place){
        .at = tensor_at(t, s->row, s->col), .row_bytes = (size_t)t->stride[0] * size, .col_bytes = size, .dtype = t->dtype};
}

const struct cpu_exchange cpu_gather = {.place = gather_place, .move = gather_move, .area = gather_area};
