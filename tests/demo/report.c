/* SPDX-License-Identifier: MIT
 *
 * report.c - all elements of all results against the reference, and the table.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/demo/demo.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median over the iterations of the slowest rank's time. */
static double median_ms(const struct demo *demo, enum demo_workload which, enum demo_schedule schedule)
{
    double slowest[DEMO_ITERS] = {0};

    for (int i = 0; i < DEMO_ITERS; i++) {
        for (int r = 0; r < DEMO_RANKS; r++) {
            double seconds = demo->shared->ranks[r].seconds[which][schedule][i];
            slowest[i] = seconds > slowest[i] ? seconds : slowest[i];
        }
    }
    qsort(slowest, DEMO_ITERS, sizeof(slowest[0]), compare_doubles);
    return slowest[DEMO_ITERS / 2] * 1e3;
}

static const char *const schedules[] = {[DEMO_FUSED] = "fused", [DEMO_SEQUENTIAL] = "sequential"};

/* Compare one result. Where it is wrong first is said on stderr. */
static int64_t check_result(const struct demo *demo, enum demo_workload which, enum demo_schedule schedule, int rank,
                            const double *expected)
{
    const struct workload *w = demo_workloads[which];
    const void *got = demo->results[which][schedule][rank];
    int64_t first = 0, wrong = reference_compare(w->type, got, expected, w->elements(demo, rank), &first);

    if (wrong > 0)
        (void)fprintf(stderr, "%s, %s, rank %d: %" PRId64 " wrong elements; the first one, %" PRId64 ", is %g instead of %g\n",
                      w->op, schedules[schedule], rank, wrong, first, reference_element(w->type, got, first), expected[first]);
    return wrong;
}

/* Compare a workload's results of both schedules. */
static int check_workload(const struct demo *demo, enum demo_workload which, int64_t *wrong, int64_t *of)
{
    const struct workload *w = demo_workloads[which];
    double *expected = malloc(demo_result_bytes(demo, which) / fcc_dtype_size(w->dtype) * sizeof(double));
    int status = expected ? 0 : -ENOMEM;

    *wrong = *of = 0;
    for (int r = 0; r < DEMO_RANKS && status == 0; r++) {
        int64_t n = w->elements(demo, r);
        status = w->expected(demo, r, expected);
        for (int s = 0; s < DEMO_SCHEDULES && status == 0; s++) {
            *wrong += check_result(demo, which, (enum demo_schedule)s, r, expected);
            *of += n;
        }
        if (demo->shared->ranks[r].wrong_counts[which] > 0)
            (void)fprintf(stderr, "%s, rank %d: %" PRId64 " wrong counts in recv_rows\n", w->op, r,
                          demo->shared->ranks[r].wrong_counts[which]);
        *wrong += demo->shared->ranks[r].wrong_counts[which];
    }
    free(expected);
    return status;
}

int64_t report_print(const struct demo *demo)
{
    static const char *const dtypes[] = {[FCC_F32] = "f32", [FCC_F16] = "f16", [FCC_BF16] = "bf16"};
    int64_t total = 0;

    printf("%-20s  %-5s  %-32s  %9s  %10s  %8s  %s\n", "operator", "dtype", "shape", "fused", "sequential", "speed-up",
           "wrong elements");
    for (int i = 0; i < DEMO_WORKLOADS; i++) {
        enum demo_workload which = (enum demo_workload)i;
        const struct workload *w = demo_workloads[i];
        double fused = median_ms(demo, which, DEMO_FUSED), sequential = median_ms(demo, which, DEMO_SEQUENTIAL);
        int64_t wrong, of;
        char shape[80];
        if (check_workload(demo, which, &wrong, &of))
            return -ENOMEM;
        w->describe(demo, shape, sizeof(shape));
        printf("%-20s  %-5s  %-32s  %6.2f ms  %7.2f ms  %7.2fx  %" PRId64 " of %" PRId64 "\n", w->op, dtypes[w->dtype], shape,
               fused, sequential, fused > 0 ? sequential / fused : 0, wrong, of);
        total += wrong;
    }
    return total;
}
