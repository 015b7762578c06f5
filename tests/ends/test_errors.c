/* SPDX-License-Identifier: MIT
 *
 * test_errors.c - bad input from clients gets a clear error, through the library and against the real daemon, and nothing
 * is lost: after each error the communicator still works, unless the error says that it has ended. FCC_TEST_DEVICE=cuda or hip: the
 * same on GPUs.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"

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
    g->args.schedule = 9;
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
    {"unknown schedule", spoil_schedule, -EINVAL, {"rank 1", "schedule: 9"}},
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
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 0, &b), -EINVAL, "bytes: 0");
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

struct wish {
    fcc_comm *comm;
    int status;
    char why[256];
};

static void *five_mb(void *argument)
{
    struct wish *w = argument;
    fcc_buffer *b;

    w->status = fcc_buffer_alloc(w->comm, FCC_BUFFER_LOCAL, 5 << 20, &b);
    (void)snprintf(w->why, sizeof(w->why), "%s", fcc_last_error());
    return NULL;
}

/* One job frees, then another asks: the broker, stopped meanwhile, finds both messages there, and the one that frees behind another one,
 * so that whichever socket it reads first, it reads the question before that one. */
static void freed_by_another_job(void)
{
    static const char *const options[] = {"--memory-per-user-mb", "8", NULL};
    struct test_daemon d;
    fcc_context *a, *b;
    fcc_comm *comm, *other;
    fcc_buffer *small, *large;
    struct fcc_unique_id id;
    struct fcc_connect_options job = {.job = "other"};
    pthread_t asks;

    daemon_start(&d, options);
    OK(fcc_connect(NULL, &a));
    OK(fcc_get_unique_id(a, &id));
    OK(fcc_comm_init(a, &id, 1, 0, NULL, &comm));
    OK(fcc_connect(&job, &b));
    OK(fcc_get_unique_id(b, &id));
    OK(fcc_comm_init(b, &id, 1, 0, NULL, &other));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 4096, &small));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 5 << 20, &large));
    CHECK(kill(d.pid, SIGSTOP) == 0);
    fcc_buffer_free(small);
    fcc_buffer_free(large);
    struct wish w = {.comm = other};
    CHECK(pthread_create(&asks, NULL, five_mb, &w) == 0);
    (void)usleep(100000); /* let it ask; if it has not asked by then, nothing is tested, and nothing fails */
    CHECK(kill(d.pid, SIGCONT) == 0);
    CHECK(pthread_join(asks, NULL) == 0);
    if (w.status)
        check_failed(__FILE__, __LINE__, "%d: %s", w.status, w.why);
    fcc_disconnect(a);
    fcc_disconnect(b);
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
        {"another_session_buffer", another_session_buffer, 0},
        {"freed_by_another_job", freed_by_another_job, 0}, /* the cpu's: these come last, and are left out on GPUs */
        {"full_memory", full_memory, 0},
    };
    size_t n = sizeof(tests) / sizeof(tests[0]);

    if (test_device_missing())
        return EXIT_SUCCESS;
    return tests_run("errors", tests, test_device() == FCC_DEVICE_CPU ? n : n - 2);
}
