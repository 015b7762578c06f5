/* SPDX-License-Identifier: MIT
 *
 * vector.c - the tiles of collectives: a tile is a piece of the rank's input.
 */
#include <string.h>

#include "kernels/cpu/combine.h"
#include "kernels/cpu/execute.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/exchange/put.h"
#include "kernels/plan/exchange/reduce.h"

struct vector_piece vector_piece(const struct run *run, const struct slice *s)
{
    const struct problem *p = run->problem;
    int64_t unit = vector_unit(p), begin = s->col * unit, end;

    if (op_spec(p->op)->exchange == EXCHANGE_REDUCE) {
        const struct reduce_layout *l = run->plan->layout;
        int owner = reduce_owner(l, s->col);
        begin = l->elements[owner] + (s->col - l->columns[owner]) * unit;
        end = l->elements[owner + 1];
    } else {
        end = vector_part(p, run->rank, s->dst).count;
    }
    return (struct vector_piece){.at = begin, .count = s->cols * unit < end - begin ? s->cols * unit : end - begin};
}

/* Where the slice's piece lies in the rank's input. */
static const unsigned char *piece_at(const struct run *run, const struct slice *s, const struct vector_piece *piece)
{
    const unsigned char *in =
        run->args[run->rank].tensors[FCC_VECTOR_IN].data + (uint64_t)piece->at * dtype_size(run->problem->dtype);

    return op_spec(run->problem->op)->exchange == EXCHANGE_PUT ? in + ((const struct put_layout *)run->plan->layout)->at[s->dst]
                                                               : in;
}

const unsigned char *cpu_vector_before(const struct run *run, const struct slice *s)
{
    const struct problem *p = run->problem;
    bool one = s->dst != SLICE_DST_ALL && !(s->dst & SLICE_DST_SET);

    if (s->kind != SLICE_COMPUTE_PUT || !one || problem_is_here(p, s->dst) ||
        (op_spec(p->op)->exchange == EXCHANGE_REDUCE && vector_sum_dtype(p->dtype) != p->dtype))
        return NULL;
    const struct vector_piece piece = vector_piece(run, s);
    return piece_at(run, s, &piece);
}

/* Whether the rank stores its result over the input without anybody's word that this has come: if each rank adds up all, in place. */
static bool is_overwritten(const struct run *run)
{
    const struct tensor *tensors = run->args[run->rank].tensors;

    return op_spec(run->problem->op)->exchange == EXCHANGE_REDUCE &&
           ((const struct reduce_layout *)run->plan->layout)->by_all &&
           tensors[FCC_VECTOR_IN].data == tensors[FCC_VECTOR_OUT].data;
}

const unsigned char *cpu_vector_sent(const struct run *run, const struct slice *s)
{
    const unsigned char *from = cpu_vector_before(run, s);

    return from && is_overwritten(run) ? NULL : from;
}

/* Inputs stay as they are until all ranks of this node have ended the operator together; in place, who adds up a block has read all of its
 * terms before it stores the sum. */
bool cpu_vector_read(const struct run *run, int rank)
{
    const struct problem *p = run->problem;

    return op_spec(p->op)->exchange == EXCHANGE_REDUCE && p->node >= 0 && problem_is_here(p, rank) &&
           run->plan->schedule.kind == FCC_SCHEDULE_FUSED && vector_sum_dtype(p->dtype) == p->dtype;
}

int cpu_vector(const struct run *run, const struct slice *s, const struct place *to, struct workgroup *wg, struct error *e)
{
    enum fcc_dtype dtype = run->problem->dtype;
    struct vector_piece piece = vector_piece(run, s);
    const unsigned char *from = piece_at(run, s, &piece);

    (void)wg;
    (void)e;
    if (s->kind == SLICE_COMPUTE_PUT && cpu_vector_read(run, s->dst))
        return 0;
    if (from != to->at && !cpu_vector_sent(run, s)) /* in place, a rank's own part is where it belongs */
        combine_convert(to->at, to->dtype, from, dtype, (size_t)piece.count);
    return 0;
}
