/* SPDX-License-Identifier: MIT
 *
 * test_errors.c - bad input from clients gets a clear error, through the library and against the real daemon, and nothing
 * is lost: after each error the communicator still works, unless the error says that it has ended. FCC_TEST_DEVICE=cuda or hip: the
 * same on GPUs.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

enum { N = 96, K = 64 };

/* A gemv with buffers of its own: x [1][K], w [N][K], y [1][N]. */
struct gemv {
    fcc_buffer *x, *w, *y;
    struct fcc_gemv_all_reduce_args args;
};

static struct gemv gemv_make(fcc_comm *comm)
{
    float x[K], w[N * K];
    struct gemv g;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * 4, &g.x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * K * 4, &g.w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * 4, &g.y));
    for (int i = 0; i < K; i++)
        x[i] = 1;
    for (int i = 0; i < N * K; i++)
        w[i] = 2;
    OK(fcc_buffer_write(g.x, 0, x, sizeof(x)));
    OK(fcc_buffer_write(g.w, 0, w, sizeof(w)));
    g.args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(g.x, 0, FCC_F32, 1, K),
                                               .w = fcc_tensor_2d(g.w, 0, FCC_F32, N, K),
                                               .y = fcc_tensor_2d(g.y, 0, FCC_F32, 1, N)};
    return g;
}

/* The communicator works: a right call gives the right result. */
static void gemv_works(fcc_comm *comm, struct gemv *g)
{
    float y[N];

    OK(fcc_gemv_all_reduce(comm, &g->args));
    OK(fcc_buffer_read(g->y, 0, y, sizeof(y)));
    for (int i = 0; i < N; i++)
        CHECK(fabsf(y[i] - 2.0f * K * (float)fcc_comm_size(comm)) < 1e-3f);
}

/* ---- arguments: rank 1 of 2 is wrong, both hear it, and the next operator works ---- */

struct wrong {
    const char *name;
    void (*spoil)(struct gemv *g);
    int status;
    const char *says[4];
};

static void spoil_beyond(struct gemv *g)
{
    g->args.w.shape[0] = N + 1;
}
static void spoil_offset(struct gemv *g)
{
    g->args.x.offset = 8;
}
static void spoil_misaligned(struct gemv *g)
{
    g->args.x.offset = 2;
    g->args.x.shape[1] = K - 1;
}
static void spoil_dtype(struct gemv *g)
{
    g->args.x.dtype = FCC_F16;
}
static void spoil_unknown_dtype(struct gemv *g)
{
    g->args.x.dtype = 99;
}
static void spoil_int_dtype(struct gemv *g)
{
    g->args.x.dtype = g->args.w.dtype = g->args.y.dtype = FCC_I32;
}
static void spoil_k(struct gemv *g)
{
    g->args.x.shape[1] = K / 2;
}
static void spoil_m(struct gemv *g)
{
    g->args.x.shape[0] = g->args.y.shape[0] = 65;
    g->args.x.stride[1] = g->args.y.stride[1] = 1;
}
static void spoil_n(struct gemv *g)
{
    g->args.w.shape[0] = g->args.y.shape[1] = N / 2;
}
static void spoil_local_y(struct gemv *g)
{
    g->args.y = fcc_tensor_2d(g->w, 0, FCC_F32, 1, N);
}
static void spoil_absent(struct gemv *g)
{
    g->args.w.buffer = NULL;
}
static void spoil_schedule(struct gemv *g)
{
    g->args.schedule = 17;
}
static void spoil_other_schedule(struct gemv *g)
{
    g->args.schedule = FCC_SCHEDULE_SEQUENTIAL;
}
static void spoil_ndim(struct gemv *g)
{
    g->args.x.ndim = 1;
}
static void spoil_huge(struct gemv *g)
{
    g->args.w.shape[0] = INT64_MAX / 2;
}

static const struct wrong wrongs[] = {
    {"beyond the buffer", spoil_beyond, -EINVAL, {"rank 1", "gemv_all_reduce", "w", "buffer"}},
    {"offset", spoil_offset, -EINVAL, {"rank 1", "x", "offset 8", "256 bytes"}},
    {"misaligned", spoil_misaligned, -EINVAL, {"rank 1", "x", "offset 2", "multiples of 4"}},
    {"mixed dtypes", spoil_dtype, -EINVAL, {"rank 1", "f16", "f32"}},
    {"unknown dtype", spoil_unknown_dtype, -EINVAL, {"rank 1", "x", "99"}},
    {"integer dtype", spoil_int_dtype, -EINVAL, {"rank 1", "i32", "f32"}},
    {"K of x and w", spoil_k, -EINVAL, {"rank 1", "32", "64"}},
    {"M too large", spoil_m, -EINVAL, {"rank 1"}},
    {"N differs between ranks", spoil_n, -EINVAL, {"gemv_all_reduce", "rank 1", "48", "96"}},
    {"y is local", spoil_local_y, -EINVAL, {"rank 1", "y", "symmetric"}},
    {"w is absent", spoil_absent, -EINVAL, {"rank 1", "w"}},
    {"unknown schedule", spoil_schedule, -EINVAL, {"rank 1", "schedule", "17"}},
    {"schedules differ", spoil_other_schedule, -EINVAL, {"schedule", "rank 1", "sequential", "auto"}},
    {"dimensions", spoil_ndim, -EINVAL, {"rank 1", "x"}},
    {"huge shape", spoil_huge, -EINVAL, {"rank 1", "w"}},
};

static void arguments_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    struct gemv g = gemv_make(comm);
    struct fcc_gemv_all_reduce_args right = g.args;

    (void)argument;
    gemv_works(comm, &g);
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        const struct wrong *w = &wrongs[i];
        if (rank == 1)
            w->spoil(&g);
        int status = fcc_gemv_all_reduce(comm, &g.args);
        (void)fprintf(stderr, "rank %d, %s: %d: %s\n", rank, w->name, status, status ? fcc_last_error() : "");
        check_error(__FILE__, __LINE__, w->name, status, w->status,
                    (const char *const[]){w->says[0], w->says[1], w->says[2], w->says[3], NULL});
        g.args = right;
        gemv_works(comm, &g);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void arguments(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, arguments_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- data: an index out of its table's range, found in the middle of the operator ---- */

enum { TABLES = 3, ROWS = 50, DIM = 8, BATCH = 40, POOL = 5 };

static void number_write(fcc_buffer *b, int64_t at, int64_t number)
{
    OK(fcc_buffer_write(b, (uint64_t)at * sizeof(number), &number, sizeof(number)));
}

static void index_rank(int rank, const struct ranks *all, void *argument)
{
    static const int64_t rows[TABLES] = {ROWS, ROWS + 1, ROWS + 2};
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *tables, *indices, *offsets, *out;
    int64_t bags = TABLES * BATCH;

    (void)argument;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (3 * ROWS + 3) * DIM * 4, &tables));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)bags * POOL * 8, &indices));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)(bags + 1) * 8, &offsets));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, BATCH * 2 * TABLES * DIM * 4, &out));
    for (int64_t i = 0; i <= bags; i++)
        number_write(offsets, i, i * POOL);
    struct fcc_embedding_all_to_all_args args = {.tables = fcc_tensor_2d(tables, 0, FCC_F32, 3 * ROWS + 3, DIM),
                                                 .table_rows = rows,
                                                 .num_tables = TABLES,
                                                 .indices = fcc_tensor_1d(indices, 0, FCC_I64, bags * POOL),
                                                 .offsets = fcc_tensor_1d(offsets, 0, FCC_I64, bags + 1),
                                                 .batch = BATCH,
                                                 .out = fcc_tensor_3d(out, 0, FCC_F32, BATCH / 2, 2 * TABLES, DIM)};
    for (uint32_t schedule = FCC_SCHEDULE_FUSED; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++) {
        args.schedule = schedule;
        OK(fcc_embedding_all_to_all(comm, &args));
        /* table 1, bag 7, position 3 */
        if (rank == 1)
            number_write(indices, (1 * BATCH + 7) * POOL + 3, ROWS + 1);
        FAILS(fcc_embedding_all_to_all(comm, &args), -ERANGE, "rank 1", "51", "table 1", "bag 7", "position 3", "50");
        if (rank == 1)
            number_write(indices, (1 * BATCH + 7) * POOL + 3, -1);
        FAILS(fcc_embedding_all_to_all(comm, &args), -ERANGE, "rank 1", "-1", "table 1");
        if (rank == 1)
            number_write(indices, (1 * BATCH + 7) * POOL + 3, 0);
        OK(fcc_embedding_all_to_all(comm, &args));
        if (rank == 1)
            number_write(offsets, 20, bags * POOL + 1);
        FAILS(fcc_embedding_all_to_all(comm, &args), -ERANGE, "rank 1", "offsets");
        if (rank == 1)
            number_write(offsets, 20, 20 * POOL);
        OK(fcc_embedding_all_to_all(comm, &args));
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void index_out_of_range(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, index_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- the ranks' order ---- */

static void out_of_step_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    struct gemv g = gemv_make(comm);
    fcc_buffer *b;

    (void)argument;
    FAILS(rank == 1 ? fcc_noop(comm) : fcc_gemv_all_reduce(comm, &g.args), -EINVAL, "out of step", "rank 1", "noop",
          "gemv_all_reduce");
    FAILS(rank == 1 ? fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &b) : fcc_noop(comm), -EINVAL, "out of step",
          "fcc_buffer_alloc");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, rank == 1 ? 64 : 128, &b), -EINVAL, "bytes", "rank 1", "64", "128");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 0, &b), -EINVAL, "0 bytes");
    gemv_works(comm, &g);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void out_of_step(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, out_of_step_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- joining ---- */

static void joining(void)
{
    struct test_daemon d;
    fcc_context *a, *b;
    fcc_comm *comm, *other;
    struct fcc_unique_id id, zero = {{0}};
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 300};

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &a));
    OK(fcc_connect(NULL, &b));
    OK(fcc_get_unique_id(a, &id));
    FAILS(fcc_comm_init(a, &id, FCC_MAX_RANKS + 1, 0, NULL, &comm), -EINVAL, "nranks", "65", "1 to 64");
    FAILS(fcc_comm_init(a, &id, 0, 0, NULL, &comm), -EINVAL, "nranks", "0", "1 to 64");
    FAILS(fcc_comm_init(a, &id, 2, 2, NULL, &comm), -EINVAL, "rank", "2", "0 to 1");
    FAILS(fcc_comm_init(a, &id, 2, -1, NULL, &comm), -EINVAL, "rank", "-1", "0 to 1");
    FAILS(fcc_comm_init(a, &zero, 1, 0, NULL, &comm), -EINVAL, "id");
    options.device = 4;
    FAILS(fcc_comm_init(a, &id, 1, 0, &options, &comm), -ENOENT, "device", "4", "-1 to 3");
    options.device = -1;
    FAILS(fcc_comm_init(a, &id, 2, 0, &options, &comm), -ETIMEDOUT, "rank 1", "300 ms");
    /* the failed attempt has left nothing: the same id serves */
    OK(fcc_comm_init(a, &id, 1, 0, NULL, &comm));
    FAILS(fcc_comm_init(b, &id, 1, 0, NULL, &other), -EALREADY, "rank 0", "id");
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(a);
    fcc_disconnect(b);
    daemon_stop(&d);
}

static void twice_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *step = argument;
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &context));
    if (rank == 1) { /* as rank 0, which is there already; then with another number of ranks; then right */
        while (!*step)
            (void)usleep(1000);
        (void)usleep(100000);
        FAILS(fcc_comm_init(context, &all->id, 2, 0, NULL, &comm), -EALREADY, "rank 0", "joined already", "pid");
        FAILS(fcc_comm_init(context, &all->id, 3, 1, NULL, &comm), -EINVAL, "nranks", "3", "2");
    }
    *step = 1;
    OK(fcc_comm_init(context, &all->id, 2, rank, NULL, &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void joins_twice(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, twice_rank, shared_memory(sizeof(int)));
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- time limits, and a communicator that has ended ---- */

static void never_comes_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 400);
    double start = now_ms();

    (void)argument;
    if (rank == 0) {
        FAILS(fcc_noop(comm), -ETIMEDOUT, "noop", "rank 1, rank 2", "400 ms");
        CHECK(now_ms() - start >= 399);
        CHECK(now_ms() - start < 2000);
        FAILS(fcc_noop(comm), -ETIMEDOUT, "rank 1, rank 2");
    } else {
        (void)usleep(1000000);
        FAILS(fcc_noop(comm), -ETIMEDOUT, "rank 1, rank 2"); /* too late: it hears why */
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void never_comes(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 3, never_comes_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* Rank 0 submits ahead, rank 1 comes to each operator within the limit, but to the last one long after it was submitted. */
static void ahead_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 600);
    fcc_request *requests[4];

    (void)argument;
    for (int i = 0; i < 4; i++) {
        if (rank == 1)
            (void)usleep(300000);
        OK(fcc_noop_start(comm, &requests[i]));
    }
    for (int i = 0; i < 4; i++) {
        OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void submitted_ahead(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, ahead_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void abort_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    if (rank == 1) {
        (void)usleep(50000);
        OK(fcc_comm_abort(comm, "the loss is not a number"));
    }
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 1", "the loss is not a number");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void aborted(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 3, abort_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* Rank 0 leaves while rank 1 waits for it (argument), or before rank 1 comes. */
static void leaver_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    OK(fcc_noop(comm));
    if ((rank == 0) == (argument != NULL))
        (void)usleep(100000);
    if (rank == 1)
        FAILS(fcc_noop(comm), -ECONNABORTED, "rank 0", "left");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void one_leaves(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, leaver_rank, NULL);
    ranks_join(&r);
    ranks_start(&r, 2, leaver_rank, &d);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- memory ---- */

static void full_memory(void)
{
    static const char *const options[] = {"--memory-per-user-mb", "8", NULL};
    struct test_daemon d;
    fcc_context *a, *b;
    fcc_comm *comm, *other;
    fcc_buffer *first, *second, *third;
    struct fcc_unique_id id;
    struct fcc_connect_options job = {.job = "other"};

    daemon_start(&d, options);
    OK(fcc_connect(NULL, &a));
    OK(fcc_get_unique_id(a, &id));
    OK(fcc_comm_init(a, &id, 1, 0, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 6 << 20, &first));
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 3 << 20, &second), -ENOMEM, "3145728 bytes", " has ",
          "8388608 bytes allowed", "MEMORY_PER_USER_MB");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 3 << 20, &second), -ENOMEM, "MEMORY_PER_USER_MB");
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &second));
    /* the limit is the user's, not the job's */
    OK(fcc_connect(&job, &b));
    OK(fcc_get_unique_id(b, &id));
    OK(fcc_comm_init(b, &id, 1, 0, NULL, &other));
    FAILS(fcc_buffer_alloc(other, FCC_BUFFER_LOCAL, 2 << 20, &third), -ENOMEM, "MEMORY_PER_USER_MB");
    /* what is freed can be had again, and comes back zeroed */
    memset(fcc_buffer_data(first), 0xff, 6 << 20);
    fcc_buffer_free(first);
    OK(fcc_buffer_alloc(other, FCC_BUFFER_LOCAL, 5 << 20, &third));
    for (size_t i = 0; i < 5 << 20; i++)
        CHECK(((unsigned char *)fcc_buffer_data(third))[i] == 0);
    fcc_comm_destroy(other);
    fcc_disconnect(b);
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(a);
    daemon_stop(&d);
}

/* ---- who may what ---- */

static void another_session_buffer(void)
{
    struct test_daemon d;
    fcc_context *a, *b;
    fcc_comm *comm, *other;
    struct fcc_unique_id id;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &a));
    OK(fcc_connect(NULL, &b));
    OK(fcc_get_unique_id(a, &id));
    OK(fcc_comm_init(a, &id, 1, 0, NULL, &comm));
    OK(fcc_get_unique_id(b, &id));
    OK(fcc_comm_init(b, &id, 1, 0, NULL, &other));
    struct gemv g = gemv_make(comm), h = gemv_make(other);
    struct fcc_gemv_all_reduce_args mixed = g.args;
    mixed.x = h.args.x;
    FAILS(fcc_gemv_all_reduce(comm, &mixed), -ENOENT, "rank 0", "x", "no such buffer");
    gemv_works(comm, &g);
    gemv_works(other, &h);
    fcc_disconnect(a); /* with all that is still open */
    fcc_disconnect(b);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"arguments", arguments, 0},
        {"index_out_of_range", index_out_of_range, 0},
        {"out_of_step", out_of_step, 0},
        {"joining", joining, 0},
        {"joins_twice", joins_twice, 0},
        {"never_comes", never_comes, 0},
        {"submitted_ahead", submitted_ahead, 0},
        {"aborted", aborted, 0},
        {"one_leaves", one_leaves, 0},
        {"another_session_buffer", another_session_buffer, 0},
        {"full_memory", full_memory, 0}, /* the cpu's: comes last, and is left out on GPUs */
    };
    size_t n = sizeof(tests) / sizeof(tests[0]);

    if (test_device_missing())
        return EXIT_SUCCESS;
    return tests_run("errors", tests, test_device() == FCC_DEVICE_CPU ? n : n - 1);
}
