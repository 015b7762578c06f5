/* SPDX-License-Identifier: MIT
 *
 * combine.c - the loops over a block are of constant length, so the compiler makes vector code of them for each dtype and reduction.
 *
 * A minimum or maximum is IEEE 754-2019's: of a NaN it is NaN, and -0 is below +0. Integers are added and multiplied as unsigned ones,
 * which wrap around.
 */
#include "kernels/cpu/combine.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "kernels/plan/plan.h"

typedef void combine_block(void *sum, const void *first, const void *term);

/* sum[i] = EXPRESSION of x = first[i] and y = term[i]. The arrays are aligned to their elements only. sum may be first. */
#define BLOCK(name, type, EXPRESSION)                                                                                          \
    FCC_CLONES static void name(void *sum, const void *first, const void *term)                                                \
    {                                                                                                                          \
        typedef __typeof__(type) element;                                                                                      \
        element *a = sum;                                                                                                      \
        const element *f = first, *b = term;                                                                                   \
        for (int i = 0; i < COMBINE_BLOCK; i++) {                                                                              \
            element x = f[i], y = b[i];                                                                                        \
            a[i] = (element)(EXPRESSION);                                                                                      \
        }                                                                                                                      \
    }
#define INTEGERS(dtype, type, unsigned_type)                                                                                   \
    BLOCK(sum_##dtype, unsigned_type, x + y)                                                                                   \
    BLOCK(product_##dtype, unsigned_type, (uint64_t)x *y)                                                                      \
    BLOCK(min_##dtype, type, x < y ? x : y)                                                                                    \
    BLOCK(max_##dtype, type, x > y ? x : y)
#define BITS(bits)                                                                                                             \
    BLOCK(and_##bits, uint##bits##_t, x &y)                                                                                    \
    BLOCK(or_##bits, uint##bits##_t, x | y)                                                                                    \
    BLOCK(xor_##bits, uint##bits##_t, x ^ y)
#define FLOATS(dtype, type)                                                                                                    \
    BLOCK(sum_##dtype, type, x + y)                                                                                            \
    BLOCK(product_##dtype, type, x *y)                                                                                         \
    BLOCK(min_##dtype, type, x < y || x != x || (x == y && __builtin_signbit(x)) ? x : y)                                      \
    BLOCK(max_##dtype, type, x > y || x != x || (x == y && !__builtin_signbit(x)) ? x : y)

INTEGERS(u8, uint8_t, uint8_t)
INTEGERS(i8, int8_t, uint8_t)
INTEGERS(i32, int32_t, uint32_t)
INTEGERS(i64, int64_t, uint64_t)
BITS(8)
BITS(32)
BITS(64)
FLOATS(f32, float)
FLOATS(f64, double)

#define ROW(dtype)                                                                                                             \
    [FCC_SUM] = sum_##dtype, [FCC_AVERAGE] = sum_##dtype, [FCC_PRODUCT] = product_##dtype, [FCC_MIN] = min_##dtype,            \
    [FCC_MAX] = max_##dtype
#define BIT_ROW(bits) [FCC_AND] = and_##bits, [FCC_OR] = or_##bits, [FCC_XOR] = xor_##bits
static combine_block *const blocks[][FCC_XOR + 1] = {
    [FCC_U8] = {ROW(u8), BIT_ROW(8)},    [FCC_I8] = {ROW(i8), BIT_ROW(8)}, [FCC_I32] = {ROW(i32), BIT_ROW(32)},
    [FCC_I64] = {ROW(i64), BIT_ROW(64)}, [FCC_F32] = {ROW(f32)},           [FCC_F64] = {ROW(f64)},
};

void combine_convert(void *dst, enum fcc_dtype to, const void *src, enum fcc_dtype from, size_t n)
{
    if (to == from)
        memcpy(dst, src, n * dtype_size(to));
    else if (to == FCC_F32)
        dtype_to_f32(dst, src, from, n);
    else
        dtype_from_f32(dst, src, to, n);
}

/* Whether out can take what has been combined so far, while terms behind the second are still to be read: it is none of these. The first two are read
 * element by element before the same element is stored, so out may be one of them. */
static bool can_gather(const unsigned char *out, const unsigned char *const terms[], int nterms, size_t bytes)
{
    for (int t = 0; t < nterms; t++) {
        const uintptr_t apart = out < terms[t] ? (uintptr_t)terms[t] - (uintptr_t)out : (uintptr_t)out - (uintptr_t)terms[t];
        if (apart < bytes && (apart || t > 1 || nterms == 1))
            return false;
    }
    return true;
}

void combine(enum fcc_reduction reduction, enum fcc_dtype from, enum fcc_dtype sum, const unsigned char *const terms[],
             int nterms, size_t n, void *out)
{
    _Alignas(64) unsigned char block[COMBINE_BLOCK_BYTES], term[COMBINE_BLOCK_BYTES];
    combine_block *add = blocks[sum][reduction];
    size_t bytes = n * dtype_size(sum);
    bool whole = n == COMBINE_BLOCK;
    /* less than a block is padded: out has no room */
    void *total = whole && (sum != from || can_gather(out, terms, nterms, bytes)) ? out : block;

    assert(add && n > 0 && n <= COMBINE_BLOCK);
    if (!whole) {
        memset(block, 0, sizeof(block));
        memset(term, 0, sizeof(term));
    }
    if (whole && sum == from && nterms > 1) {
        add(total, terms[0], terms[1]);
        for (int t = 2; t < nterms; t++)
            add(total, total, terms[t]);
    } else {
        combine_convert(total, sum, terms[0], from, n);
        for (int t = 1; t < nterms; t++) {
            combine_convert(term, sum, terms[t], from, n);
            add(total, total, term);
        }
    }
    if (total != out)
        memcpy(out, block, bytes);
}

void combine_divide(enum fcc_dtype sum, int nranks, size_t n, void *out)
{
    float *f = out;
    double *d = out;

    for (size_t i = 0; i < n; i++) {
        if (sum == FCC_F32)
            f[i] /= (float)nranks;
        else
            d[i] /= nranks;
    }
}
