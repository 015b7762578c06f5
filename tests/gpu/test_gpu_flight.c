/* SPDX-License-Identifier: MIT
 *
 * test_gpu_flight.c - the flight recorder has each run that ranks launch by themselves on NVIDIA GPUs: collectives, products and runs of a prepared operator, enqueued and in graphs, with
 * numbers that follow each other and times that lie between those at which this process launched them and saw them ended. What it has of ranks that are late, and what programs can do to it, is in
 * test_gpu_worker_flight.c.
 */
#define ROOM (24 << 20)
#include "tests/bed/flight_runs.h"
#include "tests/gpu/gpu_own.h"
#include "tests/operators/collective_errors.h"

enum {
    RANKS_MOST = 8,
    ENQUEUED = 7,
    IN_GRAPH = 3,
    REPLAYS = 40,
    ALL = ENQUEUED + IN_GRAPH * REPLAYS, /* of each length */
    BETWEEN_US = 4000, /* between two replays: a prepared operator keeps its last 64 runs, which the worker reads each 40 ms */
    SLACK_NS = 500000, /* by which the clocks of a GPU and of the host may be off, and those of two GPUs */
    LONGEST_NS = 1000000000, /* of a run, on GPUs that may be shared */
};

static void runs_launch(int (*enqueue)(const void *), const void *what, void *stream)
{
    for (int i = 0; i < ENQUEUED; i++)
        OK(enqueue(what));
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < IN_GRAPH; i++)
        OK(enqueue(what));
    void *graph = capture_finish(stream);
    for (int i = 0; i < REPLAYS; i++) {
        CU(gpu.graph_launch(graph, stream));
        (void)usleep(BETWEEN_US);
    }
    CU(gpu.stream_synchronize(stream));
    CU(gpu.exec_destroy(graph));
}

/* Rank 0 looks at what the recorder has, while the others wait for it in the end's noop. */
static void durations_check(const struct flight_expected *expected, int64_t few, int64_t most)
{
    struct json_object *o = flight_read("test"), *runs = flight_launched(o);
    const int64_t all = expected->last - expected->first + 1;
    double shortest = LONGEST_NS, sum = 0;

    for (size_t i = 0; i < json_object_array_length(runs); i++) {
        struct json_object *r = json_object_array_get_idx(runs, i);
        const double ns = json_object_get_double(flight_field(r, "run_ns"));
        const int64_t run = flight_number(r, "run");
        if (!flight_says(r, "op", expected->op))
            continue;
        if (!(ns > 0 && ns < LONGEST_NS) || (few && flight_number(r, "bytes") != (run <= ALL ? few : most)))
            check_failed(__FILE__, __LINE__, "a run's time, or its bytes: %s", json_object_to_json_string(r));
        shortest = ns < shortest ? ns : shortest;
        sum += ns / (double)all;
    }
    printf("%s: %lld runs, the shortest took %.1f us, all %.1f us at an average\n", expected->op, (long long)all,
           shortest / 1e3, sum / 1e3);
    (void)json_object_put(o);
}

/* ---- collectives ---- */

struct sum {
    const struct rank *rank;
    int64_t n;
};

static int sum_of(const void *what)
{
    const struct sum *s = what;

    return sum_enqueue(s->rank, s->n);
}

static void collectives_rank(int rank, const struct ranks *all, void *argument)
{
    struct flight_expected expected = {"all_reduce", 0, 1, 2 * ALL, -1, flight_clock(), 0};
    struct rank r;

    (void)argument;
    own_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_noop(r.comm));
    runs_launch(sum_of, &(struct sum){&r, FEW}, r.stream);
    runs_launch(sum_of, &(struct sum){&r, MANY}, r.stream);
    OK(fcc_noop(r.comm));
    expected.until_ns = flight_clock();
    if (rank == 0) {
        flight_await_runs("test", &expected, SLACK_NS);
        durations_check(&expected, FEW * 4, (int64_t)MANY * 4);
    }
    own_close(&r);
}

static void collectives(void)
{
    ranks_of_gpus_run(collectives_rank, NULL);
}

/* ---- products: through rings, with which they are counted together, and a prepared one with runs of its own ---- */

struct enqueued {
    const struct product *product;
    fcc_prepared *prepared; /* NULL: on the stream */
    void *stream;
};

static int product_of(const void *what)
{
    const struct enqueued *e = what;
    struct fcc_gemv_all_reduce_args args = product_args(e->product, 0);
    struct fcc_tensor *const tensors[] = {&args.x, &args.w, &args.y};

    for (int i = 0; i < 3; i++) { /* by their addresses, so that the ranks launch it themselves */
        tensors[i]->offset += (uint64_t)(uintptr_t)fcc_buffer_data(tensors[i]->buffer);
        tensors[i]->buffer = FCC_ADDRESS;
    }
    return e->prepared ? fcc_prepared_enqueue(e->prepared, e->stream)
                       : fcc_gemv_all_reduce_enqueue(e->product->comm, &args, e->stream, NULL);
}

static void products_run(int rank, const struct ranks *all, bool is_prepared)
{
    struct flight_expected expected = {"gemv_all_reduce", 0, 1, ALL, -1, flight_clock(), 0};
    fcc_comm *comm = comm_open(all, rank, 0);
    struct enqueued e = {NULL, NULL, NULL};

    gpu_open(comm);
    struct product p = product_open(comm, 1);
    e.product = &p;
    e.stream = stream_open(CUDA_STREAM_OWN_ORDER);
    gpu_fill(e.stream, p.x, PRODUCT_K, 2);
    if (is_prepared)
        e.prepared = product_prepare(&p, false);
    else
        OK(fcc_collectives_prepare(comm));
    OK(fcc_noop(comm));
    runs_launch(product_of, &e, e.stream);
    product_fetch(&p, e.stream);
    CU(gpu.stream_synchronize(e.stream));
    product_check(&p, gpu.host, 2);
    OK(fcc_noop(comm));
    expected.until_ns = flight_clock();
    if (rank == 0) {
        flight_await_runs("test", &expected, SLACK_NS);
        durations_check(&expected, 0, 0);
    }
    OK(fcc_noop(comm));
    if (is_prepared)
        fcc_prepared_free(e.prepared);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void products_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    products_run(rank, all, false);
}

static void prepared_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    products_run(rank, all, true);
}

static void products(void)
{
    ranks_of_gpus_run(products_rank, NULL);
}

static void prepared(void)
{
    ranks_of_gpus_run(prepared_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"collectives", collectives, 60}, {"products", products, 60}, {"prepared", prepared, 60}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    gpus = gpus < RANKS_MOST ? gpus : RANKS_MOST;
    return tests_run("gpu_flight", TESTS(tests));
}
