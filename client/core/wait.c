/* SPDX-License-Identifier: MIT
 *
 * wait.c - the clock, and how a thread spins before it sleeps. Whoever waits for the worker spins by spin_more(), so this is
 * the one place to tune it.
 *
 * An operator may take a few microseconds, waking a thread takes longer; so it pays to spin. But there may be fewer
 * cores than ranks and workers, and then who spins keeps from running what he waits for. So: a few pauses, which cost nobody
 * anything, then yield the core between looks, for as long as the worker allows, then sleep. Where somebody took the core the
 * last time, which shows in the time that it took, the pauses cost just him: then there are few; and after some such yields it sleeps,
 * too. Where somebody kept it for long, it asks the kernel for short turns, and sleeps at once for a while (spin.h says why).
 */
#include <sched.h>
#include <time.h>

#include "client/core/wait.h"
#include "proto/base/timeslice.h"

#define SPIN_PAUSES 48                /* looks before the first yield: about a microsecond */
#define SPIN_PAUSES_SHARED 4          /* ... where the core is shared */
#define SPIN_TAKEN 16                 /* yields that let somebody run, at most */
#define SPIN_YIELD_NS 1000            /* a yield to nobody is a system call: 0.1 to 0.7 us; two switches are 2 and more */
#define SPIN_BUSY_NS 6000             /* who kept the core for less than this had nothing to do there either: he spins, too */
#define SPIN_KEEP_NS 8000             /* ... then it is not offered again for so long */
#define SPIN_LONG_NS 500000           /* who kept it for longer computes */
#define SPIN_SKIPPED 256              /* ... then so many waits, the rest of this one among them, do without yields */
#define PATIENCE_STEP_NS 1000000000LL /* what one look can take from a patience */
#define SPIN_LONGEST_NS (20LL * 1000000) /* whatever the worker allows: nobody looks at the socket meanwhile */

/* Of the calling thread. */
static _Thread_local bool core_is_shared;     /* its last yield let somebody run */
static _Thread_local bool timeslice_is_asked; /* a shorter one, whether it was to be had or not */
static _Thread_local unsigned waits_to_skip;  /* that many do without yields */

int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int64_t deadline_in_ms(int64_t ms)
{
    return ms < 0 ? NEVER : now_ns() + ms * 1000000;
}

int ms_until(int64_t deadline)
{
    int64_t ns = deadline == NEVER ? WAIT_SLICE_NS : deadline - now_ns();

    if (ns <= 0)
        return 0;
    if (ns > WAIT_SLICE_NS)
        ns = WAIT_SLICE_NS;
    return (int)((ns + 999999) / 1000000);
}

void spin_begin(struct spin *s, uint32_t spin_us, int64_t deadline)
{
    int64_t ns = (int64_t)spin_us * 1000;

    s->pauses = 0;
    s->taken = 0;
    s->keep_until = 0;
    s->until = now_ns() + (ns < SPIN_LONGEST_NS ? ns : SPIN_LONGEST_NS);
    if (s->until > deadline)
        s->until = deadline;
}

int64_t patience_ms(uint32_t time_limit_ms, unsigned limits)
{
    return time_limit_ms ? (int64_t)limits * time_limit_ms + SLOW_MS : CALL_LIMIT_MS;
}

void patience_begin(struct patience *p, int64_t ms)
{
    p->left_ns = ms * 1000000;
    p->looked_ns = now_ns();
}

bool patience_has_begun(const struct patience *p)
{
    return p->looked_ns != 0;
}

bool patience_over(struct patience *p)
{
    int64_t now = now_ns(), passed = now - p->looked_ns;

    p->looked_ns = now;
    p->left_ns -= passed < PATIENCE_STEP_NS ? passed : PATIENCE_STEP_NS;
    return p->left_ns <= 0;
}

static void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* By somebody who computes. */
static void core_is_wanted(void)
{
    waits_to_skip = SPIN_SKIPPED;
    if (!timeslice_is_asked)
        (void)timeslice_shorten();
    timeslice_is_asked = true;
}

bool spin_more(struct spin *s)
{
    if (s->pauses < (core_is_shared ? SPIN_PAUSES_SHARED : SPIN_PAUSES)) {
        s->pauses++;
        spin_pause();
        return true;
    }
    if (waits_to_skip) {
        waits_to_skip--;
        return false;
    }
    int64_t now = now_ns();
    if (now < s->keep_until) {
        spin_pause();
        return true;
    }
    if (now >= s->until || s->taken >= SPIN_TAKEN)
        return false;
    (void)sched_yield();
    int64_t back = now_ns();
    core_is_shared = back - now > SPIN_YIELD_NS;
    s->taken += core_is_shared;
    if (back - now > SPIN_LONG_NS)
        core_is_wanted();
    s->pauses = SPIN_PAUSES;
    s->keep_until = core_is_shared && back - now < SPIN_BUSY_NS ? back + SPIN_KEEP_NS : 0;
    return true;
}
