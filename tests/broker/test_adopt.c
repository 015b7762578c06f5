/* SPDX-License-Identifier: MIT
 *
 * test_adopt.c - the broker ends, and another one takes its workers over (daemon/broker/store.h): jobs run on, with right results, and are the
 * new broker's as they were the old one's. What happens if no other one comes, or one that is not the right one.
 */
#include <errno.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/common/control.h"
#include "proto/msg.h"
#include "tests/bed/keeper.h"
#include "tests/bed/program.h"
#include "tests/bed/random.h"
#include "tests/bed/users_bed.h"

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

/* The worker of this job at the node that FCCD_SOCKET names, as fccctl status has it. 0: there is no such job. */
static pid_t worker_of(const char *job)
{
    static char said[16384];
    struct json_object *status, *jobs, *one, *value;
    pid_t pid = 0;
    int n = 0;

    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"--json", "status", NULL}) == 0);
    status = json_tokener_parse(said);
    CHECK(json_object_object_get_ex(status, "jobs", &jobs));
    for (size_t i = 0; i < json_object_array_length(jobs); i++) {
        one = json_object_array_get_idx(jobs, i);
        CHECK(json_object_object_get_ex(one, "job", &value));
        if (strcmp(json_object_get_string(value), job) != 0)
            continue;
        CHECK(json_object_object_get_ex(one, "pid", &value));
        pid = json_object_get_int(value);
        n++;
    }
    (void)json_object_put(status);
    CHECK(n <= 1);
    return pid;
}

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
    struct story *story = shared_memory(sizeof(*story));
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 10);
    pid_t worker = worker_of("test");
    CHECK(worker > 0);
    for (int i = 0; i < 3; i++) {
        keeper_restart(&d, 0, number);
        CHECK(daemon_logged(&d, "took over worker", 10000));
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

static void restarts(void)
{
    const int rounds = number_of("ROUNDS", 20);
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
        for (int n = 0; n < 2 && (i == 1 || i == rounds - 1); n++) {
            CHECK(!setenv("FCCD_SOCKET", d.node[n].socket, 1));
            pid_t pid = worker_of("test");
            int now = descriptors_count(pid);
            long kb_now = memory_kb(pid);
            CHECK(pid > 0 && (i == 1 || pid == worker[n]));
            printf("node %d: worker %d: %d descriptors, %ld KiB; broker %d descriptors, %ld KiB; kept %d\n", n, pid, now,
                   kb_now, descriptors_count(d.node[n].pid), memory_kb(d.node[n].pid), keeper_count(n));
            if (i > 1) {
                CHECK(now <= descriptors[n] && keeper_count(n) <= 2 + 16 * 4);
                CHECK(kb_now <= kb[n] + 512);
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

/* ---- nobody comes, or somebody else ---- */

/* Operators until one fails, which must be for this reason. */
struct ending {
    _Atomic long operators[RANKS];
    _Atomic int ended[RANKS];
    const char *says;
};

static void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *ending = argument;
    fcc_comm *comm = comm_open(all, rank, 60000);
    int status;

    while (!(status = fcc_noop(comm)))
        ending->operators[rank]++;
    if (status != -ESHUTDOWN || !strstr(fcc_last_error(), ending->says))
        check_failed(__FILE__, __LINE__, "%d: %s", status, fcc_last_error());
    ending->ended[rank] = 1;
    _exit(EXIT_SUCCESS);
}

static struct ending *ending_start(struct ranks *r, const char *says)
{
    struct ending *e = shared_memory(sizeof(*e));

    e->says = says;
    ranks_start(r, RANKS, ending_rank, e);
    for (double until = now_ms() + 20e3; !e->operators[0] || !e->operators[1]; nap())
        CHECK(now_ms() < until);
    return e;
}

static void nobody_comes(void)
{
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, (const char *const[]){"--adopt-seconds", "1", NULL});
    (void)ending_start(&r, "in 1 s (ADOPT_SECONDS) no other has taken this job over");
    keeper_kill(&d, 0, SIGKILL);
    ranks_join(&r);
    keepers_stop(&d);
}

static void stopped(void)
{
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, (const char *const[]){"--adopt-seconds", "3600", NULL});
    struct ending *e = ending_start(&r, "fccd was stopped");
    keeper_kill(&d, 0, SIGTERM);
    for (long from = e->operators[0]; e->operators[0] < from + 10; nap()) /* until the service manager says that nobody comes */
        CHECK(!e->ended[0]);
    keeper_drop(0);
    ranks_join(&r);
    keepers_stop(&d);
}

/* A broker of a version that does not speak the worker's. */
static void other_version(void)
{
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    (void)ending_start(&r, "fccd is shutting down");
    const char *mine = getenv("FCCD_BINARY"), *other = getenv("FCC_TEST_OTHER_CONTROL");
    CHECK(!setenv("FCCD_BINARY", other ? other : "build/tests/fccd_other_control", 1));
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "speaks version 1 with its broker, and this fccd (2 to 2) does not: the job drains, and ends",
                        10000));
    ranks_join(&r);
    expect_alive(RANKS);
    CHECK(mine ? !setenv("FCCD_BINARY", mine, 1) : !unsetenv("FCCD_BINARY"));
    keepers_stop(&d);
}

/* Without a service manager that keeps descriptors a restart ends the jobs, and fccd says so. */
static void not_kept(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    CHECK(daemon_logged(&d, "a restart ends its jobs", 10000));
    (void)ending_start(&r, "fccd is shutting down");
    daemon_stop_unclean(&d);
    ranks_join(&r);
}

/* A store that is too small for two jobs. */
static void store_full(void)
{
    struct test_daemon d;
    struct story *story = shared_memory(sizeof(*story));
    struct fcc_connect_options other = {.job = "other"};
    fcc_context *context, *again;
    struct ranks r;

    keepers_start(1, 7);
    daemons_start(&d, 1, NULL);
    while (worker_of("probe") || worker_of("test"))
        nap();
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 10);
    OK(fcc_connect(&other, &context));
    CHECK(daemon_logged(&d, "job 0/other: the service manager keeps the descriptors of 1 jobs at most", 10000));
    keeper_restart(&d, 0, SIGKILL);
    operators_await(story, 10);
    CHECK(worker_of("test") > 0 && worker_of("other") == 0);
    OK(fcc_connect(&other, &again)); /* with a worker of its own */
    fcc_disconnect(again);
    fcc_disconnect(context);
    story_end(story, &r);
    keepers_stop(&d);
}

/* ---- what the next broker knows ---- */

static void drained(void)
{
    static char said[4096];
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    for (int restart = 0; restart < 2; restart++) {
        (void)ending_start(&r, "has drained this job (fccctl drain)");
        if (restart)
            keeper_restart(&d, 0, SIGKILL);
        CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"drain", "absent", NULL}) == 1);
        CHECK(strstr(said, "job absent: there is none of that name"));
        CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"drain", restart ? NULL : "test", NULL}) ==
              0);
        CHECK(strstr(said, "job \"test\" of uid") && strstr(said, "has ended") && !strstr(said, "NOT"));
        ranks_join(&r);
        expect_alive(RANKS);
    }
    keepers_stop(&d);
}

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
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"flight", "--job", "test", NULL}) == 0);
    CHECK(strstr(said, "gemv_all_reduce"));
    CHECK(operators_counted() >= 200); /* those before the restart, too */
    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"--json", "trace", "--job", "test", NULL}) ==
          0);
    CHECK(!kill(worker, SIGKILL));
    for (int i = 0; i < RANKS; i++)
        CHECK(rank_wait(&r, i) != 0); /* they hear -ECONNRESET, which this rank does not expect */
    CHECK(daemon_logged(&d, "died", 10000));
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
    struct story *story = shared_memory(sizeof(*story));
    fcc_context *more;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 10);
    pid_t worker = worker_of("test");
    CHECK(!kill(worker, SIGSTOP));
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "has not answered for 2000 ms: this fccd serves without its word", 10000));
    CHECK(worker_of("test") == worker);
    CHECK(!kill(worker, SIGCONT));
    CHECK(daemon_logged(&d, "took over worker", 10000));
    operators_await(story, 10);
    OK(fcc_connect(NULL, &more));
    fcc_disconnect(more);
    story_end(story, &r);
    keepers_stop(&d);
}

/* ---- others ---- */

/* What no broker has written into the page is no worker's: a channel without an entry, a page that is none, an account that nobody has. */
static void strangers(void)
{
    static const char *const names[] = {"worker-3", "process-3", "account-4711", "page", "something"};
    struct test_daemon d;
    struct story *story = shared_memory(sizeof(*story));
    struct ranks r;
    int pair[2];

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    ranks_start(&r, RANKS, worker_rank, story);
    operators_await(story, 10);
    int kept = keeper_count(0);
    for (int i = 0; i < 4; i++) { /* the first page that comes is the broker's */
        struct control_adopted m = {.msg = {.type = CONTROL_ADOPTED}, .version = 1};
        char byte;
        CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
        CHECK(!msg_send(pair[1], &m.msg, sizeof(m), NULL, 0));
        keeper_add(0, names[i], pair[0]);
        (void)close(pair[0]);
        keeper_restart(&d, 0, SIGKILL);
        if (i != 3)
            CHECK(recv(pair[1], &byte, 1, 0) == 0 || errno == ECONNRESET); /* and nothing has been said */
        (void)close(pair[1]);
        operators_await(story, 10);
        CHECK(worker_of("test") > 0);
    }
    while (worker_of("probe") || keeper_count(0) > kept)
        nap();
    story_end(story, &r);
    keepers_stop(&d);
}

static void user_rank(int rank, const struct ranks *all, void *argument)
{
    become(HOSTILE);
    ending_rank(rank, all, argument);
}

static int user_runs(uid_t uid, const char *verb, const char *job)
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        static char text[8192];
        become(uid);
        status = program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){verb, job, NULL});
        printf("uid %u: %s: %s", uid, verb, text);
        (void)fflush(stdout);
        _exit(status);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Root's broker, and a worker of another user: the next broker has it as the last one had, and the user's limits are the user's. */
static void users(void)
{
    struct test_daemon d;
    struct ending *e = shared_memory(sizeof(*e));
    struct ranks r = {.n = RANKS};
    fcc_context *context;

    needs_users();
    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    open_to_all(&d);
    e->says = "has drained this job (fccctl drain)";
    OK(fcc_connect(NULL, &context)); /* root's job of the same name */
    OK(fcc_get_unique_id(context, &r.id));
    ranks_start_some(&r, 0, RANKS, user_rank, e);
    for (double until = now_ms() + 20e3; !e->operators[0]; nap())
        CHECK(now_ms() < until);
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "job 40001/test: took over worker", 10000) &&
          daemon_logged(&d, "job 0/test: took over worker", 10000));
    CHECK(user_runs(OTHER, "drain", "test") == 1 && !e->ended[0]); /* it is none of his */
    CHECK(user_runs(HOSTILE, "comms", NULL) == 0);
    CHECK(user_runs(HOSTILE, "drain", NULL) == 0);
    ranks_join(&r);
    fcc_comm *comm;
    struct fcc_unique_id id;
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm)); /* root's goes on */
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    keepers_stop(&d);
}

int main(void)
{
    const struct test tests[] = {{"killed", killed, 0},       {"terminated", terminated, 0},
                                 {"restarts", restarts, 120}, {"nobody_comes", nobody_comes, 0},
                                 {"stopped", stopped, 0},     {"other_version", other_version, 0},
                                 {"not_kept", not_kept, 0},   {"store_full", store_full, 0},
                                 {"drained", drained, 0},     {"quotas", quotas, 0},
                                 {"known", known, 0},         {"silent", silent, 0},
                                 {"strangers", strangers, 0}, {"users", users, 0}};

    return tests_run("adopt", TESTS(tests));
}
