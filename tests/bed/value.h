/* SPDX-License-Identifier: MIT
 *
 * value.h - test data that all dtypes hold exactly: what the elements of a tensor are, and how they are stored.
 */
#ifndef FCC_TEST_VALUE_H
#define FCC_TEST_VALUE_H

#include "proto/fccclient.h"
#include <stdint.h>
#include <string.h>

/* Element i of a tensor: a multiple of 1/8 from -2 to 2, which all dtypes have. Drawn by a multiplicative hash. */
static inline double value(unsigned seed, int64_t i)
{
    uint64_t x = ((uint64_t)seed << 32) + (uint64_t)i + 1;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return (double)(int)(x >> 40 & 31) / 8 - 2;
}

/* data[i] = v, in f32, f16 or bf16. */
static inline void value_store(enum fcc_dtype dtype, void *data, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (dtype == FCC_F32) {
        memcpy((char *)data + 4 * i, &f, 4);
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16); /* bf16: exact, as the low bits are 0 */
    if (dtype == FCC_F16)                   /* rebias the exponent; the values are normal numbers or 0 */
        half = (uint16_t)((bits >> 16 & 0x8000) | (v == 0 ? 0 : (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff)));
    memcpy((char *)data + 2 * i, &half, 2);
}

#endif
