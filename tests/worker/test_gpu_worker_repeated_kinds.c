/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_repeated_kinds.c - which operators are bound when they are repeated (test_gpu_worker_repeated.c): rows that ranks store into each other's results,
 * noops, and several kinds side by side.
 */
#include "tests/fake_gpu/fake_gpu_repeated.h"

struct scene {
    _Atomic int step;
    _Atomic int come[GPUS]; /* noops to which the rank's stream has come */
};

static struct scene *scene;

static void run(int n, void (*rank)(int, const struct ranks *, void *))
{
    struct test_daemon d;

    scene = shared_memory(sizeof(*scene));
    fake_start(&d, GPUS, NULL);
    ranks_all(n, rank);
    CHECK(fake->bound >= MORE * n && fake->recalled == 0);
    fake_stop(&d);
}

static void rows_run(struct lane *l, fcc_request **out)
{
    struct fcc_gemm_all_to_all_args args = gemm_args(l);

    if (!out)
        args.recv_rows = NULL;
    CHECK(gpu.stream_function(l->stream, result_wipe, &l->results[ROWS_SENT]) == 0);
    OK(fcc_gemm_all_to_all_enqueue(l->comm, &args, l->stream, out));
    CHECK(gpu.stream_function(l->stream, sum_check, &l->results[ROWS_SENT]) == 0);
}

static void rows_runs(struct lane *l, int n)
{
    for (int i = 0; i < n; i++)
        rows_run(l, NULL);
}

/* ---- rows ---- */

static void rows_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    rows_runs(&l, UNTIL + MORE);
    all_well(&l);
    lane_close(&l);
}

static void rows(void)
{
    run(PAIR, rows_rank);
}

static void rows_of_three(void)
{
    run(GPUS, rows_rank);
}

/* Other numbers of rows are another kind. */
static void splits_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < 2 * (UNTIL + MORE); i++) {
        struct fcc_gemm_all_to_all_args args = gemm_args(&l);
        const int64_t none[GPUS] = {0};
        args.a.shape[0] = args.c.shape[0] = 0;
        args.send_rows = none;
        args.recv_rows = NULL;
        if (i % 2)
            OK(fcc_gemm_all_to_all_enqueue(l.comm, &args, l.stream, NULL));
        else
            rows_run(&l, NULL);
    }
    all_well(&l);
    lane_close(&l);
}

static void splits(void)
{
    run(PAIR, splits_rank);
}

/* What was bound stored into a buffer that is no more; with another one it begins anew. */
static void freed_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;
    int step = 0;

    (void)argument;
    lane_open(&l, all, rank, 0);
    rows_runs(&l, UNTIL + MORE);
    all_well(&l);
    for (int i = 0; i < 3; i++) {
        step_meet(&scene->step, all->n, &step);
        int memories = fake->memories;
        step_meet(&scene->step, all->n, &step);
        fcc_buffer_free(l.out);
        step_meet(&scene->step, all->n, &step);
        CHECK(fake->memories == memories - 2 * all->n); /* each result, and each rank's area */
        step_meet(&scene->step, all->n, &step);
        int bound = fake->bound;
        OK(fcc_buffer_alloc(l.comm, FCC_BUFFER_SYMMETRIC, OUT_FLOATS * sizeof(float), &l.out));
        rows_runs(&l, UNTIL + MORE);
        all_well(&l);
        CHECK(fake->bound > bound);
    }
    lane_close(&l);
}

static void result_freed(void)
{
    run(PAIR, freed_rank);
}

/* One rank's alone: what is bound ends, and is bound anew with that rank's other buffer. */
static void freed_by_one_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;
    int step = 0;

    (void)argument;
    lane_open(&l, all, rank, 0);
    fcc_buffer *first = l.out;
    rows_runs(&l, UNTIL + MORE);
    all_well(&l);
    int bound = fake->bound;
    step_meet(&scene->step, all->n, &step);
    OK(fcc_buffer_alloc(l.comm, FCC_BUFFER_SYMMETRIC, OUT_FLOATS * sizeof(float), &l.out));
    if (rank == 0)
        fcc_buffer_free(first);
    else
        l.out = first;
    rows_runs(&l, UNTIL + MORE);
    all_well(&l);
    CHECK(fake->bound > bound);
    lane_close(&l);
}

static void freed_by_one(void)
{
    scene = shared_memory(sizeof(*scene));
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(PAIR, freed_by_one_rank);
    fake_stop(&d);
}

/* What was asked for and then does not come again does not keep others from being bound. */
static void given_up_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < 16; i++) { /* the last one is asked for */
        sum_runs(&l, 1);
        all_well(&l);
    }
    rows_runs(&l, 256 + 2 * UNTIL + MORE); /* launcher.c gives up after 256 */
    all_well(&l);
    lane_close(&l);
}

static void given_up(void)
{
    run(PAIR, given_up_rank);
}

/* ---- some ranks only ---- */

/* What rank 1 does differently from time to time, of which rank 0 cannot know. */
enum { STRIDE, NO_STREAM, WAYS };

static void differs_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;
    int step = 0;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int way = 0; way < WAYS; way++) {
        sum_runs(&l, UNTIL + MORE);
        all_well(&l);
        int bound = fake->bound;
        step_meet(&scene->step, all->n, &step);
        for (int i = 0; i < 8; i++) {
            struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP);
            args.schedule = FCC_SCHEDULE_FUSED;
            args.x.stride[0] = args.x.shape[1] + (way == STRIDE); /* of its only row */
            args.x.stride[1] = 1;
            if (rank != 1 || i % 4 != 3)
                sum_run(&l, FCC_SCHEDULE_FUSED, l.stream, NULL);
            else if (way == STRIDE)
                OK(fcc_gemv_all_reduce_enqueue(l.comm, &args, l.stream, NULL));
            else
                OK(fcc_gemv_all_reduce(l.comm, &args));
            sum_run(&l, FCC_SCHEDULE_FUSED, l.stream, NULL);
        }
        all_well(&l);
        CHECK(fake->bound >= bound);
        step_meet(&scene->step, all->n, &step);
        CHECK(fake->recalled > way);
    }
    lane_close(&l);
}

static void one_differs(void)
{
    struct test_daemon d;

    scene = shared_memory(sizeof(*scene));
    fake_start(&d, GPUS, NULL);
    ranks_all(PAIR, differs_rank);
    CHECK(fake->bound >= MORE * PAIR && fake->recalled > WAYS);
    fake_stop(&d);
}

/* ---- noops ---- */

static int self; /* this process's rank */

static void come(void *ignored)
{
    (void)ignored;
    (void)atomic_fetch_add(&scene->come[self], 1);
}

/* Behind a noop to which this rank's stream has come, the others' have come to it, too. */
static void have_come(void *lane)
{
    const struct lane *l = lane;

    for (int r = 0; r < l->n; r++)
        CHECK(scene->come[r] >= scene->come[self]);
}

static void noops_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    self = rank;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < UNTIL + MORE; i++) {
        CHECK(gpu.stream_function(l.stream, come, NULL) == 0);
        OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
        CHECK(gpu.stream_function(l.stream, have_come, &l) == 0);
    }
    all_well(&l);
    lane_close(&l);
}

static void noops(void)
{
    run(PAIR, noops_rank);
}

static void noops_of_three(void)
{
    run(GPUS, noops_rank);
}

static void noops_of_one(void)
{
    run(1, noops_rank);
}

/* ---- side by side ---- */

static void kinds_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < UNTIL + test_rounds(300); i++) {
        fcc_request *requests[3] = {NULL};
        bool attends = i >= UNTIL && (i + rank) % 7 == 0;
        sum_run(&l, FCC_SCHEDULE_AUTO, l.stream, attends ? &requests[i % 3] : NULL);
        OK(fcc_noop_enqueue(l.comm, l.stream, attends && i % 3 == 1 ? &requests[0] : NULL));
        rows_run(&l, attends && i % 3 == 2 ? &requests[1] : NULL);
        for (int j = 0; j < 3; j++) {
            if (requests[j])
                OK(fcc_request_wait(requests[j], -1));
            fcc_request_free(requests[j]);
        }
    }
    all_well(&l);
    lane_close(&l);
}

static void kinds(void)
{
    run(PAIR, kinds_rank);
}

static void kinds_of_three(void)
{
    run(GPUS, kinds_rank);
}

/* A program can have as many prepared operators as it is told, whatever is bound beside. */
static void prepared_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_prepared *p[FCC_PREPARED_MAX];
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    rows_runs(&l, UNTIL + MORE);
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        p[i] = prepare(&l, i % 2 ? ONE_STEP : ROWS_SENT);
    for (int i = 0; i < FCC_PREPARED_MAX; i++) {
        work_run(&l, i % 2 ? ONE_STEP : ROWS_SENT, p[i], l.stream);
        rows_runs(&l, 1);
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        fcc_prepared_free(p[i]);
    all_well(&l);
    lane_close(&l);
}

static void beside_prepared(void)
{
    run(PAIR, prepared_rank);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"rows", rows, 0},
        {"rows_of_three", rows_of_three, 0},
        {"splits", splits, 0},
        {"result_freed", result_freed, 0},
        {"freed_by_one", freed_by_one, 0},
        {"given_up", given_up, 0},
        {"one_differs", one_differs, 0},
        {"noops", noops, 0},
        {"noops_of_three", noops_of_three, 0},
        {"noops_of_one", noops_of_one, 0},
        {"kinds", kinds, 0},
        {"kinds_of_three", kinds_of_three, 0},
        {"beside_prepared", beside_prepared, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_repeated_kinds", TESTS(tests));
}
