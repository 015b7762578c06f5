/* SPDX-License-Identifier: MIT
 *
 * test_netns.c - communicators over 2 and 4 nodes, each in a network namespace of its own, over networks that are slow, late, that lose
 * packets and deliver them out of order; and over links that go down and come up again.
 *
 * The three operators, in three dtypes, fused and sequential: every bit of every rank's result is that of the same ranks on one node.
 * gemv_all_reduce also hierarchical, which adds in another order than on one node: every bit is the same in every run, on all ranks.
 */
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/spaces.h"
#include "tests/nodes/netns_cases.h"

/* ---- the nodes ---- */

static struct spaces spaces;

static void node_enter(int node)
{
    spaces_enter(&spaces, node);
}

/* A run of all ranks; the time that it took. */
static double run(struct results *r, int rounds)
{
    double since = now_ms();
    struct ranks ranks;

    r->rounds = rounds;
    r->compared = 0;
    ranks_start(&ranks, RANKS, cases_rank, r);
    ranks_join(&ranks);
    return now_ms() - since;
}

static struct results *results_record(void)
{
    struct results *r = shared_memory(sizeof(*r));
    struct test_daemon d;

    daemons_place(NULL, NULL);
    daemons_start(&d, 1, NULL);
    (void)run(r, 1);
    daemon_stop(&d);
    r->recorded = FLAT;
    return r;
}

static void nodes_start(struct test_daemon *d, enum spaces_kind kind, int nodes)
{
    static const char *hosts[SPACES_MAX];
    const char *why = spaces_missing(kind);

    if (why)
        test_skip(why);
    for (int i = 0; i < nodes; i++)
        hosts[i] = spaces_host(i);
    spaces_open(&spaces, kind, nodes);
    daemons_place(hosts, node_enter);
    daemons_start(d, nodes, NULL);
}

static void nodes_stop(struct test_daemon *d)
{
    daemon_stop(d);
    spaces_close(&spaces);
}

/* Hierarchical sums, the first time: all ranks have the same. */
static void sums_record(struct results *r)
{
    (void)run(r, 1);
    r->recorded = ALL;
    for (int i = OPERATORS - 1; i < CASES; i += OPERATORS)
        for (int rank = 1; rank < RANKS; rank++)
            CHECK(memcmp(r->bytes[i][rank], r->bytes[i][0], r->length[i][0]) == 0);
}

/* All that was to be compared was. */
static void run_check(struct results *r, int rounds, const char *network)
{
    uint64_t bytes = 0;

    if (r->recorded == FLAT)
        sums_record(r);
    double took = run(r, rounds);

    for (int i = 0; i < CASES; i++)
        for (int rank = 0; rank < RANKS; rank++)
            bytes += r->length[i][rank];
    CHECK(bytes > 0 && r->compared == bytes * (uint64_t)rounds);
    printf("%s: %.0f ms\n", network, took);
}

/* ---- networks ---- */

/* As they are, and with a rate. */
static void cables(int nodes)
{
    struct results *r = results_record();
    struct test_daemon d;

    nodes_start(&d, SPACES_BRIDGE, nodes);
    run_check(r, 2, "veth");
    for (int i = 0; i < nodes; i++)
        spaces_run(&spaces, i, "tc qdisc replace dev net0 root tbf rate 100mbit burst 32kb latency 50ms");
    run_check(r, 1, "veth, tbf rate 100mbit");
    for (int i = 0; i < nodes; i++) /* its queue is short: it drops what does not fit */
        spaces_run(&spaces, i, "tc qdisc replace dev net0 root tbf rate 200mbit burst 32kb limit 30000");
    run_check(r, 1, "veth, tbf rate 200mbit, a queue of 30000 bytes");
    nodes_stop(&d);
}

static void cables_2(void)
{
    cables(2);
}

static void cables_4(void)
{
    cables(4);
}

static void wire_check(struct results *r, uint32_t delay_us, uint32_t lost_ppm, uint32_t overtake_ppm, int rounds)
{
    struct wire *w = spaces.wire;
    char network[200];
    int length;

    w->packets = w->bytes = w->lost = w->overtook = 0;
    w->delay_us = delay_us;
    w->lost_ppm = lost_ppm;
    w->overtake_ppm = overtake_ppm;
    length =
        snprintf(network, sizeof(network), "delay %u us, loss %u ppm, reordering %u ppm", delay_us, lost_ppm, overtake_ppm);
    run_check(r, rounds, network);
    CHECK(length > 0);
    printf("  %llu packets, %llu bytes, %llu lost, %llu out of order\n", (unsigned long long)w->packets,
           (unsigned long long)w->bytes, (unsigned long long)w->lost, (unsigned long long)w->overtook);
    CHECK(!lost_ppm || w->lost > 10);
    CHECK(!overtake_ppm || w->overtook > 10);
    w->lost_ppm = w->overtake_ppm = 0; /* the daemons end in peace */
}

static void wires(int nodes)
{
    struct results *r = results_record();
    struct test_daemon d;

    nodes_start(&d, SPACES_WIRE, nodes);
    wire_check(r, 0, 0, 0, 1);
    wire_check(r, 2000, 0, 0, 1);
    wire_check(r, 500, 10000, 0, 1);
    wire_check(r, 1000, 0, 50000, 1);
    wire_check(r, 1000, 10000, 50000, 1);
    nodes_stop(&d);
}

static void wires_2(void)
{
    wires(2);
}

static void wires_4(void)
{
    wires(4);
}

/* ---- links that go down ---- */

enum { LINK_RANKS = 3, LINK_N = 4096, LINK_K = 64 };

struct scene {
    _Atomic long rounds[LINK_RANKS];
    _Atomic int stop;
    double heard_ms[LINK_RANKS];
    int status[LINK_RANKS];
    char text[LINK_RANKS][512];
};

/* Operators, one after the other, until one fails or the scene stops: it does for all after the same one. */
static void scene_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *x, *w, *y;
    int status = 0;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, LINK_K * 4, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, LINK_N * LINK_K * 4, &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, LINK_N * 4, &y));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, LINK_K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, LINK_N, LINK_K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, LINK_N)};
    while (!status && (!scene->stop || scene->rounds[rank] < scene->stop)) {
        status = fcc_gemv_all_reduce(comm, &args);
        scene->rounds[rank] += !status;
    }
    scene->heard_ms[rank] = now_ms();
    scene->status[rank] = status;
    (void)snprintf(scene->text[rank], sizeof(scene->text[rank]), "%s", status ? fcc_last_error() : "");
    if (!status)
        OK(fcc_noop(comm)); /* nobody leaves before all have come so far */
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void rounds_await(const struct scene *scene, long more)
{
    double until = await_end();

    for (int r = 0; r < LINK_RANKS; r++) {
        long wanted = scene->rounds[r] + more;
        while (scene->rounds[r] < wanted) {
            if (scene->status[r])
                check_failed(__FILE__, __LINE__, "rank %d: %s", r, scene->text[r]);
            CHECK(now_ms() < until);
            (void)usleep(500);
        }
    }
}

static struct scene *scene_open(struct test_daemon *d, struct ranks *r)
{
    struct scene *scene = shared_memory(sizeof(*scene));

    nodes_start(d, SPACES_BRIDGE, LINK_RANKS);
    ranks_start(r, LINK_RANKS, scene_rank, scene);
    rounds_await(scene, 20);
    return scene;
}

/* Shorter than what a node may be silent: nobody is told anything. */
static void link_down_shortly(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    for (int i = 0; i < 2; i++) {
        spaces_run(&spaces, 2, "ip link set net0 down");
        long before = scene->rounds[0];
        double since = now_ms();
        (void)usleep(300000);
        CHECK(scene->rounds[0] <= before + 3); /* it is down: at most what was under way */
        spaces_run(&spaces, 2, "ip link set net0 up");
        rounds_await(scene, 20);
        printf("down for 300 ms: %.0f ms until 20 operators more had ended\n", now_ms() - since);
    }
    scene->stop = (int)scene->rounds[0] + 1000;
    ranks_join(&r);
    for (int i = 0; i < LINK_RANKS; i++)
        CHECK(scene->status[i] == 0);
    nodes_stop(&d);
}

static void link_down(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    double since = now_ms();
    spaces_run(&spaces, 2, "ip link set net0 down");
    ranks_join(&r);
    for (int i = 0; i < LINK_RANKS; i++) {
        printf("rank %d heard after %.1f ms: %s\n", i, scene->heard_ms[i] - since, scene->text[i]);
        CHECK(scene->status[i] < 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(strstr(scene->text[i], d.node[2].address) != NULL);
    CHECK(strstr(scene->text[2], d.node[0].address) != NULL || strstr(scene->text[2], d.node[1].address) != NULL);
    expect_alive(2); /* the others go on without it */
    spaces_run(&spaces, 2, "ip link set net0 up");
    since = now_ms();
    expect_alive(2 * LINK_RANKS);
    printf("up again: %.1f ms until a new communicator has done its work\n", now_ms() - since);
    nodes_stop(&d);
}

/* ---- nothing is left ---- */

static unsigned devices_count(void)
{
    struct if_nameindex *all = if_nameindex();
    unsigned n = 0;

    CHECK(all != NULL);
    while (all[n].if_index)
        n++;
    if_freenameindex(all);
    return n;
}

/* While there are spaces, while one that has them is killed, and afterwards, the network that the test began in is as it was. That is one of its own: in
 * the machine's, others add and remove devices at any time. */
static void nothing_is_left(void)
{
    const char *why = spaces_missing(SPACES_WIRE);
    int status;

    if (why)
        test_skip(why);
    CHECK(unshare(CLONE_NEWNET) == 0);
    const unsigned before = devices_count();
    for (int kind = SPACES_BRIDGE; kind <= SPACES_WIRE; kind++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            struct spaces s;
            spaces_open(&s, kind, SPACES_MAX);
            CHECK(setns(s.original, CLONE_NEWNET) == 0);
            CHECK(devices_count() == before);
            (void)kill(getpid(), SIGKILL);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(devices_count() == before);
        spaces_open(&spaces, kind, SPACES_MAX);
        spaces_close(&spaces);
        CHECK(devices_count() == before);
    }
}

int main(void)
{
    static const struct test tests[] = {
        {"cables_2", cables_2, 60},
        {"cables_4", cables_4, 60},
        {"wires_2", wires_2, 90},
        {"wires_4", wires_4, 90},
        {"link_down_shortly", link_down_shortly, 0},
        {"link_down", link_down, 0},
        {"nothing_is_left", nothing_is_left, 0},
    };

    return tests_run("netns", TESTS(tests));
}
