/* SPDX-License-Identifier: MIT
 *
 * core.c - a thread that waits for operators leaves the core on which the worker's engine thread runs.
 *
 * With fewer cores than spinning threads, some threads share a core. If a client shares the engine's core while another client
 * has a core to itself, every operator costs the engine, which all clients wait for, two context switches. The kernel's load
 * balancer sees nothing wrong, since any move leaves as many threads on each core. So a client thread that repeatedly finds
 * itself on the engine's core moves, and then clients share cores with each other.
 *
 * A thread moves by removing that core from its affinity mask and adding it again at once. From then on the kernel places it as
 * before.
 */
#include <sched.h>

#include "client/core/wait.h"

#define LEAVE_AFTER 64u              /* waits on the engine's core before the thread moves */
#define LEAVE_AFTER_MOST (1u << 20u) /* the most: the number doubles with each move, because the move before did not last */

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
