/* SPDX-License-Identifier: MIT
 *
 * test_chains.c - operators that are started one behind the other without a wait, each of which reads what some before it stored, and stores
 * over what others read. What a call was given (arguments, counts, tensors of inputs) is gone or holds something else as soon as it returns.
 */
#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/random.h"

#define RANKS 3
#define N 32     /* columns */
#define ROWS 24  /* of a rank's state, in its buffers for results */
#define STEPS 10 /* started before the first wait */
#define SCENES 12
#define SYMMETRIC 16 /* the first rows are in a symmetric buffer, the others in a result buffer */

static float model[RANKS][ROWS][N], before[RANKS][ROWS][N];

struct rank {
    fcc_comm *comm;
    int rank;
    fcc_buffer *state[2];
    fcc_request *requests[STEPS];
    struct call *calls[STEPS];
};

/* What a call is given, so that it can be spoilt. recv must stay as it is. */
struct call {
    union {
        struct fcc_gemv_all_reduce_args gemv;
        struct fcc_gemm_all_to_all_args gemm;
        struct fcc_embedding_all_to_all_args embedding;
        struct fcc_all_gather_gemm_args gather;
    };
    int64_t send[RANKS], table_rows[1], recv[RANKS], expect[RANKS];
};

static struct fcc_tensor rows_at(const struct rank *r, int row, int n)
{
    bool second = row >= SYMMETRIC;

    return fcc_tensor_2d(r->state[second], (uint64_t)(row - second * SYMMETRIC) * N * sizeof(float), FCC_F32, n, N);
}

static float *state_row(const struct rank *r, int row)
{
    bool second = row >= SYMMETRIC;

    return (float *)fcc_buffer_data(r->state[second]) + (ptrdiff_t)(row - second * SYMMETRIC) * N;
}

/* n rows that lie in one buffer, and none of the `not` rows from `other` on. */
static int rows_choose(int n, int other, int not )
{
    for (;;) {
        int row = (int)random_below(ROWS - n + 1);
        if ((row < SYMMETRIC && row + n > SYMMETRIC) || (row < other + not &&other < row + n))
            continue;
        return row;
    }
}

static fcc_buffer *local_new(const struct rank *r, size_t bytes)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, bytes, &b));
    return b;
}

/* y = sum over ranks of the rows x, each rank's with its columns in another order, or without some. */
static void gemv_start(struct rank *r, struct call *c, fcc_request **request)
{
    int m = 1 + (int)random_below(3), x = rows_choose(m, 0, 0), y = rows_choose(m, x, m);
    int shift = (int)random_below(N), step = (int)random_below(4) + 1;
    fcc_buffer *w = local_new(r, sizeof(float) * N * N);

    for (int n = 0; n < N; n++)
        for (int k = 0; k < N; k++)
            ((float *)fcc_buffer_data(w))[n * N + k] = k == (n * step + shift + r->rank) % N ? 1.0f : 0.0f;
    c->gemv = (struct fcc_gemv_all_reduce_args){.x = rows_at(r, x, m),
                                                .w = fcc_tensor_2d(w, 0, FCC_F32, N, N),
                                                .y = rows_at(r, y, m),
                                                .schedule = (uint32_t)random_below(3)};
    OK(fcc_gemv_all_reduce_start(r->comm, &c->gemv, request));
    fcc_buffer_free(w);
    for (int to = 0; to < RANKS; to++)
        for (int i = 0; i < m; i++)
            for (int n = 0; n < N; n++) {
                model[to][y + i][n] = 0;
                for (int from = 0; from < RANKS; from++)
                    model[to][y + i][n] += before[from][x + i][(n * step + shift + from) % N];
            }
}

/* Rows go to the ranks, as they are or with their columns in another order. */
static void gemm_start(struct rank *r, struct call *c, fcc_request **request)
{
    int64_t send[RANKS][RANKS];
    int a = rows_choose(2 * RANKS, 0, 0), to_row = rows_choose(2 * RANKS, a, 2 * RANKS), shift = (int)random_below(N);
    bool product = random_below(2);
    fcc_buffer *b = product ? local_new(r, sizeof(float) * N * N) : NULL;
    int64_t sent = 0;

    for (int i = 0; i < RANKS * RANKS; i++)
        send[i / RANKS][i % RANKS] = random_size(2);
    for (int i = 0; product && i < N * N; i++)
        ((float *)fcc_buffer_data(b))[i] = i / N == (i % N + shift) % N ? 1.0f : 0.0f;
    for (int i = 0; i < RANKS; i++) {
        c->send[i] = send[r->rank][i];
        c->expect[i] = send[i][r->rank];
        sent += c->send[i];
    }
    c->gemm = (struct fcc_gemm_all_to_all_args){.a = rows_at(r, a, (int)sent),
                                                .c = rows_at(r, to_row, 2 * RANKS),
                                                .send_rows = c->send,
                                                .recv_rows = c->recv,
                                                .schedule = (uint32_t)random_below(3)};
    if (product)
        c->gemm.b = fcc_tensor_2d(b, 0, FCC_F32, N, N);
    OK(fcc_gemm_all_to_all_start(r->comm, &c->gemm, request));
    fcc_buffer_free(b);
    for (int to = 0; to < RANKS; to++)
        for (int from = 0, row = to_row; from < RANKS; from++) {
            int first = a;
            for (int i = 0; i < to; i++)
                first += (int)send[from][i];
            for (int i = 0; i < send[from][to]; i++, row++)
                for (int n = 0; n < N; n++)
                    model[to][row][n] = before[from][first + i][product ? (n + shift) % N : n];
        }
}

/* Each rank has a table of 4 rows, from which each sample takes two. */
static void embedding_start(struct rank *r, struct call *c, fcc_request **request)
{
    enum { TABLE = 4, BATCH = 4 };
    int table = rows_choose(TABLE, 0, 0), out = rows_choose(2 * RANKS, table, TABLE);
    int32_t indices[RANKS][2 * BATCH], offsets[BATCH + 1];
    fcc_buffer *b = local_new(r, sizeof(indices[0]) + sizeof(offsets));

    for (int i = 0; i < RANKS * 2 * BATCH; i++)
        indices[i / (2 * BATCH)][i % (2 * BATCH)] = (int32_t)random_below(TABLE);
    for (int i = 0; i <= BATCH; i++)
        offsets[i] = 2 * i;
    OK(fcc_buffer_write(b, 0, indices[r->rank], sizeof(indices[0])));
    OK(fcc_buffer_write(b, sizeof(indices[0]), offsets, sizeof(offsets)));
    c->table_rows[0] = TABLE;
    int own = BATCH / RANKS + (r->rank < BATCH % RANKS);
    c->embedding = (struct fcc_embedding_all_to_all_args){
        .tables = rows_at(r, table, TABLE),
        .table_rows = c->table_rows,
        .num_tables = 1,
        .pooling = FCC_POOLING_SUM,
        .batch = BATCH,
        .indices = fcc_tensor_1d(b, 0, FCC_I32, 2 * BATCH),
        .offsets = fcc_tensor_1d(b, sizeof(indices[0]), FCC_I32, BATCH + 1),
        .out = fcc_tensor_3d(rows_at(r, out, 1).buffer, rows_at(r, out, 1).offset, FCC_F32, own, RANKS, N),
        .schedule = (uint32_t)random_below(3)};
    OK(fcc_embedding_all_to_all_start(r->comm, &c->embedding, request));
    fcc_buffer_free(b);
    for (int to = 0, sample = 0; to < RANKS; to++)
        for (int i = 0; i < BATCH / RANKS + (to < BATCH % RANKS); i++, sample++)
            for (int t = 0; t < RANKS; t++)
                for (int n = 0; n < N; n++)
                    model[to][out + i * RANKS + t][n] =
                        before[t][table + indices[t][2 * sample]][n] + before[t][table + indices[t][2 * sample + 1]][n];
}

/* All ranks' rows, with their columns in another order of each rank's own, and, sometimes, as they are. */
static void gather_start(struct rank *r, struct call *c, fcc_request **request)
{
    const int m = 1 + (int)random_below(2), all = m * RANKS, shift = (int)random_below(N);
    const bool gathers = random_below(2);
    int a = rows_choose(m, 0, 0), to = rows_choose(all, a, m), also = to;
    fcc_buffer *b = local_new(r, sizeof(float) * N * N);

    while (also < to + all && to < also + all)
        also = rows_choose(all, a, m);
    for (int i = 0; i < N * N; i++)
        ((float *)fcc_buffer_data(b))[i] = i / N == (i % N + shift + r->rank) % N ? 1.0f : 0.0f;
    c->gather = (struct fcc_all_gather_gemm_args){.a = rows_at(r, a, m),
                                                  .b = fcc_tensor_2d(b, 0, FCC_F32, N, N),
                                                  .c = rows_at(r, to, all),
                                                  .schedule = (uint32_t)random_below(3)};
    if (gathers)
        c->gather.gathered = rows_at(r, also, all);
    OK(fcc_all_gather_gemm_start(r->comm, &c->gather, request));
    fcc_buffer_free(b);
    for (int me = 0; me < RANKS; me++)
        for (int i = 0; i < all; i++)
            for (int n = 0; n < N; n++) {
                model[me][to + i][n] = before[i / m][a + i % m][(n + shift + me) % N];
                if (gathers)
                    model[me][also + i][n] = before[i / m][a + i % m][n];
            }
}

static void step_start(struct rank *r, int step)
{
    struct call *c = calloc(1, sizeof(*c));
    static void (*const starts[])(struct rank *, struct call *, fcc_request **) = {gemv_start, gemm_start, embedding_start,
                                                                                   gather_start};
    int which = (int)random_below(4);

    CHECK(c);
    memcpy(before, model, sizeof(model));
    starts[which](r, c, &r->requests[step]);
    memset(&c->gemv, 0xff, sizeof(c->gemv));
    memset(&c->gemm, 0xff, sizeof(c->gemm));
    memset(&c->embedding, 0xff, sizeof(c->embedding));
    memset(&c->gather, 0xff, sizeof(c->gather));
    memset(c->send, 0xff, sizeof(c->send));
    memset(c->table_rows, 0xff, sizeof(c->table_rows));
    fcc_buffer *garbage = local_new(r, sizeof(float) * N * N); /* where, maybe, an input was */
    memset(fcc_buffer_data(garbage), 0xff, sizeof(float) * N * N);
    fcc_buffer_free(garbage);
    r->calls[step] = c;
}

static void scene_run(struct rank *r, unsigned scene)
{
    random_state = 7919u * scene + (uint64_t)test_nodes();
    (void)snprintf(case_text, sizeof(case_text), "scene %u", scene);
    for (int i = 0; i < RANKS * ROWS * N; i++) {
        float value = (float)random_below(5);
        model[i / (ROWS * N)][i / N % ROWS][i % N] = value;
        if (i / (ROWS * N) == r->rank)
            state_row(r, i / N % ROWS)[i % N] = value;
    }
    OK(fcc_noop(r->comm)); /* everybody's state is there */
    for (int step = 0; step < STEPS; step++) {
        if ((scene + (unsigned)step) % RANKS == (unsigned)r->rank)
            usleep(2000); /* so that each rank is the last one at times */
        step_start(r, step);
    }
    for (int step = 0; step < STEPS; step++) {
        bool received = r->calls[step]->expect[0] + r->calls[step]->expect[1] + r->calls[step]->expect[2];
        OK(fcc_request_wait(r->requests[step], -1));
        CHECK(!received || !memcmp(r->calls[step]->recv, r->calls[step]->expect, sizeof(r->calls[step]->recv)));
        fcc_request_free(r->requests[step]);
        free(r->calls[step]);
    }
    for (int i = 0; i < ROWS * N; i++)
        if (state_row(r, i / N)[i % N] != model[r->rank][i / N][i % N])
            check_failed(__FILE__, __LINE__, "%s: row %d, column %d: %g instead of %g", case_text, i / N, i % N,
                         (double)state_row(r, i / N)[i % N], (double)model[r->rank][i / N][i % N]);
    OK(fcc_noop(r->comm)); /* everybody has looked */
}

static void chain_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r = {.comm = comm_open(all, rank, 0), .rank = rank};
    int scenes = test_rounds(getenv("SCENES") ? atoi(getenv("SCENES")) : SCENES);

    (void)argument;
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_SYMMETRIC, sizeof(float) * N * SYMMETRIC, &r.state[0]));
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_RESULT, sizeof(float) * N * (ROWS - SYMMETRIC), &r.state[1]));
    for (int scene = 0; scene < scenes; scene++)
        scene_run(&r, (unsigned)scene);
    fcc_comm_destroy(r.comm);
    fcc_disconnect(comm_context());
}

static void one_node(void)
{
    CHECK(!setenv("FCC_TEST_NODES", "1", 1));
    ranks_run(RANKS, chain_rank, NULL);
}

static void two_nodes(void)
{
    CHECK(!setenv("FCC_TEST_NODES", "2", 1));
    ranks_run(RANKS, chain_rank, NULL);
}

int main(void)
{
    const struct test tests[] = {{"one_node", one_node, 60}, {"two_nodes", two_nodes, 60}};

    return tests_run("chains", TESTS(tests));
}
