/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker.c - the order of operators and the client's streams, with the real daemon and the real library on fake GPUs.
 * The same on real GPUs is in test_gpu_stream.c; here it runs under the sanitizers. Who may join is in test_gpu_worker_join.c,
 * what fccctl shows in test_gpu_worker_shown.c.
 */
#include <pthread.h>

#include "tests/fake_gpu/fake_gpu_bed.h"

/* ---- the order of operators and streams ---- */

enum { COMMS = 2, AHEAD = 12 };

struct order {
    struct fcc_connect_options connect, of_one;
    bool no_stream_waits; /* of the GPUs */
    bool threads;         /* each communicator has a thread; otherwise one does both, the ranks in opposite orders */
    struct fcc_unique_id id[COMMS];
    _Atomic int came[COMMS][PAIR];   /* the round that each stream has come to */
    _Atomic int passed[COMMS][PAIR]; /* ... and the one whose operator is behind it */
};

static int order_rounds(void)
{
    return test_rounds(500);
}

/* One communicator of one rank, and what is on its stream. */
struct lane {
    struct order *order;
    int c, rank;
    struct product p;
    void *stream;
    fcc_request *requests[AHEAD];
};

static void step_before(void *argument)
{
    struct lane *l = argument;

    if (++l->order->came[l->c][l->rank] % 16 == 8 * l->rank) /* now one rank is late, now another */
        (void)usleep(300);
}

/* The operator is over: all streams had come to it. */
static void step_after(void *argument)
{
    struct lane *l = argument;
    int round = ++l->order->passed[l->c][l->rank];

    for (int r = 0; r < PAIR; r++)
        if (l->order->came[l->c][r] < round)
            check_failed(__FILE__, __LINE__, "comm %d, round %d: rank %d's stream went on before that of rank %d had come",
                         l->c, round, l->rank, r);
}

static void lane_step(struct lane *l, int round)
{
    fcc_request **request = &l->requests[round % AHEAD];

    if (*request)
        OK(fcc_request_wait(*request, -1));
    fcc_request_free(*request);
    CHECK(gpu.stream_function(l->stream, step_before, l) == 0);
    if (round % 2)
        OK(fcc_noop_enqueue(l->p.comm, l->stream, request));
    else
        product_enqueue(&l->p, l->stream, request);
    CHECK(gpu.stream_function(l->stream, step_after, l) == 0);
}

static void *lane_run(void *argument)
{
    for (int round = 0; round < order_rounds(); round++)
        lane_step(argument, round);
    return NULL;
}

static void lane_open(struct lane *l, fcc_context *context, struct order *order, int c, int rank)
{
    *l = (struct lane){.order = order, .c = c, .rank = rank, .stream = stream_open()};
    l->p = product_open(client_join(context, &order->id[c], PAIR, rank, 0));
}

static void lane_close(struct lane *l)
{
    stream_close(l->stream);
    for (int i = 0; i < AHEAD; i++) {
        OK(fcc_request_wait(l->requests[i], -1));
        fcc_request_free(l->requests[i]);
    }
    CHECK(l->order->passed[l->c][l->rank] == order_rounds());
    fcc_comm_destroy(l->p.comm);
}

static void order_rank(int rank, const struct ranks *all, void *argument)
{
    struct order *order = argument;
    struct lane lanes[COMMS];
    pthread_t threads[COMMS];

    (void)all;
    driver_use();
    fcc_context *context = client_connect(&order->connect);
    for (int c = 0; c < COMMS; c++)
        lane_open(&lanes[c], context, order, c, rank);
    for (int c = 0; c < COMMS && order->threads; c++)
        CHECK(pthread_create(&threads[c], NULL, lane_run, &lanes[c]) == 0);
    for (int c = 0; c < COMMS && order->threads; c++)
        CHECK(pthread_join(threads[c], NULL) == 0);
    for (int round = 0; round < order_rounds() && !order->threads; round++)
        for (int turn = 0; turn < COMMS; turn++)
            lane_step(&lanes[(turn + rank) % COMMS], round);
    for (int c = 0; c < COMMS; c++)
        lane_close(&lanes[c]);
    client_end(context);
}

static void order_run(const struct order *how)
{
    struct order *order = shared_memory(sizeof(*order));
    struct test_daemon d;
    struct ranks r;

    memcpy(order, how, sizeof(*order));
    fake_start(&d, GPUS, NULL);
    fake->no_stream_waits = how->no_stream_waits;
    for (int c = 0; c < COMMS; c++)
        order->id[c] = id_make();
    ranks_start(&r, PAIR, order_rank, order);
    ranks_join(&r);
    fake_stop(&d);
}

static void opposite_orders(void)
{
    order_run(&(struct order){.threads = false});
}

static void opposite_orders_by_functions(void)
{
    order_run(&(struct order){.connect = {.no_stream_memory_operations = 1}, .no_stream_waits = true});
}

static void threads_enqueue(void)
{
    order_run(&(struct order){.threads = true});
}

/* One communicator: the GPU itself waits for the streams. */
static void one_comm_rank(int rank, const struct ranks *all, void *argument)
{
    struct order *order = argument;
    struct lane lane;

    driver_use();
    fcc_context *context = client_connect(rank ? &order->of_one : NULL);
    order->id[0] = all->id;
    lane_open(&lane, context, order, 0, rank);
    (void)lane_run(&lane);
    lane_close(&lane);
    client_end(context);
}

static void one_comm(void)
{
    fake_ranks_run(PAIR, one_comm_rank, shared_memory(sizeof(struct order)));
}

/* ... by words in the host's memory. */
static void one_comm_host_words(void)
{
    struct order *order = shared_memory(sizeof(*order));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->no_gpu_words = 1;
    ranks_start(&r, PAIR, one_comm_rank, order);
    ranks_join(&r);
    fake_stop(&d);
}

/* ... and where one rank's streams do it so, because its program wants that. */
static void one_comm_both_words(void)
{
    struct order *order = shared_memory(sizeof(*order));

    order->of_one = (struct fcc_connect_options){.no_stream_memory_operations = 1};
    fake_ranks_run(PAIR, one_comm_rank, order);
}

/* A rank's stream that is closed: nothing begins on any GPU, and no call waits. */
static void closed_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *gate = argument; /* [3]: open, enqueued, heard */
    fcc_request *request;
    int done;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    if (rank)
        stream_gate(stream, &gate[0]);
    product_enqueue(&p, stream, &request);
    gate[1]++;
    await(&gate[1], all->n);
    (void)usleep(20000);
    OK(fcc_request_test(request, &done));
    CHECK(!done && fake->begun == 0);
    gate[2]++;
    await(&gate[2], all->n);
    gate[0] = 1;
    stream_close(stream);
    OK(fcc_request_wait(request, -1));
    CHECK(fake->ended == all->n);
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void closed_stream(void)
{
    fake_ranks_run(PAIR, closed_rank, shared_memory(3 * sizeof(_Atomic int)));
}

/* ---- a stream that comes to one communicator's operator by the result of another's, which was submitted later ---- */

struct chain {
    struct fcc_unique_id second;
    _Atomic int submitted, done;
};

static void chain_end(void *argument)
{
    ((struct chain *)argument)->done = 1;
}

/* If a GPU waited for the first operator's streams, the second one, behind it in its queue, would never run. */
static void chain_rank(int rank, const struct ranks *all, void *argument)
{
    struct chain *chain = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product first = product_open(client_join(context, &all->id, PAIR, rank, 0));
    struct product second = product_open(client_join(context, &chain->second, PAIR, rank, 0));
    void *streams[] = {stream_open(), stream_open()};
    fcc_request *requests[2];
    if (rank)
        stream_gate(streams[0], &chain->done);
    product_enqueue(&first, streams[0], &requests[0]);
    chain->submitted++;
    await(&chain->submitted, PAIR);
    product_enqueue(&second, streams[1], &requests[1]);
    if (rank)
        CHECK(gpu.stream_function(streams[1], chain_end, chain) == 0);
    for (int i = 1; i >= 0; i--) {
        OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
        stream_close(streams[i]);
    }
    fcc_comm_destroy(first.comm);
    fcc_comm_destroy(second.comm);
    client_end(context);
}

static void chained(void)
{
    struct chain *chain = shared_memory(sizeof(*chain));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    chain->second = id_make();
    ranks_start(&r, PAIR, chain_rank, chain);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"one_comm", one_comm, 0},
        {"one_comm_host_words", one_comm_host_words, 0},
        {"one_comm_both_words", one_comm_both_words, 0},
        {"closed_stream", closed_stream, 0},
        {"opposite_orders", opposite_orders, 0},
        {"opposite_orders_by_functions", opposite_orders_by_functions, 0},
        {"threads_enqueue", threads_enqueue, 0},
        {"chained", chained, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker", TESTS(tests));
}
