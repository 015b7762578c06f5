/* SPDX-License-Identifier: MIT
 *
 * test_puts.c - what puts bring (puts_bed.h): data before its signal, rows with gaps, and all that many threads have triggered.
 * Ranks and buffers that go meanwhile are in test_puts_ends.c, what is refused in test_puts_refused.c.
 */
#include <pthread.h>
#include <string.h>

#include "tests/memory/puts_bed.h"

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
    puts_run(RANKS, order_rank, NULL, -1);
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
    puts_run(RANKS, rows_rank, NULL, -1);
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
    CHECK(word_load(t.head) == THREADS * EACH);
    for (int i = 0; i < THREADS; i++)
        HEARD(&b, i, EACH);
    OK(fcc_noop(b.comm));
    CHECK(word_load(t.tail) == THREADS * EACH);
    bed_close(&b);
}

static void many_threads(void)
{
    puts_run(2, many_rank, NULL, -1);
}

int main(void)
{
    const struct test tests[] = {
        {"data_before_signal", data_before_signal, 60},
        {"rows_with_gaps", rows_with_gaps, 0},
        {"many_threads", many_threads, 60},
    };

    return tests_run("puts", TESTS(tests));
}
