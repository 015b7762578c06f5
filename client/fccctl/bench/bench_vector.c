/* SPDX-License-Identifier: MIT
 *
 * bench_vector.c - collectives: the lengths of a rank's vectors, what is sent to whom, and the reference results. The root is rank 0; in
 * send_receive each rank sends to the next one.
 */
#include "client/fccctl/bench/bench.h"
#include "kernels/plan/compute/vector.h"

static bool is_ring(const struct shape *s)
{
    return s->spec->attrs[0].key == FCC_ATTR_DESTINATION;
}

/* Elements of the parts of the ranks before this one. */
static int64_t begin_of(const struct shape *s, int rank)
{
    return rank * (s->count / s->nranks) + (rank < s->count % s->nranks ? rank : s->count % s->nranks);
}

int64_t vector_sent(const struct shape *s, int source, int destination)
{
    if (is_ring(s))
        return destination == (source + 1) % s->nranks ? s->count : 0;
    return shape_share(s->count, s->nranks, destination);
}

int64_t vector_length(const struct shape *s, bool in, int rank)
{
    int64_t sum = 0;

    switch (in ? s->spec->in : s->spec->out) {
    case VECTOR_OWN:
        return shape_share(s->count, s->nranks, rank);
    case VECTOR_ALL:
        return s->count;
    case VECTOR_ROOT:
        return rank == 0 ? s->count : -1;
    default:
        for (int r = 0; r < s->nranks; r++)
            sum += in ? vector_sent(s, rank, r) : vector_sent(s, r, rank);
        return sum;
    }
}

void vector_problem(const struct shape *s, struct problem *p, int64_t to[])
{
    p->dim[DIM_M] = p->dim[DIM_K] = 1;
    p->dim[DIM_N] = s->spec->in == VECTOR_COUNTED ? 0 : s->count;
    for (int r = 0; r < s->nranks; r++) {
        for (int q = 0; q < s->nranks; q++)
            to[q] = vector_sent(s, r, q);
        if (op_counts(s->op))
            problem_counts_set(p, r, to);
        if (s->spec->in == VECTOR_OWN || s->spec->out == VECTOR_OWN) {
            p->rank_dim[DIM_N][r] = begin_of(s, r);
            p->rank_dim[DIM_K][r] = shape_share(s->count, s->nranks, r);
        }
    }
}

int64_t vector_attr(const struct shape *s, enum fcc_attr key, int rank, int64_t i)
{
    switch (key) {
    case FCC_ATTR_SEND_COUNTS:
        return vector_sent(s, rank, (int)i);
    case FCC_ATTR_EXPECTED_COUNTS:
        return vector_sent(s, (int)i, rank);
    case FCC_ATTR_DESTINATION:
        return (rank + 1) % s->nranks;
    case FCC_ATTR_SOURCE:
        return (rank + s->nranks - 1) % s->nranks;
    default: /* the root is rank 0, the reduction a sum */
        return 0;
    }
}

/* Adds to `out` so many elements of the source's input, from `first` on. */
static void elements_add(const struct bench *b, int source, int64_t first, int64_t n, double *out, float *room)
{
    for (int64_t done = 0, piece; done < n; done += piece) {
        piece = n - done < BENCH_PIECE ? n - done : BENCH_PIECE;
        data_floats(&b->shape, BENCH_X, source, (uint64_t)(first + done), (uint64_t)piece, room);
        for (int64_t i = 0; i < piece; i++)
            out[done + i] += (double)room[i];
    }
}

void vector_want(const struct bench *b, int rank, double *want, float *room)
{
    const struct shape *s = &b->shape;
    int64_t n = vector_length(s, false, rank), at = 0, before = 0;

    for (int r = 0; r < s->nranks && n > 0; r++) {
        if (s->spec->in == VECTOR_COUNTED) {
            before = is_ring(s) ? 0 : begin_of(s, rank);
            elements_add(b, r, before, vector_sent(s, r, rank), want + at, room);
            at += vector_sent(s, r, rank);
        } else if (s->spec->in == VECTOR_OWN) {
            elements_add(b, r, 0, shape_share(s->count, s->nranks, r), want + begin_of(s, r), room);
        } else if (s->spec->in == VECTOR_ALL || r == 0) { /* all ranks' are added up, or the root's is sent */
            elements_add(b, r, s->spec->out == VECTOR_OWN ? begin_of(s, rank) : 0, n, want, room);
        }
        bench_progress(b, rank);
    }
}
