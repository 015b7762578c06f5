/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_ahead.c - operators of one communicator that stand in the GPUs' queues one behind the other, with the real
 * daemon and the real library on fake GPUs: which may, in which order they run and end, and that whatever befalls one of them
 * befalls it alone, or, at the communicator's end, all. The fake GPUs themselves count it as wrong when one begins on a GPU
 * while the one before is not over on another.
 */
#include "fake_gpu_bed.h"

enum { AHEAD = 4 /* device_gpu.c */, MANY = 2 * AHEAD + 1 };

/* A sanitizer's build on a machine that does other things takes its time for what is to be in time. */
static int limit_ms(void)
{
    return getenv("FCC_TEST_SLOW") ? 8000 : 1500;
}

struct scene {
    _Atomic int step, open;
    struct fcc_unique_id other;
};

/* All ranks come to the step with this number: 1, 2, ... */
static void meet(struct scene *scene, int n, int *step)
{
    scene->step++;
    await(&scene->step, ++*step * n);
}

/* Nothing more is put into the queues, though there would have been time. The first ones run. */
static void enqueued_stays(int n)
{
    await(&fake->enqueued, n);
    await(&fake->begun, PAIR);
    (void)usleep(20000);
    CHECK(fake->enqueued == n);
}

/* The fake GPUs with a daemon, and PAIR ranks. */
static void scene_run(void (*rank)(int, const struct ranks *, void *), uint32_t hold, uint32_t run_us, uint32_t linger)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->other = id_make();
    fake->hold = hold;
    fake->run_us = run_us;
    fake->linger = linger;
    ranks_start(&r, PAIR, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* A rank with a product, a stream, and what it has asked for. */
struct lane {
    fcc_context *context;
    struct product p;
    void *stream;
    fcc_request *requests[MANY];
};

static struct lane lane_open(const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct lane l;

    driver_use();
    l.context = client_connect(NULL);
    l.p = fused_open(client_join(l.context, &all->id, all->n, rank, time_limit_ms));
    l.stream = stream_open();
    return l;
}

static void requests_free(fcc_request *requests[], int n)
{
    for (int i = 0; i < n; i++)
        fcc_request_free(requests[i]);
}

/* It has n requests. */
static void lane_close(struct lane *l, int n)
{
    requests_free(l->requests, n);
    stream_close(l->stream);
    fcc_comm_destroy(l->p.comm);
    client_end(l->context);
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
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < MANY; i++)
            product_enqueue(&l.p, streams[i % 2], &l.requests[i]);
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

/* A stream that does not come holds back what is behind it, on all GPUs, and nothing else. */
static void closed_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int done, step = 0;

    struct lane l = lane_open(all, rank, 0);
    product_enqueue(&l.p, l.stream, &l.requests[0]);
    if (rank)
        stream_gate(l.stream, &scene->open);
    product_enqueue(&l.p, l.stream, &l.requests[1]);
    product_enqueue(&l.p, l.stream, &l.requests[2]);
    OK(fcc_request_wait(l.requests[0], -1));
    enqueued_stays(3 * PAIR);
    CHECK(fake->begun == PAIR && fake->ended == PAIR);
    OK(fcc_request_test(l.requests[1], &done));
    CHECK(!done);
    meet(scene, PAIR, &step);
    scene->open = 1;
    OK(fcc_request_wait(l.requests[2], -1));
    lane_close(&l, 3);
}

static void closed_stream(void)
{
    scene_run(closed_rank, 0, 0, 0);
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
    enqueued_stays(2 * PAIR + 1); /* GPU 0's half of the third */
    CHECK(fake->fail == FAKE_NONE && fake->begun == PAIR && fake->ended == 0);
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

/* ---- the end of all ---- */

#define WHY "the loss is not a number"

enum end { KILLED, LATE, ABORTED, DRAINED };

struct ending {
    enum end end;
    bool streams_late; /* the second operator's streams have not come; otherwise the first one's kernels go on */
    struct fcc_unique_id other;
    _Atomic int ready, heard, open;
};

static void verdict_check(const struct ending *e, fcc_request *request)
{
    int status = fcc_request_wait(request, -1);
    static const char *const killed[] = {"rank 1", "gone", NULL}, *const aborted[] = {"rank 1", WHY, NULL},
                             *const late[] = {"ran longer than the time limit", NULL},
                             *const stream[] = {"#2: the stream of rank 1 did not come to it within the time limit", NULL};

    if (e->end == LATE)
        check_error(__FILE__, __LINE__, "fcc_request_wait", status, -ETIMEDOUT, e->streams_late ? stream : late);
    else
        check_error(__FILE__, __LINE__, "fcc_request_wait", status, -ECONNABORTED, e->end == KILLED ? killed : aborted);
}

static void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    int first = e->streams_late || e->end == DRAINED;

    struct lane l = lane_open(all, rank, e->end == LATE ? limit_ms() : 0);
    for (int i = 0; i < MANY; i++) {
        if (rank && i == 1 && first)
            stream_gate(l.stream, &e->open);
        product_enqueue(&l.p, l.stream, &l.requests[i]);
    }
    if (first)
        OK(fcc_request_wait(l.requests[0], -1));
    enqueued_stays(PAIR * (AHEAD + first));
    e->ready++;
    if (e->end == KILLED && rank)
        (void)pause();
    await(&e->ready, PAIR);
    if (e->end == ABORTED && rank)
        OK(fcc_comm_abort(l.p.comm, WHY));
    for (int i = first; i < MANY; i++)
        if (e->end == DRAINED)
            OK(fcc_request_wait(l.requests[i], -1));
        else
            verdict_check(e, l.requests[i]);
    e->open = e->end == DRAINED || e->open || rank;
    stream_sync(l.stream);
    if (e->end != DRAINED) {
        e->heard++;
        await(&e->heard, PAIR - (e->end == KILLED));
        fake->hold = 0;
        struct product other = product_open(client_join(l.context, &e->other, PAIR - (e->end == KILLED), rank, 0));
        product_works(&other, l.stream);
        fcc_comm_destroy(other.comm);
    }
    lane_close(&l, MANY);
}

static void ending_run(enum end end, bool streams_late)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--drain-ms", "3600000", NULL}); /* what is drained here ends by itself */
    *e = (struct ending){.end = end, .streams_late = streams_late, .other = id_make()};
    fake->hold = streams_late || end == DRAINED ? 0 : ALL_GPUS;
    ranks_start(&r, PAIR, ending_rank, e);
    await(&e->ready, PAIR);
    if (end == KILLED) {
        CHECK(kill(r.pid[1], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, 1)));
    }
    if (end == DRAINED) {
        CHECK(kill(d.pid, SIGTERM) == 0);
        CHECK(daemon_logged(&d, "shutting down", 60000));
        (void)usleep(50000);
        CHECK(waitpid(d.pid, &status, WNOHANG) == 0 && fake->begun == PAIR);
        e->open = 1;
    }
    ranks_join(&r);
    if (end != DRAINED) {
        fake_stop(&d);
        return;
    }
    CHECK(waitpid(d.pid, &status, 0) == d.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fake_check();
}

#define ENDING(name, end, streams_late)                                                                                        \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        ending_run(end, streams_late);                                                                                         \
    }
ENDING(killed, KILLED, false)
ENDING(killed_streams_late, KILLED, true)
ENDING(late, LATE, false)
ENDING(late_streams_late, LATE, true)
ENDING(aborted, ABORTED, false)
ENDING(aborted_streams_late, ABORTED, true)
ENDING(drained, DRAINED, true)

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"depth", depth, 0},
        {"several_streams", several_streams, 0},
        {"closed_stream", closed_stream, 0},
        {"mixed", mixed, 0},
        {"staging_grows", staging_grows, 0},
        {"data_fails", data_fails, 0},
        {"launch_refused", launch_refused, 0},
        {"request_wrong", request_wrong, 0},
        {"in_time", in_time, 0},
        {"killed", killed, 0},
        {"killed_streams_late", killed_streams_late, 0},
        {"late", late, 0},
        {"late_streams_late", late_streams_late, 0},
        {"aborted", aborted, 0},
        {"aborted_streams_late", aborted_streams_late, 0},
        {"drained", drained, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_ahead", TESTS(tests));
}
