/* SPDX-License-Identifier: MIT
 *
 * test_regroup.c - fcc_comm_split() as MPI's, and fcc_comm_shrink() after a rank's death or a node's loss: those that are left go on with their
 * buffers. On one node and on two. From a SIGKILL to the first right operator of the new communicator it takes at most 1 s, 4 s over two
 * nodes; how long is printed.
 */
#include "tests/comms/regroup_bed.h"

/* ---- split ---- */

static void split_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0), *half = comm, *again;
    fcc_buffer *in, *out, *own;

    (void)argument;
    buffers_make(comm, &in, &out);
    fill(in, (float)(rank + 1));
    /* even and odd ranks, backwards; the last rank is in neither */
    bool in_none = rank == all->n - 1;
    OK(fcc_comm_split(comm, in_none ? FCC_UNDEFINED : rank % 2, -rank, NULL, &half));
    CHECK((half == NULL) == in_none);
    if (half) {
        int size = 0, before = 0;
        float sum = 0;
        for (int r = rank % 2; r < all->n - 1; r += 2) {
            size++;
            before += r > rank;
            sum += (float)(r + 1);
        }
        CHECK(fcc_comm_size(half) == size && fcc_comm_rank(half) == before);
        OK(fcc_buffer_alloc(half, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &own));
        OK(sum_run(half, in, own)); /* an input of the other communicator */
        expect_sum(own, sum);
        OK(fcc_comm_split(half, 7, 0, NULL, &again)); /* all in one: the same order */
        CHECK(fcc_comm_size(again) == size && fcc_comm_rank(again) == before);
        OK(fcc_noop(again));
        fcc_comm_destroy(again);
    }
    OK(sum_run(comm, in, out)); /* the first one goes on */
    expect_sum(out, (float)all->n * (float)(all->n + 1) / 2);
    FAILS(fcc_comm_split(comm, -1, 0, NULL, &again), -EINVAL, "color: -1", "FCC_UNDEFINED");
    FAILS(fcc_comm_split(comm, 0, 0, NULL, NULL), -EINVAL, "out: NULL");
    /* one rank's mistake, which all hear of at once */
    const struct fcc_comm_options wrong = {.device = -1, .reserved = {1}};
    FAILS(fcc_comm_split(comm, rank == 1 ? -5 : 0, 0, NULL, &again), -EINVAL, "rank 1: color: -5: allowed are 0 and more");
    FAILS(fcc_comm_split(comm, 0, 0, NULL, rank == 2 ? NULL : &again), -EINVAL, "rank 2: out: NULL: not allowed");
    FAILS(fcc_comm_split(comm, 0, 0, rank == 3 ? &wrong : NULL, &again), -EINVAL, "rank 3: options.reserved[0]: 1");
    OK(fcc_comm_split(comm, rank, 0, NULL, &again)); /* each alone */
    CHECK(fcc_comm_size(again) == 1);
    OK(fcc_noop(again));
    fcc_comm_destroy(again);
    fcc_comm_destroy(half);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* One does not come, and then is dead. */
static void split_ends_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 3000), *none = NULL; /* in which ranks join on a busy machine, too */
    struct scene *scene = argument;

    OK(fcc_noop(comm));
    if (rank == 2) {
        while (scene->done < 2)
            (void)usleep(1000);
        (void)raise(SIGKILL);
    }
    FAILS(fcc_comm_split(comm, 0, 0, NULL, &none), -ETIMEDOUT, "fcc_comm_split", "rank 2", "3000 ms");
    scene->done++;
    FAILS(fcc_comm_split(comm, 0, 0, NULL, &none), -ECONNABORTED, "rank 2");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* One comes, and dies before the others do: nobody waits for it in the new communicator. */
static void split_dies_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0), *none = NULL;
    struct scene *scene = argument;

    OK(fcc_noop(comm));
    scene->ready++;
    while (scene->ready < all->n)
        (void)usleep(1000);
    if (rank == 2) {
        last_sent = FCC_MSG_COMM_SPLIT;
        (void)fcc_comm_split(comm, 0, 0, NULL, &none);
    }
    const int32_t *status;
    OK(fcc_comm_status(comm, &status));
    while (!__atomic_load_n(status, __ATOMIC_ACQUIRE)) /* until the workers have heard of it */
        (void)usleep(1000);
    FAILS(fcc_comm_split(comm, 0, 0, NULL, &none), -ECONNABORTED, "rank 2");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void split_of(int nodes)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    ranks_start(&r, 6, split_rank, NULL);
    ranks_join(&r);
    ranks_start(&r, 3, split_ends_rank, shared_memory(sizeof(struct scene)));
    CHECK(rank_wait(&r, 0) == 0 && rank_wait(&r, 1) == 0 && WIFSIGNALED(rank_wait(&r, 2)));
    ranks_start(&r, 3, split_dies_rank, shared_memory(sizeof(struct scene)));
    CHECK(rank_wait(&r, 0) == 0 && rank_wait(&r, 1) == 0 && WIFSIGNALED(rank_wait(&r, 2)));
    daemon_stop(&d);
}

static void split(void)
{
    split_of(1);
}

static void split_over_nodes(void)
{
    split_of(2);
}

/* ---- shrink: a rank is killed ---- */

static void killed_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0), *left;
    fcc_buffer *in, *out, *more;
    int victim = scene->victim;
    float sum = 0, *p;

    buffers_make(comm, &in, &out);
    fill(in, (float)(rank + 1));
    OK(sum_run(comm, in, out));
    expect_sum(out, (float)all->n * (float)(all->n + 1) / 2);
    scene->ready++;
    if (rank == victim)
        for (;;)
            (void)pause();
    int status = sum_run(comm, in, out); /* waits for the victim, which is killed meanwhile */
    CHECK(status == -ECONNABORTED || status == -ECONNRESET);
    OK(fcc_comm_shrink(comm, NULL, 0, &left));
    for (int r = 0; r < all->n; r++)
        sum += r == victim ? 0 : (float)(r + 1);
    CHECK(fcc_comm_size(left) == all->n - 1 && fcc_comm_rank(left) == rank - (rank > victim));
    p = fcc_buffer_data(in);
    CHECK(p[0] == (float)(rank + 1) && p[N - 1] == (float)(rank + 1));
    OK(sum_run(left, in, out));
    expect_sum(out, sum);
    if (++scene->done == all->n - 1) {
        double ms = 1e3 * seconds() - (double)scene->killed_ns / 1e6;
        (void)fprintf(stderr, "FIGURE: %.0f ms from SIGKILL to the first right operator on all ranks\n", ms);
        CHECK(ms <= scene->limit_ms || getenv("FCC_TEST_SLOW"));
    }
    FAILS(fcc_noop(comm), -ECONNABORTED);
    fcc_comm_destroy(comm); /* the buffers are the new one's */
    OK(fcc_buffer_alloc(left, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &more));
    for (int i = 0; i < 20; i++)
        OK(sum_run(left, in, i % 2 ? out : more));
    expect_sum(more, sum);
    expect_sum(out, sum);
    fcc_buffer_free(out);
    fcc_comm_destroy(left);
    fcc_disconnect(comm_context());
}

static void killed_of(int nodes, int victim)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    scene->victim = victim;
    scene->limit_ms = nodes > 1 ? 4000 : 1000;
    daemons_start(&d, nodes, NULL);
    ranks_start(&r, 4, killed_rank, scene);
    while (scene->ready < 4)
        (void)usleep(1000);
    (void)usleep(50000);
    scene->killed_ns = (uint64_t)(seconds() * 1e9);
    CHECK(kill(r.pid[victim], SIGKILL) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(i == victim ? WIFSIGNALED(rank_wait(&r, i)) : rank_wait(&r, i) == 0);
    daemon_stop(&d);
}

static void killed(void)
{
    killed_of(1, 2);
}

static void first_killed(void)
{
    killed_of(1, 0);
}

static void killed_over_nodes(void)
{
    killed_of(2, 1);
}

static void first_killed_over_nodes(void)
{
    killed_of(2, 0);
}

/* ---- shrink: a node is lost ---- */

static void node_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0), *left;
    fcc_buffer *in, *out;
    int lost = scene->victim; /* the node: ranks r with r % 2 == lost */

    buffers_make(comm, &in, &out);
    fill(in, (float)(rank + 1));
    OK(sum_run(comm, in, out));
    scene->ready++;
    while (!scene->go)
        (void)usleep(1000);
    int status = sum_run(comm, in, out);
    if (rank % 2 == lost) {
        CHECK(status != 0 && fcc_comm_shrink(comm, NULL, 0, &left) != 0);
        return;
    }
    CHECK(status == -ECONNRESET || status == -ETIMEDOUT || status == -ECONNABORTED);
    OK(fcc_comm_shrink(comm, NULL, 0, &left));
    float sum = 0;
    for (int r = !lost; r < all->n; r += 2)
        sum += (float)(r + 1);
    CHECK(fcc_comm_size(left) == all->n / 2 && fcc_comm_rank(left) == rank / 2);
    OK(sum_run(left, in, out));
    expect_sum(out, sum);
    if (++scene->done == all->n / 2)
        (void)fprintf(stderr, "FIGURE: %.0f ms from the loss of a node to the first right operator on all ranks\n",
                      1e3 * seconds() - (double)scene->killed_ns / 1e6);
    fcc_comm_destroy(left);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* Its worker is stopped and then killed: before, it is silent, as a node is whose link is cut. */
static void node_lost_of(int lost)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    scene->victim = lost;
    daemons_start(&d, 2, NULL);
    ranks_start(&r, 4, node_rank, scene);
    while (scene->ready < 4)
        (void)usleep(1000);
    pid_t worker = daemon_worker(&(struct test_daemon){.node = {d.node[lost]}});
    scene->killed_ns = (uint64_t)(seconds() * 1e9);
    CHECK(kill(worker, SIGSTOP) == 0);
    scene->go = 1;
    for (int i = !lost; i < 4; i += 2)
        CHECK(rank_wait(&r, i) == 0);
    CHECK(kill(worker, SIGKILL) == 0);
    for (int i = lost; i < 4; i += 2)
        CHECK(rank_wait(&r, i) == 0);
    daemon_stop_unclean(&d);
}

static void node_lost(void)
{
    node_lost_of(1);
}

static void first_node_lost(void)
{
    node_lost_of(0);
}

int main(void)
{
    const struct test tests[] = {
        {"split", split, 60},
        {"split_over_nodes", split_over_nodes, 60},
        {"killed", killed, 0},
        {"first_killed", first_killed, 0},
        {"killed_over_nodes", killed_over_nodes, 0},
        {"first_killed_over_nodes", first_killed_over_nodes, 0},
        {"node_lost", node_lost, 60},
        {"first_node_lost", first_node_lost, 60},
    };

    return tests_run("regroup", TESTS(tests));
}
