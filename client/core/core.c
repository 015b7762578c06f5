/* SPDX-License-Identifier: MIT
 *
 * core.c - a thread that waits for operators goes away from the core on which the worker's engine runs.
 *
 * Where there are fewer cores than threads that spin, somebody shares a core. If that is one client with the engine, and another
 * client has a core to itself, then the engine, which all wait for, is the one that is held up, by two switches with each
 * operator; and the kernel sees nothing wrong, since the cores have as many threads as they would have after any move. So who finds
 * himself on the engine's core again and again moves, and then the clients share cores with each other.
 *
 * A thread moves by forbidding itself that core and allowing it again at once: where it runs from then on is up to the kernel, as
 * before.
 */
#include <sched.h>

#include "client/core/wait.h"

#define LEAVE_AFTER 64u              /* waits in which the engine's core was this thread's */
#define LEAVE_AFTER_MOST (1u << 20u) /* twice as many after each time, as moving did not last */

static _Thread_local unsigned met, leave_after = LEAVE_AFTER;

bool core_leave(unsigned core)
{
    cpu_set_t allowed, others;

    if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed))
        return false;
    others = allowed;
    CPU_CLR(core, &others);
    if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof(others), &others))
        return false;
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
    return true;
}

void core_share(const struct spin *s, uint32_t engine_core)
{
    if (!engine_core || engine_core != (uint32_t)sched_getcpu() + 1) {
        met = 0;
        return;
    }
    met += s->taken > 0;
    if (met < leave_after)
        return;
    met = 0;
    if (leave_after < LEAVE_AFTER_MOST)
        leave_after *= 2;
    (void)core_leave(engine_core - 1);
}
