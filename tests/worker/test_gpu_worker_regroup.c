/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_regroup.c - fcc_comm_shrink() of ranks on fake GPUs: after a rank's death those that are left go on with their buffers, and what
 * they had prepared, captured or bound before is over at once. Cpu devices, two nodes and who is left are in tests/comms/test_regroup.c.
 */
#include "tests/fake_gpu/fake_gpu_repeated.h"

struct scene {
    enum work work;
    int victim;
    _Atomic int step, ready;
};

/* The ranks that are left have other numbers, and so other inputs from now on. */
static void lane_take(struct lane *l, fcc_comm *left)
{
    l->comm = left;
    l->rank = fcc_comm_rank(left);
    l->n = fcc_comm_size(left);
    for (int r = 0; r < l->n; r++)
        l->send[r] = lane_rows(l->rank, r);
    inputs_fill(l);
}

/* What was of the old communicator is over, and holds no stream. */
static void old_over(fcc_comm *old, fcc_prepared *p, void *graph, void *stream)
{
    for (int i = 0; i < 3; i++)
        driver->graph_launch(graph, stream);
    stream_sync(stream);
    FAILS(fcc_prepared_enqueue(p, stream), -ECONNABORTED);
    FAILS(fcc_noop(old), -ECONNABORTED);
    OK(fcc_noop_enqueue(old, stream, NULL)); /* which passes the stream by */
    stream_sync(stream);
    FAILS(fcc_comm_error(old), -ECONNABORTED);
}

static void left_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    fcc_comm *left, *old;
    float kept;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, scene->work);
    driver->capture_begin();
    OK(fcc_prepared_enqueue(p, l.stream));
    void *graph = driver->capture_end();
    for (int i = 0; i < 5; i++)
        driver->graph_launch(graph, l.stream);
    sum_runs(&l, UNTIL + 20); /* until the ranks launch them */
    all_well(&l);
    step_meet(&scene->step, all->n, &step);
    scene->ready++;
    if (rank == scene->victim)
        for (;;)
            (void)pause();
    driver->graph_launch(graph, l.stream); /* it waits for the victim, and so does what stands behind it */
    stream_sync(l.stream);
    old = l.comm;
    OK(fcc_comm_shrink(old, NULL, 0, &left));
    CHECK(fcc_comm_size(left) == all->n - 1 && fcc_comm_rank(left) == rank - (rank > scene->victim));
    CHECK(fcc_comm_device_kind(left) == FCC_DEVICE_CUDA && fcc_comm_device(left) == fcc_comm_device(old));
    OK(fcc_buffer_read(l.left, X_AT * sizeof(float), &kept, sizeof(kept)));
    CHECK(kept == x_value(0, rank));
    lane_take(&l, left);
    sum_runs(&l, 3);
    stream_sync(l.stream);
    old_over(old, p, graph, l.stream);
    fcc_prepared_free(p);
    fcc_comm_destroy(old);
    sum_runs(&l, UNTIL + MORE); /* bound again */
    lane_works(&l);
    driver->graph_launch(graph, l.stream);
    all_well(&l);
    driver->graph_destroy(graph);
    lane_leave(&l);
    CHECK(driver->graphs == 0 && driver->objects == 0);
    client_end(l.context);
}

static void left_of(enum work work, int victim)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    *scene = (struct scene){.work = work, .victim = victim};
    fake_start(&d, GPUS, NULL);
    ranks_start(&r, GPUS, left_rank, scene);
    await(&scene->ready, GPUS);
    (void)usleep(20000);
    CHECK(!kill(r.pid[victim], SIGKILL) && WIFSIGNALED(rank_wait(&r, victim)));
    fake->prepared -= 2; /* what it had prepared, and what was bound for it */
    ranks_join(&r);
    fake_stop(&d);
}

static void last_dies(void)
{
    left_of(ONE_STEP, 2);
}

static void first_dies(void)
{
    left_of(ONE_STEP, 0);
}

static void one_dies_of_rows(void)
{
    left_of(ROWS_SENT, 1);
}

/* A group's captured operator has inputs of the whole communicator, and the group goes first, with and without its graph. */
static void inputs_rank(int rank, const struct ranks *all, void *argument)
{
    const bool outlives = *(const bool *)argument;
    struct fcc_gemv_all_reduce_args args;
    fcc_comm *group;
    fcc_prepared *p;
    fcc_buffer *y;
    struct lane l;

    lane_open(&l, all, rank, 0);
    OK(fcc_comm_split(l.comm, 0, rank, NULL, &group));
    OK(fcc_buffer_alloc(group, FCC_BUFFER_SYMMETRIC, OUT_FLOATS * sizeof(float), &y));
    args = gemv_args(&l, ONE_STEP);
    args.y = fcc_tensor_2d(y, Y_AT * sizeof(float), FCC_F32, 2, LANE_N);
    OK(fcc_gemv_all_reduce_prepare(group, &args, &p));
    driver->capture_begin();
    OK(fcc_prepared_enqueue(p, l.stream));
    void *graph = driver->capture_end();
    driver->graph_launch(graph, l.stream);
    stream_sync(l.stream);
    if (!outlives)
        driver->graph_destroy(graph);
    fcc_comm_destroy(group);
    lane_works(&l);
    if (outlives)
        driver->graph_destroy(graph);
    lane_close(&l);
}

static void group_goes_first(void)
{
    fake_ranks_run(PAIR, inputs_rank, &(bool){false});
}

static void group_goes_before_its_graph(void)
{
    fake_ranks_run(PAIR, inputs_rank, &(bool){true});
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"last_dies", last_dies, 0},
                                        {"first_dies", first_dies, 0},
                                        {"one_dies_of_rows", one_dies_of_rows, 0},
                                        {"group_goes_first", group_goes_first, 0},
                                        {"group_goes_before_its_graph", group_goes_before_its_graph, 0}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_regroup", TESTS(tests));
}
