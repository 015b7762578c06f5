/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_stream_runs.c - runs of rules that streams of ranks on GPUs work off themselves, with the real daemon and the real library on fake GPUs:
 * rows that are stored and added without a thread of the worker, graphs that outlive all that they use, what ends them, and what is refused. Real GPUs are in
 * test_gpu_rules.c.
 */
#include "tests/fake_gpu/fake_gpu_ring.h"

enum { RUNS = 40, LIMIT_MS = 2000, LATE_RUNS = 20 };

/* On the stream: the rows are sent, and those of the rank before have come. */
static void rows_send(const struct ring *r)
{
    OK(fcc_tracker_run_enqueue(r->tracker, r->send, r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->come, r->stream));
}

/* ... and have been used, by the next rank, too. */
static void rows_used(const struct ring *r)
{
    OK(fcc_tracker_run_enqueue(r->tracker, r->used, r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->free, r->stream));
}

/* ---- rows are stored or added at the next rank ---- */

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
        if (run % 2) /* the next source is filled when the rows have gone, which the worker says, too */
            stream_sync(r.stream);
        OK(fcc_tracker_wait(r.tracker, r.free, (uint64_t)run, -1));
    }
    OK(fcc_tracker_wait(r.tracker, r.send, RUNS, -1));
    FAILS(fcc_tracker_wait(r.tracker, r.send, RUNS + 1, 0), -EAGAIN, "not done yet");
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

/* ---- functions are called of runs that streams work off ---- */

static void told(void *argument, uint64_t run)
{
    _Atomic uint64_t *last = argument;

    CHECK(*last + 1 == run);
    *last = run;
}

static void calls_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);
    _Atomic uint64_t last = 0;
    const struct fcc_rule self = {.count = 1, .rank = rank, .call = told, .argument = (void *)&last};
    uint32_t number;

    (void)argument;
    OK(fcc_tracker_rule(r.tracker, &self, &number));
    for (int run = 0; run < RUNS; run++)
        OK(fcc_tracker_run_enqueue(r.tracker, number, r.stream));
    while (last < RUNS)
        (void)usleep(100);
    OK(fcc_noop(r.comm));
    ring_close(&r);
}

static void calls(void)
{
    fake_ranks_run(PAIR, calls_rank, NULL);
}

/* ---- graphs, which outlive all that they use ---- */

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
    driver->graph_launch(graphs[0], r.stream); /* over: rows are still stored, into memory that the graph keeps */
    stream_sync(r.stream);
    fcc_disconnect(r.context);
    driver->graph_launch(graphs[1], r.stream);
    driver->graph_launch(graphs[0], r.stream);
    stream_close(r.stream);
    for (int i = 0; i < 2; i++)
        driver->graph_destroy(graphs[i]);
    client_end(client_connect(NULL)); /* whose end frees what no graph uses any more */
}

static void graph(void)
{
    fake_ranks_run(GPUS, graph_rank, NULL);
}

/* ---- ends: streams that wait go on, and so do those that come later; no signal is raised ---- */

static void points_wait(const struct ring *r)
{
    OK(fcc_tracker_run_enqueue(r->tracker, r->come, r->stream));
    OK(fcc_tracker_run_enqueue(r->tracker, r->used, r->stream));
}

static void points_look(const struct ring *r, enum ring_end end)
{
    if (end == RING_BUFFER_FREED)
        FAILS(fcc_tracker_run_enqueue(r->tracker, r->come, r->stream), -ENOENT, "fcc_tracker_run_enqueue: rule 1", "freed");
    if (end == RING_ABORT || end == RING_KILL) {
        const struct ring_words *words = fcc_buffer_data(r->words);
        CHECK(words->used == 0);
    }
}

static void ends(enum ring_end end)
{
    ring_ends(end, points_wait, points_look);
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

/* ---- the time limit ---- */

/* Streams wait for each other for longer than the limit, though for no run that long, and nobody minds. Then one waits for a word that never comes. */
static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, LIMIT_MS);
    const int32_t *over;

    (void)argument;
    for (int run = 1; run <= LATE_RUNS; run++) {
        if (rank == 0)
            (void)usleep(2 * LIMIT_MS * 1000 / LATE_RUNS);
        source_fill(&r, run);
        rows_send(&r);
        rows_used(&r);
        stream_sync(r.stream);
        if (fcc_comm_error(r.comm))
            check_failed(__FILE__, __LINE__, "rank %d: run %d: %s", rank, run, fcc_last_error());
    }
    if (rank == 0)
        OK(fcc_tracker_run_enqueue(r.tracker, r.come, r.stream));
    stream_sync(r.stream);
    if (rank == 0)
        FAILS(fcc_tracker_wait(r.tracker, r.come, LATE_RUNS + 1, -1), -ETIMEDOUT, "rank 0: rule 1 \"come\" (signal to rank 0)",
              "awaits[0], the word at byte 0", "2000 ms");
    OK(fcc_comm_status(r.comm, &over));
    while (!__atomic_load_n(over, __ATOMIC_ACQUIRE))
        (void)usleep(1000);
    FAILS(fcc_noop(r.comm), -ETIMEDOUT, "rank 0: rule 1 \"come\"");
    ring_close(&r);
}

static void late(void)
{
    fake_ranks_run(PAIR, late_rank, NULL);
}

/* ---- what is refused ---- */

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);

    (void)argument;
    FAILS(fcc_tracker_run_enqueue(r.tracker, 4, r.stream), -EINVAL, "rule: 4", "it has 4 rules");
    FAILS(fcc_tracker_run_enqueue(NULL, 0, r.stream), -EINVAL, "tracker");
    driver->fail = DRIVER_stream_capturing;
    FAILS(fcc_tracker_run_enqueue(r.tracker, r.send, r.stream), -EIO, "FAKE_FAILURE");
    driver->fail = -1;
    rows_send(&r);
    stream_sync(r.stream);
    FAILS(fcc_tracker_add(r.tracker, r.send, 1), -EINVAL, "fcc_tracker_add: rule 0: streams work off its runs");
    FAILS(fcc_tracker_add_enqueue(r.tracker, r.send, 1, r.stream), -EINVAL,
          "fcc_tracker_add_enqueue: rule 0: streams work off its runs");
    FAILS(fcc_tracker_wait_enqueue(r.tracker, r.send, r.stream), -EINVAL,
          "fcc_tracker_wait_enqueue: rule 0: streams work off its runs");
    CHECK(!fcc_tracker_count(r.tracker, r.send) &&
          strstr(fcc_last_error(), "fcc_tracker_count: rule 0: streams work off its runs"));
    OK(fcc_tracker_add(r.tracker, r.used, 1));
    FAILS(fcc_tracker_run_enqueue(r.tracker, r.used, r.stream), -EINVAL, "fcc_tracker_run_enqueue: rule 2: it is counted for");
    OK(fcc_noop(r.comm));
    ring_close(&r);
}

static void refusals(void)
{
    fake_ranks_run(PAIR, refusals_rank, NULL);
}

static void cpu_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    const struct fcc_rule self = {.count = 1, .rank = rank};
    fcc_tracker *t;
    uint32_t number;

    (void)argument;
    OK(fcc_tracker_create(comm, &t));
    OK(fcc_tracker_rule(t, &self, &number));
    FAILS(fcc_tracker_run_enqueue(t, number, NULL), -EOPNOTSUPP, "fcc_tracker_run_enqueue: this rank is on a cpu device");
    OK(fcc_tracker_add(t, number, 1)); /* the rule is nobody's yet */
    OK(fcc_tracker_wait(t, number, 1, -1));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void cpu(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, cpu_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"stores", stores, 60},
                                        {"additions", additions, 60},
                                        {"calls", calls, 60},
                                        {"graph", graph, 60},
                                        {"aborted", aborted, 60},
                                        {"killed", killed, 60},
                                        {"tracker_freed", tracker_freed, 60},
                                        {"buffer_freed", buffer_freed, 60},
                                        {"late", late, 60},
                                        {"refusals", refusals, 60},
                                        {"cpu", cpu, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_stream_runs", TESTS(tests));
}
