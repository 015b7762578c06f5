/* SPDX-License-Identifier: MIT
 *
 * test_overlap.c - inputs that lie where a result is stored are refused on all ranks, of every operator, on one node and over two; those that
 * lie beside it in the same buffer are not, and give the right values. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/bed/harness.h"

/* Every rank has one buffer of floats for results, of either kind, in which most of it lies, and a local one. */
enum { FLOATS = 65536, RANKS = 2, KINDS = 2 };

static const enum fcc_buffer_kind kinds[KINDS] = {FCC_BUFFER_SYMMETRIC, FCC_BUFFER_RESULT};

struct scene {
    fcc_comm *comm;
    int rank;
    fcc_buffer *shared, *local;
    float all[FLOATS];
};

static void floats_write(fcc_buffer *b, int64_t at, const float *from, int64_t n)
{
    OK(fcc_buffer_write(b, (uint64_t)at * 4, from, (size_t)n * 4));
}

static void floats_fill(fcc_buffer *b, int64_t at, int64_t n, float value)
{
    float *p = malloc((size_t)n * 4);

    for (int64_t i = 0; i < n; i++)
        p[i] = value;
    floats_write(b, at, p, n);
    free(p);
}

static void scene_close(struct scene *s)
{
    fcc_buffer_free(s->shared);
    fcc_buffer_free(s->local);
}

static void scene_open(struct scene *s, fcc_comm *comm, int rank, enum fcc_buffer_kind kind)
{
    s->comm = comm;
    s->rank = rank;
    OK(fcc_buffer_alloc(comm, kind, FLOATS * 4, &s->shared));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, FLOATS * 4, &s->local));
}

static const float *scene_read(struct scene *s)
{
    OK(fcc_buffer_read(s->shared, 0, s->all, sizeof(s->all)));
    return s->all;
}

/* ---- gemv: x [1][K], w [N][K], y [1][N] ---- */

enum { N = 96, K = 64, Y_AT = 1024, X_AT = 4096, W_AT = 8192 };

static struct fcc_gemv_all_reduce_args gemv_right(struct scene *s)
{
    floats_fill(s->shared, Y_AT, N, -1);
    floats_fill(s->shared, X_AT, K, (float)(s->rank + 1));
    floats_fill(s->shared, W_AT, N * K, 2);
    return (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(s->shared, X_AT * 4, FCC_F32, 1, K),
                                             .w = fcc_tensor_2d(s->shared, W_AT * 4, FCC_F32, N, K),
                                             .y = fcc_tensor_2d(s->shared, Y_AT * 4, FCC_F32, 1, N)};
}

static void gemv_expect(struct scene *s, int64_t at)
{
    const float *p = scene_read(s);

    for (int i = 0; i < N; i++)
        CHECK(fabsf(p[at + i] - 2 * K * (1 + 2)) < 1e-3f);
}

static void gemv_works(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = gemv_right(s);

    OK(fcc_gemv_all_reduce(s->comm, &args));
    gemv_expect(s, Y_AT);
}

/* However it is called. */
static void gemv_refused(struct scene *s, const struct fcc_gemv_all_reduce_args *args, const char *input, const char *range)
{
    fcc_request *request;

    FAILS(fcc_gemv_all_reduce(s->comm, args), -EINVAL, "rank 1: gemv_all_reduce: ", input, range,
          "overlap y, bytes 4096 to 4479");
    OK(fcc_gemv_all_reduce_start(s->comm, args, &request));
    FAILS(fcc_request_wait(request, -1), -EINVAL, "rank 1: gemv_all_reduce: ", input, range, "overlap y, bytes 4096 to 4479");
    fcc_request_free(request);
    gemv_works(s);
}

static void gemv_rank(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = gemv_right(s);

    if (s->rank == 1)
        args.x.offset = Y_AT * 4; /* in place */
    gemv_refused(s, &args, "x: bytes 4096 to 4351", "of buffer ");
    args = gemv_right(s);
    if (s->rank == 1)
        args.x.offset = (Y_AT - K + 1) * 4; /* by its last element */
    gemv_refused(s, &args, "x: bytes 3844 to 4099", "of buffer ");
    if (s->rank == 1)
        args.x.offset = (Y_AT + N - 4) * 4; /* by its first four elements */
    FAILS(fcc_gemv_all_reduce(s->comm, &args), -EINVAL, "rank 1", "x: bytes 4464 to 4719", "y, bytes 4096 to 4479");
    args = gemv_right(s);
    if (s->rank == 1)
        args.w.offset = (Y_AT - 2 * K) * 4; /* in w's third row */
    gemv_refused(s, &args, "w: bytes 3584 to 28159", "of buffer ");
    args = gemv_right(s);
    args.x.offset = (Y_AT - K) * 4; /* just before it */
    floats_fill(s->shared, Y_AT - K, K, (float)(s->rank + 1));
    OK(fcc_gemv_all_reduce(s->comm, &args));
    gemv_expect(s, Y_AT);
    args.x.offset = (Y_AT + N) * 4; /* just behind it */
    floats_fill(s->shared, Y_AT + N, K, (float)(s->rank + 1));
    OK(fcc_gemv_all_reduce(s->comm, &args));
    gemv_expect(s, Y_AT);
    args.x.offset = args.w.offset; /* inputs may be the same */
    floats_fill(s->shared, W_AT, N * K, 2);
    OK(fcc_gemv_all_reduce(s->comm, &args));
    for (int i = 0; i < N; i++)
        CHECK(fabsf(scene_read(s)[Y_AT + i] - 2 * 2 * K * 2) < 1e-3f);
    args.x.shape[1] = args.w.shape[1] = 0; /* nothing lies nowhere */
    args.x.offset = args.w.offset = Y_AT * 4;
    OK(fcc_gemv_all_reduce(s->comm, &args));
    CHECK(scene_read(s)[Y_AT + N - 1] == 0);
}

/* ---- gemm: a [M][C], b [C][C], c [M][C]; rows of `pitch` floats ---- */

enum { M = 128, C = 32, PITCH = 2 * C, B_AT = 32768, WIDE_AT = 16384 };

static struct fcc_tensor slice(fcc_buffer *b, int64_t at, int64_t rows, int64_t columns, int64_t pitch)
{
    struct fcc_tensor t = fcc_tensor_2d(b, (uint64_t)at * 4, FCC_F32, rows, columns);

    t.stride[0] = pitch;
    t.stride[1] = 1;
    return t;
}

static float a_of(int rank, int row, int column)
{
    return (float)(rank * 10000 + row * 10 + column % 7);
}

/* a's columns and c's are the halves of one matrix; b is one. */
static struct fcc_gemm_all_to_all_args gemm_halves(struct scene *s, int64_t a_at, int64_t c_at)
{
    float wide[M * PITCH], one[C * C];

    for (int i = 0; i < C * C; i++)
        one[i] = i % (C + 1) == 0 ? 1.0F : 0.0F;
    floats_write(s->shared, B_AT, one, C * C);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < PITCH; j++)
            wide[i * PITCH + j] = a_of(s->rank, i, j);
    floats_write(s->shared, WIDE_AT, wide, M * PITCH);
    return (struct fcc_gemm_all_to_all_args){.a = slice(s->shared, WIDE_AT + a_at, M, C, PITCH),
                                             .b = fcc_tensor_2d(s->shared, B_AT * 4, FCC_F32, C, C),
                                             .c = slice(s->shared, WIDE_AT + c_at, M, C, PITCH)};
}

static void gemm_works(struct scene *s, int64_t a_at, int64_t c_at)
{
    struct fcc_gemm_all_to_all_args args = gemm_halves(s, a_at, c_at);

    OK(fcc_gemm_all_to_all(s->comm, &args));
    const float *p = scene_read(s) + WIDE_AT;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < C; j++) {
            CHECK(p[i * PITCH + a_at + j] == a_of(s->rank, i, (int)a_at + j)); /* as it was */
            CHECK(p[i * PITCH + c_at + j] == a_of(i / (M / RANKS), s->rank * (M / RANKS) + i % (M / RANKS), (int)a_at + j));
        }
}

static void gemm_rank(struct scene *s)
{
    struct fcc_gemm_all_to_all_args args = gemm_halves(s, 0, C);

    gemm_works(s, 0, C);
    gemm_works(s, C, 0);
    if (s->rank == 1)
        args.a = args.c;
    FAILS(fcc_gemm_all_to_all(s->comm, &args), -EINVAL, "rank 1: gemm_all_to_all: a: bytes 65664 to",
          "overlap c, bytes 65664 to");
    args = gemm_halves(s, 0, C);
    if (s->rank == 1)
        args.a.offset += 4; /* its last column is c's first one */
    FAILS(fcc_gemm_all_to_all(s->comm, &args), -EINVAL, "rank 1: gemm_all_to_all: a: bytes 65540 to",
          "overlap c, bytes 65664 to");
    args = gemm_halves(s, 0, C);
    if (s->rank == 1)
        args.b.offset = (WIDE_AT + M / 2 * PITCH) * 4; /* across c's rows */
    FAILS(fcc_gemm_all_to_all(s->comm, &args), -EINVAL, "rank 1: gemm_all_to_all: b: bytes ", "overlap c, bytes 65664 to");
    gemm_works(s, 0, C);
    /* Rows of c that nobody sends are c's, too. */
    args = gemm_halves(s, 0, C);
    args.c.shape[0] = 2 * M;
    if (s->rank == 1)
        args.b.offset = (WIDE_AT + M * PITCH) * 4;
    FAILS(fcc_gemm_all_to_all(s->comm, &args), -EINVAL, "rank 1: gemm_all_to_all: b: bytes ", "overlap c, bytes 65664 to");
    gemm_works(s, C, 0);
}

/* ---- embedding: 1 table, 4 ids a bag ---- */

enum { ROWS = 64, DIM = 8, BATCH = 32, POOL = 4, OUT_AT = 2048, OUT_FLOATS = BATCH / RANKS * RANKS * DIM };

static struct fcc_embedding_all_to_all_args embedding_right(struct scene *s)
{
    static const int64_t rows = ROWS;
    int32_t indices[BATCH * POOL], offsets[BATCH + 1];

    for (int i = 0; i < BATCH * POOL; i++)
        indices[i] = i % ROWS;
    for (int i = 0; i <= BATCH; i++)
        offsets[i] = i * POOL;
    floats_fill(s->shared, OUT_AT, OUT_FLOATS, -1);
    floats_fill(s->local, 0, ROWS * DIM, (float)(s->rank + 1));
    floats_fill(s->local, 8192, BATCH * POOL, 1);
    OK(fcc_buffer_write(s->local, 16384 * 4, indices, sizeof(indices)));
    OK(fcc_buffer_write(s->local, 24576 * 4, offsets, sizeof(offsets)));
    return (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(s->local, 0, FCC_F32, ROWS, DIM),
                                                  .table_rows = &rows,
                                                  .num_tables = 1,
                                                  .indices = fcc_tensor_1d(s->local, 16384 * 4, FCC_I32, BATCH * POOL),
                                                  .offsets = fcc_tensor_1d(s->local, 24576 * 4, FCC_I32, BATCH + 1),
                                                  .sample_weights = fcc_tensor_1d(s->local, 8192 * 4, FCC_F32, BATCH * POOL),
                                                  .batch = BATCH,
                                                  .out =
                                                      fcc_tensor_3d(s->shared, OUT_AT * 4, FCC_F32, BATCH / RANKS, RANKS, DIM)};
}

static void embedding_works(struct scene *s)
{
    struct fcc_embedding_all_to_all_args args = embedding_right(s);

    OK(fcc_embedding_all_to_all(s->comm, &args));
    const float *p = scene_read(s) + OUT_AT;
    for (int i = 0; i < OUT_FLOATS; i++)
        CHECK(p[i] == (float)(POOL * (1 + i / DIM % RANKS)));
}

static void embedding_rank(struct scene *s)
{
    static const char *const names[] = {"tables", "indices", "offsets", "sample_weights"};

    for (int i = 0; i < 4; i++) {
        struct fcc_embedding_all_to_all_args args = embedding_right(s);
        struct fcc_tensor *inputs[] = {&args.tables, &args.indices, &args.offsets, &args.sample_weights};
        if (s->rank == 1) {
            inputs[i]->buffer = s->shared;
            inputs[i]->offset = (OUT_AT + OUT_FLOATS - 1) * 4; /* its first element is out's last one */
        }
        FAILS(fcc_embedding_all_to_all(s->comm, &args), -EINVAL, "rank 1: embedding_all_to_all: ", names[i], ": bytes 9212 to",
              "overlap out, bytes 8192 to 9215");
        embedding_works(s);
    }
}

/* Of those that are refused in a group, too, the others are told, and the ones before and behind them are right. */
static void group_rank(struct scene *s)
{
    struct fcc_gemv_all_reduce_args right = gemv_right(s), wrong = right;
    fcc_request *requests[3];

    if (s->rank == 1)
        wrong.x.offset = Y_AT * 4;
    fcc_group_begin();
    OK(fcc_gemv_all_reduce_start(s->comm, &right, &requests[0]));
    OK(fcc_gemv_all_reduce_start(s->comm, &wrong, &requests[1]));
    OK(fcc_gemv_all_reduce_start(s->comm, &right, &requests[2]));
    OK(fcc_group_end());
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            FAILS(fcc_request_wait(requests[i], -1), -EINVAL, "rank 1: gemv_all_reduce: x: bytes 4096", "overlap y");
        else
            OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
    }
    gemv_expect(s, Y_AT);
}

static void operators_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *s = calloc(1, sizeof(*s));
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    for (int i = 0; i < KINDS; i++) {
        scene_open(s, comm, rank, kinds[i]);
        gemv_works(s);
        gemv_rank(s);
        gemm_rank(s);
        embedding_works(s);
        embedding_rank(s);
        group_rank(s);
        scene_close(s);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
    free(s);
}

static void nodes_run(int nodes, void (*run)(int rank, const struct ranks *all, void *argument))
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    ranks_start(&r, RANKS, run, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void one_node(void)
{
    nodes_run(1, operators_rank);
}

static void two_nodes(void)
{
    nodes_run(2, operators_rank);
}

/* ---- both ranks are threads with one connection: each can name the other's part ---- */

static struct scene both[RANKS];
static struct fcc_unique_id both_id;
static fcc_context *both_context;
static pthread_barrier_t both_barrier;

static void meet(void)
{
    (void)pthread_barrier_wait(&both_barrier);
}

static void gemv_across(struct scene *s, struct scene *other)
{
    struct fcc_gemv_all_reduce_args args = gemv_right(s);

    if (s->rank == 0)
        args.x.buffer = other->shared;
    args.x.offset = (s->rank == 0 ? Y_AT : X_AT) * 4; /* rank 0's x is rank 1's y */
    FAILS(fcc_gemv_all_reduce(s->comm, &args), -EINVAL, "rank 0: gemv_all_reduce: x: bytes 4096 to 4351",
          "overlap rank 1's y, bytes 4096 to 4479");
    args = gemv_right(s);
    if (s->rank == 0)
        args.y.buffer = other->shared;
    FAILS(fcc_gemv_all_reduce(s->comm, &args), -EINVAL, "rank 0: gemv_all_reduce: y: buffer", "rank 1's part", "own");
    gemv_works(s);
    meet();
    args = gemv_right(s);
    meet(); /* rank 1's x is written */
    if (s->rank == 0)
        args.x.buffer = other->shared; /* where nothing is stored */
    OK(fcc_gemv_all_reduce(s->comm, &args));
    for (int i = 0; i < N; i++)
        CHECK(fabsf(scene_read(s)[Y_AT + i] - 2 * K * (2 + 2)) < 1e-3f);
    meet();
}

static void gemm_across(struct scene *s, struct scene *other)
{
    struct fcc_gemm_all_to_all_args args;
    const float *p;

    for (int input = 0; input < 2; input++) {
        meet();
        args = gemm_halves(s, 0, C);
        meet();
        struct fcc_tensor *inputs[] = {&args.a, &args.b};
        if (s->rank == 0) {
            inputs[input]->buffer = other->shared;
            inputs[input]->offset = args.c.offset;
        }
        FAILS(fcc_gemm_all_to_all(s->comm, &args), -EINVAL, "rank 0: gemm_all_to_all: ", input ? "b" : "a", ": bytes 65664 to ",
              "overlap rank 1's c, bytes 65664 to");
        p = scene_read(s) + WIDE_AT;
        for (int i = 0; i < M * PITCH; i++)
            CHECK(p[i] == a_of(s->rank, i / PITCH, i % PITCH)); /* nobody has stored anything */
        gemm_works(s, 0, C);
    }
    meet();
    args = gemm_halves(s, 0, C);
    meet();
    if (s->rank == 0)
        args.a.buffer = other->shared; /* the columns beside rank 1's result */
    OK(fcc_gemm_all_to_all(s->comm, &args));
    p = scene_read(s) + WIDE_AT;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < C; j++)
            CHECK(p[i * PITCH + C + j] == a_of(1, s->rank * (M / RANKS) + i % (M / RANKS), j));
    meet();
}

static void embedding_across(struct scene *s, struct scene *other)
{
    static const char *const names[] = {"tables", "indices", "offsets", "sample_weights"};
    enum { TABLES_AT = 40000 };
    struct fcc_embedding_all_to_all_args args;

    for (int i = 0; i < 4; i++) {
        args = embedding_right(s);
        struct fcc_tensor *inputs[] = {&args.tables, &args.indices, &args.offsets, &args.sample_weights};
        if (s->rank == 0) {
            inputs[i]->buffer = other->shared;
            inputs[i]->offset = (OUT_AT + OUT_FLOATS - 1) * 4;
        }
        FAILS(fcc_embedding_all_to_all(s->comm, &args), -EINVAL, "rank 0: embedding_all_to_all: ", names[i], ": bytes 9212 to",
              "overlap rank 1's out, bytes 8192 to 9215");
        const float *p = scene_read(s) + OUT_AT;
        for (int f = 0; f < OUT_FLOATS; f++)
            CHECK(p[f] == -1);
        embedding_works(s);
    }
    floats_fill(s->shared, TABLES_AT, ROWS * DIM, (float)(s->rank + 1));
    args = embedding_right(s);
    args.tables = fcc_tensor_2d(s->rank == 0 ? other->shared : s->shared, TABLES_AT * 4, FCC_F32, ROWS, DIM);
    meet();
    OK(fcc_embedding_all_to_all(s->comm, &args));
    for (int i = 0; i < OUT_FLOATS; i++)
        CHECK(scene_read(s)[OUT_AT + i] == POOL * 2);
    meet();
}

static void *both_rank(void *argument)
{
    struct scene *s = argument, *other = &both[1 - (s - both)];
    struct fcc_comm_options options = {.device = -1, .device_kind = test_device()};
    fcc_comm *comm;

    OK(fcc_comm_init(both_context, &both_id, RANKS, (int)(s - both), &options, &comm));
    for (int i = 0; i < KINDS; i++) {
        scene_open(s, comm, (int)(s - both), kinds[i]);
        meet();
        gemv_works(s);
        gemv_across(s, other);
        gemm_across(s, other);
        embedding_across(s, other);
        scene_close(s);
        meet();
    }
    fcc_comm_destroy(comm);
    return NULL;
}

static void one_connection(void)
{
    struct test_daemon d;
    pthread_t threads[RANKS];

    daemons_start(&d, 1, NULL);
    OK(fcc_connect(NULL, &both_context));
    OK(fcc_get_unique_id(both_context, &both_id));
    CHECK(!pthread_barrier_init(&both_barrier, NULL, RANKS));
    for (int r = 0; r < RANKS; r++)
        CHECK(!pthread_create(&threads[r], NULL, both_rank, &both[r]));
    for (int r = 0; r < RANKS; r++)
        CHECK(!pthread_join(threads[r], NULL));
    (void)pthread_barrier_destroy(&both_barrier);
    fcc_disconnect(both_context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"one_node", one_node, 0},
        {"two_nodes", two_nodes, 0},
        {"one_connection", one_connection, 0},
    };

    if (test_device_missing())
        return 0;
    return tests_run("overlap", TESTS(tests));
}
