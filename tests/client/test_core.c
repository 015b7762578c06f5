/* SPDX-License-Identifier: MIT
 *
 * test_core.c - a thread that meets the engine on its core goes elsewhere, not too often, and with its affinity as it was; and one
 * that shares its core with who computes asks for short turns, and sleeps at once.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/core/wait.h"
#include "proto/base/timeslice.h"
#include "proto/session.h"

enum { FIRST = 64, TRIES = 100, SPIN_US = 2000, LONG_US = 1000, SKIPPED = 255 };

static int changes; /* of affinity */
static int here;    /* the core that this thread is told to be on; negative: the truth */
static int yields;
static unsigned away_us; /* how long each keeps this thread from its core */

int __real_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
int __wrap_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_sched_getcpu(void);
int __wrap_sched_getcpu(void);

int __wrap_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    changes++;
    return __real_sched_setaffinity(pid, size, set);
}

int __wrap_sched_yield(void)
{
    yields++;
    return away_us ? usleep(away_us) : __real_sched_yield();
}

int __wrap_sched_getcpu(void)
{
    return here < 0 ? __real_sched_getcpu() : here;
}

static cpu_set_t allowed_get(void)
{
    cpu_set_t set;

    assert_return_code(sched_getaffinity(0, sizeof(set), &set), 0);
    return set;
}

/* Where it is then is the kernel's affair, which may bring it back at any time; but not every time. */
static void leaves(void **state)
{
    cpu_set_t before = allowed_get(), after;
    int elsewhere = 0;

    (void)state;
    here = -1;
    if (CPU_COUNT(&before) < 2)
        skip();
    for (int i = 0; i < TRIES; i++) {
        unsigned core = (unsigned)sched_getcpu();
        assert_true(core_leave(core));
        elsewhere += (unsigned)sched_getcpu() != core;
        after = allowed_get();
        assert_true(CPU_EQUAL(&after, &before));
    }
    assert_true(elsewhere > 0);
}

static void has_nowhere_to_go(void **state)
{
    cpu_set_t before = allowed_get(), one, after;
    unsigned core;

    (void)state;
    here = -1;
    core = (unsigned)sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_return_code(sched_setaffinity(0, sizeof(one), &one), 0);
    changes = 0;
    assert_false(core_leave(core));
    assert_false(core_leave(CPU_SETSIZE));
    assert_int_equal(changes, 0);
    after = allowed_get();
    assert_true(CPU_EQUAL(&after, &one));
    assert_return_code(sched_setaffinity(0, sizeof(before), &before), 0);
}

/* How often the affinity has changed after that many waits on `core`, in each of which this thread gave way `taken` times. engine_core as
 * the worker writes it. */
static int waits(int n, int core, uint32_t engine_core, unsigned taken)
{
    const struct spin spin = {.taken = taken};

    here = core;
    changes = 0;
    for (int i = 0; i < n; i++)
        core_share(&spin, engine_core);
    return changes;
}

static void leaves_now_and_then(void **state)
{
    cpu_set_t allowed = allowed_get();

    (void)state;
    if (CPU_COUNT(&allowed) < 2 || !CPU_ISSET(0, &allowed))
        skip();
    assert_int_equal(waits(2 * FIRST, 0, 0, 1), 0); /* cores are not short */
    assert_int_equal(waits(2 * FIRST, 1, 1, 1), 0); /* it is elsewhere */
    assert_int_equal(waits(2 * FIRST, 0, 1, 0), 0); /* nobody wanted the core */
    assert_int_equal(waits(FIRST - 1, 0, 1, 1), 0);
    assert_int_equal(waits(1, 1, 1, 1), 0);
    assert_int_equal(waits(FIRST - 1, 0, 1, 1), 0); /* counted anew since it was elsewhere */
    assert_int_equal(waits(1, 0, 1, 1), 2);         /* away, and all allowed again */
    assert_int_equal(waits(2 * FIRST - 1, 0, 1, 1), 0);
    assert_int_equal(waits(1, 0, 1, 1), 2);
    assert_int_equal(waits(4 * FIRST - 1, 0, 1, 1), 0);
    assert_int_equal(waits(1, 0, 1, 1), 2);
}

/* The worker wants this thread on its engine's core, which is core 0 here. */
static void goes_there(void **state)
{
    cpu_set_t allowed = allowed_get(), after;
    const uint32_t stay = FCC_ENGINE_CORE_STAY | 1;

    (void)state;
    if (CPU_COUNT(&allowed) < 2 || !CPU_ISSET(0, &allowed))
        skip();
    assert_int_equal(waits(1, 0, 0, 0), 0); /* counted anew */
    assert_int_equal(waits(2 * FIRST, 0, stay, 0), 0);
    int moves = waits(64 * FIRST, 1, stay, 0);
    assert_true(moves > 0 && moves % 2 == 0 && moves <= 16); /* there, and all allowed again; less and less often */
    after = allowed_get();
    assert_true(CPU_EQUAL(&after, &allowed));
}

/* ns; 0: this kernel does not say */
static uint64_t timeslice(void)
{
    struct timeslice_attr a;

    return syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) ? 0 : a.runtime;
}

/* Waits in vain; how many times the core was offered. */
static int offers(void)
{
    struct spin spin;

    yields = 0;
    spin_begin(&spin, SPIN_US, NEVER);
    while (spin_more(&spin)) {
    }
    return yields;
}

struct waiter {
    int first, skipped, again;
    uint64_t timeslice_before, timeslice_after;
};

static void *waits_there(void *arg)
{
    struct waiter *w = arg;

    w->timeslice_before = timeslice();
    away_us = LONG_US;
    w->first = offers();
    w->timeslice_after = timeslice();
    for (int i = 0; i < SKIPPED; i++)
        w->skipped += offers();
    w->again = offers();
    away_us = 0;
    return NULL;
}

static void sleeps_beside_who_computes(void **state)
{
    struct waiter w = {0};
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, waits_there, &w), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(w.first, 1);
    assert_int_equal(w.skipped, 0);
    assert_int_equal(w.again, 1);
    assert_int_equal(timeslice(), w.timeslice_before); /* other threads' are as they were */
    if (w.timeslice_before)
        assert_int_equal(w.timeslice_after, TIMESLICE_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(leaves), cmocka_unit_test(has_nowhere_to_go),
                                       cmocka_unit_test(leaves_now_and_then), cmocka_unit_test(goes_there),
                                       cmocka_unit_test(sleeps_beside_who_computes)};

    return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
