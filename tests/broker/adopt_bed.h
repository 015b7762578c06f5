/* SPDX-License-Identifier: MIT
 *
 * adopt_bed.h - jobs whose brokers end: ranks that run operators until the test has seen enough, or until they hear of an end.
 */
#ifndef FCC_TEST_ADOPT_BED_H
#define FCC_TEST_ADOPT_BED_H

#include <errno.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/bed/keeper.h"
#include "tests/bed/program.h"

enum { RANKS = 2, K = 256, N = 512 };

struct story {
    _Atomic long operators[RANKS];
    _Atomic int stop;
};

struct lane {
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;
};

static inline void lane_open(struct lane *l, const struct ranks *all, int rank)
{
    l->comm = comm_open(all, rank, 60000);
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, K * 4, &l->x));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_LOCAL, N * K * 4, &l->w));
    OK(fcc_buffer_alloc(l->comm, FCC_BUFFER_SYMMETRIC, N * 4, &l->y));
    float *w = fcc_buffer_data(l->w);
    for (int i = 0; i < N * K; i++)
        w[i] = 1;
}

static inline void lane_run(const struct lane *l, long number, int ranks)
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
static inline void worker_rank(int rank, const struct ranks *all, void *argument)
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

static inline void operators_await(const struct story *s, long more)
{
    double until = now_ms() + 20e3;

    for (int r = 0; r < RANKS; r++)
        for (long from = s->operators[r]; s->operators[r] < from + more; (void)usleep(1000))
            CHECK(now_ms() < until);
}

/* Nodes with service managers that keep so many descriptors, and a job whose ranks have run some operators. */
static inline struct story *story_begin(struct test_daemon *d, int nodes, int keeps, struct ranks *r)
{
    struct story *story = shared_memory(sizeof(*story));

    keepers_start(nodes, keeps);
    daemons_start(d, nodes, NULL);
    ranks_start(r, RANKS, worker_rank, story);
    operators_await(story, 10);
    return story;
}

/* All ranks end after the same operator, which none of them has come to. */
static inline void story_end(struct story *s, struct ranks *r)
{
    s->stop = (int)(s->operators[0] + 1000);
    ranks_join(r);
}

/* The worker of this job at the node that FCCD_SOCKET names, as fccctl status has it. 0: there is no such job. */
static inline pid_t worker_of(const char *job)
{
    static char said[16384];
    struct json_object *status, *jobs, *one, *value;
    pid_t pid = 0;
    int n = 0;

    CHECK(program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"--json", "status", NULL}) == 0);
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

/* What a verb of fccctl says of restarts. */
static inline void expect_restart(const char *verb, const char *says)
{
    static char said[65536];

    (void)program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){verb, NULL});
    if (!strstr(said, says))
        check_failed(__FILE__, __LINE__, "fccctl %s does not say \"%s\": %s", verb, says, said);
}

/* Operators until one fails, which must be for this reason. */
struct ending {
    _Atomic long operators[RANKS];
    _Atomic int ended[RANKS];
    const char *says;
};

static inline void ending_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *ending = argument;
    fcc_comm *comm = comm_open(all, rank, 60000);
    int status;

    while (!(status = fcc_noop(comm)))
        ending->operators[rank]++;
    if (status != -ESHUTDOWN || !strstr(fcc_last_error(), ending->says))
        check_failed(__FILE__, __LINE__, "%d: %s", status, fcc_last_error());
    ending->ended[rank] = 1;
    _exit(EXIT_SUCCESS);
}

static inline struct ending *ending_start(struct ranks *r, const char *says)
{
    struct ending *e = shared_memory(sizeof(*e));

    e->says = says;
    ranks_start(r, RANKS, ending_rank, e);
    for (double until = now_ms() + 20e3; !e->operators[0] || !e->operators[1]; nap())
        CHECK(now_ms() < until);
    return e;
}

#endif
