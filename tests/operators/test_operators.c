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
#include <pthread.h>
#include <unistd.h>

#include "tests/operators/operator_cases.h"

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

/* Other ways than the usual one have the same kernels: FCC_TEST_SLOW leaves them one dtype. */
static void processes(const char *const options[], bool no_ring)
{
    static const int counts[] = {1, 2, 3, 5, 8};
    struct test_daemon d;
    struct settings settings = {.no_ring = no_ring,
                                .dtypes = (options || no_ring) && getenv("FCC_TEST_SLOW") ? 1 : 0,
                                .shared = shared_memory(ELEMENTS_MAX * 8)};

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
    struct bed bed = {.rank = t->rank, .n = t->n, .dtypes = DTYPES, .shared = t->shared};

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
    for (int round = 0; round < test_rounds(ROUNDS); round++) {
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
