/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rings_ends.c - collectives that the ranks launch themselves on fake GPUs: ranks that do not come, die, give up or cannot
 * launch.
 */
#include "tests/fake_gpu/fake_gpu_own.h"

enum { LATE_US = 200000 }; /* until a store of the worker's reaches a GPU, where it is to be late */

struct scene {
    _Atomic int step, open;
    bool captured; /* runs are replays */
    bool worker;   /* the worker dies, not a rank */
};

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), bool captured)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->captured = captured;
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* A sum, in a graph if `captured`. */
static void *sum_make(const struct rank *r, bool captured)
{
    if (!captured)
        return NULL;
    driver->capture_begin();
    OK(sum_enqueue(r, MANY));
    return driver->capture_end();
}

static void sum_begin(const struct rank *r, void *graph)
{
    if (graph)
        driver->graph_launch(graph, r->stream);
    else
        OK(sum_enqueue(r, MANY));
}

/* The communicator has ended, stays so, and whatever comes on the stream is over before it has begun. */
static void over_check(struct rank *r, void *graph, int status, const char *says)
{
    stream_over(r->comm, r->stream, graph);
    FAILS(sum_enqueue(r, FEW), status, says);
    FAILS(fcc_refuse_enqueue(r->comm, "all_reduce", "why", r->stream), status, says);
    FAILS(fcc_noop(r->comm), status, says);
    FAILS(fcc_collectives_prepare(r->comm), status, says);
    if (graph)
        driver->graph_destroy(graph);
}

/* ---- a rank does not come; it gives up; its process ends ---- */

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, hang_limit_ms());

    OK(fcc_collectives_prepare(r.comm));
    void *graph = sum_make(&r, scene->captured);
    sum_begin(&r, graph);
    stream_sync(r.stream);
    step_meet(&scene->step, all->n, &step);
    const char *says = "all_reduce, prepared as 1, run 2: rank 0 did not come within the time limit";
    if (rank) {
        sum_begin(&r, graph);
        cut_check(r.comm, r.stream, -ETIMEDOUT, says);
    }
    step_meet(&scene->step, all->n, &step); /* a replay of rank 0 might still find the others in their runs (beside_rank()) */
    over_check(&r, graph, -ETIMEDOUT, says);
    own_close(&r, context);
}

static void late(void)
{
    scene_run(GPUS, late_rank, false);
}

static void late_to_a_replay(void)
{
    scene_run(GPUS, late_rank, true);
}

/* Rank 0 captures and replays what the others call: that is one run. What it has captured and does not replay, it has not called: the limit ends
 * it, for all. */
static void captures_alone_rank(int rank, const struct ranks *all, void *argument)
{
    const char *says = "all_reduce, prepared as 1, run 4: rank 0 did not come within the time limit";
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, hang_limit_ms());

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    void *graph = sum_make(&r, rank == 0);
    for (int i = 1; i < 4; i++) {
        sum_inputs(&r, MANY, (float)i);
        sum_begin(&r, graph);
        sum_check(&r, MANY, ranks_sum(&r, (float)i));
    }
    if (rank)
        OK(sum_enqueue(&r, MANY));
    else
        driver->graph_destroy(sum_make(&r, true));
    if (rank)
        cut_check(r.comm, r.stream, -ETIMEDOUT, says);
    over_check(&r, NULL, -ETIMEDOUT, says);
    if (graph)
        driver->graph_destroy(graph);
    own_close(&r, context);
}

static void captures_alone(void)
{
    scene_run(GPUS, captures_alone_rank, false);
}

/* The status word comes before the words that end kernels have reached each GPU. A replay of rank 0 meanwhile, for which the others have
 * waited, is all ranks' run as any other, whose results are right and which is no error; or the end cuts it, and is told. On each rank it is
 * one of the two, and then all is over. */
static void beside_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, hang_limit_ms());

    OK(fcc_collectives_prepare(r.comm));
    void *graph = sum_make(&r, true);
    sum_inputs(&r, MANY, 2);
    sum_begin(&r, graph);
    sum_check(&r, MANY, ranks_sum(&r, 2));
    sum_inputs(&r, MANY, 3);
    step_meet(&scene->step, all->n, &step);
    fake->store_us = LATE_US;
    if (rank == 0)
        status_await(r.comm);
    sum_begin(&r, graph);
    stream_sync(r.stream);
    const char *says = "all_reduce, prepared as 1, run 2: rank 0 did not come within the time limit";
    if (fcc_comm_error_wait(r.comm, -1))
        FAILS(fcc_noop(r.comm), -ETIMEDOUT, says);
    else
        sum_check(&r, MANY, ranks_sum(&r, 3));
    step_meet(&scene->step, all->n, &step);
    over_check(&r, graph, -ETIMEDOUT, says);
    own_close(&r, context);
}

static void replay_beside_the_end(void)
{
    scene_run(GPUS, beside_rank, true);
}

static void aborts_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    void *graph = sum_make(&r, scene->captured);
    if (rank) {
        sum_begin(&r, graph);
        cut_check(r.comm, r.stream, -ECONNABORTED, "the loss is not a number");
    } else {
        await(&fake->runs, all->n - 1);
        OK(fcc_comm_abort(r.comm, "the loss is not a number"));
    }
    step_meet(&scene->step, all->n, &step); /* as in late_rank() */
    over_check(&r, graph, -ECONNABORTED, "the loss is not a number");
    own_close(&r, context);
}

static void aborted(void)
{
    scene_run(GPUS, aborts_rank, false);
}

static void replay_aborted(void)
{
    scene_run(GPUS, aborts_rank, true);
}

/* Rank 0 calls what fccd launches, the others what ranks launch, so that all wait. All hear of the limit. */
static void apart_rank(int rank, const struct ranks *all, void *argument)
{
    const char *says = "did not come within the time limit";
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, hang_limit_ms());

    (void)argument;
    sum_works(&r, FEW, 2);
    if (rank)
        OK(sum_enqueue(&r, FEW));
    else
        OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
    stream_sync(r.stream);
    FAILS(fcc_comm_error_wait(r.comm, -1), -ETIMEDOUT, says, "; rank 0 waits in noop, which fccd launches",
          "; rank 1 waits in all_reduce, run 2, which it has launched itself");
    over_check(&r, NULL, -ETIMEDOUT, says);
    own_close(&r, context);
}

static void apart(void)
{
    scene_run(GPUS, apart_rank, false);
}

/* A run that comes when all is over, though this process has not heard of that, is over at once. The program hears of it then. */
static void late_to_the_end_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    sum_works(&r, FEW, 2);
    if (rank) {
        stream_gate(r.stream, &scene->open);
        OK(sum_enqueue(&r, FEW));
        scene->step++;
        status_await(r.comm);
        scene->open = 1;
        cut_check(r.comm, r.stream, -ECONNABORTED, "the loss is not a number");
    } else {
        await(&scene->step, all->n - 1);
        OK(fcc_comm_abort(r.comm, "the loss is not a number"));
    }
    over_check(&r, NULL, -ECONNABORTED, "the loss is not a number");
    own_close(&r, context);
}

static void late_to_the_end(void)
{
    scene_run(PAIR, late_to_the_end_rank, false);
}

/* The last rank's process ends, or the worker does, while the others wait in run 2. */
static void dies_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    void *graph = sum_make(&r, scene->captured);
    sum_begin(&r, graph);
    stream_sync(r.stream);
    step_meet(&scene->step, all->n, &step);
    if (rank < all->n - 1)
        sum_begin(&r, graph);
    else if (!scene->worker)
        (void)pause();
    if (scene->worker)
        over_check(&r, graph, -ECONNRESET, "the worker of job");
    else
        over_check(&r, graph, -ECONNABORTED, "rank 2");
    own_close(&r, context);
}

static void dies(bool captured, bool worker)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->captured = captured;
    scene->worker = worker;
    ranks_start(&r, GPUS, dies_rank, scene);
    await(&fake->runs, GPUS + GPUS - 1);
    CHECK(kill(worker ? daemon_worker(&d) : r.pid[GPUS - 1], SIGKILL) == 0);
    if (!worker) {
        CHECK(WIFSIGNALED(rank_wait(&r, GPUS - 1)));
        fake->prepared--; /* its rings went with its process */
    }
    ranks_join(&r);
    CHECK(fake->prepared == 0 && fake->wrong == 0);
    if (!worker) {
        fake_stop(&d);
        return;
    }
    CHECK(daemon_logged(&d, "died: Killed", 5000));
    daemon_stop_unclean(&d); /* the log has the error that was wanted */
}

static void one_dies(void)
{
    dies(false, false);
}

static void one_dies_in_a_replay(void)
{
    dies(true, false);
}

static void worker_dies(void)
{
    dies(false, true);
}

static void worker_dies_in_a_replay(void)
{
    dies(true, true);
}

/* ---- what cannot be launched ---- */

/* A kernel that was not launched is no run. The program may try again; if it does not, the others hear why. */
static void fails_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    for (int again = 1; again >= 0; again--) {
        step_meet(&scene->step, all->n, &step);
        if (rank == 0) {
            fake->fail_gpu = 0;
            fake->fail = FAKE_PREPARED_START;
            FAILS(sum_enqueue(&r, FEW), -EIO, "rank 0: ", "launching a collective: made to fail");
        }
        if (again)
            sum_works(&r, FEW, 7);
        else if (rank)
            OK(sum_enqueue(&r, FEW));
    }
    status_await(r.comm);
    over_check(&r, NULL, -EIO, "rank 0: a collective, prepared as 1, the next run: ");
    FAILS(fcc_noop(r.comm), -EIO, "launching a collective: made to fail");
    own_close(&r, context);
}

static void launch_fails(void)
{
    scene_run(GPUS, fails_rank, false);
}

/* One rank's plug-in cannot open the rings: no rank has them, and all may ask again. */
static void open_fails_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    if (rank == 0) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_PREPARED_OPEN;
    }
    step_meet(&scene->step, all->n, &step);
    FAILS(fcc_collectives_prepare(r.comm), -EIO, "rank 1: ", "made to fail");
    step_meet(&scene->step, all->n, &step);
    CHECK(fake->prepared == 0);
    step_meet(&scene->step, all->n, &step);
    sum_works(&r, MANY, 2);
    own_close(&r, context);
}

static void open_fails(void)
{
    scene_run(GPUS, open_fails_rank, false);
}

/* Two streams that no order binds: a run begins while one is under way. */
static void clash_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    void *own = r.stream, *second = stream_open();

    OK(fcc_collectives_prepare(r.comm));
    if (rank) {
        stream_gate(r.stream, &scene->open);
        OK(sum_enqueue(&r, FEW));
    } else {
        OK(sum_enqueue(&r, FEW));
        await(&fake->runs, 1);
        r.stream = second;
        OK(sum_enqueue(&r, FEW));
        r.stream = own;
    }
    status_await(r.comm);
    scene->open = 1;
    over_check(&r, NULL, -EINVAL, "rank 0: all_reduce, prepared as 1, run 2: two of its runs were under way at a time");
    stream_close(second);
    own_close(&r, context);
}

static void clash(void)
{
    scene_run(PAIR, clash_rank, false);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"late", late, 60},
                                        {"late_to_a_replay", late_to_a_replay, 60},
                                        {"captures_alone", captures_alone, 60},
                                        {"replay_beside_the_end", replay_beside_the_end, 60},
                                        {"aborted", aborted, 60},
                                        {"replay_aborted", replay_aborted, 60},
                                        {"apart", apart, 60},
                                        {"late_to_the_end", late_to_the_end, 60},
                                        {"one_dies", one_dies, 60},
                                        {"one_dies_in_a_replay", one_dies_in_a_replay, 60},
                                        {"worker_dies", worker_dies, 60},
                                        {"worker_dies_in_a_replay", worker_dies_in_a_replay, 60},
                                        {"launch_fails", launch_fails, 60},
                                        {"open_fails", open_fails, 60},
                                        {"clash", clash, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rings_ends", TESTS(tests));
}
