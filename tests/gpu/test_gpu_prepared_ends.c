/* SPDX-License-Identifier: MIT
 *
 * test_gpu_prepared_ends.c - prepared operators whose run a rank does not come to, through the real daemon on NVIDIA GPUs: for whatever
 * reason, all others' streams go on, they hear why, and the GPUs are free for another communicator. How long it took is printed, and
 * decides nothing.
 */
#include "tests/bed/mps.h"
#include "tests/gpu/gpu_client.h"

enum { LIMIT_MS = 500 };
#define WHY "the loss is not a number"

/* The last rank does not come to a run; of KILLED_WAITING it is the first one, which waits for it, that dies. */
enum event { LATE, KILLED, KILLED_WAITING, ABORTED, WORKER_KILLED };

static const struct {
    const char *name;
    int status;
    const char *says[3]; /* NULL at the end */
} verdicts[] = {
    [LATE] = {"late", -ETIMEDOUT, {"did not come within the time limit"}},
    [KILLED] = {"killed", -ECONNABORTED, {"gone"}},
    [KILLED_WAITING] = {"killed while it waited", -ECONNABORTED, {"rank 0", "gone"}},
    [ABORTED] = {"aborted", -ECONNABORTED, {WHY}},
    [WORKER_KILLED] = {"worker killed", -ECONNRESET, {"is gone"}},
};

struct scene {
    enum event event;
    bool rows; /* of a gemm, for which the ranks meet */
    bool mps;
    int n;
    struct fcc_unique_id warm, other;
    _Atomic int gates[3];
    _Atomic int waiting, heard;
    double event_ms;
};

static void gate_pass(struct scene *scene, int gate)
{
    scene->gates[gate]++;
    await(&scene->gates[gate], scene->n);
}

/* Under MPS a process that dies while its kernel runs takes the others' contexts with it. */
static bool contexts_may_go(const struct scene *scene)
{
    return scene->mps && scene->event == KILLED_WAITING;
}

static int killed_rank(const struct scene *scene)
{
    return scene->event == KILLED_WAITING ? 0 : scene->event == KILLED ? scene->n - 1 : -1;
}

/* Both kinds, on a stream, of which one's result is looked at. */
static void prepared_work(const struct product *p, void *stream, float value)
{
    fcc_prepared *gemv = product_prepare(p, false), *gemm = product_prepare(p, true);

    OK(fcc_prepared_enqueue(gemm, stream));
    CU(gpu.stream_synchronize(stream));
    OK(fcc_noop(p->comm));
    gpu_fill(stream, p->x, PRODUCT_K, value);
    OK(fcc_prepared_enqueue(gemv, stream));
    product_fetch(p, stream);
    CU(gpu.stream_synchronize(stream));
    product_check(p, gpu.host, value);
    fcc_prepared_free(gemv);
    fcc_prepared_free(gemm);
}

/* Contexts and kernels take their time: they are there before the communicator with the time limit is. */
static void warm_up(fcc_context *context, int rank, struct scene *scene)
{
    fcc_comm *comm = client_join(context, &scene->warm, scene->n, rank, -1, 0);

    gpu_open(comm);
    struct product p = product_open(comm, SENT_ROWS * scene->n);
    prepared_work(&p, stream_open(CUDA_STREAM_OWN_ORDER), 2);
    gate_pass(scene, 0);
    fcc_comm_destroy(comm);
}

/* It is over, and stays so. */
static void verdict_check(const struct scene *scene, const struct product *p, fcc_prepared *prepared, void *stream,
                          const int32_t *status)
{
    double until = now_ms() + 60e3;
    int32_t seen, want = verdicts[scene->event].status;

    while (!(seen = __atomic_load_n(status, __ATOMIC_ACQUIRE)))
        CHECK(now_ms() < until);
    if (contexts_may_go(scene)) {
        CHECK(seen == want || seen == -ECONNRESET);
        CHECK(fcc_noop(p->comm) != 0);
        return;
    }
    CHECK(seen == want);
    FAILS(fcc_prepared_enqueue(prepared, stream), want);
    check_error(__FILE__, __LINE__, "fcc_noop", fcc_noop(p->comm), want, verdicts[scene->event].says);
    printf("rank %d heard: %s\n", fcc_comm_rank(p->comm), fcc_last_error());
}

static void waiting_run(struct scene *scene, const struct product *p, fcc_prepared *prepared, void *stream,
                        const int32_t *status)
{
    for (int i = 0; i < 3; i++) /* the first one waits */
        OK(fcc_prepared_enqueue(prepared, stream));
    scene->waiting++;
    int result = gpu.stream_synchronize(stream);
    if (!contexts_may_go(scene))
        CU(result);
    printf("%s%s: rank %d: its stream went on after %.2f ms\n", verdicts[scene->event].name, scene->rows ? ", rows" : "",
           fcc_comm_rank(p->comm), now_ms() - scene->event_ms);
    scene->heard++;
    verdict_check(scene, p, prepared, stream, status);
}

static void absent_run(struct scene *scene, const struct product *p, fcc_prepared *prepared, void *stream,
                       const int32_t *status)
{
    int others = scene->n - 1 - (scene->event == KILLED_WAITING);

    await(&scene->waiting, scene->n - 1);
    if (scene->event == KILLED)
        (void)pause();
    (void)usleep(100000); /* the others' kernels are there */
    if (scene->event == ABORTED) {
        scene->event_ms = now_ms();
        OK(fcc_comm_abort(p->comm, WHY));
    }
    await(&scene->heard, others);
    verdict_check(scene, p, prepared, stream, status);
}

/* Whoever is left, on the same GPUs. */
static void other_works(const struct scene *scene, fcc_context *context, int rank, void *stream)
{
    int killed = killed_rank(scene), n = scene->n - (killed >= 0);
    fcc_comm *comm = client_join(context, &scene->other, n, rank - (killed == 0), gpu.number, 0);
    struct product p = product_open(comm, SENT_ROWS * n);

    prepared_work(&p, stream, 5);
    product_works(&p, 7);
    fcc_comm_destroy(comm);
}

static void member_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    const int32_t *status;

    warm_up(context, rank, scene);
    gate_pass(scene, 1);
    fcc_comm *comm = client_join(context, &all->id, scene->n, rank, -1, scene->event == LATE ? LIMIT_MS : 0);
    struct product p = product_open(comm, SENT_ROWS * scene->n);
    fcc_prepared *prepared = product_prepare(&p, scene->rows);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_comm_status(comm, &status));
    OK(fcc_noop(comm));
    OK(fcc_prepared_enqueue(prepared, stream));
    CU(gpu.stream_synchronize(stream));
    gate_pass(scene, 2);
    if (rank == scene->n - 1)
        absent_run(scene, &p, prepared, stream, status);
    else
        waiting_run(scene, &p, prepared, stream, status);
    fcc_prepared_free(prepared);
    if (scene->event != WORKER_KILLED && !contexts_may_go(scene))
        other_works(scene, context, rank, stream);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* The test's process makes it happen, unless a rank or the time does. */
static void event_make(struct scene *scene, const struct test_daemon *d, struct ranks *r)
{
    int killed = killed_rank(scene);

    await(&scene->waiting, scene->n - 1);
    if (scene->event == LATE)
        scene->event_ms = now_ms() + LIMIT_MS;
    (void)usleep(100000);
    if (scene->event == KILLED || scene->event == KILLED_WAITING || scene->event == WORKER_KILLED)
        scene->event_ms = now_ms();
    if (scene->event == WORKER_KILLED)
        CHECK(kill(daemon_worker(d), SIGKILL) == 0);
    if (killed < 0)
        return;
    CHECK(kill(r->pid[killed], SIGKILL) == 0);
    CHECK(WIFSIGNALED(rank_wait(r, killed)));
}

static void event_run(enum event event, bool rows)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    if (gpus < 2)
        test_skip("skipped: this machine has one GPU");
    daemon_start(&d, NULL);
    *scene = (struct scene){.event = event, .rows = rows, .mps = mps_answers(), .n = gpus > 2 ? 3 : 2};
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &scene->warm));
    OK(fcc_get_unique_id(context, &scene->other));
    fcc_disconnect(context);
    ranks_start(&r, scene->n, member_rank, scene);
    event_make(scene, &d, &r);
    ranks_join(&r);
    if (event == WORKER_KILLED || contexts_may_go(scene))
        daemon_stop_unclean(&d); /* the log has the error that was wanted */
    else
        daemon_stop(&d);
}

#define EVENT(name, event, rows)                                                                                               \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        event_run(event, rows);                                                                                                \
    }
EVENT(never_comes, LATE, false)
EVENT(never_comes_for_rows, LATE, true)
EVENT(killed, KILLED, false)
EVENT(killed_for_rows, KILLED, true)
EVENT(killed_waiting, KILLED_WAITING, false)
EVENT(killed_waiting_for_rows, KILLED_WAITING, true)
EVENT(aborted, ABORTED, false)
EVENT(aborted_for_rows, ABORTED, true)
EVENT(worker_killed, WORKER_KILLED, false)
EVENT(worker_killed_for_rows, WORKER_KILLED, true)

int main(void)
{
    static const struct test tests[] = {
        {"never_comes", never_comes, 0},
        {"never_comes_for_rows", never_comes_for_rows, 0},
        {"killed", killed, 0},
        {"killed_for_rows", killed_for_rows, 0},
        {"killed_waiting", killed_waiting, 0},
        {"killed_waiting_for_rows", killed_waiting_for_rows, 0},
        {"aborted", aborted, 0},
        {"aborted_for_rows", aborted_for_rows, 0},
        {"worker_killed", worker_killed, 0},
        {"worker_killed_for_rows", worker_killed_for_rows, 0},
    };
    return gpus_found() ? tests_run("gpu_prepared_ends", TESTS(tests)) : EXIT_SUCCESS;
}
