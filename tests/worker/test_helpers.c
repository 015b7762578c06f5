/* SPDX-License-Identifier: MIT
 *
 * test_helpers.c - the threads that help the engine (helpers.h): each call once, what it writes seen, and nothing left when it is
 * said to be over. Meant for the thread sanitizer. And how they wait (spin.h).
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/device/helpers.h"

static int yields;
static unsigned away_us;

/* Keeps the caller from its core. */
static int yield(void)
{
    yields++;
    return usleep(away_us);
}

/* For spin_once() in this file; that of helpers.c yields to whom it likes. */
#define sched_yield yield
#include "proto/base/spin.h"

#define JOBS 1000u
#define MOST 8

/* Not atomic: helpers.h says who sees what. */
struct job {
    unsigned number;     /* the engine's */
    unsigned seen[MOST]; /* by the part's last call */
    unsigned calls[MOST];
    unsigned expected[MOST];
};

static bool call(void *argument, int i)
{
    struct job *j = argument;

    j->seen[i] = j->number;
    j->calls[i]++;
    return true;
}

static void job_run(struct helpers *h, struct job *j, uint32_t parts)
{
    j->number++;
    helpers_run(h, parts, j->number % 4 != 0, call, j);
    for (int g = 0; g < MOST; g++) {
        if (parts >> g & 1u) {
            j->expected[g]++;
            assert_int_equal(j->seen[g], j->number);
        }
        assert_int_equal(j->calls[g], j->expected[g]);
    }
}

/* All parts, some, one: those without a helper, too. */
static void helpers_use(int n, uint32_t spin_us)
{
    struct helpers *h;
    struct error e = {0};
    struct job j = {0};
    unsigned seed = 1;

    assert_int_equal(helpers_open(n, spin_us, &h, &e), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        uint32_t parts = i % 2 ? (1u << MOST) - 1 : (uint32_t)rand_r(&seed) % (1u << MOST);
        job_run(h, &j, parts ? parts : 1);
    }
    helpers_close(h);
}

static void each_call_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++)
        helpers_use(n, 50); /* they look for more between two jobs */
}

static void asleep_at_once(void **state)
{
    (void)state;
    helpers_use(2, 0);
    helpers_use(0, 0);
}

/* Closed while its helpers are asleep, or look for more, or have not begun. */
static void opened_and_closed(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct helpers *h;
        struct error e = {0};
        struct job j = {0};
        assert_int_equal(helpers_open(i % 5, i % 2 ? 50 : 0, &h, &e), 0);
        if (i % 3)
            job_run(h, &j, 7);
        helpers_close(h);
    }
}

/* How many turns of at most `n` it offers the core for, until it is to sleep. */
static int offers(struct spin *s, int n)
{
    yields = 0;
    spin_reset(s);
    while (n-- && spin_once(s, UINT32_MAX)) {
    }
    return yields;
}

static void no_offers_to_who_computes(void **state)
{
    enum { TURNS = 1000, LONG_US = 1000 };
    struct spin spin = {0};

    (void)state;
    away_us = 1; /* with what usleep() adds somebody has had it, but not for long: 16 times */
    int short_ones = offers(&spin, TURNS);
    away_us = LONG_US;
    spin.skip = 0; /* in case that it was long */
    assert_int_equal(offers(&spin, TURNS), 1);
    for (int i = 1; i < SPIN_SKIPPED; i++)
        assert_int_equal(offers(&spin, TURNS), 0);
    assert_int_equal(offers(&spin, TURNS), 1);
    assert_in_range(short_ones, 1, SPIN_TAKEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_once),
        cmocka_unit_test(asleep_at_once),
        cmocka_unit_test(opened_and_closed),
        cmocka_unit_test(no_offers_to_who_computes),
    };
    return cmocka_run_group_tests_name("helpers", tests, NULL, NULL);
}
