/* SPDX-License-Identifier: MIT
 *
 * first.c - a program of the time of first.h: two ranks, every operator that there was, in all its forms on the cpu, with an epilogue as it was
 * then; pools; errors. Each result is compared with plain loops. Prints "well".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "first.h"

#define RANKS 2
#define M 4
#define N 32
#define K 16
#define CHECK(condition)                                                                                                       \
    ((condition) ? (void)0 : (printf("line %d: %s: %s\n", __LINE__, #condition, fcc_last_error()), exit(1)))
#define OK(call) CHECK((call) == 0)

static fcc_context *context;
static fcc_comm *comm;
static int rank;

static float *floats(enum fcc_buffer_kind kind, size_t n, fcc_buffer **out)
{
    OK(fcc_buffer_alloc(comm, kind, n * sizeof(float), out));
    CHECK(fcc_buffer_size(*out) >= n * sizeof(float) && fcc_buffer_find(context, fcc_buffer_data(*out)) == *out);
    return fcc_buffer_data(*out);
}

static float value_of(int r, int tensor, int i)
{
    return (float)((r * 7 + tensor * 5 + i * 3) % 11 - 5);
}

static float product(int r, int m, int n) /* of one whose second factor lies [N][K] */
{
    float sum = 0;
    for (int i = 0; i < K; i++)
        sum += value_of(r, 0, m * K + i) * value_of(r, 1, n * K + i);
    return sum;
}

static float term(int r, int m, int n) /* of a product whose second factor lies [K][N] */
{
    float sum = 0;
    for (int i = 0; i < K; i++)
        sum += value_of(r, 0, m * K + i) * value_of(r, 2, i * N + n);
    return sum;
}

static void gemv(void)
{
    fcc_buffer *bx, *bw, *by, *bb, *br;
    float *x = floats(FCC_BUFFER_LOCAL, M * K, &bx), *w = floats(FCC_BUFFER_LOCAL, N * K, &bw);
    float *y = floats(FCC_BUFFER_SYMMETRIC, M * N, &by), *b = floats(FCC_BUFFER_LOCAL, N, &bb),
          *r = floats(FCC_BUFFER_LOCAL, M * N, &br);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(bx, 0, FCC_F32, M, K),
                                            .w = fcc_tensor_2d(bw, 0, FCC_F32, N, K),
                                            .y = fcc_tensor_2d(by, 0, FCC_F32, M, N)};
    struct fcc_epilogue epilogue = {.bias = fcc_tensor_1d(bb, 0, FCC_F32, N), .residual = fcc_tensor_2d(br, 0, FCC_F32, M, N)};
    fcc_request *request;
    int done = 0;

    for (int i = 0; i < M * K; i++)
        x[i] = value_of(rank, 0, i);
    for (int i = 0; i < N * K; i++)
        w[i] = value_of(rank, 1, i);
    for (int i = 0; i < M * N; i++)
        r[i] = (float)(i % 13);
    for (int i = 0; i < N; i++)
        b[i] = (float)(i % 3);
    for (int way = 0; way < 4; way++) {
        memset(y, 0xff, M * N * sizeof(float));
        if (way == 0)
            OK(fcc_gemv_all_reduce(comm, &args));
        if (way == 1) {
            OK(fcc_gemv_all_reduce_start(comm, &args, &request));
            while (!done)
                OK(fcc_request_test(request, &done));
            fcc_request_free(request);
        }
        if (way == 2)
            OK(fcc_gemv_all_reduce_epilogue(comm, &args, &epilogue));
        if (way == 3) {
            OK(fcc_gemv_all_reduce_epilogue_start(comm, &args, &epilogue, &request));
            OK(fcc_request_wait(request, 20000));
            fcc_request_free(request);
        }
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                CHECK(y[m * N + n] == product(0, m, n) + product(1, m, n) + (way >= 2 ? b[n] + r[m * N + n] : 0));
    }
    args.schedule = 77;
    CHECK(fcc_gemv_all_reduce(comm, &args) == -22 && strstr(fcc_last_error(), "schedule"));
}

static void gemm(void)
{
    fcc_buffer *ba, *bb, *bc;
    float *a = floats(FCC_BUFFER_LOCAL, M * K, &ba), *b = floats(FCC_BUFFER_LOCAL, K * N, &bb),
          *c = floats(FCC_BUFFER_SYMMETRIC, M * N, &bc);
    struct fcc_gemm_all_to_all_args send = {.a = fcc_tensor_2d(ba, 0, FCC_F32, M, K),
                                            .b = fcc_tensor_2d(bb, 0, FCC_F32, K, N),
                                            .c = fcc_tensor_2d(bc, 0, FCC_F32, M, N)};
    struct fcc_gemm_all_reduce_args sum = {.a = send.a, .b = send.b, .c = send.c};
    struct fcc_epilogue none = {.bias = {.buffer = NULL}};
    int64_t got[RANKS] = {0, 0};

    for (int i = 0; i < M * K; i++)
        a[i] = value_of(rank, 0, i);
    for (int i = 0; i < K * N; i++)
        b[i] = value_of(rank, 2, i);
    send.recv_rows = got;
    for (int way = 0; way < 2; way++) {
        memset(c, 0xff, M * N * sizeof(float));
        OK(way ? fcc_gemm_all_to_all_epilogue(comm, &send, &none) : fcc_gemm_all_to_all(comm, &send));
        CHECK(got[0] == M / RANKS && got[1] == M / RANKS);
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                CHECK(c[m * N + n] == term(m / (M / RANKS), rank * (M / RANKS) + m % (M / RANKS), n));
    }
    for (int way = 0; way < 2; way++) {
        memset(c, 0xff, M * N * sizeof(float));
        OK(way ? fcc_gemm_all_reduce_epilogue(comm, &sum, &none) : fcc_gemm_all_reduce(comm, &sum));
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                CHECK(c[m * N + n] == term(0, m, n) + term(1, m, n));
    }
}

/* Each rank has one table; each bag has two ids. */
static void embedding(void)
{
    enum { ROWS = 8, DIM = 4, BATCH = 6 };
    static const int64_t rows[1] = {ROWS};
    fcc_buffer *bt, *bi, *bo, *bout;
    float *table = floats(FCC_BUFFER_LOCAL, ROWS * DIM, &bt),
          *out = floats(FCC_BUFFER_SYMMETRIC, BATCH / RANKS * RANKS * DIM, &bout);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * BATCH * sizeof(int64_t), &bi));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (BATCH + 1) * sizeof(int64_t), &bo));
    int64_t *ids = fcc_buffer_data(bi), *offsets = fcc_buffer_data(bo);
    struct fcc_embedding_all_to_all_args args = {.tables = fcc_tensor_2d(bt, 0, FCC_F32, ROWS, DIM),
                                                 .table_rows = rows,
                                                 .num_tables = 1,
                                                 .pooling = FCC_POOLING_SUM,
                                                 .indices = fcc_tensor_1d(bi, 0, FCC_I64, 2 * BATCH),
                                                 .offsets = fcc_tensor_1d(bo, 0, FCC_I64, BATCH + 1),
                                                 .batch = BATCH,
                                                 .out = fcc_tensor_3d(bout, 0, FCC_F32, BATCH / RANKS, RANKS, DIM)};

    for (int i = 0; i < ROWS * DIM; i++)
        table[i] = value_of(rank, 3, i);
    for (int i = 0; i < 2 * BATCH; i++)
        ids[i] = i * 5 % ROWS;
    for (int i = 0; i <= BATCH; i++)
        offsets[i] = 2 * i;
    OK(fcc_embedding_all_to_all(comm, &args));
    for (int s = 0; s < BATCH / RANKS; s++)
        for (int r = 0; r < RANKS; r++)
            for (int d = 0; d < DIM; d++) {
                int sample = rank * (BATCH / RANKS) + s;
                float want =
                    value_of(r, 3, 2 * sample * 5 % ROWS * DIM + d) + value_of(r, 3, (2 * sample + 1) * 5 % ROWS * DIM + d);
                CHECK(out[(s * RANKS + r) * DIM + d] == want);
            }
}

static void rest(void)
{
    const int32_t *status;
    struct fcc_env env;
    fcc_buffer *buffer;
    void *memory, *peer;
    char text[4] = "abc", back[4];

    OK(fcc_noop(comm));
    OK(fcc_pool_open(comm, 0));
    CHECK((memory = fcc_pool_alloc(1000, 0, NULL)) && fcc_buffer_find(context, memory));
    fcc_pool_free(memory, 1000, 0, NULL);
    OK(fcc_pool_close(0));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 4096, &buffer));
    OK(fcc_buffer_write(buffer, 8, text, sizeof(text)));
    OK(fcc_buffer_read(buffer, 8, back, sizeof(back)));
    CHECK(!memcmp(text, back, sizeof(text)));
    OK(fcc_buffer_peer(buffer, 1 - rank, &peer));
    CHECK(peer && peer != fcc_buffer_data(buffer));
    OK(fcc_comm_status(comm, &status));
    CHECK(*status == 0);
    CHECK(fcc_comm_error(comm) == 0);
    CHECK(fcc_comm_size(comm) == RANKS && fcc_comm_rank(comm) == rank);
    CHECK(fcc_comm_device_kind(comm) == FCC_DEVICE_CPU && fcc_dtype_size(FCC_BF16) == 2 && fcc_device_count(context) > 0);
    (void)fcc_env_find(&env);
    OK(fcc_noop(comm)); /* nobody frees what the other still asks for, or leaves */
    fcc_buffer_free(buffer);
    CHECK(strstr(fcc_operators(), "gemm_all_to_all") && fcc_version()[0]);
}

int main(void)
{
    struct fcc_unique_id id;
    struct fcc_comm_options options = {.device = -1};
    int both[2], status = 0;

    CHECK(pipe(both) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    rank = child == 0;
    OK(fcc_connect(NULL, &context));
    if (rank == 0) {
        OK(fcc_get_unique_id(context, &id));
        CHECK(write(both[1], &id, sizeof(id)) == sizeof(id));
    } else {
        CHECK(read(both[0], &id, sizeof(id)) == sizeof(id));
    }
    OK(fcc_comm_init(context, &id, RANKS, rank, &options, &comm));
    gemv();
    gemm();
    embedding();
    rest();
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    if (rank)
        return 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("well");
    return 0;
}
