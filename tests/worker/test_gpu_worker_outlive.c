/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_outlive.c - streams and kernels that go on when their communicator, or their session, is over: what they
 * touch stays until they are done with it, and harms nobody. With the real daemon and the real library on fake GPUs.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { VICTIM = 1, LIMIT_MS = 1000 };
#define WHY "the loss is not a number"

/* ---- a stream that comes to an operator when that has long been aborted ---- */

struct scene {
    struct fcc_unique_id other;
    _Atomic int begun, heard, open;
};

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
    CHECK(daemon_logged(&d, "comm 1: aborted", true));
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

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"late_write", late_write, 0},
        {"memory_outlives_its_session", memory_outlives_its_session, 0},
        {"kernels_outlive_all_sessions", kernels_outlive_all_sessions, 0},
        {"slot_stays", slot_stays, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_outlive", TESTS(tests));
}
