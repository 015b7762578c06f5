/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_steps_ends.c - runs of a bound program, put onto streams and replayed, to which a rank does not come, whatever the reason: no stream waits
 * for ever, all ranks hear why, and the GPUs are free for another communicator. With the real daemon and the real library on fake GPUs.
 */
#include "tests/fake_gpu/fake_gpu_steps.h"

#define WHY "the loss is not a number"
enum { MEMBERS = GPUS, VICTIM = 1, BEFORE = 2 /* runs of all */ };

/* What befalls the communicator while the others' run waits for the victim. */
enum end { LATE, KILLED, ABORTED, REFUSED, DESTROYED, WORKER_KILLED };

static const struct {
    int status;
    const char *says[4]; /* NULL at the end */
} verdicts[] = {
    [LATE] = {-ETIMEDOUT, {"program_step, prepared as", "run 4", "rank 1 did not come within the time limit"}},
    [KILLED] = {-ECONNABORTED, {"rank 1"}},
    [ABORTED] = {-ECONNABORTED, {"rank 1", WHY}},
    [REFUSED] = {-EIO, {"rank 1: program_step, prepared as", ", the next run: ", "launching an operator: made to fail"}},
    [DESTROYED] = {-ECONNABORTED, {"rank 1", "has left the communicator"}},
    [WORKER_KILLED] = {-ECONNRESET, {"noop: the worker of job", "is gone"}},
};
/* Of a guarded program, whose run waits before its first step. */
static const char *const guard_says[] = {"rank 1: a collective, prepared as",
                                         ", the next run: ", "launching a collective: made to fail", NULL};

struct ending {
    enum end end;
    bool replayed; /* the others' run is a replay */
    bool guarded;
    struct fcc_unique_id other;
    _Atomic int ready, heard;
};

/* The communicator is over, for this reason, and stays so. */
static void verdict_check(const struct ending *e, const struct bound *b, const int32_t *status)
{
    const double until = await_end();
    int32_t seen;

    while (!(seen = __atomic_load_n(status, __ATOMIC_ACQUIRE)))
        AWAITING(until);
    CHECK(seen == verdicts[e->end].status);
    FAILS(fcc_program_enqueue(b->program, b->stream), verdicts[e->end].status, "");
    check_error(__FILE__, __LINE__, "fcc_noop", fcc_noop(b->comm), verdicts[e->end].status,
                e->guarded && e->end == REFUSED ? guard_says : verdicts[e->end].says);
}

/* Kernels that have begun when all others wait for the victim. */
static int runs_before(const struct ending *e)
{
    return MEMBERS * (BEFORE + 1) * (e->guarded ? 2 : 1) + MEMBERS - 1;
}

static void survivor_run(struct ending *e, const struct bound *b, void *graph, const int32_t *status)
{
    const double begun = now_ms();

    for (int i = 0; i < 3; i++)
        if (e->replayed)
            driver->graph_launch(graph, b->stream);
        else
            OK(fcc_program_enqueue(b->program, b->stream));
    e->ready++;
    stream_sync(b->stream);
    printf("rank %d: its runs were let go after %.0f ms\n", b->rank, now_ms() - begun);
    e->heard++;
    verdict_check(e, b, status);
    for (int i = 0; i < 3; i++)
        driver->graph_launch(graph, b->stream); /* replays end at once */
    stream_sync(b->stream);
}

static void victim_run(struct ending *e, const struct bound *b, const int32_t *status)
{
    e->ready++;
    if (e->end == KILLED)
        (void)pause();
    await(&e->ready, MEMBERS);
    await(&fake->runs, runs_before(e));
    if (e->end == ABORTED)
        OK(fcc_comm_abort(b->comm, WHY));
    if (e->end == REFUSED) {
        fake->fail_gpu = VICTIM;
        fake->fail = FAKE_PREPARED_START;
        FAILS(fcc_program_enqueue(b->program, b->stream), -EIO, "rank 1: ",
              e->guarded ? "launching a collective: made to fail"
                         : "launching an operator: made to fail (line 8 of program `sgd`)");
    }
    if (e->end == DESTROYED)
        return;
    await(&e->heard, MEMBERS - 1);
    verdict_check(e, b, status);
}

/* Whoever is left, on the same GPUs. */
static void other_works(const struct ending *e, const struct bound *b)
{
    const int n = MEMBERS - (e->end == KILLED);
    struct bound other;

    bound_join(&other, b->context, &e->other, n, b->rank - (n < MEMBERS && b->rank > VICTIM), 0);
    OK(fcc_program_prepare(other.program));
    for (int i = 0; i < 3; i++) {
        OK(fcc_program_enqueue(other.program, other.stream));
        bound_count(&other, 1, 1);
    }
    stream_sync(other.stream);
    bound_check(&other);
    bound_leave(&other);
}

static void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    struct bound b = bound_open(all, rank, e->end == LATE ? hang_limit_ms() : 0);
    const int32_t *status;

    OK(fcc_comm_status(b.comm, &status));
    OK(e->guarded ? fcc_program_prepare_guarded(b.program) : fcc_program_prepare(b.program));
    driver->capture_begin();
    OK(fcc_program_enqueue(b.program, b.stream));
    void *graph = driver->capture_end();
    for (int i = 0; i < BEFORE; i++)
        OK(fcc_program_enqueue(b.program, b.stream));
    driver->graph_launch(graph, b.stream);
    stream_sync(b.stream);
    OK(fcc_noop(b.comm));
    if (rank == VICTIM)
        victim_run(e, &b, status);
    else
        survivor_run(e, &b, graph, status);
    if (rank == VICTIM && e->end == DESTROYED) {
        fcc_program_close(b.program);
        fcc_comm_destroy(b.comm);
    }
    if (e->end != WORKER_KILLED)
        other_works(e, &b);
    if (rank == VICTIM && e->end == DESTROYED) {
        stream_close(b.stream);
        free(b.m);
    } else {
        bound_leave(&b);
    }
    driver->graph_destroy(graph);
    client_end(b.context);
}

static void ending_run(enum end end, bool replayed, bool guarded)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *e = (struct ending){.end = end, .replayed = replayed, .guarded = guarded, .other = id_make()};
    ranks_start(&r, MEMBERS, ending_rank, e);
    await(&e->ready, MEMBERS);
    await(&fake->runs, runs_before(e));
    if (end == KILLED) {
        CHECK(kill(r.pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, VICTIM)));
        fake->prepared -= guarded ? 2 : 1; /* it had it open, with its kernel, and the rings */
        fake->codes--;
    }
    if (end == WORKER_KILLED)
        CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    ranks_join(&r);
    CHECK(fake->prepared == 0);
    if (end == WORKER_KILLED) {
        CHECK(daemon_logged(&d, "died: Killed", true));
        daemon_stop_unclean(&d); /* the log has the error that was wanted */
    } else {
        fake_stop(&d);
    }
    CHECK(fake->wrong == 0);
}

#define ENDING(name, end)                                                                                                      \
    static void name##_run(void)                                                                                               \
    {                                                                                                                          \
        ending_run(end, false, false);                                                                                         \
    }                                                                                                                          \
    static void name##_replayed(void)                                                                                          \
    {                                                                                                                          \
        ending_run(end, true, false);                                                                                          \
    }                                                                                                                          \
    static void name##_guarded(void)                                                                                           \
    {                                                                                                                          \
        ending_run(end, (end) == LATE || (end) == KILLED, true);                                                               \
    }
ENDING(late, LATE)
ENDING(killed, KILLED)
ENDING(aborted, ABORTED)
ENDING(refused, REFUSED)
ENDING(destroyed, DESTROYED)
ENDING(worker_killed, WORKER_KILLED)

int main(int argc, char *argv[])
{
#define ALL(name)                                                                                                              \
    {#name, name##_run, 0}, {#name "_replayed", name##_replayed, 0},                                                           \
    {                                                                                                                          \
#name "_guarded", name##_guarded, 0                                                                                    \
    }
    static const struct test tests[] = {ALL(late), ALL(killed), ALL(aborted), ALL(refused), ALL(destroyed), ALL(worker_killed)};
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_steps_ends", TESTS(tests));
}
