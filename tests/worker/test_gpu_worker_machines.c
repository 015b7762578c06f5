/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_machines.c - GPUs of several nodes (fake ones: fake_gpu.c), of which one is lost in the middle of operators; how long it took
 * until the ranks on the other one heard is printed, of two machines from the end of their last operator.
 *
 * test_gpu_worker_machines --machine FIRST COUNT OF ID ID LISTEN KEY OTHER [dies] is one of two machines, which starts a daemon of its own
 * that listens at LISTEN, with that cluster's key: ranks FIRST to FIRST + COUNT - 1 of OF run here, the others at OTHER. All operators, with
 * their results, then the same as above: the daemon and its worker on the machine that `dies` are killed. The ids, in hexadecimal digits, are
 * of the two communicators.
 */
#include "tests/fake_gpu/fake_gpu_exchange.h"

enum { NODES = 2, RANKS = 4, BEFORE = 5 };

/* What the ranks of a test share. */
struct scene {
    _Atomic long rounds[RANKS];
    double ended_ms[RANKS], heard_ms[RANKS]; /* its last operator, well; and the error */
    int status[RANKS];
    char text[RANKS][512];
};

/* Operators, one after the other, until one fails; what it was told. */
static void rounds_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    int status;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    while (!(status = fcc_gemv_all_reduce(p.comm, &p.args))) {
        scene->ended_ms[rank] = now_ms();
        scene->rounds[rank]++;
    }
    scene->heard_ms[rank] = now_ms();
    scene->status[rank] = status;
    (void)snprintf(scene->text[rank], sizeof(scene->text[rank]), "%s", fcc_last_error());
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void rounds_await(const struct scene *scene, int first, int count)
{
    double until = await_end();

    for (int r = first; r < first + count; r++)
        while (scene->rounds[r] < BEFORE) {
            if (now_ms() > until || scene->status[r])
                check_failed(__FILE__, __LINE__, "rank %d: %ld operators have ended before the node was to be lost: %s", r,
                             scene->rounds[r], scene->text[r]);
            (void)usleep(1000);
        }
}

/* The rank heard, and of whom. */
static void heard_check(const struct scene *scene, int rank, double since_ms, const char *node)
{
    printf("rank %d heard after %.1f ms: %s\n", rank, scene->heard_ms[rank] - since_ms, scene->text[rank]);
    CHECK(scene->status[rank] == -ECONNRESET || scene->status[rank] == -ETIMEDOUT);
    CHECK(strstr(scene->text[rank], node) != NULL);
}

/* All that the surviving node's worker had of its GPUs is let go. Of the other one's nothing could be. */
static void survivor_check(int left)
{
    CHECK(!fake->wrong);
    await_less(&fake->contexts, left);
}

static pid_t node_worker(const struct test_daemon *d, int node)
{
    struct test_daemon one = {.node = {d->node[node]}, .nodes = 1};

    return daemon_worker(&one);
}

static void broker_kill(struct test_node *node)
{
    CHECK(kill(node->pid, SIGKILL) == 0 && waitpid(node->pid, NULL, 0) == node->pid);
    node->pid = 0;
    (void)unlink(node->socket);
}

/* ---- on this machine ---- */

static void killed(bool broker_too)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, rounds_rank, scene);
    rounds_await(scene, 0, RANKS);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms();
    if (broker_too)
        broker_kill(&d.node[1]);
    CHECK(kill(worker, SIGKILL) == 0);
    ranks_join(&r);
    for (int i = 0; i < RANKS; i++)
        if (i % NODES == 0)
            heard_check(scene, i, since, d.node[1].address);
        else
            CHECK(scene->status[i] == -ECONNRESET); /* its own worker's death */
    daemon_stop_unclean(&d);
    survivor_check(2); /* the dead worker's: a GPU for each of its ranks */
}

static void worker_killed(void)
{
    killed(false);
}

static void node_killed(void)
{
    killed(true);
}

/* ---- one of two machines ---- */

static char **machine; /* its arguments */

/* All operators in both schedules; as they are, and with a rank that only gets. Emulated machines take their time. */
static void machine_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();

    product_check(&p, FCC_SCHEDULE_FUSED);
    product_check(&p, FCC_SCHEDULE_SEQUENTIAL);
    for (int idle = NOBODY; idle <= 0; idle++) {
        struct exchange x;
        exchange_open(&x, p.comm, idle);
        exchange_works(&x, FCC_SCHEDULE_SEQUENTIAL, NULL);
        exchange_works(&x, FCC_SCHEDULE_FUSED, stream);
        exchange_close(&x);
    }
    product_check(&p, FCC_SCHEDULE_FUSED);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void machine_works(struct ranks *r, const struct test_daemon *d, int first, int count)
{
    fake->exports = FAKE_EXPORTS_MEMORY; /* which no adapter takes */
    fake->copy_us = 300;                 /* a kernel that did not wait for them would add up what is not there */
    ranks_start_some(r, first, count, machine_rank, NULL);
    ranks_join(r);
    printf("all operators of ranks %d to %d are right; %d areas came from the other machine and went on to the GPUs\n", first,
           first + count - 1, fake->copied);
    CHECK(fake->copied > 0);
    CHECK(!test_over_verbs() || (node_logged(&d->node[0], "data goes there over verbs", false) &&
                                 node_logged(&d->node[0], "lands in host memory: rxe", false))); /* whichever was first */
}

static void machine_part(void)
{
    const char *const options[] = {"--node-listen", machine[5], "--cluster-key", machine[6], "--time-limit-ms", "120000", NULL};
    int first = atoi(machine[0]), count = atoi(machine[1]);
    bool dies = machine[8] && !strcmp(machine[8], "dies");
    struct ranks r = {.n = atoi(machine[2]), .id = id_parse(machine[3])};
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;

    CHECK(r.n == RANKS);
    fake_nodes_start(&d, 1, GPUS, options);
    fake_nodes = NODES;
    fake_together = count;
    machine_works(&r, &d, first, count);
    r.id = id_parse(machine[4]);
    ranks_start_some(&r, first, count, rounds_rank, scene);
    if (dies) {
        rounds_await(scene, first, count);
        pid_t worker = daemon_worker(&d);
        broker_kill(&d.node[0]);
        CHECK(kill(worker, SIGKILL) == 0);
    }
    ranks_join(&r);
    for (int i = first; i < first + count; i++)
        if (!dies) {
            CHECK(scene->rounds[i] >= BEFORE - 1); /* the others' last one had perhaps not ended here */
            heard_check(scene, i, scene->ended_ms[i], machine[7]);
        }
    daemon_stop_unclean(&d);
    if (!dies)
        survivor_check(0);
}

int main(int argc, char *argv[])
{
    static const struct test part[] = {{"one_of_two_machines", machine_part, 60}};
    static const struct test tests[] = {
        {"worker_killed", worker_killed, 60},
        {"node_killed", node_killed, 60},
    };

    run_again(argv);
    if (argc >= 10 && !strcmp(argv[1], "--machine")) {
        machine = argv + 2;
        return tests_run("gpu_worker_machines", TESTS(part));
    }
    return tests_run("gpu_worker_machines", TESTS(tests));
}
