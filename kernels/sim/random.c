/* SPDX-License-Identifier: MIT
 *
 * random.c - random numbers of whole numbers and the four basic operations alone, so that a seed gives the same ones everywhere: a number depends on the seed
 * and on what it is for, not on how many were asked for before.
 */
#include "kernels/sim/inside.h"

static uint64_t mixed(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* From 0 on, less than 1. */
static double uniform(uint64_t seed)
{
    return (double)(mixed(seed) >> 11) / 9007199254740992.0;
}

/* -ln(1 - u), as ln 2 times the halvings, and a series for what is left: 2 artanh((1 - y) / (1 + y)). */
static double exponential(double u)
{
    double y = 1 - u, sum = 0, power;

    while (y < 0.5) {
        y *= 2;
        sum += 0.69314718055994530942;
    }
    const double x = (1 - y) / (1 + y);
    power = x;
    for (int k = 1; k < 40; k += 2, power *= x * x)
        sum += 2 * power / k;
    return sum;
}

double random_of(const struct sim *s, uint64_t a, uint64_t b)
{
    const uint64_t seed = mixed(mixed(mixed(s->seed) ^ a) ^ b);
    double sum = 0;

    switch (s->m.stragglers.kind) {
    case SIM_EXPONENTIAL:
        return exponential(uniform(seed));
    case SIM_NORMAL: /* twelve uniform numbers; the absolute value of what is normal */
        for (uint64_t i = 0; i < 12; i++)
            sum += uniform(seed + i);
        return sum > 6 ? sum - 6 : 6 - sum;
    default:
        return 2 * uniform(seed);
    }
}
