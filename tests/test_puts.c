/* SPDX-License-Identifier: MIT
 *
 * test_puts.c - puts that a program's kernels trigger, to ranks on other nodes: two nodes on this machine, threads stand for
 * the kernels.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "raw.h"

#define NODES 2 /* rank r is on node r modulo this */
#define RANKS 4
#define DATA 4096

static int node_of(int rank)
{
    return rank % NODES;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static bool signal_wait(const uint64_t *word, uint64_t value, const int32_t *status, int32_t *why)
{
    double until = now_ms() + 20000.0;

    while (load(word) < value) {
        *why = __atomic_load_n(status, __ATOMIC_ACQUIRE);
        if (*why)
            return load(word) >= value;
        CHECK(now_ms() < until);
        (void)sched_yield();
    }
    return true;
}

/* It must come; otherwise the next operator says why it has not. */
#define HEARD(b, word, value)                                                                                                  \
    do {                                                                                                                       \
        int32_t why_ = 0;                                                                                                      \
        if (!signal_wait(&(b)->words[word], value, (b)->status, &why_)) {                                                      \
            OK(fcc_noop((b)->comm));                                                                                           \
            check_failed(__FILE__, __LINE__, "status %d", why_);                                                               \
        }                                                                                                                      \
    } while (0)

static void run(int n, void (*rank)(int rank, const struct ranks *all, void *argument), void *argument, int killed)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, NODES, NULL);
    ranks_start(&r, n, rank, argument);
    if (killed >= 0)
        CHECK(rank_wait(&r, killed) == SIGKILL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* A rank with a buffer of data and one of signals. */
struct bed {
    fcc_comm *comm;
    fcc_buffer *data, *signals;
    unsigned char *bytes;
    uint64_t *words;
    const int32_t *status;
};

static struct bed bed_open(const struct ranks *all, int rank, size_t bytes)
{
    struct bed b = {.comm = comm_open(all, rank, 0)};

    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, bytes, &b.data));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, 64 * sizeof(uint64_t), &b.signals));
    OK(fcc_comm_status(b.comm, &b.status));
    b.bytes = fcc_buffer_data(b.data);
    b.words = fcc_buffer_data(b.signals);
    return b;
}

static void bed_close(const struct bed *b)
{
    fcc_comm_destroy(b->comm);
    fcc_disconnect(comm_context());
}

/* One row, and signal number `word`. */
static struct fcc_put put_make(const struct bed *b, int rank, uint64_t from, uint64_t to, uint64_t bytes, uint64_t word)
{
    return (struct fcc_put){.rank = rank,
                            .rows = bytes ? 1 : 0,
                            .row_bytes = bytes,
                            .from = bytes ? b->data : NULL,
                            .from_offset = from,
                            .to = bytes ? b->data : NULL,
                            .to_offset = to,
                            .signals = b->signals,
                            .signal_offset = word * 8};
}

static uint32_t put_new(const struct bed *b, int rank, uint64_t from, uint64_t to, uint64_t bytes, uint64_t word)
{
    struct fcc_put put = put_make(b, rank, from, to, bytes, word);
    uint32_t number = 0;

    OK(fcc_put_register(b->comm, &put, &number));
    CHECK(number > 0);
    return number;
}

/* ---- data before its signal ---- */

#define ROUNDS 500
#define PAYLOAD 3000

/* Each rank to the one across, in rounds: what comes is whole when its signal is there. */
static void order_rank(int rank, const struct ranks *all, void *argument)
{
    int other = rank ^ 1;
    struct bed b = bed_open(all, rank, 2 * DATA);
    uint32_t come = put_new(&b, other, 0, DATA, PAYLOAD, 0), gone = put_new(&b, other, 0, 0, 0, 1);

    (void)argument;
    CHECK(node_of(other) != node_of(rank));
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        HEARD(&b, 1, n - 1); /* the other one has it */
        memset(b.bytes, (int)(n * 7 + (uint64_t)rank) & 255, PAYLOAD);
        OK(fcc_put_trigger(b.comm, come, n));
        HEARD(&b, 0, n);
        for (int i = 0; i < PAYLOAD; i++)
            CHECK(b.bytes[DATA + i] == ((n * 7 + (uint64_t)other) & 255));
        OK(fcc_put_trigger(b.comm, gone, n));
    }
    CHECK(b.words[0] == ROUNDS);
    OK(fcc_noop(b.comm));
    bed_close(&b);
}

static void data_before_signal(void)
{
    run(RANKS, order_rank, NULL, -1);
}

/* Rows with gaps, from a local buffer, to another place; nothing beside them changes. */
static void rows_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    fcc_buffer *local;
    uint32_t number;

    (void)argument;
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, DATA, &local));
    memset(fcc_buffer_data(local), 0x40 + rank, DATA);
    struct fcc_put put = put_make(&b, 1, 8, 100 + 1000 * (uint64_t)rank, 5, (uint64_t)rank);
    put.rows = 3;
    put.stride = 16;
    put.from = local;
    if (node_of(rank) != node_of(1)) {
        OK(fcc_put_register(b.comm, &put, &number));
        OK(fcc_put_trigger(b.comm, number, 9));
    }
    for (int r = 0; rank == 1 && r < all->n; r += NODES)
        HEARD(&b, r, 9);
    for (int i = 0; rank == 1 && i < DATA; i++) {
        int r = (i - 100) / 1000, at = (i - 100) % 1000;
        bool is_put = i >= 100 && r < all->n && node_of(r) != node_of(1) && at < 3 * 16 && at % 16 < 5;
        CHECK(b.bytes[i] == (is_put ? 0x40 + r : 0));
    }
    OK(fcc_noop(b.comm));
    bed_close(&b);
}

static void rows_with_gaps(void)
{
    run(RANKS, rows_rank, NULL, -1);
}

/* ---- many threads, more triggers than there is room for ---- */

#define THREADS 4
#define EACH 5000 /* more than the FIFO has, together */

struct pusher {
    pthread_t thread;
    fcc_comm *comm;
    uint32_t number;
};

static void *push_many(void *argument)
{
    const struct pusher *p = argument;

    for (uint64_t n = 1; n <= EACH; n++)
        OK(fcc_put_trigger(p->comm, p->number, n));
    return NULL;
}

static void many_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    struct pusher pushers[THREADS];
    struct fcc_triggers t;

    (void)argument;
    for (uint64_t i = 0; i < THREADS; i++) {
        pushers[i].comm = b.comm;
        pushers[i].number = put_new(&b, 1 - rank, i * 64, i * 64, 64, i);
        memset(b.bytes + i * 64, (int)i + 1, 64);
    }
    OK(fcc_comm_triggers(b.comm, &t));
    CHECK(t.capacity == 4096);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&pushers[i].thread, NULL, push_many, &pushers[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(pushers[i].thread, NULL) == 0);
    CHECK(load(t.head) == THREADS * EACH);
    for (int i = 0; i < THREADS; i++)
        HEARD(&b, i, EACH);
    OK(fcc_noop(b.comm));
    CHECK(load(t.tail) == THREADS * EACH);
    bed_close(&b);
}

static void many_threads(void)
{
    run(2, many_rank, NULL, -1);
}

/* ---- ends ---- */

enum how { DIES, LEAVES };
struct end {
    enum how how;
    _Atomic int met;    /* ranks that have met */
    _Atomic int waited; /* ranks whose waits are over: until then nobody calls an operator, whose failure would end them all */
};

/* Rank 1 says something and goes at once. Leaving, all that it has said comes before the end does, over the network, too. */
static void end_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, 8 << 20);
    struct end *end = argument;
    int32_t why = 0;

    if (rank == 1) {
        uint32_t first = put_new(&b, 0, 0, 0, 8 << 20, 0), second = put_new(&b, 2, 0, 0, 8 << 20, 0);
        memset(b.bytes, 0x77, 8 << 20);
        OK(fcc_noop(b.comm)); /* the others have their buffers */
        while (atomic_load(&end->met) < RANKS - 1)
            (void)usleep(1000);
        if (end->how == DIES)
            (void)raise(SIGKILL);
        OK(fcc_put_trigger(b.comm, first, 1));
        OK(fcc_put_trigger(b.comm, second, 1));
        bed_close(&b);
        return;
    }
    OK(fcc_noop(b.comm));
    atomic_fetch_add(&end->met, 1);
    if (end->how == LEAVES && node_of(rank) == 0) {
        HEARD(&b, 0, 1);
        for (int i = 0; i < 8 << 20; i++)
            CHECK(b.bytes[i] == 0x77);
    }
    CHECK(!signal_wait(&b.words[5], 1, b.status, &why));
    CHECK(why == -ECONNABORTED);
    atomic_fetch_add(&end->waited, 1);
    while (end->how == LEAVES && atomic_load(&end->waited) < RANKS - 1)
        (void)usleep(1000);
    FAILS(fcc_noop(b.comm), -ECONNABORTED, "rank 1", end->how == DIES ? "gone" : "has left");
    bed_close(&b);
}

static void end_run(enum how how)
{
    struct end *argument = shared_memory(sizeof(*argument));

    argument->how = how;
    run(RANKS, end_rank, argument, how == DIES ? 1 : -1);
}

static void a_rank_dies(void)
{
    end_run(DIES);
}

static void a_rank_leaves(void)
{
    end_run(LEAVES);
}

/* A producer that finds no room leaves when the communicator is over: its proxy is held up by a node that reads nothing. */
struct stuck {
    _Atomic pid_t worker; /* of rank 1's node; -1: it is dead */
    _Atomic int met;
};

static void stuck_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, 8 << 20);
    struct stuck *s = argument;

    OK(fcc_noop(b.comm));
    if (rank == 1) { /* its own node's worker stops; then the others see that it is silent */
        atomic_store(&s->met, 1);
        while (atomic_load(&s->worker) >= 0)
            (void)usleep(1000);
        fcc_disconnect(comm_context());
        return;
    }
    uint32_t number = put_new(&b, 1, 0, 0, 8 << 20, 0);
    while (!atomic_load(&s->met) || !atomic_load(&s->worker))
        (void)usleep(1000);
    CHECK(kill(s->worker, SIGSTOP) == 0);
    int status = 0;
    for (uint64_t n = 1; !status; n++)
        status = fcc_put_trigger(b.comm, number, n);
    CHECK(status < 0 && strstr(fcc_last_error(), "has ended"));
    CHECK(fcc_noop(b.comm) == status);
    CHECK(kill(s->worker, SIGKILL) == 0);
    atomic_store(&s->worker, -1);
    bed_close(&b);
}

static void no_room(void)
{
    struct stuck *s = shared_memory(sizeof(*s));
    struct test_daemon d, second;
    struct ranks r;

    daemons_start(&d, NODES, NULL);
    ranks_start(&r, 2, stuck_rank, s);
    second = d;
    second.node[0] = d.node[1];
    second.nodes = 1;
    atomic_store(&s->worker, daemon_worker(&second));
    ranks_join(&r);
    daemon_stop_unclean(&d);
}

/* ---- what is refused ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    struct fcc_put put;
    fcc_buffer *local, *other;
    uint32_t number = 77;

    (void)argument;
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 64, &local));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, 64, &other));
    OK(fcc_noop(b.comm));
    if (rank == 1)
        fcc_buffer_free(other);
    OK(fcc_noop(b.comm));
#define BAD(status, change, ...)                                                                                               \
    put = put_make(&b, 1, 0, 0, 64, 0);                                                                                        \
    change;                                                                                                                    \
    FAILS(fcc_put_register(b.comm, &put, &number), status, __VA_ARGS__)
    if (rank == 0) {
        BAD(-EINVAL, put.rank = -1, "rank: -1", "0 to 3");
        BAD(-EINVAL, put.rank = 4, "rank: 4", "0 to 3");
        BAD(-EINVAL, put.rank = 0, "on this node");
        BAD(-EINVAL, put.rank = 2, "on this node");
        BAD(-EINVAL, put.reserved[2] = 1, "reserved[2]");
        BAD(-EINVAL, put.row_bytes = 0, "0 bytes");
        BAD(-EINVAL, put.row_bytes = DATA + 1, "from");
        BAD(-EINVAL, put.from_offset = DATA - 63, "from");
        BAD(-EINVAL, put.to_offset = DATA - 63, "in to");
        BAD(-EINVAL, put.to_offset = UINT64_MAX - 10, "in to");
        BAD(-EINVAL, (put.rows = 2, put.stride = 63), "each other");
        BAD(-EINVAL, (put.rows = UINT32_MAX, put.stride = 1ull << 40), "from");
        BAD(-EINVAL, put.signal_offset = 4, "multiples of 8");
        BAD(-EINVAL, put.signal_offset = 512, "up to 504");
        BAD(-EINVAL, (put.rows = 0, put.signals = NULL), "neither");
        BAD(-EINVAL, (put.to = local, put.row_bytes = 8), "not symmetric");
        BAD(-EINVAL, put.from = (fcc_buffer *)(void *)&put, "no buffer");
        BAD(-ENOENT, put.from = NULL, "no such buffer");
        BAD(-ENOENT, put.to = other, "rank 1 has freed");
        BAD(-ENOENT, put.signals = other, "rank 1 has freed");
        CHECK(number == 77);
        FAILS(fcc_put_register(NULL, &put, &number), -EINVAL, "comm");
        FAILS(fcc_put_register(b.comm, NULL, &number), -EINVAL, "put");
        FAILS(fcc_put_trigger(b.comm, 0, 1), -EINVAL, "number");
        FAILS(fcc_comm_triggers(b.comm, NULL), -EINVAL, "out");
        BAD(-ENOENT,
            (fcc_buffer_free(other), put.to = b.data, put.from = local, put.signals = b.signals, fcc_buffer_free(local),
             put.from = NULL),
            "no such buffer");
    }
    OK(fcc_noop(b.comm));
    bed_close(&b);
}

static void refuses(void)
{
    run(RANKS, refused_rank, NULL, -1);
}

/* All on one node: there is no way for triggers, and the error says which there is. */
static void one_node_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    struct fcc_put put = put_make(&b, 1 - rank, 0, 0, 64, 0);
    struct fcc_triggers t;
    uint32_t number;

    (void)argument;
    FAILS(fcc_put_register(b.comm, &put, &number), -EOPNOTSUPP, "on this one");
    FAILS(fcc_comm_triggers(b.comm, &t), -EOPNOTSUPP, "on this one");
    OK(fcc_noop(b.comm));
    bed_close(&b);
}

static void one_node(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 2, one_node_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* Numbers that nobody gave out end the communicator; nothing else. */
struct lie {
    uint64_t number;
    _Atomic int met;
};

static void liar_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    uint32_t number = put_new(&b, 1 - rank, 0, 0, 64, 0);
    struct lie *lie = argument;
    int32_t why = 0;
    struct fcc_triggers t;

    OK(fcc_noop(b.comm));
    atomic_fetch_add(&lie->met, 1);
    while (atomic_load(&lie->met) < 2)
        (void)usleep(1000);
    if (rank == 0) {
        OK(fcc_put_trigger(b.comm, number, 1));
        OK(fcc_comm_triggers(b.comm, &t));
        uint64_t at = __atomic_fetch_add(t.head, 1, __ATOMIC_ACQ_REL);
        t.slots[at % t.capacity][1] = 5;
        __atomic_store_n(&t.slots[at % t.capacity][0], lie->number, __ATOMIC_RELEASE);
        OK(fcc_put_trigger(b.comm, number, 2)); /* not taken any more */
    }
    if (signal_wait(b.words, 2, b.status, &why) || why != -EINVAL)
        check_failed(__FILE__, __LINE__, "signal %llu, status %d: %d: %s", (unsigned long long)b.words[0], why,
                     fcc_noop(b.comm), fcc_last_error());
    FAILS(fcc_noop(b.comm), -EINVAL, "rank 0: a trigger of put", "registered are 1 to 1");
    bed_close(&b);
}

static void a_number_that_is_none(void)
{
    static const uint64_t numbers[] = {2, 1ull << 32 | 1, UINT64_MAX};
    struct lie *lie = shared_memory(sizeof(*lie));
    struct test_daemon d;

    daemons_start(&d, NODES, NULL);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct ranks r;
        *lie = (struct lie){.number = numbers[i]};
        ranks_start(&r, 2, liar_rank, lie);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

/* ---- buffers that go ---- */

/* The puts of a buffer go with it, and its memory when nothing of it is on its way; others of the rank go on, and numbers are
 * given out anew. */
static void freed_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    struct fcc_triggers t;

    (void)argument;
    uint32_t stays = put_new(&b, 1 - rank, 0, 0, 0, 63);
    for (uint64_t n = 1; n <= 40; n++) {
        fcc_buffer *local;
        uint32_t number;
        OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 64 * DATA, &local));
        memset(fcc_buffer_data(local), (int)n, DATA);
        struct fcc_put put = put_make(&b, 1 - rank, 0, 0, DATA, 0);
        put.from = local;
        OK(fcc_put_register(b.comm, &put, &number));
        CHECK(number == stays + 1);
        OK(fcc_put_trigger(b.comm, number, n));
        HEARD(&b, 0, n); /* what the other one has sent, and ours is on its way */
        for (int i = 0; i < DATA; i++)
            CHECK(b.bytes[i] == n);
        OK(fcc_put_trigger(b.comm, stays, n));
        HEARD(&b, 63, n);
        fcc_buffer_free(local);
        OK(fcc_put_trigger(b.comm, number, 1000 + n)); /* of nothing, until the number is given out anew */
        OK(fcc_comm_triggers(b.comm, &t));
        while (load(t.tail) < load(t.head))
            (void)sched_yield();
    }
    OK(fcc_put_trigger(b.comm, stays, 41));
    HEARD(&b, 63, 41);
    CHECK(b.words[0] == 40);
    OK(fcc_noop(b.comm));
    bed_close(&b);
}

static void freed_buffers(void)
{
    struct test_daemon d;
    struct ranks r;

    /* not enough for 40 buffers: what is freed does not stay */
    daemons_start(&d, NODES, (const char *const[]){"--memory-per-user-mb", "2", NULL});
    ranks_start(&r, 2, freed_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* A rank frees its part, or goes, while others put into it: nothing of that harms another communicator between the nodes. */
static void careless_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed b = bed_open(all, rank, DATA);
    struct fcc_unique_id *id = argument;
    fcc_comm *second;

    OK(fcc_comm_init(comm_context(), id, 2, rank, NULL, &second));
    OK(fcc_noop(second));
    uint32_t number = rank == 0 ? put_new(&b, 1, 0, 0, DATA, 0) : 0;
    OK(fcc_noop(b.comm));
    for (uint64_t n = 1; rank == 0 && n <= 3000; n++)
        OK(fcc_put_trigger(b.comm, number, n));
    if (rank == 1) {
        (void)sched_yield();
        fcc_buffer_free(b.data);
        fcc_buffer_free(b.signals);
    }
    for (int i = 0; i < 20; i++)
        OK(fcc_noop(second));
    OK(fcc_noop(b.comm));
    fcc_comm_destroy(second);
    bed_close(&b);
}

static void freed_too_early(void)
{
    struct fcc_unique_id *id = shared_memory(sizeof(*id));
    struct test_daemon d;
    struct ranks r;
    fcc_context *context;

    daemons_start(&d, NODES, NULL);
    for (int i = 0; i < 5; i++) {
        OK(fcc_connect(NULL, &context));
        OK(fcc_get_unique_id(context, id));
        fcc_disconnect(context);
        ranks_start(&r, 2, careless_rank, id);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"data_before_signal", data_before_signal, 60},
        {"rows_with_gaps", rows_with_gaps, 0},
        {"many_threads", many_threads, 60},
        {"a_rank_dies", a_rank_dies, 0},
        {"a_rank_leaves", a_rank_leaves, 0},
        {"no_room", no_room, 60},
        {"refuses", refuses, 0},
        {"one_node", one_node, 0},
        {"a_number_that_is_none", a_number_that_is_none, 60},
        {"freed_buffers", freed_buffers, 60},
        {"freed_too_early", freed_too_early, 60},
    };

    return tests_run("puts", TESTS(tests));
}
