/* SPDX-License-Identifier: MIT
 *
 * test_puts_refused.c - puts (puts_bed.h) that are refused: what cannot be registered, where there is no way for them, and triggers
 * of numbers that nobody gave out.
 */
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/memory/puts_bed.h"

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
    puts_run(RANKS, refused_rank, NULL, -1);
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

int main(void)
{
    const struct test tests[] = {
        {"refuses", refuses, 0},
        {"one_node", one_node, 0},
        {"a_number_that_is_none", a_number_that_is_none, 60},
    };

    return tests_run("puts_refused", TESTS(tests));
}
