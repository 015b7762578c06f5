/* SPDX-License-Identifier: MIT
 *
 * number.c - the short formats and the hashes from which the demonstration's inputs are made.
 */
#include <string.h>

#include "tests/demo/demo.h"

static uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

uint16_t number_bf16(float value)
{
    uint32_t bits = float_bits(value);

    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t number_f16(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 255, fraction = bits >> 13 & 1023;

    return (uint16_t)(exponent ? sign | (exponent - 127 + 15) << 10 | fraction : sign);
}

/* splitmix64's finisher. */
uint64_t hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hash_join(uint64_t a, uint64_t b)
{
    return hash_mix(a * 3 + b);
}
