/* SPDX-License-Identifier: MIT
 *
 * random_input.h - in place of tests/bed/random.h: the random cases of the tests, but the input makes the choices. When it is at its end they
 * go on from a seed. Include before what includes random.h, and after cmocka.h.
 */
#ifndef FCC_FUZZ_RANDOM_INPUT_H
#define FCC_FUZZ_RANDOM_INPUT_H

#define FCC_TEST_RANDOM_H /* random.h has nothing to say then */

#include "tests/fuzz/fuzz.h"

static struct input choices;
static uint64_t random_state;
static char case_text[256];

#undef fail_msg
#define fail_msg(...) fuzz_failed(__FILE__, __LINE__, __VA_ARGS__)
#undef assert_true
#define assert_true(condition) FUZZ_CHECK(condition)
#undef assert_non_null
#define assert_non_null(pointer) FUZZ_CHECK((pointer) != NULL)
#undef assert_int_equal
#define assert_int_equal(a, b) FUZZ_CHECK((a) == (b))
#define EXPECT(condition)                                                                                                      \
    do {                                                                                                                       \
        if (!(condition))                                                                                                      \
            fail_msg("%s: %s", case_text, #condition);                                                                         \
    } while (0)

static inline uint32_t random_bytes(size_t n)
{
    if (choices.left >= n)
        return (uint32_t)input_bits(&choices, n);
    random_state += 0x9e3779b97f4a7c15u; /* as in random.h */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static inline uint32_t random_u32(void)
{
    return random_bytes(4);
}

static inline int64_t random_below(int64_t n)
{
    return n <= 1 ? 0 : (int64_t)(random_bytes(n <= 0x100 ? 1 : n <= 0x10000 ? 2 : 4) % (uint64_t)n);
}

static inline int64_t random_size(int64_t most)
{
    return random_below(5) == 0 ? 0 : random_below(most + 1);
}

static inline void random_begin(const uint8_t *data, size_t size)
{
    choices = (struct input){.at = data, .left = size};
    random_state = size;
    for (size_t i = 0; i < size; i++)
        random_state = random_state * 31 + data[i];
}

#endif
