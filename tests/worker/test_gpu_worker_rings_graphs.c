/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rings_graphs.c - collectives that the ranks launch themselves, in CUDA graphs, with the real daemon and the real library on
 * fake GPUs: replayed by turns and beside others; graphs that differ, and such in other orders; captures that fail; graphs that outlive their communicator.
 */
#include "tests/fake_gpu/fake_gpu_own.h"

static void *sums_capture(const struct rank *r, int64_t n, int times)
{
    driver->capture_begin();
    for (int i = 0; i < times; i++)
        OK(sum_enqueue(r, n));
    return driver->capture_end();
}

/* Two graphs by turns, beside runs outside of them. */
static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    void *graphs[2] = {sums_capture(&r, FEW, 3), sums_capture(&r, MANY, 1)};
    for (int i = 0; i < test_rounds(150); i++) {
        const int64_t n = i % 5 == 4 ? MANY : FEW;
        if ((i + rank) % 16 == 0)
            stream_be_late(r.stream);
        if (i % 10 == 0)
            sum_inputs(&r, MANY, (float)i); /* also the first FEW */
        if (i % 7 == 3)
            OK(sum_enqueue(&r, n));
        else
            driver->graph_launch(graphs[n == MANY], r.stream);
        if (i % 10 == 9)
            sum_check(&r, n, ranks_sum(&r, (float)(i - 9)));
    }
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    OK(fcc_noop(r.comm));
    driver->graph_destroy(graphs[0]);
    driver->graph_destroy(graphs[1]);
    own_close(&r, context);
}

static void graphs(void)
{
    fake_ranks_run(GPUS, graphs_rank, NULL);
}

/* What one rank captures differs, from replay to replay: all hear of each, and the communicator goes on. */
static void graphs_differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    void *graph = sums_capture(&r, FEW + rank, 1), *same = sums_capture(&r, FEW, 1);
    for (int i = 0; i < 5; i++) {
        driver->graph_launch(graph, r.stream);
        stream_sync(r.stream);
        FAILS(fcc_comm_error(r.comm), -EINVAL, "all_reduce: in: rank", "5000", "5001");
        OK(fcc_comm_error(r.comm));
        sum_inputs(&r, FEW, 2);
        driver->graph_launch(same, r.stream);
        sum_check(&r, FEW, ranks_sum(&r, 2));
    }
    driver->graph_destroy(graph);
    driver->graph_destroy(same);
    own_close(&r, context);
}

static void graphs_that_differ(void)
{
    fake_ranks_run(PAIR, graphs_differ_rank, NULL);
}

/* The same graphs, replayed in another order by rank 0. */
static void orders_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    const struct fcc_all_gather_args gather = {.in = vector_at(&r, 0, 0, FCC_F32, FEW),
                                               .out = vector_at(&r, 1, 0, FCC_F32, FEW * all->n)};

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    void *graphs[2] = {sums_capture(&r, FEW, 1)};
    driver->capture_begin();
    OK(fcc_all_gather_enqueue(r.comm, &gather, r.stream, NULL));
    graphs[1] = driver->capture_end();
    for (int i = 0; i < 4; i++) {
        driver->graph_launch(graphs[(i + !rank) % 2], r.stream);
        stream_sync(r.stream);
        FAILS(fcc_comm_error(r.comm), -EINVAL, " called all_gather", " called all_reduce", "rank 0 called", "rank 1 called");
        OK(fcc_comm_error(r.comm));
    }
    sum_inputs(&r, FEW, 2);
    driver->graph_launch(graphs[0], r.stream);
    sum_check(&r, FEW, ranks_sum(&r, 2));
    driver->graph_destroy(graphs[0]);
    driver->graph_destroy(graphs[1]);
    own_close(&r, context);
}

static void graphs_in_other_orders(void)
{
    fake_ranks_run(PAIR, orders_rank, NULL);
}

/* Wrong arguments fail a capture on their rank alone: nothing has run, and nothing of it is in the graph. */
static void capture_fails_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct fcc_all_reduce_args sum;

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    int before = fake->runs;
    driver->capture_begin();
    sum = sum_args(&r, FEW);
    sum.reduction = rank ? FCC_SUM : 99;
    if (rank)
        OK(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL));
    else
        FAILS(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL), -EINVAL, "rank 0: all_reduce: reduction: 99");
    if (!rank)
        OK(fcc_refuse_enqueue(r.comm, "all_reduce", "why", r.stream));
    driver->graph_destroy(driver->capture_end());
    driver->fail = DRIVER_graph_retain;
    driver->capture_begin();
    FAILS(sum_enqueue(&r, FEW), -EIO, "cuGraphRetainUserObject");
    driver->graph_destroy(driver->capture_end());
    driver->fail = -1;
    CHECK(driver->objects == 0 && fake->runs == before);
    OK(fcc_comm_error(r.comm));
    OK(fcc_noop(r.comm));
    sum_works(&r, FEW, 5);
    own_close(&r, context);
}

static void captures_that_fail(void)
{
    fake_ranks_run(PAIR, capture_fails_rank, NULL);
}

/* A graph outlives the communicator, its buffers, and the connection. */
static void outlives_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    fcc_buffer *in;

    (void)argument;
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, FEW * sizeof(float), &in));
    OK(fcc_collectives_prepare(r.comm));
    struct fcc_all_reduce_args sum = sum_args(&r, FEW);
    sum.in = fcc_tensor_1d(in, 0, FCC_F32, FEW);
    driver->capture_begin();
    OK(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL));
    void *graph = driver->capture_end();
    driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    OK(fcc_noop(r.comm));
    fcc_buffer_free(in);
    fcc_comm_destroy(r.comm);
    for (int i = 0; i < 5; i++)
        driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    fcc_disconnect(context);
    CHECK(driver->mappings > 0);
    driver->graph_launch(graph, r.stream);
    own_free(&r);
    driver->graph_destroy(graph);
    context = client_connect(NULL); /* what graphs held goes with one of the library's next calls */
    r.comm = client_join(context, &((const struct fcc_unique_id *)argument)[0], all->n, rank, 0);
    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_noop(r.comm));
    fcc_comm_destroy(r.comm);
    CHECK(driver->graphs == 0 && driver->objects == 0);
    client_end(context);
}

static void graphs_that_outlive(void)
{
    struct fcc_unique_id *id = shared_memory(sizeof(*id));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *id = id_make();
    ranks_start(&r, PAIR, outlives_rank, id);
    ranks_join(&r);
    fake_stop(&d);
}
int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"graphs", graphs, 90},
                                        {"graphs_that_differ", graphs_that_differ, 60},
                                        {"graphs_in_other_orders", graphs_in_other_orders, 60},
                                        {"captures_that_fail", captures_that_fail, 60},
                                        {"graphs_that_outlive", graphs_that_outlive, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rings_graphs", TESTS(tests));
}
