/* SPDX-License-Identifier: MIT
 *
 * test_comms.c - who may join a communicator, and what ends one: each rank hears why, through the library and against the real
 * daemon. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"

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
    FAILS(fcc_comm_init(a, &id, FCC_MAX_RANKS + 1, 0, NULL, &comm), -EINVAL, "rank 0: nranks: 1025: allowed are 1 to 1024");
    FAILS(fcc_comm_init(a, &id, 0, 0, NULL, &comm), -EINVAL, "nranks", "0", "1 to 1024");
    options.device_kind = FCC_DEVICE_GPU;
    FAILS(fcc_comm_init(a, &id, 65, 3, &options, &comm), -EINVAL, "rank 3: nranks: 65: on GPUs: allowed are 1 to 64");
    options.device_kind = FCC_DEVICE_CPU;
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
    /* rank 1 comes as rank 0, which is there already; then with another number of ranks; then right */
    FAILS(fcc_comm_init(context, &all->id, 2, 0, NULL, &comm), -EALREADY, "rank 0", "joined already", "pid");
    if (rank == 1) /* as which it has not heard */
        FAILS(fcc_comm_init(context, &all->id, 2, 1, NULL, &comm), -EALREADY, "rank 0", "joined already", "pid");
    for (++*step; *step < 2;)
        nap();
    FAILS(fcc_comm_init(context, &all->id, 2 + rank, rank, NULL, &comm), -EINVAL, "nranks", "3", "2");
    for (++*step; *step < 4;)
        nap();
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

/* Of all ranks' factors, which no round has twice: so what an earlier communicator's ranks have sent is not what is expected. */
static void reduces_right(fcc_comm *comm, int rank, int nranks, int round)
{
    enum { N = 8, K = 4 };
    fcc_buffer *inputs, *results;
    float sum = 0;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (N + 1) * K * sizeof(float), &inputs));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &results));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(inputs, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(inputs, K * sizeof(float), FCC_F32, N, K),
                                            .y = fcc_tensor_2d(results, 0, FCC_F32, 1, N)};
    if (test_device() == FCC_DEVICE_CPU) /* a GPU's memory is not mapped here */
        for (int i = 0; i < (N + 1) * K; i++)
            ((float *)fcc_buffer_data(inputs))[i] = i < K ? 1 : (float)(100 * round + rank);
    OK(fcc_gemv_all_reduce(comm, &args));
    for (int r = 0; r < nranks; r++)
        sum += (float)(K * (100 * round + r));
    for (int i = 0; i < N && test_device() == FCC_DEVICE_CPU; i++)
        CHECK(((const float *)fcc_buffer_data(results))[i] == sum);
    fcc_buffer_free(inputs);
    fcc_buffer_free(results);
}

/* All join with an id that they have used: while its communicator lives they are told so, and it goes on; after its end a new one forms. */
static void id_again_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *step = argument;
    fcc_comm *comm = comm_open(all, rank, 0), *other = NULL;
    struct fcc_comm_options options = {.device = -1, .device_kind = test_device()};

    for (int round = 1; round <= 3; round++) {
        reduces_right(comm, rank, all->n, round);
        FAILS(fcc_comm_init(comm_context(), &all->id, all->n, rank, &options, &other), -EALREADY,
              "has joined already, as pid ");
        CHECK(!other);
        OK(fcc_noop(comm));
        ++*step;
        while (*step < all->n * (2 * round - 1))
            nap();
        fcc_comm_destroy(comm);
        ++*step;
        while (*step < all->n * 2 * round) /* until the others have left it, too */
            nap();
        OK(fcc_comm_init(comm_context(), &all->id, all->n, rank, &options, &comm));
    }
    reduces_right(comm, rank, all->n, 4);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void id_again(void)
{
    ranks_run(3, id_again_rank, shared_memory(sizeof(int)));
}

static void id_again_over_nodes(void)
{
    CHECK(!setenv("FCC_TEST_NODES", "2", 1)); /* each case is a process of its own */
    ranks_run(3, id_again_rank, shared_memory(sizeof(int)));
}

/* ---- time limits, and a communicator that has ended ---- */

static void never_comes_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 2000);
    _Atomic int *told = argument;
    fcc_buffer *buffer;
    double start = now_ms();

    if (rank == 0) {
        FAILS(fcc_noop(comm), -ETIMEDOUT, "noop", "rank 1, rank 2", "2000 ms");
        CHECK(now_ms() - start >= 1999);
        *told = 1;
        FAILS(fcc_noop(comm), -ETIMEDOUT, "rank 1, rank 2");
        FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 8, &buffer), -ETIMEDOUT, "rank 1, rank 2");
    } else {
        for (double until = await_end(); !*told;)
            AWAITING(until);
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
    ranks_start(&r, 3, never_comes_rank, shared_memory(sizeof(int)));
    ranks_join(&r);
    daemon_stop(&d);
}

/* The ranks say different limits: the shortest is in force for all, whoever comes first, and none gives up its worker. */
static void unequal_rank(int rank, const struct ranks *all, void *argument)
{
    const uint32_t limits[] = {60000, 3000, 0}; /* 0: the daemon's, which is 30000 */
    fcc_comm *comm = comm_open(all, rank, limits[rank]);
    _Atomic int *told = argument;

    if (rank != 2) {
        FAILS(fcc_noop(comm), -ETIMEDOUT, "noop #1: rank 2 did not come within the time limit of 3000 ms");
        ++*told;
    }
    while (*told < 2)
        nap();
    FAILS(fcc_noop(comm), -ETIMEDOUT, "noop #1: rank 2 did not come within the time limit of 3000 ms");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* While it forms, too: rank 0 waits with its long limit already when rank 1 says a short one; or it comes later. Rank 2 never does. */
static void unequal_forming_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = rank ? 400 : 60000, .device_kind = test_device()};
    const int first = *(const int *)argument;
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &context));
    if (rank != first)
        (void)usleep(100000); /* which of them comes first decides nothing */
    FAILS(fcc_comm_init(context, &all->id, 3, rank, &options, &comm), -ETIMEDOUT,
          "the communicator did not form within 400 ms: ",
          "rank 2 did not join"); /* a node may not have heard of another's rank */
    fcc_disconnect(context);
}

static void unequal_limits(void)
{
    for (int nodes = 1; nodes <= 2; nodes++) {
        struct test_daemon d;
        struct ranks r;
        daemons_start(&d, nodes, NULL);
        if (nodes == 2) {
            ranks_start(&r, 3, unequal_rank, shared_memory(sizeof(int)));
            ranks_join(&r);
        }
        for (int first = 0; first < 2; first++) {
            ranks_start(&r, 2, unequal_forming_rank, &first);
            ranks_join(&r);
        }
        daemon_stop(&d);
    }
}

/* Rank 0 submits ahead, rank 1 comes to each operator well within the limit, but to the last one long after it was submitted. */
static void ahead_rank(int rank, const struct ranks *all, void *argument)
{
    enum { AHEAD = 8, LIMIT_MS = 3000, APART_MS = 500 };
    static_assert(AHEAD * APART_MS > LIMIT_MS, "it would come to the last one in time, too");
    fcc_comm *comm = comm_open(all, rank, LIMIT_MS);
    fcc_request *requests[AHEAD];

    (void)argument;
    for (int i = 0; i < AHEAD; i++) {
        if (rank == 1)
            (void)usleep(APART_MS * 1000);
        OK(fcc_noop_start(comm, &requests[i]));
    }
    for (int i = 0; i < AHEAD; i++) {
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
    fcc_buffer *buffer;

    (void)argument;
    if (rank == 1) {
        (void)usleep(50000);
        OK(fcc_comm_abort(comm, "the loss is not a number"));
    }
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 1", "the loss is not a number");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 8, &buffer), -ECONNABORTED, "rank 1", "the loss is not a number");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 8, &buffer), -ECONNABORTED, "rank 1", "the loss is not a number");
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

/* A rank is told of a large operator's end by a workgroup, which the engine may hear of later than of what the rank does then: it goes at
 * once. To the engine the operator must be over. */
static void goer_rank(int rank, const struct ranks *all, void *argument)
{
    enum { N = 768, K = 1024 };
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *inputs, *results;

    (void)argument;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (N + 1) * K * sizeof(float), &inputs));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &results));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(inputs, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(inputs, K * sizeof(float), FCC_F32, N, K),
                                            .y = fcc_tensor_2d(results, 0, FCC_F32, 1, N)};
    for (int i = 0; i < 3; i++)
        OK(fcc_gemv_all_reduce(comm, &args));
    if (rank == 1)
        _exit(EXIT_SUCCESS);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void gone_at_once(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    for (int i = 0; i < 40; i++) {
        ranks_start(&r, 2, goer_rank, NULL);
        ranks_join(&r);
    }
    CHECK(!daemon_logged(&d, "was running", false) && !daemon_logged(&d, "in flight", false));
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"joining", joining, 0},
        {"joins_twice", joins_twice, 0},
        {"never_comes", never_comes, 0},
        {"submitted_ahead", submitted_ahead, 0},
        {"aborted", aborted, 0},
        {"one_leaves", one_leaves, 0},
        {"gone_at_once", gone_at_once, 0},
        {"id_again", id_again, 0},
        {"id_again_over_nodes", id_again_over_nodes, 0},
        {"unequal_limits", unequal_limits, 0},
    };

    return test_device_missing() ? EXIT_SUCCESS : tests_run("comms", TESTS(tests));
}
