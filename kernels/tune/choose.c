/* SPDX-License-Identifier: MIT
 *
 * choose.c - the choice among candidates whose times all ranks know.
 *
 * Rounds are paired: in each of them every candidate ran once, shortly after the others. So what disturbs a machine for a while disturbs all, and the
 * number of rounds in which one was faster says more than two averages do.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/tune/schedules.h"

#define ROUNDS_MOST 256

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median_of(const double values[], int n)
{
    double sorted[ROUNDS_MOST];
    const int count = n < ROUNDS_MOST ? n : ROUNDS_MOST;

    memcpy(sorted, values, (size_t)count * sizeof(*sorted));
    qsort(sorted, (size_t)count, sizeof(*sorted), by_value);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

int candidates_choose(const double seconds[], int n, int rounds, double margin)
{
    int best = 0, faster = 0;

    if (n < 2 || rounds < 1)
        return 0;
    const double written = median_of(seconds, rounds);
    double least = written;
    for (int i = 1; i < n; i++) {
        const double median = median_of(seconds + (size_t)i * (size_t)rounds, rounds);
        if (median < least) {
            least = median;
            best = i;
        }
    }
    for (int k = 0; k < rounds; k++)
        faster += seconds[best * rounds + k] < seconds[k];
    return least < written * (1 - margin) && faster * 2 > rounds ? best : 0;
}
