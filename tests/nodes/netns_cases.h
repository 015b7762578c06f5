/* SPDX-License-Identifier: MIT
 *
 * netns_cases.h - what a rank of test_netns.c runs, and records or compares: the operators, in all dtypes, fused and sequential.
 */
#ifndef NETNS_CASES_H
#define NETNS_CASES_H

#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/value.h"

#ifdef __SANITIZE_THREAD__
enum { TYPES = 1 }; /* threads do the same for each */
#else
enum { TYPES = 3 };
#endif
enum { RANKS = 6, OPERATORS = 4, SCHEDULES = 2, CASES = OPERATORS * SCHEDULES * TYPES };
enum { GEMV_M = 3, GEMV_N = 1600, GEMV_K = 40 };
enum { GEMM_ROWS = 33, GEMM_N = 250, GEMM_K = 40 }; /* rows for each rank */
enum { EMB_TABLES = 2, EMB_ROWS = 60, EMB_DIM = 65, EMB_BATCH = 150, EMB_POOLING = 5 };
enum { RESULT_MAX = 256 * 1024 };

static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
static const size_t dtype_bytes[] = {4, 2, 2};
static const uint32_t schedules[SCHEDULES] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL};

/* What the ranks of a run share with the test. */
struct results {
    /* What later runs are compared with: nothing yet; what ranks on one node got; also hierarchical sums, of the first run over nodes. */
    enum { NOTHING, FLAT, ALL } recorded;
    int rounds;
    _Atomic uint64_t compared; /* bytes */
    size_t length[CASES][RANKS];
    unsigned char bytes[CASES][RANKS][RESULT_MAX];
};

/* ---- a rank ---- */

struct bed {
    fcc_comm *comm;
    int rank;
    fcc_buffer *in[2], *out;
    unsigned char *room;
};

/* Sums of these are rounded: in another order they have other bits. */
static double element(unsigned seed, int64_t i)
{
    return value(seed, i) + value(seed + 1000, i) / 37;
}

static void fill_with(const struct bed *b, int buffer, int type, unsigned seed, int64_t n, double (*get)(unsigned, int64_t))
{
    CHECK((size_t)n * dtype_bytes[type] <= RESULT_MAX);
    for (int64_t i = 0; i < n; i++)
        value_store(dtypes[type], b->room, i, get(seed + (unsigned)b->rank, i));
    OK(fcc_buffer_write(b->in[buffer], 0, b->room, (size_t)n * dtype_bytes[type]));
}

static void fill(const struct bed *b, int buffer, int type, unsigned seed, int64_t n)
{
    fill_with(b, buffer, type, seed, n, element);
}

static size_t gemv(const struct bed *b, int type, uint32_t schedule)
{
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(b->in[0], 0, dtypes[type], GEMV_M, GEMV_K),
                                            .w = fcc_tensor_2d(b->in[1], 0, dtypes[type], GEMV_N, GEMV_K),
                                            .y = fcc_tensor_2d(b->out, 0, dtypes[type], GEMV_M, GEMV_N),
                                            .schedule = schedule};

    fill(b, 0, type, 100, GEMV_M * GEMV_K);
    fill(b, 1, type, 200, (int64_t)GEMV_N * GEMV_K);
    OK(fcc_gemv_all_reduce(b->comm, &args));
    return GEMV_M * GEMV_N * dtype_bytes[type];
}

static size_t gemv_flat(const struct bed *b, int type, uint32_t schedule)
{
    return gemv(b, type, schedule | FCC_SCHEDULE_FLAT);
}

static size_t gemv_hierarchical(const struct bed *b, int type, uint32_t schedule)
{
    return gemv(b, type, schedule | FCC_SCHEDULE_HIERARCHICAL);
}

static size_t gemm(const struct bed *b, int type, uint32_t schedule)
{
    int64_t recv[RANKS];
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(b->in[0], 0, dtypes[type], RANKS * GEMM_ROWS, GEMM_K),
                                            .b = fcc_tensor_2d(b->in[1], 0, dtypes[type], GEMM_K, GEMM_N),
                                            .c = fcc_tensor_2d(b->out, 0, dtypes[type], RANKS * GEMM_ROWS, GEMM_N),
                                            .recv_rows = recv,
                                            .schedule = schedule};

    /* Exact in f32 in any order: that of a product is the BLAS's, and depends on how many rows it multiplies at a time. */
    fill_with(b, 0, type, 300, (int64_t)RANKS * GEMM_ROWS * GEMM_K, value);
    fill_with(b, 1, type, 400, GEMM_K * GEMM_N, value);
    OK(fcc_gemm_all_to_all(b->comm, &args));
    return RANKS * GEMM_ROWS * GEMM_N * dtype_bytes[type];
}

static size_t embedding(const struct bed *b, int type, uint32_t schedule)
{
    enum { BAGS = EMB_TABLES * EMB_BATCH, IDS = BAGS * EMB_POOLING };
    static int32_t numbers[IDS + BAGS + 1];
    const int64_t rows[EMB_TABLES] = {EMB_ROWS, EMB_ROWS};
    struct fcc_embedding_all_to_all_args args = {
        .tables = fcc_tensor_2d(b->in[0], 0, dtypes[type], EMB_TABLES * EMB_ROWS, EMB_DIM),
        .table_rows = rows,
        .num_tables = EMB_TABLES,
        .pooling = FCC_POOLING_SUM,
        .indices = fcc_tensor_1d(b->in[1], 0, FCC_I32, IDS),
        .offsets = fcc_tensor_1d(b->in[1], sizeof(int32_t) * IDS, FCC_I32, BAGS + 1),
        .batch = EMB_BATCH,
        .out = fcc_tensor_3d(b->out, 0, dtypes[type], EMB_BATCH / RANKS, EMB_TABLES * RANKS, EMB_DIM),
        .schedule = schedule};

    fill(b, 0, type, 500, (int64_t)EMB_TABLES * EMB_ROWS * EMB_DIM);
    for (int i = 0; i < IDS; i++)
        numbers[i] = (int32_t)((value(600 + (unsigned)b->rank, i) + 2) * 8) % EMB_ROWS;
    for (int i = 0; i <= BAGS; i++)
        numbers[IDS + i] = i * EMB_POOLING;
    OK(fcc_buffer_write(b->in[1], 0, numbers, sizeof(numbers)));
    OK(fcc_embedding_all_to_all(b->comm, &args));
    return (size_t)(EMB_BATCH / RANKS) * EMB_TABLES * RANKS * EMB_DIM * dtype_bytes[type];
}

/* Record the result, or compare it; hierarchical sums are not recorded on one node. */
static void result_take(const struct bed *b, struct results *r, int number, size_t bytes)
{
    unsigned char *known = r->bytes[number][b->rank];

    CHECK(bytes > 0 && bytes <= RESULT_MAX);
    OK(fcc_buffer_read(b->out, 0, b->room, bytes));
    if (r->recorded == NOTHING || (r->recorded == FLAT && number % OPERATORS == OPERATORS - 1)) {
        memcpy(known, b->room, bytes);
        r->length[number][b->rank] = bytes;
        return;
    }
    CHECK(bytes == r->length[number][b->rank]);
    for (size_t i = 0; i < bytes; i++)
        if (known[i] != b->room[i])
            check_failed(__FILE__, __LINE__, "rank %d, case %d: byte %zu of %zu is %02x, and was %02x", b->rank, number, i,
                         bytes, b->room[i], known[i]);
    r->compared += bytes;
}

static void cases_run(const struct bed *b, struct results *r)
{
    static size_t (*const operators[OPERATORS])(const struct bed *, int, uint32_t) = {gemv_flat, gemm, embedding,
                                                                                      gemv_hierarchical};

    for (int i = 0; i < CASES; i++) {
        int type = i / OPERATORS % TYPES, schedule = i / OPERATORS / TYPES;
        memset(b->room, 0xff, RESULT_MAX); /* not a number, in every dtype */
        OK(fcc_buffer_write(b->out, 0, b->room, RESULT_MAX));
        OK(fcc_noop(b->comm)); /* nobody's result comes before that */
        size_t bytes = operators[i % OPERATORS](b, type, schedules[schedule]);
        result_take(b, r, i, bytes);
        OK(fcc_noop(b->comm));
    }
}

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct results *r = argument;
    struct bed b = {.comm = comm_open(all, rank, 0), .rank = rank, .room = malloc(RESULT_MAX)};

    CHECK(b.room != NULL);
    for (int i = 0; i < 2; i++)
        OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 2 * RESULT_MAX, &b.in[i]));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, RESULT_MAX, &b.out));
    for (int round = 0; round < r->rounds; round++)
        cases_run(&b, r);
    free(b.room);
    fcc_comm_destroy(b.comm);
    fcc_disconnect(comm_context());
}

#endif
