/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_errors.c - nothing hangs and nothing is left behind, with the real daemon and the real library on fake
 * GPUs: ranks, streams and kernels that do not come or do not end, a runtime that refuses. How a worker ends is in
 * test_gpu_worker_ends.c. Some of the same on real GPUs is in test_gpu_errors.c and test_gpu_jobs.c; here it runs under the
 * sanitizers, and comes about at will.
 */
#include "fake_gpu_bed.h"

/* ---- failures: the others hear who and why, streams go on, and the GPUs are free for another communicator ---- */

enum { MEMBERS = 3, VICTIM = 1, LIMIT_MS = 1000 };
#define WHY "the loss is not a number"
#define OUTSIDE "night shift"

enum event { KILLED, LATE, ABORTED, ABORTED_OUTSIDE };
enum victim {
    DOES_NOT_COME, /* to the operator */
    STREAM_LATE,   /* has enqueued it, but its stream does not come */
    KERNELS_HELD,  /* the operator runs, and does not end by itself */
};

struct scene {
    enum event event;
    enum victim victim;
    bool host_words;   /* streams hand over in the host's memory */
    bool other_exists; /* another communicator on the same GPUs, already then: the worker, not the GPU, waits for the streams */
    struct fcc_unique_id other;
    _Atomic int begun, heard, open;
};

static void verdict_check(const struct scene *scene, const char *call, int status)
{
    static const struct {
        int status;
        const char *says[4]; /* NULL at the end */
    } verdicts[] = {
        [KILLED] = {-ECONNABORTED, {"rank 1", "pid", "gone"}},
        [ABORTED] = {-ECONNABORTED, {"rank 1", WHY}},
        [ABORTED_OUTSIDE] = {-ECONNABORTED, {"fccctl", OUTSIDE}},
    };
    static const char *const late[][4] = {
        [DOES_NOT_COME] = {"rank 1 did not come within the time limit of 1000 ms"},
        [STREAM_LATE] = {"the stream of rank 1 did not come to it within the time limit of 1000 ms"},
        [KERNELS_HELD] = {"ran longer than the time limit of 1000 ms"},
    };

    if (scene->event == LATE)
        check_error(__FILE__, __LINE__, call, status, -ETIMEDOUT, late[scene->victim]);
    else
        check_error(__FILE__, __LINE__, call, status, verdicts[scene->event].status, verdicts[scene->event].says);
}

static struct product other_open(fcc_context *context, int rank, const struct scene *scene)
{
    return product_open(client_join(context, &scene->other, MEMBERS - 1, rank > VICTIM, 0));
}

static void survivor_run(fcc_context *context, int rank, const struct product *p, struct scene *scene)
{
    void *stream = stream_open();
    struct product other;
    fcc_request *request;

    if (scene->other_exists)
        other = other_open(context, rank, scene);
    product_enqueue(p, stream, &request);
    product_enqueue(p, stream, NULL);
    scene->begun++;
    verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
    stream_sync(stream);
    scene->heard++;
    await(&scene->heard, MEMBERS - 1);
    verdict_check(scene, "fcc_comm_error", fcc_comm_error(p->comm));
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm));
    fake->hold = 0;
    if (!scene->other_exists)
        other = other_open(context, rank, scene);
    product_works(&other, stream);
    fcc_request_free(request);
    fcc_comm_destroy(other.comm);
    stream_close(stream);
}

static void victim_run(const struct product *p, struct scene *scene)
{
    void *stream = stream_open();
    fcc_request *request = NULL;

    if (scene->victim == STREAM_LATE)
        stream_gate(stream, &scene->open);
    if (scene->victim != DOES_NOT_COME)
        product_enqueue(p, stream, &request);
    scene->begun++;
    if (scene->event == KILLED)
        (void)pause();
    if (scene->event == ABORTED) {
        await(&scene->begun, MEMBERS);
        if (scene->victim == KERNELS_HELD)
            await(&fake->begun, GPUS);
        (void)usleep(20000); /* the others sleep in their wait */
        OK(fcc_comm_abort(p->comm, WHY));
    }
    if (request)
        verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
    await(&scene->heard, MEMBERS - 1);
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm)); /* it comes too late: it hears why */
    scene->open = 1;
    stream_close(stream);
    fcc_request_free(request);
}

static void member_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, MEMBERS, rank, scene->event == LATE ? LIMIT_MS : 0));
    if (rank == VICTIM)
        victim_run(&p, scene);
    else
        survivor_run(context, rank, &p, scene);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

/* The test's process makes it happen, unless the ranks or the time do. */
static void event_make(struct scene *scene, struct ranks *r)
{
    char text[1024];

    await(&scene->begun, MEMBERS);
    if (scene->event == LATE || scene->event == ABORTED)
        return;
    if (scene->victim == KERNELS_HELD)
        await(&fake->begun, GPUS);
    (void)usleep(20000);
    if (scene->event == KILLED) {
        CHECK(kill(r->pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(r, VICTIM)));
        return;
    }
    int code = program_run(text, sizeof(text), fccctl_binary(),
                           (const char *const[]){"abort", "--comm", "1", "--reason", OUTSIDE, NULL});
    if (code)
        check_failed(__FILE__, __LINE__, "fccctl abort: %d: %s", code, text);
}

static void event_run(enum event event, enum victim victim, bool other_exists, bool host_words)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    (void)fprintf(stderr, "event %d, victim %d, other %d\n", event, victim, other_exists);
    fake_start(&d, GPUS, NULL);
    fake->no_gpu_words = host_words;
    *scene = (struct scene){.event = event, .victim = victim, .other_exists = other_exists};
    scene->other = id_make();
    fake->hold = victim == KERNELS_HELD ? ALL_GPUS : 0;
    ranks_start(&r, MEMBERS, member_rank, scene);
    event_make(scene, &r);
    ranks_join(&r);
    fake_stop(&d);
}

/* One test for each: in the order of the enums. */
#define EVENT(name, event, victim)                                                                                             \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        event_run(event, victim, false, false);                                                                                \
    }                                                                                                                          \
    static void name##_beside_another(void)                                                                                    \
    {                                                                                                                          \
        event_run(event, victim, true, false);                                                                                 \
    }
EVENT(killed, KILLED, DOES_NOT_COME)
EVENT(killed_late, KILLED, STREAM_LATE)
EVENT(killed_held, KILLED, KERNELS_HELD)
EVENT(late, LATE, DOES_NOT_COME)
EVENT(late_stream, LATE, STREAM_LATE)
EVENT(late_held, LATE, KERNELS_HELD)
EVENT(aborted, ABORTED, DOES_NOT_COME)
EVENT(aborted_late, ABORTED, STREAM_LATE)
EVENT(aborted_held, ABORTED, KERNELS_HELD)
EVENT(aborted_outside, ABORTED_OUTSIDE, DOES_NOT_COME)
EVENT(aborted_outside_late, ABORTED_OUTSIDE, STREAM_LATE)
EVENT(aborted_outside_held, ABORTED_OUTSIDE, KERNELS_HELD)

/* Streams that have not come, by the other words. */
static void killed_late_host_words(void)
{
    event_run(KILLED, STREAM_LATE, false, true);
}

static void late_stream_host_words(void)
{
    event_run(LATE, STREAM_LATE, false, true);
}

static void aborted_late_host_words(void)
{
    event_run(ABORTED, STREAM_LATE, false, true);
}

/* ---- a stream that comes to an operator when that has long been aborted ---- */

/* Its late write must not undo that of the next operator, which another stream has made by then. */
static void late_write_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *blocked = stream_open(), *stream = stream_open();
    if (rank)
        stream_gate(blocked, &scene->open);
    product_enqueue(&p, blocked, &request);
    scene->begun++;
    await(&scene->begun, PAIR);
    (void)usleep(50000); /* it is in the GPUs' queues */
    if (!rank)
        OK(fcc_comm_abort(p.comm, WHY));
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, WHY);
    fcc_request_free(request);
    struct product other = product_open(client_join(context, &scene->other, PAIR, rank, LIMIT_MS));
    if (rank) {
        product_enqueue(&other, stream, &request);
        (void)usleep(50000); /* the stream has written its word, and waits */
        scene->open = 1;
        stream_sync(blocked);
    }
    scene->heard++;
    await(&scene->heard, PAIR);
    if (!rank)
        product_enqueue(&other, stream, &request);
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
    stream_close(blocked);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    fcc_comm_destroy(other.comm);
    client_end(context);
}

static void late_write(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    scene->other = id_make();
    ranks_start(&r, PAIR, late_write_rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- memory that kernels touch outlives its session ---- */

static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *steps = argument; /* submitted */
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    struct product p = product_open(comm);
    if (rank == VICTIM) {
        product_enqueue(&p, stream_open(), NULL);
        (*steps)++;
        (void)pause();
    }
    OK(fcc_gemv_all_reduce_start(comm, &p.args, &request));
    (*steps)++;
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, "rank 1", "gone"); /* at once: no stream of its own waits */
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    client_end(context);
}

/* Kernels go on that do not hear of the abort: what they touch stays, though nobody uses it any more. */
static void memory_outlives_its_session(void)
{
    _Atomic int *steps = shared_memory(sizeof(*steps));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->deaf = ALL_GPUS;
    fcc_context *third = client_connect(NULL); /* keeps the worker */
    ranks_start(&r, 2, outlive_rank, steps);
    await(steps, 2);
    await(&fake->begun, 2);
    int registered = fake->registered, memories = fake->memories;
    /* 2 sessions and the comm; each rank's flags, x, w, y; staging; each session's words on both GPUs */
    CHECK(registered == 3 && memories == 2 * 4 + 2 + 2 * 2);
    CHECK(kill(r.pid[VICTIM], SIGKILL) == 0);
    CHECK(WIFSIGNALED(rank_wait(&r, VICTIM)) && rank_wait(&r, 0) == 0);
    CHECK(daemon_logged(&d, "comm 1: aborted", 1000));
    (void)usleep(100000);
    CHECK(fake->registered == registered && fake->memories == memories && fake->ended == 0);
    fake->deaf = 0;
    await_less(&fake->registered, 0);
    CHECK(fake->memories == 0 && fake->ended == 2 && fake->closed == 0);
    fcc_disconnect(third);
    fake_stop(&d);
}

/* ... and the worker stays until they have ended, though it has no client. */
static void kernels_outlive_all_sessions(void)
{
    _Atomic int *steps = shared_memory(sizeof(*steps));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->deaf = ALL_GPUS;
    ranks_start(&r, 2, outlive_rank, steps);
    await(&fake->begun, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK(kill(r.pid[rank], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, rank)));
    }
    (void)usleep(200000);
    CHECK(fake->closed == 0 && fake->ended == 0);
    fake->deaf = 0;
    fake_stop(&d);
}

/* ---- a slot that a kernel will write to is not given back before ---- */

static void slot_stays_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *looked = argument;
    fcc_request *request;
    int done = 0;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open();
    product_enqueue(&p, stream, &request);
    await(&fake->begun, PAIR);
    if (!rank)
        OK(fcc_comm_abort(p.comm, WHY));
    FAILS(fcc_noop(p.comm), -ECONNABORTED, WHY);
    (void)usleep(50000);
    OK(fcc_request_test(request, &done));
    CHECK(!done);
    (*looked)++;
    await(looked, PAIR);
    fake->deaf = 0;
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, WHY);
    stream_close(stream);
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void slot_stays(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->deaf = ALL_GPUS;
    ranks_start(&r, PAIR, slot_stays_rank, shared_memory(sizeof(_Atomic int)));
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what a kernel finds wrong is told in the cpu's words ---- */

enum { ROWS = 50, DIM = 8, BATCH = 40, POOL = 5, BAG = 7, POSITION = 3 };

/* Bags of one table per rank; rank 1 has an index that is none. */
static struct fcc_embedding_all_to_all_args bags_open(fcc_comm *comm, bool wrong)
{
    static const int64_t rows = ROWS;
    int64_t offsets[BATCH + 1], row = ROWS;
    fcc_buffer *table, *indices, *begins, *out;
    int n = fcc_comm_size(comm);

    for (int i = 0; i <= BATCH; i++)
        offsets[i] = i * POOL;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, ROWS * DIM * sizeof(float), &table));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, BATCH * POOL * sizeof(int64_t), &indices));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(offsets), &begins));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)BATCH * (size_t)n * DIM * sizeof(float), &out));
    OK(fcc_buffer_write(begins, 0, offsets, sizeof(offsets)));
    if (wrong)
        OK(fcc_buffer_write(indices, (BAG * POOL + POSITION) * sizeof(row), &row, sizeof(row)));
    return (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(table, 0, FCC_F32, ROWS, DIM),
                                                  .table_rows = &rows,
                                                  .num_tables = 1,
                                                  .indices = fcc_tensor_1d(indices, 0, FCC_I64, BATCH * POOL),
                                                  .offsets = fcc_tensor_1d(begins, 0, FCC_I64, BATCH + 1),
                                                  .batch = BATCH,
                                                  .out = fcc_tensor_3d(out, 0, FCC_F32, BATCH / n, n, DIM)};
}

/* The fake kernel says of rank 1 what a real one would have found. */
static void failure_arm(int rank)
{
    if (rank != 1)
        return;
    fake->failing_rank = 1;
    fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX,
                                         .at = BAG * POOL + POSITION,
                                         .value = ROWS,
                                         .bag = BAG,
                                         .position = POSITION,
                                         .most = ROWS - 1};
    fake->failing = 1;
}

static void failure_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *second = argument;
    struct fcc_embedding_all_to_all_args args;
    char text[512];
    fcc_comm *on_cpu;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    OK(fcc_comm_init(context, second, all->n, rank, NULL, &on_cpu));
    args = bags_open(on_cpu, rank == 1);
    FAILS(fcc_embedding_all_to_all(on_cpu, &args), -ERANGE, "rank 1", "table 0", "bag 7", "position 3");
    (void)snprintf(text, sizeof(text), "%s", fcc_last_error());
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    args = bags_open(p.comm, false);
    void *stream = stream_open();
    failure_arm(rank);
    FAILS(fcc_embedding_all_to_all(p.comm, &args), -ERANGE, text);
    OK(fcc_gemv_all_reduce(p.comm, &p.args)); /* all have heard: one can be armed again */
    failure_arm(rank);
    OK(fcc_embedding_all_to_all_enqueue(p.comm, &args, stream, &request));
    FAILS(fcc_request_wait(request, -1), -ERANGE, text);
    product_works(&p, stream);
    stream_close(stream);
    fcc_request_free(request);
    fcc_comm_destroy(on_cpu);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void failure_record(void)
{
    struct fcc_unique_id *second = shared_memory(sizeof(*second));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *second = id_make();
    ranks_start(&r, 2, failure_rank, second);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what the GPUs' runtime refuses ends one operator, or one call ---- */

static void meet(_Atomic int *at, int *turn, int n)
{
    (*at)++;
    await(at, ++*turn * n);
}

/* Rank 0 says what is to fail, when all have come. */
static void fail_next(int rank, enum fake_call call, uint32_t which, _Atomic int *at, int *turn, int n)
{
    meet(at, turn, n);
    if (rank == 0) {
        fake->fail_gpu = which;
        fake->fail = call;
    }
    meet(at, turn, n);
}

static void refusal_of_launch(int rank, const struct product *p, void *stream, enum fake_call call, uint32_t which,
                              const char *what, _Atomic int *at, int *turn)
{
    int n = fcc_comm_size(p->comm);
    fcc_request *request;

    fail_next(rank, call, which, at, turn, n);
    FAILS(fcc_gemv_all_reduce(p->comm, &p->args), -EIO, what, "made to fail",
          which ? "rank 1: " : "rank 0: ", which ? "cuda GPU 1" : "cuda GPU 0");
    product_works(p, stream);
    if (call == FAKE_LAUNCH_MAKE)
        return; /* it is made now */
    fail_next(rank, call, which, at, turn, n);
    product_enqueue(p, stream, &request);
    FAILS(fcc_request_wait(request, -1), -EIO, what, "made to fail");
    product_works(p, stream);
    fcc_request_free(request);
}

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *at = argument;
    int n = all->n, turn = 0;
    fcc_buffer *buffer;

    driver_use();
    fcc_context *context = client_connect(NULL);
    for (uint32_t which = 0; which < 2; which++) {
        struct fcc_unique_id *id = (struct fcc_unique_id *)(void *)&at[16] + which;
        fcc_comm *comm = client_join(context, id, n, rank, 0);
        struct product p = product_open(comm);
        void *stream = stream_open();
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        FAILS(fcc_gemv_all_reduce(comm, &p.args), -ENOMEM, which ? "rank 1" : "rank 0", "staging memory", "made to fail");
        refusal_of_launch(rank, &p, stream, FAKE_LAUNCH_MAKE, which, "preparing an operator", at, &turn);
        refusal_of_launch(rank, &p, stream, FAKE_LAUNCH_START, which, "launching an operator", at, &turn);
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 100, &buffer), -ENOMEM, "made to fail");
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        if (rank == (int)which)
            FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 100, &buffer), -ENOMEM, "made to fail");
        product_works(&p, stream);
        stream_close(stream);
        fcc_comm_destroy(comm);
    }
    client_end(context);
}

static void refusals(void)
{
    _Atomic int *at = shared_memory(16 * sizeof(*at) + 2 * sizeof(struct fcc_unique_id));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int i = 0; i < 2; i++)
        ((struct fcc_unique_id *)(void *)&at[16])[i] = id_make();
    ranks_start(&r, 2, refusals_rank, at);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
#define PAIR_OF(name)                                                                                                          \
    {#name, name, 0},                                                                                                          \
    {                                                                                                                          \
#name "_beside_another", name##_beside_another, 0                                                                      \
    }
    static const struct test tests[] = {
        PAIR_OF(killed),
        PAIR_OF(killed_late),
        PAIR_OF(killed_held),
        PAIR_OF(late),
        PAIR_OF(late_stream),
        PAIR_OF(late_held),
        PAIR_OF(aborted),
        PAIR_OF(aborted_late),
        PAIR_OF(aborted_held),
        PAIR_OF(aborted_outside),
        PAIR_OF(aborted_outside_late),
        PAIR_OF(aborted_outside_held),
        {"killed_late_host_words", killed_late_host_words, 0},
        {"late_stream_host_words", late_stream_host_words, 0},
        {"aborted_late_host_words", aborted_late_host_words, 0},
        {"late_write", late_write, 0},
        {"memory_outlives_its_session", memory_outlives_its_session, 0},
        {"kernels_outlive_all_sessions", kernels_outlive_all_sessions, 0},
        {"slot_stays", slot_stays, 0},
        {"failure_record", failure_record, 0},
        {"refusals", refusals, 0},
    };
#undef PAIR_OF
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_errors", TESTS(tests));
}
