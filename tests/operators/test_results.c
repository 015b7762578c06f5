/* SPDX-License-Identifier: MIT
 *
 * test_results.c - result buffers, which each rank makes when it needs one: of other sizes and at other times than the others', over one
 * node and over two.
 */
#include <errno.h>
#include <string.h>

#include "tests/bed/harness.h"

#define RANKS 4
#define N 96
#define K 32
#define ROUNDS 12

/* What a rank computes with: x [1][K], all x; w [N][K], row n all (n % 5 + 1); a [RANKS][K], all x; b [K][N], all 1. */
struct inputs {
    fcc_buffer *buffer;
    struct fcc_tensor x, w, a, b;
};

static fcc_buffer *buffer_new(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(comm, kind, bytes, &b));
    for (size_t i = 0; i < bytes; i++)
        CHECK(((const unsigned char *)fcc_buffer_data(b))[i] == 0);
    return b;
}

static void inputs_make(fcc_comm *comm, struct inputs *in)
{
    in->buffer = buffer_new(comm, FCC_BUFFER_LOCAL, (RANKS * K + N * K + K * N) * sizeof(float));
    in->x = fcc_tensor_2d(in->buffer, 0, FCC_F32, 1, K);
    in->a = fcc_tensor_2d(in->buffer, 0, FCC_F32, RANKS, K);
    in->w = fcc_tensor_2d(in->buffer, RANKS * K * sizeof(float), FCC_F32, N, K);
    in->b = fcc_tensor_2d(in->buffer, (RANKS + N) * K * sizeof(float), FCC_F32, K, N);
    float *at = fcc_buffer_data(in->buffer);
    for (int i = 0; i < N * K; i++) {
        at[RANKS * K + i] = (float)(i / K % 5 + 1);
        at[(RANKS + N) * K + i] = 1.0f;
    }
}

static void inputs_set(const struct inputs *in, float value)
{
    for (int i = 0; i < RANKS * K; i++)
        ((float *)fcc_buffer_data(in->buffer))[i] = value;
}

/* The sum over the ranks of x . w, where rank r has x = round + r. */
static void sum_check(fcc_comm *comm, const struct inputs *in, fcc_buffer *result, size_t offset, int round)
{
    struct fcc_gemv_all_reduce_args args = {.x = in->x, .w = in->w, .y = fcc_tensor_2d(result, offset, FCC_F32, 1, N)};
    const float *y = (const float *)fcc_buffer_data(result) + offset / sizeof(float);
    int sum = 0;

    for (int r = 0; r < RANKS; r++)
        sum += round + r;
    OK(fcc_gemv_all_reduce(comm, &args));
    for (int n = 0; n < N; n++)
        CHECK(y[n] == (float)(sum * K * (n % 5 + 1)));
}

/* What is in the result's i-th element then: the row of rank i / N. */
static float row_value(int round, int i)
{
    int rank = i / N;

    return (float)((round + rank) * K);
}

/* One row from each rank, where rank r has a = round + r. */
static void rows_check(fcc_comm *comm, const struct inputs *in, fcc_buffer *result, int round)
{
    int64_t send[RANKS], received[RANKS] = {0};
    struct fcc_gemm_all_to_all_args args = {
        .a = in->a, .b = in->b, .send_rows = send, .c = fcc_tensor_2d(result, 0, FCC_F32, RANKS, N), .recv_rows = received};
    const float *c = fcc_buffer_data(result);

    for (int r = 0; r < RANKS; r++)
        send[r] = 1;
    OK(fcc_gemm_all_to_all(comm, &args));
    for (int i = 0; i < RANKS * N; i++)
        CHECK(received[i / N] == 1 && c[i] == row_value(round, i));
}

/* Each rank keeps as many results as it likes, and frees them when it likes. */
static void growing_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *kept[ROUNDS] = {NULL}, *symmetric;
    struct inputs in;
    void *at;

    (void)argument;
    inputs_make(comm, &in);
    for (int round = 0; round < ROUNDS; round++) {
        size_t before = 4096 * (size_t)(round % (rank + 1));
        for (int i = 0; i < rank; i++) /* so that ranks have different numbers of them, and different handles */
            fcc_buffer_free(buffer_new(comm, FCC_BUFFER_RESULT, 100 * (size_t)(i + 1)));
        kept[round] = buffer_new(comm, FCC_BUFFER_RESULT, before + RANKS * N * sizeof(float) * (size_t)(1 + round % 3));
        inputs_set(&in, (float)(round + rank));
        sum_check(comm, &in, kept[round], before, round);
        rows_check(comm, &in, kept[round], round);
        if (round % (rank + 2) == 0) {
            fcc_buffer_free(kept[round]);
            kept[round] = NULL;
        }
        if (round == ROUNDS / 2) { /* the other kind goes on being all ranks' */
            symmetric = buffer_new(comm, FCC_BUFFER_SYMMETRIC, RANKS * N * sizeof(float));
            rows_check(comm, &in, symmetric, round);
        }
    }
    for (int round = 0; round < ROUNDS; round++) { /* nothing was stored into what was kept */
        const float *c = kept[round] ? fcc_buffer_data(kept[round]) : NULL;
        for (int i = 0; c && round % (rank + 1) == 0 && i < RANKS * N; i++)
            CHECK(c[i] == row_value(round, i));
    }
    fcc_buffer *own = buffer_new(comm, FCC_BUFFER_RESULT, 64);
    FAILS(fcc_buffer_peer(own, (rank + 1) % RANKS, &at), -EINVAL, "not symmetric");
    FAILS(fcc_buffer_alloc(comm, (enum fcc_buffer_kind)3, 64, &own), -EINVAL, "kind: 3", "0 to 2");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 0, &own), -EINVAL, "bytes: 0");
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* One of another communicator's is no place for results: its other ranks know nothing of it. All ranks are told. */
static void elsewhere_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0), *alone;
    struct fcc_unique_id id;
    struct inputs in;

    (void)argument;
    OK(fcc_get_unique_id(comm_context(), &id));
    OK(fcc_comm_init(comm_context(), &id, 1, 0, NULL, &alone));
    inputs_make(comm, &in);
    fcc_buffer *mine = buffer_new(comm, FCC_BUFFER_RESULT, N * sizeof(float));
    fcc_buffer *other = buffer_new(rank == 1 ? alone : comm, FCC_BUFFER_RESULT, N * sizeof(float));
    struct fcc_gemv_all_reduce_args args = {.x = in.x, .w = in.w, .y = fcc_tensor_2d(other, 0, FCC_F32, 1, N)};
    FAILS(fcc_gemv_all_reduce(comm, &args), -EINVAL, "rank 1", "y: in a buffer that takes no results of this communicator");
    inputs_set(&in, (float)(1 + rank));
    sum_check(comm, &in, mine, 0, 1);
    OK(fcc_comm_abort(alone, "it has done its part"));
    FAILS(fcc_buffer_alloc(alone, FCC_BUFFER_RESULT, 64, &other), -ECONNABORTED, "it has done its part");
    OK(fcc_noop(comm));
    fcc_comm_destroy(alone);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void on_nodes(const char *nodes, void (*rank)(int rank, const struct ranks *all, void *argument))
{
    CHECK(!setenv("FCC_TEST_NODES", nodes, 1));
    ranks_run(RANKS, rank, NULL);
}

static void grows(void)
{
    on_nodes("1", growing_rank);
}

static void grows_over_nodes(void)
{
    on_nodes("2", growing_rank);
}

static void elsewhere(void)
{
    on_nodes("1", elsewhere_rank);
}

static void elsewhere_over_nodes(void)
{
    on_nodes("2", elsewhere_rank);
}

/* What a user may have is all that one rank's results can take; freed ones count no more. */
static void limit_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b = NULL, *none;

    (void)argument;
    for (int i = 0; rank == 0 && i < 5; i++) {
        b = buffer_new(comm, FCC_BUFFER_RESULT, 5 << 20);
        FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 5 << 20, &none), -ENOMEM, "MEMORY_PER_USER_MB");
        fcc_buffer_free(b);
    }
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void limited(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, (const char *const[]){"--memory-per-user-mb", "8", NULL});
    ranks_start(&r, 2, limit_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"grows", grows, 0},         {"grows_over_nodes", grows_over_nodes, 60},
        {"elsewhere", elsewhere, 0}, {"elsewhere_over_nodes", elsewhere_over_nodes, 60},
        {"limited", limited, 0},
    };

    return tests_run("results", TESTS(tests));
}
