/* SPDX-License-Identifier: MIT
 *
 * test_regroup.c - fcc_comm_split() as MPI's, and fcc_comm_shrink(): after a rank's death, an abort or a node's loss those that are left agree on
 * who that is, in whatever order the others go, and go on with their buffers. On one node and on two. How long it takes from a SIGKILL to the first
 * right operator of the new communicator is printed.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/proto.h"
#include "tests/bed/harness.h"
#include "tests/bed/value.h"

#define N 5000

struct scene {
    _Atomic int ready, go, done;
    _Atomic uint64_t killed_ns;
    _Atomic int victim; /* shared: who dies */
    _Atomic pid_t worker;
};

/* What this process dies of: when the library has sent such a message, or when it is about to. 0: nothing. */
static uint16_t last_sent, never_sent;

ssize_t sendmsg(int sock, const struct msghdr *h, int flags)
{
    const struct fcc_msg *m = h->msg_iovlen && h->msg_iov[0].iov_len >= sizeof(*m) ? h->msg_iov[0].iov_base : NULL;

    if (m && never_sent && m->type == never_sent)
        (void)raise(SIGKILL);
    ssize_t n = syscall(SYS_sendmsg, sock, h, flags);
    if (m && last_sent && m->type == last_sent && n > 0)
        (void)raise(SIGKILL);
    return n;
}

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* in: every element is `mine`; then all ranks' sum is in out. */
static int sum_run(fcc_comm *comm, fcc_buffer *in, fcc_buffer *out)
{
    struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(in, 0, FCC_F32, N), .out = fcc_tensor_1d(out, 0, FCC_F32, N)};

    return fcc_all_reduce(comm, &args);
}

static void expect_sum(fcc_buffer *out, float want)
{
    const float *p = fcc_buffer_data(out);

    for (int i = 0; i < N; i++)
        if (p[i] != want)
            check_failed(__FILE__, __LINE__, "element %d is %g: it should be %g", i, (double)p[i], (double)want);
}

static void fill(fcc_buffer *b, float value)
{
    float *p = fcc_buffer_data(b);

    for (int i = 0; i < N; i++)
        p[i] = value;
}

static void buffers_make(fcc_comm *comm, fcc_buffer **in, fcc_buffer **out)
{
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * sizeof(float), in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), out));
}

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
    if (++scene->done == all->n - 1)
        (void)fprintf(stderr, "FIGURE: %.0f ms from SIGKILL to the first right operator on all ranks\n",
                      1e3 * seconds() - (double)scene->killed_ns / 1e6);
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
    char path[64], line[64] = "";

    scene->victim = lost;
    daemons_start(&d, 2, NULL);
    ranks_start(&r, 4, node_rank, scene);
    while (scene->ready < 4)
        (void)usleep(1000);
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", d.node[lost].pid, d.node[lost].pid);
    FILE *f = fopen(path, "re");
    CHECK(f && fgets(line, sizeof(line), f) && fclose(f) == 0);
    scene->killed_ns = (uint64_t)(seconds() * 1e9);
    CHECK(atoi(line) > 1 && kill(atoi(line), SIGSTOP) == 0);
    scene->go = 1;
    for (int i = !lost; i < 4; i += 2)
        CHECK(rank_wait(&r, i) == 0);
    CHECK(kill(atoi(line), SIGKILL) == 0);
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

/* ---- shrink: who is left ---- */

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
        FAILS(fcc_comm_shrink(comm, NULL, 0, &left), -ETIMEDOUT, "rank 3", "2000 ms");
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
        {"split", split, 60},
        {"split_over_nodes", split_over_nodes, 60},
        {"killed", killed, 0},
        {"first_killed", first_killed, 0},
        {"killed_over_nodes", killed_over_nodes, 0},
        {"first_killed_over_nodes", first_killed_over_nodes, 0},
        {"node_lost", node_lost, 60},
        {"first_node_lost", first_node_lost, 60},
        {"who_is_left", who_is_left, 60},
        {"who_is_left_over_nodes", who_is_left_over_nodes, 60},
        {"joins_not", joins_not, 60},
        {"joins_not_over_nodes", joins_not_over_nodes, 60},
        {"until_one_is_left", until_one_is_left, 60},
        {"until_one_is_left_over_nodes", until_one_is_left_over_nodes, 60},
    };

    return tests_run("regroup", TESTS(tests));
}
