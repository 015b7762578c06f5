/* SPDX-License-Identifier: MIT
 *
 * test_node_faults.c - communicators over two nodes (two daemons on this machine), and who dies: clients, workers, brokers, all of a
 * node, in the middle of operators; a node that is silent; one that begins anew. How long it took until the others heard is printed.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

enum { NODES = 2, RANKS = 4, K = 256 };

/* Rows of the operators' matrix; and how long the tests wait, where they would wait for ever if something was wrong. */
static int rows = 4096;
static double patience_ms = 20e3;

/* What the ranks of a test share. */
struct scene {
    _Atomic long rounds[RANKS];
    _Atomic int stop;
    double heard_ms[RANKS];
    char text[RANKS][512];
    int status[RANKS];
};

/* Operators, one after the other, until one fails or the scene stops; what it was told. */
static void rounds_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *x, *w, *y;
    int status = 0;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * 4, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (uint64_t)rows * K * 4, &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (uint64_t)rows * 4, &y));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, rows, K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, rows),
                                            .schedule =
                                                FCC_SCHEDULE_HIERARCHICAL}; /* each rank is one of the other node's deputy */
    while (!status && !scene->stop) {
        status = fcc_gemv_all_reduce(comm, &args);
        scene->rounds[rank] += !status;
    }
    scene->heard_ms[rank] = now_ms();
    scene->status[rank] = status;
    (void)snprintf(scene->text[rank], sizeof(scene->text[rank]), "%s", status ? fcc_last_error() : "");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void rounds_await(const struct scene *scene, int ranks, long more)
{
    double until = now_ms() + patience_ms;

    for (int r = 0; r < ranks; r++) {
        long wanted = scene->rounds[r] + more;
        while (scene->rounds[r] < wanted) {
            CHECK(now_ms() < until);
            (void)usleep(500);
        }
    }
}

/* The ranks of the first node: who was lost is named, and they were told in time. */
static void expect_told(const struct scene *scene, int ranks, double since_ms, const char *words)
{
    for (int r = 0; r < ranks; r += NODES) {
        printf("rank %d heard after %.1f ms: %s\n", r, scene->heard_ms[r] - since_ms, scene->text[r]);
        CHECK(scene->status[r] < 0);
        CHECK(strstr(scene->text[r], words) != NULL);
    }
}

static pid_t node_worker(const struct test_daemon *d, int node)
{
    struct test_daemon one = {.node = {d->node[node]}, .nodes = 1};

    return daemon_worker(&one);
}

static void broker_kill(struct test_daemon *d, int node)
{
    CHECK(kill(d->node[node].pid, SIGKILL) == 0 && waitpid(d->node[node].pid, NULL, 0) == d->node[node].pid);
    d->node[node].pid = 0;
    (void)unlink(d->node[node].socket);
}

static struct scene *scene_open(struct test_daemon *d, struct ranks *r)
{
    struct scene *scene = shared_memory(sizeof(*scene));

    daemons_start(d, NODES, NULL);
    ranks_start(r, RANKS, rounds_rank, scene);
    rounds_await(scene, RANKS, 20);
    return scene;
}

static void client_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    char who[64];

    (void)snprintf(who, sizeof(who), "rank 1 (pid %d) is gone", r.pid[1]);
    double since = now_ms();
    CHECK(kill(r.pid[1], SIGKILL) == 0 && WIFSIGNALED(rank_wait(&r, 1)));
    ranks_join(&r);
    expect_told(scene, RANKS, since, who);
    CHECK(strstr(scene->text[0], d.node[1].address) != NULL); /* and where */
    expect_alive(RANKS);
    daemon_stop(&d);
}

static void worker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    double since = now_ms();

    CHECK(kill(node_worker(&d, 1), SIGKILL) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    CHECK(scene->status[1] == -ECONNRESET && scene->status[3] == -ECONNRESET); /* their own worker's death */
    expect_alive(RANKS);
    daemon_stop_unclean(&d);
}

/* The workers need it no more: what runs goes on, with an error for nobody. */
static void broker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    broker_kill(&d, 1);
    rounds_await(scene, RANKS, 50);
    scene->stop = 1;
    ranks_join(&r);
    for (int i = 0; i < RANKS; i++) /* who stops first leaves the others' operator */
        CHECK(scene->status[i] == 0 || scene->status[i] == -ECONNABORTED);
    expect_alive(1); /* the first node goes on by itself */
    daemon_stop_unclean(&d);
}

static void node_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms();

    broker_kill(&d, 1);
    CHECK(kill(worker, SIGKILL) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    expect_alive(1);
    daemon_stop_unclean(&d);
}

/* A worker that is stopped closes nothing. */
static void silent(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms(), until = since + patience_ms;

    CHECK(kill(worker, SIGSTOP) == 0);
    while (!scene->status[0] || !scene->status[2]) {
        CHECK(now_ms() < until);
        (void)usleep(1000);
    }
    CHECK(kill(worker, SIGCONT) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    CHECK(scene->status[1] < 0 && scene->status[3] < 0);
    expect_alive(RANKS);
    daemon_stop(&d);
}

/* Its broker begins anew, while the old one's worker serves its job to the end. */
static void restarted(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    broker_kill(&d, 1);
    node_restart(&d, 1);
    rounds_await(scene, RANKS, 20);
    scene->stop = 1;
    ranks_join(&r);
    expect_alive(RANKS);
    daemon_stop_unclean(&d);
}

/* The id was made on the second node, and no rank is there. */
static void met_elsewhere(void)
{
    struct test_daemon d;
    struct ranks r;
    fcc_context *context;
    struct fcc_unique_id id;
    struct fcc_connect_options there = {.socket_path = NULL};

    daemons_start(&d, NODES, NULL);
    there.socket_path = d.node[1].socket;
    OK(fcc_connect(&there, &context));
    OK(fcc_get_unique_id(context, &id));
    ranks_start(&r, 0, alive_rank, NULL);
    for (int rank = 0; rank < 3; rank++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            struct ranks all = {.n = 3, .id = id};
            alive_rank(rank, &all, NULL);
            exit(EXIT_SUCCESS);
        }
        r.pid[r.n++] = pid;
    }
    ranks_join(&r);
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void nobody_there(void)
{
    struct test_daemon d;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 300};
    struct fcc_unique_id id;
    fcc_context *context;
    fcc_comm *comm;

    daemons_start(&d, NODES, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    FAILS(fcc_comm_init(context, &id, 2, 0, &options, &comm), -ETIMEDOUT, "rank 1", "300 ms");
    /* nobody listens at port 1 */
    memset(id.bytes + 40, 0, sizeof(id.bytes) - 40);
    memcpy(id.bytes + 40, "127.0.0.1:1", 11);
    FAILS(fcc_comm_init(context, &id, 2, 0, &(struct fcc_comm_options){.device = -1}, &comm), -ECONNREFUSED, "127.0.0.1:1");
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"client_killed", client_killed, 0},
        {"worker_killed", worker_killed, 0},
        {"broker_killed", broker_killed, 0},
        {"node_killed", node_killed, 0},
        {"silent", silent, 0},
        {"restarted", restarted, 0},
        {"met_elsewhere", met_elsewhere, 0},
        {"nobody_there", nobody_there, 0},
    };

    if (getenv("FCC_TEST_SLOW")) { /* an emulated machine, or a sanitizer */
        rows /= 8;
        patience_ms *= 4;
    }
    return tests_run("node_faults", TESTS(tests));
}
