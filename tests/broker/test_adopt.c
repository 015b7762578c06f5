/* SPDX-License-Identifier: MIT
 *
 * test_adopt.c - the broker ends, and another one takes its workers over (daemon/broker/store.h): jobs run on, with right results, and are the
 * new broker's as they were the old one's, with their limits.
 *
 * ROUNDS=n: so many restarts of two nodes, rather than 20.
 */
#include "tests/bed/random.h"
#include "tests/broker/adopt_bed.h"

static long memory_kb(pid_t pid)
{
    char path[64], line[256];
    long kb = -1;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %ld", &kb) == 1)
            break;
    if (f)
        (void)fclose(f);
    return kb;
}

static void taken_over(int number)
{
    struct test_daemon d;
    struct ranks r;

    struct story *story = story_begin(&d, 1, 64, &r);
    pid_t worker = worker_of("test");
    CHECK(worker > 0);
    for (int i = 0; i < 3; i++) {
        keeper_restart(&d, 0, number);
        CHECK(daemon_logged(&d, "took over worker", true));
        operators_await(story, 10);
        CHECK(worker_of("test") == worker);
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

/* ---- twenty restarts on two nodes ---- */

/* Two processes that make connections and communicators, one after the other, whatever becomes of the brokers. */
struct comers {
    struct fcc_unique_id id;
    _Atomic long offered, taken, stop; /* stop: the last number */
};

static void comer_rank(int rank, const struct ranks *all, void *argument)
{
    struct comers *c = argument;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 60000};

    (void)all;
    for (long i = 1; !c->stop || i <= c->stop; i++) {
        fcc_context *context;
        fcc_comm *comm;
        char job[32];
        (void)snprintf(job, sizeof(job), "comers-%ld",
                       i % 2 ? 0 : i / 2 % 12); /* of which some have workers, and others have none yet */
        OK(fcc_connect(&(struct fcc_connect_options){.job = job}, &context));
        if (rank == 0) {
            OK(fcc_get_unique_id(context, &c->id));
            c->offered = i;
        }
        while (c->offered < i)
            nap();
        OK(fcc_comm_init(context, &c->id, RANKS, rank, &options, &comm));
        OK(fcc_noop(comm));
        fcc_comm_destroy(comm);
        fcc_disconnect(context);
        if (rank == 1)
            c->taken = i;
        while (c->taken < i)
            nap();
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KEEPS_FREED true
#else
#define KEEPS_FREED false
#endif
#define HUGE_PAGES_KB 4096 /* two, by which memory may grow at once */

static void restarts(void)
{
    const int rounds = number_of("ROUNDS", test_rounds(20));
    struct test_daemon d;
    struct story *story = shared_memory(sizeof(*story));
    struct comers *comers = shared_memory(sizeof(*comers));
    struct ranks steady, coming;
    pid_t worker[2];
    int descriptors[2];
    long kb[2];

    random_state = test_seed();
    keepers_start(2, 256);
    daemons_start(&d, 2, NULL);
    ranks_start(&steady, RANKS, worker_rank, story);
    coming = (struct ranks){.n = RANKS};
    ranks_start_some(&coming, 0, RANKS, comer_rank, comers);
    operators_await(story, 10);
    for (int i = 0; i < rounds; i++) {
        int node = i % 2;
        (void)usleep((unsigned)random_below(20000)); /* at any instant of a communicator's life */
        if (i % 5 == 4)                              /* both at a time */
            keeper_kill(&d, !node, SIGKILL);
        keeper_restart(&d, node, i % 3 ? SIGKILL : SIGTERM);
        if (i % 5 == 4)
            keeper_next(&d, !node, NULL);
        operators_await(story, 10);
        for (long from = comers->taken; comers->taken < from + 2; (void)usleep(1000)) {
            CHECK(waitpid(coming.pid[0], NULL, WNOHANG) == 0 && waitpid(coming.pid[1], NULL, WNOHANG) == 0);
        }
        for (int n = 0; n < 2 && (i == rounds / 2 || i == rounds - 1); n++) {
            CHECK(!setenv("FCCD_SOCKET", d.node[n].socket, 1));
            pid_t pid = worker_of("test");
            int now = descriptors_count(pid);
            long kb_now = memory_kb(pid);
            CHECK(pid > 0 && (i == rounds / 2 || pid == worker[n]));
            printf("node %d: worker %d: %d descriptors, %ld KiB; broker %d descriptors, %ld KiB; kept %d\n", n, pid, now,
                   kb_now, descriptors_count(d.node[n].pid), memory_kb(d.node[n].pid), keeper_count(n));
            if (i > rounds / 2) {
                CHECK(now <= descriptors[n] && keeper_count(n) <= 2 + 16 * 4);
                CHECK(KEEPS_FREED || kb_now <= kb[n] + HUGE_PAGES_KB);
            }
            worker[n] = pid;
            descriptors[n] = now;
            kb[n] = kb_now;
        }
    }
    comers->stop = comers->taken + 3;
    ranks_join(&coming);
    story_end(story, &steady);
    keepers_stop(&d);
}

/* ---- what the next broker knows ---- */

/* Connections and memory count on. */
static void quotas(void)
{
    const char *const options[] = {"--connections-per-job", "4", "--memory-per-user-mb", "64", NULL};
    struct fcc_connect_options other = {.job = "other"};
    struct test_daemon d;
    struct ranks alone = {.n = 1};
    fcc_context *context[4], *more;
    fcc_comm *comm;
    fcc_buffer *buffer;

    keepers_start(1, 64);
    daemons_start(&d, 1, options);
    while (worker_of("test"))
        nap();
    for (int i = 0; i < 4; i++)
        OK(fcc_connect(NULL, &context[i]));
    OK(fcc_get_unique_id(context[0], &alone.id));
    OK(fcc_comm_init(context[0], &alone.id, 1, 0, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 40u << 20, &buffer));
    for (int i = 0; i < 2; i++) {
        keeper_kill(&d, 0, SIGKILL);
        keeper_next(&d, 0, options);
        FAILS(fcc_connect(NULL, &more), -EUSERS, "it has 4 connections, and CONNECTIONS_PER_JOB allows 4");
        fcc_comm *second;
        fcc_buffer *too_much;
        OK(fcc_connect(&other, &more));
        OK(fcc_get_unique_id(more, &alone.id));
        OK(fcc_comm_init(more, &alone.id, 1, 0, NULL, &second));
        FAILS(fcc_buffer_alloc(second, FCC_BUFFER_LOCAL, 40u << 20, &too_much), -ENOMEM, "MEMORY_PER_USER_MB");
        fcc_comm_destroy(second);
        fcc_disconnect(more);
    }
    fcc_comm_destroy(comm);
    for (int i = 0; i < 4; i++)
        fcc_disconnect(context[i]);
    keepers_stop(&d);
}

/* How often gemv_all_reduce has run well, by fccctl metrics, in any schedule. */
static long operators_counted(void)
{
    static char said[262144];
    long n = 0;

    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"metrics", NULL}) == 0);
    for (const char *p = said; (p = strstr(p, "fccd_operators_total{operator=\"gemv_all_reduce\"")); p++)
        n += atol(strchr(p, ' '));
    return n;
}

/* fccctl's verbs, and a worker's end. */
static void known(void)
{
    static char said[65536];
    struct test_daemon d;
    struct story *story = shared_memory(sizeof(*story));
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 100);
    keeper_restart(&d, 0, SIGKILL);
    operators_await(story, 100);
    pid_t worker = worker_of("test");
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"comms", NULL}) == 0);
    CHECK(strstr(said, "2 ranks, active"));
    expect_restart("status", "restart      ends no job: there is room for the descriptors of 15");
    expect_restart("status", " taken over from an earlier fccd, 0 died");
    expect_restart("doctor", "ok    restart       a restart of fccd ends no job");
    expect_restart("metrics", "fccd_workers_adopted_total 1");
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"flight", "--job", "test", NULL}) == 0);
    CHECK(strstr(said, "gemv_all_reduce"));
    CHECK(operators_counted() >= 200); /* those before the restart, too */
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"--json", "trace", "--job", "test", NULL}) ==
          0);
    CHECK(!kill(worker, SIGKILL));
    for (int i = 0; i < RANKS; i++)
        CHECK(rank_wait(&r, i) != 0); /* they hear -ECONNRESET, which this rank does not expect */
    CHECK(daemon_logged(&d, "died", true));
    expect_alive(RANKS);
    CHECK(worker_of("test") != worker);
    while (worker_of("test"))
        nap();
    keeper_restart(&d, 0, SIGKILL); /* what workers that have ended had counted is not forgotten */
    CHECK(operators_counted() >= 200);
    keepers_stop(&d);
}

/* A worker that does not answer delays the next broker by a bounded time, and is the next broker's when it does. */
static void silent(void)
{
    struct test_daemon d;
    fcc_context *more;
    struct ranks r;

    struct story *story = story_begin(&d, 1, 64, &r);
    pid_t worker = worker_of("test");
    CHECK(!kill(worker, SIGSTOP));
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "has not answered for 2000 ms: this fccd serves without its word", true));
    CHECK(worker_of("test") == worker);
    CHECK(!kill(worker, SIGCONT));
    CHECK(daemon_logged(&d, "took over worker", true));
    operators_await(story, 10);
    OK(fcc_connect(NULL, &more));
    fcc_disconnect(more);
    story_end(story, &r);
    keepers_stop(&d);
}

/* A worker that dies while there is no broker: the next one counts it, says so, and has its flight recorder. */
static void dies_between(bool reaped)
{
    static char said[262144];
    struct test_daemon d;
    struct ranks r;

    (void)story_begin(&d, 1, 64, &r);
    pid_t worker = worker_of("test");
    keeper_kill(&d, 0, SIGKILL);
    CHECK(!kill(worker, SIGKILL));
    for (int i = 0; i < RANKS; i++)
        CHECK(rank_wait(&r, i) != 0);
    if (reaped)
        CHECK(waitpid(worker, NULL, 0) == worker);
    keeper_next(&d, 0, NULL);
    CHECK(daemon_logged(&d, reaped ? "ended while there was no fccd" : "died", true));
    expect_restart("metrics", "fccd_workers_died_total 1");
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"flight", "--job", "test", NULL}) == 0);
    CHECK(strstr(said, "which ended") && strstr(said, "gemv_all_reduce"));
    expect_alive(RANKS);
    keepers_stop(&d);
}

static void dies_without_broker(void)
{
    dies_between(false);
    dies_between(true);
}

int main(void)
{
    const struct test tests[] = {{"killed", killed, 0},
                                 {"terminated", terminated, 0},
                                 {"restarts", restarts, 120},
                                 {"quotas", quotas, 0},
                                 {"known", known, 0},
                                 {"silent", silent, 0},
                                 {"dies_without_broker", dies_without_broker, 0}};

    return tests_run("adopt", TESTS(tests));
}
