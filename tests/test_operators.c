/* SPDX-License-Identifier: MIT
 *
 * test_operators.c - the three operators through the real daemon: every dtype and schedule, 1 to 8 ranks, odd and empty
 * shapes, against the plain double-precision reference (demo/reference.h); ranks as processes and as threads; over the ring and
 * over the socket; blocking and asynchronous; few and many workgroups.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "reference.h"

#define ELEMENTS_MAX 16384
#define RANKS 8

static const struct type {
    enum fcc_dtype fcc;
    enum reference_type reference;
    size_t size;
} types[] = {{FCC_F32, REFERENCE_F32, 4}, {FCC_F16, REFERENCE_F16, 2}, {FCC_BF16, REFERENCE_BF16, 2}};

/* One rank with buffers that all its cases use. */
struct bed {
    fcc_comm *comm;
    int rank, n;
    fcc_buffer *in[3], *out;
    double *expected;
    unsigned char *shared; /* ELEMENTS_MAX * 4 bytes: the first rank's result, for the others to compare bits with */
};

/* Element i of a tensor: a multiple of 1/8 from -2 to 2, which all dtypes have. Drawn by a multiplicative hash. */
static double value(unsigned seed, int64_t i)
{
    uint64_t x = ((uint64_t)seed << 32) + (uint64_t)i + 1;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return (double)(int)(x >> 40 & 31) / 8 - 2;
}

static void store(const struct type *t, void *data, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (t->fcc == FCC_F32)
        memcpy((char *)data + 4 * i, &f, 4);
    uint16_t half = (uint16_t)(bits >> 16); /* bf16: exact, as the low bits are 0 */
    if (t->fcc == FCC_F16)                  /* rebias the exponent; the values are normal numbers or 0 */
        half = (uint16_t)(v == 0 ? 0 : (bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
    if (t->size == 2)
        memcpy((char *)data + 2 * i, &half, 2);
}

static void fill(const struct type *t, fcc_buffer *b, unsigned seed, int64_t n)
{
    CHECK(n <= ELEMENTS_MAX);
    for (int64_t i = 0; i < n; i++)
        store(t, fcc_buffer_data(b), i, value(seed, i));
}

/* Every byte 0xff: a NaN in all dtypes, and so an error unless it is overwritten. */
static void poison(fcc_buffer *b)
{
    memset(fcc_buffer_data(b), 0xff, fcc_buffer_size(b));
}

static void compare(const struct bed *bed, const struct type *t, int64_t n, const char *what, int c)
{
    int64_t first = 0;
    int64_t wrong = reference_compare(t->reference, fcc_buffer_data(bed->out), bed->expected, n, &first);

    if (wrong)
        check_failed(__FILE__, __LINE__,
                     "%s, case %d, rank %d of %d, dtype %d: %ld of %ld wrong, first [%ld] = %g, expected %g", what, c,
                     bed->rank, bed->n, (int)t->fcc, (long)wrong, (long)n, (long)first,
                     reference_element(t->reference, fcc_buffer_data(bed->out), first), bed->expected[first]);
}

/* ---- gemv_all_reduce ---- */

static const int gemv_cases[][3] = {/* M, N, K of rank 0 */
                                    {1, 1, 1}, {1, 37, 29}, {3, 128, 64}, {64, 65, 7}, {1, 1024, 8}, {2, 0, 5}, {5, 33, 0}};

static int gemv_k(int k, int rank) /* uneven, some ranks have none */
{
    return k == 0 ? 0 : (k + 3 * rank) % (k + 2);
}

static void gemv_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int m = gemv_cases[c][0], n = gemv_cases[c][1], k = gemv_k(gemv_cases[c][2], bed->rank);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(bed->in[0], 0, t->fcc, m, k),
                                            .w = fcc_tensor_2d(bed->in[1], 0, t->fcc, n, k),
                                            .y = fcc_tensor_2d(bed->out, 0, t->fcc, m, n),
                                            .schedule = schedule};

    fill(t, bed->in[0], (unsigned)(c * 100 + bed->rank), (int64_t)m * k);
    fill(t, bed->in[1], (unsigned)(c * 100 + 50 + bed->rank), (int64_t)n * k);
    poison(bed->out);
    OK(fcc_gemv_all_reduce(bed->comm, &args));
    memset(bed->expected, 0, sizeof(double) * (size_t)m * (size_t)n);
    for (int r = 0; r < bed->n; r++) {
        int kr = gemv_k(gemv_cases[c][2], r);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                for (int q = 0; q < kr; q++)
                    bed->expected[i * n + j] +=
                        value((unsigned)(c * 100 + r), i * kr + q) * value((unsigned)(c * 100 + 50 + r), j * kr + q);
    }
    compare(bed, t, (int64_t)m * n, "gemv_all_reduce", c);
    /* the same bits everywhere */
    size_t bytes = (size_t)m * (size_t)n * t->size;
    if (bed->rank == 0)
        memcpy(bed->shared, fcc_buffer_data(bed->out), bytes);
    OK(fcc_noop(bed->comm));
    CHECK(memcmp(bed->shared, fcc_buffer_data(bed->out), bytes) == 0);
    OK(fcc_noop(bed->comm));
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

static void gemm_expect(const struct bed *bed, int c, int64_t recv[])
{
    int n = gemm_cases[c][1], k = gemm_cases[c][2];
    int64_t at = 0;

    for (int r = 0; r < bed->n; r++) {
        int first = 0;
        for (int p = 0; p < bed->rank; p++)
            first += gemm_rows(c, r, p);
        recv[r] = gemm_rows(c, r, bed->rank);
        for (int64_t i = first; i < first + recv[r]; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int q = 0; q < k; q++)
                    sum += value((unsigned)(1000 + c * 100 + r), i * k + q) *
                           value((unsigned)(1050 + c * 100 + r), (int64_t)q * n + j);
                bed->expected[at++] = sum;
            }
    }
}

static void gemm_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int n = gemm_cases[c][1], k = gemm_cases[c][2];
    int64_t send[RANKS], recv[RANKS] = {0}, want[RANKS], m = 0, received = 0;

    for (int p = 0; p < bed->n; p++) {
        m += send[p] = gemm_rows(c, bed->rank, p);
        received += gemm_rows(c, p, bed->rank);
    }
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(bed->in[0], 0, t->fcc, m, k),
                                            .b = fcc_tensor_2d(bed->in[1], 0, t->fcc, k, n),
                                            .send_rows = c % 2 ? send : NULL,
                                            .c = fcc_tensor_2d(bed->out, 0, t->fcc, received, n),
                                            .recv_rows = recv,
                                            .schedule = schedule};
    fill(t, bed->in[0], (unsigned)(1000 + c * 100 + bed->rank), m * k);
    fill(t, bed->in[1], (unsigned)(1050 + c * 100 + bed->rank), (int64_t)k * n);
    poison(bed->out);
    OK(fcc_gemm_all_to_all(bed->comm, &args));
    gemm_expect(bed, c, want);
    for (int r = 0; r < bed->n; r++)
        CHECK(recv[r] == want[r]);
    for (int i = 0; i < 16; i++) /* behind the rows received nothing was written */
        bed->expected[received * n + i] = NAN;
    compare(bed, t, received * n + 16, "gemm_all_to_all", c);
    OK(fcc_noop(bed->comm)); /* nobody poisons the next case's result while a slower rank still looks at this one */
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
static void embedding_expect(const struct bed *bed, int c, int r, int64_t first, int column, int columns)
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

static int64_t embedding_fill(struct bed *bed, const struct type *t, int c, bool narrow, int64_t *nnz)
{
    int tables = embedding_tables(c, bed->rank), dim = embedding_cases[c][1];
    int64_t b = embedding_cases[c][2], bags = tables * b, at = 0;
    char *indices = fcc_buffer_data(bed->in[1]);
    size_t size = narrow ? 4 : 8;

    fill(t, bed->in[0], (unsigned)(2000 + 10 * c + bed->rank), (int64_t)tables * EMB_ROWS * dim);
    for (int64_t bag = 0; bag <= bags; bag++) {
        memcpy(indices + (size_t)bag * size, &at, size); /* little endian: the low half of an int64 is the int32 */
        at += bag < bags ? bag_size(c, bed->rank, bag) : 0;
    }
    int64_t offset = (int64_t)size * (bags + 1);
    for (int64_t i = 0; i < at; i++) {
        int64_t row = bag_row(c, bed->rank, i);
        memcpy(indices + offset + (int64_t)size * i, &row, size);
        ((float *)fcc_buffer_data(bed->in[2]))[i] = (float)value((unsigned)(5000 + bed->rank), i);
    }
    *nnz = at;
    return offset;
}

static void embedding_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int tables = embedding_tables(c, bed->rank), dim = embedding_cases[c][1], columns = 0, column = 0;
    bool narrow = schedule == FCC_SCHEDULE_SEQUENTIAL, mean = embedding_cases[c][3];
    int64_t b = embedding_cases[c][2], rows[4] = {EMB_ROWS, EMB_ROWS, EMB_ROWS, EMB_ROWS}, split[RANKS], first = 0, nnz;
    int64_t offset = embedding_fill(bed, t, c, narrow, &nnz);
    enum fcc_dtype index = narrow ? FCC_I32 : FCC_I64;

    for (int r = 0; r < bed->n; r++) {
        split[r] = split_of(c, bed->n, r);
        columns += embedding_tables(c, r);
        first += r < bed->rank ? split[r] : 0;
    }
    struct fcc_embedding_all_to_all_args args = {.tables =
                                                     fcc_tensor_2d(bed->in[0], 0, t->fcc, (int64_t)tables * EMB_ROWS, dim),
                                                 .table_rows = rows,
                                                 .num_tables = tables,
                                                 .pooling = mean ? FCC_POOLING_MEAN : FCC_POOLING_SUM,
                                                 .indices = fcc_tensor_1d(bed->in[1], (uint64_t)offset, index, nnz),
                                                 .offsets = fcc_tensor_1d(bed->in[1], 0, index, tables * b + 1),
                                                 .batch = b,
                                                 .batch_split = c % 2 ? split : NULL,
                                                 .out = fcc_tensor_3d(bed->out, 0, t->fcc, split[bed->rank], columns, dim),
                                                 .schedule = schedule};
    if (!mean)
        args.sample_weights = fcc_tensor_1d(bed->in[2], 0, FCC_F32, nnz);
    poison(bed->out);
    OK(fcc_embedding_all_to_all(bed->comm, &args));
    for (int r = 0; r < bed->n; column += embedding_tables(c, r++))
        embedding_expect(bed, c, r, first, column, columns);
    compare(bed, t, split[bed->rank] * columns * dim, "embedding_all_to_all", c);
    OK(fcc_noop(bed->comm));
}

/* ---- all of them ---- */

static void cases_run(struct bed *bed)
{
    for (int b = 0; b < 3; b++)
        OK(fcc_buffer_alloc(bed->comm, FCC_BUFFER_LOCAL, ELEMENTS_MAX * 8, &bed->in[b]));
    OK(fcc_buffer_alloc(bed->comm, FCC_BUFFER_SYMMETRIC, ELEMENTS_MAX * 8, &bed->out));
    bed->expected = calloc(ELEMENTS_MAX * 2, sizeof(double));
    CHECK(bed->expected != NULL);
    for (size_t t = 0; t < 3; t++)
        for (uint32_t schedule = FCC_SCHEDULE_AUTO; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++) {
            for (size_t c = 0; c < sizeof(gemv_cases) / sizeof(gemv_cases[0]); c++)
                gemv_case(bed, &types[t], (int)c, schedule);
            for (size_t c = 0; c < sizeof(gemm_cases) / sizeof(gemm_cases[0]); c++)
                gemm_case(bed, &types[t], (int)c, schedule);
            for (size_t c = 0; c < sizeof(embedding_cases) / sizeof(embedding_cases[0]); c++)
                embedding_case(bed, &types[t], (int)c, schedule);
        }
    free(bed->expected);
    fcc_comm_destroy(bed->comm);
}

struct settings {
    bool no_ring;
    unsigned char *shared;
};

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    const struct settings *settings = argument;
    struct fcc_connect_options options = {.no_ring = settings->no_ring};
    struct bed bed = {.rank = rank, .n = all->n, .shared = settings->shared};
    fcc_context *context;

    OK(fcc_connect(&options, &context));
    OK(fcc_comm_init(context, &all->id, all->n, rank, NULL, &bed.comm));
    cases_run(&bed);
    fcc_disconnect(context);
}

static void processes(const char *const options[], bool no_ring)
{
    static const int counts[] = {1, 2, 3, 5, 8};
    struct test_daemon d;
    struct settings settings = {.no_ring = no_ring, .shared = shared_memory(ELEMENTS_MAX * 8)};

    daemon_start(&d, options);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct ranks r;
        ranks_start(&r, counts[i], cases_rank, &settings);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

static void over_the_ring(void)
{
    processes(NULL, false);
}

static void over_the_socket(void)
{
    processes(NULL, true);
}

static void many_workgroups(void)
{
    static const char *const options[] = {"--cpu-devices", "2", "--cpu-workgroups", "3", NULL};
    processes(options, false);
}

static void without_spinning(void)
{
    static const char *const options[] = {"--spin-us", "0", NULL};
    processes(options, false);
}

/* ---- threads as ranks, on one connection ---- */

struct thread {
    pthread_t thread;
    fcc_context *context;
    struct fcc_unique_id id;
    int rank, n;
    unsigned char *shared;
};

static void *thread_run(void *argument)
{
    const struct thread *t = argument;
    struct bed bed = {.rank = t->rank, .n = t->n, .shared = t->shared};

    OK(fcc_comm_init(t->context, &t->id, t->n, t->rank, NULL, &bed.comm));
    cases_run(&bed);
    return NULL;
}

static void threads_as_ranks(void)
{
    struct test_daemon d;
    struct thread threads[4];
    fcc_context *context;
    struct fcc_unique_id id;
    unsigned char *shared = shared_memory(ELEMENTS_MAX * 8);

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    for (int r = 0; r < 4; r++) {
        threads[r] = (struct thread){.context = context, .id = id, .rank = r, .n = 4, .shared = shared};
        CHECK(pthread_create(&threads[r].thread, NULL, thread_run, &threads[r]) == 0);
    }
    for (int r = 0; r < 4; r++)
        CHECK(pthread_join(threads[r].thread, NULL) == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* ---- asynchronous, and many communicators in opposite orders ---- */

enum { IN_FLIGHT = 40 };

static void requests_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_request *requests[IN_FLIGHT];
    fcc_buffer *x, *w, *y[IN_FLIGHT];
    int done = 0;

    (void)argument;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64 * 4, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64 * 64 * 4, &w));
    for (int i = 0; i < 64; i++)
        ((float *)fcc_buffer_data(x))[i] = 1;
    for (int i = 0; i < 64 * 64; i++)
        ((float *)fcc_buffer_data(w))[i] = (float)(rank + 1);
    for (int i = 0; i < IN_FLIGHT; i++)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64 * 4, &y[i]));
    if (rank == 0) { /* nobody else has come: it does not finish, and a limited wait says so */
        OK(fcc_noop_start(comm, &requests[0]));
        FAILS(fcc_request_wait(requests[0], 30), -EAGAIN);
        OK(fcc_request_test(requests[0], &done));
        CHECK(!done);
    } else {
        (void)usleep(100000);
        OK(fcc_noop_start(comm, &requests[0]));
    }
    OK(fcc_request_wait(requests[0], -1));
    OK(fcc_request_wait(requests[0], 0)); /* the same answer again */
    OK(fcc_request_test(requests[0], &done));
    CHECK(done);
    fcc_request_free(requests[0]);
    for (int i = 0; i < IN_FLIGHT; i++) {
        struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, 64),
                                                .w = fcc_tensor_2d(w, 0, FCC_F32, 64, 64),
                                                .y = fcc_tensor_2d(y[i], 0, FCC_F32, 1, 64)};
        OK(fcc_gemv_all_reduce_start(comm, &args, &requests[i]));
        if (i % 3 == 2) { /* its buffer may go too: the daemon keeps the memory until the operator has finished */
            fcc_request_free(requests[i]);
            fcc_buffer_free(y[i]);
        }
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        if (i % 3 == 2)
            continue;
        OK(fcc_request_wait(requests[i], -1));
        CHECK(((float *)fcc_buffer_data(y[i]))[63] == 64.0f * (1 + 2 + 3));
        fcc_request_free(requests[i]);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void requests(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 3, requests_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

enum { COMMS = 4, ROUNDS = 500 };

/* Each rank submits to the communicators in an order of its own; all share the devices. */
static void orders_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *ids = argument;
    fcc_comm *comms[COMMS];
    fcc_context *context;
    fcc_buffer *x[COMMS], *w[COMMS], *y[COMMS];

    OK(fcc_connect(NULL, &context));
    for (int c = 0; c < COMMS; c++) {
        OK(fcc_comm_init(context, &ids[c], all->n, rank, NULL, &comms[c]));
        OK(fcc_buffer_alloc(comms[c], FCC_BUFFER_LOCAL, 512 * 4, &x[c]));
        OK(fcc_buffer_alloc(comms[c], FCC_BUFFER_LOCAL, 256 * 512 * 4, &w[c]));
        OK(fcc_buffer_alloc(comms[c], FCC_BUFFER_SYMMETRIC, 256 * 4, &y[c]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        fcc_request *r[COMMS];
        for (int i = 0; i < COMMS; i++) {
            int c = rank % 2 ? COMMS - 1 - i : (i + rank) % COMMS;
            /* one size that the engine runs itself, one that goes to the workgroups */
            int n = c % 2 ? 16 : 256;
            struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x[c], 0, FCC_F32, 1, 512),
                                                    .w = fcc_tensor_2d(w[c], 0, FCC_F32, n, 512),
                                                    .y = fcc_tensor_2d(y[c], 0, FCC_F32, 1, n),
                                                    .schedule = FCC_SCHEDULE_FUSED};
            OK(fcc_gemv_all_reduce_start(comms[c], &args, &r[c]));
        }
        for (int c = 0; c < COMMS; c++) {
            OK(fcc_request_wait(r[c], -1));
            fcc_request_free(r[c]);
        }
    }
    for (int c = 0; c < COMMS; c++)
        fcc_comm_destroy(comms[c]);
    fcc_disconnect(context);
}

static void opposite_orders(void)
{
    struct test_daemon d;
    struct ranks r;
    fcc_context *context;
    struct fcc_unique_id *ids = shared_memory(COMMS * sizeof(*ids));

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    for (int c = 0; c < COMMS; c++)
        OK(fcc_get_unique_id(context, &ids[c]));
    fcc_disconnect(context);
    ranks_start(&r, 3, orders_rank, ids);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"over_the_ring", over_the_ring, 60},       {"over_the_socket", over_the_socket, 60},
        {"many_workgroups", many_workgroups, 60},   {"without_spinning", without_spinning, 60},
        {"threads_as_ranks", threads_as_ranks, 60}, {"requests", requests, 0},
        {"opposite_orders", opposite_orders, 60},
    };
    return tests_run("operators", TESTS(tests));
}
