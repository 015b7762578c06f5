/* SPDX-License-Identifier: MIT
 *
 * test_adopt.c - the broker ends, and another one takes its workers over (daemon/broker/store.h): jobs run on, with right results, and are the
 * new broker's as they were the old one's. What happens if no other one comes, or one that is not the right one.
 */
#include <json-c/json.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/bed/keeper.h"
#include "tests/bed/program.h"
#include "tests/bed/random.h"

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

    CHECK(program_run(said, sizeof(said), "build/bin/fccctl", (const char *const[]){"--json", "status", NULL}) == 0);
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

int main(void)
{
    const struct test tests[] = {{"killed", killed, 0}, {"terminated", terminated, 0}, {"restarts", restarts, 120}};

    return tests_run("adopt", TESTS(tests));
}
