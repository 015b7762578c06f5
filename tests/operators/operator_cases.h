/* SPDX-License-Identifier: MIT
 *
 * operator_cases.h - test_operators.c's cases: the operators with odd, empty and uneven shapes, every dtype and schedule, as a
 * rank of a communicator runs them; results against the plain double-precision reference (demo/reference.h).
 */
#ifndef FCC_TEST_OPERATOR_CASES_H
#define FCC_TEST_OPERATOR_CASES_H

#include <math.h>

#include "tests/operators/epilogue_cases.h"

/* ---- gemv_all_reduce, gemm_all_reduce ---- */

/* Over two nodes, the last one is hierarchical by the rule from three ranks on. */
static const int gemv_cases[][3] = {/* M, N, K of rank 0 */
                                    {1, 1, 1},    {1, 37, 29}, {3, 128, 64}, {64, 65, 7},  {65, 37, 29},
                                    {1, 1024, 8}, {2, 0, 5},   {5, 33, 0},   {200, 81, 9}, {16, 1001, 3}};

static int gemv_k(int k, int rank) /* uneven, some ranks have none */
{
    return k == 0 ? 0 : (k + 3 * rank) % (k + 2);
}

static void gemv_expect(struct bed *bed, int c)
{
    int m = gemv_cases[c][0], n = gemv_cases[c][1];

    memset(bed->expected, 0, sizeof(double) * (size_t)m * (size_t)n);
    for (int r = 0; r < bed->n; r++) {
        int kr = gemv_k(gemv_cases[c][2], r);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                for (int q = 0; q < kr; q++)
                    bed->expected[i * n + j] +=
                        value((unsigned)(c * 100 + r), i * kr + q) * value((unsigned)(c * 100 + 50 + r), j * kr + q);
    }
}

/* The first one's bits are everybody's. */
static void expect_same_bits(const struct bed *bed, size_t bytes)
{
    if (bed->rank == bed->first)
        memcpy(bed->shared, bed->out.host, bytes);
    OK(fcc_noop(bed->comm));
    CHECK(memcmp(bed->shared, bed->out.host, bytes) == 0);
    OK(fcc_noop(bed->comm));
}

static void gemv_run(struct bed *bed, const struct type *t, int c, uint32_t schedule, unsigned which)
{
    int m = gemv_cases[c][0], n = gemv_cases[c][1], k = gemv_k(gemv_cases[c][2], bed->rank);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, k),
                                            .w = fcc_tensor_2d(bed->in[1].buffer, 0, t->fcc, n, k),
                                            .y = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, m, n),
                                            .schedule = schedule};
    struct fcc_epilogue epilogue;

    if (m > FCC_GEMV_MAX_M && test_device() != FCC_DEVICE_CPU) { /* what fccd launches on GPUs takes fewer rows */
        FAILS(fcc_gemv_all_reduce(bed->comm, &args), -EINVAL, "x: shape[0] ",
              ": allowed are 1 to 64 of what fccd launches on GPUs");
        return;
    }
    fill(t, &bed->in[0], (unsigned)(c * 100 + bed->rank), (int64_t)m * k);
    fill(t, &bed->in[1], (unsigned)(c * 100 + 50 + bed->rank), (int64_t)n * k);
    poison(&bed->out);
    if (which) {
        epilogue_make(bed, t, which, 8000u + 10u * (unsigned)c, m, n, &args.y, &epilogue);
        OK(fcc_gemv_all_reduce_epilogue(bed->comm, &args, &epilogue));
    } else {
        OK(fcc_gemv_all_reduce(bed->comm, &args));
    }
    epilogue_expect(bed->expected, which, 8000u + 10u * (unsigned)c, 0, m, n, 1);
    compare(bed, t, (int64_t)m * n, "gemv_all_reduce", c);
    epilogue_expect(bed->expected, which, 8000u + 10u * (unsigned)c, 0, m, n, -1);
    expect_same_bits(bed, (size_t)m * (size_t)n * t->size);
}

static void gemv_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    gemv_run(bed, t, c, schedule, 0);
}

static void gemv_epilogue_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    gemv_run(bed, t, c, schedule, stages_of(c, schedule, true));
}

/* gemv's shapes. */
static const int sums_cases[][3] = {{1, 37, 29}, {3, 128, 64}, {65, 65, 7}, {2, 0, 5}, {5, 33, 0}, {200, 80, 9}};

static void sums_expect(struct bed *bed, int c)
{
    int m = sums_cases[c][0], n = sums_cases[c][1];

    memset(bed->expected, 0, sizeof(double) * (size_t)m * (size_t)n);
    for (int r = 0; r < bed->n; r++) {
        int kr = gemv_k(sums_cases[c][2], r);
        for (int i = 0; i < m; i++)
            for (int q = 0; q < kr; q++)
                for (int j = 0; j < n; j++)
                    bed->expected[i * n + j] += value((unsigned)(5000 + c * 100 + r), i * kr + q) *
                                                value((unsigned)(5050 + c * 100 + r), (int64_t)q * n + j);
    }
}

static void sums_run(struct bed *bed, const struct type *t, int c, uint32_t schedule, unsigned which)
{
    int m = sums_cases[c][0], n = sums_cases[c][1], k = gemv_k(sums_cases[c][2], bed->rank);
    struct fcc_gemm_all_reduce_args args = {.a = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, k),
                                            .b = fcc_tensor_2d(bed->in[1].buffer, 0, t->fcc, k, n),
                                            .c = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, m, n),
                                            .schedule = schedule};
    struct fcc_epilogue epilogue;

    fill(t, &bed->in[0], (unsigned)(5000 + c * 100 + bed->rank), (int64_t)m * k);
    fill(t, &bed->in[1], (unsigned)(5050 + c * 100 + bed->rank), (int64_t)k * n);
    poison(&bed->out);
    if (which) {
        epilogue_make(bed, t, which, 8500u + 10u * (unsigned)c, m, n, &args.c, &epilogue);
        OK(fcc_gemm_all_reduce_epilogue(bed->comm, &args, &epilogue));
    } else {
        OK(fcc_gemm_all_reduce(bed->comm, &args));
    }
    epilogue_expect(bed->expected, which, 8500u + 10u * (unsigned)c, 0, m, n, 1);
    compare(bed, t, (int64_t)m * n, "gemm_all_reduce", c);
    epilogue_expect(bed->expected, which, 8500u + 10u * (unsigned)c, 0, m, n, -1);
    expect_same_bits(bed, (size_t)m * (size_t)n * t->size);
}

static void sums_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    sums_run(bed, t, c, schedule, 0);
}

static void sums_epilogue_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    sums_run(bed, t, c, schedule, stages_of(c, schedule, true));
}

/* ---- gemm_reduce_scatter: the same products, of which each rank gets some rows ---- */

/* Equal parts, given or not; or all rows to every other rank, and none to the rest. */
static int scatter_rows(const struct bed *bed, int c, int rank)
{
    const int m = sums_cases[c][0], takers = (bed->n + 1) / 2, equal = m / bed->n + (rank < m % bed->n);

    return c % 3 != 2 ? equal : rank % 2 ? 0 : m / takers + (rank / 2 < m % takers);
}

static void scatter_run(struct bed *bed, const struct type *t, int c, uint32_t schedule, unsigned which)
{
    const int m = sums_cases[c][0], n = sums_cases[c][1], k = gemv_k(sums_cases[c][2], bed->rank);
    const unsigned seed = 8700u + 100u * (unsigned)c + 10u * (unsigned)bed->rank; /* of the rank's own epilogue */
    int64_t rows[RANKS], first = 0, own = scatter_rows(bed, c, bed->rank);
    struct fcc_epilogue epilogue;

    for (int p = 0; p < bed->n; p++) {
        rows[p] = scatter_rows(bed, c, p);
        first += p < bed->rank ? rows[p] : 0;
    }
    struct fcc_gemm_reduce_scatter_args args = {.a = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, k),
                                                .b = fcc_tensor_2d(bed->in[1].buffer, 0, t->fcc, k, n),
                                                .rows = c % 3 ? rows : NULL,
                                                .c = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, own, n),
                                                .schedule = schedule};
    double *expected = bed->expected;
    fill(t, &bed->in[0], (unsigned)(5000 + c * 100 + bed->rank), (int64_t)m * k);
    fill(t, &bed->in[1], (unsigned)(5050 + c * 100 + bed->rank), (int64_t)k * n);
    poison(&bed->out);
    if (which) {
        epilogue_make(bed, t, which, seed, own, n, &args.c, &epilogue);
        OK(fcc_gemm_reduce_scatter_epilogue(bed->comm, &args, &epilogue));
    } else {
        OK(fcc_gemm_reduce_scatter(bed->comm, &args));
    }
    bed->expected += first * n;
    epilogue_expect(bed->expected, which, seed, 0, own, n, 1);
    compare(bed, t, own * n, "gemm_reduce_scatter", c);
    epilogue_expect(bed->expected, which, seed, 0, own, n, -1);
    bed->expected = expected;
    OK(fcc_noop(bed->comm)); /* nobody poisons the next case's result while a slower rank still looks at this one */
}

static void scatter_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    scatter_run(bed, t, c, schedule, 0);
}

static void scatter_epilogue_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    scatter_run(bed, t, c, schedule, stages_of(c, schedule, true));
}

/* ---- gemm_all_to_all ---- */

static const int gemm_cases[][3] = {/* rows to each rank (about), N, K */
                                    {1, 1, 1}, {5, 19, 11}, {16, 32, 48}, {33, 7, 3}, {0, 8, 8}, {9, 0, 4}, {4, 6, 0}};

/* Rows that rank r sends to rank p: uneven, and none now and then. */
static int gemm_rows(int c, int r, int p)
{
    int rows = gemm_cases[c][0];
    return c % 2 ? (rows * (1 + (r + 2 * p) % 3)) % (rows + 7) * ((r + p) % 4 != 3) : rows;
}

static void gemm_expect(struct bed *bed, int c)
{
    int n = gemm_cases[c][1], k = gemm_cases[c][2];
    int64_t at = 0;

    for (int r = 0; r < bed->n; r++) {
        int first = 0;
        for (int p = 0; p < bed->rank; p++)
            first += gemm_rows(c, r, p);
        for (int64_t i = first; i < first + gemm_rows(c, r, bed->rank); i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int q = 0; q < k; q++)
                    sum += value((unsigned)(1000 + c * 100 + r), i * k + q) *
                           value((unsigned)(1050 + c * 100 + r), (int64_t)q * n + j);
                bed->expected[at++] = sum;
            }
    }
    for (int i = 0; i < 16; i++) /* behind the rows received nothing was written */
        bed->expected[at + i] = NAN;
}

/* Every source's own epilogue: of the rows that it computes. */
static void gemm_epilogue_expect(const struct bed *bed, int c, unsigned which, double sign)
{
    int64_t at = 0;

    for (int r = 0; r < bed->n; r++) {
        int64_t first = 0, n = gemm_cases[c][1], rows = gemm_rows(c, r, bed->rank);
        for (int p = 0; p < bed->rank; p++)
            first += gemm_rows(c, r, p);
        epilogue_expect(bed->expected + at, which, 9000u + 100u * (unsigned)c + 10u * (unsigned)r, first, rows, n, sign);
        at += rows * n;
    }
}

static void gemm_run(struct bed *bed, const struct type *t, int c, uint32_t schedule, unsigned which)
{
    int n = gemm_cases[c][1], k = gemm_cases[c][2];
    int64_t send[RANKS], recv[RANKS] = {0}, m = 0, received = 0;

    for (int p = 0; p < bed->n; p++) {
        m += send[p] = gemm_rows(c, bed->rank, p);
        received += gemm_rows(c, p, bed->rank);
    }
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, k),
                                            .b = fcc_tensor_2d(bed->in[1].buffer, 0, t->fcc, k, n),
                                            .send_rows = c % 2 ? send : NULL,
                                            .c = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, received, n),
                                            .recv_rows = recv,
                                            .schedule = schedule};
    struct fcc_epilogue epilogue;
    fill(t, &bed->in[0], (unsigned)(1000 + c * 100 + bed->rank), m * k);
    fill(t, &bed->in[1], (unsigned)(1050 + c * 100 + bed->rank), (int64_t)k * n);
    poison(&bed->out);
    if (which) {
        epilogue_make(bed, t, which, 9000u + 100u * (unsigned)c + 10u * (unsigned)bed->rank, m, n, &args.c, &epilogue);
        OK(fcc_gemm_all_to_all_epilogue(bed->comm, &args, &epilogue));
    } else {
        OK(fcc_gemm_all_to_all(bed->comm, &args));
    }
    for (int r = 0; r < bed->n; r++)
        CHECK(recv[r] == gemm_rows(c, r, bed->rank));
    gemm_epilogue_expect(bed, c, which, 1);
    compare(bed, t, received * n + 16, "gemm_all_to_all", c);
    gemm_epilogue_expect(bed, c, which, -1);
    OK(fcc_noop(bed->comm)); /* nobody poisons the next case's result while a slower rank still looks at this one */
}

static void gemm_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    gemm_run(bed, t, c, schedule, 0);
}

static void gemm_epilogue_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    gemm_run(bed, t, c, schedule, stages_of(c, schedule, false));
}

/* Without b: rows of N elements of any bits. */
static void rows_bits(unsigned char *out, int c, int rank, int64_t first, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        uint64_t x = ((uint64_t)(first + i) + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(c * RANKS + rank + 1) * 0xd6e8feb86659fd93u;
        out[i] = ((first + i) / 4 + rank) % 3 ? (unsigned char)(x >> 56) : (unsigned char)(x >> 63 ? 0xff : 0x80);
    }
}

static void rows_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int64_t n = gemm_cases[c][1], row = n * (int64_t)t->size, send[RANKS], recv[RANKS] = {0}, m = 0, received = 0;
    unsigned char *wanted = (unsigned char *)bed->expected;

    for (int p = 0; p < bed->n; p++)
        m += send[p] = gemm_rows(c, bed->rank, p);
    rows_bits(bed->in[0].host, c, bed->rank, 0, m * row);
    array_send(&bed->in[0], (size_t)(m * row));
    for (int r = 0; r < bed->n; r++) {
        int64_t first = 0, rows = gemm_rows(c, r, bed->rank);
        for (int p = 0; p < bed->rank; p++)
            first += gemm_rows(c, r, p);
        rows_bits(wanted + received * row, c, r, first * row, rows * row);
        received += rows;
    }
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, n),
                                            .send_rows = send,
                                            .c = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, received, n),
                                            .recv_rows = recv,
                                            .schedule = schedule};
    memset(wanted + received * row, 0xff, 16); /* behind the rows received nothing was written */
    poison(&bed->out);
    OK(fcc_gemm_all_to_all(bed->comm, &args));
    for (int r = 0; r < bed->n; r++)
        CHECK(recv[r] == gemm_rows(c, r, bed->rank));
    array_fetch(&bed->out, (size_t)(received * row) + 16);
    CHECK(memcmp(bed->out.host, wanted, (size_t)(received * row) + 16) == 0);
    OK(fcc_noop(bed->comm));
}

/* ---- embedding_all_to_all ---- */

enum { EMB_ROWS = 23 };
static const int embedding_cases[][4] = {/* tables of rank 0, D, B, mean */
                                         {1, 1, 1, 0},  {3, 5, 17, 0}, {2, 16, 40, 1},
                                         {4, 33, 9, 1}, {2, 8, 0, 0},  {0, 4, 12, 0}};

static int embedding_tables(int c, int rank)
{
    return (embedding_cases[c][0] + rank) % 4;
}

static int64_t bag_size(int c, int rank, int64_t bag) /* 0 to 6; some are empty */
{
    return (int64_t)((value((unsigned)(3000 + 10 * c + rank), bag) + 2) * 8) % 7;
}

static int64_t bag_row(int c, int rank, int64_t i)
{
    return (int64_t)((value((unsigned)(4000 + 10 * c + rank), i) + 2) * 8) % EMB_ROWS;
}

/* Where a sample's part of the batch begins; c odd: the split is given and uneven, with ranks that have none. */
static int64_t split_of(int c, int n, int rank)
{
    int64_t b = embedding_cases[c][2];
    if (c % 2 == 0 || n == 1)
        return b / n + (rank < b % n);
    return rank == n - 1 ? b - b / 2 : rank == 0 ? b / 2 : 0;
}

/* The pooled vectors of rank r's tables for the samples from `first` on, into out[s][column + t][d] of `columns` columns. */
static void embedding_expect_from(const struct bed *bed, int c, int r, int64_t first, int column, int columns)
{
    int tables = embedding_tables(c, r), dim = embedding_cases[c][1];
    int64_t b = embedding_cases[c][2], at = 0, samples = split_of(c, bed->n, bed->rank);

    for (int t = 0; t < tables; t++)
        for (int64_t s = 0; s < b; s++) {
            int64_t size = bag_size(c, r, t * b + s);
            for (int d = 0; d < dim && s >= first && s < first + samples; d++) {
                double sum = 0;
                for (int64_t i = at; i < at + size; i++) {
                    double w = embedding_cases[c][3] ? 1.0 : value((unsigned)(5000 + r), i);
                    sum += w * value((unsigned)(2000 + 10 * c + r), (t * EMB_ROWS + bag_row(c, r, i)) * dim + d);
                }
                bed->expected[((s - first) * columns + column + t) * dim + d] =
                    embedding_cases[c][3] && size ? sum / (double)size : sum;
            }
            at += size;
        }
}

static void embedding_expect(const struct bed *bed, int c)
{
    int64_t first = 0;
    int columns = 0, column = 0;

    for (int r = 0; r < bed->n; r++) {
        columns += embedding_tables(c, r);
        first += r < bed->rank ? split_of(c, bed->n, r) : 0;
    }
    for (int r = 0; r < bed->n; column += embedding_tables(c, r++))
        embedding_expect_from(bed, c, r, first, column, columns);
}

static int64_t embedding_fill(struct bed *bed, const struct type *t, int c, bool narrow, int64_t *nnz)
{
    int tables = embedding_tables(c, bed->rank), dim = embedding_cases[c][1];
    int64_t b = embedding_cases[c][2], bags = tables * b, at = 0;
    unsigned char *indices = bed->in[1].host;
    size_t size = narrow ? 4 : 8;

    fill(t, &bed->in[0], (unsigned)(2000 + 10 * c + bed->rank), (int64_t)tables * EMB_ROWS * dim);
    for (int64_t bag = 0; bag <= bags; bag++) {
        memcpy(indices + (size_t)bag * size, &at, size); /* little endian: the low half of an int64 is the int32 */
        at += bag < bags ? bag_size(c, bed->rank, bag) : 0;
    }
    int64_t offset = (int64_t)size * (bags + 1);
    for (int64_t i = 0; i < at; i++) {
        int64_t row = bag_row(c, bed->rank, i);
        memcpy(indices + offset + (int64_t)size * i, &row, size);
        value_store(FCC_F32, bed->in[2].host, i, value((unsigned)(5000 + bed->rank), i));
    }
    array_send(&bed->in[1], (size_t)(offset + (int64_t)size * at));
    array_send(&bed->in[2], (size_t)at * sizeof(float));
    *nnz = at;
    return offset;
}

static void embedding_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int tables = embedding_tables(c, bed->rank), dim = embedding_cases[c][1], columns = 0;
    bool narrow = schedule == FCC_SCHEDULE_SEQUENTIAL, mean = embedding_cases[c][3];
    int64_t b = embedding_cases[c][2], rows[4] = {EMB_ROWS, EMB_ROWS, EMB_ROWS, EMB_ROWS}, split[RANKS], nnz;
    int64_t offset = embedding_fill(bed, t, c, narrow, &nnz);
    enum fcc_dtype index = narrow ? FCC_I32 : FCC_I64;

    for (int r = 0; r < bed->n; r++) {
        split[r] = split_of(c, bed->n, r);
        columns += embedding_tables(c, r);
    }
    struct fcc_embedding_all_to_all_args args = {
        .tables = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, (int64_t)tables * EMB_ROWS, dim),
        .table_rows = rows,
        .num_tables = tables,
        .pooling = mean ? FCC_POOLING_MEAN : FCC_POOLING_SUM,
        .indices = fcc_tensor_1d(bed->in[1].buffer, (uint64_t)offset, index, nnz),
        .offsets = fcc_tensor_1d(bed->in[1].buffer, 0, index, tables * b + 1),
        .batch = b,
        .batch_split = c % 2 ? split : NULL,
        .out = fcc_tensor_3d(bed->out.buffer, 0, t->fcc, split[bed->rank], columns, dim),
        .schedule = schedule};
    if (!mean)
        args.sample_weights = fcc_tensor_1d(bed->in[2].buffer, 0, FCC_F32, nnz);
    poison(&bed->out);
    OK(fcc_embedding_all_to_all(bed->comm, &args));
    compare(bed, t, split[bed->rank] * columns * dim, "embedding_all_to_all", c);
    OK(fcc_noop(bed->comm));
}

/* ---- all of them ---- */

/* FCC_TEST_CASES: so many of each operator's, where who runs them is after something else. */
static int cases(int all)
{
    const char *fewer = getenv("FCC_TEST_CASES");
    int n = fewer ? atoi(fewer) : all;
    return n > 0 && n < all ? n : all;
}
#define COUNT(array) cases((int)(sizeof(array) / sizeof((array)[0])))

static void every_way(struct bed *bed, int c, void (*run)(struct bed *, const struct type *, int, uint32_t), uint32_t how)
{
    for (size_t t = 0; t < bed->dtypes; t++)
        for (uint32_t schedule = FCC_SCHEDULE_AUTO; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++)
            run(bed, &types[t], c, schedule | how);
}

static void cases_run(struct bed *bed)
{
    CHECK(bed->dtypes > 0);
    for (int b = 0; b < 3; b++)
        OK(array_alloc(bed->comm, FCC_BUFFER_LOCAL, ELEMENTS_MAX * 8, &bed->in[b]));
    OK(array_alloc(bed->comm, FCC_BUFFER_SYMMETRIC, ELEMENTS_MAX * 8, &bed->out));
    bed->expected = calloc(ELEMENTS_MAX * 2, sizeof(double));
    CHECK(bed->expected != NULL);
    for (int c = 0; c < COUNT(gemv_cases); c++) {
        gemv_expect(bed, c);
        every_way(bed, c, gemv_case, 0);
        every_way(bed, c, gemv_case, FCC_SCHEDULE_HIERARCHICAL); /* over nodes; on one it is the same as without */
        every_way(bed, c, gemv_epilogue_case, 0);
        every_way(bed, c, gemv_epilogue_case, FCC_SCHEDULE_HIERARCHICAL);
    }
    for (int c = 0; c < COUNT(sums_cases); c++) {
        sums_expect(bed, c);
        every_way(bed, c, sums_case, 0);
        every_way(bed, c, sums_case, FCC_SCHEDULE_HIERARCHICAL);
        every_way(bed, c, sums_epilogue_case, 0);
        every_way(bed, c, sums_epilogue_case, FCC_SCHEDULE_HIERARCHICAL);
        every_way(bed, c, sums_case, FCC_SCHEDULE_ANY_ORDER);
        every_way(bed, c, scatter_case, 0);
        every_way(bed, c, scatter_case, FCC_SCHEDULE_HIERARCHICAL);
        every_way(bed, c, scatter_case, FCC_SCHEDULE_ANY_ORDER);
        every_way(bed, c, scatter_epilogue_case, 0);
        every_way(bed, c, scatter_epilogue_case, FCC_SCHEDULE_ANY_ORDER);
    }
    for (int c = 0; c < COUNT(gemm_cases); c++) {
        gemm_expect(bed, c);
        every_way(bed, c, gemm_case, 0);
        every_way(bed, c, gemm_epilogue_case, 0);
        every_way(bed, c, rows_case, 0);
    }
    for (int c = 0; c < COUNT(embedding_cases); c++) {
        embedding_expect(bed, c);
        every_way(bed, c, embedding_case, 0);
    }
    for (int b = 0; b < 3; b++)
        free(bed->in[b].host);
    free(bed->out.host);
    free(bed->expected);
    fcc_comm_destroy(bed->comm);
}

#endif
