/* SPDX-License-Identifier: MIT
 *
 * test_adopt_ends.c - what ends jobs whose broker has ended: no other one comes, or one of another version; the service is stopped; somebody drains
 * them. What is not kept, and what is kept and nobody's; and whose the workers of other users are.
 */
#include <sys/socket.h>

#include "daemon/common/control.h"
#include "proto/msg.h"
#include "tests/bed/users_bed.h"
#include "tests/broker/adopt_bed.h"

/* ---- nobody comes, or somebody else ---- */

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
    CHECK(
        daemon_logged(&d, "speaks version 1 with its broker, and this fccd (2 to 2) does not: the job drains, and ends", true));
    ranks_join(&r);
    expect_alive(RANKS);
    CHECK(mine ? !setenv("FCCD_BINARY", mine, 1) : !unsetenv("FCCD_BINARY"));
    keepers_stop(&d);
}

/* Today's broker has an older fccd's worker: new clients of that job speak the worker's version, and of other jobs today's. */
static void older_worker(void)
{
    const char *mine = getenv("FCCD_BINARY"), *oldest = getenv("FCC_TEST_OLDEST");
    struct test_daemon d;
    struct ranks r;

    CHECK(!setenv("FCCD_BINARY", oldest ? oldest : "build/tests/oldest/bin/fccd", 1));
    struct story *story = story_begin(&d, 1, 64, &r);
    CHECK(mine ? !setenv("FCCD_BINARY", mine, 1) : !unsetenv("FCCD_BINARY"));
    keeper_restart(&d, 0, SIGKILL);
    operators_await(story, 10);
    pid_t worker = worker_of("test");
    expect_alive(RANKS);
    CHECK(worker > 0 && worker_of("test") == worker);
    CHECK(daemon_logged(&d, "speaks versions", true)); /* as a client has been told */
    story_end(story, &r);
    keepers_stop(&d);
}

/* Without a service manager that keeps descriptors a restart ends the jobs, and fccd says so. */
static void not_kept(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    CHECK(daemon_logged(&d, "a restart ends its jobs", true));
    expect_restart("status", "restart      ends its jobs: no service manager has started it");
    expect_restart("doctor", "ok    restart       a restart of fccd ends its jobs: no service manager has started it");
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
    CHECK(daemon_logged(&d, "job 0/other: the service manager keeps the descriptors of 1 jobs at most", true));
    expect_restart("status", "restart      ends 1 of 2 jobs: there is room for the descriptors of 1");
    expect_restart("doctor", "warn  restart       a restart of fccd ends 1 of 2 jobs");
    keeper_restart(&d, 0, SIGKILL);
    operators_await(story, 10);
    CHECK(worker_of("test") > 0 && worker_of("other") == 0);
    OK(fcc_connect(&other, &again)); /* with a worker of its own */
    fcc_disconnect(again);
    fcc_disconnect(context);
    story_end(story, &r);
    keepers_stop(&d);
}

/* A service manager that keeps less than a job needs. */
static void store_small(void)
{
    struct test_daemon d;

    keepers_start(1, 6);
    daemons_start(&d, 1, NULL);
    expect_restart("status", "restart      ends its jobs: the service manager keeps too few descriptors");
    expect_restart("doctor",
                   "warn  restart       a restart of fccd ends its jobs: the service manager keeps too few descriptors");
    CHECK(keeper_count(0) == 0);
    keepers_stop(&d);
}

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
        CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"drain", "", NULL}) == 2);
        CHECK(strstr(said, "JOB: must not be empty")); /* it does not mean all */
        CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"drain", restart ? NULL : "test", NULL}) ==
              0);
        CHECK(strstr(said, "job \"test\" of uid") && strstr(said, "has ended") && !strstr(said, "NOT"));
        ranks_join(&r);
        expect_alive(RANKS);
    }
    keepers_stop(&d);
}

/* ---- others ---- */

/* What no broker has written into the page is no worker's: a channel without an entry, a page that is none, an account that nobody has. */
static void strangers(void)
{
    static const char *const names[] = {"worker-3", "process-3", "account-4711", "page", "something"};
    struct test_daemon d;
    struct ranks r;
    int pair[2];

    struct story *story = story_begin(&d, 1, 64, &r);
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
    for (double until = await_end(); !e->operators[0]; nap())
        CHECK(now_ms() < until);
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "job 40001/test: took over worker", true) &&
          daemon_logged(&d, "job 0/test: took over worker", true));
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
    const struct test tests[] = {{"nobody_comes", nobody_comes, 0},   {"stopped", stopped, 0},
                                 {"other_version", other_version, 0}, {"older_worker", older_worker, 0},
                                 {"not_kept", not_kept, 0},           {"store_full", store_full, 0},
                                 {"store_small", store_small, 0},     {"drained", drained, 0},
                                 {"strangers", strangers, 0},         {"users", users, 0}};

    return tests_run("adopt_ends", TESTS(tests));
}
