/* SPDX-License-Identifier: MIT
 *
 * combine.h - combines vectors element by element, in a fixed order, on a CPU core.
 */
#ifndef FCC_KERNELS_CPU_COMBINE_H
#define FCC_KERNELS_CPU_COMBINE_H

#include <stddef.h>

#include "proto/fccclient.h"

#define COMBINE_BLOCK 512        /* elements that are combined at a time */
#define COMBINE_BLOCK_BYTES 4096 /* of the largest dtype */

/* out = terms[0], combined with terms[1], then with terms[2], ...: n elements, 1 to COMBINE_BLOCK. The terms are of dtype `from`; out is of
 * dtype `sum`, in which they are combined: the same, or f32 for f16 and bf16. out is aligned to its elements; if the dtypes
 * are the same it may be a term, or overlap some. FCC_AVERAGE adds up. The reduction is one of the dtype's. */
void combine(enum fcc_reduction reduction, enum fcc_dtype from, enum fcc_dtype sum, const unsigned char *const terms[],
             int nterms, size_t n, void *out);

/* Divides n elements of dtype `sum` (f32 or f64), 1 to COMBINE_BLOCK, by a number of ranks. */
void combine_divide(enum fcc_dtype sum, int nranks, size_t n, void *out);

/* Copies n elements from one dtype to another: the same, or one of them is f32 and the other f16 or bf16. */
void combine_convert(void *dst, enum fcc_dtype to, const void *src, enum fcc_dtype from, size_t n);

#endif
