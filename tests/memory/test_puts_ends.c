/* SPDX-License-Identifier: MIT
 *
 * test_puts_ends.c - puts (puts_bed.h) on their way while a rank or a worker dies or leaves, or while a buffer goes.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/memory/puts_bed.h"

/* ---- ranks that go ---- */

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
    puts_run(RANKS, end_rank, argument, how == DIES ? 1 : -1);
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
        while (word_load(t.tail) < word_load(t.head))
            nap();
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
        {"a_rank_dies", a_rank_dies, 0},      {"a_rank_leaves", a_rank_leaves, 0},      {"no_room", no_room, 60},
        {"freed_buffers", freed_buffers, 60}, {"freed_too_early", freed_too_early, 60},
    };

    return tests_run("puts_ends", TESTS(tests));
}
