/* SPDX-License-Identifier: MIT
 *
 * threads.h - a cpu device's parts: device.c makes it and holds its memory, execute.c is its threads.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_CPU_THREADS_H
#define FCC_DAEMON_WORKER_DEVICE_CPU_THREADS_H

#include <pthread.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/helpers.h"
#include "daemon/worker/device/launch.h"

struct cpu_thread {
    struct device *device;
    unsigned index;
    pthread_t thread;
    struct workgroup workgroup;
    struct cpu_jobs *jobs; /* execute.c's: the parts that it has begun */
    uint32_t vain;         /* inline: looks that found nothing ready */
};

/* Threads that share a part of an inline launch, at most: its slices, in turns. */
#define CPU_SHARES 4

struct cpu_device {
    pthread_mutex_t lock; /* queue, stop */
    pthread_cond_t more;
    TAILQ_HEAD(part_head, launch_part) queue;
    _Atomic uint64_t submitted; /* parts ever queued */
    bool stop;
    _Atomic uint32_t signals; /* futex: moved when a flag was raised for this device and somebody sleeps */
    _Atomic uint32_t sleepers;
    struct cpu_thread inline_[CPU_SHARES]; /* no threads: what these shares are run with, by the engine or by helpers */
    unsigned nthreads;
    struct cpu_thread threads[];
};

/* A thread of the device: until the device is closed. `jobs` is set. */
void *cpu_thread_main(void *thread);
struct cpu_jobs *cpu_jobs_new(int room); /* to be free()d; NULL: no memory */
#define CPU_JOBS_MAX 64                  /* parts that a thread has begun; more than that wait for one of them to end */
/* Whoever sleeps on the device is to look again. Any thread. */
void cpu_device_signal(struct device *d);
/* Run a launch (l->inline_) until it is finished or has failed; l->shares is set. helpers: NULL, nobody helps; rouse: helpers.h. */
void cpu_inline_execute(struct launch *l, struct helpers *helpers, bool rouse);

/* ---- slices ---- */

/* A slice is done: count down its group, and raise the group's flag if it was the last. alone: nobody else counts in the run's groups
 * meanwhile. */
void cpu_slice_signal(struct launch *l, struct launch_run *r, const struct slice *s, bool alone);
/* Slices that were executed together share the time by their sizes, one after the other, so that all of them is what it took. */
void cpu_times_note(const struct slice s[], struct slice_time t[], uint32_t count, unsigned wg_index, uint64_t start_ns,
                    uint64_t end_ns);

/* ---- early.c ---- */

#define CPU_EARLY_SLICES 64 /* of a run; launch_run.early has a bit for each */

#endif
