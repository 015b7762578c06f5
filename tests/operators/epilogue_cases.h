/* SPDX-License-Identifier: MIT
 *
 * epilogue_cases.h - the epilogues of operator_cases.h's cases: a bias, a residual, both, and a residual that is the result.
 */
#ifndef FCC_TEST_EPILOGUE_CASES_H
#define FCC_TEST_EPILOGUE_CASES_H

#include "tests/operators/operator_bed.h"

enum { BIAS = 1, RESIDUAL = 2, IN_PLACE = 4 };

/* What a case has: one after the other. Only sums may have the result as residual. */
static unsigned stages_of(int c, uint32_t schedule, bool sums)
{
    unsigned which = 1 + ((unsigned)c + schedule) % (sums ? 4 : 3);

    return which == 4 ? RESIDUAL | IN_PLACE : which;
}

/* Fills in an epilogue for results of m x n elements, in the memory of in[2]; in place, in the result's. */
static void epilogue_make(struct bed *bed, const struct type *t, unsigned which, unsigned seed, int64_t m, int64_t n,
                          const struct fcc_tensor *result, struct fcc_epilogue *out)
{
    const struct array *at = which & IN_PLACE ? &bed->out : &bed->in[2];
    int64_t first = which & IN_PLACE ? 0 : n;

    memset(out, 0, sizeof(*out));
    CHECK(n + m * n <= 2 * ELEMENTS_MAX);
    for (int64_t j = 0; j < n && which & BIAS; j++)
        value_store(t->fcc, bed->in[2].host, j, value(seed, j));
    for (int64_t i = 0; i < m * n && which & RESIDUAL; i++)
        value_store(t->fcc, at->host, first + i, value(seed + 1, i));
    array_send(&bed->in[2], (size_t)(n + m * n) * t->size);
    if (which & IN_PLACE)
        array_send(&bed->out, (size_t)(m * n) * t->size);
    if (which & BIAS)
        out->bias = fcc_tensor_1d(bed->in[2].buffer, 0, t->fcc, n);
    if (which & RESIDUAL)
        out->residual = which & IN_PLACE ? *result : fcc_tensor_2d(bed->in[2].buffer, (size_t)n * t->size, t->fcc, m, n);
}

/* Adds to expected rows, or takes away from them: row `first` and those behind it of what was made for the seed. */
static void epilogue_expect(double *expected, unsigned which, unsigned seed, int64_t first, int64_t rows, int64_t n,
                            double sign)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            expected[i * n + j] += which & BIAS ? sign * value(seed, j) : 0;
            expected[i * n + j] += which & RESIDUAL ? sign * value(seed + 1, (first + i) * n + j) : 0;
        }
}

#endif
