/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_graphs.c - runs of prepared operators that are captured into graphs and replayed, with the real daemon and the real
 * library on fake GPUs: results in the order of the streams, two graphs by turns, beside runs outside of graphs; and how replays end. Real
 * GPUs are in test_gpu_graphs.c.
 */
#include "tests/fake_gpu/fake_gpu_runs.h"

struct scene {
    enum work work;
    _Atomic int step, open, heard;
    struct fcc_unique_id other, last;
};

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), enum work work)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->work = work;
    scene->other = id_make();
    scene->last = id_make();
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* So many runs, each with a check of its result. */
static void *capture(struct lane *l, enum work work, fcc_prepared *p, int runs)
{
    driver->capture_begin();
    for (int i = 0; i < runs; i++)
        work_run(l, work, p, l->stream);
    return driver->capture_end();
}

/* No replay runs any more. What graphs held goes with the library's next call that frees or prepares something. */
static void graph_end(void *graph)
{
    driver->graph_destroy(graph);
}

static void graphs_end(const struct lane *l)
{
    CHECK(driver->graphs == 0 && driver->objects == 0);
    client_end(l->context);
}

/* ---- replays ---- */

/* Runs outside of graphs before the capture, while there are none, and between replays of two graphs. */
static void replay_rank(int rank, const struct ranks *all, void *argument)
{
    const struct scene *scene = argument;
    enum work work = scene->work;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, work), *q = prepare(&l, ONE_STEP);
    for (int i = 0; i < 3; i++)
        work_run(&l, work, p, l.stream);
    void *one = capture(&l, work, p, 1), *three = capture(&l, work, p, 3);
    work_run(&l, work, p, l.stream);
    for (int i = 0; i < test_rounds(work == TWO_STEPS ? 20 : 200); i++) {
        if ((i + rank) % 16 == 0)
            stream_be_late(l.stream);
        driver->graph_launch(i % 3 ? one : three, l.stream);
        if (i % 5 == 0)
            work_run(&l, work, p, l.stream);
        if (i % 7 == 0)
            work_run(&l, ONE_STEP, q, l.stream);
        if (i % 11 == 0)
            OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    OK(fcc_comm_error(l.comm));
    graph_end(one);
    graph_end(three);
    fcc_prepared_free(p);
    fcc_prepared_free(q);
    lane_leave(&l);
    graphs_end(&l);
}

static void replayed(void)
{
    scene_run(PAIR, replay_rank, ONE_STEP);
}

static void replayed_of_three(void)
{
    scene_run(GPUS, replay_rank, ONE_STEP);
}

static void replayed_in_two_steps(void)
{
    scene_run(PAIR, replay_rank, TWO_STEPS);
}

static void replayed_rows(void)
{
    scene_run(PAIR, replay_rank, ROWS_SENT);
}

/* One rank replays what the other one enqueues. */
static void one_rank(int rank, const struct ranks *all, void *argument)
{
    const struct scene *scene = argument;
    void *graph = NULL;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, scene->work);
    if (rank == 0)
        graph = capture(&l, scene->work, p, 2);
    for (int i = 0; i < test_rounds(100); i++)
        if (rank == 0 && i % 4)
            driver->graph_launch(graph, l.stream);
        else
            for (int run = 0; run < 2; run++)
                work_run(&l, scene->work, p, l.stream);
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    if (graph)
        graph_end(graph);
    lane_leave(&l);
    graphs_end(&l);
}

static void replayed_by_one(void)
{
    scene_run(PAIR, one_rank, ROWS_SENT);
}

/* Each rank adds one, meets the others, and finds that all have; then they meet again. */
struct counting {
    const struct ranks *all;
    _Atomic int *count;
    int seen;
};

static void count_up(void *argument)
{
    (*((struct counting *)argument)->count)++;
}

static void count_check(void *argument)
{
    struct counting *c = argument;
    int want = c->all->n * ++c->seen;

    if (*c->count != want)
        check_failed(__FILE__, __LINE__, "%d ranks have come to barrier %d, not %d", *c->count, c->seen, want);
}

static void meet(const struct lane *l, fcc_prepared *p, struct counting *c)
{
    CHECK(gpu.stream_function(l->stream, count_up, c) == 0);
    OK(fcc_prepared_enqueue(p, l->stream));
    CHECK(gpu.stream_function(l->stream, count_check, c) == 0);
    OK(fcc_prepared_enqueue(p, l->stream));
}

static void noop_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct counting c = {.all = all, .count = &scene->step};
    fcc_prepared *p;
    struct lane l;

    lane_open(&l, all, rank, 0);
    OK(fcc_noop_prepare(l.comm, &p));
    meet(&l, p, &c);
    driver->capture_begin();
    meet(&l, p, &c);
    void *graph = driver->capture_end();
    for (int i = 0; i < test_rounds(200); i++) {
        if ((i + rank) % 16 == 0)
            stream_be_late(l.stream);
        if (i % 4)
            driver->graph_launch(graph, l.stream);
        else
            meet(&l, p, &c);
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    graph_end(graph);
    fcc_prepared_free(p);
    lane_leave(&l);
    graphs_end(&l);
}

static void replayed_noops(void)
{
    scene_run(GPUS, noop_rank, ONE_STEP);
}

/* ---- what is not captured ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, ONE_STEP);
    struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP);
    driver->capture_begin();
    FAILS(fcc_noop_enqueue(l.comm, l.stream, NULL), -EOPNOTSUPP, "noop: stream: it is being captured into a graph", "prepare");
    FAILS(fcc_gemv_all_reduce_enqueue(l.comm, &args, l.stream, NULL), -EOPNOTSUPP, "it is being captured into a graph");
    graph_end(driver->capture_end());
    driver->fail = DRIVER_graph_retain;
    driver->capture_begin();
    FAILS(fcc_prepared_enqueue(p, l.stream), -EIO, "cuGraphRetainUserObject");
    graph_end(driver->capture_end());
    driver->fail = -1;
    CHECK(driver->objects == 0);
    work_run(&l, ONE_STEP, p, l.stream); /* nothing was captured */
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    lane_leave(&l);
    graphs_end(&l);
}

static void refused(void)
{
    scene_run(PAIR, refused_rank, ONE_STEP);
}

/* The worker's calls, and what the library's own threads do, leave a capture whole. */
static void beside_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, ONE_STEP), *q = prepare(&l, ROWS_SENT), *r;
    fcc_buffer *buffer;
    driver->capture_begin();
    work_run(&l, ONE_STEP, p, l.stream);
    fcc_prepared_free(q);
    r = prepare(&l, ROWS_SENT);
    OK(fcc_buffer_alloc(l.comm, FCC_BUFFER_LOCAL, 4096, &buffer));
    OK(fcc_buffer_write(buffer, 0, &rank, sizeof(rank)));
    fcc_buffer_free(buffer);
    OK(fcc_noop(l.comm));
    work_run(&l, ROWS_SENT, r, l.stream);
    void *graph = driver->capture_end();
    for (int i = 0; i < 10; i++)
        driver->graph_launch(graph, l.stream);
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    graph_end(graph);
    lane_leave(&l);
    graphs_end(&l);
}

static void beside(void)
{
    scene_run(PAIR, beside_rank, ONE_STEP);
}

/* ---- ends ---- */

/* All of the communicator has ended, and stays so; replays are over before they have begun. */
static void over_check(struct lane *l, fcc_prepared *p, void *graph, int status, const char *says)
{
    const int32_t *word;
    double until = await_end();

    OK(fcc_comm_status(l->comm, &word));
    while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
        AWAITING(until);
    for (int i = 0; i < 3; i++)
        driver->graph_launch(graph, l->stream);
    stream_sync(l->stream);
    FAILS(fcc_prepared_enqueue(p, l->stream), status, says);
    FAILS(fcc_noop(l->comm), status, says);
}

static void *capture_plain(struct lane *l, fcc_prepared *p)
{
    driver->capture_begin();
    OK(fcc_prepared_enqueue(p, l->stream));
    return driver->capture_end();
}

/* The last rank replays no more. */
static void stops_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, hang_limit_ms());
    fcc_prepared *p = prepare(&l, scene->work);
    void *graph = capture_plain(&l, p);
    for (int i = 0; i < 10; i++)
        driver->graph_launch(graph, l.stream);
    stream_sync(l.stream);
    step_meet(&scene->step, all->n, &step);
    for (int i = 0; i < 3 && rank != all->n - 1; i++)
        driver->graph_launch(graph, l.stream);
    stream_sync(l.stream);
    over_check(&l, p, graph, -ETIMEDOUT, all->n == PAIR ? "run 11: rank 1 did not come within the time limit" : "");
    graph_end(graph);
    lane_leave(&l);
    graphs_end(&l);
}

static void stops(void)
{
    scene_run(PAIR, stops_rank, ONE_STEP);
}

static void stops_for_rows(void)
{
    scene_run(PAIR, stops_rank, ROWS_SENT);
}

/* Of an operator that was captured, the library does not know which run it refuses. */
static void refuses_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, scene->work);
    void *graph = capture_plain(&l, p);
    driver->graph_launch(graph, l.stream);
    stream_sync(l.stream);
    step_meet(&scene->step, all->n, &step);
    if (rank) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_PREPARED_START;
        FAILS(fcc_prepared_enqueue(p, l.stream), -EIO, "rank 1: ", "made to fail");
    } else {
        driver->graph_launch(graph, l.stream);
    }
    over_check(&l, p, graph, -EIO, "made to fail");
    FAILS(fcc_noop(l.comm), -EIO, "rank 1: ", "the next run: ", "made to fail");
    graph_end(graph);
    lane_leave(&l);
    graphs_end(&l);
}

static void refuses(void)
{
    scene_run(PAIR, refuses_rank, ONE_STEP);
}

/* Two streams run one operator, of which one is held in the middle of its run, as the other rank does not come. */
static void clash_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, scene->work);
    void *graph = capture_plain(&l, p), *second = stream_open();
    if (rank)
        stream_gate(l.stream, &scene->open);
    else
        driver->graph_launch(graph, second);
    driver->graph_launch(graph, l.stream);
    over_check(&l, p, graph, -EINVAL, rank ? "" : "rank 0: ");
    FAILS(fcc_noop(l.comm), -EINVAL, "rank 0: ", "run 1: two of its runs were under way at a time");
    stream_close(second);
    graph_end(graph);
    lane_leave(&l);
    graphs_end(&l);
}

static void clash_open(struct scene *scene)
{
    await(&fake->runs, 1);
    (void)usleep(1000000);
    scene->open = 1;
}

static void clash(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->work = ROWS_SENT;
    ranks_start(&r, PAIR, clash_rank, scene);
    clash_open(scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- graphs that outlive what they use ---- */

static bool is_mapped(void)
{
    return driver->mappings != 0;
}

/* Replays are over, and hurt nobody who works on the same GPUs. */
static void outlive_check(const struct scene *scene, struct lane *l, int rank, int n, void *graph, void *stream)
{
    struct lane other;
    int before = fake->runs;

    for (int i = 0; i < 5; i++)
        driver->graph_launch(graph, stream);
    stream_sync(stream);
    CHECK(fake->runs == before || n > 1);
    lane_join(&other, l->context, &scene->other, n, rank, 0);
    fcc_prepared *p = prepare(&other, ONE_STEP);
    work_run(&other, ONE_STEP, p, other.stream);
    for (int i = 0; i < 5; i++)
        driver->graph_launch(graph, stream);
    work_run(&other, ONE_STEP, p, other.stream);
    stream_sync(stream);
    lane_leave(&other);
}

/* Its operator, its communicator, and its connection are gone. */
static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, 0);
    void *stream = stream_open();
    fcc_prepared *p = prepare(&l, scene->work), *q = prepare(&l, scene->work);
    driver->capture_begin();
    OK(fcc_prepared_enqueue(p, stream));
    OK(fcc_prepared_enqueue(q, stream));
    void *graph = driver->capture_end();
    driver->graph_launch(graph, stream);
    stream_sync(stream);
    step_meet(&scene->step, all->n, &step);
    fcc_prepared_free(p);
    step_meet(&scene->step, all->n, &step); /* now no rank's p begins any more, and q is the communicator's */
    lane_leave(&l);
    CHECK(is_mapped());
    outlive_check(scene, &l, rank, all->n, graph, stream);
    CHECK(is_mapped());
    fcc_disconnect(l.context);
    CHECK(is_mapped());
    driver->graph_launch(graph, stream);
    stream_close(stream);
    graph_end(graph);
    CHECK(is_mapped()); /* the end of a graph calls no driver */
    l.context = client_connect(NULL);
    lane_join(&l, l.context, &scene->last, all->n, rank, 0);
    lane_works(&l);
    lane_leave(&l);
    graphs_end(&l);
}

static void outlives(void)
{
    scene_run(PAIR, outlive_rank, ONE_STEP);
}

static void outlives_of_rows(void)
{
    scene_run(PAIR, outlive_rank, ROWS_SENT);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"replayed", replayed, 0},
        {"replayed_of_three", replayed_of_three, 0},
        {"replayed_in_two_steps", replayed_in_two_steps, 0},
        {"replayed_rows", replayed_rows, 0},
        {"replayed_by_one", replayed_by_one, 0},
        {"replayed_noops", replayed_noops, 0},
        {"refused", refused, 0},
        {"beside", beside, 0},
        {"stops", stops, 0},
        {"stops_for_rows", stops_for_rows, 0},
        {"refuses", refuses, 0},
        {"clash", clash, 0},
        {"outlives", outlives, 0},
        {"outlives_of_rows", outlives_of_rows, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_graphs", TESTS(tests));
}
