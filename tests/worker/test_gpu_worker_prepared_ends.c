/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_prepared_ends.c - prepared operators whose run a rank does not come to, whatever the reason: no stream waits for ever,
 * all ranks hear why, and the GPUs are free for another communicator. With the real daemon and the real library on fake GPUs.
 */
#include "tests/fake_gpu/fake_gpu_runs.h"

#define WHY "the loss is not a number"
#define OUTSIDE "night shift"
enum { MEMBERS = GPUS, VICTIM = 1, LAST = 2, BEFORE = 2 /* runs of all */ };

/* What befalls the communicator while a run waits for the victim; or (KILLED_IN_RUN) while the victim, too, waits for the last rank. */
enum end {
    LATE,
    STREAM_LATE,
    KILLED,
    KILLED_IN_RUN,
    ABORTED,
    ABORTED_OUTSIDE,
    REFUSED,
    DESTROYED,
    WORKER_KILLED,
    WORKER_STOPPED,
    STOPPED
};

static const struct {
    int status;
    const char *says[4]; /* NULL at the end */
} verdicts[] = {
    [LATE] = {-ETIMEDOUT, {"run 3", "rank 1 did not come within the time limit", "fccctl flight"}},
    [STREAM_LATE] = {-ETIMEDOUT, {"run 3", "rank 1 did not come within the time limit"}},
    [KILLED] = {-ECONNABORTED, {"rank 1"}},
    [KILLED_IN_RUN] = {-ECONNABORTED, {"rank 1", "gone"}},
    [ABORTED] = {-ECONNABORTED, {"rank 1", WHY}},
    [ABORTED_OUTSIDE] = {-ECONNABORTED, {"fccctl", OUTSIDE}},
    [REFUSED] = {-EIO, {"rank 1: ", ", run 3: ", "launching an operator: made to fail"}},
    [DESTROYED] = {-ECONNABORTED, {"rank 1", "has left the communicator"}},
    [WORKER_KILLED] = {-ECONNRESET, {"noop: the worker of job", "is gone"}},
    [WORKER_STOPPED] = {-ETIMEDOUT, {"noop: the worker of job", "does not answer", "fccctl flight"}},
    [STOPPED] = {-ESHUTDOWN, {"shutting down"}},
};

struct ending {
    enum end end;
    enum work work;
    bool behind; /* the others' streams come to the run when the communicator is over */
    struct fcc_unique_id other;
    pid_t worker; /* that is stopped */
    _Atomic int step, ready, heard, open, victim_open;
};

static bool is_alone(const struct ending *e)
{
    return e->end == WORKER_KILLED || e->end == WORKER_STOPPED ||
           e->end == STOPPED; /* there is no other communicator afterwards */
}

static bool is_killed(const struct ending *e)
{
    return e->end == KILLED || e->end == KILLED_IN_RUN;
}

/* The communicator is over, for this reason, and stays so. status: NULL where the word has not been asked for, as that alone lets the
 * library watch. */
static void verdict_check(const struct ending *e, const struct lane *l, fcc_prepared *p, const int32_t *status)
{
    double until = await_end();
    int32_t seen;

    if (!status)
        OK(fcc_comm_status(l->comm, &status));
    while (!(seen = __atomic_load_n(status, __ATOMIC_ACQUIRE)))
        AWAITING(until);
    CHECK(seen == verdicts[e->end].status);
    FAILS(fcc_prepared_enqueue(p, l->stream), verdicts[e->end].status,
          e->end == WORKER_KILLED || e->end == WORKER_STOPPED ? "fcc_prepared_enqueue: the worker of job" : "");
    check_error(__FILE__, __LINE__, "fcc_noop", fcc_noop(l->comm), verdicts[e->end].status, verdicts[e->end].says);
}

/* Some runs, of which the first waits, or will. */
static void survivor_run(struct ending *e, const struct lane *l, fcc_prepared *p, const int32_t *status)
{
    if (e->behind)
        stream_gate(l->stream, &e->open);
    for (int i = 0; i < 3; i++)
        OK(fcc_prepared_enqueue(p, l->stream));
    e->ready++;
    for (; e->behind && !__atomic_load_n(status, __ATOMIC_ACQUIRE); (void)usleep(200))
        ;
    if (e->behind)
        e->open = 1;
    stream_sync(l->stream);
    e->heard++;
    verdict_check(e, l, p, status);
}

/* It has heard nothing when the others have, unless it comes. */
static void victim_run(struct ending *e, const struct lane *l, fcc_prepared *p, const int32_t *status)
{
    if (e->end == STREAM_LATE)
        stream_gate(l->stream, &e->victim_open);
    if (e->end == STREAM_LATE || e->end == KILLED_IN_RUN)
        OK(fcc_prepared_enqueue(p, l->stream));
    e->ready++;
    if (is_killed(e))
        (void)pause();
    await(&e->ready, MEMBERS);
    if (!e->behind)
        await(&fake->runs, MEMBERS * BEFORE + MEMBERS - 1);
    if (e->end == ABORTED)
        OK(fcc_comm_abort(l->comm, WHY));
    if (e->end == REFUSED) {
        fake->fail_gpu = VICTIM;
        fake->fail = FAKE_PREPARED_START;
        FAILS(fcc_prepared_enqueue(p, l->stream), -EIO, "rank 1: ", "launching an operator: made to fail");
    }
    if (e->end == DESTROYED)
        return;
    await(&e->heard, MEMBERS - 1);
    e->victim_open = 1;
    stream_sync(l->stream);
    verdict_check(e, l, p, status);
}

/* Whoever is left, on the same GPUs. */
static void other_works(const struct ending *e, fcc_context *context, int rank)
{
    int n = MEMBERS - is_killed(e);
    struct lane other;

    lane_join(&other, context, &e->other, n, rank - (n < MEMBERS && rank > VICTIM), 0);
    lane_works(&other);
    lane_leave(&other);
}

static void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    const int32_t *status = NULL;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, e->end == LATE || e->end == STREAM_LATE || e->end == WORKER_STOPPED ? hang_limit_ms() : 0);
    if (e->end != WORKER_STOPPED)
        OK(fcc_comm_status(l.comm, &status));
    fcc_prepared *p = prepare(&l, e->work);
    for (int i = 0; i < BEFORE; i++)
        work_run(&l, e->work, p, l.stream);
    stream_sync(l.stream);
    step_meet(&e->step, MEMBERS, &step);
    if (rank == VICTIM) {
        victim_run(e, &l, p, status);
    } else if (rank == LAST && e->end == KILLED_IN_RUN) {
        e->ready++;
        verdict_check(e, &l, p, status);
        e->heard++;
    } else {
        survivor_run(e, &l, p, status);
    }
    if (rank == VICTIM && e->end == DESTROYED) /* with what is prepared */
        fcc_comm_destroy(l.comm);
    else
        fcc_prepared_free(p);
    if (!is_alone(e))
        other_works(e, l.context, rank);
    stream_close(l.stream);
    if (rank != VICTIM || e->end != DESTROYED)
        fcc_comm_destroy(l.comm);
    client_end(l.context);
}

/* The test's process makes it happen, unless the ranks or the time do. */
static void end_make(struct ending *e, struct test_daemon *d, struct ranks *r)
{
    char text[1024];

    await(&e->ready, MEMBERS);
    if (!e->behind)
        await(&fake->runs, MEMBERS * BEFORE + MEMBERS - 1);
    if (is_killed(e)) {
        CHECK(kill(r->pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(r, VICTIM)));
        fake->prepared--; /* it had it open */
    }
    if (e->end == WORKER_KILLED)
        CHECK(kill(daemon_worker(d), SIGKILL) == 0);
    if (e->end == WORKER_STOPPED)
        CHECK(kill(e->worker = daemon_worker(d), SIGSTOP) == 0);
    if (e->end == STOPPED)
        CHECK(kill(d->pid, SIGTERM) == 0);
    if (e->end != ABORTED_OUTSIDE)
        return;
    int code = program_run(text, sizeof(text), fccctl_binary(),
                           (const char *const[]){"abort", "--comm", "1", "--reason", OUTSIDE, NULL});
    if (code)
        check_failed(__FILE__, __LINE__, "fccctl abort: %d: %s", code, text);
}

static void ending_run(enum end end, enum work work, bool behind)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--drain-ms", "200", NULL});
    *e = (struct ending){.end = end, .work = work, .behind = behind, .other = id_make()};
    ranks_start(&r, MEMBERS, ending_rank, e);
    end_make(e, &d, &r);
    ranks_join(&r);
    CHECK(fake->prepared == 0);
    if (end == WORKER_STOPPED)
        CHECK(kill(e->worker, SIGKILL) == 0);
    if (end == WORKER_KILLED || end == WORKER_STOPPED) {
        CHECK(daemon_logged(&d, "died: Killed", true));
        daemon_stop_unclean(&d); /* the log has the error that was wanted */
    } else if (end == STOPPED) {
        CHECK(waitpid(d.pid, &status, 0) == d.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        fake_check();
    } else {
        fake_stop(&d);
    }
    CHECK(fake->wrong == 0);
}

#define ENDING(name, end, work, behind)                                                                                        \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        ending_run(end, work, behind);                                                                                         \
    }
ENDING(late, LATE, ONE_STEP, false)
ENDING(late_for_rows, LATE, ROWS_SENT, false)
ENDING(stream_late, STREAM_LATE, ONE_STEP, false)
ENDING(stream_late_for_rows, STREAM_LATE, ROWS_SENT, false)
ENDING(killed, KILLED, ONE_STEP, false)
ENDING(killed_for_rows, KILLED, ROWS_SENT, false)
ENDING(killed_before, KILLED, ONE_STEP, true)
ENDING(killed_before_rows, KILLED, ROWS_SENT, true)
ENDING(killed_in_run, KILLED_IN_RUN, ONE_STEP, false)
ENDING(killed_in_run_of_rows, KILLED_IN_RUN, ROWS_SENT, false)
ENDING(aborted, ABORTED, ONE_STEP, false)
ENDING(aborted_for_rows, ABORTED, ROWS_SENT, false)
ENDING(aborted_before, ABORTED, ROWS_SENT, true)
ENDING(aborted_outside, ABORTED_OUTSIDE, ONE_STEP, false)
ENDING(refused, REFUSED, ONE_STEP, false)
ENDING(refused_for_rows, REFUSED, ROWS_SENT, false)
ENDING(destroyed, DESTROYED, ONE_STEP, false)
ENDING(destroyed_for_rows, DESTROYED, ROWS_SENT, false)
ENDING(destroyed_before, DESTROYED, ONE_STEP, true)
ENDING(worker_killed, WORKER_KILLED, ONE_STEP, false)
ENDING(worker_killed_for_rows, WORKER_KILLED, ROWS_SENT, false)
ENDING(worker_killed_before, WORKER_KILLED, ROWS_SENT, true)
ENDING(worker_stopped, WORKER_STOPPED, ONE_STEP, false) /* takes as long as the library's patience: 5 s and more */
ENDING(stopped, STOPPED, ONE_STEP, false)

/* ---- what is no end ---- */

struct pace {
    uint32_t limit_ms;
    _Atomic int step;
};

static void pause_long(void *argument)
{
    (void)usleep(((struct pace *)argument)->limit_ms * 1200);
}

static void pause_short(void *argument)
{
    (void)usleep(((struct pace *)argument)->limit_ms * 300);
}

/* Only a run in which a rank is missing has a time limit: not the streams before it, not the time between runs, not many together. */
static void in_time_rank(int rank, const struct ranks *all, void *argument)
{
    struct pace *pace = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, pace->limit_ms);
    fcc_prepared *p = prepare(&l, ONE_STEP), *q = prepare(&l, ROWS_SENT);
    step_meet(&pace->step, all->n, &step);
    CHECK(gpu.stream_function(l.stream, pause_long, pace) == 0);
    work_run(&l, ONE_STEP, p, l.stream);
    work_run(&l, ROWS_SENT, q, l.stream);
    stream_sync(l.stream);
    (void)usleep(pace->limit_ms * 1200);
    for (int i = 0; i < 4; i++) { /* each rank is late half of the time */
        if (i % PAIR == rank)
            CHECK(gpu.stream_function(l.stream, pause_short, pace) == 0);
        work_run(&l, i % 3 ? ROWS_SENT : ONE_STEP, i % 3 ? q : p, l.stream);
    }
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    fcc_prepared_free(p);
    fcc_prepared_free(q);
    lane_close(&l);
}

static void in_time(void)
{
    struct pace *pace = shared_memory(sizeof(*pace));

    pace->limit_ms = hang_limit_ms();
    fake_ranks_run(PAIR, in_time_rank, pace);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"late", late, 0},
        {"late_for_rows", late_for_rows, 0},
        {"stream_late", stream_late, 0},
        {"stream_late_for_rows", stream_late_for_rows, 0},
        {"killed", killed, 0},
        {"killed_for_rows", killed_for_rows, 0},
        {"killed_before", killed_before, 0},
        {"killed_before_rows", killed_before_rows, 0},
        {"killed_in_run", killed_in_run, 0},
        {"killed_in_run_of_rows", killed_in_run_of_rows, 0},
        {"aborted", aborted, 0},
        {"aborted_for_rows", aborted_for_rows, 0},
        {"aborted_before", aborted_before, 0},
        {"aborted_outside", aborted_outside, 0},
        {"refused", refused, 0},
        {"refused_for_rows", refused_for_rows, 0},
        {"destroyed", destroyed, 0},
        {"destroyed_for_rows", destroyed_for_rows, 0},
        {"destroyed_before", destroyed_before, 0},
        {"worker_killed", worker_killed, 0},
        {"worker_killed_for_rows", worker_killed_for_rows, 0},
        {"worker_killed_before", worker_killed_before, 0},
        {"worker_stopped", worker_stopped, 0},
        {"stopped", stopped, 0},
        {"in_time", in_time, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_prepared_ends", TESTS(tests));
}
