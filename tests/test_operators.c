/* SPDX-License-Identifier: MIT
 *
 * test_operators.c - the three operators through the real daemon: every dtype and schedule, 1 to 8 ranks, odd and empty
 * shapes, against the plain double-precision reference (demo/reference.h); ranks as processes and as threads; over the ring and
 * over the socket; blocking and asynchronous; few and many workgroups.
 *
 * FCC_TEST_DEVICE=cuda or hip runs the same cases on the node's GPUs. So buffers are filled and looked at through images of
 * them in host memory, on every device.
 *
 * test_operators --ranks FIRST COUNT OF ID [DTYPES] runs the cases once, as ranks FIRST to FIRST + COUNT - 1 of a communicator of OF, over a
 * daemon that is there ($FCCD_SOCKET), of so many dtypes. ID is a unique id in hexadecimal digits. So its ranks can be on several machines.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "reference.h"
#include "value.h"

#define ELEMENTS_MAX 16384
#define RANKS 8
#define DTYPES 3

static const struct type {
    enum fcc_dtype fcc;
    enum reference_type reference;
    size_t size;
} types[DTYPES] = {{FCC_F32, REFERENCE_F32, 4}, {FCC_F16, REFERENCE_F16, 2}, {FCC_BF16, REFERENCE_BF16, 2}};

/* A buffer, and an image of it in host memory. */
struct array {
    fcc_buffer *buffer;
    unsigned char *host;
};

/* One rank with buffers that all its cases use. */
struct bed {
    fcc_comm *comm;
    int rank, n, first; /* first: of the ranks that share memory */
    size_t dtypes;
    struct array in[3], out;
    double *expected;
    unsigned char *shared; /* ELEMENTS_MAX * 4 bytes: the first one's result, for the others to compare bits with */
};

static int array_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, struct array *out)
{
    out->host = malloc(bytes);
    CHECK(out->host != NULL);
    return fcc_buffer_alloc(comm, kind, bytes, &out->buffer);
}

/* Its first bytes, from the image to the device. */
static void array_send(const struct array *a, size_t bytes)
{
    OK(fcc_buffer_write(a->buffer, 0, a->host, bytes));
}

static void array_fetch(struct array *a, size_t bytes)
{
    OK(fcc_buffer_read(a->buffer, 0, a->host, bytes));
}

static void fill(const struct type *t, const struct array *a, unsigned seed, int64_t n)
{
    CHECK(n <= ELEMENTS_MAX);
    for (int64_t i = 0; i < n; i++)
        value_store(t->fcc, a->host, i, value(seed, i));
    array_send(a, (size_t)n * t->size);
}

/* Every byte 0xff: a NaN in all dtypes, and so an error unless it is overwritten. */
static void poison(const struct array *a)
{
    memset(a->host, 0xff, fcc_buffer_size(a->buffer));
    array_send(a, fcc_buffer_size(a->buffer));
}

/* Fetches the result. */
static void compare(struct bed *bed, const struct type *t, int64_t n, const char *what, int c)
{
    int64_t first = 0;
    array_fetch(&bed->out, (size_t)n * t->size);
    int64_t wrong = reference_compare(t->reference, bed->out.host, bed->expected, n, &first);
    if (wrong)
        check_failed(__FILE__, __LINE__,
                     "%s, case %d, rank %d of %d, dtype %d: %ld of %ld wrong, first [%ld] = %g, expected %g", what, c,
                     bed->rank, bed->n, (int)t->fcc, (long)wrong, (long)n, (long)first,
                     reference_element(t->reference, bed->out.host, first), bed->expected[first]);
}

/* ---- gemv_all_reduce ---- */

/* Over two nodes, the last one is hierarchical by the rule from three ranks on. */
static const int gemv_cases[][3] = {/* M, N, K of rank 0 */
                                    {1, 1, 1},    {1, 37, 29}, {3, 128, 64}, {64, 65, 7},
                                    {1, 1024, 8}, {2, 0, 5},   {5, 33, 0},   {16, 1001, 3}};

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

static void gemv_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
{
    int m = gemv_cases[c][0], n = gemv_cases[c][1], k = gemv_k(gemv_cases[c][2], bed->rank);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(bed->in[0].buffer, 0, t->fcc, m, k),
                                            .w = fcc_tensor_2d(bed->in[1].buffer, 0, t->fcc, n, k),
                                            .y = fcc_tensor_2d(bed->out.buffer, 0, t->fcc, m, n),
                                            .schedule = schedule};

    fill(t, &bed->in[0], (unsigned)(c * 100 + bed->rank), (int64_t)m * k);
    fill(t, &bed->in[1], (unsigned)(c * 100 + 50 + bed->rank), (int64_t)n * k);
    poison(&bed->out);
    OK(fcc_gemv_all_reduce(bed->comm, &args));
    compare(bed, t, (int64_t)m * n, "gemv_all_reduce", c);
    /* the same bits everywhere */
    size_t bytes = (size_t)m * (size_t)n * t->size;
    if (bed->rank == bed->first)
        memcpy(bed->shared, bed->out.host, bytes);
    OK(fcc_noop(bed->comm));
    CHECK(memcmp(bed->shared, bed->out.host, bytes) == 0);
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

static void gemm_case(struct bed *bed, const struct type *t, int c, uint32_t schedule)
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
    fill(t, &bed->in[0], (unsigned)(1000 + c * 100 + bed->rank), m * k);
    fill(t, &bed->in[1], (unsigned)(1050 + c * 100 + bed->rank), (int64_t)k * n);
    poison(&bed->out);
    OK(fcc_gemm_all_to_all(bed->comm, &args));
    for (int r = 0; r < bed->n; r++)
        CHECK(recv[r] == gemm_rows(c, r, bed->rank));
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

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void every_way(struct bed *bed, int c, void (*run)(struct bed *, const struct type *, int, uint32_t), uint32_t how)
{
    for (size_t t = 0; t < bed->dtypes; t++)
        for (uint32_t schedule = FCC_SCHEDULE_AUTO; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++)
            run(bed, &types[t], c, schedule | how);
}

static void cases_run(struct bed *bed)
{
    for (int b = 0; b < 3; b++)
        OK(array_alloc(bed->comm, FCC_BUFFER_LOCAL, ELEMENTS_MAX * 8, &bed->in[b]));
    OK(array_alloc(bed->comm, FCC_BUFFER_SYMMETRIC, ELEMENTS_MAX * 8, &bed->out));
    bed->expected = calloc(ELEMENTS_MAX * 2, sizeof(double));
    CHECK(bed->expected != NULL);
    for (int c = 0; c < COUNT(gemv_cases); c++) {
        gemv_expect(bed, c);
        every_way(bed, c, gemv_case, 0);
        every_way(bed, c, gemv_case, FCC_SCHEDULE_HIERARCHICAL); /* over nodes; on one it is the same as without */
    }
    for (int c = 0; c < COUNT(gemm_cases); c++) {
        gemm_expect(bed, c);
        every_way(bed, c, gemm_case, 0);
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

static fcc_comm *join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank)
{
    const struct fcc_comm_options options = {.device = -1, .device_kind = test_device()};
    fcc_comm *comm;

    OK(fcc_comm_init(context, id, nranks, rank, &options, &comm));
    return comm;
}

struct settings {
    bool no_ring;
    int first;
    size_t dtypes; /* 0: all */
    unsigned char *shared;
};

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    const struct settings *settings = argument;
    struct fcc_connect_options options = {.no_ring = settings->no_ring};
    struct bed bed = {.rank = rank,
                      .n = all->n,
                      .first = settings->first,
                      .dtypes = settings->dtypes ? settings->dtypes : DTYPES,
                      .shared = settings->shared};
    fcc_context *context;

    OK(fcc_connect(&options, &context));
    bed.comm = join(context, &all->id, all->n, rank);
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

    bed.comm = join(t->context, &t->id, t->n, t->rank);
    cases_run(&bed);
    return NULL;
}

static void threads_run(unsigned char *shared)
{
    struct thread threads[4];
    fcc_context *context;
    struct fcc_unique_id id;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    for (int r = 0; r < 4; r++) {
        threads[r] = (struct thread){.context = context, .id = id, .rank = r, .n = 4, .shared = shared};
        CHECK(pthread_create(&threads[r].thread, NULL, thread_run, &threads[r]) == 0);
    }
    for (int r = 0; r < 4; r++)
        CHECK(pthread_join(threads[r].thread, NULL) == 0);
    fcc_disconnect(context);
}

static void threads_process(int rank, const struct ranks *all, void *argument)
{
    (void)rank;
    (void)all;
    threads_run(argument);
}

static void threads_as_ranks(void)
{
    struct test_daemon d;
    unsigned char *shared = shared_memory(ELEMENTS_MAX * 8);

    daemon_start(&d, NULL);
    if (test_device() == FCC_DEVICE_CPU) {
        threads_run(shared); /* in the test's own process, whose descriptors are counted */
    } else {
        struct ranks one; /* a GPU's driver keeps some until its process ends */
        ranks_start(&one, 1, threads_process, shared);
        ranks_join(&one);
    }
    daemon_stop(&d);
}

/* ---- asynchronous, and many communicators in opposite orders ---- */

enum { IN_FLIGHT = 40 };

/* *argument: rank 0 has seen that its operator does not finish without the others. */
static void requests_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *seen = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_request *requests[IN_FLIGHT];
    fcc_buffer *x, *w, *y[IN_FLIGHT];
    float ones[64], rows[64 * 64], last;
    int done = 0;

    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    for (int i = 0; i < 64 * 64; i++)
        rows[i] = (float)(rank + 1);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(ones), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(rows), &w));
    OK(fcc_buffer_write(x, 0, ones, sizeof(ones)));
    OK(fcc_buffer_write(w, 0, rows, sizeof(rows)));
    for (int i = 0; i < IN_FLIGHT; i++)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64 * 4, &y[i]));
    if (rank == 0) { /* nobody else has come: it does not finish, and a limited wait says so */
        OK(fcc_noop_start(comm, &requests[0]));
        FAILS(fcc_request_wait(requests[0], 30), -EAGAIN);
        OK(fcc_request_test(requests[0], &done));
        CHECK(!done);
        *seen = 1;
    } else {
        while (!*seen)
            (void)usleep(1000);
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
        OK(fcc_buffer_read(y[i], 63 * 4, &last, sizeof(last)));
        CHECK(last == 64.0f * (1 + 2 + 3));
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
    ranks_start(&r, 3, requests_rank, shared_memory(sizeof(int)));
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
        comms[c] = join(context, &ids[c], all->n, rank);
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

/* ---- as some of the ranks ---- */

static int some_ranks(char *argv[])
{
    struct ranks all = {.n = atoi(argv[2]), .id = id_parse(argv[3])};
    int first = atoi(argv[0]), count = atoi(argv[1]), status = EXIT_SUCCESS, one;
    struct settings settings = {.first = first, .shared = shared_memory(ELEMENTS_MAX * 8)};

    if (argv[4])
        settings.dtypes = (size_t)atoi(argv[4]);
    CHECK(count >= 1 && all.n <= RANKS && settings.dtypes <= DTYPES);
    ranks_start_some(&all, first, count, cases_rank, &settings);
    for (int i = 0; i < count; i++) {
        one = rank_wait(&all, first + i);
        printf("rank %d of %d: %s\n", first + i, all.n, one ? "failed" : "all cases are right");
        status = one ? EXIT_FAILURE : status;
    }
    return status;
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"over_the_ring", over_the_ring, 60},
        {"over_the_socket", over_the_socket, 60},
        {"without_spinning", without_spinning, 60},
        {"threads_as_ranks", threads_as_ranks, 60},
        {"requests", requests, 0},
        {"opposite_orders", opposite_orders, 60},
        {"many_workgroups", many_workgroups, 60}, /* of the cpu: comes last, and is left out on GPUs */
    };
    size_t n = sizeof(tests) / sizeof(tests[0]);

    if ((argc == 6 || argc == 7) && !strcmp(argv[1], "--ranks"))
        return some_ranks(argv + 2);
    if (test_device_missing())
        return EXIT_SUCCESS;
    return tests_run("operators", tests, test_device() == FCC_DEVICE_CPU ? n : n - 1);
}
