/* SPDX-License-Identifier: MIT
 *
 * metrics_cost.c - what a noop's counting and recording takes by itself: the calls that the engine makes for one noop of so many ranks
 * (daemon/worker/comm/comm.c), again and again, into a ledger as large as a worker's.
 *
 *     metrics_cost [NOOPS [RANKS]]    prints the least and the median of rounds, in ns for a noop
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"

enum { ROUNDS = 31 };

static int is_more(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static uint64_t ns_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* As comm_submit() and turn_count() do. */
static __attribute__((noinline)) void noop_count(const struct worker *w, struct flight_comm *f, uint64_t turn, int ranks)
{
    uint64_t now = turn * 2000;

    for (int r = 0; r < ranks; r++) {
        METER_GAUGE(w, queued, 1);
        flight_came(f, turn, r, FCC_OP_NOOP, now + (uint64_t)r * 100);
    }
    flight_begun(f, turn, turn, 0, now + 500);
    flight_ended(f, turn, 0, now + 500);
    meter_begun(w, FCC_OP_NOOP, now, now + 500);
    meter_ended(w, FCC_OP_NOOP, METER_SCHEDULE_NONE, 0, 0);
    METER_GAUGE(w, queued, -ranks);
}

int main(int argc, char *argv[])
{
    long noops = argc > 1 ? strtol(argv[1], NULL, 10) : 200000;
    int ranks = argc > 2 ? atoi(argv[2]) : 2;
    struct flight *ledger = NULL;
    static struct worker worker, *const w = &worker;
    double ns[ROUNDS];
    uint64_t turn = 0;

    if (noops < 1 || ranks < 1 || ranks > FCC_MAX_RANKS) {
        (void)fprintf(stderr, "usage: metrics_cost [NOOPS [RANKS]]\n");
        return 2;
    }
    if (posix_memalign((void **)&ledger, 4096, LEDGER_BYTES))
        return 1;
    memset(ledger, 0, LEDGER_BYTES);
    w->flight = ledger;
    w->meters = (struct meters *)(uintptr_t)ledger_meters(ledger);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begin = ns_now();
        for (long n = 0; n < noops; n++)
            noop_count(w, &ledger->comms[0], ++turn, ranks);
        ns[i] = (double)(ns_now() - begin) / (double)noops;
    }
    uint64_t counted = w->meters->counters.operators[FCC_OP_NOOP][METER_SCHEDULE_NONE];
    if (counted != turn || w->meters->queued || ledger->comms[0].turns != turn) {
        (void)fprintf(stderr, "metrics_cost: %llu of %llu noops were counted\n", (unsigned long long)counted,
                      (unsigned long long)turn);
        return 1;
    }
    qsort(ns, ROUNDS, sizeof(ns[0]), is_more);
    printf("{\"least_ns\": %.2f, \"median_ns\": %.2f, \"noops\": %llu}\n", ns[0], ns[ROUNDS / 2], (unsigned long long)turn);
    free(ledger);
    return 0;
}
