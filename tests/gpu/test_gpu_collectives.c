/* SPDX-License-Identifier: MIT
 *
 * test_gpu_collectives.c - collectives that the ranks' own processes launch, on NVIDIA GPUs, one rank on each, in memory that this process
 * has allocated: the cases of collective_cases.h, small and large; in graphs; counts in the GPUs' memory; errors, which all ranks hear of;
 * several communicators, on streams that no order binds; and ranks that do not come.
 */
#define ROOM (24 << 20)
#include "tests/gpu/gpu_own.h"
#include "tests/operators/collective_cases.h"
#include "tests/operators/collective_counts.h"

enum { CASES = 150 };

/* ---- the cases ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    own_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    cases_run(&r, *(const uint64_t *)argument, CASES);
    OK(fcc_comm_error(r.comm));
    own_close(&r);
}

static void random_cases(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(random_rank, &seed);
}

/* ---- sums whose right result is easy to tell: all elements of a rank's input are the same ---- */

static void input_set(const struct rank *r, int64_t n, float value)
{
    unsigned bits;

    memcpy(&bits, &value, sizeof(bits));
    CU(gpu.set(r->memory[0], bits, (size_t)n, r->stream));
}

/* ---- graphs ---- */

static void *sum_capture(const struct rank *r, int64_t n)
{
    CU(gpu.capture_begin(r->stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < 3; i++)
        OK(sum_enqueue(r, n));
    return capture_finish(r->stream);
}

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 2000, LOOKS = 50 };
    void *graphs[2];
    struct rank r;

    (void)argument;
    own_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    graphs[0] = sum_capture(&r, FEW);
    graphs[1] = sum_capture(&r, MANY);
    for (int i = 0; i < repeats(REPLAYS); i++) {
        const int64_t n = i % 5 == 4 ? MANY : FEW;
        input_set(&r, n, (float)(i % 97) * (float)(rank + 1));
        if (i % 7 == 3)
            OK(sum_enqueue(&r, n)); /* beside the graphs */
        else
            CU(gpu.graph_launch(graphs[n == MANY], r.stream));
        if (i % LOOKS == LOOKS - 1)
            sum_check(&r, n, ranks_sum(&r, (float)(i % 97)));
    }
    graphs_outlive(r.comm, r.stream, graphs, 2);
}

static void graphs(void)
{
    ranks_of_gpus_run(graphs_rank, NULL);
}

/* ---- counts in the GPU's memory ---- */

static void graph_launch(const struct rank *r, void *graph)
{
    CU(gpu.graph_launch(graph, r->stream));
}

static void counts_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ROUNDS = 25 };
    struct rank r;

    (void)argument;
    own_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    for (int many = 0; many < 2; many++) {
        const int64_t elements = many ? MANY : FEW;
        const struct fcc_all_to_all_args there = counts_there(&r, elements);
        void *graphs[2];
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        counts_enqueue(&r, elements);
        graphs[0] = capture_finish(r.stream);
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        OK(fcc_all_to_all_enqueue(r.comm, &there, r.stream, NULL));
        graphs[1] = capture_finish(r.stream);
        counts_replay(&r, graph_launch, graphs, elements, ROUNDS);
    }
    own_close(&r);
}

static void counts(void)
{
    ranks_of_gpus_run(counts_rank, NULL);
}

/* ---- errors ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    own_open(&r, rank, all, 0);
    errors_work(&r);
    counts_errors_work(&r);
    own_close(&r);
}

static void errors(void)
{
    ranks_of_gpus_run(errors_rank, NULL);
}

/* ---- several communicators at a time, whose operators ranks put onto streams in opposite orders ---- */

enum { COMMS = 4 };

struct several {
    struct fcc_unique_id ids[COMMS];
};

/* The communicators, each with a stream and memory of its own. Returns the process's context. */
static fcc_context *several_open(struct rank r[COMMS], int rank, const struct ranks *all, const struct several *s)
{
    fcc_context *context;

    own_open(&r[0], rank, all, 0);
    context = comm_context();
    for (int c = 1; c < COMMS; c++) {
        r[c] = (struct rank){.rank = rank, .n = all->n, .move = memory_move, .stream = stream_open(CUDA_STREAM_OWN_ORDER)};
        r[c].comm = client_join(context, &s->ids[c], all->n, rank, gpu.number, 0);
        for (int i = 0; i < 2; i++) {
            CU(gpu.memory_alloc(&r[c].memory[i], ROOM));
            r[c].images[i] = calloc(1, ROOM);
        }
    }
    for (int c = 0; c < COMMS; c++) {
        OK(fcc_collectives_prepare(r[c].comm));
        input_set(&r[c], MANY, (float)(c + 1) * (float)(rank + 1));
    }
    return context;
}

static void several_close(struct rank r[COMMS], fcc_context *context)
{
    for (int c = 0; c < COMMS; c++) {
        sum_check(&r[c], FEW, ranks_sum(&r[c], (float)(c + 1)));
        OK(fcc_comm_error(r[c].comm));
    }
    for (int c = COMMS - 1; c >= 0; c--) {
        OK(fcc_noop(r[c].comm));
        fcc_comm_destroy(r[c].comm);
    }
    fcc_disconnect(context);
}

static void several_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ROUNDS = 500 };
    struct rank r[COMMS];
    fcc_context *context = several_open(r, rank, all, argument);

    for (int i = 0; i < repeats(ROUNDS); i++)
        for (int k = 0; k < COMMS; k++) {
            int c = rank % 2 ? COMMS - 1 - k : k;
            OK(sum_enqueue(&r[c], (i + c) % 3 ? FEW : MANY));
        }
    several_close(r, context);
}

/* A graph of parallel branches, one for each communicator, which odd ranks begin in the opposite order. */
static void *branches_capture(const struct rank r[COMMS], int64_t n)
{
    void *events[COMMS];

    for (int c = 0; c < COMMS; c++)
        CU(gpu.event_create(&events[c], 0));
    CU(gpu.capture_begin(r[0].stream, CUDA_CAPTURE_GLOBAL));
    CU(gpu.event_record(events[0], r[0].stream));
    for (int c = 1; c < COMMS; c++)
        CU(gpu.event_wait(r[c].stream, events[0], 0));
    for (int k = 0; k < COMMS; k++)
        OK(sum_enqueue(&r[r->rank % 2 ? COMMS - 1 - k : k], n));
    for (int c = 1; c < COMMS; c++) {
        CU(gpu.event_record(events[c], r[c].stream));
        CU(gpu.event_wait(r[0].stream, events[c], 0));
    }
    return capture_finish(r[0].stream);
}

static void branches_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 100000, SWITCHED = 400, MANY_EACH = 100, QUEUED = 500 };
    const int replays = ranks_on_gpu() > 1 ? SWITCHED : REPLAYS;
    struct rank r[COMMS];
    fcc_context *context = several_open(r, rank, all, argument);
    void *few = branches_capture(r, FEW), *many = branches_capture(r, MANY);

    for (int i = 0; i < replays; i++) {
        CU(gpu.graph_launch(i % MANY_EACH == MANY_EACH - 1 ? many : few, r[0].stream));
        if (i % QUEUED == QUEUED - 1)
            CU(gpu.stream_synchronize(r[0].stream));
    }
    CU(gpu.graph_launch(few, r[0].stream));
    CU(gpu.stream_synchronize(r[0].stream));
    CU(gpu.exec_destroy(few));
    CU(gpu.exec_destroy(many));
    several_close(r, context);
}

static void id_rank(int rank, const struct ranks *all, void *argument)
{
    struct several *s = argument;
    fcc_context *context = client_connect(NULL);

    (void)rank;
    (void)all;
    for (int c = 0; c < COMMS; c++)
        OK(fcc_get_unique_id(context, &s->ids[c]));
    fcc_disconnect(context);
}

static void several_run(void (*run)(int, const struct ranks *, void *))
{
    struct several *s = shared_memory(sizeof(*s));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 1, id_rank, s);
    ranks_join(&r);
    ranks_start(&r, gpus, run, s);
    ranks_join(&r);
    daemon_stop(&d);
}

static void several_communicators(void)
{
    several_run(several_rank);
}

static void branches(void)
{
    several_run(branches_rank);
}

/* ---- a rank that does not come, and one that gives up ---- */

static void ends_rank(int rank, const struct ranks *all, void *argument)
{
    const bool aborts = *(const bool *)argument;
    struct rank r;
    void *graph;

    own_open(&r, rank, all, LIMIT_MS);
    sum_works(&r, FEW, 2);
    graph = sum_capture(&r, MANY);
    int status = replays_end(r.comm, rank, r.stream, graph, aborts, "all_reduce");
    CHECK(sum_enqueue(&r, FEW) == status);
    replays_over(r.comm, rank, r.stream, graph);
}

static void late(void)
{
    bool aborts = false;

    ranks_of_gpus_run(ends_rank, &aborts);
}

static void aborted(void)
{
    bool aborts = true;

    ranks_of_gpus_run(ends_rank, &aborts);
}

int main(void)
{
    static const struct test tests[] = {{"random_cases", random_cases, 120},
                                        {"graphs", graphs, 60},
                                        {"counts", counts, 60},
                                        {"errors", errors, 60},
                                        {"several_communicators", several_communicators, 60},
                                        {"branches", branches, 120},
                                        {"late", late, 60},
                                        {"aborted", aborted, 60}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    gpus = gpus < RANKS_MOST ? gpus : RANKS_MOST;
    return tests_run("gpu_collectives", TESTS(tests));
}
