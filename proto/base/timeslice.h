/* SPDX-License-Identifier: MIT
 *
 * timeslice.h - a short time slice for a thread that needs a core for microseconds at a time.
 *
 * A thread under Linux's fair scheduler that is woken on a core where another thread computes may have to wait for the end of
 * that thread's slice: 3 or 4 ms. A woken thread with a shorter slice (Linux 6.12) preempts it at once; its share of the core
 * stays the same. See sched_setattr(2), and Documentation/scheduler/sched-eevdf.rst of the kernel.
 */
#ifndef FCC_PROTO_BASE_TIMESLICE_H
#define FCC_PROTO_BASE_TIMESLICE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TIMESLICE_NS 100000 /* the shortest slice that Linux allows */

/* The first version of the kernel's struct sched_attr (sched_setattr(2)). */
struct timeslice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Gives the calling thread, and threads that it starts later, the shortest slice. Returns false if that is not possible: an
 * older kernel, or a thread under another scheduler. */
static inline bool timeslice_shorten(void)
{
    struct timeslice_attr a;

    if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) || (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH) || !a.runtime)
        return false;
    if (a.runtime <= TIMESLICE_NS)
        return true;
    a.runtime = TIMESLICE_NS;
    return syscall(SYS_sched_setattr, 0, &a, 0) == 0;
}

#endif
