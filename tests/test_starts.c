/* SPDX-License-Identifier: MIT
 *
 * test_starts.c - the threads that give operators to GPUs (gpu_start.h): each call once, what it writes seen, and nothing left when
 * it is said to be over. Meant for the thread sanitizer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_start.h"

#define JOBS 1000u
#define MOST 8

/* Not atomic: gpu_start.h says who sees what. */
struct job {
    uint64_t number; /* the engine's */
    uint64_t seen[MOST];
    unsigned calls[MOST];
};

static void call(void *argument, int gpu)
{
    struct job *j = argument;

    j->seen[gpu] = j->number;
    j->calls[gpu]++;
}

static void job_check(const struct job *j, int n, uint64_t number)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(j->seen[i], number);
        assert_int_equal(j->calls[i], number);
    }
}

static void starters_use(int cores, int helpers)
{
    struct worker w = {.cores = cores, .config.spin_us = 50};
    struct gpu_starters *s;
    struct error e = {0};
    struct job j;
    unsigned seed = 1;
    int n = helpers + 2; /* GPUs without a helper, too */
    uint32_t gpus = (1u << n) - 1;

    memset(&j, 0, sizeof(j));
    assert_int_equal(gpu_starters_open(&w, helpers, &s, &e), 0);
    assert_true(gpu_start_look(s));
    gpu_start_wait(s);
    for (uint64_t number = 1; number <= JOBS; number++) {
        j.number = number;
        switch (rand_r(&seed) % 3) {
        case 0:
            gpu_start_each(s, gpus, call, &j);
            break;
        case 1:
            gpu_start_begin(s, gpus, call, &j);
            gpu_start_wait(s);
            break;
        default:
            gpu_start_begin(s, gpus, call, &j);
            while (!gpu_start_look(s))
                ;
        }
        assert_true(gpu_start_look(s));
        job_check(&j, n, number);
    }
    gpu_starters_close(s);
}

static void each_call_once(void **state)
{
    (void)state;
    for (int helpers = 1; helpers <= 4; helpers++)
        starters_use(64, helpers); /* they look for more between two jobs */
}

static void with_few_cores(void **state)
{
    (void)state;
    starters_use(1, 2); /* they sleep at once */
    starters_use(1, 0);
}

/* Closed while its helpers are at work, or asleep, or have not begun. */
static void opened_and_closed(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct worker w = {.cores = i % 2 ? 64 : 1, .config.spin_us = 50};
        struct gpu_starters *s;
        struct error e = {0};
        struct job j;
        memset(&j, 0, sizeof(j));
        assert_int_equal(gpu_starters_open(&w, i % 5, &s, &e), 0);
        j.number = 1;
        if (i % 3)
            gpu_start_begin(s, 7, call, &j);
        gpu_start_wait(s);
        job_check(&j, i % 3 ? 3 : 0, 1);
        gpu_starters_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_once),
        cmocka_unit_test(with_few_cores),
        cmocka_unit_test(opened_and_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
