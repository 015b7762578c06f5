/* SPDX-License-Identifier: MIT
 *
 * spin.h - looking for something for a short while without sleeping, on machines with fewer cores than processes too.
 *
 * The first turns only pause the core; after that each turn offers the core to whoever is ready to run, because what is
 * looked for may need this very core to come about.
 */
#ifndef FCC_SPIN_H
#define FCC_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SPIN_PAUSES 32 /* turns that keep the core: about a microsecond */

struct spin {
    unsigned turns;
    uint64_t until_ns; /* 0: not set yet */
};

static inline void spin_reset(struct spin *s)
{
    s->turns = 0;
    s->until_ns = 0;
}

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One turn. False when limit_us have passed since the first one: sleep now. */
static inline bool spin_once(struct spin *s, uint32_t limit_us)
{
    struct timespec t;

    if (s->turns < SPIN_PAUSES) {
        s->turns++;
        spin_pause();
        return limit_us > 0;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (!s->until_ns)
        s->until_ns = now + (uint64_t)limit_us * 1000u;
    if (now >= s->until_ns)
        return false;
    (void)sched_yield();
    return true;
}

#endif
