/* SPDX-License-Identifier: MIT
 *
 * vectors.h - sixteen f32 as vectors of LANES_BYTES each, which is set by the file that includes this one.
 */
#include <string.h>

#include "kernels/cpu/lanes/lanes.h"
#include "kernels/plan/dtype.h"

typedef float vector __attribute__((vector_size(LANES_BYTES)));
typedef uint32_t vector_bits __attribute__((vector_size(LANES_BYTES)));
typedef uint16_t vector_halves __attribute__((vector_size(LANES_BYTES / 2)));

enum { PARTS = 64 / LANES_BYTES, EACH = LANES_BYTES / 4 };

typedef struct {
    vector at[PARTS];
} lanes;

FCC_INLINE void bf16_load(vector *out, const unsigned char *src)
{
    vector_halves h;

    memcpy(&h, src, sizeof(h));
    *out = (vector)(__builtin_convertvector(h, vector_bits) << 16);
}

#ifdef FCC_F16C
FCC_INLINE void f16_load(vector *out, const unsigned char *src)
{
    f32x4 v[EACH / 4];

#pragma GCC unroll 4
    for (int i = 0; i < EACH / 4; i++)
        f16c_load4(&v[i], src + i * 8);
#if LANES_BYTES == 16
    *out = v[0];
#elif LANES_BYTES == 32
    *out = __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7);
#else
    *out = __builtin_shufflevector(__builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7),
                                   __builtin_shufflevector(v[2], v[3], 0, 1, 2, 3, 4, 5, 6, 7), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                   10, 11, 12, 13, 14, 15);
#endif
}
#endif

/* Without the processor's help. */
FCC_INLINE void lanes_load_slowly(lanes *out, const unsigned char *src, enum fcc_dtype dtype)
{
    f32x16 v;

    f32x16_load(&v, src, dtype);
    memcpy(out, &v, sizeof(v));
}

/* Sixteen elements. dtype is a constant. */
FCC_INLINE void lanes_load(lanes *out, const unsigned char *src, enum fcc_dtype dtype)
{
    if (dtype == FCC_F32) { /* one by one: all together would be a copy of memory */
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++)
            memcpy(&out->at[i], src + i * LANES_BYTES, LANES_BYTES);
        return;
    }
    if (dtype == FCC_BF16) {
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++)
            bf16_load(&out->at[i], src + i * EACH * 2);
        return;
    }
#ifdef FCC_F16C
    if (dtype == FCC_F16 && dtype_f16c) {
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++)
            f16_load(&out->at[i], src + i * EACH * 2);
        return;
    }
#endif
    lanes_load_slowly(out, src, dtype);
}

/* sum += a * b */
FCC_INLINE void lanes_add_product(lanes *sum, const lanes *a, const lanes *b)
{
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++)
        sum->at[i] += a->at[i] * b->at[i];
}

FCC_INLINE void lanes_add_times(lanes *sum, const lanes *a, float times, const bool weighted)
{
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++)
        sum->at[i] += weighted ? a->at[i] * times : a->at[i];
}
