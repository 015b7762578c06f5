/* SPDX-License-Identifier: MIT */
#ifndef FCC_PROTO_BASE_CLOCK_H
#define FCC_PROTO_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in ns. */
static inline uint64_t clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC in ms. */
static inline int64_t clock_ms(void)
{
    return (int64_t)(clock_ns() / 1000000u);
}

#endif
