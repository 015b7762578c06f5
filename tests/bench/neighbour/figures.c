/* SPDX-License-Identifier: MIT
 *
 * figures.c - what the bench prints: medians over the rounds, as those of single rounds differ.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

static const char *const measured[] = {"noop", "all_reduce", "connect"};

int is_more(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median over the rounds of value(), and the least and the most. */
static double over_rounds(double (*value)(int round, const void *arg), const void *arg, double *least, double *most)
{
    double v[ROUNDS_MOST] = {0};

    for (int i = 0; i < nrounds; i++)
        v[i] = value(i, arg);
    qsort(v, (size_t)nrounds, sizeof(v[0]), is_more);
    if (least)
        *least = v[0];
    if (most)
        *most = v[nrounds - 1];
    return nrounds % 2 ? v[nrounds / 2] : (v[nrounds / 2 - 1] + v[nrounds / 2]) / 2;
}

/* A percentile of a phase, divided by that of another one. to: -1: it alone. */
struct ratio {
    int phase, to, what;
    bool p99;
};

static double ratio_of(int round, const void *arg)
{
    const struct ratio *r = arg;
    const struct result *a = &results[round][r->phase], *b = &results[round][r->to < 0 ? r->phase : r->to];
    double divisor = r->p99 ? b->p99[r->what] : b->p50[r->what];

    return (r->p99 ? a->p99[r->what] : a->p50[r->what]) / (r->to < 0 ? 1 : divisor);
}

struct rate {
    int phase;
    size_t of; /* offset of a double in struct load. SIZE_MAX: what the neighbour has done */
};

static double rate_of(int round, const void *arg)
{
    const struct rate *r = arg;
    const struct result *result = &results[round][r->phase];
    double value;

    if (r->of == SIZE_MAX)
        return result->done;
    memcpy(&value, (const char *)&result->load + r->of, sizeof(value));
    return value / result->load.at;
}

#define RATE(phase, field) over_rounds(rate_of, &(struct rate){phase, offsetof(struct load, field)}, NULL, NULL)

static void loads_print(void)
{
    printf("Cores kept busy by the other user's processes and workers (user, system), and how many more threads of them waited "
           "for a core; by the broker; by the\n"
           "victim's ranks and worker, of whose threads so many waited for a core; and by all on the machine. Per second: of "
           "the victim's threads,\n"
           "switches that they did not want and moves to another core (-1: this kernel does not say); of the machine, "
           "switches, and interrupts from\n"
           "core to core for page tables, calls and wake-ups.\n\n");
    printf("%-20s %6s %6s %6s %7s %7s %7s %6s %6s %6s %6s %9s %7s %9s %9s %9s %9s %10s\n", "beside", "user", "system", "waits",
           "broker", "victim", "waits", "m.user", "m.sys", "m.irq", "stolen", "preempted", "moved", "switches", "tables",
           "calls", "wake-ups", "done");
    for (int p = 0; p < PHASES; p++) {
        printf("%-20s %6.2f %6.2f %6.2f %7.3f %7.2f %7.3f ", phases[p].name, RATE(p, hostile_user), RATE(p, hostile_system),
               RATE(p, hostile_waits), RATE(p, broker), RATE(p, victim), RATE(p, victim_waits));
        printf("%6.2f %6.2f %6.2f %6.2f %9.0f %7.0f ", RATE(p, user), RATE(p, system), RATE(p, interrupts), RATE(p, stolen),
               RATE(p, preempted) * 1e6, RATE(p, moved) * 1e6);
        printf("%9.0f %9.0f %9.0f %9.0f %10.0f\n", RATE(p, switches) * 1e6, RATE(p, shootdowns) * 1e6, RATE(p, calls) * 1e6,
               RATE(p, wakeups) * 1e6, over_rounds(rate_of, &(struct rate){p, SIZE_MAX}, NULL, NULL));
    }
}

static void times_print(void)
{
    printf("\nTimes in us, and in brackets the ratio to those alone.\n\n%-20s", "beside");
    for (int m = 0; m < MEASURED; m++)
        printf("   %10s: p50 (ratio)      p99 (ratio)", measured[m]);
    printf("\n");
    for (int p = 0; p < PHASES; p++) {
        printf("%-20s", phases[p].name);
        for (int m = 0; m < MEASURED; m++)
            for (int p99 = 0; p99 < 2; p99++)
                printf(" %9.1f (%6.2f)", over_rounds(ratio_of, &(struct ratio){p, -1, m, p99}, NULL, NULL),
                       over_rounds(ratio_of, &(struct ratio){p, 0, m, p99}, NULL, NULL));
        printf("\n");
    }
}

static void comparison_print(void)
{
    static const struct {
        const char *text;
        int distance; /* from the kind's phase to the one to which it is compared; 0: alone */
    } to[] = {{"alone", 0}, {"as much computing", 1}, {"as much streaming, calling", 2}};

    printf("\nThe p99 beside each kind, divided by that in the same round: the median, the least and the most of %d "
           "rounds.\n\n%-20s %-27s",
           nrounds, "beside", "to");
    for (int m = 0; m < MEASURED; m++)
        printf("  %22s", measured[m]);
    printf("\n");
    for (int k = 0; k < KINDS; k++)
        for (size_t t = 0; t < sizeof(to) / sizeof(to[0]); t++) {
            int p = 1 + 3 * k, other = to[t].distance ? p + to[t].distance : 0;
            printf("%-20s %-27s", phases[p].name, to[t].text);
            for (int m = 0; m < MEASURED; m++) {
                double least, most, median = over_rounds(ratio_of, &(struct ratio){p, other, m, true}, &least, &most);
                printf("  %6.2f (%5.2f to %5.2f)", median, least, most);
            }
            printf("\n");
        }
}

void figures_print(void)
{
    printf("%ld cores, %d rounds.\n\n", sysconf(_SC_NPROCESSORS_ONLN), nrounds);
    loads_print();
    times_print();
    comparison_print();
}
