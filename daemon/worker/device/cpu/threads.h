/* SPDX-License-Identifier: MIT
 *
 * threads.h - a cpu device: device.c opens it and owns its memory, execute.c is its threads.
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
    struct cpu_jobs *jobs; /* execute.c: the parts that the thread has begun */
    uint32_t vain;         /* inline: number of looks that found no slice ready */
};

/* Threads that share the slices of one part of an inline launch, at most. */
#define CPU_SHARES 4

struct cpu_device {
    pthread_mutex_t lock; /* queue, stop */
    pthread_cond_t more;
    TAILQ_HEAD(part_head, launch_part) queue;
    _Atomic uint64_t submitted; /* number of parts queued so far */
    bool stop;
    _Atomic uint32_t signals; /* futex: incremented when a flag is raised for this device while threads sleep */
    _Atomic uint32_t sleepers;
    struct cpu_thread steps;               /* the engine, which runs launches in steps */
    _Atomic uint32_t stepping;             /* the number of its jobs */
    struct cpu_thread inline_[CPU_SHARES]; /* the state of each share of an inline launch, which the engine or a helper runs */
    unsigned nthreads;
    struct cpu_thread threads[];
};

/* The main function of a device's thread; `jobs` is set. Returns when the device is closed. */
void *cpu_thread_main(void *thread);
struct cpu_jobs *cpu_jobs_new(int room); /* to be free()d; NULL: no memory */
#define CPU_JOBS_MAX 64                  /* parts that a thread runs at a time, at most */
#define CPU_STEPS_MAX 8                  /* and the engine */
/* The engine: begin a launch's parts in steps. False, and nothing is begun, if it runs too many already. */
bool cpu_steps_begin(struct launch *l);
/* Any thread: wake the threads that sleep on the device. */
void cpu_device_signal(struct device *d);
/* Run a launch (l->inline_) until it has finished or failed; l->shares is set. helpers may be NULL. rouse: see helpers_run(). */
void cpu_inline_execute(struct launch *l, struct helpers *helpers, bool rouse);

/* ---- slices ---- */

/* A slice is done: count down its group, and raise the group's flag if it was the last. alone: no other thread counts down groups of the run
 * meanwhile. */
void cpu_slice_signal(struct launch *l, struct launch_run *r, const struct slice *s, bool alone);
/* Note the times of slices that were executed together: the time is divided among them by their sizes, one after the other. */
void cpu_times_note(const struct slice s[], struct slice_time t[], uint32_t count, unsigned wg_index, uint64_t start_ns,
                    uint64_t end_ns);

/* ---- early.c ---- */

#define CPU_EARLY_SLICES 64 /* slices of a run that can be run early: the bits of launch_run.early */

#endif
