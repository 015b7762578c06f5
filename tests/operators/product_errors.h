/* SPDX-License-Identifier: MIT
 *
 * product_errors.h - gemv_all_reduces on streams in which ranks differ, which all ranks hear of, and after which the communicator goes on. Whoever
 * includes this says how a rank waits for its stream: stream_settle().
 */
#ifndef FCC_TEST_PRODUCT_ERRORS_H
#define FCC_TEST_PRODUCT_ERRORS_H

#include "tests/operators/product_cases.h"

static void stream_settle(const struct rank *r);

static inline struct product_case case_of(const struct rank *r, enum fcc_dtype dtype, int64_t m, int64_t n)
{
    static unsigned seed;
    struct product_case c = {.dtype = dtype, .m = m, .n = n};

    c.seed = ++seed;
    for (int p = 0; p < r->n; p++)
        c.k[p] = 64;
    return c;
}

static inline void shape_works(const struct rank *r, int64_t m, int64_t n)
{
    struct product_case c = case_of(r, FCC_F16, m, n);

    for (int p = 0; p < r->n; p++) /* what is multiplied is most of a sanitizer's time */
        c.k[p] = test_rounds(64);
    case_fill(r, &c);
    OK(case_enqueue(r, &c));
    case_check(r, &c, 0);
}

/* All ranks have it, the kernels' streams go on, and the communicator, too. */
static inline void error_is(const struct rank *r, int status, const char *text)
{
    stream_settle(r);
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    if (got != -EINVAL || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %d (%s)", r->rank, got, fcc_last_error(), -EINVAL, text);
    if (status < 0)
        (void)fcc_comm_error(r->comm); /* the run itself says the same */
    OK(fcc_comm_error(r->comm));
    shape_works(r, 1, 256);
    shape_works(r, 8, 512);
}

/* The last rank has another shape than the others. */
static inline void shapes_differ(const struct rank *r, int64_t m, int64_t n, int64_t other_m, int64_t other_n, const char *text)
{
    const bool last = r->rank == r->n - 1;
    const struct product_case c = case_of(r, FCC_F16, last ? other_m : m, last ? other_n : n);

    error_is(r, case_enqueue(r, &c), text);
}

static inline void operators_differ(const struct rank *r, int64_t elements)
{
    const struct product_case c = case_of(r, FCC_F16, 4, 128);
    const struct fcc_all_reduce_args sum = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, elements),
                                            .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_Y], FCC_F32, elements)};

    error_is(r, r->rank == r->n - 1 ? fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL) : case_enqueue(r, &c), "called");
}

static inline void refusals(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    struct product_case c = case_of(r, FCC_F16, 4, 128);
    struct fcc_gemv_all_reduce_args args = {
        .x = tensor_of(r, &c, PART_X), .w = tensor_of(r, &c, PART_W), .y = tensor_of(r, &c, PART_Y)};

    if (last)
        args.w.shape[1] = 63;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL),
             "gemv_all_reduce: w: shape[1] 63: allowed is 64 (x's shape[1], K)");
    args.w.shape[1] = 64;
    args.y.offset = last ? args.x.offset : args.y.offset;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL), "gemv_all_reduce: x: overlaps y");
    args.y = tensor_of(r, &c, PART_Y);
    args.x.offset += last;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL), "gemv_all_reduce: x: address");
    c = case_of(r, FCC_F16, 64, 40000); /* in parts, of which only the last rank knows that they will not be */
    int status = last ? fcc_refuse_enqueue(r->comm, "gemv_all_reduce", "not today", r->stream) : case_enqueue(r, &c);
    CHECK(status == 0);
    stream_settle(r);
    status = fcc_comm_error(r->comm);
    CHECK(last ? status == 0 : status == -EINVAL && strstr(fcc_last_error(), "gemv_all_reduce: not today"));
    shape_works(r, 1, 256);
}

/* All of them. */
static inline void product_errors(const struct rank *r)
{
    struct product_case c;
    const bool last = r->rank == r->n - 1;
    OK(fcc_collectives_prepare(r->comm));
    shapes_differ(r, 1, 512, 2, 512, "gemv_all_reduce: y: shape[0]: rank");
    shapes_differ(r, 2, 64, 1, 128, "gemv_all_reduce: y: shape[0]: rank");
    shapes_differ(r, 8, 512, 8, 520, "gemv_all_reduce: y: shape[1]: rank");
    shapes_differ(r, 64, 256, 64, 40000, "gemv_all_reduce: y: shape[1]: rank"); /* of many parts, and of one */
    shapes_differ(r, 64, 0, 64, 40000, "gemv_all_reduce: y: shape[1]: rank");
    c = case_of(r, last ? FCC_BF16 : FCC_F16, 4, 128);
    error_is(r, case_enqueue(r, &c), "gemv_all_reduce: y: dtype: rank");
    c = case_of(r, FCC_F16, 4, 128);
    c.bias = last;
    error_is(r, case_enqueue(r, &c), "gemv_all_reduce: bias: rank");
    c = case_of(r, FCC_F32, 4, 128);
    c.bias = true;
    c.residual = !last;
    error_is(r, case_enqueue(r, &c), "gemv_all_reduce: residual: rank");
    operators_differ(r, 1000);
    operators_differ(r, 1000000);
    refusals(r);
}

#endif
