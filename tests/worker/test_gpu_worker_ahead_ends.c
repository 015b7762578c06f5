/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_ahead_ends.c - operators of one communicator that stand in the GPUs' queues one behind the other, with the real
 * daemon and the real library on fake GPUs: what ends the communicator ends all of them, for its reason, and what drains the
 * daemon none.
 */
#include "tests/fake_gpu/fake_gpu_lane.h"

#define WHY "the loss is not a number"

enum end { KILLED, LATE, ABORTED, DRAINED };

struct ending {
    enum end end;
    bool streams_late; /* the second operator's streams have not come; otherwise the first one's kernels go on */
    bool in_one_step;  /* ... so that the other GPU has begun with it, and waits for words */
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
    const struct product p = e->in_one_step ? first_row(l.p) : l.p;
    for (int i = 0; i < MANY; i++) {
        if (rank && i == 1 && first)
            stream_gate(l.stream, &e->open);
        product_enqueue(&p, l.stream, &l.requests[i]);
    }
    if (first)
        OK(fcc_request_wait(l.requests[0], -1));
    await(&fake->begun, PAIR + e->in_one_step);
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
    if (e->end == DRAINED || rank) /* one of them only: the other one could write over it what was there before */
        e->open = 1;
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

static void ending_run(enum end end, bool streams_late, bool in_one_step)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--drain-ms", "3600000", NULL}); /* what is drained here ends by itself */
    *e = (struct ending){.end = end, .streams_late = streams_late, .in_one_step = in_one_step, .other = id_make()};
    fake->hold = streams_late || end == DRAINED ? 0 : ALL_GPUS;
    ranks_start(&r, PAIR, ending_rank, e);
    await(&e->ready, PAIR);
    if (end == KILLED) {
        CHECK(kill(r.pid[1], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(&r, 1)));
    }
    if (end == DRAINED) {
        CHECK(kill(d.pid, SIGTERM) == 0);
        CHECK(daemon_logged(&d, "shutting down", true));
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

#define ENDING(name, end, streams_late, in_one_step)                                                                           \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        ending_run(end, streams_late, in_one_step);                                                                            \
    }
ENDING(killed, KILLED, false, false)
ENDING(killed_streams_late, KILLED, true, false)
ENDING(killed_in_one_step, KILLED, true, true)
ENDING(late, LATE, false, false)
ENDING(late_streams_late, LATE, true, false)
ENDING(late_in_one_step, LATE, true, true)
ENDING(aborted, ABORTED, false, false)
ENDING(aborted_streams_late, ABORTED, true, false)
ENDING(aborted_in_one_step, ABORTED, true, true)
ENDING(drained, DRAINED, true, false)

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"killed", killed, 0},
        {"killed_streams_late", killed_streams_late, 0},
        {"killed_in_one_step", killed_in_one_step, 0},
        {"late", late, 0},
        {"late_streams_late", late_streams_late, 0},
        {"late_in_one_step", late_in_one_step, 0},
        {"aborted", aborted, 0},
        {"aborted_streams_late", aborted_streams_late, 0},
        {"aborted_in_one_step", aborted_in_one_step, 0},
        {"drained", drained, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_ahead_ends", TESTS(tests));
}
