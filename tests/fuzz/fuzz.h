/* SPDX-License-Identifier: MIT
 *
 * fuzz.h - what every fuzz target stands on. A target is a function of some bytes: they are its choices, taken from the front; when there
 * are none left every choice is the first one. So an input that is cut or changed anywhere is an input, too.
 */
#ifndef FCC_FUZZ_H
#define FCC_FUZZ_H

#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The engine calls this for every input (libFuzzer's interface); the return value is always 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must be true is not: say so, and end as a crash does, so that the engine keeps the input. */
static inline void fuzz_failed(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
static inline void fuzz_failed(const char *file, int line, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    (void)fprintf(stderr, "%s:%d: ", file, line);
    (void)vfprintf(stderr, format, ap);
    (void)fputc('\n', stderr);
    va_end(ap);
    abort();
}
#define FUZZ_CHECK(condition)                                                                                                  \
    do {                                                                                                                       \
        if (!(condition))                                                                                                      \
            fuzz_failed(__FILE__, __LINE__, "%s", #condition);                                                                 \
    } while (0)

struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t input_bits(struct input *in, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes && in->left; i++, in->at++, in->left--)
        value |= (uint64_t)*in->at << 8 * i;
    return value;
}

static inline uint8_t input_u8(struct input *in)
{
    return (uint8_t)input_bits(in, 1);
}

/* 0 .. n - 1, from as few bytes as that takes. */
static inline uint32_t input_below(struct input *in, uint32_t n)
{
    return n <= 1 ? 0 : (uint32_t)(input_bits(in, n <= 0x100 ? 1 : n <= 0x10000 ? 2 : 4) % n);
}

/* True about once in n times. */
static inline bool input_rarely(struct input *in, uint32_t n)
{
    return input_below(in, n) == n - 1;
}

/* Any number: mostly a small one, sometimes one at a border, sometimes all of its 64 bits. */
static inline int64_t input_number(struct input *in)
{
    static const int64_t borders[] = {-1,
                                      -2,
                                      63,
                                      64,
                                      65,
                                      127,
                                      128,
                                      255,
                                      256,
                                      1023,
                                      1024,
                                      4096,
                                      65535,
                                      65536,
                                      1 << 20,
                                      INT32_MAX,
                                      INT32_MIN,
                                      UINT32_MAX,
                                      INT64_MAX,
                                      INT64_MIN,
                                      (int64_t)1 << 32,
                                      INT32_MAX - 1,
                                      (int64_t)1 << 40,
                                      (int64_t)1 << 62,
                                      INT64_MAX / 4};
    uint8_t kind = input_u8(in);

    if (kind < 192)
        return kind % 48;
    if (kind < 192 + sizeof(borders) / sizeof(borders[0]))
        return borders[kind - 192];
    return kind < 250 ? (int64_t)input_bits(in, 2) : (int64_t)input_bits(in, 8);
}

/* How many file descriptors this process has, and always three more: the folder's own two entries, and the descriptor that it is read by. */
static inline int descriptors_count(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    FUZZ_CHECK(d != NULL);
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

#endif
