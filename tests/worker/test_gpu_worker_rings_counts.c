/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rings_counts.c - all_to_all with counts in the GPUs' memory, with the real daemon and the real library on fake GPUs
 * (fake_gpu_rings.c): in graphs that are replayed with other counts each time; what is refused; counts in a buffer that a graph keeps; and
 * where this process cannot launch the operator. Results that are drawn at random are in test_gpu_worker_rings.c, and real GPUs in
 * test_gpu_collectives.c.
 */
#include "tests/fake_gpu/fake_gpu_own.h"
#include "tests/operators/collective_counts.h"

/* ---- graphs ---- */

static void *both_capture(const struct rank *r, int64_t elements)
{
    driver->capture_begin();
    counts_enqueue(r, elements);
    return driver->capture_end();
}

static void *there_capture(const struct rank *r, int64_t elements)
{
    const struct fcc_all_to_all_args there = counts_there(r, elements);

    driver->capture_begin();
    OK(fcc_all_to_all_enqueue(r->comm, &there, r->stream, NULL));
    return driver->capture_end();
}

static void graph_launch(const struct rank *r, void *graph)
{
    driver->graph_launch(graph, r->stream);
}

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int many = 0; many < 2; many++) {
        const int64_t elements = many ? MANY : FEW;
        void *graphs[2] = {both_capture(&r, elements), there_capture(&r, elements)};
        counts_replay(&r, graph_launch, graphs, elements, test_rounds(20));
        driver->graph_destroy(graphs[0]);
        driver->graph_destroy(graphs[1]);
    }
    own_close(&r, context);
}

static void graphs(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int n = 1; n <= GPUS; n++) {
        ranks_start(&r, n, graphs_rank, NULL);
        ranks_join(&r);
    }
    fake_stop(&d);
}

/* The graph keeps the buffers in which its counts lie. */
static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct fcc_all_to_all_args args = counts_there(&r, FEW);
    fcc_buffer *counts[2];

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < 2; i++)
        OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, 4096, &counts[i]));
    int64_t *sent = fcc_buffer_data(counts[0]), *came = fcc_buffer_data(counts[1]);
    args.device_send_counts = sent;
    args.device_receive_counts = came;
    driver->capture_begin();
    OK(fcc_all_to_all_enqueue(r.comm, &args, r.stream, NULL));
    void *graph = driver->capture_end();
    for (int round = 1; round < 5; round++) {
        for (int p = 0; p < r.n; p++)
            sent[p] = round * (rank + 1);
        driver->graph_launch(graph, r.stream);
        stream_sync(r.stream);
        for (int p = 0; p < r.n; p++)
            CHECK(came[p] == round * (p + 1));
    }
    OK(fcc_comm_error(r.comm));
    OK(fcc_noop(r.comm));
    const int mapped = driver->mappings;
    for (int i = 0; i < 2; i++)
        fcc_buffer_free(counts[i]);
    CHECK(driver->mappings == mapped);
    driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    for (int p = 0; p < r.n; p++)
        CHECK(came[p] == 4 * (p + 1));
    OK(fcc_noop(r.comm));
    driver->graph_destroy(graph);
    own_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

/* ---- errors ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    counts_errors_work(&r);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(GPUS, errors_rank, NULL);
}

/* With a request, or as a call that waits, the worker would launch it. All ranks hear of that. */
static void elsewhere_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct fcc_all_to_all_args args = counts_there(&r, FEW), plain = {.row_elements = COUNTS_ROW};
    static const char text[] = "all_to_all: counts in the GPU's memory: allowed only where this process launches the operator";
    fcc_buffer *memory[2];
    fcc_request *request;

    (void)argument;
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, ROOM, &memory[0]));
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_RESULT, ROOM, &memory[1]));
    args.in.buffer = memory[0];
    args.out.buffer = memory[1];
    args.in.offset = args.out.offset = 0;
    plain.in = fcc_tensor_1d(memory[0], 0, FCC_I32, COUNTS_ROW * r.n);
    plain.out = fcc_tensor_1d(memory[1], 0, FCC_I32, COUNTS_ROW * r.n);
    FAILS(rank ? fcc_all_to_all(r.comm, &plain) : fcc_all_to_all(r.comm, &args), -EOPNOTSUPP, text);
    if (rank == 0) {
        FAILS(fcc_all_to_all_enqueue(r.comm, &args, r.stream, &request), -EOPNOTSUPP, text);
    } else {
        OK(fcc_all_to_all_enqueue(r.comm, &plain, r.stream, &request));
        FAILS(fcc_request_wait(request, -1), -EOPNOTSUPP, text);
        fcc_request_free(request);
    }
    OK(fcc_all_to_all(r.comm, &plain));
    OK(fcc_noop(r.comm));
    sum_works(&r, FEW, 2);
    own_close(&r, context);
}

static void elsewhere(void)
{
    fake_ranks_run(PAIR, elsewhere_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"graphs", graphs, 120}, {"buffers", buffers, 60}, {"errors", errors, 90}, {"elsewhere", elsewhere, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rings_counts", TESTS(tests));
}
