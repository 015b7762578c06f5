/* SPDX-License-Identifier: MIT
 *
 * test_channel.c - broker and worker, of which one is stopped: nobody waits for who does not answer, and nothing is lost.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/bed/job_status.h"
#include "tests/bed/program.h"

#define CONNECT_END_MS 25000                        /* connecting is given up after 10 s: more means that it waits on */
enum { FCCCTL_UNWELL = 1, FCCCTL_UNREACHABLE = 3 }; /* fccctl's exit codes */
#define MANY 600                                    /* messages: more than a socket holds */

/* ---- the broker is stopped ---- */

/* Memory is charged and released without it, operators run, and when it goes on it knows what is so. */
static void broker_stopped(void)
{
    struct test_daemon d;
    fcc_context *context;
    fcc_comm *comm;
    static fcc_buffer *buffers[MANY], *more;
    struct fcc_unique_id id;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    int64_t before = job_number(&d, "test", "memory_bytes");
    for (int i = 0; i < MANY; i++)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 65536, &buffers[i]));
    CHECK(job_number(&d, "test", "memory_bytes") == before + MANY * 65536);

    CHECK(kill(d.pid, SIGSTOP) == 0);
    double start = now_ms(), longest = 0;
    for (int i = 0; i < MANY; i++) {
        fcc_buffer_free(buffers[i]);
        double one = now_ms();
        OK(fcc_noop(comm));
        longest = now_ms() - one > longest ? now_ms() - one : longest;
    }
    for (int i = 0; i < 4; i++)
        OK(fcc_buffer_alloc(comm, i % 2 ? FCC_BUFFER_LOCAL : FCC_BUFFER_SYMMETRIC, 65536, &more));
    double took = now_ms() - start;
    CHECK(kill(d.pid, SIGCONT) == 0);
    printf("%d frees and operators and 4 allocations took %.0f ms, the longest operator %.0f ms\n", MANY, took, longest);
    CHECK(longest < 2000); /* no operator has waited for the broker: such a wait is one of 2 s */
    CHECK(took < 6000);    /* one wait of 2 s for each allocation would be 8 s */
    int64_t more_bytes = job_number(&d, "test", "memory_bytes") - before - 4 * 65536;
    CHECK(more_bytes >= 0 && more_bytes < 65536); /* and what operators themselves take */
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* So many of the worker's messages find the broker's socket full: the number of its connections is right afterwards. */
static void broker_hears_all(void)
{
    static struct raw *all[MANY];
    struct test_daemon d;
    int status;

    daemon_start(&d, (const char *const[]){"--connections-per-job", "2000", "--connections-per-user", "2000", NULL});
    struct raw *stays = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status);
    CHECK(status == 0);
    for (int i = 0; i < MANY; i++) {
        all[i] = job_open_raw(&d, "raw", FCC_ROLE_CONTROL, &status);
        CHECK(status == 0);
    }
    pid_t worker = daemon_worker(&d);
    int descriptors = descriptors_count(worker);
    CHECK(kill(d.pid, SIGSTOP) == 0);
    for (int i = 0; i < MANY; i++)
        raw_close(all[i]);
    descriptors_fall(worker, descriptors - MANY); /* and the worker has told the broker of each */
    uint32_t comm = raw_comm(stays);
    struct fcc_submit m = noop_make(comm, FCC_NO_SLOT);
    CHECK(submit_socket(stays, &m, sizeof(m))->status == 0);
    CHECK(kill(d.pid, SIGCONT) == 0);
    job_await(&d, "raw", "connections", 1);
    raw_close(stays);
    daemon_stop(&d);
}

/* ---- a worker is stopped ---- */

/* Its clients' connections wait, in a number that is bounded; other jobs are served; when it goes on it takes them all. When it dies
 * instead, those that it has not taken are told. */
static void worker_stopped(void)
{
    enum { WAIT = 400 };
    static struct raw *all[WAIT];
    struct test_daemon d;
    int status, told = 0;

    daemon_start(&d, NULL);
    int before = descriptors_count(d.pid);
    struct raw *first = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status), *other;
    pid_t worker = daemon_worker(&d);
    for (int dies = 0; dies < 2; dies++) {
        job_await(&d, "raw", "connections", 1);
        CHECK(kill(worker, SIGSTOP) == 0);
        for (int i = 0; i < WAIT; i++) {
            all[i] = job_connect_raw(&d, "raw", FCC_ROLE_CONTROL);
            if (i % 100 == 0) { /* meanwhile */
                other = job_open_raw(&d, "other", FCC_ROLE_CLIENT, &status);
                CHECK(status == 0 && raw_comm(other) != 0);
                raw_close(other);
            }
        }
        CHECK(job_number(&d, "raw", "connections") == 1); /* and the broker has read what came before this question */
        printf("the broker has %d descriptors more\n", descriptors_count(d.pid) - before);
        CHECK(descriptors_count(d.pid) - before <= 512 + 16);
        CHECK(kill(worker, dies ? SIGKILL : SIGCONT) == 0);
        for (int i = 0; i < WAIT; i++) {
            ssize_t n = msg_recv(all[i]->sock, all[i]->in, sizeof(all[i]->in), 0, all[i]->fds, &all[i]->nfds);
            const struct fcc_reply *r = (const struct fcc_reply *)all[i]->in;
            CHECK(n == 0 ? dies : n >= (ssize_t)sizeof(*r) && r->status == (dies ? -ECONNRESET : 0));
            told += n > 0 && dies && strstr(r->text, "ended before it had taken the connection") != NULL;
            raw_close(all[i]);
        }
    }
    printf("%d of %d connections had waited in the broker, and were told\n", told, WAIT);
    CHECK(told > 0);
    raw_close(first);
    daemon_stop_unclean(&d);
}

/* ---- connecting ---- */

/* Is this what fccctl comms says of it? */
static void fccctl_fails(const char *socket, const char *job, int code, const char *says)
{
    const char *const arguments[] = {"comms", "--socket", socket, "--job", job, NULL};
    char text[4096];
    double start = now_ms();
    int status = program_run(text, sizeof(text), fccctl_binary(), arguments);

    if (status != code || !strstr(text, says))
        check_failed(__FILE__, __LINE__, "%d: %s", status, text);
    CHECK(now_ms() - start < CONNECT_END_MS);
}

/* A connection that nobody answers is given up, and the error says who it may be that does not; as does fccctl's. */
static void unanswered(const struct test_daemon *d, pid_t stopped, const char *job, int code, const char *fccctl_says)
{
    struct fcc_connect_options options = {.job = job};
    fcc_context *context = NULL;
    char says[64];
    int status;

    CHECK(kill(stopped, SIGSTOP) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        fccctl_fails(d->socket, job, code, fccctl_says);
        _exit(0);
    }
    (void)snprintf(says, sizeof(says), "or the worker of job '%s', does not answer", job);
    double start = now_ms();
    FAILS(fcc_connect(&options, &context), -ETIMEDOUT, "no answer within ", says, "it is stopped, or it hangs");
    CHECK(!context && now_ms() - start < CONNECT_END_MS);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(kill(stopped, SIGCONT) == 0);
    OK(fcc_connect(&options, &context));
    fcc_disconnect(context);
}

static void connect_broker_stopped(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    unanswered(&d, d.pid, "test", FCCCTL_UNREACHABLE, "does not answer");
    daemon_stop(&d);
}

static void connect_worker_stopped(void)
{
    struct test_daemon d;
    fcc_context *first;
    char says[64];

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &first));
    pid_t worker = daemon_worker(&d);
    (void)snprintf(says, sizeof(says), "its worker (pid %d) does not answer", worker);
    unanswered(&d, worker, "test", FCCCTL_UNWELL, says);
    fcc_disconnect(first);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"broker_stopped", broker_stopped, 60},
        {"broker_hears_all", broker_hears_all, 60},
        {"worker_stopped", worker_stopped, 60},
        {"connect_broker_stopped", connect_broker_stopped, 60},
        {"connect_worker_stopped", connect_worker_stopped, 60},
    };
    return tests_run("channel", TESTS(tests));
}
