/* SPDX-License-Identifier: MIT
 *
 * wait.c - the clock, and how a thread spins before it sleeps. All waits for the worker spin by spin_more(), so spinning is
 * tuned here only.
 *
 * An operator may take a few microseconds, and waking a thread takes longer, so it pays to spin. But with fewer cores than
 * ranks and workers, a spinning thread may keep the thread it waits for from running. So a thread first pauses a few times,
 * then yields the core between checks for as long as the worker allows, then sleeps. A yield that takes long shows that another
 * thread ran. Then the core is shared: pauses would cost that thread, so there are fewer, and after some such yields the thread
 * sleeps, too. If another thread kept the core for long, this one asks the kernel for short time slices, and sleeps at once for
 * a while (spin.h says why).
 */
#include <sched.h>

#include "client/core/wait.h"
#include "proto/base/clock.h"
#include "proto/base/timeslice.h"
#include "proto/session.h"

#define SPIN_PAUSES 48                /* pauses before the first yield: about a microsecond */
#define SPIN_PAUSES_SHARED 4          /* pauses before a yield where the core is shared */
#define SPIN_TAKEN 16                 /* the most yields that let another thread run */
#define SPIN_YIELD_NS 1000            /* a yield to nobody is a system call: 0.1 to 0.7 us; two switches are 2 and more */
#define SPIN_BUSY_NS 6000             /* a thread that kept the core for less than this was spinning, too */
#define SPIN_KEEP_NS 8000             /* after such a yield, time until the next one */
#define SPIN_LONG_NS 500000           /* a thread that kept the core for longer is computing */
#define SPIN_SKIPPED 256              /* number of waits without yields after that, including the rest of this one */
#define PATIENCE_STEP_NS 1000000000LL /* the most that one check subtracts from a patience */
#define SPIN_LONGEST_NS                                                                                                        \
    (20LL * 1000000) /* the longest spin, whatever the worker allows: no thread reads the socket meanwhile */

static _Thread_local bool core_is_shared;     /* the calling thread's last yield let another thread run */
static _Thread_local bool timeslice_is_asked; /* it has asked for a shorter time slice, with or without success */
static _Thread_local unsigned waits_to_skip;  /* number of its next waits that do without yields */

int64_t now_ns(void)
{
    return (int64_t)clock_ns();
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
    if (back - now > SPIN_LONG_NS) { /* another thread computes on this core */
        waits_to_skip = SPIN_SKIPPED;
        if (!timeslice_is_asked)
            (void)timeslice_shorten();
        timeslice_is_asked = true;
    }
    s->pauses = SPIN_PAUSES;
    s->keep_until = core_is_shared && back - now < SPIN_BUSY_NS ? back + SPIN_KEEP_NS : 0;
    return true;
}

/* ---- the worker's core ----
 *
 * A thread that waits for operators leaves the core on which the worker's engine thread runs.
 *
 * With fewer cores than spinning threads, some threads share a core. If a client shares the engine's core while another client
 * has a core to itself, every operator costs the engine, which all clients wait for, two context switches. The kernel's load
 * balancer sees nothing wrong, since any move leaves as many threads on each core. So a client thread that repeatedly finds
 * itself on the engine's core moves, and then clients share cores with each other.
 *
 * A thread moves by removing that core from its affinity mask and adding it again at once. From then on the kernel places it as
 * before.
 *
 * Where several workers share the cores, as two nodes' on one machine, each has one rank or few, and its engine sends and receives
 * for them. There a client sleeps while its operator runs, and goes to its own engine's core (FCC_ENGINE_CORE_STAY): elsewhere it
 * would take the core from another worker's engine. It neither spins nor yields before: under Linux 6.18 who yields gives up the rest of its
 * slice, and a client's is 1.4 ms (on two cores) to its engine's 0.1, which then yielded fifteen times before the client ran again.
 */

#define LEAVE_AFTER 64u /* waits on the engine's core before the thread moves */
#define STAY_AFTER 8u   /* a thread that sleeps while it waits moves to the engine's core after so many times fewer */
#define LEAVE_AFTER_MOST (1u << 20u) /* the most: the number doubles with each move, because the move before did not last */

static _Thread_local unsigned met, leave_after = LEAVE_AFTER;

/* Moves the calling thread away from the core, or there. */
static bool core_move(unsigned core, bool there)
{
    cpu_set_t allowed, others;

    if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) || (there && !CPU_ISSET(core, &allowed)))
        return false;
    others = allowed;
    if (there)
        CPU_ZERO(&others);
    if (there)
        CPU_SET(core, &others);
    else
        CPU_CLR(core, &others);
    if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof(others), &others))
        return false;
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
    return true;
}

bool core_leave(unsigned core)
{
    return core_move(core, false);
}

void core_share(const struct spin *s, uint32_t engine_core)
{
    uint32_t core = engine_core & ~FCC_ENGINE_CORE_STAY;
    bool stay = engine_core & FCC_ENGINE_CORE_STAY, is_there = core == (uint32_t)sched_getcpu() + 1;

    if (!core || is_there == stay) {
        met = 0;
        return;
    }
    met += stay || s->taken > 0;
    if (met < (stay ? leave_after / STAY_AFTER : leave_after))
        return;
    met = 0;
    if (leave_after < LEAVE_AFTER_MOST)
        leave_after *= 2;
    (void)core_move(core - 1, stay);
}
