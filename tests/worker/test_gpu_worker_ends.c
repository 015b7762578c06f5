/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_ends.c - the end of a worker with GPUs: its context is lost, or the daemon is stopped. With the real daemon and
 * the real library on fake GPUs; some of the same on real ones is in test_gpu_jobs.c.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { VICTIM = 1 };

/* ---- a lost context ends the worker ---- */

struct loss {
    bool idle; /* nothing runs: it is noticed because a client has died */
    _Atomic int ready, heard, again;
};

static void lost_rank(int rank, const struct ranks *all, void *argument)
{
    struct loss *loss = argument;
    fcc_request *request = NULL;
    struct fcc_unique_id id;
    int status = 0;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    if (!loss->idle) {
        product_enqueue(&p, stream, &request);
        OK(fcc_noop_enqueue(p.comm, stream, NULL));
    }
    loss->ready++;
    if (loss->idle && rank == VICTIM)
        (void)pause();
    if (request)
        status = fcc_request_wait(request, -1);
    while (!request && !(status = fcc_get_unique_id(context, &id)))
        (void)usleep(1000);
    check_error(__FILE__, __LINE__, "after a loss", status, -ECONNRESET,
                (const char *const[]){"the GPU contexts of job 'test' are lost", "cuda GPU 1", "connect again", NULL});
    stream_close(stream); /* it has gone on */
    FAILS(fcc_noop(p.comm), -ECONNRESET, "lost");
    loss->heard++;
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void again_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    product_works(&p, stream);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void lost_run(bool idle)
{
    struct loss *loss = shared_memory(sizeof(*loss));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    loss->idle = idle;
    fake->hold = ALL_GPUS;
    ranks_start(&r, 2, lost_rank, loss);
    await(&loss->ready, 2);
    pid_t worker = daemon_worker(&d);
    if (!idle)
        await(&fake->begun, 2);
    fake->lost = 2;
    if (idle) {
        CHECK(kill(r.pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, VICTIM)));
    }
    ranks_join(&r);
    CHECK(daemon_logged(&d, "GPU contexts of job 'test' are lost", true));
    for (double until = await_end(); kill(worker, 0) == 0; (void)usleep(1000))
        CHECK(now_ms() < until);
    fake->lost = fake->hold = 0;
    fake->contexts = fake->memories = fake->registered = fake->launches = 0; /* the process has ended */
    ranks_start(&r, 2, again_rank, NULL);
    ranks_join(&r);
    CHECK(daemon_logged(&d, "closed", true));
    for (double until = await_end(); fake->closed == 0; (void)usleep(1000)) /* the fresh worker, when it has been idle */
        CHECK(now_ms() < until);
    fake_check();
    daemon_stop_unclean(&d); /* the log has the error that was wanted */
}

static void lost_while_running(void)
{
    lost_run(false);
}

static void lost_after_a_death(void)
{
    lost_run(true);
}

/* ---- the daemon ends while an operator waits for a stream ---- */

struct drain {
    bool comes; /* the stream, in time */
    bool deaf;  /* kernels do not hear that they are to leave */
    _Atomic int enqueued, open, ready;
};

static void drain_rank(int rank, const struct ranks *all, void *argument)
{
    struct drain *drain = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    if (rank)
        stream_gate(stream, &drain->open);
    product_enqueue(&p, stream, &request);
    drain->enqueued++;
    if (drain->comes)
        OK(fcc_request_wait(request, -1));
    else if (drain->deaf)
        FAILS(fcc_request_wait(request, -1), -ECONNRESET, "the worker of job 'test'", "is gone");
    else
        FAILS(fcc_request_wait(request, -1), -ESHUTDOWN, "shutting down", "200 ms");
    FAILS(fcc_noop(p.comm), drain->deaf ? -ECONNRESET : -ESHUTDOWN);
    drain->open = 1;
    stream_close(stream);
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void drain_run(bool comes, bool deaf)
{
    struct drain *drain = shared_memory(sizeof(*drain));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--drain-ms", comes ? "3600000" : "200", NULL});
    drain->comes = comes;
    drain->deaf = deaf;
    fake->deaf = deaf ? ALL_GPUS : 0;
    ranks_start(&r, 2, drain_rank, drain);
    await(&drain->enqueued, 2);
    (void)usleep(50000);
    CHECK(kill(d.pid, SIGTERM) == 0);
    CHECK(daemon_logged(&d, "shutting down", true));
    if (comes) {
        (void)usleep(50000);
        CHECK(waitpid(d.pid, &status, WNOHANG) == 0 && fake->begun == 0);
        drain->open = 1;
    }
    ranks_join(&r);
    CHECK(waitpid(d.pid, &status, 0) == d.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!deaf)
        fake_check();
}

static void drained(void)
{
    drain_run(true, false);
}

static void drained_too_late(void)
{
    drain_run(false, false);
}

/* What does not leave when it is told to is killed with its worker. */
static void drained_deaf(void)
{
    drain_run(false, true);
}

/* ---- kernels of the program's own: what they have of other ranks, and how that ends ---- */

static void symmetric_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *b;
    const int32_t *status;
    uint64_t words[PAIR], *at[PAIR];
    int mappings;

    (void)argument;
    driver_use();
    context = client_connect(NULL);
    comm = client_join(context, &all->id, PAIR, rank, 0);
    mappings = driver->mappings; /* the words of streams */
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, sizeof(words), &b));
    OK(fcc_comm_status(comm, &status));
    for (int r = 0; r < PAIR; r++)
        OK(fcc_buffer_peer(b, r, (void **)&at[r]));
    CHECK(driver->mappings == mappings + PAIR && at[rank] == fcc_buffer_data(b) && at[rank] != at[1 - rank] && *status == 0);
    for (int r = 0; r < PAIR; r++) /* the fake's memory is the CPU's, too */
        at[r][rank] = (uint64_t)rank * 10 + (uint64_t)r + 1;
    OK(fcc_noop(comm));
    OK(fcc_buffer_read(b, 0, words, sizeof(words)));
    CHECK(words[0] == (uint64_t)rank + 1 && words[1] == 10 + (uint64_t)rank + 1);
    OK(fcc_noop(comm));
    driver->fail = DRIVER_memory_map;
    fcc_buffer *other;
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &other), -EIO, "cuMemMap");
    driver->fail = -1;
    OK(fcc_noop(comm));
    if (rank == 0) {
        fcc_comm_destroy(comm);
        client_end(context);
        return;
    }
    for (double until = await_end(); !__atomic_load_n(status, __ATOMIC_ACQUIRE);)
        AWAITING(until);
    at[0][0] = 1; /* kept for us */
    client_end(context);
}

static void symmetric_memory(void)
{
    fake_ranks_run(PAIR, symmetric_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"lost_while_running", lost_while_running, 0},
        {"lost_after_a_death", lost_after_a_death, 0},
        {"drained", drained, 0},
        {"drained_too_late", drained_too_late, 0},
        {"drained_deaf", drained_deaf, 0},
        {"symmetric_memory", symmetric_memory, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_ends", TESTS(tests));
}
