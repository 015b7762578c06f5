/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_ahead.c - operators of one communicator that stand in the GPUs' queues one behind the other, with the real
 * daemon and the real library on fake GPUs: which may, in which order they run and end, and that whatever befalls one of them
 * befalls it alone. The fake GPUs themselves count it as wrong when one begins on a GPU
 * while the one before is not over on another.
 */
#include "tests/fake_gpu/fake_gpu_lane.h"

/* What an operator waits for: a product in two steps for all ranks before it begins; one in one step for its own rank only; one whose rows
 * go to all ranks, of few tiles, for the others before it stores anything there. */
enum work { TWO_STEPS, ONE_STEP, ROWS_SENT, WORKS };

struct scene {
    _Atomic int step, open;
    enum work work;
    bool together; /* GPU_BEGIN */
    struct fcc_unique_id other;
};

static void work_enqueue(const struct product *p, enum work work, void *stream, fcc_request **out)
{
    const struct product row = first_row(*p);
    const int64_t m = 4 * PAIR, n = 64;

    if (work == ROWS_SENT)
        OK(fcc_gemm_all_to_all_enqueue(p->comm,
                                       &(struct fcc_gemm_all_to_all_args){
                                           .a = fcc_tensor_2d(p->args.w.buffer, 0, FCC_F32, m, PRODUCT_K),
                                           .b = fcc_tensor_2d(p->args.w.buffer, 0, FCC_F32, PRODUCT_K, n),
                                           .c = fcc_tensor_2d(p->args.y.buffer, 0, FCC_F32, m, n),
                                           .schedule = FCC_SCHEDULE_FUSED}, /* in sequence its kernel would not wait itself */
                                       stream, out));
    else
        product_enqueue(work == ONE_STEP ? &row : p, stream, out);
}

/* All ranks come to the step with this number: 1, 2, ... */
static void meet(struct scene *scene, int n, int *step)
{
    step_meet(&scene->step, n, step);
}

/* The fake GPUs with a daemon, and PAIR ranks. */
static void scene_play(struct scene *scene, void (*rank)(int, const struct ranks *, void *), uint32_t hold, uint32_t run_us,
                       uint32_t linger)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, scene->together ? (const char *const[]){"--gpu-begin", "together", NULL} : NULL);
    scene->other = id_make();
    fake->hold = hold;
    fake->run_us = run_us;
    fake->linger = linger;
    ranks_start(&r, PAIR, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

static void scene_run(void (*rank)(int, const struct ranks *, void *), uint32_t hold, uint32_t run_us, uint32_t linger)
{
    scene_play(shared_memory(sizeof(struct scene)), rank, hold, run_us, linger);
}

/* ---- order ---- */

/* The first one runs, some are behind it, the others are not begun. They end in their order. */
static void depth_rank(int rank, const struct ranks *all, void *argument)
{
    int done, step = 0;

    struct lane l = lane_open(all, rank, 0);
    for (int i = 0; i < MANY; i++)
        if (i % 3 == 2)
            OK(fcc_noop_enqueue(l.p.comm, l.stream, &l.requests[i]));
        else
            product_enqueue(&l.p, l.stream, &l.requests[i]);
    enqueued_stays(PAIR * AHEAD);
    CHECK(fake->begun == PAIR && fake->ended == 0);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    for (int i = MANY - 1; i >= 0; i--) {
        OK(fcc_request_wait(l.requests[i], -1));
        for (int before = 0; before < i; before++) {
            OK(fcc_request_test(l.requests[before], &done));
            CHECK(done);
        }
    }
    CHECK(fake->enqueued == PAIR * MANY);
    lane_close(&l, MANY);
}

static void depth(void)
{
    scene_run(depth_rank, ALL_GPUS, 0, 0);
}

/* A rank uses two streams by turns, so that its stream for an operator has not waited for the one before; and one GPU ends
 * long after the others. What it is that an operator must not overtake is checked by the fake GPUs. */
static void streams_rank(int rank, const struct ranks *all, void *argument)
{

    (void)argument;
    struct lane l = lane_open(all, rank, 0);
    void *streams[] = {l.stream, stream_open()};
    for (int round = 0; round < 2 * WORKS; round++) {
        for (int i = 0; i < MANY; i++)
            work_enqueue(&l.p, round < WORKS ? (enum work)((i + round) % WORKS) : (enum work)(round - WORKS), streams[i % 2],
                         &l.requests[i]);
        for (int i = 0; i < MANY; i++)
            OK(fcc_request_wait(l.requests[i], -1));
        requests_free(l.requests, MANY);
    }
    stream_close(streams[1]);
    lane_close(&l, 0);
}

static void several_streams(void)
{
    scene_run(streams_rank, 0, 500, 2);
}

/* A stream that does not come holds back what is behind it, on all GPUs, and nothing else. So it does with what a GPU begins alone;
 * but the other GPU begins with that, and waits. */
static void closed_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int done, step = 0, begun = PAIR + (scene->work != TWO_STEPS && !scene->together);

    struct lane l = lane_open(all, rank, 0);
    work_enqueue(&l.p, scene->work, l.stream, &l.requests[0]);
    if (rank)
        stream_gate(l.stream, &scene->open);
    work_enqueue(&l.p, scene->work, l.stream, &l.requests[1]);
    work_enqueue(&l.p, scene->work, l.stream, &l.requests[2]);
    OK(fcc_request_wait(l.requests[0], -1));
    await(&fake->begun, begun);
    enqueued_stays(3 * PAIR);
    CHECK(fake->begun == begun && fake->ended == PAIR);
    OK(fcc_request_test(l.requests[1], &done));
    CHECK(!done);
    meet(scene, PAIR, &step);
    scene->open = 1;
    OK(fcc_request_wait(l.requests[2], -1));
    lane_close(&l, 3);
}

static void closed_run(enum work work, bool together)
{
    struct scene *scene = shared_memory(sizeof(*scene));

    scene->work = work;
    scene->together = together;
    scene_play(scene, closed_rank, 0, 0, 0);
}

static void closed_stream(void)
{
    closed_run(TWO_STEPS, false);
}

static void closed_in_one_step(void)
{
    closed_run(ONE_STEP, false);
}

static void closed_rows_sent(void)
{
    closed_run(ROWS_SENT, false);
}

static void closed_in_one_step_together(void)
{
    closed_run(ONE_STEP, true);
}

static void closed_rows_sent_together(void)
{
    closed_run(ROWS_SENT, true);
}

/* What does not have its place on every rank's stream waits until nothing runs, and so does what comes after it. */
static void mixed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_buffer *buffer;
    int step = 0;

    struct lane l = lane_open(all, rank, 0);
    product_enqueue(&l.p, l.stream, &l.requests[0]);
    product_enqueue(&l.p, l.stream, &l.requests[1]);
    OK(fcc_gemv_all_reduce_start(l.p.comm, &l.p.args, &l.requests[2]));
    product_enqueue(&l.p, l.stream, &l.requests[3]);
    enqueued_stays(2 * PAIR);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    OK(fcc_request_wait(l.requests[3], -1));
    CHECK(fake->enqueued == 4 * PAIR);
    meet(argument, PAIR, &step);
    fake->hold = ALL_GPUS;
    meet(argument, PAIR, &step);
    product_enqueue(&l.p, l.stream, &l.requests[4]);
    if (rank)
        OK(fcc_gemv_all_reduce_start(l.p.comm, &l.p.args, &l.requests[5])); /* one has a stream, the other none */
    else
        product_enqueue(&l.p, l.stream, &l.requests[5]);
    enqueued_stays(5 * PAIR);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    OK(fcc_buffer_alloc(l.p.comm, FCC_BUFFER_SYMMETRIC, 100, &buffer)); /* its turn is the last */
    CHECK(fake->ended == 6 * PAIR);
    OK(fcc_noop(l.p.comm));
    for (int i = 0; i < 6; i++)
        OK(fcc_request_wait(l.requests[i], -1));
    lane_close(&l, 6);
}

static void mixed(void)
{
    scene_run(mixed_rank, ALL_GPUS, 0, 0);
}

/* Staging memory that is to grow stays where it is as long as somebody uses it. */
static void staging_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_buffer *x, *w, *y;
    int step = 0;

    struct lane l = lane_open(all, rank, 0);
    struct product large = l.p;
    int64_t n = 1 << 16;
    OK(fcc_buffer_alloc(l.p.comm, FCC_BUFFER_LOCAL, 8 * PRODUCT_K * sizeof(float), &x));
    OK(fcc_buffer_alloc(l.p.comm, FCC_BUFFER_LOCAL, (size_t)n * PRODUCT_K * sizeof(float), &w));
    OK(fcc_buffer_alloc(l.p.comm, FCC_BUFFER_SYMMETRIC, (size_t)n * 8 * sizeof(float), &y));
    large.args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(x, 0, FCC_F32, 8, PRODUCT_K),
                                                   .w = fcc_tensor_2d(w, 0, FCC_F32, n, PRODUCT_K),
                                                   .y = fcc_tensor_2d(y, 0, FCC_F32, 8, n)};
    product_enqueue(&l.p, l.stream, &l.requests[0]);
    product_enqueue(&large, l.stream, &l.requests[1]);
    product_enqueue(&l.p, l.stream, &l.requests[2]);
    enqueued_stays(PAIR);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    for (int i = 0; i < 3; i++)
        OK(fcc_request_wait(l.requests[i], -1));
    lane_close(&l, 3);
}

static void staging_grows(void)
{
    scene_run(staging_rank, ALL_GPUS, 0, 0);
}

/* ---- the failure of one ---- */

enum { ROWS = 50, DIM = 8, BATCH = 40, BAGS_RANK = 1 };

static struct fcc_embedding_all_to_all_args bags_open(fcc_comm *comm)
{
    static const int64_t rows = ROWS;
    int64_t offsets[BATCH + 1];
    fcc_buffer *table, *indices, *begins, *out;

    for (int i = 0; i <= BATCH; i++)
        offsets[i] = i;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, ROWS * DIM * sizeof(float), &table));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, BATCH * sizeof(int64_t), &indices));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(offsets), &begins));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)BATCH * PAIR * DIM * sizeof(float), &out));
    OK(fcc_buffer_write(begins, 0, offsets, sizeof(offsets)));
    return (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(table, 0, FCC_F32, ROWS, DIM),
                                                  .table_rows = &rows,
                                                  .num_tables = 1,
                                                  .indices = fcc_tensor_1d(indices, 0, FCC_I64, BATCH),
                                                  .offsets = fcc_tensor_1d(begins, 0, FCC_I64, BATCH + 1),
                                                  .batch = BATCH,
                                                  .out = fcc_tensor_3d(out, 0, FCC_F32, BATCH / PAIR, PAIR, DIM)};
}

/* A kernel finds an index that is none: that operator fails on all ranks, those before and behind it do not. */
static void data_rank(int rank, const struct ranks *all, void *argument)
{
    int step = 0;

    struct lane l = lane_open(all, rank, 0);
    struct fcc_embedding_all_to_all_args bags = bags_open(l.p.comm);
    if (rank == BAGS_RANK) {
        fake->failing_rank = BAGS_RANK;
        fake->failing_epoch = 2;
        fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 3, .value = ROWS, .bag = 3, .most = ROWS - 1};
        fake->failing = 1;
    }
    meet(argument, PAIR, &step);
    for (int i = 0; i < AHEAD; i++)
        OK(fcc_embedding_all_to_all_enqueue(l.p.comm, &bags, l.stream, &l.requests[i]));
    enqueued_stays(AHEAD * PAIR);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    for (int i = AHEAD - 1; i >= 0; i--)
        if (i == 1)
            FAILS(fcc_request_wait(l.requests[i], -1), -ERANGE, "rank 1", "bag 3");
        else
            OK(fcc_request_wait(l.requests[i], -1));
    product_works(&l.p, l.stream);
    lane_close(&l, AHEAD);
}

static void data_fails(void)
{
    scene_run(data_rank, ALL_GPUS, 0, 0);
}

/* A GPU does not take one of them: what is before it ends as it should, and what comes after it is not begun before. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    int step = 0;

    struct lane l = lane_open(all, rank, 0);
    product_enqueue(&l.p, l.stream, &l.requests[0]);
    product_enqueue(&l.p, l.stream, &l.requests[1]);
    enqueued_stays(2 * PAIR);
    meet(argument, PAIR, &step);
    if (rank) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_LAUNCH_START;
    }
    meet(argument, PAIR, &step);
    product_enqueue(&l.p, l.stream, &l.requests[2]);
    product_enqueue(&l.p, l.stream, &l.requests[3]);
    await_failure();              /* each GPU is asked by a thread of its own */
    enqueued_stays(2 * PAIR + 1); /* GPU 0's half of the third */
    CHECK(fake->begun == PAIR && fake->ended == 0);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    OK(fcc_request_wait(l.requests[0], -1));
    OK(fcc_request_wait(l.requests[1], -1));
    FAILS(fcc_request_wait(l.requests[2], -1), -EIO, "rank 1", "launching an operator", "made to fail");
    OK(fcc_request_wait(l.requests[3], -1));
    product_works(&l.p, l.stream);
    lane_close(&l, 4);
}

static void launch_refused(void)
{
    scene_run(refused_rank, ALL_GPUS, 0, 0);
}

/* A request that is wrong by itself: told in its turn, and the others are as if it were not there. */
static void wrong_rank(int rank, const struct ranks *all, void *argument)
{
    int step = 0;

    struct lane l = lane_open(all, rank, 0);
    struct product bad = l.p;
    bad.args.x.dtype = FCC_F16; /* of rank 1 alone: w is still f32 */
    product_enqueue(&l.p, l.stream, &l.requests[0]);
    product_enqueue(rank ? &bad : &l.p, l.stream, &l.requests[1]);
    product_enqueue(&l.p, l.stream, &l.requests[2]);
    enqueued_stays(PAIR);
    meet(argument, PAIR, &step);
    fake->hold = 0;
    OK(fcc_request_wait(l.requests[0], -1));
    FAILS(fcc_request_wait(l.requests[1], -1), -EINVAL, "rank 1");
    OK(fcc_request_wait(l.requests[2], -1));
    product_works(&l.p, l.stream);
    lane_close(&l, 3);
}

static void request_wrong(void)
{
    scene_run(wrong_rank, ALL_GPUS, 0, 0);
}

/* ---- time ---- */

/* All together take longer than the time limit, none does by itself: each one's begins with its turn. */
static void in_time_rank(int rank, const struct ranks *all, void *argument)
{

    (void)argument;
    struct lane l = lane_open(all, rank, limit_ms());
    for (int i = 0; i < MANY; i++)
        product_enqueue(&l.p, l.stream, &l.requests[i]);
    for (int i = 0; i < MANY; i++)
        OK(fcc_request_wait(l.requests[i], -1));
    lane_close(&l, MANY);
}

static void in_time(void)
{
    scene_run(in_time_rank, 0, limit_ms() * 1000 / 8, 0);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"depth", depth, 0},
        {"several_streams", several_streams, 0},
        {"closed_stream", closed_stream, 0},
        {"closed_in_one_step", closed_in_one_step, 0},
        {"closed_rows_sent", closed_rows_sent, 0},
        {"closed_in_one_step_together", closed_in_one_step_together, 0},
        {"closed_rows_sent_together", closed_rows_sent_together, 0},
        {"mixed", mixed, 0},
        {"staging_grows", staging_grows, 0},
        {"data_fails", data_fails, 0},
        {"launch_refused", launch_refused, 0},
        {"request_wrong", request_wrong, 0},
        {"in_time", in_time, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_ahead", TESTS(tests));
}
