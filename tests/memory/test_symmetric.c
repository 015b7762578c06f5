/* SPDX-License-Identifier: MIT
 *
 * test_symmetric.c - what a program's own kernels use: peers' buffers in their address space, signals, and the status word that
 * ends every wait. Threads and processes on the cpu stand for the kernels. FCC_TEST_NODES=2 runs all on two nodes: what is
 * mapped then are the ranks of the same node.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "proto/session.h"
#include "tests/bed/harness.h"
#include "tests/bed/raw.h"

#define RANKS 4
#define WORDS 512

static int node_of(int rank)
{
    return rank % test_nodes();
}

/* The next one on the same node, cyclically; the own rank if there is no other. */
static int neighbour(int rank, int n)
{
    int next = rank;

    do
        next = (next + 1) % n;
    while (node_of(next) != node_of(rank));
    return next;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* As fccclient.h says it: true if the signal came, false with *status. */
static bool signal_wait(const uint64_t *word, uint64_t value, const int32_t *status, int32_t *why)
{
    double until = await_end();

    while (load(word) < value) {
        *why = __atomic_load_n(status, __ATOMIC_ACQUIRE);
        if (*why)
            return load(word) >= value;
        CHECK(now_ms() < until); /* the word is what ends this, not the test */
        nap();
    }
    return true;
}

static fcc_buffer *buffer_new(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(comm, kind, bytes, &b));
    return b;
}

static void leave(fcc_comm *comm)
{
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* ---- mapping ---- */

/* Two buffers, so that one is not taken for the other. Each rank stores into its place of every rank that it can reach. */
static void map_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b[2] = {buffer_new(comm, FCC_BUFFER_SYMMETRIC, RANKS * WORDS * 8), NULL};
    fcc_buffer *between = buffer_new(comm, FCC_BUFFER_LOCAL, 64 * (size_t)(rank + 1));
    fcc_buffer *result = buffer_new(comm, FCC_BUFFER_RESULT, 64);
    void *at, *again;

    (void)argument;
    b[1] = buffer_new(comm, FCC_BUFFER_SYMMETRIC, RANKS * WORDS * 8);
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < all->n; r++) {
            at = b;
            if (node_of(r) != node_of(rank)) {
                FAILS(fcc_buffer_peer(b[i], r, &at), -EXDEV, "rank", "another node");
                CHECK(at == b); /* outputs are set on success only */
                continue;
            }
            OK(fcc_buffer_peer(b[i], r, &at));
            OK(fcc_buffer_peer(b[i], r, &again));
            CHECK(at == again && (r != rank || at == fcc_buffer_data(b[i])));
            for (uint64_t w = 0; w < WORDS; w++)
                ((uint64_t *)at)[(uint64_t)rank * WORDS + w] = (uint64_t)(i * 1000 + rank * 100 + r) << 32 | w;
        }
    }
    OK(fcc_noop(comm)); /* all have stored */
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < RANKS; r++)
            for (uint64_t w = 0; w < WORDS; w++) {
                const uint64_t *mine = fcc_buffer_data(b[i]);
                bool stores = r < all->n && node_of(r) == node_of(rank);
                CHECK(mine[(uint64_t)r * WORDS + w] == (stores ? (uint64_t)(i * 1000 + r * 100 + rank) << 32 | w : 0));
            }
    FAILS(fcc_buffer_peer(b[0], -1, &at), -EINVAL, "rank: -1", "0 to 3");
    FAILS(fcc_buffer_peer(b[0], RANKS, &at), -EINVAL, "rank: 4", "0 to 3");
    for (int r = 0; r < all->n; r++) {
        FAILS(fcc_buffer_peer(between, r, &at), -EINVAL,
              "buffer: kind 0 (local): it is not symmetric: allowed is kind 1 (symmetric)");
        FAILS(fcc_buffer_peer(result, r, &at), -EINVAL,
              "buffer: kind 2 (result): it is not symmetric: allowed is kind 1 (symmetric)");
    }
    FAILS(fcc_buffer_peer(NULL, 0, &at), -EINVAL, "buffer");
    FAILS(fcc_buffer_peer(b[0], 0, NULL), -EINVAL, "out");
    OK(fcc_noop(comm)); /* nobody frees before all have looked */
    fcc_buffer_free(between);
    leave(comm);
}

static void maps_peers(void)
{
    ranks_run(RANKS, map_rank, NULL);
}

/* Rank 0 frees its part, then ends; what others have mapped of it stays good memory. */
static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *first = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 4096), *second = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 4096);
    bool near = node_of(rank) == node_of(0) && rank;
    _Atomic int *met = argument;
    uint64_t *at = NULL;
    void *none = NULL;

    if (near)
        OK(fcc_buffer_peer(first, 0, (void **)&at));
    OK(fcc_noop(comm));
    if (rank == 0) {
        fcc_buffer_free(first);
        fcc_buffer_free(second);
    }
    OK(fcc_noop(comm));
    if (near) {
        FAILS(fcc_buffer_peer(second, 0, &none), -ENOENT, "rank 0", "freed");
        OK(fcc_buffer_peer(first, 0, &none)); /* known: not asked for again */
        CHECK(none == at);
        for (int w = 0; w < 512; w++)
            at[w] = (uint64_t)w; /* nobody sees it */
    }
    /* A new one is new: its pages are not those that are still mapped elsewhere. */
    fcc_buffer *third = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 4096);
    OK(fcc_noop(comm));
    if (near)
        at[0] = 77;
    OK(fcc_noop(comm));
    for (int w = 0; w < 512; w++)
        CHECK(((uint64_t *)fcc_buffer_data(third))[w] == 0);
    OK(fcc_noop(comm));
    atomic_fetch_add(met, 1);
    if (rank == 0) {
        while (atomic_load(met) < all->n) /* a death may overtake the others' end of the noop */
            (void)usleep(1000);
        _exit(0); /* without a word */
    }
    const int32_t *status;
    OK(fcc_comm_status(comm, &status));
    for (double until = await_end(); !__atomic_load_n(status, __ATOMIC_ACQUIRE);)
        AWAITING(until);
    if (near)
        at[1] = 78;
    FAILS(fcc_buffer_peer(third, 0, &none), node_of(rank) == node_of(0) ? -ENOENT : -EXDEV, "rank 0");
    fcc_disconnect(comm_context());
}

static void outlives_its_rank(void)
{
    ranks_run(RANKS, outlive_rank, shared_memory(sizeof(_Atomic int)));
}

/* What is mapped is still counted. */
static void charge_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *first = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 3 << 20), *second;
    void *at;

    (void)argument;
    if (rank == 1)
        OK(fcc_buffer_peer(first, 0, &at));
    OK(fcc_noop(comm));
    if (rank == 0)
        fcc_buffer_free(first); /* 6 MiB of 8 stay in use: rank 1 has mapped it */
    OK(fcc_noop(comm));
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 2 << 20, &second), -ENOMEM, "");
    if (rank == 1)
        fcc_buffer_free(first);
    OK(fcc_noop(comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 2 << 20, &second));
    OK(fcc_noop(comm));
    leave(comm);
}

static void counts_what_is_mapped(void)
{
    struct test_daemon d;
    struct ranks r;

    if (test_nodes() > 1)
        test_skip("an account is one node's");
    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", "8", NULL});
    ranks_start(&r, 2, charge_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- signals ---- */

#define ROUNDS 3000
#define PAYLOAD 24

/* Around the ring of the ranks of a node: data, signal; the answer says that it has been read. */
static void signal_rank(int rank, const struct ranks *all, void *argument)
{
    struct place {
        uint64_t data[PAYLOAD], come, gone;
    };
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, RANKS * sizeof(struct place));
    struct place *mine = fcc_buffer_data(b), *peers[RANKS] = {NULL};
    int to = neighbour(rank, all->n);
    const int32_t *status;
    int32_t why = 0;

    (void)argument;
    OK(fcc_comm_status(comm, &status));
    CHECK(*status == 0);
    for (int r = 0; r < all->n; r++)
        if (node_of(r) == node_of(rank))
            OK(fcc_buffer_peer(b, r, (void **)&peers[r]));
    int from = 0;
    while (node_of(from) != node_of(rank) || neighbour(from, all->n) != rank)
        from++;
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        struct place *there = &peers[to][rank];
        CHECK(signal_wait(&mine[to].gone, n - 1, status, &why)); /* it has read the last one */
        for (uint64_t w = 0; w < PAYLOAD; w++)
            there->data[w] = n * 1000 + w;
        store(&there->come, n);
        CHECK(signal_wait(&mine[from].come, n, status, &why));
        for (uint64_t w = 0; w < PAYLOAD; w++)
            CHECK(mine[from].data[w] == n * 1000 + w);
        store(&peers[from][rank].gone, n);
    }
    OK(fcc_noop(comm));
    leave(comm);
}

static void signals_go_around(void)
{
    ranks_run(RANKS, signal_rank, NULL);
}

/* ---- the end of a wait ---- */

struct plan {
    _Atomic uint32_t waiting; /* ranks that are about to wait */
    int how;
};
enum how { DIES, ABORTS, LEAVES };

static void end_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 64);
    struct plan *plan = argument;
    const int32_t *status;
    int32_t why = 0;

    OK(fcc_comm_status(comm, &status));
    if (rank == 1) {
        void *at;
        for (int r = 0; r < all->n; r++)
            if (node_of(r) == node_of(1)) {
                OK(fcc_buffer_peer(b, r, &at));
                store(at, 1);
            }
        while (atomic_load(&plan->waiting) < (uint32_t)all->n - 1)
            (void)usleep(1000);
        if (plan->how == DIES)
            (void)raise(SIGKILL);
        else if (plan->how == ABORTS)
            OK(fcc_comm_abort(comm, "enough of this"));
        leave(comm);
        return;
    }
    atomic_fetch_add(&plan->waiting, 1);
    CHECK(!signal_wait(fcc_buffer_data(b), 2, status, &why)); /* nobody ever says 2 */
    CHECK(why == -ECONNABORTED);
    if (node_of(rank) == node_of(1))
        CHECK(signal_wait(fcc_buffer_data(b), 1, status, &why)); /* what it had said before counts */
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 1",
          plan->how == DIES     ? "gone"
          : plan->how == ABORTS ? "enough of this"
                                : "has left");
    leave(comm);
}

static void wait_ends(enum how how)
{
    struct plan *plan = shared_memory(sizeof(*plan));
    struct test_daemon d;
    struct ranks r;

    plan->how = how;
    daemon_start(&d, NULL);
    ranks_start(&r, RANKS, end_rank, plan);
    if (how == DIES)
        CHECK(rank_wait(&r, 1) == SIGKILL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void wait_ends_with_a_death(void)
{
    wait_ends(DIES);
}

static void wait_ends_with_an_abort(void)
{
    wait_ends(ABORTS);
}

static void wait_ends_when_a_rank_leaves(void)
{
    wait_ends(LEAVES);
}

/* Nobody of this process looks at the socket: the library's own thread does. */
static void orphan_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 64);
    struct plan *plan = argument;
    const int32_t *status;
    int32_t why = 0;

    OK(fcc_comm_status(comm, &status));
    atomic_fetch_add(&plan->waiting, 1);
    CHECK(!signal_wait(fcc_buffer_data(b), 1, status, &why));
    CHECK(why == -ECONNRESET);
    FAILS(fcc_noop(comm), -ECONNRESET, "worker");
    OK(fcc_comm_status(comm, &status)); /* asked for afterwards, too */
    CHECK(*status == -ECONNRESET);
    fcc_disconnect(comm_context());
}

static void wait_ends_with_the_worker(void)
{
    struct plan *plan = shared_memory(sizeof(*plan));
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 2, orphan_rank, plan);
    while (atomic_load(&plan->waiting) < 2)
        (void)usleep(1000);
    CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    ranks_join(&r);
    daemon_stop_unclean(&d);
}

/* Words come back when a communicator goes; one more than there are has none, and works. */
static void words_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comms[FCC_STATUS_WORDS + 1];
    const int32_t *status, *last = NULL;
    struct fcc_unique_id id;
    fcc_context *c;

    (void)all, (void)argument, (void)rank;
    OK(fcc_connect(NULL, &c));
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i <= FCC_STATUS_WORDS; i++) {
            OK(fcc_get_unique_id(c, &id));
            OK(fcc_comm_init(c, &id, 1, 0, NULL, &comms[i]));
            if (i == FCC_STATUS_WORDS) {
                FAILS(fcc_comm_status(comms[i], &status), -ENOMEM, "1024");
                OK(fcc_noop(comms[i]));
                continue;
            }
            OK(fcc_comm_status(comms[i], &status));
            CHECK(*status == 0 && status != last);
            last = status;
        }
        OK(fcc_comm_abort(comms[0], "only this one"));
        OK(fcc_comm_status(comms[0], &status));
        CHECK(*status == -ECONNABORTED && *last == 0);
        for (unsigned i = 0; i <= FCC_STATUS_WORDS; i++)
            fcc_comm_destroy(comms[i]);
    }
    fcc_disconnect(c);
}

static void words_come_back(void)
{
    ranks_run(1, words_rank, NULL);
}

/* ---- a client that is no friend ---- */

static int32_t peer_status(struct raw *r, uint32_t buffer, int32_t rank)
{
    struct fcc_buffer_peer_msg m = {
        .msg = {.length = sizeof(m), .type = FCC_MSG_BUFFER_PEER, .id = 9}, .buffer = buffer, .rank = rank};

    raw_send(r, &m, sizeof(m), NULL, 0);
    return raw_receive(r)->status;
}

static void refuses_what_is_not_its_own(void)
{
    struct test_daemon d;
    struct raw *a, *b;

    daemons_start(&d, 1, NULL);
    a = raw_session(&d);
    b = raw_session(&d);
    uint32_t comm = raw_comm(a);
    struct fcc_buffer_alloc_msg alloc = {.msg = {.length = sizeof(alloc), .type = FCC_MSG_BUFFER_ALLOC, .id = 8},
                                         .comm = comm,
                                         .kind = FCC_BUFFER_SYMMETRIC,
                                         .bytes = 4096};
    raw_send(a, &alloc, sizeof(alloc), NULL, 0);
    CHECK(raw_receive(a)->status == 0);
    uint32_t buffer = ((struct fcc_buffer_alloc_reply *)a->in)->buffer;
    CHECK(peer_status(a, buffer, 0) == -ENOENT); /* alone: the library knows its own part */
    CHECK(peer_status(a, buffer, 1) == -EINVAL);
    CHECK(peer_status(a, buffer, INT32_MIN) == -EINVAL);
    CHECK(peer_status(a, buffer, INT32_MAX) == -EINVAL);
    CHECK(peer_status(a, buffer + 1, 0) == -ENOENT);
    CHECK(peer_status(b, buffer, 0) == -ENOENT); /* another session's */
    struct fcc_comm_msg destroy = {.msg = {.length = sizeof(destroy), .type = FCC_MSG_COMM_DESTROY, .id = 10}, .comm = comm};
    raw_send(a, &destroy, sizeof(destroy), NULL, 0);
    CHECK(raw_receive(a)->status == 0);
    CHECK(peer_status(a, buffer, 0) == -ENOENT); /* its communicator has ended, and it has not been freed */
    raw_close(a);
    raw_close(b);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"maps_peers", maps_peers, 0},
        {"outlives_its_rank", outlives_its_rank, 0},
        {"counts_what_is_mapped", counts_what_is_mapped, 0},
        {"signals_go_around", signals_go_around, 60},
        {"wait_ends_with_a_death", wait_ends_with_a_death, 0},
        {"wait_ends_with_an_abort", wait_ends_with_an_abort, 0},
        {"wait_ends_when_a_rank_leaves", wait_ends_when_a_rank_leaves, 0},
        {"wait_ends_with_the_worker", wait_ends_with_the_worker, 0},
        {"words_come_back", words_come_back, 60},
        {"refuses_what_is_not_its_own", refuses_what_is_not_its_own, 0},
    };

    return tests_run("symmetric", TESTS(tests));
}
