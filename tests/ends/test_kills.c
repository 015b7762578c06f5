/* SPDX-License-Identifier: MIT
 *
 * test_kills.c - processes killed, and ranks stopped, at random instants, again and again: ranks, workers, brokers, on one node and on two. Those that are left
 * hear of it, have no wrong number, and the next job runs; at the end nothing is left.
 *
 * ROUNDS=n: so many of each test, rather than some. SEED=n: other ones. A round that fails says which it was.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"

enum { RANKS = 4, K = 512, N = 1024, ROWS = 16 };
enum { FORMING_LIMIT_MS = 1500, RUNNING_LIMIT_MS = 60000, STOPPED_LIMIT_MS = 5000 };
#define HEAR_MS 100e3 /* far beyond any limit: who has not heard then waits for ever */

enum victim { VICTIM_RANK, VICTIM_WORKER, VICTIM_BROKER, VICTIM_STOPPED, VICTIMS };
static char round_text[128];
static unsigned seed;

static int random_below(int n)
{
    return (int)((unsigned)rand_r(&seed) % (unsigned)n);
}

static const char *const victim_names[] = {"rank", "worker", "broker", "rank that is stopped"};

/* What the ranks of a round share. */
struct story {
    uint32_t time_limit_ms;
    _Atomic long operators[RANKS]; /* that ended well */
    _Atomic int wrong[RANKS];
    int status[RANKS]; /* the first that failed */
    char text[RANKS][512];
    double heard_ms[RANKS];
};

static long rounds_wanted(void)
{
    const char *wanted = getenv("ROUNDS");

    return wanted ? strtol(wanted, NULL, 10) : test_rounds(12);
}

/* ---- a rank ---- */

struct lane {
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;
};

static int lane_open(struct lane *l, const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = time_limit_ms};
    fcc_context *context;
    int status = fcc_connect(NULL, &context);

    status = status ? status : fcc_comm_init(context, &all->id, all->n, rank, &options, &l->comm);
    status = status ? status : fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, ROWS * RANKS * K * 4, &l->x);
    status = status ? status : fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, N * K * 4, &l->w);
    status = status ? status : fcc_buffer_alloc(l->comm, FCC_BUFFER_SYMMETRIC, ROWS * RANKS * N * 4, &l->y);
    if (status)
        return status;
    float *x = fcc_buffer_data(l->x), *w = fcc_buffer_data(l->w);
    for (int i = 0; i < ROWS * RANKS * K; i++)
        x[i] = 1;
    for (int i = 0; i < N * K; i++)
        w[i] = 1;
    return 0;
}

/* One operator of the four, whose results are told from each other. *wrong: a number in the result is. */
static int lane_run(const struct lane *l, long number, int *wrong)
{
    const struct fcc_gemv_all_reduce_args gemv = {.x = fcc_tensor_2d(l->x, 0, FCC_F32, 1, K),
                                                  .w = fcc_tensor_2d(l->w, 0, FCC_F32, N, K),
                                                  .y = fcc_tensor_2d(l->y, 0, FCC_F32, 1, N)};
    const struct fcc_gemm_all_to_all_args gemm = {.a = fcc_tensor_2d(l->x, 0, FCC_F32, ROWS * RANKS, K),
                                                  .b = fcc_tensor_2d(l->w, 0, FCC_F32, K, N),
                                                  .c = fcc_tensor_2d(l->y, 0, FCC_F32, ROWS * RANKS, N)};
    const struct fcc_all_gather_gemm_args gather = {.a = fcc_tensor_2d(l->x, 0, FCC_F32, ROWS, K),
                                                    .b = fcc_tensor_2d(l->w, 0, FCC_F32, K, N),
                                                    .c = fcc_tensor_2d(l->y, 0, FCC_F32, ROWS * RANKS, N)};
    const float *y = fcc_buffer_data(l->y);
    long size = number % 4 == 0 ? N : (long)ROWS * RANKS * N;
    int status = number % 4 == 0   ? fcc_gemv_all_reduce(l->comm, &gemv)
                 : number % 4 == 1 ? fcc_gemm_all_to_all(l->comm, &gemm)
                 : number % 4 == 2 ? fcc_noop(l->comm)
                                   : fcc_all_gather_gemm(l->comm, &gather);

    for (long i = 0; !status && number % 4 != 2 && i < size; i += 97)
        *wrong += y[i] != (number % 4 == 0 ? (float)(K * RANKS) : (float)K);
    return status;
}

/* Until an operator fails, which it will. The process ends as it is: nobody tidies up before being killed either. */
static void rank_of_round(int rank, const struct ranks *all, void *argument)
{
    struct story *story = argument;
    struct lane l;
    int wrong = 0, status = lane_open(&l, all, rank, story->time_limit_ms);

    for (long i = 0; !status; i++) {
        status = lane_run(&l, i, &wrong);
        story->operators[rank] += !status;
        story->wrong[rank] = wrong;
    }
    story->heard_ms[rank] = now_ms();
    (void)snprintf(story->text[rank], sizeof(story->text[rank]), "%s", fcc_last_error());
    story->status[rank] = status;
    _exit(EXIT_SUCCESS);
}

/* ---- a round ---- */

static void operators_await(const struct story *story, long more)
{
    double until = now_ms() + HEAR_MS;

    for (int r = 0; r < RANKS; r++) {
        long wanted = story->operators[r] + more;
        while (story->operators[r] < wanted) {
            if (now_ms() > until || story->status[r])
                check_failed(__FILE__, __LINE__, "%s: rank %d does not go on: %d: %s", round_text, r, story->status[r],
                             story->text[r]);
            (void)usleep(200);
        }
    }
}

/* Every worker of the node's: the one that serves the round's ranks, and one that is about to end, or has only begun. Returns how many. */
static int workers_kill(const struct test_node *node)
{
    char path[64];
    int child, n = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", node->pid, node->pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    for (; fscanf(f, "%d", &child) == 1; n++)
        CHECK(kill(child, SIGKILL) == 0 || errno == ESRCH); /* it may have ended, and been reaped */
    (void)fclose(f);
    return n;
}

/* A worker was killed before its ranks came, and they run operators with the next one, which is killed, too. */
static void workers_kill_again(const struct test_node *node, const struct story *story, long *from)
{
    long now = 0;

    for (int i = 0; i < RANKS; i++)
        now += story->operators[i];
    if (now < *from + 8 * RANKS) /* more than are under way when a worker dies */
        return;
    *from = now;
    (void)workers_kill(node);
}

/* Those that are left have heard, and say so: `early`, a rank may have been killed before anybody knew of it. node: whose workers were killed, or
 * NULL. */
static void ranks_hear(struct ranks *r, struct story *story, int killed, double since_ms, bool early,
                       const struct test_node *node)
{
    double until = now_ms() + HEAR_MS, worst = 0;
    long from = 0;
    int status;

    for (int i = 0; i < RANKS; i++)
        from += story->operators[i];
    for (int i = 0; i < RANKS; i++) {
        while (i != killed && waitpid(r->pid[i], &status, WNOHANG) == 0) {
            if (now_ms() > until)
                check_failed(__FILE__, __LINE__, "%s: rank %d still waits after %.0f s", round_text, i, HEAR_MS / 1e3);
            if (node)
                workers_kill_again(node, story, &from);
            (void)usleep(500);
        }
        if (story->wrong[i])
            check_failed(__FILE__, __LINE__, "%s: rank %d has wrong numbers", round_text, i);
        if (i == killed)
            continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status) || story->status[i] >= 0 || !*story->text[i])
            check_failed(__FILE__, __LINE__, "%s: rank %d: wait status 0x%x, status %d: %s", round_text, i, status,
                         story->status[i], story->text[i]);
        if (!early && story->status[i] == -ETIMEDOUT)
            check_failed(__FILE__, __LINE__, "%s: rank %d was told by its time limit: %s", round_text, i, story->text[i]);
        worst = story->heard_ms[i] - since_ms > worst ? story->heard_ms[i] - since_ms : worst;
    }
    printf("%s: heard within %.0f ms\n", round_text, worst);
}

/* The others have heard of the stopped rank by their time limit, with its number; when it goes on it hears, too. */
static void stopped_hears(struct ranks *r, const struct story *story, int stopped, bool early)
{
    double until = now_ms() + HEAR_MS;
    char name[16];
    int status;

    (void)snprintf(name, sizeof(name), "rank %d", stopped);
    for (int i = 0; i < RANKS && !early; i++)
        if (i != stopped && (story->status[i] != -ETIMEDOUT || !strstr(story->text[i], name)))
            check_failed(__FILE__, __LINE__, "%s: rank %d, of rank %d: %d: %s", round_text, i, stopped, story->status[i],
                         story->text[i]);
    CHECK(kill(r->pid[stopped], SIGCONT) == 0);
    while (waitpid(r->pid[stopped], &status, WNOHANG) == 0) {
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "%s: rank %d, which was stopped, still waits", round_text, stopped);
        (void)usleep(500);
    }
    if (status || story->wrong[stopped] || story->status[stopped] >= 0 || !*story->text[stopped])
        check_failed(__FILE__, __LINE__, "%s: rank %d, which was stopped: wait status 0x%x, %d wrong, status %d: %s",
                     round_text, stopped, status, story->wrong[stopped], story->status[stopped], story->text[stopped]);
}

static int rank_kill(struct ranks *r)
{
    int rank = random_below(RANKS);

    CHECK(kill(r->pid[rank], SIGKILL) == 0);
    (void)rank_wait(r, rank); /* it may have failed just before */
    return rank;
}

/* The workers that run, or have begun to: any of the nodes' . */
static pid_t worker_of(const struct test_node *node)
{
    char path[64];
    int child = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", node->pid, node->pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    if (fscanf(f, "%d", &child) != 1)
        child = 0;
    (void)fclose(f);
    return child;
}

static void broker_kill(struct test_node *node)
{
    CHECK(kill(node->pid, SIGKILL) == 0 && waitpid(node->pid, NULL, 0) == node->pid);
    (void)unlink(node->socket);
}

static void round_run(struct test_daemon *d, long number, bool early)
{
    struct story *story = shared_memory(sizeof(*story));
    enum victim victim = (enum victim)random_below(VICTIMS);
    int node = random_below(d->nodes), killed = -1;
    useconds_t delay_us = (useconds_t)random_below(early ? 30000 : 100000);
    struct ranks r;

    (void)snprintf(round_text, sizeof(round_text), "round %ld%s, node %d, a %s", number, early ? ", early" : "", node,
                   victim_names[victim]);
    bool stops = victim == VICTIM_STOPPED;
    story->time_limit_ms = early ? FORMING_LIMIT_MS : stops ? STOPPED_LIMIT_MS : RUNNING_LIMIT_MS;
    ranks_start(&r, RANKS, rank_of_round, story);
    if (!early)
        operators_await(story, 5);
    (void)usleep(delay_us);
    double since_ms = now_ms();
    bool workers = victim == VICTIM_WORKER && workers_kill(&d->node[node]) > 0;
    if (victim == VICTIM_BROKER) {
        broker_kill(&d->node[node]);
        if (!early) /* what runs needs it no more */
            operators_await(story, 20);
        node_restart_busy(d, node, NULL); /* early, ranks may come to this one, and stay */
        since_ms = now_ms();
        killed = rank_kill(&r);
    } else if (stops) {
        killed = random_below(RANKS);
        CHECK(kill(r.pid[killed], SIGSTOP) == 0);
    } else if (!workers) {
        killed = rank_kill(&r);
    }
    ranks_hear(&r, story, killed, since_ms, early || stops, workers ? &d->node[node] : NULL);
    if (stops)
        stopped_hears(&r, story, killed, early);
}

/* The brokers have no workers and no descriptors more than they need. One that has had to do with another node keeps connections to it. */
static void rest_await(const struct test_daemon *d)
{
    double until = now_ms() + HEAR_MS;

    for (int i = 0; i < d->nodes; i++) {
        const struct test_node *node = &d->node[i];
        while (worker_of(node) || descriptors_count(node->pid) > node->descriptors + 2 * (d->nodes - 1)) {
            if (now_ms() > until)
                check_failed(__FILE__, __LINE__, "node %d: its broker has %d descriptors (%d at rest), a worker %d", i,
                             descriptors_count(node->pid), node->descriptors, worker_of(node));
            (void)usleep(1000);
        }
    }
}

static void campaign(int nodes)
{
    const char *wanted = getenv("SEED");
    struct test_daemon d;

    seed = (wanted ? (unsigned)strtoul(wanted, NULL, 10) : 1) * 1000 + (unsigned)nodes;
    daemons_start(&d, nodes, NULL);
    for (long i = 0; i < rounds_wanted(); i++) {
        round_run(&d, i, i % 3 == 2);
        expect_alive(RANKS);
    }
    rest_await(&d);
    daemon_stop_unclean(&d);
}

static void one_node(void)
{
    campaign(1);
}

static void two_nodes(void)
{
    campaign(2);
}

int main(void)
{
    const unsigned limit_s = 120 + 20 * (unsigned)rounds_wanted();
    const struct test tests[] = {
        {"one_node", one_node, limit_s},
        {"two_nodes", two_nodes, limit_s},
    };

    return tests_run("kills", TESTS(tests));
}
