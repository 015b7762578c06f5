/* SPDX-License-Identifier: MIT
 *
 * test_node_rails.c - several links in each direction between two nodes (two daemons on this machine): the operators' results, what is
 * shown of them, and who dies.
 */
#include <limits.h>

#include "tests/nodes/node_scene.h"

static int rails_of[NODES]; /* RAILS of each node */

static void rails_enter(int node)
{
    char text[8];

    (void)snprintf(text, sizeof(text), "%d", rails_of[node]);
    (void)setenv("FCCD_RAILS", text, 1);
}

static struct scene *rails_open(struct test_daemon *d, struct ranks *r, int first, int second)
{
    rails_of[0] = first;
    rails_of[1] = second;
    daemons_place(NULL, rails_enter);
    return scene_open(d, r);
}

/* Each direction has as many rails as its sender says, of which those are open that its ranks take: two of the node's ranks here. */
static void shown(void)
{
    static const int numbers[][NODES] = {{2, 2}, {3, 1}, {1, 2}, {8, 2}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct test_daemon d;
        struct ranks r;
        struct scene *scene = rails_open(&d, &r, numbers[i][0], numbers[i][1]);
        struct link_seen seen = link_see(&d);
        printf("RAILS %d and %d: %lld rails, %s %s\n", numbers[i][0], numbers[i][1], (long long)seen.rails, seen.transport,
               seen.devices);
        CHECK(seen.rails == (numbers[i][0] > 1 ? 2 : 1) && strcmp(seen.state, "open") == 0 && seen.errors == 0);
        rounds_await(scene, RANKS, 20);
        scene->stop = 1;
        ranks_join(&r);
        expect_alive(RANKS); /* again, over the same */
        daemon_stop(&d);
    }
}

/* A worker with several rails is lost as one with one is: once, at once, and the next one is met. */
static void worker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = rails_open(&d, &r, 2, 2);
    fcc_context *context; /* the first node's worker stays for it */

    OK(fcc_connect(NULL, &context));
    double since = now_ms();
    CHECK(kill(node_worker(&d, 1), SIGKILL) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    struct link_seen seen = link_see(&d);
    CHECK(strcmp(seen.state, "closed") == 0 && seen.errors == 1 && seen.rails == 0);
    scene = shared_memory(sizeof(*scene));
    ranks_start(&r, RANKS, rounds_rank, scene);
    rounds_await(scene, RANKS, 20);
    seen = link_see(&d);
    CHECK(strcmp(seen.state, "open") == 0 && seen.errors == 1 && seen.rails == 2);
    scene->stop = 1;
    ranks_join(&r);
    fcc_disconnect(context);
    daemon_stop_unclean(&d);
}

static void one_of_two(void)
{
    struct test_daemon d;
    struct ranks stays;
    struct scene *scene = rails_open(&d, &stays, 2, 2);

    one_of_two_run(&d, &stays, scene);
}

/* What test_operators checks, with two ranks on each of two nodes. */
static void operators_over(int first, int second)
{
    char path[PATH_MAX], id[2 * sizeof(struct fcc_unique_id) + 1];
    struct test_daemon d;
    struct fcc_unique_id unique;
    fcc_context *context;
    pid_t pids[NODES];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);

    CHECK(n > 0);
    path[n] = '\0';
    (void)snprintf(strrchr(path, '/'), 32, "/test_operators");
    rails_of[0] = first;
    rails_of[1] = second;
    daemons_place(NULL, rails_enter);
    daemons_start(&d, NODES, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &unique));
    for (size_t i = 0; i < sizeof(unique.bytes); i++)
        (void)snprintf(id + 2 * i, 3, "%02x", (unsigned char)unique.bytes[i]);
    for (int node = 0; node < NODES; node++) {
        pids[node] = fork();
        CHECK(pids[node] >= 0);
        if (pids[node] == 0) {
            (void)setenv("FCCD_SOCKET", d.node[node].socket, 1);
            (void)execl(path, path, "--ranks", node ? "2" : "0", "2", "4", id, (char *)NULL);
            _exit(127);
        }
    }
    for (int node = 0; node < NODES; node++) {
        int status;
        CHECK(waitpid(pids[node], &status, 0) == pids[node] && WIFEXITED(status));
        if (WEXITSTATUS(status))
            check_failed(__FILE__, __LINE__, "%s over %d and %d rails: node %d: exit status %d", path, first, second, node,
                         WEXITSTATUS(status));
    }
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void operators(void)
{
    operators_over(2, 2);
}

/* Each direction has its own number. */
static void operators_unlike(void)
{
    operators_over(3, 1);
}

int main(void)
{
    static const struct test tests[] = {
        {"operators", operators, 120}, {"operators_unlike", operators_unlike, 120},
        {"shown", shown, 0},           {"worker_killed", worker_killed, 0},
        {"one_of_two", one_of_two, 0},
    };

    scene_slow();
    return tests_run("node_rails", TESTS(tests));
}
