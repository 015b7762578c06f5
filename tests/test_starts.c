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

#include <cmocka.h>

#include "gpu_start.h"

#define JOBS 1000u
#define MOST 8

/* Not atomic: gpu_start.h says who sees what. */
struct job {
    unsigned number;     /* the engine's */
    unsigned seen[MOST]; /* by the GPU's last call */
    unsigned calls[MOST];
    unsigned expected[MOST];
};

static void call(void *argument, int gpu)
{
    struct job *j = argument;

    j->seen[gpu] = j->number;
    j->calls[gpu]++;
}

static void job_run(struct gpu_starters *s, struct job *j, uint32_t gpus)
{
    j->number++;
    gpu_start_each(s, gpus, call, j);
    for (int g = 0; g < MOST; g++) {
        if (gpus >> g & 1u) {
            j->expected[g]++;
            assert_int_equal(j->seen[g], j->number);
        }
        assert_int_equal(j->calls[g], j->expected[g]);
    }
}

/* Of all GPUs, of some, of one: those without a helper, too. */
static void starters_use(int cores, int helpers)
{
    struct worker w = {.cores = cores, .config.spin_us = 50};
    struct gpu_starters *s;
    struct error e = {0};
    struct job j = {0};
    unsigned seed = 1;

    assert_int_equal(gpu_starters_open(&w, helpers, &s, &e), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        uint32_t gpus = i % 2 ? (1u << MOST) - 1 : (uint32_t)rand_r(&seed) % (1u << MOST);
        job_run(s, &j, gpus ? gpus : 1);
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

/* Closed while its helpers are asleep, or look for more, or have not begun. */
static void opened_and_closed(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct worker w = {.cores = i % 2 ? 64 : 1, .config.spin_us = 50};
        struct gpu_starters *s;
        struct error e = {0};
        struct job j = {0};
        assert_int_equal(gpu_starters_open(&w, i % 5, &s, &e), 0);
        if (i % 3)
            job_run(s, &j, 7);
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
    return cmocka_run_group_tests_name("starts", tests, NULL, NULL);
}
