/* SPDX-License-Identifier: MIT
 *
 * spin.h - polls for a condition for a short time before sleeping, also on machines with fewer cores than processes.
 *
 * The first iterations only pause the core. Each further one yields the core (sched_yield()), because the thread that will make
 * the condition true may need this very core. A yield that takes long was taken: another thread ran. After such a yield fewer
 * pauses come before the next one, as they only delay that thread. The number of taken yields is limited: if they have not made
 * the condition true, it is not near, and a sleeping thread leaves the core to threads that have work.
 *
 * A thread that keeps a yielded core for long is computing. Then a yield costs that thread's whole time slice: milliseconds. A
 * thread that sleeps instead preempts the computing one when it is woken, at once if its slice is short (timeslice.h). So after
 * such a yield there are no yields for a while. Two ranks with a gemv of 256 x 256 beside 4 computing processes on two cores:
 * 0.4 ms an operator, 8 ms without this.
 */
#ifndef FCC_PROTO_BASE_SPIN_H
#define FCC_PROTO_BASE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"

#define SPIN_PAUSES 32       /* pauses before a yield: about a microsecond */
#define SPIN_PAUSES_SHARED 4 /* pauses before a yield if the last yield was taken */
#define SPIN_TAKEN 16        /* the most yields that may be taken before the caller is to sleep */
#define SPIN_YIELD_NS                                                                                                          \
    1000 /* a longer yield was taken: a bare system call takes 0.1 to 0.7 us, two context switches 2 us or more */
#define SPIN_LONG_NS 500000 /* a thread that keeps the core for longer is computing */
#define SPIN_SKIPPED 256    /* yields to leave out after such a thread */

struct spin {
    unsigned turns;    /* pauses since the start or the last yield */
    unsigned taken;    /* yields that were taken */
    unsigned skip;     /* yields that are still to be left out */
    bool shared;       /* the last yield was taken */
    uint64_t until_ns; /* when to stop; 0: not set yet */
};

static inline void spin_reset(struct spin *s)
{
    s->turns = 0;
    s->taken = 0;
    s->until_ns = 0;
}

/* Has the caller paused, but not yet yielded the core? */
static inline bool spin_keeps_core(const struct spin *s)
{
    return s->turns && s->turns < (s->shared ? SPIN_PAUSES_SHARED : SPIN_PAUSES);
}

/* Has the caller paused as long as before a yield? */
static inline bool spin_has_offered(const struct spin *s)
{
    return s->turns >= SPIN_PAUSES;
}

/* The caller has spent the time of the pauses otherwise: the next iteration yields. */
static inline void spin_hurry(struct spin *s)
{
    if (s->turns)
        s->turns = SPIN_PAUSES;
}

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Yields the core, and notes whether that was taken. */
static inline void spin_yield(struct spin *s, uint64_t now_ns)
{
    (void)sched_yield();
    uint64_t away = clock_ns() - now_ns;
    s->shared = away > SPIN_YIELD_NS;
    s->taken += s->shared;
    s->turns = SPIN_PAUSES;
    if (away > SPIN_LONG_NS)
        s->skip = SPIN_SKIPPED;
}

/* The caller has woken a thread that probably runs on this core, and has itself nothing to do before that thread has: yields at once. */
static inline void spin_offer(struct spin *s)
{
    uint64_t now = clock_ns();

    if (s->skip)
        return;
    (void)sched_yield();
    if (clock_ns() - now > SPIN_LONG_NS)
        s->skip = SPIN_SKIPPED;
}

/* One iteration: a pause or a yield. Returns false if the caller is to sleep now: limit_us have passed since its first yield,
 * or other threads need the core. */
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
    uint64_t now = clock_ns();
    if (!s->until_ns)
        s->until_ns = now + (uint64_t)limit_us * 1000u;
    if (now >= s->until_ns || s->taken >= SPIN_TAKEN)
        return false;
    spin_yield(s, now);
    return true;
}

#endif
