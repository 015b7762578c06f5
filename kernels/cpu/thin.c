/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/thin.h"

#include <string.h>

#include "kernels/cpu/lanes/lanes.h"

void thin_multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const void *b, enum fcc_dtype dtype,
                   int64_t ldb, bool add, float *c, int64_t ldc)
{
    const struct lanes_loops *loops = lanes_loops(LANES_WIDEST);
    lanes_multiply *multiply = dtype == FCC_F16      ? loops->multiply_f16
                               : dtype == FCC_BF16   ? loops->multiply_bf16
                               : dtype == FCC_F8E4M3 ? loops->multiply_f8
                                                     : loops->multiply_f32;

    for (int64_t i = 0; i < m && !add; i++)
        memset(c + i * ldc, 0, (size_t)n * sizeof(*c));
    multiply(m, n, k, a, lda, b, ldb, c, ldc);
}
