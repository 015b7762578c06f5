/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - the stages of an operator's epilogue on CPU cores (kernels/plan/epilogue.h).
 */
#ifndef FCC_KERNELS_CPU_EPILOGUE_H
#define FCC_KERNELS_CPU_EPILOGUE_H

#include "kernels/cpu/execute.h"

/* The stages of a slice's tile: their elements for the tile's first row and column. */
struct epilogue {
    enum fcc_dtype dtype;
    const unsigned char *bias, *residual; /* NULL: absent */
    int64_t residual_ld;                  /* elements */
};

/* Returns out, filled in for the slice and the rank that executes it, or NULL: the operator has no epilogue. */
const struct epilogue *epilogue_at(const struct run *run, const struct slice *s, struct epilogue *out);
/* Adds the stages to n sums of a row of the tile, from column `col` on. */
void epilogue_add(const struct epilogue *p, int64_t row, int64_t col, float *sums, size_t n);

#endif
