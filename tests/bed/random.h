/* SPDX-License-Identifier: MIT
 *
 * random.h - random cases: splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), and a
 * check that says which case failed. Include after cmocka.h.
 */
#ifndef FCC_TEST_RANDOM_H
#define FCC_TEST_RANDOM_H

#include <stdint.h>

static uint64_t random_state;
static __attribute__((unused)) char case_text[256];

#define EXPECT(condition)                                                                                                      \
    do {                                                                                                                       \
        if (!(condition))                                                                                                      \
            fail_msg("%s: %s", case_text, #condition);                                                                         \
    } while (0)

static uint32_t random_u32(void)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static int64_t random_below(int64_t n)
{
    return n <= 1 ? 0 : (int64_t)(random_u32() % (uint64_t)n);
}

/* 0 .. most, 0 more often than by chance. */
static inline int64_t random_size(int64_t most)
{
    return random_below(5) == 0 ? 0 : random_below(most + 1);
}

#endif
