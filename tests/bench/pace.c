/* SPDX-License-Identifier: MIT
 *
 * pace.c - how much each core gets done just now, in additions per nanosecond.
 *
 * A core of a virtual machine is often one of two threads of a core of its host. Where somebody else uses the other one, it does
 * half as much, for milliseconds or for minutes, and neither /proc/stat nor the clock's rate shows it. So: as many independent
 * additions as a core can have under way, on all cores at once, each by a thread that stays there; the median of many short runs.
 *
 * Prints one figure for each core that this process may use, in their order.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RUNS = 4001, /* 5 ms or more */
    TURNS = 500,
    CHAINS = 8, /* of additions, each waiting for the one before */
    LENGTH = 4, /* of a chain in a turn */
};

struct core {
    pthread_t thread;
    pthread_barrier_t *begin;
    int cpu, error;
    double pace, ns[RUNS];
};

static double now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* TURNS times CHAINS times LENGTH additions. The empty statement keeps the compiler from adding up what it can foresee. */
static void add(void)
{
    unsigned long chain[CHAINS] = {0};

    for (int i = 0; i < TURNS; i++)
#pragma GCC unroll 4
        for (int k = 0; k < LENGTH; k++)
#pragma GCC unroll 8
            for (int c = 0; c < CHAINS; c++) {
                chain[c] += 3;
                __asm__ volatile("" : "+r"(chain[c]));
            }
}

static void *measure(void *arg)
{
    struct core *core = arg;
    double *ns = core->ns;
    cpu_set_t only;

    CPU_ZERO(&only);
    CPU_SET((size_t)core->cpu, &only);
    core->error = pthread_setaffinity_np(pthread_self(), sizeof(only), &only);
    (void)pthread_barrier_wait(core->begin);
    for (int i = 0; i < RUNS; i++) {
        double start = now_ns();
        add();
        ns[i] = now_ns() - start;
    }
    qsort(ns, RUNS, sizeof(ns[0]), ascending);
    core->pace = TURNS * CHAINS * LENGTH / ns[RUNS / 2];
    return NULL;
}

int main(void)
{
    struct core *cores;
    pthread_barrier_t begin;
    cpu_set_t allowed;
    unsigned n = 0;
    int error;

    if (sched_getaffinity(0, sizeof(allowed), &allowed)) {
        perror("pace: sched_getaffinity");
        return 1;
    }
    cores = calloc((size_t)CPU_COUNT(&allowed), sizeof(*cores));
    for (int cpu = 0; cores && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed)) {
            cores[n].cpu = cpu;
            cores[n++].begin = &begin;
        }
    error = cores ? pthread_barrier_init(&begin, NULL, n) : ENOMEM;
    for (unsigned i = 0; !error && i < n; i++)
        error = pthread_create(&cores[i].thread, NULL, measure, &cores[i]);
    if (error) { /* threads that have begun wait for the others: they end with the process */
        (void)fprintf(stderr, "pace: %s\n", strerror(error));
        return 1;
    }
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(cores[i].thread, NULL);
        if (cores[i].error)
            error = cores[i].error;
    }
    if (error) {
        (void)fprintf(stderr, "pace: pthread_setaffinity_np: %s\n", strerror(error));
        return 1;
    }
    for (unsigned i = 0; i < n; i++)
        (void)printf("%.3f\n", cores[i].pace);
    free(cores);
    return 0;
}
