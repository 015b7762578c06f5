/* SPDX-License-Identifier: MIT
 *
 * test_adopt_instants.c - the broker is killed behind each of its system calls, one after the other, while a communicator of two nodes lives from
 * its ranks' connections to its workers' retirement. The next broker takes over what there is, so the ranks' calls all work, whichever instant it
 * was; a job that runs beside goes on with the worker that it has; and nothing is left.
 *
 * The broker is traced, so this process decides behind which call it dies. ROUNDS=n: so many instants, rather than 40; ROUNDS=0: all.
 */
#include <sys/ptrace.h>

#include "tests/bed/random.h"
#include "tests/broker/adopt_bed.h"

/* A communicator's life. */
struct life {
    struct fcc_unique_id id;
    _Atomic int offered, done;
    char job[32];
};

static void life_rank(int rank, const struct ranks *all, void *argument)
{
    struct life *l = argument;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 20000};
    fcc_context *context;
    fcc_comm *comm, *both, *left;
    fcc_buffer *buffer;

    OK(fcc_connect(&(struct fcc_connect_options){.job = l->job}, &context));
    if (rank == 0) {
        OK(fcc_get_unique_id(context, &l->id));
        l->offered = 1;
    }
    while (!l->offered)
        nap();
    OK(fcc_comm_init(context, &l->id, all->n, rank, &options, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 65536, &buffer));
    OK(fcc_noop(comm));
    OK(fcc_comm_split(comm, 0, -rank, NULL, &both));
    OK(fcc_noop(both));
    fcc_comm_destroy(both);
    OK(fcc_comm_shrink(comm, NULL, 0, &left));
    CHECK(fcc_comm_size(left) == all->n);
    OK(fcc_noop(left));
    fcc_comm_destroy(left);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    l->done++;
}

/* ---- the broker, traced ---- */

static void traced_fail(const char *what)
{
    check_failed(__FILE__, __LINE__, "%s: %s", what, strerror(errno));
}

static void trace_begin(pid_t pid)
{
    int status;

    if (ptrace(PTRACE_SEIZE, pid, NULL, (void *)(uintptr_t)PTRACE_O_TRACESYSGOOD)) {
        if (errno == EPERM)
            test_skip("skipped: this process may not trace its children");
        traced_fail("PTRACE_SEIZE");
    }
    CHECK(!ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) && waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
    if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL))
        traced_fail("PTRACE_SYSCALL");
}

/* The broker goes on, until it has come back from so many calls and stands there (true), or until the life is over and the broker has
 * done nothing for a while. Its calls are counted in *calls. */
static bool trace_run(pid_t pid, const struct life *l, int until, int *calls)
{
    double quiet = 0;
    bool inside = false;

    for (;;) {
        int status, number = 0;
        pid_t ended = waitpid(pid, &status, WNOHANG | __WALL);
        CHECK(ended >= 0);
        if (!ended) {
            quiet = l->done < RANKS ? 0 : quiet > 0 ? quiet : now_ms();
            if (quiet > 0 && now_ms() > quiet + 150) /* the workers have retired: WORKER_IDLE_MS */
                return false;
            (void)usleep(20);
            continue;
        }
        quiet = 0;
        if (!WIFSTOPPED(status))
            check_failed(__FILE__, __LINE__, "the broker ended by itself: wait status 0x%x", status);
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            inside = !inside;
            if (!inside && ++*calls == until)
                return true;
        } else if (status >> 16 == 0) {
            number = WSTOPSIG(status); /* a signal, which is the broker's */
        }
        if (ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(uintptr_t)number))
            traced_fail("PTRACE_SYSCALL");
    }
}

/* One life; node's broker is killed behind its `instant`th call. False: it had fewer. */
static bool life_run(struct test_daemon *d, int node, int instant, const char *const options[], struct story *steady)
{
    struct life *l = shared_memory(sizeof(*l));
    struct ranks r = {.n = RANKS};
    int calls = 0;

    (void)snprintf(l->job, sizeof(l->job), "life-%d-%d", node, instant);
    trace_begin(d->node[node].pid);
    ranks_start_some(&r, 0, RANKS, life_rank, l);
    bool killed = trace_run(d->node[node].pid, l, instant, &calls);
    keeper_kill(d, node, SIGKILL);
    keeper_next(d, node, options);
    for (int i = 0; i < RANKS; i++) {
        int status = rank_wait(&r, i);
        if (status)
            check_failed(__FILE__, __LINE__, "node %d, behind call %d: rank %d: wait status 0x%x", node, instant, i, status);
    }
    operators_await(steady, 2);
    return killed;
}

static void instants_of(int node)
{
    static const char *const options[] = {"--worker-idle-ms", "20", "--jobs-per-user", "256", NULL};
    const int rounds = number_of("ROUNDS", test_rounds(40));
    struct story *steady = shared_memory(sizeof(*steady));
    struct test_daemon d;
    struct ranks r;
    pid_t worker[2];
    int most = 0;

    random_state = test_seed();
    keepers_start(2, 512);
    daemons_start(&d, 2, options);
    ranks_start(&r, RANKS, worker_rank, steady);
    operators_await(steady, 10);
    for (int n = 0; n < 2; n++) {
        CHECK(!setenv("FCCD_SOCKET", d.node[n].socket, 1));
        worker[n] = worker_of("test");
    }
    /* how many there are, which differs a little from life to life */
    struct life *whole = shared_memory(sizeof(*whole));
    struct ranks first = {.n = RANKS};
    (void)snprintf(whole->job, sizeof(whole->job), "whole");
    trace_begin(d.node[node].pid);
    ranks_start_some(&first, 0, RANKS, life_rank, whole);
    CHECK(!trace_run(d.node[node].pid, whole, 0, &most) && most > 20);
    ranks_join(&first);
    keeper_kill(&d, node, SIGKILL);
    keeper_next(&d, node, options);
    printf("%d calls\n", most);
    for (int i = 0; rounds ? i < rounds : i < most; i++) {
        int instant = rounds ? 1 + (int)random_below(most) : i + 1;
        printf("behind call %d\n", instant);
        (void)fflush(stdout);
        (void)life_run(&d, node, instant, options, steady);
    }
    for (int n = 0; n < 2; n++) {
        CHECK(!setenv("FCCD_SOCKET", d.node[n].socket, 1));
        CHECK(worker[n] > 0 && worker_of("test") == worker[n]);
    }
    story_end(steady, &r);
    keepers_stop(&d);
}

static void where_they_meet(void)
{
    instants_of(0);
}

static void where_they_go(void)
{
    instants_of(1);
}

int main(void)
{
    const struct test tests[] = {{"where_they_meet", where_they_meet, 240}, {"where_they_go", where_they_go, 240}};

    return tests_run("adopt_instants", TESTS(tests));
}
