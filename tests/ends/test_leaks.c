/* SPDX-License-Identifier: MIT
 *
 * test_leaks.c - connections, communicators and buffers that come and go, in all the ways in which they may end: after many of them the broker
 * and the worker have no more memory and no more descriptors than after few.
 *
 * ROUNDS=n: so many, rather than some hundreds.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bed/job_status.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* what has been freed is kept for a while, and every access has a trace: memory says nothing */
#else
#define SANITIZED 0
#endif

enum { WARM = 150, ROUNDS = 800, RANKS = 2, PATIENCE_MS = 60000, FLOATS = 4096 };
/* What the process's memory may grow by, however many rounds there are: arenas of malloc that other threads begin, and tables that have
 * doubled. One lost object of 1 KiB in every round is more. */
#define GROWTH_KIB 512

/* ---- what a round is ---- */

/* What the two ranks share. */
struct story {
    int rounds, nodes;
    /* At these times of a round: when both are there is an id, when its work is done, and when it is over */
    _Atomic int arrived[2];
    struct fcc_unique_id id;
};

static void meet(struct story *s, int rank, int time)
{
    s->arrived[rank] = time;
    for (double until = now_ms() + PATIENCE_MS; s->arrived[!rank] < time; nap())
        CHECK(now_ms() < until);
}

static void gemv_try(fcc_comm *comm, fcc_buffer *local, fcc_buffer *y)
{
    const struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(local, 0, FCC_F32, 1, 32),
                                                  .w = fcc_tensor_2d(local, 0, FCC_F32, 64, 32),
                                                  .y = fcc_tensor_2d(y, 0, FCC_F32, 1, 64)};
    const struct fcc_gemv_all_reduce_args wrong = {.x = args.x, .w = args.x, .y = args.y};

    OK(fcc_gemv_all_reduce(comm, &args));
    FAILS(fcc_gemv_all_reduce(comm, &wrong), -EINVAL);
}

/* A communicator of both ranks, with all that it may have; and its end: destroyed, aborted, or with the connection. */
static void together(fcc_context *context, struct story *s, int rank, int round)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = PATIENCE_MS};
    fcc_buffer *local, *y, *result, *more;
    struct fcc_triggers triggers;
    const int32_t *word;
    fcc_comm *comm;

    OK(fcc_comm_init(context, &s->id, RANKS, rank, &options, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, FLOATS * sizeof(float), &local));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, FLOATS * sizeof(float), &y));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, FLOATS * sizeof(float), &result));
    gemv_try(comm, local, y);
    gemv_try(comm, local, result);
    OK(fcc_comm_status(comm, &word));
    if (round % 3 == 0 && s->nodes > 1)
        OK(fcc_comm_triggers(comm, &triggers));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 100, &more));
    fcc_buffer_free(result);
    if (round % 2)
        fcc_buffer_free(local);
    OK(fcc_noop(comm));
    meet(s, rank, 3 * round + 2); /* an end of the communicator may overtake that of the noop */
    if (round % 5 == 4 && rank == 0)
        OK(fcc_comm_abort(comm, "the round's"));
    else if (round % 5 == 4)
        while (!*(const volatile int32_t *)word)
            nap();
    if (round % 4)
        fcc_comm_destroy(comm);
}

/* What one rank does by itself: a communicator that never forms, errors, and replies that nobody reads. */
static void alone(fcc_context *context, int round)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 1};
    struct fcc_unique_id id;
    fcc_comm *comm;
    fcc_buffer *b;

    OK(fcc_get_unique_id(context, &id));
    if (round % 4 == 0)
        FAILS(fcc_comm_init(context, &id, 2, 0, &options, &comm), -ETIMEDOUT);
    FAILS(fcc_comm_init(context, &id, 2, 2, &options, &comm), -EINVAL);
    OK(fcc_get_unique_id(context, &id));
    options.time_limit_ms = PATIENCE_MS;
    OK(fcc_comm_init(context, &id, 1, 0, &options, &comm));
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)1 << 45, &b), -ENOMEM);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 65536, &b));
    OK(fcc_noop(comm));
}

static void unread(void)
{
    struct test_daemon d = {.nodes = 1};
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};
    struct fcc_hello old = hello_job("test", FCC_ROLE_CLIENT);
    int status;

    (void)snprintf(d.socket, sizeof(d.socket), "%s", getenv("FCCD_SOCKET"));
    struct raw *r = job_open_raw(&d, "test", FCC_ROLE_CLIENT, &status);
    CHECK(status == 0);
    for (int i = 0; i < 20; i++)
        raw_send(r, &ask, sizeof(ask), NULL, 0);
    raw_close(r);
    r = job_open_raw(&d, "test", FCC_ROLE_CONTROL, &status);
    struct fcc_query q = {.msg = {.length = sizeof(q), .type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_STATUS};
    raw_send(r, &q, sizeof(q), NULL, 0);
    (void)raw_receive(r);
    raw_close(r);
    r = raw_open(&d);
    old.version = FCC_PROTO_OLDEST - 1;
    raw_send(r, &old, sizeof(old), NULL, 0);
    CHECK(raw_receive(r)->status != 0);
    raw_close(r);
}

static void rounds_rank(int rank, const struct ranks *all, void *argument)
{
    struct story *s = argument;

    (void)all;
    for (int round = 0; round < s->rounds; round++) {
        fcc_context *context;
        OK(fcc_connect(NULL, &context));
        if (rank == 0)
            OK(fcc_get_unique_id(context, &s->id));
        meet(s, rank, 3 * round + 1);
        together(context, s, rank, round);
        if (round % 3 == rank)
            alone(context, round);
        fcc_disconnect(context);
        if (round % 5 == rank)
            unread();
        meet(s, rank, 3 * round + 3);
    }
}

/* ---- what is left ---- */

struct process {
    pid_t pid;
    int descriptors; /* -1: nobody but root sees a worker's, and its memory stands for itself */
    long kib;
};

/* What is the process's own, and what it shares by memfds: not the programs' code. */
static long memory_kib(pid_t pid)
{
    char path[64], line[128];
    long sum = 0, n;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %ld", &n) == 1 || sscanf(line, "RssShmem: %ld", &n) == 1)
            sum += n;
    (void)fclose(f);
    return sum;
}

static struct process process_see(pid_t pid)
{
    return (struct process){.pid = pid, .descriptors = descriptors_count(pid), .kib = memory_kib(pid)};
}

/* It comes back to what it was, soon: what a process has left is let go a moment later. */
static void process_expect(const struct process *before, const char *who, int node)
{
    struct process now;

    for (double until = await_end();; (void)usleep(20000)) {
        now = process_see(before->pid);
        if (now.descriptors <= before->descriptors && (SANITIZED || now.kib <= before->kib + GROWTH_KIB))
            break;
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "the %s of node %d had %d descriptors and %ld KiB, and has %d and %ld KiB", who,
                         node, before->descriptors, before->kib, now.descriptors, now.kib);
    }
    printf("the %s of node %d: %d descriptors, then %d; %ld KiB, then %ld KiB\n", who, node, before->descriptors,
           now.descriptors, before->kib, now.kib);
}

static void rounds_run(struct story *s, int rounds)
{
    struct ranks r;

    s->rounds = rounds;
    s->arrived[0] = s->arrived[1] = 0;
    ranks_start(&r, RANKS, rounds_rank, s);
    ranks_join(&r);
}

static void many(int nodes)
{
    const char *wanted = getenv("ROUNDS");
    struct story *s = shared_memory(sizeof(*s));
    struct process broker[2], worker[2];
    fcc_context *keeps[2]; /* the workers stay */
    struct test_daemon d;

    s->nodes = nodes;
    daemons_start(&d, nodes, NULL);
    for (int i = 0; i < nodes; i++)
        OK(fcc_connect(&(struct fcc_connect_options){.socket_path = d.node[i].socket}, &keeps[i]));
    rounds_run(s, test_rounds(WARM));
    (void)usleep(200000); /* what has ended is gone */
    for (int i = 0; i < nodes; i++) {
        struct test_daemon at = {.node = {d.node[i]}};
        broker[i] = process_see(d.node[i].pid);
        worker[i] = process_see(daemon_worker(&at));
    }
    rounds_run(s, wanted ? (int)strtol(wanted, NULL, 10) : test_rounds(ROUNDS));
    for (int i = 0; i < nodes; i++) {
        process_expect(&broker[i], "broker", i);
        process_expect(&worker[i], "worker", i);
        fcc_disconnect(keeps[i]);
    }
    daemon_stop(&d);
}

static void one_node(void)
{
    many(1);
}

static void two_nodes(void)
{
    many(2);
}

/* Workers of many jobs: the broker has nothing of those that have ended. */
static void jobs(void)
{
    const char *wanted = getenv("ROUNDS");
    int rounds = wanted ? (int)strtol(wanted, NULL, 10) / 4 : test_rounds(80);
    struct process broker = {0};
    struct test_daemon d;
    char job[32];

    daemon_start(&d, (const char *const[]){"--worker-idle-ms", "0", NULL});
    for (int i = -10; i < rounds; i++) {
        fcc_context *context;
        (void)snprintf(job, sizeof(job), "job-%d", i + 10);
        OK(fcc_connect(&(struct fcc_connect_options){.job = job}, &context));
        fcc_disconnect(context);
        if (i == 0)
            broker = process_see(d.pid);
    }
    broker.descriptors = d.descriptors;
    process_expect(&broker, "broker", 0);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"one_node", one_node, 120},
        {"two_nodes", two_nodes, 120},
        {"jobs", jobs, 120},
    };
    return tests_run("leaks", TESTS(tests));
}
