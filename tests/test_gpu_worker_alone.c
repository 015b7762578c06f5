/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_alone.c - operators that begin on a GPU when its own ranks have come (plan.h's `alone`), with the real daemon and
 * the real library on fake GPUs: when they begin, that neither those before nor those behind them notice, and that whatever ends
 * a communicator ends a part that already runs and waits for another rank. The fake GPUs themselves count it as wrong when a
 * flag goes back, a word in a slot is overwritten before it was read, or an operator that is not alone begins too early.
 */
#include "fake_gpu_bed.h"

enum { AHEAD = 4 /* device_gpu.c */, MANY = 2 * AHEAD + 1, LIMIT_MS = 1500, LATE_RANK = 1 };

/* Both kinds of them. */
enum kind { MEETING, SUM, KINDS };

struct scene {
    enum kind kind;
    uint32_t hold, stay; /* of the fake GPUs, when the ranks are ready */
    _Atomic int step, open;
    struct fcc_unique_id other;
};

/* One rank's part of a scene. */
struct actor {
    struct scene *scene;
    fcc_context *context;
    fcc_comm *comm;
    struct product ordinary, sum;
    void *stream;
    int rank, n, step;
};

/* All ranks come to the same step. */
static void meet(struct actor *a)
{
    a->scene->step++;
    await(&a->scene->step, ++a->step * a->n);
}

static void actor_open(struct actor *a, int rank, const struct ranks *all, struct scene *scene, uint32_t time_limit_ms)
{
    driver_use();
    *a = (struct actor){.scene = scene, .context = client_connect(NULL), .stream = stream_open(), .rank = rank, .n = all->n};
    a->comm = client_join(a->context, &all->id, all->n, rank, time_limit_ms);
    a->ordinary = fused_open(a->comm);
    a->sum = sum_open(a->comm);
    OK(fcc_gemv_all_reduce(a->comm, &a->ordinary.args)); /* now there is staging memory, and */
    OK(fcc_gemv_all_reduce(a->comm, &a->sum.args));      /* there are slots: all others can be enqueued ahead */
    meet(a);
    if (!rank) {
        fake->enqueued = fake->begun = fake->ended = 0;
        fake->hold = scene->hold;
        fake->stay = scene->stay;
    }
    meet(a);
}

static void actor_close(struct actor *a)
{
    stream_close(a->stream);
    fcc_comm_destroy(a->comm);
    client_end(a->context);
}

static void alone_enqueue(struct actor *a, void *stream, fcc_request **out)
{
    if (a->scene->kind == MEETING)
        OK(fcc_noop_enqueue(a->comm, stream, out));
    else
        product_enqueue(&a->sum, stream, out);
}

static void request_end(fcc_request *request)
{
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
}

static void stays(const _Atomic int *word, int value)
{
    await(word, value);
    (void)usleep(20000);
    CHECK(*word == value);
}

static void scene_run_on(enum kind kind, int n, void (*rank)(int, const struct ranks *, void *), uint32_t hold)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *scene = (struct scene){.kind = kind, .hold = hold, .other = id_make()};
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* A test for each kind. */
#define SCENE(name, n, hold)                                                                                                   \
    static void name##_meeting(void)                                                                                           \
    {                                                                                                                          \
        scene_run_on(MEETING, n, name##_rank, hold);                                                                           \
    }                                                                                                                          \
    static void name##_sum(void)                                                                                               \
    {                                                                                                                          \
        scene_run_on(SUM, n, name##_rank, hold);                                                                               \
    }

/* ---- when they begin ---- */

/* A GPU begins when its own ranks have come, all of them, and no other's. GPU 0 has ranks 0 and 3, of which 3 is late. */
static void begins_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *request;
    struct actor a;
    int done;

    actor_open(&a, rank, all, argument, 0);
    if (rank == GPUS)
        stream_gate(a.stream, &a.scene->open);
    alone_enqueue(&a, a.stream, &request);
    stays(&fake->begun, GPUS - 1);
    OK(fcc_request_test(request, &done));
    CHECK(!done && fake->enqueued == GPUS && fake->ended == 0);
    meet(&a);
    a.scene->open = 1;
    stream_sync(a.stream);
    CHECK(fake->begun == GPUS);
    request_end(request);
    actor_close(&a);
}
SCENE(begins, GPUS + 1, 0)

/* A rank without a stream has come when it has called. */
static void one_stream_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *request;
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    if (rank == LATE_RANK) {
        stream_gate(a.stream, &a.scene->open);
        alone_enqueue(&a, a.stream, &request);
    } else if (a.scene->kind == MEETING) {
        OK(fcc_noop_start(a.comm, &request));
    } else {
        OK(fcc_gemv_all_reduce_start(a.comm, &a.sum.args, &request));
    }
    stays(&fake->begun, PAIR - 1);
    meet(&a);
    a.scene->open = 1;
    request_end(request);
    actor_close(&a);
}
SCENE(one_stream, PAIR, 0)

/* With a second communicator the worker waits for the streams, and begins on all GPUs. */
static void beside_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *request;
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    struct product other = product_open(client_join(a.context, &a.scene->other, PAIR, rank, 0));
    if (rank == LATE_RANK)
        stream_gate(a.stream, &a.scene->open);
    alone_enqueue(&a, a.stream, &request);
    meet(&a);
    stays(&fake->enqueued, 0);
    meet(&a);
    a.scene->open = 1;
    request_end(request);
    product_works(&other, a.stream);
    fcc_comm_destroy(other.comm);
    actor_close(&a);
}
SCENE(beside, PAIR, 0)

/* ---- behind each other ---- */

/* The late rank's GPU has begun none; the other one has begun the first, and needs its words or flag. They end in their order. */
static void depth_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[MANY];
    struct actor a;
    int done;

    actor_open(&a, rank, all, argument, 0);
    if (rank == LATE_RANK)
        stream_gate(a.stream, &a.scene->open);
    for (int i = 0; i < MANY; i++)
        alone_enqueue(&a, a.stream, &requests[i]);
    stays(&fake->enqueued, PAIR * AHEAD);
    stays(&fake->begun, PAIR - 1);
    CHECK(fake->ended == 0);
    meet(&a);
    a.scene->open = 1;
    for (int i = MANY - 1; i >= 0; i--) {
        OK(fcc_request_wait(requests[i], -1));
        for (int before = 0; before < i; before++) {
            OK(fcc_request_test(requests[before], &done));
            CHECK(done);
        }
    }
    for (int i = 0; i < MANY; i++)
        fcc_request_free(requests[i]);
    actor_close(&a);
}
SCENE(depth, PAIR, 0)

/* It begins on a GPU though the ordinary one before it is not over on another, and is over when that is. */
static void behind_ordinary_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[2];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    product_enqueue(&a.ordinary, a.stream, &requests[0]);
    alone_enqueue(&a, a.stream, &requests[1]);
    stays(&fake->begun, PAIR + 1);
    CHECK(fake->ended == 1);
    meet(&a);
    fake->stay = 0;
    request_end(requests[0]);
    request_end(requests[1]);
    actor_close(&a);
}

/* An ordinary one begins on no GPU before the one before it, which began alone, is over on all. */
static void before_ordinary_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[2];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    alone_enqueue(&a, a.stream, &requests[0]);
    product_enqueue(&a.ordinary, a.stream, &requests[1]);
    await(&fake->ended, 1);
    stays(&fake->begun, PAIR);
    CHECK(fake->enqueued == 2 * PAIR);
    meet(&a);
    fake->stay = 0;
    request_end(requests[0]);
    request_end(requests[1]);
    actor_close(&a);
}

static void stay_run(enum kind kind, void (*rank)(int, const struct ranks *, void *))
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *scene = (struct scene){.kind = kind, .stay = 1u << LATE_RANK};
    ranks_start(&r, PAIR, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

#define STAY(name)                                                                                                             \
    static void name##_meeting(void)                                                                                           \
    {                                                                                                                          \
        stay_run(MEETING, name##_rank);                                                                                        \
    }                                                                                                                          \
    static void name##_sum(void)                                                                                               \
    {                                                                                                                          \
        stay_run(SUM, name##_rank);                                                                                            \
    }
STAY(behind_ordinary)
STAY(before_ordinary)

/* A half of the schedule in which ranks do not wait for each other: one is over it, and raises its flag of the next operator at
 * another that is still at it. */
static void half_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[3];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    a.sum.args.schedule = FCC_SCHEDULE_COMPUTE_ONLY;
    product_enqueue(&a.sum, a.stream, &requests[0]);
    alone_enqueue(&a, a.stream, &requests[1]);
    OK(fcc_noop_enqueue(a.comm, a.stream, &requests[2]));
    await(&fake->begun, a.scene->kind == MEETING ? PAIR + 1 : PAIR + 2);
    (void)usleep(20000);
    meet(&a);
    fake->hold = 0;
    for (int i = 0; i < 3; i++)
        request_end(requests[i]);
    actor_close(&a);
}
SCENE(half, PAIR, 1u << LATE_RANK)

/* Slots that are to grow stay where they are as long as somebody stores into them or waits for them. */
static void slots_grow_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[3];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    struct product larger = product_open_sized(a.comm, 2, SUM_N);
    larger.args.schedule = FCC_SCHEDULE_FUSED;
    if (rank == LATE_RANK)
        stream_gate(a.stream, &a.scene->open);
    product_enqueue(&a.sum, a.stream, &requests[0]);
    product_enqueue(&larger, a.stream, &requests[1]);
    product_enqueue(&a.sum, a.stream, &requests[2]);
    stays(&fake->enqueued, PAIR);
    stays(&fake->begun, PAIR - 1);
    meet(&a);
    a.scene->open = 1;
    for (int i = 0; i < 3; i++)
        request_end(requests[i]);
    actor_close(&a);
}

static void slots_grow(void)
{
    scene_run_on(SUM, PAIR, slots_grow_rank, 0);
}

/* All sorts by turns, on two streams, while now one and now the other GPU takes its time. */
static void mixture_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ROUNDS = 40 };
    fcc_request *requests[MANY];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    struct product split = a.sum, half = a.sum;
    split.args.schedule = FCC_SCHEDULE_SEQUENTIAL;
    half.args.schedule = FCC_SCHEDULE_COMPUTE_ONLY;
    const struct product *const products[] = {NULL, &a.sum, &split, &half, &a.ordinary};
    void *streams[] = {stream_open(), a.stream};
    for (unsigned round = 0, next = 1; round < ROUNDS; round++) {
        meet(&a);
        if (!rank)
            fake->linger = 1 + round % 2;
        for (unsigned i = 0; i < MANY; i++) {
            next = next * 1103515245 + 12345; /* the same on all ranks */
            const struct product *p = products[next / 65536 % 5];
            if (p)
                product_enqueue(p, streams[i % 2], &requests[i]);
            else
                OK(fcc_noop_enqueue(a.comm, streams[i % 2], &requests[i]));
        }
        for (int i = 0; i < MANY; i++)
            request_end(requests[i]);
    }
    stream_close(streams[0]);
    actor_close(&a);
}

static void mixture(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->run_us = 200;
    ranks_start(&r, PAIR, mixture_rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- the failure of one ---- */

/* An ordinary one fails by its data on a rank: what began alone behind it does not, wherever the others are. */
static void data_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[AHEAD];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    if (rank == LATE_RANK) {
        fake->failing_rank = LATE_RANK;
        fake->failing_epoch = 3;
        fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 3, .value = 50, .bag = 3, .most = 49};
        fake->failing = 1;
    }
    meet(&a);
    product_enqueue(&a.ordinary, a.stream, &requests[0]);
    for (int i = 1; i < AHEAD; i++)
        alone_enqueue(&a, a.stream, &requests[i]);
    stays(&fake->enqueued, AHEAD * PAIR);
    meet(&a);
    fake->hold = 0;
    FAILS(fcc_request_wait(requests[0], -1), -ERANGE, "rank 1", "bag 3");
    fcc_request_free(requests[0]);
    for (int i = 1; i < AHEAD; i++)
        request_end(requests[i]);
    product_works(&a.ordinary, a.stream);
    actor_close(&a);
}
SCENE(data, PAIR, ALL_GPUS)

/* A GPU does not take its part, and the other one's waits for it already: it leaves when its turn has come, and not before. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *requests[2];
    struct actor a;

    actor_open(&a, rank, all, argument, 0);
    product_enqueue(&a.ordinary, a.stream, &requests[0]);
    stays(&fake->enqueued, PAIR);
    meet(&a);
    if (rank == LATE_RANK) {
        fake->fail_gpu = LATE_RANK;
        fake->fail = FAKE_LAUNCH_START;
    }
    meet(&a);
    alone_enqueue(&a, a.stream, &requests[1]);
    stays(&fake->begun, PAIR + 1);
    CHECK(fake->ended == 1 && fake->enqueued == PAIR + 1);
    meet(&a);
    fake->stay = 0;
    request_end(requests[0]);
    FAILS(fcc_request_wait(requests[1], -1), -EIO, "rank 1", "launching an operator", "made to fail");
    fcc_request_free(requests[1]);
    product_works(&a.ordinary, a.stream);
    product_works(&a.sum, a.stream);
    actor_close(&a);
}
STAY(refused)

/* ---- the end of all, while a part runs and waits for a rank whose stream does not come ---- */

#define WHY "the loss is not a number"
#define OUTSIDE "night shift"

enum end { KILLED, LATE, ABORTED, ABORTED_OUTSIDE, DRAINED, DRAINED_TOO_LATE };

struct ending {
    struct scene scene;
    enum end end;
    _Atomic int ready, heard;
};

static void verdict_check(const struct ending *e, fcc_request *request)
{
    static const struct {
        int status;
        const char *says[3]; /* NULL at the end */
    } verdicts[] = {
        [KILLED] = {-ECONNABORTED, {"rank 1", "gone"}},
        [LATE] = {-ETIMEDOUT, {"#3: the stream of rank 1 did not come to it within the time limit"}},
        [ABORTED] = {-ECONNABORTED, {"rank 1", WHY}},
        [ABORTED_OUTSIDE] = {-ECONNABORTED, {"fccctl", OUTSIDE}},
        [DRAINED] = {0, {NULL}},
        [DRAINED_TOO_LATE] = {-ESHUTDOWN, {"shutting down"}},
    };
    int status = fcc_request_wait(request, -1);

    if (e->end == DRAINED)
        OK(status);
    else
        check_error(__FILE__, __LINE__, "fcc_request_wait", status, verdicts[e->end].status, verdicts[e->end].says);
    fcc_request_free(request);
}

/* The communicator has ended; the GPUs have not. */
static void others_work(struct actor *a, const struct ending *e)
{
    int n = e->end == KILLED ? PAIR - 1 : PAIR;
    struct product other = product_open(client_join(a->context, &a->scene->other, n, a->rank, 0));

    product_works(&other, a->stream);
    fcc_comm_destroy(other.comm);
}

static void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    fcc_request *requests[MANY];
    struct actor a;

    actor_open(&a, rank, all, &e->scene, e->end == LATE ? LIMIT_MS : 0);
    if (rank == LATE_RANK)
        stream_gate(a.stream, &e->scene.open);
    for (int i = 0; i < MANY; i++)
        alone_enqueue(&a, a.stream, &requests[i]);
    stays(&fake->enqueued, PAIR * AHEAD);
    stays(&fake->begun, PAIR - 1);
    e->ready++;
    await(&e->ready, PAIR);
    if (rank == LATE_RANK && e->end == KILLED)
        (void)pause();
    if (rank == LATE_RANK && e->end == ABORTED)
        OK(fcc_comm_abort(a.comm, WHY));
    for (int i = 0; i < MANY; i++)
        verdict_check(e, requests[i]);
    if (rank == LATE_RANK)
        e->scene.open = 1;
    stream_sync(a.stream); /* of the other ranks before the late one's has come */
    if (e->end < DRAINED)
        others_work(&a, e);
    actor_close(&a);
}

static void end_make(struct ending *e, struct test_daemon *d, struct ranks *r)
{
    char text[1024];
    int status;

    await(&e->ready, PAIR);
    if (e->end == KILLED) {
        CHECK(kill(r->pid[LATE_RANK], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(r, LATE_RANK)));
    } else if (e->end == ABORTED_OUTSIDE) {
        CHECK(program_run(text, sizeof(text), fccctl_binary(),
                          (const char *const[]){"abort", "--comm", "1", "--reason", OUTSIDE, NULL}) == 0);
    } else if (e->end >= DRAINED) {
        CHECK(kill(d->pid, SIGTERM) == 0);
        CHECK(daemon_logged(d, "shutting down", 5000));
    }
    if (e->end == DRAINED) {
        (void)usleep(50000);
        CHECK(waitpid(d->pid, &status, WNOHANG) == 0 && fake->begun == PAIR - 1);
        e->scene.open = 1;
    }
}

static void ending_run(enum end end, enum kind kind)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, end == DRAINED_TOO_LATE ? (const char *const[]){"--drain-ms", "200", NULL} : NULL);
    *e = (struct ending){.end = end, .scene = {.kind = kind, .other = id_make()}};
    ranks_start(&r, PAIR, ending_rank, e);
    end_make(e, &d, &r);
    ranks_join(&r);
    if (end < DRAINED) {
        fake_stop(&d);
        return;
    }
    CHECK(waitpid(d.pid, &status, 0) == d.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fake_check();
}

#define ENDING(name, end)                                                                                                      \
    static void name##_meeting(void)                                                                                           \
    {                                                                                                                          \
        ending_run(end, MEETING);                                                                                              \
    }                                                                                                                          \
    static void name##_sum(void)                                                                                               \
    {                                                                                                                          \
        ending_run(end, SUM);                                                                                                  \
    }
ENDING(killed, KILLED)
ENDING(late, LATE)
ENDING(aborted, ABORTED)
ENDING(aborted_outside, ABORTED_OUTSIDE)
ENDING(drained, DRAINED)
ENDING(drained_too_late, DRAINED_TOO_LATE)

int main(int argc, char *argv[])
{
#define BOTH(name)                                                                                                             \
    {#name "_meeting", name##_meeting, 0},                                                                                     \
    {                                                                                                                          \
#name "_sum", name##_sum, 0                                                                                            \
    }
    static const struct test tests[] = {
        BOTH(begins),
        BOTH(one_stream),
        BOTH(beside),
        BOTH(depth),
        BOTH(behind_ordinary),
        BOTH(before_ordinary),
        BOTH(half),
        {"slots_grow", slots_grow, 0},
        {"mixture", mixture, 0},
        BOTH(data),
        BOTH(refused),
        BOTH(killed),
        BOTH(late),
        BOTH(aborted),
        BOTH(aborted_outside),
        BOTH(drained),
        BOTH(drained_too_late),
    };
#undef BOTH
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_alone", TESTS(tests));
}
