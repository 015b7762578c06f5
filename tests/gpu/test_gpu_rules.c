/* SPDX-License-Identifier: MIT
 *
 * test_gpu_rules.c - rules of trackers on NVIDIA GPUs, through the real daemon: points of streams that count and wait, rows that are stored at the
 * next rank and added to, a graph that is replayed many times, and an abort while streams wait. How long things took is printed, and decides nothing.
 */
#include "tests/bed/rule_ring.h"
#include "tests/gpu/gpu_client.h"

enum { COLS = 4096, ROWS = 64, ELEMENTS = ROWS * COLS, RUNS = 200 };
#define WHY "the loss is not a number"

/* A rank's source is filled, sent and checked by its stream alone. */
static void ring_open(struct ring *r, const struct ranks *all, int rank, enum fcc_rule_action action)
{
    *r = (struct ring){
        .rank = rank, .to = (rank + 1) % all->n, .from = (rank + all->n - 1) % all->n, .comm = comm_open(all, rank, 0)};
    gpu_open(r->comm);
    r->stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ELEMENTS * sizeof(float), &r->source));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_SYMMETRIC, ELEMENTS * sizeof(float), &r->place));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_SYMMETRIC, sizeof(struct ring_words), &r->words));
    ring_rules(r, action, ROWS, COLS, COLS, COLS);
    OK(fcc_noop(r->comm));
}

static void ring_close(struct ring *r)
{
    CU(gpu.stream_synchronize(r->stream));
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
}

/* On the stream: the source grows by 1 and is sent, in two halves of the count; the rows of the rank before come, and go to gpu.host; and have been
 * used by the next rank. */
static void run_enqueue(struct ring *r)
{
    gpu_increment(r->stream, r->source, ELEMENTS);
    OK(fcc_tracker_add_enqueue(r->tracker, r->send, 1, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->send, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->send, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->come, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->come, r->stream));
    CU(gpu.copy_out(gpu.host, (uint64_t)(uintptr_t)fcc_buffer_data(r->place), ELEMENTS * sizeof(float), r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->used, 1, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->free, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->free, r->stream));
}

/* The same, all of it by the stream, without the worker. */
static void run_in_stream(struct ring *r)
{
    gpu_increment(r->stream, r->source, ELEMENTS);
    OK(fcc_tracker_run_enqueue(r->tracker, r->send, r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->come, r->stream));
    CU(gpu.copy_out(gpu.host, (uint64_t)(uintptr_t)fcc_buffer_data(r->place), ELEMENTS * sizeof(float), r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->used, r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->free, r->stream));
}

/* What came in run `run`: all ranks' sources are the same. Added up: 1 + 2 + ... + run. */
static void run_check(const struct ring *r, int run, bool sums)
{
    const float want = (float)(sums ? run * (run + 1) / 2 : run);

    for (int i = 0; i < ELEMENTS; i++)
        if (gpu.host[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d: run %d: element %d is %g, expected %g", r->rank, run, i,
                         (double)gpu.host[i], (double)want);
}

/* The actions, and runs by calls or by replays of a graph. */
struct ring_case {
    enum fcc_rule_action action;
    bool replays;
    bool in_stream; /* streams work off the runs themselves */
};

static void ring_rank(int rank, const struct ranks *all, void *argument)
{
    const struct ring_case *c = argument;
    void (*const enqueue)(struct ring *) = c->in_stream ? run_in_stream : run_enqueue;
    const int runs = repeats(RUNS);
    void *graph = NULL, *points = NULL;
    struct ring r;

    ring_open(&r, all, rank, c->action);
    gpu_fill(r.stream, r.source, ELEMENTS, 0);
    CU(gpu.stream_synchronize(r.stream));
    if (c->replays) {
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        enqueue(&r);
        graph = capture_finish(r.stream);
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL)); /* nothing that is gone with the communicator's buffers */
        if (c->in_stream) {
            OK(fcc_tracker_run_enqueue(r.tracker, r.send, r.stream)); /* whose memory the graph keeps */
            OK(fcc_tracker_run_enqueue(r.tracker, r.come, r.stream));
        } else {
            OK(fcc_tracker_add_enqueue(r.tracker, r.come, 1, r.stream));
            OK(fcc_tracker_wait_enqueue(r.tracker, r.come, r.stream));
        }
        points = capture_finish(r.stream);
    }
    double begun = now_ms();
    for (int run = 1; run <= runs; run++) {
        if (graph)
            CU(gpu.graph_launch(graph, r.stream));
        else
            enqueue(&r);
        if (run % 5 == 0 || run == runs) {
            CU(gpu.stream_synchronize(r.stream));
            run_check(&r, run, c->action == FCC_RULE_ADD);
        }
    }
    if (rank == 0)
        printf("%d runs of %zu bytes: %.3f ms each\n", runs, ELEMENTS * sizeof(float), (now_ms() - begun) / runs);
    OK(fcc_tracker_wait(r.tracker, r.send, (uint64_t)runs, -1));
    FAILS(fcc_tracker_wait(r.tracker, r.send, (uint64_t)runs + 1, 0), -EAGAIN, "not done yet");
    OK(fcc_noop(r.comm));
    if (graph) {
        fcc_comm_destroy(r.comm);
        CU(gpu.graph_launch(points, r.stream)); /* over: it counts and does not wait */
        CU(gpu.stream_synchronize(r.stream));
        fcc_disconnect(comm_context());
        CU(gpu.graph_launch(points, r.stream));
        CU(gpu.stream_synchronize(r.stream));
    } else {
        ring_close(&r);
    }
}

static void stores(void)
{
    struct ring_case c = {FCC_RULE_STORE, false, false};

    ranks_run(gpus, ring_rank, &c);
}

static void additions(void)
{
    struct ring_case c = {FCC_RULE_ADD, false, false};

    ranks_run(gpus, ring_rank, &c);
}

static void replays(void)
{
    struct ring_case c = {FCC_RULE_STORE, true, false};

    ranks_run(gpus, ring_rank, &c);
}

static void replayed_additions(void)
{
    struct ring_case c = {FCC_RULE_ADD, true, false};

    ranks_run(gpus, ring_rank, &c);
}

static void stores_in_stream(void)
{
    struct ring_case c = {FCC_RULE_STORE, false, true};

    ranks_run(gpus, ring_rank, &c);
}

static void replays_in_stream(void)
{
    struct ring_case c = {FCC_RULE_STORE, true, true};

    ranks_run(gpus, ring_rank, &c);
}

static void replayed_additions_in_stream(void)
{
    struct ring_case c = {FCC_RULE_ADD, true, true};

    ranks_run(gpus, ring_rank, &c);
}

/* ---- an abort while streams wait for rows that nobody sends ---- */

static void abort_rank(int rank, const struct ranks *all, void *argument)
{
    const bool in_stream = *(const bool *)argument;
    void *waits;
    struct ring r;

    ring_open(&r, all, rank, FCC_RULE_STORE);
    CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
    if (in_stream) {
        OK(fcc_tracker_run_enqueue(r.tracker, r.come, r.stream));
    } else {
        OK(fcc_tracker_add_enqueue(r.tracker, r.come, 1, r.stream));
        OK(fcc_tracker_wait_enqueue(r.tracker, r.come, r.stream));
    }
    waits = capture_finish(r.stream);
    CU(gpu.graph_launch(waits, r.stream));
    (void)usleep(100000);
    double begun = now_ms();
    if (rank == 0)
        OK(fcc_comm_abort(r.comm, WHY));
    CU(gpu.stream_synchronize(r.stream));
    printf("rank %d: the wait ended after %.1f ms\n", rank, now_ms() - begun);
    FAILS(fcc_tracker_wait(r.tracker, r.come, 1, -1), -ECONNABORTED, WHY);
    begun = now_ms();
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(waits, r.stream));
    CU(gpu.stream_synchronize(r.stream));
    printf("rank %d: ten replays that were over took %.3f ms\n", rank, now_ms() - begun);
    fcc_comm_destroy(r.comm);
    fcc_disconnect(comm_context());
}

static void aborted(void)
{
    ranks_run(gpus, abort_rank, &(bool){false});
}

static void aborted_in_stream(void)
{
    ranks_run(gpus, abort_rank, &(bool){true});
}

int main(void)
{
    static const struct test tests[] = {{"stores", stores, 100},
                                        {"additions", additions, 100},
                                        {"replays", replays, 100},
                                        {"replayed_additions", replayed_additions, 100},
                                        {"aborted", aborted, 60},
                                        {"stores_in_stream", stores_in_stream, 100},
                                        {"replays_in_stream", replays_in_stream, 100},
                                        {"replayed_additions_in_stream", replayed_additions_in_stream, 100},
                                        {"aborted_in_stream", aborted_in_stream, 60}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    return tests_run("gpu_rules", TESTS(tests));
}
