/* SPDX-License-Identifier: MIT
 *
 * collective_errors.h - collectives that the ranks launch themselves (kernels/gpu/rings.h), and what ranks hear if they differ: a rank has
 * memory of its own and a stream (collective_bed.h, `move`). A sum whose right result is easy to tell shows that the communicator goes on.
 */
#ifndef FCC_TEST_COLLECTIVE_ERRORS_H
#define FCC_TEST_COLLECTIVE_ERRORS_H

#include <errno.h>
#include <string.h>

#include "tests/operators/collective_bed.h"

/* Elements: as packets, and as pieces of which some must wait for room. */
enum { FEW = 5000 };
#ifndef MANY
#define MANY 3000001
#endif

static inline struct fcc_all_reduce_args sum_args(const struct rank *r, int64_t n)
{
    return (struct fcc_all_reduce_args){.in = vector_at(r, 0, 0, FCC_F32, n), .out = vector_at(r, 1, 0, FCC_F32, n)};
}

static inline int sum_enqueue(const struct rank *r, int64_t n)
{
    const struct fcc_all_reduce_args args = sum_args(r, n);

    return fcc_all_reduce_enqueue(r->comm, &args, r->stream, NULL);
}

/* All elements of all ranks' inputs are `each` times the rank's number and one. */
static inline float ranks_sum(const struct rank *r, float each)
{
    return each * (float)(r->n * (r->n + 1)) / 2;
}

static inline void sum_inputs(const struct rank *r, int64_t n, float each)
{
    float *in = (float *)(void *)r->images[0];

    for (int64_t i = 0; i < n; i++)
        in[i] = each * (float)(r->rank + 1);
    image_move(r, 0, false);
}

static inline void sum_check(const struct rank *r, int64_t n, float want)
{
    const float *got = (const float *)(const void *)r->images[1];

    image_move(r, 1, true);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d: element %ld of %ld is %g, expected %g", r->rank, (long)i, (long)n,
                         (double)got[i], (double)want);
}

static inline void sum_works(const struct rank *r, int64_t n, float each)
{
    sum_inputs(r, n, each);
    OK(sum_enqueue(r, n));
    sum_check(r, n, ranks_sum(r, each));
}

/* All ranks have this error, the kernels' streams go on, and the communicator, too. `status`: of this rank's call. `late`: a rank that has
 * ended its run before another rank gave it up hears of that later. */
static inline void error_comes(const struct rank *r, int status, const char *text, bool late)
{
    image_move(r, 1, true); /* behind the run */
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    if (late) {
        sum_works(r, FEW, 5);
        got = got ? got : fcc_comm_error_wait(r->comm, -1); /* asks the GPU */
    }
    if (got != -EINVAL || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %d (%s)", r->rank, got, fcc_last_error(), -EINVAL, text);
    OK(fcc_comm_error(r->comm)); /* what this rank's call returned is not said again */
    sum_works(r, FEW, 3);
}

static inline void error_is(const struct rank *r, int status, const char *text)
{
    error_comes(r, status, text, false);
}

static inline void reductions_differ(const struct rank *r, int64_t n, bool last)
{
    struct fcc_all_reduce_args sum = sum_args(r, n + last);

    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "all_reduce: in: rank");
    sum = sum_args(r, n);
    sum.in.dtype = sum.out.dtype = last ? FCC_I32 : FCC_F32;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "all_reduce: dtype: rank");
    sum = sum_args(r, n);
    sum.reduction = last ? FCC_MAX : FCC_SUM;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "all_reduce: reduction: rank");
    sum.reduction = last ? FCC_XOR + 1 : FCC_SUM; /* it never begins at the last rank, which says so */
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "all_reduce: reduction: 8: allowed are 0 to 7");
}

static inline void operators_differ(const struct rank *r, int64_t n, bool last)
{
    const struct fcc_all_reduce_args sum = sum_args(r, n);
    struct fcc_broadcast_args from = {.out = sum.out};
    struct fcc_reduce_args to = {.in = sum.in, .root = last};

    if (!last)
        from.in = sum.in;
    error_is(r,
             last ? fcc_broadcast_enqueue(r->comm, &from, r->stream, NULL)
                  : fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL),
             "called");
    if (to.root == r->rank)
        to.out = sum.out;
    error_is(r, fcc_reduce_enqueue(r->comm, &to, r->stream, NULL), "reduce: root: rank");
}

static inline void counts_differ(const struct rank *r, int64_t n, bool last)
{
    int64_t counts[16], wanted[16];
    struct fcc_all_to_all_args rows = {.in = vector_at(r, 0, 0, FCC_F32, n / r->n * r->n),
                                       .out = vector_at(r, 1, 0, FCC_F32, n),
                                       .send_counts = counts,
                                       .expected_counts = wanted};
    const struct fcc_all_gather_args parts = {.in = vector_at(r, 0, 0, FCC_F32, n / r->n - last),
                                              .out = vector_at(r, 1, 0, FCC_F32, n / r->n * r->n)};

    for (int p = 0; p < r->n; p++) {
        counts[p] = n / r->n;
        wanted[p] = n / r->n - (last && p == 0);
    }
    error_comes(r, fcc_all_to_all_enqueue(r->comm, &rows, r->stream, NULL), "all_to_all: expected_counts: rank 0 sends", true);
    wanted[0] = n / r->n;
    wanted[r->rank] -= last; /* of itself, which no other rank sees */
    error_is(r, fcc_all_to_all_enqueue(r->comm, &rows, r->stream, NULL), "all_to_all: expected_counts: rank ");
    rows.expected_counts = NULL;
    rows.out.shape[0] = last ? n / r->n : n;
    error_comes(r, fcc_all_to_all_enqueue(r->comm, &rows, r->stream, NULL), "all_to_all: out: rank", true);
    error_is(r, fcc_all_gather_enqueue(r->comm, &parts, r->stream, NULL), "all_gather: in: the ranks' have");
}

/* A message from rank 0 to the last rank, which is not as long as that one expects, or would not fit; and one that nobody sends. */
static inline void messages_differ(const struct rank *r, int64_t n, bool last)
{
    int64_t wanted[16] = {n + 1};
    struct fcc_send_receive_args message = {.destination = r->rank ? -1 : r->n - 1, .source = last ? 0 : -1};

    if (r->rank == 0)
        message.in = vector_at(r, 0, 0, FCC_F32, n);
    if (last)
        message.out = vector_at(r, 1, 0, FCC_F32, n + 1);
    if (last)
        message.expected_counts = wanted;
    error_comes(r, fcc_send_receive_enqueue(r->comm, &message, r->stream, NULL), "send_receive: expected_counts: rank 0 sends ",
                true);
    message.expected_counts = NULL;
    message.out.shape[0] = n - 1;
    error_comes(r, fcc_send_receive_enqueue(r->comm, &message, r->stream, NULL), "send_receive: out: rank ", true);
    message.out.shape[0] = n;
    wanted[0] = n;
    message.expected_counts = last ? wanted : NULL;
    if (r->rank == 0)
        message = (struct fcc_send_receive_args){.destination = -1, .source = -1};
    error_comes(r, fcc_send_receive_enqueue(r->comm, &message, r->stream, NULL),
                "send_receive: expected_counts: rank 0 sends 0 elements", true);
}

/* Two ranks or more. */
/* A part that lies in the whole vector, but not where it does in place: the last rank's, by an element, or so that it ends behind the vector. */
static inline void places_differ(const struct rank *r, int64_t n, bool last)
{
    const int64_t each = n / r->n, own = r->rank * each;
    const struct fcc_tensor whole = vector_at(r, 1, 0, FCC_F32, each * r->n);

    for (int before = 0; before < 2; before++) {
        const struct fcc_tensor part = vector_at(r, 1,
                                                 (uint64_t)(own + (!last    ? 0
                                                                   : before ? -1
                                                                            : 1)) *
                                                     sizeof(float),
                                                 FCC_F32, each);
        const struct fcc_all_gather_args all = {.in = part, .out = whole};
        const struct fcc_reduce_scatter_args sums = {.in = whole, .out = part};
        const struct fcc_gather_args one = {
            .in = part, .out = last ? whole : (struct fcc_tensor){.buffer = NULL}, .root = r->n - 1};
        const struct fcc_scatter_args from = {.in = one.out, .out = part, .root = r->n - 1};
        const char *in = "in: overlaps out: allowed is in place", *at = "overlaps out: allowed is in place";
        error_comes(r, fcc_all_gather_enqueue(r->comm, &all, r->stream, NULL), before ? at : in, true);
        error_comes(r, fcc_reduce_scatter_enqueue(r->comm, &sums, r->stream, NULL), before ? at : in, true);
        error_comes(r, fcc_gather_enqueue(r->comm, &one, r->stream, NULL), before ? at : in, true);
        error_comes(r, fcc_scatter_enqueue(r->comm, &from, r->stream, NULL), before ? at : in, true);
    }
    const struct fcc_tensor behind = vector_at(r, 1, last * sizeof(float), FCC_F32, each * r->n);
    const struct fcc_tensor in = last ? behind : vector_at(r, 0, 0, FCC_F32, each * r->n);
    const struct fcc_all_to_all_args rows = {.in = last ? whole : in, .out = whole};
    const struct fcc_broadcast_args root = {
        .in = last ? in : (struct fcc_tensor){.buffer = NULL}, .out = whole, .root = r->n - 1};
    const struct fcc_reduce_args to = {.in = in, .out = last ? whole : (struct fcc_tensor){.buffer = NULL}, .root = r->n - 1};
    error_is(r, fcc_all_to_all_enqueue(r->comm, &rows, r->stream, NULL),
             "all_to_all: in: overlaps out: allowed is apart from it");
    error_is(r, fcc_broadcast_enqueue(r->comm, &root, r->stream, NULL),
             "broadcast: in: overlaps out: allowed is the same place");
    error_is(r, fcc_reduce_enqueue(r->comm, &to, r->stream, NULL), "reduce: in: overlaps out: allowed is the same place");
}

static inline void errors_work(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;

    for (int many = 0; many < 2; many++) {
        int64_t n = many ? MANY : FEW;
        reductions_differ(r, n, last);
        operators_differ(r, n, last);
        counts_differ(r, n, last);
        messages_differ(r, n, last);
        places_differ(r, n, last);
    }
}

#endif
