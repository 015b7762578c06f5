/* SPDX-License-Identifier: MIT
 *
 * test_meetings.c - ranks that find each other by their environment, without a launcher: who meets whom, and by which ids.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/launched_rank.h"
#include "tests/bed/raw.h"

/* Rank 0 gives up once before rank 1 has come: that does not count, and they meet. */
static void late_rank(void)
{
    const struct fcc_comm_options impatient = {.device = -1, .time_limit_ms = 200};
    struct test_daemon d;
    fcc_context *context;
    fcc_comm *comm;

    daemon_start(&d, NULL);
    variables_clear();
    (void)setenv("FCC_SIZE", "2", 1);
    (void)setenv("FCC_MEETING", "", 1);
    (void)setenv("FCC_RANK", "0", 1);
    OK(fcc_connect(NULL, &context));
    FAILS(fcc_comm_init_env(context, &impatient, &comm), -ETIMEDOUT, "rank 1");
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)setenv("FCC_RANK", "1", 1);
        int code;
        while ((code = rank_main()) == 3) /* it has come before rank 0's second call, and has heard that rank 0 has given up */
            (void)usleep(10000);
        _exit(code);
    }
    fcc_comm *comms[3];
    for (int i = 0; i < 3; i++) {
        OK(fcc_comm_init_env(context, NULL, &comms[i]));
        OK(fcc_noop(comms[i]));
        if (i == 1) {
            OK(fcc_noop(comms[0]));
            fcc_comm_destroy(comms[0]);
        }
    }
    OK(fcc_noop(comms[1]));
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
}

static fcc_comm *alone(fcc_context **context)
{
    fcc_comm *comm;

    OK(fcc_connect(NULL, context));
    OK(fcc_comm_init_env(*context, NULL, &comm));
    CHECK(fcc_comm_size(comm) == 1);
    OK(fcc_noop(comm));
    return comm;
}

/* Two processes of one job that no launcher has started do not meet, though both are rank 0 of 1 and there at a time. */
static void two_alone(void)
{
    struct test_daemon d;
    fcc_context *context;
    int status;

    daemon_start(&d, NULL);
    variables_clear();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)alone(&context);
        CHECK(raise(SIGSTOP) == 0);
        fcc_disconnect(context);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    OK(fcc_noop(alone(&context)));
    CHECK(kill(pid, SIGCONT) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* ---- the worker's side ---- */

static struct raw *job_session(const struct test_daemon *d, const char *job)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();

    memset(h.job, 0, sizeof(h.job));
    (void)snprintf(h.job, sizeof(h.job), "%s", job);
    raw_send(r, &h, sizeof(h), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    return r;
}

static struct fcc_unique_id id_ask(struct raw *r, const char *name)
{
    struct fcc_meeting m = {.msg = {.length = sizeof(m), .type = FCC_MSG_MEETING, .id = 5}};

    (void)snprintf(m.name, sizeof(m.name), "%s", name);
    raw_send(r, &m, sizeof(m), NULL, 0);
    CHECK(raw_receive(r)->status == 0 && r->length == sizeof(struct fcc_unique_id_reply));
    return ((const struct fcc_unique_id_reply *)r->in)->unique_id;
}

/* A name's id is the same for all of a job, and no other job's. */
static void ids_of_jobs(void)
{
    struct test_daemon d;
    struct fcc_unique_id ids[4];
    struct fcc_meeting bad = {.msg = {.length = sizeof(bad), .type = FCC_MSG_MEETING, .id = 6}};

    daemon_start(&d, NULL);
    struct raw *a = job_session(&d, "a"), *again = job_session(&d, "a"), *b = job_session(&d, "b");
    ids[0] = id_ask(a, "one");
    ids[1] = id_ask(again, "one");
    ids[2] = id_ask(a, "two");
    ids[3] = id_ask(b, "one");
    CHECK(!memcmp(&ids[0], &ids[1], sizeof(ids[0])));
    CHECK(memcmp(&ids[0], &ids[2], 40) != 0 && memcmp(&ids[0], &ids[3], 40) != 0);
    memset(bad.name, 'x', sizeof(bad.name)); /* without its NUL */
    raw_send(a, &bad, sizeof(bad), NULL, 0);
    CHECK(raw_receive(a)->status == -EINVAL);
    raw_close(a);
    raw_close(again);
    raw_close(b);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"late_rank", late_rank, 0},
        {"two_alone", two_alone, 0},
        {"ids_of_jobs", ids_of_jobs, 0},
    };

    return tests_run("meetings", TESTS(tests));
}
