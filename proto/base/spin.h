/* SPDX-License-Identifier: MIT
 *
 * spin.h - looking for something for a short while without sleeping, on machines with fewer cores than processes too.
 *
 * The first turns only pause the core; after that each turn offers the core to whoever is ready to run, because what is
 * looked for may need this very core to come about. Where that was so the last time (the offer was taken, which shows in the
 * time that it took), there are few turns before it: who is to bring what is looked for has been kept waiting by all of them.
 * And there are not many offers that are taken, one after the other: what they have not brought is not near, and who sleeps leaves the
 * core to those who have something to do.
 *
 * Somebody who keeps the core for long when it is offered computes, and an offer costs as much as the kernel lets him: milliseconds. Who
 * sleeps instead is put before him when he is woken, at once if he has asked for short turns (timeslice.h). So then there are no
 * more offers for a while. Two ranks that share a gemv of 256 x 256 beside 4 processes that compute, on two cores: 0.4 ms an operator
 * for 8.
 */
#ifndef FCC_PROTO_BASE_SPIN_H
#define FCC_PROTO_BASE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SPIN_PAUSES 32       /* turns that keep the core: about a microsecond */
#define SPIN_PAUSES_SHARED 4 /* ... where somebody else took it */
#define SPIN_TAKEN 16        /* offers that somebody took, at most */
#define SPIN_OFFER_NS 1000   /* an offer that nobody takes is a system call, 0.1 to 0.7 us; two switches are 2 and more */
#define SPIN_LONG_NS 500000  /* who keeps the core for longer computes */
#define SPIN_SKIPPED 256     /* ... and for as many times it is not offered */

struct spin {
    unsigned turns;
    unsigned taken;    /* offers of the core */
    unsigned skip;     /* so many times the core is not to be offered */
    bool shared;       /* the last offer of the core was taken */
    uint64_t until_ns; /* 0: not set yet */
};

static inline void spin_reset(struct spin *s)
{
    s->turns = 0;
    s->taken = 0;
    s->until_ns = 0;
}

/* Turns were made, but none yet that offers the core. */
static inline bool spin_keeps_core(const struct spin *s)
{
    return s->turns && s->turns < (s->shared ? SPIN_PAUSES_SHARED : SPIN_PAUSES);
}

/* The core has been offered since the first turn. */
static inline bool spin_has_offered(const struct spin *s)
{
    return s->turns >= SPIN_PAUSES;
}

static inline uint64_t spin_clock_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One turn. False when limit_us have passed since the first one, or others need the core: sleep now. */
static inline bool spin_once(struct spin *s, uint32_t limit_us)
{
    if (s->turns < (s->shared ? SPIN_PAUSES_SHARED : SPIN_PAUSES)) {
        s->turns++;
        spin_pause();
        return limit_us > 0;
    }
    if (s->skip) {
        s->skip--;
        return false;
    }
    uint64_t now = spin_clock_ns();
    if (!s->until_ns)
        s->until_ns = now + (uint64_t)limit_us * 1000u;
    if (now >= s->until_ns || s->taken >= SPIN_TAKEN)
        return false;
    (void)sched_yield();
    uint64_t away = spin_clock_ns() - now;
    s->shared = away > SPIN_OFFER_NS;
    s->taken += s->shared;
    s->turns = SPIN_PAUSES;
    if (away > SPIN_LONG_NS)
        s->skip = SPIN_SKIPPED;
    return true;
}

#endif
