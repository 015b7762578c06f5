/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_prepared.c - operators that are prepared by all ranks and launched by each by itself, with the real daemon and the
 * real library on fake GPUs: runs give what they should in the order of the streams, and what cannot be prepared is refused on all
 * ranks and harms nobody. How they end is in test_gpu_worker_prepared_ends.c; real GPUs are in test_gpu_prepared.c.
 */
#include "tests/fake_gpu/fake_gpu_runs.h"

struct scene {
    enum work work;
    _Atomic int step;
    struct fcc_unique_id second;
};

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), enum work work)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->work = work;
    scene->second = id_make();
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- runs ---- */

/* One behind the other, now one rank late, now another; nobody waits meanwhile. */
static void row_rank(int rank, const struct ranks *all, void *argument)
{
    const struct scene *scene = argument;
    int rounds = scene->work == TWO_STEPS ? test_rounds(40) : test_rounds(400);
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, scene->work);
    for (int i = 0; i < rounds; i++) {
        if ((i + rank) % 16 == 0)
            stream_be_late(l.stream);
        work_run(&l, scene->work, p, l.stream);
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    fcc_prepared_free(p);
    lane_close(&l);
}

static void in_a_row(void)
{
    scene_run(PAIR, row_rank, ONE_STEP);
}

static void in_a_row_of_three(void)
{
    scene_run(GPUS, row_rank, ONE_STEP);
}

static void in_two_steps(void)
{
    scene_run(PAIR, row_rank, TWO_STEPS);
}

static void rows_sent(void)
{
    scene_run(PAIR, row_rank, ROWS_SENT);
}

static void rows_sent_of_three(void)
{
    scene_run(GPUS, row_rank, ROWS_SENT);
}

/* Into memory that each rank has made by itself: one has more of it than another, and under another number. */
static void results_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < 3; i++) {
        for (int n = 0; n <= rank; n++) {
            fcc_buffer_free(l.out);
            OK(fcc_buffer_alloc(l.comm, FCC_BUFFER_RESULT, OUT_FLOATS * sizeof(float) + 4096 * (size_t)(n + i), &l.out));
        }
        lane_works(&l);
    }
    lane_close(&l);
}

static void into_results(void)
{
    scene_run(GPUS, results_rank, ONE_STEP);
}

static void of_one(void)
{
    scene_run(1, row_rank, ONE_STEP);
}

/* Several, and operators that the worker runs, and what is allocated together, in turns on one stream. */
static void mixed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_prepared *p[WORKS];
    fcc_buffer *buffer = NULL;
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    struct product other = fused_open(l.comm);
    for (int work = 0; work < WORKS; work++)
        p[work] = prepare(&l, (enum work)work);
    for (int i = 0; i < test_rounds(120); i++) {
        enum work work = i % 8 == 7 ? TWO_STEPS : i % 2 ? ROWS_SENT : ONE_STEP;
        work_run(&l, work, p[work], l.stream);
        if (i % 3 == 0)
            product_enqueue(&other, l.stream, NULL);
        if (i % 5 == 0)
            OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
        if (i % 10 == 0) {
            fcc_buffer_free(buffer);
            OK(fcc_buffer_alloc(l.comm, FCC_BUFFER_SYMMETRIC, 4096, &buffer));
        }
        if (i % 12 == 11) { /* one goes while the others run; its memory, and its place, are the next one's */
            stream_sync(l.stream);
            fcc_prepared_free(p[ONE_STEP]);
            work_run(&l, ROWS_SENT, p[ROWS_SENT], l.stream);
            p[ONE_STEP] = prepare(&l, ONE_STEP);
        }
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    OK(fcc_comm_error(l.comm));
    for (int work = 0; work < WORKS; work++)
        fcc_prepared_free(p[work]);
    fcc_prepared_free(NULL);
    lane_close(&l);
}

static void mixed(void)
{
    scene_run(PAIR, mixed_rank, ONE_STEP);
}

/* Two communicators of a context, each with a stream and a time of its own. */
static void streams_rank(int rank, const struct ranks *all, void *argument)
{
    const struct scene *scene = argument;
    struct lane first, second;

    lane_open(&first, all, rank, 0);
    lane_join(&second, first.context, &scene->second, all->n, rank, 0);
    fcc_prepared *p = prepare(&first, ONE_STEP), *q = prepare(&second, ROWS_SENT);
    for (int i = 0; i < test_rounds(200); i++)
        if ((i + rank) % 2) {
            work_run(&first, ONE_STEP, p, first.stream);
            work_run(&second, ROWS_SENT, q, second.stream);
        } else {
            work_run(&second, ROWS_SENT, q, second.stream);
            work_run(&first, ONE_STEP, p, first.stream);
        }
    stream_sync(first.stream);
    stream_sync(second.stream);
    fcc_prepared_free(p);
    fcc_prepared_free(q);
    lane_leave(&second);
    lane_close(&first);
}

static void two_streams(void)
{
    scene_run(PAIR, streams_rank, ONE_STEP);
}

/* What is not freed goes with its communicator, or with the connection. */
static void kept_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l, other;

    lane_open(&l, all, rank, 0);
    lane_join(&other, l.context, &scene->second, all->n, rank, 0);
    for (int work = 0; work < WORKS; work++) {
        work_run(&l, (enum work)work, prepare(&l, (enum work)work), l.stream);
        work_run(&other, (enum work)work, prepare(&other, (enum work)work), other.stream);
    }
    stream_close(l.stream);
    stream_close(other.stream);
    step_meet(&scene->step, all->n, &step);
    fcc_comm_destroy(l.comm);
    client_end(l.context);
}

static void kept(void)
{
    scene_run(PAIR, kept_rank, ONE_STEP);
}

/* ---- as many as there may be ---- */

static void full_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_prepared *p[FCC_PREPARED_MAX], *more;
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        p[i] = prepare(&l, i % 2 ? ROWS_SENT : ONE_STEP);
    FAILS(work_prepare(&l, ONE_STEP, &more), -ENOMEM, "rank 0", "64");
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        work_run(&l, i % 2 ? ROWS_SENT : ONE_STEP, p[i], l.stream);
    stream_sync(l.stream);
    for (int i = 0; i < FCC_PREPARED_MAX; i += 3)
        fcc_prepared_free(p[i]);
    OK(fcc_noop(l.comm)); /* by then all have */
    for (int i = 0; i < FCC_PREPARED_MAX; i += 3)
        p[i] = prepare(&l, ONE_STEP);
    FAILS(work_prepare(&l, ONE_STEP, &more), -ENOMEM, "rank 0", "64");
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        work_run(&l, i % 3 && i % 2 ? ROWS_SENT : ONE_STEP, p[i], l.stream);
    stream_sync(l.stream);
    for (int i = 0; i < FCC_PREPARED_MAX; i++)
        fcc_prepared_free(p[i]);
    lane_close(&l);
}

static void full(void)
{
    scene_run(PAIR, full_rank, ONE_STEP);
}

/* ---- what is refused, on all ranks ---- */

/* Of the ranks' requests one does not fit. */
static void differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;
    fcc_prepared *p;

    (void)argument;
    lane_open(&l, all, rank, 0);
    struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP), shorter = args, wrong = args;
    shorter.w.shape[0] = shorter.y.shape[1] = LANE_N - 8;
    wrong.x.dtype = FCC_F16; /* w is f32 */
    FAILS(fcc_gemv_all_reduce_prepare(l.comm, rank ? &shorter : &args, &p), -EINVAL,
          "gemv_all_reduce_prepare: y: shape[1]: rank 1 has 192, rank 0 has 200");
    FAILS(fcc_gemv_all_reduce_prepare(l.comm, rank ? &wrong : &args, &p), -EINVAL,
          "rank 1: gemv_all_reduce_prepare: ", "dtype");
    FAILS(work_prepare(&l, rank ? ROWS_SENT : ONE_STEP, &p), -EINVAL,
          "out of step: rank 1 calls gemm_all_to_all_prepare, rank 0 calls gemv_all_reduce_prepare");
    if (rank)
        FAILS(fcc_gemv_all_reduce(l.comm, &args), -EINVAL, "rank 1 runs gemv_all_reduce, rank 0 prepares it");
    else
        FAILS(work_prepare(&l, ONE_STEP, &p), -EINVAL, "rank 1 runs", "rank 0 prepares");
    if (rank)
        FAILS(work_prepare(&l, ONE_STEP, &p), -EINVAL, "rank 1 prepares", "rank 0 runs");
    else
        FAILS(fcc_gemv_all_reduce(l.comm, &args), -EINVAL, "rank 1 prepares", "rank 0 runs");
    if (rank)
        FAILS(fcc_noop(l.comm), -EINVAL, "rank 1 calls noop");
    else
        FAILS(work_prepare(&l, ONE_STEP, &p), -EINVAL, "rank 1 calls noop");
    FAILS(fcc_gemv_all_reduce_prepare(l.comm, &args, NULL), -EINVAL);
    FAILS(fcc_gemv_all_reduce_prepare(l.comm, NULL, &p), -EINVAL);
    FAILS(fcc_prepared_enqueue(NULL, l.stream), -EINVAL);
    lane_works(&l);
    lane_close(&l);
}

static void differ(void)
{
    scene_run(PAIR, differ_rank, ONE_STEP);
}

static void schedules_rank(int rank, const struct ranks *all, void *argument)
{
    static const uint32_t good[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
                                    FCC_SCHEDULE_SEQUENTIAL};
    struct lane l;
    fcc_prepared *p;

    (void)argument;
    lane_open(&l, all, rank, 0);
    struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP);
    struct fcc_gemm_all_to_all_args rows = gemm_args(&l);
    for (uint32_t schedule = FCC_SCHEDULE_COMPUTE_ONLY; schedule <= FCC_SCHEDULE_COMM_ONLY; schedule++) {
        args.schedule = rows.schedule = schedule;
        FAILS(fcc_gemv_all_reduce_prepare(l.comm, &args, &p), -EINVAL, "schedule", "auto, fused and sequential");
        FAILS(fcc_gemm_all_to_all_prepare(l.comm, &rows, &p), -EINVAL, "schedule", "auto, fused and sequential");
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        args.schedule = good[i];
        OK(fcc_gemv_all_reduce_prepare(l.comm, &args, &p));
        work_run(&l, ONE_STEP, p, l.stream);
        stream_sync(l.stream);
        fcc_prepared_free(p);
    }
    rows.schedule = FCC_SCHEDULE_SEQUENTIAL;
    OK(fcc_gemm_all_to_all_prepare(l.comm, &rows, &p));
    work_run(&l, ROWS_SENT, p, l.stream);
    stream_sync(l.stream);
    fcc_prepared_free(p);
    lane_close(&l);
}

static void schedules(void)
{
    scene_run(PAIR, schedules_rank, ONE_STEP);
}

/* ---- ranks that cannot ---- */

/* Of this kind, all on this device of it: nothing can be prepared, and all the rest goes on. */
static void unfit_check(const struct ranks *all, int rank, const struct fcc_comm_options *options, const char *why)
{
    fcc_prepared *p;
    fcc_comm *comm;

    driver_use();
    fcc_context *context = client_connect(NULL);
    OK(fcc_comm_init(context, &all->id, all->n, rank, options, &comm));
    struct product product = product_open(comm);
    FAILS(fcc_gemv_all_reduce_prepare(comm, &product.args, &p), -EOPNOTSUPP, why);
    OK(fcc_gemv_all_reduce(comm, &product.args));
    fcc_comm_destroy(comm);
    client_end(context);
}

static void cpu_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    unfit_check(all, rank, NULL, "on cpu devices");
}

static void on_cpus(void)
{
    scene_run(PAIR, cpu_rank, ONE_STEP);
}

static void together_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    unfit_check(all, rank, &(struct fcc_comm_options){.device = 1, .device_kind = FCC_DEVICE_CUDA}, "rank 1");
}

static void on_one_gpu(void)
{
    scene_run(PAIR, together_rank, ONE_STEP);
}

static void apart_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    unfit_check(all, rank, &(struct fcc_comm_options){.device = -1, .device_kind = FCC_DEVICE_CUDA}, "several nodes");
}

static void on_two_nodes(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, 2, GPUS, NULL);
    ranks_start(&r, PAIR, apart_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what is refused to one ---- */

/* The worker's GPUs refuse memory, the clients' drivers to import it, the plug-in an operator or a run. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;
    fcc_prepared *p;

    lane_open(&l, all, rank, 0);
    if (rank) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_MEMORY_ALLOC;
    }
    step_meet(&scene->step, all->n, &step);
    FAILS(work_prepare(&l, ONE_STEP, &p), -ENOMEM, "rank 1", "made to fail");
    driver->fail = DRIVER_memory_map;
    FAILS(work_prepare(&l, ROWS_SENT, &p), -EIO, "cuMemMap");
    driver->fail = -1;
    for (uint32_t which = 0; which < PAIR; which++) { /* the other rank hears of it, and keeps nothing */
        step_meet(&scene->step, all->n, &step);
        fake->fail_gpu = which;
        fake->fail = FAKE_PREPARED_OPEN;
        step_meet(&scene->step, all->n, &step);
        FAILS(work_prepare(&l, ROWS_SENT, &p), -EIO,
              which ? "rank 1: " : "rank 0: ", "gemm_all_to_all_prepare: ", "made to fail");
    }
    p = prepare(&l, ROWS_SENT);
    step_meet(&scene->step, all->n, &step);
    fake->fail_gpu = 1;
    fake->fail = FAKE_PREPARED_START;
    step_meet(&scene->step, all->n, &step);
    if (rank)
        FAILS(fcc_prepared_enqueue(p, l.stream), -EIO, "rank 1: ", "launching", "made to fail");
    work_run(&l, ROWS_SENT, p, l.stream); /* it was no run */
    stream_sync(l.stream);
    fcc_prepared_free(p);
    lane_works(&l);
    lane_close(&l);
}

static void refused(void)
{
    scene_run(PAIR, refused_rank, ONE_STEP);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"in_a_row", in_a_row, 0},
        {"in_a_row_of_three", in_a_row_of_three, 0},
        {"in_two_steps", in_two_steps, 0},
        {"rows_sent", rows_sent, 0},
        {"rows_sent_of_three", rows_sent_of_three, 0},
        {"into_results", into_results, 0},
        {"of_one", of_one, 0},
        {"mixed", mixed, 0},
        {"two_streams", two_streams, 0},
        {"kept", kept, 0},
        {"full", full, 0},
        {"differ", differ, 0},
        {"schedules", schedules, 0},
        {"on_cpus", on_cpus, 0},
        {"on_one_gpu", on_one_gpu, 0},
        {"on_two_nodes", on_two_nodes, 0},
        {"refused", refused, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_prepared", TESTS(tests));
}
