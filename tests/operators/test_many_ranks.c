/* SPDX-License-Identifier: MIT
 *
 * test_many_ranks.c - a communicator of many ranks on four nodes: every operator with checked results, a rank that leaves, the end.
 *
 * FCC_TEST_RANKS: so many ranks, up to RANKS_MAX.
 */
#include <errno.h>
#include <string.h>

#include "tests/bed/harness.h"

enum { NODES = 4, MANY = 256, COLS = 8, K = 4, DIM = 4, LINE = 16 };

static int ranks_number(void)
{
    const char *asked = getenv("FCC_TEST_RANKS");
    int n = asked ? atoi(asked) : MANY;

    CHECK(n > 2 && n <= RANKS_MAX);
    return n;
}

/* "rank 254": how errors name it. */
static const char *rank_named(int rank)
{
    static char text[32];

    (void)snprintf(text, sizeof(text), "rank %d", rank);
    return text;
}

static float *memory_of(fcc_buffer *buffer)
{
    return fcc_buffer_data(buffer);
}

/* Rank r sends the rows of value r + 1 to rank p: one or two. */
static int64_t rows_between(int source, int dst)
{
    return 1 + (source + dst) % 2;
}

static void rows_exchange(fcc_comm *comm, int rank, int n)
{
    int64_t send[RANKS_MAX], received[RANKS_MAX] = {0}, rows = 0, room = 2 * n;
    fcc_buffer *in, *out;

    for (int p = 0; p < n; p++)
        rows += send[p] = rows_between(rank, p);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)(rows * K + K * COLS) * sizeof(float), &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)(room * COLS) * sizeof(float), &out));
    for (int64_t i = 0; i < rows * K; i++)
        memory_of(in)[i] = (float)(rank + 1);
    for (int i = 0; i < K * COLS; i++)
        memory_of(in)[rows * K + i] = (float)(i % COLS);
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(in, 0, FCC_F32, rows, K),
                                            .b = fcc_tensor_2d(in, (uint64_t)(rows * K) * sizeof(float), FCC_F32, K, COLS),
                                            .send_rows = send,
                                            .c = fcc_tensor_2d(out, 0, FCC_F32, room, COLS),
                                            .recv_rows = received};
    for (int round = 0; round < 2; round++) {
        const float *c = memory_of(out);
        args.schedule = round ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        memset(memory_of(out), 0, (size_t)(room * COLS) * sizeof(float));
        memset(received, 0, sizeof(received));
        OK(fcc_noop(comm)); /* nobody's rows come before this */
        OK(fcc_gemm_all_to_all(comm, &args));
        for (int r = 0; r < n; r++) {
            CHECK(received[r] == rows_between(r, rank));
            for (int64_t i = 0; i < received[r] * COLS; i++)
                CHECK(*c++ == (float)((r + 1) * K) * (float)(i % COLS));
        }
    }
    args.recv_rows = NULL;
    OK(fcc_gemm_all_to_all(comm, &args));
    args.send_rows = &send[1]; /* not what M is */
    send[n - 1]++;
    FAILS(fcc_gemm_all_to_all(comm, &args), -EINVAL, "rank ", "send_rows");
    fcc_buffer_free(in);
    fcc_buffer_free(out);
}

/* y = sum over ranks of x . w: rank r has x = r % 7 and w = column % 5. */
static void sums_exchange(fcc_comm *comm, int rank, int n, int64_t cols, uint32_t schedule, bool gemm)
{
    int64_t rows = gemm ? 3 : 1, sum = 0;
    fcc_buffer *in, *out;

    for (int r = 0; r < n; r++)
        sum += r % 7;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)(rows * K + K * cols) * sizeof(float), &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, (size_t)(rows * cols) * sizeof(float), &out));
    for (int64_t i = 0; i < rows * K; i++)
        memory_of(in)[i] = (float)(rank % 7);
    for (int64_t i = 0; i < K * cols; i++)
        memory_of(in)[rows * K + i] = (float)((gemm ? i % cols : i / K) % 5);
    struct fcc_tensor x = fcc_tensor_2d(in, 0, FCC_F32, rows, K), y = fcc_tensor_2d(out, 0, FCC_F32, rows, cols);
    struct fcc_gemv_all_reduce_args gemv = {
        .x = x, .w = fcc_tensor_2d(in, (uint64_t)(rows * K) * sizeof(float), FCC_F32, cols, K), .y = y, .schedule = schedule};
    struct fcc_gemm_all_reduce_args product = {
        .a = x, .b = fcc_tensor_2d(in, (uint64_t)(rows * K) * sizeof(float), FCC_F32, K, cols), .c = y, .schedule = schedule};
    if (gemm)
        OK(fcc_gemm_all_reduce(comm, &product));
    else
        OK(fcc_gemv_all_reduce(comm, &gemv));
    for (int64_t i = 0; i < rows * cols; i++)
        CHECK(memory_of(out)[i] == (float)(sum * K * (i % cols % 5)));
    if (gemm) { /* of which the first ranks have a row each, and most have none */
        const int64_t own = rows / n + (rank < rows % n);
        struct fcc_gemm_reduce_scatter_args scattered = {
            .a = x, .b = product.b, .c = fcc_tensor_2d(out, 0, FCC_F32, own, cols), .schedule = schedule};
        OK(fcc_noop(comm)); /* all have looked */
        for (int64_t i = 0; i < rows * cols; i++)
            memory_of(out)[i] = -1;
        OK(fcc_gemm_reduce_scatter(comm, &scattered));
        for (int64_t i = 0; i < rows * cols; i++)
            CHECK(memory_of(out)[i] == (i < own * cols ? (float)(sum * K * (i % cols % 5)) : -1));
    }
    fcc_buffer_free(in);
    fcc_buffer_free(out);
}

/* Rank r has r % 3 rows of A, of r % 7; column j of its B has j % 5. */
static void gather_exchange(fcc_comm *comm, int rank, int n)
{
    int64_t all = 0, own = rank % 3;
    fcc_buffer *in, *out, *gathered;

    for (int r = 0; r < n; r++)
        all += r % 3;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)(own * K + K * COLS) * sizeof(float), &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, (size_t)(all * COLS) * sizeof(float), &out));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)(all * K) * sizeof(float), &gathered));
    for (int64_t i = 0; i < own * K + K * COLS; i++)
        memory_of(in)[i] = (float)(i < own * K ? rank % 7 : (i - own * K) % COLS % 5);
    struct fcc_all_gather_gemm_args args = {.a = fcc_tensor_2d(in, 0, FCC_F32, own, K),
                                            .b = fcc_tensor_2d(in, (uint64_t)(own * K) * sizeof(float), FCC_F32, K, COLS),
                                            .gathered = fcc_tensor_2d(gathered, 0, FCC_F32, all, K),
                                            .c = fcc_tensor_2d(out, 0, FCC_F32, all, COLS)};
    for (int round = 0; round < 2; round++) {
        int64_t row = 0;
        args.schedule = round ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        memset(memory_of(out), 0xff, (size_t)(all * COLS) * sizeof(float));
        OK(fcc_all_gather_gemm(comm, &args));
        for (int r = 0; r < n; r++)
            for (int i = 0; i < r % 3; i++, row++) {
                for (int64_t j = 0; j < COLS; j++)
                    CHECK(memory_of(out)[row * COLS + j] == (float)(K * (r % 7) * (j % 5)));
                CHECK(memory_of(gathered)[row * K] == (float)(r % 7) && memory_of(gathered)[row * K + K - 1] == (float)(r % 7));
            }
    }
    fcc_buffer_free(in);
    fcc_buffer_free(out);
    fcc_buffer_free(gathered);
}

/* One table for each rank, of three rows; each bag is one row. */
static void vectors_exchange(fcc_comm *comm, int rank, int n)
{
    enum { TABLE = 3 };
    int64_t batch = n, table_rows = TABLE;
    size_t at[2] = {TABLE * DIM * sizeof(float), TABLE * DIM * sizeof(float) + (size_t)batch * sizeof(int32_t)};
    fcc_buffer *in, *out;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, at[1] + (size_t)(batch + 1) * sizeof(int32_t), &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)n * DIM * sizeof(float), &out));
    for (int i = 0; i < TABLE * DIM; i++)
        memory_of(in)[i] = (float)(1000 * rank + i);
    for (int i = 0; i <= batch; i++) {
        int32_t *indices = (int32_t *)(void *)((char *)fcc_buffer_data(in) + at[0]);
        indices[batch + i] = i; /* the offsets lie behind */
        if (i < batch)
            indices[i] = i % TABLE;
    }
    struct fcc_embedding_all_to_all_args args = {.tables = fcc_tensor_2d(in, 0, FCC_F32, TABLE, DIM),
                                                 .table_rows = &table_rows,
                                                 .num_tables = 1,
                                                 .pooling = FCC_POOLING_SUM,
                                                 .indices = fcc_tensor_1d(in, at[0], FCC_I32, batch),
                                                 .offsets = fcc_tensor_1d(in, at[1], FCC_I32, batch + 1),
                                                 .batch = batch,
                                                 .out = fcc_tensor_3d(out, 0, FCC_F32, 1, n, DIM)};
    OK(fcc_embedding_all_to_all(comm, &args));
    for (int i = 0; i < n * DIM; i++) {
        int table = i / DIM, row = rank % TABLE;
        CHECK(memory_of(out)[i] == (float)(1000 * table + row * DIM + i % DIM));
    }
    fcc_buffer_free(in);
    fcc_buffer_free(out);
}

static void rank_run(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    int n = all->n, status = 0;

    (void)argument;
    CHECK(fcc_comm_size(comm) == n && fcc_comm_rank(comm) == rank);
    OK(fcc_noop(comm));
    rows_exchange(comm, rank, n);
    sums_exchange(comm, rank, n, LINE * n, FCC_SCHEDULE_FUSED, false);
    sums_exchange(comm, rank, n, LINE * 40, FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT, false);
    sums_exchange(comm, rank, n, LINE * n, FCC_SCHEDULE_SEQUENTIAL, true);
    sums_exchange(comm, rank, n, 777, FCC_SCHEDULE_AUTO, true);
    gather_exchange(comm, rank, n);
    vectors_exchange(comm, rank, n);
    if (rank != n - 2) /* that one leaves */
        status = fcc_noop(comm);
    if (rank != n - 2 && (status != -ECONNABORTED || !strstr(fcc_last_error(), rank_named(n - 2))))
        check_failed(__FILE__, __LINE__, "rank %d: %d: %s", rank, status, fcc_last_error());
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void on_four_nodes(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, NODES, NULL);
    ranks_start(&r, ranks_number(), rank_run, NULL);
    ranks_join(&r);
    expect_alive(NODES);
    daemon_stop(&d);
}

static void on_one_node(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, ranks_number(), rank_run, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {{"on_four_nodes", on_four_nodes, 90}, {"on_one_node", on_one_node, 90}};

    return tests_run("many_ranks", TESTS(tests));
}
