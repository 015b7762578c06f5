/* SPDX-License-Identifier: MIT
 *
 * test_adopt.c - the broker ends, and another one takes its workers over (daemon/broker/store.h): jobs run on, with right results, and are the
 * new broker's as they were the old one's. What happens if no other one comes, or one that is not the right one.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/bed/keeper.h"
#include "tests/bed/program.h"

enum { RANKS = 2, K = 256, N = 512 };

struct story {
    _Atomic long operators[RANKS];
    _Atomic int stop;
};

struct lane {
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;
};

static void lane_open(struct lane *l, const struct ranks *all, int rank)
{
    l->comm = comm_open(all, rank, 60000);
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, K * 4, &l->x));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, N * K * 4, &l->w));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_SYMMETRIC, N * 4, &l->y));
    float *w = fcc_buffer_data(l->w);
    for (int i = 0; i < N * K; i++)
        w[i] = 1;
}

static void lane_run(const struct lane *l, long number, int ranks)
{
    const struct fcc_gemv_all_reduce_args gemv = {.x = fcc_tensor_2d(l->x, 0, FCC_F32, 1, K),
                                                  .w = fcc_tensor_2d(l->w, 0, FCC_F32, N, K),
                                                  .y = fcc_tensor_2d(l->y, 0, FCC_F32, 1, N)};
    float *x = fcc_buffer_data(l->x), value = (float)(number % 7 + 1);
    const float *y = fcc_buffer_data(l->y);

    for (int i = 0; i < K; i++)
        x[i] = value;
    OK(fcc_gemv_all_reduce(l->comm, &gemv));
    for (int i = 0; i < N; i++)
        if (y[i] != value * (float)(K * ranks))
            check_failed(__FILE__, __LINE__, "operator %ld: y[%d] is %f, expected %f", number, i, (double)y[i],
                         (double)(value * (float)(K * ranks)));
}

/* Operators until the test says that it is enough; that is agreed by the number of an operator, as all ranks have to run the same ones. */
static void worker_rank(int rank, const struct ranks *all, void *argument)
{
    struct story *story = argument;
    struct lane l;

    lane_open(&l, all, rank);
    for (long i = 0; !story->stop || i < story->stop; i++) {
        lane_run(&l, i, all->n);
        story->operators[rank] = i + 1;
    }
    fcc_comm_destroy(l.comm);
    fcc_disconnect(comm_context());
}

static void operators_await(const struct story *s, long more)
{
    double until = now_ms() + 20e3;

    for (int r = 0; r < RANKS; r++)
        for (long from = s->operators[r]; s->operators[r] < from + more; (void)usleep(1000))
            CHECK(now_ms() < until);
}

/* All ranks end after the same operator, which none of them has come to. */
static void story_end(struct story *s, struct ranks *r)
{
    s->stop = (int)(s->operators[0] + 1000);
    ranks_join(r);
}

static int jobs_shown(const char *name)
{
    static char said[16384];
    int n = 0;

    CHECK(program_run(said, sizeof(said), "build/bin/fccctl", (const char *const[]){"--json", "status", NULL}) == 0);
    for (const char *p = said; (p = strstr(p, name)); p++)
        n++;
    return n;
}

static void taken_over(int number)
{
    struct test_daemon d;
    struct story *story = shared_memory(sizeof(*story));
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 10);
    for (int i = 0; i < 3; i++) {
        keeper_restart(&d, 0, number);
        CHECK(daemon_logged(&d, "took over worker", 10000));
        operators_await(story, 10);
        CHECK(jobs_shown("\"test\"") == 1);
        expect_alive(RANKS);
    }
    story_end(story, &r);
    keepers_stop(&d);
}

static void killed(void)
{
    taken_over(SIGKILL);
}

static void terminated(void)
{
    taken_over(SIGTERM);
}

int main(void)
{
    const struct test tests[] = {{"killed", killed, 0}, {"terminated", terminated, 0}};

    return tests_run("adopt", TESTS(tests));
}
