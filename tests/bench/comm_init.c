/* SPDX-License-Identifier: MIT
 *
 * comm_init.c - how long it takes to make a communicator when the job has its connections: from the call of fcc_comm_init to its
 * return, in the slowest rank.
 *
 *     comm_init TIMES SOCKET...    two ranks on each of these fccds; prints {"nodes": ..., "ranks": ..., "first_us": ..., "us": [...]}
 *
 * The ranks are processes. They meet before each call, so that none waits for another that has not called it yet.
 */
#include "proto/fccclient.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_OF_NODE = 2, RANKS_MAX = 64, TIMES_MAX = 10000 };

struct shared {
    _Atomic int arrived; /* counts on */
    struct fcc_unique_id id;
    double us[TIMES_MAX][RANKS_MAX];
};

static void must(int status, const char *what)
{
    if (!status)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, fcc_last_error());
    exit(1);
}

static double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* All ranks come here the n-th time. */
static void meet(struct shared *s, int ranks, int *n)
{
    int wanted = ++*n * ranks;

    atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) < wanted)
        (void)sched_yield();
}

static void rank_run(struct shared *s, int ranks, int rank, int times, const char *socket)
{
    char job[32];
    const struct fcc_connect_options options = {.socket_path = socket, .job = job};
    const struct fcc_comm_options comm_options = {.device = -1};
    fcc_context *context;
    int met = 0;

    (void)snprintf(job, sizeof(job), "comm-init-%d", (int)getppid());
    must(fcc_connect(&options, &context), "fcc_connect");
    for (int i = 0; i < times; i++) {
        fcc_comm *comm;
        if (rank == 0)
            must(fcc_get_unique_id(context, &s->id), "fcc_get_unique_id");
        meet(s, ranks, &met);
        double begin = now_us();
        must(fcc_comm_init(context, &s->id, ranks, rank, &comm_options, &comm), "fcc_comm_init");
        s->us[i][rank] = now_us() - begin;
        must(fcc_noop(comm), "fcc_noop"); /* it is one */
        meet(s, ranks, &met);
        fcc_comm_destroy(comm);
        meet(s, ranks, &met);
        (void)usleep(20000); /* what is left to do for its end is done */
    }
    fcc_disconnect(context);
}

int main(int argc, char **argv)
{
    int times = argc > 2 ? atoi(argv[1]) : 0, nodes = argc - 2, ranks = RANKS_OF_NODE * nodes, failed = 0, status;
    struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (times < 2 || times > TIMES_MAX || ranks > RANKS_MAX || s == MAP_FAILED) {
        (void)fprintf(stderr, "usage: comm_init TIMES SOCKET...\n");
        return 2;
    }
    (void)setpgid(0, 0);
    (void)signal(SIGTERM, SIG_IGN);
    for (int r = 0; r < ranks; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)signal(SIGTERM, SIG_DFL);
            rank_run(s, ranks, r, times, argv[2 + r / RANKS_OF_NODE]);
            exit(0);
        }
        failed |= pid < 0;
    }
    while (wait(&status) > 0) {
        failed |= status;
        if (status)
            (void)kill(0, SIGTERM); /* the others would wait for ever */
    }
    if (failed)
        return 1;
    (void)printf("{\"nodes\": %d, \"ranks\": %d", nodes, ranks);
    for (int i = 0; i < times; i++) {
        double slowest = 0;
        for (int r = 0; r < ranks; r++)
            slowest = s->us[i][r] > slowest ? s->us[i][r] : slowest;
        (void)printf(i == 0 ? ", \"first_us\": %.1f" : i == 1 ? ", \"us\": [%.1f" : ", %.1f", slowest);
    }
    (void)printf("]}\n");
    return 0;
}
