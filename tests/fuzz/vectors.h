/* SPDX-License-Identifier: MIT
 *
 * vectors.h - for fuzz_arguments.c: what ranks ask of collectives, and what their plans must be.
 */
#ifndef FCC_FUZZ_VECTORS_H
#define FCC_FUZZ_VECTORS_H

#include "kernels/plan/compute/vector.h"
#include "kernels/plan/exchange/reduce.h"
#include "tests/fuzz/fuzz.h"

enum { VECTOR_RANKS = 8 };

/* Elements of each rank's input and result; -1: it has none. */
struct vector_lengths {
    int64_t in[VECTOR_RANKS], out[VECTOR_RANKS];
    int64_t counts[VECTOR_RANKS][VECTOR_RANKS]; /* COUNTED */
};

static inline int64_t vector_length(uint8_t share, int rank, int root, const int64_t own[], int64_t whole)
{
    return share == VECTOR_OWN ? own[rank] : share == VECTOR_ALL || rank == root ? whole : -1;
}

/* shift: rank r sends to rank r + shift; -1: an all-to-all. */
static inline void vector_lengths_draw(struct input *in, const struct op_spec *op, int nranks, int root, int shift,
                                       struct vector_lengths *l)
{
    int64_t own[VECTOR_RANKS], whole = 0;

    for (int r = 0; r < nranks; r++) {
        int64_t n = input_number(in);
        whole += own[r] = n < 0 || n > INT64_C(1) << 36 ? 5 : n;
    }
    for (int r = 0; r < nranks; r++) {
        l->in[r] = vector_length(op->in, r, root, own, whole);
        l->out[r] = vector_length(op->out, r, root, own, whole);
        for (int q = 0; q < nranks; q++)
            l->counts[r][q] = shift < 0 ? own[(r + q) % nranks] : shift > 0 && q == (r + shift) % nranks ? own[r] : 0;
    }
    for (int r = 0; r < nranks && op->in == VECTOR_COUNTED; r++) {
        l->in[r] = l->out[r] = shift == 0 ? -1 : 0;
        for (int q = 0; q < nranks && shift != 0; q++) {
            l->in[r] += l->counts[r][q];
            l->out[r] += l->counts[q][r];
        }
    }
}

/* Every slice lies in the part that it is of. */
static inline void vector_expect(const struct problem *p, const struct plan *plan, const struct slice *s)
{
    int64_t unit = vector_unit(p), elements[VECTOR_RANKS + 1], first = 0, part = 0;

    FUZZ_CHECK(s->rows == 1 && s->cols && s->row == 0);
    if (op_spec(p->op)->exchange == EXCHANGE_PUT) {
        part = vector_part(p, plan->rank, s->dst).count;
    } else if (reduce_is_by_all(p, &plan->schedule)) {
        part = p->dim[DIM_N];
    } else {
        vector_chunks(p, elements);
        for (int r = 0; r < p->nranks; r++) {
            part = elements[r + 1] - elements[r];
            if (s->col < first + vector_columns(part, vector_unit(p)))
                break;
            first += vector_columns(part, vector_unit(p));
        }
    }
    FUZZ_CHECK(s->col >= first && s->col - first + (int64_t)s->cols <= vector_columns(part, vector_unit(p)) &&
               (s->col - first) * unit < part);
}

#endif
