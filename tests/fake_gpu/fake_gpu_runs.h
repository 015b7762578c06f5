/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_runs.h - a rank on a fake GPU with prepared operators, whose right results are easy to tell: of each row and each column only
 * the first element counts (fake_gpu_prepared.c), so that x, w, a and b have other numbers than 0 behind it on one side only.
 */
#ifndef FAKE_GPU_RUNS_H
#define FAKE_GPU_RUNS_H

#include <math.h>

#include "tests/fake_gpu/fake_gpu_bed.h"

/* Small enough to be done in one step, which sends only words; too large for that; rows for all ranks, some of them none. */
enum work { ONE_STEP, TWO_STEPS, ROWS_SENT, WORKS };

enum { LANE_K = 8, LANE_N = 200, WIDE_M = 32, WIDE_N = 2104, SENT = 40 };
/* Where each tensor lies, in floats: x and a; w and b; y and c. */
enum {
    X_AT = 64,
    A_AT = X_AT + WIDE_M * LANE_K,
    LEFT_FLOATS = A_AT + 2 * GPUS * SENT * LANE_K,
    W_AT = 32,
    B_AT = W_AT + WIDE_N * LANE_K,
    RIGHT_FLOATS = B_AT + LANE_K * LANE_N,
    Y_AT = 128,
    C_AT = Y_AT + WIDE_M * WIDE_N,
    OUT_FLOATS = C_AT + 2 * GPUS * SENT * LANE_N,
};

struct lane {
    fcc_context *context;
    fcc_comm *comm;
    void *stream;
    int rank, n;
    fcc_buffer *left, *right, *out;
    int64_t send[GPUS], received[GPUS];
    struct result {
        struct lane *lane;
        enum work work;
    } results[WORKS];
};

/* Rows from one rank to another. */
static inline int64_t lane_rows(int from, int to)
{
    return SENT * ((from + to) % 3);
}

static inline float x_value(int row, int rank)
{
    return (float)((row % 5 + 1) * (rank + 1));
}

static inline float w_value(int col)
{
    return (float)(col % 7 + 1);
}

static inline float a_value(int64_t row, int rank)
{
    return (float)(row % 11 + 1 + 16 * rank);
}

static inline float b_value(int col, int rank)
{
    return (float)(col % 7 + 1 + rank);
}

static inline void inputs_fill(const struct lane *l)
{
    float *left = calloc(LEFT_FLOATS, sizeof(float)), *right = calloc(RIGHT_FLOATS, sizeof(float));

    CHECK(left && right);
    for (int i = 0; i < WIDE_M; i++)
        left[X_AT + i * LANE_K] = x_value(i, l->rank);
    for (int i = 0; i < 2 * GPUS * SENT; i++)
        left[A_AT + i * LANE_K] = a_value(i, l->rank);
    for (int i = 0; i < WIDE_N * LANE_K; i++)
        right[W_AT + i] = i % LANE_K ? 3 : w_value(i / LANE_K);
    for (int i = 0; i < LANE_K * LANE_N; i++)
        right[B_AT + i] = i < LANE_N ? b_value(i, l->rank) : 3;
    OK(fcc_buffer_write(l->left, 0, left, LEFT_FLOATS * sizeof(float)));
    OK(fcc_buffer_write(l->right, 0, right, RIGHT_FLOATS * sizeof(float)));
    free(left);
    free(right);
}

/* With a connection that is there, and a stream. */
static inline void lane_join(struct lane *l, fcc_context *context, const struct fcc_unique_id *id, int n, int rank,
                             uint32_t time_limit_ms)
{
    *l = (struct lane){.context = context, .n = n, .rank = rank};
    l->comm = client_join(context, id, n, rank, time_limit_ms);
    l->stream = stream_open();
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, LEFT_FLOATS * sizeof(float), &l->left));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, RIGHT_FLOATS * sizeof(float), &l->right));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_SYMMETRIC, OUT_FLOATS * sizeof(float), &l->out));
    inputs_fill(l);
    for (int r = 0; r < n; r++)
        l->send[r] = lane_rows(rank, r);
    for (int work = 0; work < WORKS; work++)
        l->results[work] = (struct result){.lane = l, .work = (enum work)work};
}

static inline void lane_open(struct lane *l, const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    driver_use();
    lane_join(l, client_connect(NULL), &all->id, all->n, rank, time_limit_ms);
}

static inline void lane_leave(struct lane *l)
{
    stream_close(l->stream);
    fcc_comm_destroy(l->comm);
}

static inline void lane_close(struct lane *l)
{
    lane_leave(l);
    client_end(l->context);
}

/* ---- operators ---- */

static inline struct fcc_gemv_all_reduce_args gemv_args(const struct lane *l, enum work work)
{
    int m = work == ONE_STEP ? 2 : WIDE_M, n = work == ONE_STEP ? LANE_N : WIDE_N;

    return (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(l->left, X_AT * sizeof(float), FCC_F32, m, LANE_K),
                                             .w = fcc_tensor_2d(l->right, W_AT * sizeof(float), FCC_F32, n, LANE_K),
                                             .y = fcc_tensor_2d(l->out, Y_AT * sizeof(float), FCC_F32, m, n)};
}

static inline struct fcc_gemm_all_to_all_args gemm_args(struct lane *l)
{
    int64_t sent = 0, received = 0;

    for (int r = 0; r < l->n; r++) {
        sent += l->send[r];
        received += lane_rows(r, l->rank);
    }
    return (struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(l->left, A_AT * sizeof(float), FCC_F32, sent, LANE_K),
                                             .b = fcc_tensor_2d(l->right, B_AT * sizeof(float), FCC_F32, LANE_K, LANE_N),
                                             .send_rows = l->send,
                                             .c = fcc_tensor_2d(l->out, C_AT * sizeof(float), FCC_F32, received, LANE_N),
                                             .recv_rows = l->received};
}

static inline int work_prepare(struct lane *l, enum work work, fcc_prepared **out)
{
    struct fcc_gemv_all_reduce_args gemv = gemv_args(l, work);
    struct fcc_gemm_all_to_all_args gemm = gemm_args(l);

    if (work != ROWS_SENT)
        return fcc_gemv_all_reduce_prepare(l->comm, &gemv, out);
    int status = fcc_gemm_all_to_all_prepare(l->comm, &gemm, out);
    for (int r = 0; r < l->n && !status; r++)
        CHECK(l->received[r] == lane_rows(r, l->rank));
    return status;
}

static inline fcc_prepared *prepare(struct lane *l, enum work work)
{
    fcc_prepared *p;

    OK(work_prepare(l, work, &p));
    return p;
}

/* ---- results, on a stream ---- */

static inline float *result_data(const struct result *r, int *rows, int *cols)
{
    const struct lane *l = r->lane;
    int64_t received = 0;

    for (int from = 0; from < l->n; from++)
        received += lane_rows(from, l->rank);
    *rows = r->work == ROWS_SENT ? (int)received : r->work == ONE_STEP ? 2 : WIDE_M;
    *cols = r->work == TWO_STEPS ? WIDE_N : LANE_N;
    return (float *)fcc_buffer_data(l->out) + (r->work == ROWS_SENT ? C_AT : Y_AT);
}

static inline float product_value(const struct lane *l, int row, int col)
{
    return x_value(row, 0) * w_value(col) * (float)(l->n * (l->n + 1) / 2);
}

/* Of the rank that the row comes from; which of its rows that is. */
static inline float sent_value(const struct lane *l, int64_t row, int col)
{
    int from = 0;

    for (; row >= lane_rows(from, l->rank); from++)
        row -= lane_rows(from, l->rank);
    for (int before = 0; before < l->rank; before++)
        row += lane_rows(from, before);
    return a_value(row, from) * b_value(col, from);
}

static inline void result_wipe(void *result)
{
    int rows, cols;
    float *data = result_data(result, &rows, &cols);

    for (int i = 0; i < rows * cols; i++)
        data[i] = NAN;
}

static inline void result_check(void *result)
{
    const struct result *r = result;
    int rows, cols;
    const float *data = result_data(r, &rows, &cols);

    for (int i = 0; i < rows * cols; i++) {
        float want =
            r->work == ROWS_SENT ? sent_value(r->lane, i / cols, i % cols) : product_value(r->lane, i / cols, i % cols);
        if (data[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d of %d, work %d: element %d, %d is %g, expected %g", r->lane->rank,
                         r->lane->n, r->work, i / cols, i % cols, (double)data[i], (double)want);
    }
}

/* Onto the stream: the result is spoilt, a run, and the right result. */
static inline void work_run(struct lane *l, enum work work, fcc_prepared *p, void *stream)
{
    CHECK(gpu.stream_function(stream, result_wipe, &l->results[work]) == 0);
    OK(fcc_prepared_enqueue(p, stream));
    CHECK(gpu.stream_function(stream, result_check, &l->results[work]) == 0);
}

/* ... of a new one, in all ways. */
static inline void lane_works(struct lane *l)
{
    for (int work = 0; work < WORKS; work++) {
        fcc_prepared *p = prepare(l, (enum work)work);
        work_run(l, (enum work)work, p, l->stream);
        stream_sync(l->stream);
        fcc_prepared_free(p);
    }
    OK(fcc_noop(l->comm));
    OK(fcc_comm_error(l->comm));
}

#endif
