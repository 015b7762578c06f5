/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_pieces_ends.c - gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm that the ranks launch themselves on fake GPUs, of which some do not
 * come, give up or die: runs and replays end, and say who and why.
 */
#include "tests/fake_gpu/fake_gpu_pieces.h"

struct scene {
    _Atomic int step;
    enum kind kind;
    uint32_t schedule;
    bool captured; /* runs are replays */
};

/* Each operator, in pieces and in sequence, and in graphs or not, by turns. */
static void scenes_run(int n, void (*rank)(int, const struct ranks *, void *))
{
    static const uint32_t schedules[] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL};
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int i = 0; i < 2 * KINDS; i++) {
        struct scene *scene = shared_memory(sizeof(*scene));
        *scene = (struct scene){.kind = (enum kind)(i % KINDS), .schedule = schedules[i % 2], .captured = i / KINDS};
        fake->runs = 0;
        ranks_start(&r, n, rank, scene);
        ranks_join(&r);
    }
    fake_stop(&d);
}

static struct piece_case case_in(const struct rank *r, const struct scene *scene)
{
    struct piece_case c = piece_of(r, scene->kind, FCC_F32, 14, 33);

    c.schedule = scene->schedule;
    return c;
}

static void *piece_make(const struct rank *r, const struct scene *scene)
{
    const struct piece_case c = case_in(r, scene);

    if (!scene->captured)
        return NULL;
    driver->capture_begin();
    OK(piece_enqueue(r, &c, NULL));
    return driver->capture_end();
}

static void piece_begin(const struct rank *r, const struct scene *scene, void *graph)
{
    const struct piece_case c = case_in(r, scene);

    if (graph)
        driver->graph_launch(graph, r->stream);
    else
        OK(piece_enqueue(r, &c, NULL));
}

/* The communicator has ended, stays so, and whatever comes on the stream is over before it has begun. */
static void over_check(struct rank *r, const struct scene *scene, void *graph, int status, const char *says)
{
    const struct piece_case c = case_in(r, scene);

    stream_over(r->comm, r->stream, graph);
    FAILS(piece_enqueue(r, &c, NULL), status, says);
    FAILS(fcc_refuse_enqueue(r->comm, kind_names[c.kind], "why", r->stream), status, says);
    FAILS(fcc_products_prepare(r->comm), status, says);
    FAILS(fcc_noop(r->comm), status, says);
    if (graph)
        driver->graph_destroy(graph);
}

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    char says[160];
    int step = 0;
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, hang_limit_ms());

    (void)snprintf(says, sizeof(says), "%s, prepared as 1, run 2: rank 0 did not come within the time limit",
                   kind_names[scene->kind]);
    OK(fcc_products_prepare(r.comm));
    void *graph = piece_make(&r, scene);
    piece_begin(&r, scene, graph);
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    step_meet(&scene->step, all->n, &step);
    if (rank) {
        piece_begin(&r, scene, graph);
        cut_check(r.comm, r.stream, -ETIMEDOUT, says);
    }
    step_meet(&scene->step, all->n, &step); /* a replay could still come in time: the status is told before the GPUs are */
    over_check(&r, scene, graph, -ETIMEDOUT, says);
    pieces_close(&r, context);
}

static void late(void)
{
    scenes_run(PAIR, late_rank);
}

static void late_of_three(void)
{
    scenes_run(GPUS, late_rank);
}

static void aborts_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    OK(fcc_products_prepare(r.comm));
    void *graph = piece_make(&r, scene);
    if (rank) {
        piece_begin(&r, scene, graph);
        cut_check(r.comm, r.stream, -ECONNABORTED, "the loss is not a number");
    } else {
        await(&fake->runs, all->n - 1);
        OK(fcc_comm_abort(r.comm, "the loss is not a number"));
    }
    step_meet(&scene->step, all->n, &step);
    over_check(&r, scene, graph, -ECONNABORTED, "the loss is not a number");
    pieces_close(&r, context);
}

static void aborted(void)
{
    scenes_run(PAIR, aborts_rank);
}

static void aborted_of_three(void)
{
    scenes_run(GPUS, aborts_rank);
}

/* A kernel that was not launched is no run. The program may try again; if it does not, the others hear why. */
static void fails_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    OK(fcc_products_prepare(r.comm));
    for (int again = 1; again >= 0; again--) {
        struct piece_case c = case_in(&r, scene);
        step_meet(&scene->step, all->n, &step);
        if (rank == 0) {
            fake->fail_gpu = 0;
            fake->fail = FAKE_PREPARED_START;
            FAILS(piece_enqueue(&r, &c, NULL), -EIO, "rank 0: ", "launching a product: made to fail");
        }
        if (again)
            piece_works(&r, &c, 7);
        else if (rank)
            OK(piece_enqueue(&r, &c, NULL));
    }
    over_check(&r, scene, NULL, -EIO, "launching a product: made to fail");
    pieces_close(&r, context);
}

static void launch_fails(void)
{
    scenes_run(PAIR, fails_rank);
}

/* The last rank's process ends while the others wait in run 2. */
static void dies_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    OK(fcc_products_prepare(r.comm));
    void *graph = piece_make(&r, scene);
    piece_begin(&r, scene, graph);
    stream_sync(r.stream);
    step_meet(&scene->step, all->n, &step);
    if (rank == all->n - 1)
        (void)pause();
    piece_begin(&r, scene, graph);
    over_check(&r, scene, graph, -ECONNABORTED, all->n == PAIR ? "rank 1" : "rank 2");
    pieces_close(&r, context);
}

static void dies(int n, enum kind kind, uint32_t schedule, bool captured)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct ranks r;

    *scene = (struct scene){.kind = kind, .schedule = schedule, .captured = captured};
    fake->runs = 0;
    ranks_start(&r, n, dies_rank, scene);
    await(&fake->runs, n + n - 1);
    CHECK(kill(r.pid[n - 1], SIGKILL) == 0);
    CHECK(WIFSIGNALED(rank_wait(&r, n - 1)));
    fake->prepared--; /* its rings went with its process */
    ranks_join(&r);
    CHECK(fake->prepared == 0 && fake->wrong == 0);
}

static void one_dies(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    dies(PAIR, SUM, FCC_SCHEDULE_FUSED, false);
    dies(PAIR, GATHER, FCC_SCHEDULE_FUSED, false);
    dies(GPUS, SCATTER, FCC_SCHEDULE_FUSED, false);
    fake_stop(&d);
}

static void one_dies_in_a_replay(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    dies(PAIR, SCATTER, FCC_SCHEDULE_FUSED, true);
    dies(PAIR, GATHER, FCC_SCHEDULE_SEQUENTIAL, true);
    dies(GPUS, SUM, FCC_SCHEDULE_AUTO, true);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"late", late, 300},
                                        {"late_of_three", late_of_three, 300},
                                        {"aborted", aborted, 300},
                                        {"aborted_of_three", aborted_of_three, 300},
                                        {"launch_fails", launch_fails, 300},
                                        {"one_dies", one_dies, 200},
                                        {"one_dies_in_a_replay", one_dies_in_a_replay, 200}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_pieces_ends", TESTS(tests));
}
