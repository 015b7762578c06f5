/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_repeated_ends.c - repeated operators (test_gpu_worker_repeated.c) that fail, or whose communicator ends: nothing waits
 * for ever, and all ranks hear why.
 */
#include "tests/fake_gpu/fake_gpu_repeated.h"

struct scene {
    _Atomic int step, open, heard;
    _Atomic int stopped, launched; /* the worker stands still; ranks that have launched their runs */
};

/* ---- it fails ---- */

/* Operators that fail, because the ranks' are not the same, though each is a run on its rank; if `again`, both ranks have as many runs of each
 * kind then. The worker stands still until all have been launched, so that it finds none of them sooner. All this has been decided when rank 0's
 * stream comes to the first. Then all works, and is bound again. */
static bool again;

static void unequal_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, 0);
    for (int i = 0; i < UNTIL; i++) {
        sum_runs(&l, 1);
        OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
    }
    all_well(&l);
    int bound = fake->bound, recalled = fake->recalled;
    CHECK(bound > 0 && recalled == 0);
    step_meet(&scene->step, PAIR, &step);
    await(&scene->stopped, 1);
    if (rank == 0)
        stream_gate(l.stream, &scene->open);
    for (int i = 0; i < 1 + again; i++)
        if (i == rank)
            sum_runs(&l, 1);
        else
            OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
    sum_runs(&l, 1);
    scene->launched++;
    if (rank == 1) /* whose own failed ones have handed over */
        await(&fake->recalled, 1 + again);
    scene->open |= rank;
    OK(fcc_noop_enqueue(l.comm, l.stream, NULL));
    stream_sync(l.stream);
    OK(fcc_noop(l.comm));
    FAILS(fcc_comm_error(l.comm), -EINVAL, "out of step");
    OK(fcc_comm_error(l.comm));
    step_meet(&scene->step, PAIR, &step);
    CHECK(fake->recalled >= PAIR * (1 + again));
    bound = fake->bound;
    step_meet(&scene->step, PAIR, &step);
    sum_runs(&l, UNTIL + MORE);
    all_well(&l);
    CHECK(fake->bound > bound);
    lane_close(&l);
}

static void unequal_run(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;
    pid_t worker;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, unequal_rank, scene);
    await(&scene->step, PAIR);
    CHECK(kill(worker = daemon_worker(&d), SIGSTOP) == 0);
    scene->stopped = 1;
    await(&scene->launched, PAIR);
    CHECK(kill(worker, SIGCONT) == 0);
    ranks_join(&r);
    fake_stop(&d);
}

static void unequal(void)
{
    again = false;
    unequal_run();
}

static void unequal_again(void)
{
    again = true;
    unequal_run();
}

/* ---- it ends ---- */

/* What befalls the communicator when rank 0 has put some onto its stream, and rank 1 none, or one that does not come. */
enum end { LATE, STREAM_LATE, KILLED, ABORTED, WORKER_KILLED, FAILS_TO_START };

static const struct {
    int status;
    const char *says;
} verdicts[] = {
    [LATE] = {-ETIMEDOUT, "rank 1 did not come within the time limit"},
    [STREAM_LATE] = {-ETIMEDOUT, "the stream of rank 1 did not come"},
    [KILLED] = {-ECONNABORTED, "rank 1"},
    [ABORTED] = {-ECONNABORTED, "no more"},
    [WORKER_KILLED] = {-ECONNRESET, "is gone"},
    [FAILS_TO_START] = {-ECONNABORTED, "could not be put onto its stream"},
};

static enum end end; /* of the test that runs */

static void victim_end(struct scene *scene, struct lane *l)
{
    struct fcc_gemv_all_reduce_args args = gemv_args(l, ONE_STEP);

    args.schedule = FCC_SCHEDULE_FUSED;
    if (end == STREAM_LATE) {
        stream_gate(l->stream, &scene->open);
        OK(fcc_gemv_all_reduce_enqueue(l->comm, &args, l->stream, NULL));
    }
    if (end == FAILS_TO_START) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_PREPARED_START;
        FAILS(fcc_gemv_all_reduce_enqueue(l->comm, &args, l->stream, NULL), -EIO, "rank 1", "made to fail");
    }
    scene->step++;
    if (end == KILLED)
        (void)pause();
    if (end == ABORTED)
        OK(fcc_comm_abort(l->comm, verdicts[end].says));
    await(&scene->heard, 1);
    scene->open = 1;
}

static void end_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, end == LATE || end == STREAM_LATE ? hang_limit_ms() : 0);
    struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP);
    args.schedule = FCC_SCHEDULE_FUSED;
    sum_runs(&l, UNTIL);
    all_well(&l);
    CHECK(fake->bound > 0);
    step_meet(&scene->step, PAIR, &step);
    if (rank) {
        victim_end(scene, &l);
    } else {
        int status = 0;
        for (int i = 0; i < 6 && !status; i++)
            status = fcc_gemv_all_reduce_enqueue(l.comm, &args, l.stream, NULL);
        CHECK(!status || end == FAILS_TO_START); /* which may have come first */
        scene->step++;
        stream_sync(l.stream);
        FAILS(fcc_noop(l.comm), verdicts[end].status, verdicts[end].says);
        scene->heard = 1;
    }
    stream_close(l.stream);
    fcc_comm_destroy(l.comm);
    client_end(l.context);
}

static void end_run(enum end how)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    end = how;
    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, end_rank, scene);
    await(&scene->step, 2 * PAIR);
    if (end == KILLED) {
        CHECK(kill(r.pid[1], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, 1)));
        fake->prepared--; /* it had it open */
    }
    if (end == WORKER_KILLED)
        CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    ranks_join(&r);
    CHECK(fake->prepared == 0 && fake->wrong == 0);
    if (end == WORKER_KILLED) {
        CHECK(daemon_logged(&d, "died: Killed", true));
        daemon_stop_unclean(&d); /* the log has the error that was wanted */
    } else {
        fake_stop(&d);
    }
}

#define ENDING(name, end)                                                                                                      \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        end_run(end);                                                                                                          \
    }
ENDING(late, LATE)
ENDING(stream_late, STREAM_LATE)
ENDING(killed, KILLED)
ENDING(aborted, ABORTED)
ENDING(worker_killed, WORKER_KILLED)
ENDING(fails_to_start, FAILS_TO_START)

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"unequal", unequal, 0},
        {"unequal_again", unequal_again, 0},
        {"late", late, 0},
        {"stream_late", stream_late, 0},
        {"killed", killed, 0},
        {"aborted", aborted, 0},
        {"worker_killed", worker_killed, 0},
        {"fails_to_start", fails_to_start, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_repeated_ends", TESTS(tests));
}
