/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_repeated.c - operators that come to a stream again and again, which the ranks' own processes put there though the program
 * has prepared nothing (client/stream/repeated.c, daemon/worker/comm/bound/launcher.c): with the real daemon and the real library on fake GPUs. A fake GPU
 * computes what is launched by a client, and nothing else, so a result is untouched or right. What kinds of
 * operators there are is in test_gpu_worker_repeated_kinds.c, what goes wrong in test_gpu_worker_repeated_ends.c, real GPUs in test_gpu_repeated.c.
 */
#include "tests/fake_gpu/fake_gpu_repeated.h"

struct scene {
    struct fcc_unique_id second;
    _Atomic int step, open, heard;
    _Atomic int last; /* operator of the ranks; 0: not known yet */
};

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), const char *const options[])
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, options);
    scene->second = id_make();
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- it goes well ---- */

static void row_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    sum_runs(&l, UNTIL + MORE);
    all_well(&l);
    lane_close(&l);
}

static void row_of(int n)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(n, row_rank);
    CHECK(fake->bound >= MORE * n && fake->recalled == 0);
    fake_stop(&d);
}

static void in_a_row(void)
{
    row_of(PAIR);
}

static void in_a_row_of_three(void)
{
    row_of(GPUS);
}

static void in_a_row_of_one(void)
{
    row_of(1);
}

/* Between others: what the worker runs, on the stream and not, now somebody attends to it, and some in a group; the ranks do not do the same,
 * except that they call the same operators. */
static void mixed_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    struct product other = fused_open(l.comm);
    sum_runs(&l, UNTIL);
    for (int i = 0; i < test_rounds(400); i++) {
        fcc_request *request = NULL;
        bool attends = (i + rank) % 11 == 0, groups = (i + rank) % 5 == 0;
        if (groups)
            fcc_group_begin();
        if (i % 3 == 0)
            product_enqueue(&other, l.stream, NULL);
        sum_run(&l, FCC_SCHEDULE_FUSED, l.stream, attends ? &request : NULL);
        if (i % 2 == 0)
            OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
        if (groups)
            OK(fcc_group_end());
        if (attends)
            OK(fcc_request_wait(request, -1));
        fcc_request_free(request);
        if (i % 50 == 49)
            OK(fcc_noop(l.comm));
    }
    all_well(&l);
    lane_close(&l);
}

static void mixed(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(PAIR, mixed_rank);
    CHECK(fake->bound > 0 && fake->recalled == 0);
    fake_stop(&d);
}

/* Which schedule is the better one is measured before anything is bound. */
static void automatic_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < UNTIL + 4 * MORE; i++)
        sum_run(&l, FCC_SCHEDULE_AUTO, l.stream, NULL);
    all_well(&l);
    lane_close(&l);
}

static void automatic(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(PAIR, automatic_rank);
    CHECK(fake->bound >= MORE * PAIR && fake->recalled == 0);
    fake_stop(&d);
}

/* What fccctl says of the operators that ranks have launched. */
static int launched_by_ranks(void)
{
    static char text[1 << 16];

    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"comms", NULL}) == 0);
    const char *words = strstr(text, " of them launched by its ranks"), *digits = words;
    while (digits && digits > text && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    return digits ? atoi(digits) : 0;
}

/* Streams stand still with more runs than the worker counts as running at a time. */
static void far_ahead_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct lane l;

    lane_open(&l, all, rank, 0);
    sum_runs(&l, UNTIL + MORE);
    all_well(&l);
    scene->step++;
    await(&scene->heard, 1);
    stream_gate(l.stream, &scene->open);
    sum_runs(&l, 3 * BOUND_AHEAD);
    scene->step++;
    all_well(&l);
    lane_close(&l);
}

static void far_ahead(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, far_ahead_rank, scene);
    await(&scene->step, PAIR);
    int before = launched_by_ranks(), now;
    CHECK(before >= MORE);
    scene->heard = 1;
    await(&scene->step, 2 * PAIR);
    for (double until = await_end(); (now = launched_by_ranks()) < before + BOUND_AHEAD;)
        AWAITING(until);
    CHECK(now == before + BOUND_AHEAD && launched_by_ranks() == now);
    scene->open = 1;
    ranks_join(&r);
    CHECK(fake->recalled == 0);
    fake_stop(&d);
}

/* A run waits for the operator before on whichever stream that is, and so does an operator of the worker's behind a run. */
static void streams_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    void *second = stream_open();
    struct product other = fused_open(l.comm);
    for (int i = 0; i < 2 * UNTIL + MORE; i++) {
        sum_run(&l, FCC_SCHEDULE_FUSED, l.stream, NULL);
        OK(fcc_noop_enqueue(l.comm, second, NULL));
        if (i % 7 == 0)
            product_enqueue(&other, second, NULL);
    }
    stream_sync(second);
    all_well(&l);
    stream_close(second);
    lane_close(&l);
}

static void two_streams(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(PAIR, streams_rank);
    CHECK(fake->bound >= MORE * PAIR && fake->recalled == 0);
    fake_stop(&d);
}

/* ---- none is bound ---- */

static void together(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, (const char *const[]){"--gpu-begin", "together", NULL});
    ranks_all(PAIR, row_rank);
    CHECK(fake->bound == 0 && fake->recalled == 0);
    fake_stop(&d);
}

/* One rank cannot load or open it: the worker runs them all. */
static void unopened(void)
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    fake->fail_gpu = 1;
    fake->fail = FAKE_PREPARED_OPEN;
    ranks_all(PAIR, row_rank);
    CHECK(fake->fail == FAKE_NONE && fake->bound == 0);
    fake_stop(&d);
}

/* ---- others want the GPUs, or the times ---- */

/* While there is another communicator the worker launches them; without it they are bound again. */
static void second_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct lane l, other;
    int step = 0, bound;

    lane_open(&l, all, rank, 0);
    sum_runs(&l, UNTIL);
    all_well(&l);
    lane_join(&other, l.context, &scene->second, all->n, rank, 0);
    step_meet(&scene->step, all->n, &step);
    bound = fake->bound;
    CHECK(bound > 0);
    for (int i = 0; i < 32; i++) {
        sum_runs(&l, 1);
        OK(fcc_noop_enqueue(other.comm, other.stream, NULL));
    }
    all_well(&l);
    CHECK(fake->bound == bound);
    step_meet(&scene->step, all->n, &step);
    lane_leave(&other);
    step_meet(&scene->step, all->n, &step);
    sum_runs(&l, UNTIL);
    all_well(&l);
    CHECK(fake->bound > bound);
    lane_close(&l);
}

static void another_communicator(void)
{
    scene_run(PAIR, second_rank, NULL);
}

static void traced_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    struct lane l;

    lane_open(&l, all, rank, 0);
    sum_runs(&l, UNTIL);
    all_well(&l);
    scene->step++;
    for (int i = 1; !scene->last || i <= scene->last; i++) {
        if (rank == 0 && scene->open && !scene->last)
            scene->last = i + 1; /* the other one cannot have finished this one */
        sum_runs(&l, 1);
        stream_sync(l.stream);
    }
    all_well(&l);
    lane_close(&l);
}

static void traced(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;
    static char text[1 << 20];

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, traced_rank, scene);
    await(&scene->step, PAIR);
    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"trace", "--next", "--json", NULL}) == 0 &&
          strstr(text, "gemv_all_reduce"));
    CHECK(launched_by_ranks() > 0);
    scene->open = 1;
    ranks_join(&r);
    CHECK(fake->bound > 0);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"in_a_row", in_a_row, 0},
        {"in_a_row_of_three", in_a_row_of_three, 0},
        {"in_a_row_of_one", in_a_row_of_one, 0},
        {"mixed", mixed, 0},
        {"automatic", automatic, 0},
        {"far_ahead", far_ahead, 0},
        {"two_streams", two_streams, 0},
        {"together", together, 0},
        {"unopened", unopened, 0},
        {"another_communicator", another_communicator, 0},
        {"traced", traced, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_repeated", TESTS(tests));
}
