/* SPDX-License-Identifier: MIT
 *
 * node_scene.h - two nodes (daemons on this machine) with a communicator that runs one operator after the other, so that something
 * can happen to it meanwhile.
 */
#ifndef FCC_TEST_NODE_SCENE_H
#define FCC_TEST_NODE_SCENE_H

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/link_see.h"

enum { NODES = 2, RANKS = 4, K = 256 };

/* Rows of the operators' matrix. */
static int rows = 4096;

/* What the ranks of a test share. */
struct scene {
    _Atomic long rounds[RANKS];
    _Atomic int stop;
    _Atomic double ended_ms[RANKS]; /* its last operator, well */
    double heard_ms[RANKS];
    char text[RANKS][512];
    int status[RANKS];
};

/* Operators, one after the other, until one fails or the scene stops; what it was told. */
static inline void rounds_rank(int rank, const struct ranks *all, void *argument)
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
        if (!status)
            scene->ended_ms[rank] = now_ms();
    }
    scene->heard_ms[rank] = now_ms();
    scene->status[rank] = status;
    (void)snprintf(scene->text[rank], sizeof(scene->text[rank]), "%s", status ? fcc_last_error() : "");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static inline void rounds_await(const struct scene *scene, int ranks, long more)
{
    double until = await_end();

    for (int r = 0; r < ranks; r++) {
        long wanted = scene->rounds[r] + more;
        while (scene->rounds[r] < wanted) {
            CHECK(now_ms() < until);
            (void)usleep(500);
        }
    }
}

/* The ranks of the first node: who was lost is named, and they were told in time. */
static inline void expect_told(const struct scene *scene, int ranks, double since_ms, const char *words)
{
    for (int r = 0; r < ranks; r += NODES) {
        printf("rank %d heard after %.1f ms: %s\n", r, scene->heard_ms[r] - since_ms, scene->text[r]);
        CHECK(scene->status[r] < 0);
        CHECK(strstr(scene->text[r], words) != NULL);
    }
}

static inline pid_t node_worker(const struct test_daemon *d, int node)
{
    struct test_daemon one = {.node = {d->node[node]}, .nodes = 1};

    return daemon_worker(&one);
}

/* The worker of the node's only job knows that the rank, which may be another node's, is in an operator of the only communicator. */
static inline bool operator_known(const struct test_daemon *d, int node, int rank)
{
    static char text[1 << 16];
    const char *arguments[] = {"--socket", d->node[node].socket, "comms", "--json", NULL};
    bool known = false;

    (void)program_run(text, sizeof(text), fccctl_binary(), arguments);
    struct json_object *o = json_tokener_parse(text), *workers = o ? link_member(o, "workers") : NULL;
    if (!workers || json_object_array_length(workers) != 1)
        check_failed(__FILE__, __LINE__, "fccctl comms: not of one worker: %s", text);
    struct json_object *comms = link_member(json_object_array_get_idx(workers, 0), "comms");
    struct json_object *comm = json_object_array_length(comms) ? json_object_array_get_idx(comms, 0) : NULL;
    struct json_object *ranks = comm ? link_member(comm, "ranks") : NULL;
    for (size_t i = 0; ranks && i < json_object_array_length(ranks); i++) {
        struct json_object *r = json_object_array_get_idx(ranks, i);
        known |= json_object_get_int(link_member(r, "rank")) == rank &&
                 strcmp(json_object_get_string(link_member(r, "state")), "in operator") == 0;
    }
    (void)json_object_put(o);
    return known;
}

static inline void operator_await(const struct test_daemon *d, int node, int rank)
{
    for (double until = await_end(); !operator_known(d, node, rank);)
        AWAITING(until);
}

static inline struct scene *scene_open_with(struct test_daemon *d, struct ranks *r, const char *const options[])
{
    struct scene *scene = shared_memory(sizeof(*scene));

    daemons_start(d, NODES, options);
    ranks_start(r, RANKS, rounds_rank, scene);
    rounds_await(scene, RANKS, 20);
    return scene;
}

static inline struct scene *scene_open(struct test_daemon *d, struct ranks *r)
{
    return scene_open_with(d, r, NULL);
}

/* Two communicators of a job go over the same connections. One (scene's is the other) ends in the middle of its operators, again and again: the other does not
 * notice. */
static inline void one_of_two_run(struct test_daemon *d, struct ranks *stays, struct scene *scene)
{
    struct ranks goes;
    pid_t workers[NODES] = {node_worker(d, 0), node_worker(d, 1)};

    for (int i = 0; i < RANKS; i++) {
        struct scene *short_one = shared_memory(sizeof(*short_one));
        int killed = i;
        ranks_start(&goes, RANKS, rounds_rank, short_one);
        rounds_await(short_one, RANKS, 5 + i);
        CHECK(kill(goes.pid[killed], SIGKILL) == 0 && WIFSIGNALED(rank_wait(&goes, killed)));
        ranks_join(&goes);
        for (int r = 0; r < RANKS; r++)
            CHECK(r == killed || strstr(short_one->text[r], "is gone"));
        rounds_await(scene, RANKS, 5);
    }
    CHECK(node_worker(d, 0) == workers[0] && node_worker(d, 1) == workers[1]);
    scene->stop = 1; /* they end when their last client has gone */
    ranks_join(stays);
    for (int i = 0; i < RANKS; i++) /* who stops first leaves the others' operator */
        CHECK(scene->status[i] == 0 || scene->status[i] == -ECONNABORTED);
    daemon_stop(d);
}

/* An emulated machine, or a sanitizer. */
static inline void scene_slow(void)
{
    if (getenv("FCC_TEST_SLOW"))
        rows /= 8;
}

#endif
