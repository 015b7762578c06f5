/* SPDX-License-Identifier: MIT
 *
 * timeslice.h - short turns on a core, for a thread that needs it for microseconds at a time.
 *
 * A thread of Linux's fair scheduler that is woken where somebody computes may have to wait until that one's slice is over: 3 or 4 ms.
 * Whose own slice is shorter (Linux 6.12) runs at once, and gets no more of the core than before. sched_setattr(2);
 * Documentation/scheduler/sched-eevdf.rst in the kernel.
 */
#ifndef FCC_PROTO_BASE_TIMESLICE_H
#define FCC_PROTO_BASE_TIMESLICE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TIMESLICE_NS 100000 /* the shortest that there is */

/* The kernel's struct sched_attr, as far as its first version goes (sched_setattr(2)). */
struct timeslice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* From now on the calling thread, and those that it starts, have the shortest slice. False where that is not to be had: an older kernel, a
 * thread that is not of the fair scheduler. */
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
