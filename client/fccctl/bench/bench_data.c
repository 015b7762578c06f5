/* SPDX-License-Identifier: MIT
 *
 * bench_data.c - reproducible pseudo-random inputs. Values have few enough bits to be exact in their dtype, so the reference
 * has exactly the operators' inputs.
 */
#include <math.h>
#include <string.h>

#include "client/fccctl/bench/bench.h"

/* splitmix64's mixing function. It maps a counter, so any process can compute elements in any order. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t stream_key(enum bench_tensor tensor, int rank)
{
    return mix((uint64_t)tensor << 32 | (uint64_t)rank);
}

/* Bits of a significand: f32 24, f16 11, bf16 8. */
static int significand_bits(enum fcc_dtype dtype)
{
    return dtype == FCC_F16 ? 11 : dtype == FCC_BF16 ? 8 : 24;
}

static inline float value_at(uint64_t key, uint64_t index, int bits)
{
    int64_t half = INT64_C(1) << (bits - 1);
    return (float)((int64_t)(mix(key + index) >> (64 - bits)) - half) / (float)half;
}

double data_value(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t index)
{
    return value_at(stream_key(tensor, rank), index, significand_bits(shape->dtype));
}

void data_floats(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, float *out)
{
    uint64_t key = stream_key(tensor, rank);
    int bits = significand_bits(shape->dtype);

    for (uint64_t i = 0; i < count; i++)
        out[i] = value_at(key, first + i, bits);
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* The f16 of a value that data_value() made for f16: 0, or a normal and exact number. */
static uint16_t exact_f16(float value)
{
    uint32_t bits = float_bits(value);

    if (value == 0)
        return 0;
    return (uint16_t)((bits >> 16 & 0x8000u) | (((bits >> 23 & 0xffu) - 112u) << 10) | (bits >> 13 & 0x3ffu));
}

void data_fill(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, void *out)
{
    uint64_t key = stream_key(tensor, rank);
    int bits = significand_bits(shape->dtype);

    if (shape->dtype == FCC_F32) {
        data_floats(shape, tensor, rank, first, count, out);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        float value = value_at(key, first + i, bits);
        ((uint16_t *)out)[i] = shape->dtype == FCC_F16 ? exact_f16(value) : (uint16_t)(float_bits(value) >> 16);
    }
}

int64_t data_id(const struct shape *shape, int rank, uint64_t index)
{
    double u = (double)(mix(stream_key(BENCH_IDS, rank) + index) >> 11) * 0x1p-53, rows = (double)shape->rows, x;
    int64_t id;

    if (shape->zipf <= 0)
        return (int64_t)(u * rows);
    /* The inverse of the cumulative density x^-s on [1, rows + 1): Zipf's law with the steps smoothed. */
    if (fabs(shape->zipf - 1) < 1e-9)
        x = pow(rows + 1, u);
    else
        x = pow(1 + u * (pow(rows + 1, 1 - shape->zipf) - 1), 1 / (1 - shape->zipf));
    id = (int64_t)x - 1;
    id = id < 0 ? 0 : id >= shape->rows ? shape->rows - 1 : id;
    return (int64_t)((uint64_t)id * 2654435761u % (uint64_t)shape->rows); /* a prime: frequent ids are not neighbours */
}

static double read_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f;
    double significand = bits & 0x3ff, value;

    if (exponent == 0x1f)
        value = significand != 0 ? (double)NAN : (double)INFINITY;
    else
        value = exponent ? ldexp(significand + 1024, exponent - 25) : ldexp(significand, -24);
    return bits & 0x8000 ? -value : value;
}

double data_read(enum fcc_dtype dtype, const void *data, uint64_t index)
{
    uint32_t bits;
    float value;

    if (dtype == FCC_F32)
        return ((const float *)data)[index];
    if (dtype == FCC_F16)
        return read_f16(((const uint16_t *)data)[index]);
    bits = (uint32_t)((const uint16_t *)data)[index] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
