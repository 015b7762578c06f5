/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rules.c - rules of ranks on GPUs, with the real daemon and the real library on fake GPUs (fake_gpu_rules.c): points of streams that
 * count and wait, rows that are stored at the neighbour and added to, graphs that are replayed, and what ends all that. Real GPUs are in test_gpu_rules.c.
 */
#include "tests/fake_gpu/fake_gpu_ring.h"

enum { RUNS = 40 };

/* On the stream: the rows are sent, in two halves of the count; those of the rank before have come. */
static void rows_send(struct ring *r)
{
    OK(fcc_tracker_add_enqueue(r->tracker, r->send, 1, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->send, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->send, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->come, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->come, r->stream));
}

/* ... and have been used, by the next rank, too. */
static void rows_used(struct ring *r)
{
    OK(fcc_tracker_add_enqueue(r->tracker, r->used, 1, r->stream));
    OK(fcc_tracker_add_enqueue(r->tracker, r->free, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->free, r->stream));
}

/* ---- a stream's point, a store or an addition at the neighbour, the neighbour's stream ---- */

static void ring_rank(int rank, const struct ranks *all, void *argument)
{
    const enum fcc_rule_action action = *(const enum fcc_rule_action *)argument;
    struct ring r = ring_open(all, rank, action, 0);

    for (int run = 1; run <= RUNS; run++) {
        source_fill(&r, run);
        rows_send(&r);
        stream_sync(r.stream);
        rows_check(&r, run, action == FCC_RULE_ADD);
        rows_used(&r);
        stream_sync(r.stream);
    }
    OK(fcc_tracker_wait(r.tracker, r.send, RUNS, -1));
    FAILS(fcc_tracker_wait(r.tracker, r.send, RUNS + 1, 0), -EAGAIN, "not done yet");
    OK(fcc_tracker_add(r.tracker, r.used, 1)); /* a thread counts besides */
    OK(fcc_tracker_wait(r.tracker, r.used, RUNS + 1, -1));
    OK(fcc_noop(r.comm));
    ring_close(&r);
}

static void stores(void)
{
    static enum fcc_rule_action action = FCC_RULE_STORE;

    fake_ranks_run(GPUS, ring_rank, &action);
}

static void additions(void)
{
    static enum fcc_rule_action action = FCC_RULE_ADD;

    fake_ranks_run(GPUS, ring_rank, &action);
}

/* ---- a graph, which outlives all that it uses ---- */

static void graph_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);
    void *graphs[2];

    (void)argument;
    driver->capture_begin();
    rows_send(&r);
    graphs[0] = driver->capture_end();
    driver->capture_begin();
    rows_used(&r);
    graphs[1] = driver->capture_end();
    for (int run = 1; run <= RUNS; run++) {
        source_fill(&r, run);
        driver->graph_launch(graphs[0], r.stream);
        stream_sync(r.stream);
        rows_check(&r, run, false);
        driver->graph_launch(graphs[1], r.stream);
        stream_sync(r.stream);
    }
    OK(fcc_noop(r.comm));
    fcc_comm_destroy(r.comm);
    driver->graph_launch(graphs[0], r.stream); /* over */
    stream_sync(r.stream);
    fcc_disconnect(r.context);
    driver->graph_launch(graphs[1], r.stream);
    stream_close(r.stream);
    CHECK(driver->registered == 1); /* the tracker's memory */
    for (int i = 0; i < 2; i++)
        driver->graph_destroy(graphs[i]);
    client_end(client_connect(NULL)); /* whose end frees what no graph uses any more */
}

static void graph(void)
{
    fake_ranks_run(GPUS, graph_rank, NULL);
}

/* ---- ends: streams that wait go on, and so do those that come later ---- */

static void points_wait(const struct ring *r)
{
    OK(fcc_tracker_add_enqueue(r->tracker, r->come, 1, r->stream));
    OK(fcc_tracker_wait_enqueue(r->tracker, r->come, r->stream));
}

static void ends(enum ring_end end)
{
    ring_ends(end, points_wait, NULL);
}

static void aborted(void)
{
    ends(RING_ABORT);
}

static void killed(void)
{
    ends(RING_KILL);
}

static void tracker_freed(void)
{
    ends(RING_TRACKER_FREED);
}

static void buffer_freed(void)
{
    ends(RING_BUFFER_FREED);
}

/* ---- buffers are freed while rows are on their way ---- */

static void way_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);

    (void)argument;
    fake->copy_us = 20000;
    OK(fcc_tracker_add_enqueue(r.tracker, r.send, 2, r.stream));
    OK(fcc_tracker_add_enqueue(r.tracker, r.come, 1, r.stream));
    stream_sync(r.stream);
    (void)usleep(5000);
    fcc_buffer_free(r.place); /* the plug-in counts what is freed too early */
    fcc_buffer_free(r.source);
    fcc_buffer_free(r.words);
    ring_close(&r);
}

static void freed_on_the_way(void)
{
    fake_ranks_run(GPUS, way_rank, NULL);
}

/* ---- what is refused ---- */

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);

    (void)argument;
    FAILS(fcc_tracker_add_enqueue(r.tracker, 4, 1, r.stream), -EINVAL, "it has 4 rules");
    FAILS(fcc_tracker_wait_enqueue(r.tracker, 4, r.stream), -EINVAL, "it has 4 rules");
    driver->fail = DRIVER_stream_capturing;
    FAILS(fcc_tracker_add_enqueue(r.tracker, r.send, 1, r.stream), -EIO, "FAKE_FAILURE");
    driver->fail = -1;
    fcc_tracker_free(r.tracker);
    static const enum driver_function functions[] = {DRIVER_host_register, DRIVER_host_address};
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        driver->fail = (int)functions[i];
        FAILS(fcc_tracker_create(r.comm, &r.tracker), -EIO, "FAKE_FAILURE");
        driver->fail = -1;
    }
    OK(fcc_tracker_create(r.comm, &r.tracker)); /* what failed has left nothing behind */
    ring_close(&r);
}

static void refusals(void)
{
    fake_ranks_run(PAIR, refusals_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"stores", stores, 60},
                                        {"additions", additions, 60},
                                        {"graph", graph, 60},
                                        {"aborted", aborted, 60},
                                        {"killed", killed, 60},
                                        {"tracker_freed", tracker_freed, 60},
                                        {"buffer_freed", buffer_freed, 60},
                                        {"freed_on_the_way", freed_on_the_way, 60},
                                        {"refusals", refusals, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rules", TESTS(tests));
}
