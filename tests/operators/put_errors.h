/* SPDX-License-Identifier: MIT
 *
 * put_errors.h - gemm_all_to_alls on streams in which ranks differ, which all ranks hear of, and after which the communicator goes on. Whoever
 * includes this says how a rank waits for its stream: stream_settle().
 */
#ifndef FCC_TEST_PUT_ERRORS_H
#define FCC_TEST_PUT_ERRORS_H

#include "tests/operators/put_cases.h"

static void stream_settle(const struct rank *r);

/* Each rank has `rows` rows for each. */
static inline struct put_case put_of(const struct rank *r, enum fcc_dtype dtype, int64_t rows, int64_t n)
{
    static unsigned seed;
    struct put_case c = {.dtype = dtype, .n = n};

    c.seed = ++seed;
    for (int p = 0; p < r->n; p++) {
        c.k[p] = 64;
        for (int to = 0; to < r->n; to++)
            c.rows[p][to] = rows;
    }
    return c;
}

static inline void put_works(const struct rank *r, int64_t rows, int64_t n)
{
    struct put_case c = put_of(r, FCC_F16, rows, n);

    for (int p = 0; p < r->n; p++) /* what is multiplied is most of a sanitizer's time */
        c.k[p] = test_rounds(64);
    put_fill(r, &c);
    OK(put_enqueue(r, &c));
    put_check(r, &c, 0);
}

/* All ranks have it, and the communicator goes on. late: a rank that has ended its run before another rank gave it up hears of that with its next
 * run, and asks the GPU. */
static inline void put_error_comes(const struct rank *r, int status, const char *text, bool late)
{
    const struct put_case next = put_of(r, FCC_F16, 3, 256);

    stream_settle(r);
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    if (late) {
        put_fill(r, &next);
        OK(put_enqueue(r, &next));
        stream_settle(r);
        got = got ? got : fcc_comm_error_wait(r->comm, -1);
    }
    if (got != -EINVAL || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %d (%s)", r->rank, got, fcc_last_error(), -EINVAL, text);
    if (status < 0)
        (void)fcc_comm_error(r->comm); /* the run itself says the same */
    OK(fcc_comm_error(r->comm));
    put_works(r, 3, 256);
    put_works(r, 200, 512);
}

static inline void put_error_is(const struct rank *r, int status, const char *text)
{
    put_error_comes(r, status, text, false);
}

static inline void put_errors(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    struct put_case c = put_of(r, FCC_F16, 16, last ? 128 : 136);
    char text[128];

    put_error_is(r, put_enqueue(r, &c), "gemm_all_to_all: c: shape[1]: rank ");
    c = put_of(r, last ? FCC_BF16 : FCC_F16, 16, 128);
    put_error_is(r, put_enqueue(r, &c), "gemm_all_to_all: c: dtype: rank ");
    c = put_of(r, FCC_F16, 16, 128);
    c.bias = last;
    put_error_is(r, put_enqueue(r, &c), "gemm_all_to_all: bias: rank ");
    c = put_of(r, FCC_F16, 16, 128);
    c.more = last ? -1 : 0;
    (void)snprintf(text, sizeof(text), "gemm_all_to_all: c: rank %d receives %d rows, its c has %d", r->n - 1, 16 * r->n,
                   16 * r->n - 1);
    put_error_comes(r, put_enqueue(r, &c), text, true);
    c = put_of(r, FCC_F16, last ? 0 : 16, 128);
    c.n = last ? 0 : c.n;
    put_error_is(r, put_enqueue(r, &c), "gemm_all_to_all: c: shape[1]: rank ");
    /* Without columns nothing is moved, whatever rows there are for whom. */
    c = put_of(r, FCC_F16, 16, 0);
    c.rows[r->n - 1][0] = 5;
    c.rows[0][0] = 0;
    OK(put_enqueue(r, &c));
    stream_settle(r);
    OK(fcc_comm_error(r->comm));
    const struct fcc_all_reduce_args sum = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, 1000),
                                            .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_Y], FCC_F32, 1000)};
    c = put_of(r, FCC_F16, 300, 128);
    put_error_is(r, last ? fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL) : put_enqueue(r, &c), "called");
    struct fcc_gemm_all_to_all_args args = {.a = put_tensor(r, &c, PART_X),
                                            .b = put_tensor(r, &c, PART_W),
                                            .c = put_tensor(r, &c, PART_Y),
                                            .send_rows = c.rows[r->rank]};
    args.b.shape[0] -= last;
    put_error_is(r, fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL),
                 "gemm_all_to_all: b: shape[0] 63: allowed is 64");
    args.b.shape[0] = 64;
    args.a.offset = last ? args.c.offset : args.a.offset;
    put_error_is(r, fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL), "gemm_all_to_all: a: overlaps c");
    args.a = put_tensor(r, &c, PART_X);
    int64_t values[RANKS_MOST], sent[RANKS_MOST];
    for (int p = 0; p < r->n; p++)
        values[p] = p % 2 ? -1 : 300;
    args.recv_rows = values;
    OK(fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL));
    stream_settle(r);
    OK(fcc_comm_error(r->comm));
    values[0] += last;
    (void)snprintf(text, sizeof(text), "gemm_all_to_all: recv_rows: rank 0 sends 300 rows to rank %d, which expects 301",
                   r->n - 1);
    put_error_is(r, fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL), text);
    values[0] = last ? -2 : 300;
    put_error_is(r, fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL),
                 "gemm_all_to_all: recv_rows[0]: -2: allowed are -1 to");
    args.recv_rows = NULL;
    memcpy(sent, c.rows[r->rank], sizeof(sent));
    sent[0] += last;
    args.send_rows = sent;
    put_error_is(r, fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL), "gemm_all_to_all: send_rows[");
}

#endif
