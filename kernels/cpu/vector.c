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

int cpu_vector(const struct run *run, const struct slice *s, const struct place *to, struct workgroup *wg, struct error *e)
{
    enum fcc_dtype dtype = run->problem->dtype;
    struct vector_piece piece = vector_piece(run, s);
    const unsigned char *from = run->args[run->rank].tensors[FCC_VECTOR_IN].data + (uint64_t)piece.at * dtype_size(dtype);

    (void)wg;
    (void)e;
    if (op_spec(run->problem->op)->exchange == EXCHANGE_PUT)
        from += ((const struct put_layout *)run->plan->layout)->at[s->dst];
    if (from != to->at) /* in place, a rank's own part is where it belongs */
        combine_convert(to->at, to->dtype, from, dtype, (size_t)piece.count);
    return 0;
}
