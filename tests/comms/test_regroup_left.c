/* SPDX-License-Identifier: MIT
 *
 * test_regroup_left.c - fcc_comm_shrink(): those that are left agree on who that is, in whatever order the others go: by an exit, an abort or a death
 * meanwhile, silent, out of step, or alive and excluded. On one node and on two.
 */
#include "tests/comms/regroup_bed.h"

enum ways { EXITS_FIRST, EXCLUDED_LIVES, ABORTED, HANGS, OUT_OF_STEP, WAYS };

static void left_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    const enum ways way = (enum ways)scene->victim;
    fcc_comm *comm = comm_open(all, rank, way == HANGS ? 2000 : 0),
             *left = NULL; /* in which they join on a busy machine, too */
    const int32_t third[] = {3}, second[] = {2}, self[] = {rank}, far[] = {4};
    fcc_buffer *in, *out;
    float sum = 1 + 2 + 3;
    int size = 3;

    buffers_make(comm, &in, &out);
    fill(in, (float)(rank + 1));
    OK(sum_run(comm, in, out));
    FAILS(fcc_comm_shrink(comm, self, 1, &left), -EINVAL, "excluded[0]", "other ranks");
    FAILS(fcc_comm_shrink(comm, far, 1, &left), -EINVAL, "excluded[0]: 4");
    FAILS(fcc_comm_shrink(comm, NULL, 1, &left), -EINVAL, "nexcluded: 1, and excluded is NULL");
    FAILS(fcc_comm_shrink(comm, NULL, 0, NULL), -EINVAL, "out: NULL");
    switch (way) {
    case EXITS_FIRST: /* the one that is not to be there goes before the others, or after them */
        if (rank == 3) {
            fcc_comm_destroy(comm);
            fcc_disconnect(comm_context());
            return;
        }
        if (rank == 0)
            (void)usleep(200000);
        OK(fcc_comm_shrink(comm, NULL, 0, &left));
        break;
    case EXCLUDED_LIVES:
        if (rank == 3) {
            int status = fcc_noop(comm); /* it hears of it */
            CHECK(status == -ECONNABORTED && strstr(fcc_last_error(), "fcc_comm_shrink"));
            fcc_comm_destroy(comm);
            fcc_disconnect(comm_context());
            return;
        }
        OK(fcc_comm_shrink(comm, third, 1, &left));
        break;
    case ABORTED:
        scene->done++;
        if (rank == 1) {
            while (scene->done < 4) /* an abort may overtake the others' end of the sum */
                (void)usleep(1000);
            OK(fcc_comm_abort(comm, "enough"));
        } else
            FAILS(sum_run(comm, in, out), -ECONNABORTED, "enough");
        OK(fcc_comm_shrink(comm, NULL, 0, &left));
        sum += 4;
        size = 4;
        break;
    case HANGS:
        if (rank == 3) {
            while (scene->done < 3)
                (void)usleep(1000);
            fcc_comm_destroy(comm);
            fcc_disconnect(comm_context());
            return;
        }
        FAILS(sum_run(comm, in, out), -ETIMEDOUT, "rank 3");
        FAILS(fcc_comm_shrink(comm, NULL, 0, &left), -ETIMEDOUT, "rank 3", "2000 ms", "fccctl flight");
        FAILS(fcc_comm_shrink(comm, rank == 1 ? far : third, 1, &left), -EINVAL, "rank 1: excluded[0]: 4"); /* without rank 3 */
        OK(fcc_comm_shrink(comm, third, 1, &left));
        scene->done++;
        break;
    default:
        FAILS(fcc_comm_shrink(comm, rank == 3 ? second : NULL, rank == 3, &left), -EINVAL);
        if (rank == 1)
            FAILS(fcc_comm_split(comm, 0, 0, NULL, &left), -EINVAL, "out of step");
        else
            FAILS(fcc_comm_shrink(comm, NULL, 0, &left), -EINVAL, "out of step");
        FAILS(fcc_comm_shrink(comm, self, rank == 2, &left), -EINVAL, "rank 2: excluded[0]: 2: allowed are other ranks");
        FAILS(fcc_comm_shrink(comm, NULL, 0, rank == 0 ? NULL : &left), -EINVAL, "rank 0: out: NULL");
        OK(sum_run(comm, in, out)); /* nothing has come of it */
        OK(fcc_comm_shrink(comm, NULL, 0, &left));
        sum += 4;
        size = 4;
    }
    CHECK(fcc_comm_size(left) == size && fcc_comm_rank(left) == rank);
    OK(sum_run(left, in, out));
    expect_sum(out, sum);
    fcc_comm_destroy(left);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void left_of(int nodes)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemons_start(&d, nodes, NULL);
    for (int way = 0; way < WAYS; way++) {
        (void)fprintf(stderr, "way %d\n", way);
        scene->victim = way;
        scene->done = 0;
        ranks_start(&r, 4, left_rank, scene);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

static void who_is_left(void)
{
    left_of(1);
}

static void who_is_left_over_nodes(void)
{
    left_of(2);
}

/* One dies when they have agreed, before it joins: the others find that it does not come, and agree anew. */
static void joins_not_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 2000), *left;
    fcc_buffer *in, *out;

    (void)argument;
    buffers_make(comm, &in, &out);
    fill(in, (float)(rank + 1));
    if (rank == 1)
        never_sent = FCC_MSG_COMM_INIT;
    OK(fcc_comm_shrink(comm, NULL, 0, &left));
    CHECK(fcc_comm_size(left) == 2 && fcc_comm_rank(left) == rank / 2);
    OK(sum_run(left, in, out));
    expect_sum(out, 1 + 3);
    fcc_comm_destroy(left);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void joins_not_of(int nodes)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    ranks_start(&r, 3, joins_not_rank, NULL);
    CHECK(rank_wait(&r, 0) == 0 && WIFSIGNALED(rank_wait(&r, 1)) && rank_wait(&r, 2) == 0);
    daemon_stop(&d);
}

static void joins_not(void)
{
    joins_not_of(1);
}

static void joins_not_over_nodes(void)
{
    joins_not_of(2);
}

/* One after the other dies, also while the others agree, until one is left. */
static void last_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0), *left;
    fcc_buffer *in, *out;

    (void)argument;
    buffers_make(comm, &in, &out);
    fill(in, 1);
    for (int size = all->n; size > 1;) {
        int status = sum_run(comm, in, out);
        if (!status && fcc_comm_rank(comm) == fcc_comm_size(comm) - 1) {
            if (fcc_comm_size(comm) % 2)
                (void)raise(SIGKILL);
            fcc_comm_destroy(comm);
            _exit(0);
        }
        if (!status)
            expect_sum(out, (float)fcc_comm_size(comm));
        status = sum_run(comm, in, out);
        CHECK(status == -ECONNABORTED || status == -ECONNRESET);
        if (fcc_comm_rank(comm) == fcc_comm_size(comm) - 2 && size == all->n)
            (void)raise(SIGKILL); /* a second one, while the others already agree */
        OK(fcc_comm_shrink(comm, NULL, 0, &left));
        fcc_comm_destroy(comm);
        comm = left;
        CHECK(fcc_comm_size(comm) < size);
        size = fcc_comm_size(comm);
    }
    OK(sum_run(comm, in, out));
    expect_sum(out, 1);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void last_of(int nodes)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    for (int i = 0; i < 3; i++) {
        ranks_start(&r, 6, last_rank, NULL);
        CHECK(rank_wait(&r, 0) == 0);
        for (int k = 1; k < 6; k++) {
            int status = rank_wait(&r, k);
            CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        }
    }
    daemon_stop(&d);
}

static void until_one_is_left(void)
{
    last_of(1);
}

static void until_one_is_left_over_nodes(void)
{
    last_of(2);
}

int main(void)
{
    const struct test tests[] = {
        {"who_is_left", who_is_left, 60},
        {"who_is_left_over_nodes", who_is_left_over_nodes, 60},
        {"joins_not", joins_not, 60},
        {"joins_not_over_nodes", joins_not_over_nodes, 60},
        {"until_one_is_left", until_one_is_left, 60},
        {"until_one_is_left_over_nodes", until_one_is_left_over_nodes, 60},
    };

    return tests_run("regroup_left", TESTS(tests));
}
