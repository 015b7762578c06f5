/* SPDX-License-Identifier: MIT
 *
 * test_fifo.c - the trigger FIFO: nothing is lost, torn or overtaken, and who waits in vain leaves no trace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "daemon/net/fifo.h"

enum { PRODUCERS = 8, PUSHES = 600 };

struct producing {
    struct fifo *fifo;
    uint16_t rank;
    pthread_t thread;
    _Atomic uint32_t *token; /* whose turn it is to say that it has pushed */
};

static void *produce(void *arg)
{
    struct producing *me = arg;

    for (uint32_t n = 1; n <= PUSHES; n++) {
        if (!fifo_push(me->fifo, (struct fcc_trigger){n, me->rank, (uint16_t)(n * 7), FCC_TRIGGER_PUT | n, ~n}, NULL))
            abort();
    }
    return NULL;
}

/* All arrive, whole, each producer's in its order, through FIFOs that have room for hardly more than one of each. */
static void many_producers(void **state)
{
    static struct fifo fifo;
    struct fifo_slot *slots = calloc(16, sizeof(*slots));
    struct producing p[PRODUCERS];
    uint32_t last[PRODUCERS] = {0}, popped = 0;
    struct fcc_trigger t = {0};

    (void)state;
    assert_non_null(slots);
    assert_int_equal(fifo_init(&fifo, slots, 16, 9, -1), -EINVAL);
    assert_int_equal(fifo_init(&fifo, slots, 12, 2, -1), -EINVAL);
    assert_int_equal(fifo_init(&fifo, slots, 16, PRODUCERS, -1), 0);
    for (int i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producing){.fifo = &fifo, .rank = (uint16_t)i};
        assert_int_equal(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
    }
    while (popped < PRODUCERS * PUSHES) {
        if (!fifo_pop(&fifo, &t)) {
            (void)sched_yield();
            continue;
        }
        popped++;
        assert_true(t.rank < PRODUCERS);
        assert_int_equal(t.launch, ++last[t.rank]);
        assert_int_equal(t.dst, (uint16_t)(t.launch * 7));
        assert_int_equal(t.what, FCC_TRIGGER_PUT | t.launch);
        assert_int_equal(t.epoch, ~t.launch);
    }
    assert_false(fifo_pop(&fifo, &t));
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_join(p[i].thread, NULL), 0);
    free(slots);
}

/* Each pushes when it has seen that the one before has: the triggers come out in that order. */
static void *produce_in_turn(void *arg)
{
    struct producing *me = arg;

    for (uint32_t n = me->rank; n < PUSHES; n += PRODUCERS) {
        while (atomic_load_explicit(me->token, memory_order_acquire) != n)
            (void)sched_yield();
        if (!fifo_push(me->fifo, (struct fcc_trigger){.launch = n + 1, .what = FCC_TRIGGER_PUT}, NULL))
            abort();
        atomic_store_explicit(me->token, n + 1, memory_order_release);
    }
    return NULL;
}

static void one_after_another(void **state)
{
    static struct fifo fifo;
    struct fifo_slot *slots = calloc(16, sizeof(*slots));
    struct producing p[PRODUCERS];
    _Atomic uint32_t token = 0;
    struct fcc_trigger t = {0};

    (void)state;
    assert_non_null(slots);
    assert_int_equal(fifo_init(&fifo, slots, 16, PRODUCERS, -1), 0);
    for (int i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producing){.fifo = &fifo, .rank = (uint16_t)i, .token = &token};
        assert_int_equal(pthread_create(&p[i].thread, NULL, produce_in_turn, &p[i]), 0);
    }
    for (uint32_t n = 1; n <= PUSHES; n++) {
        while (!fifo_pop(&fifo, &t))
            (void)sched_yield();
        assert_int_equal(t.launch, n);
    }
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_join(p[i].thread, NULL), 0);
    free(slots);
}

/* A producer that waits in vain turns round without a trace. */
static void full_fifo(void **state)
{
    static struct fifo fifo;
    struct fifo_slot slots[8] = {0};
    _Atomic uint32_t status = 1;
    struct fcc_trigger t = {0};

    (void)state;
    assert_int_equal(fifo_init(&fifo, slots, 8, 2, -1), 0);
    for (int round = 0; round < 5; round++) {
        uint32_t pushed = 0;
        while (fifo_push(&fifo, (struct fcc_trigger){.launch = pushed + 1, .what = FCC_TRIGGER_END}, &status))
            pushed++;
        assert_int_equal(pushed, 7); /* the eighth is left to the other producer */
        assert_false(fifo_sleep(&fifo));
        for (uint32_t n = 1; n <= pushed; n++) {
            assert_true(fifo_pop(&fifo, &t));
            assert_int_equal(t.launch, n);
        }
        assert_false(fifo_pop(&fifo, &t));
        assert_true(fifo_sleep(&fifo));
        fifo_wake(&fifo);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_producers),
        cmocka_unit_test(one_after_another),
        cmocka_unit_test(full_fifo),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
