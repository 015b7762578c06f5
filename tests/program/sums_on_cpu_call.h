/* SPDX-License-Identifier: MIT
 *
 * sums_on_cpu_call.h - how test_generate.c has a workgroup's sums made. C and C++.
 */
#ifndef FCC_TESTS_PROGRAM_SUMS_ON_CPU_CALL_H
#define FCC_TESTS_PROGRAM_SUMS_ON_CPU_CALL_H

#include <stdint.h>

struct sums_call {
    const void *step;     /* struct gpu_step, and what follows it */
    int64_t each;         /* elements of a sum; 0: tensors */
    const float *x;       /* element e of tensor t at e + shift[t], or, without shifts, at e */
    const int64_t *shift; /* of the table's tensors */
    double *totals[2];
    double *pieces;
};

#endif
