/* SPDX-License-Identifier: MIT
 *
 * cpu_device.h - a cpu device's parts: device_cpu.c makes it and holds its memory, cpu_execute.c is its threads.
 */
#ifndef FCCD_CPU_DEVICE_H
#define FCCD_CPU_DEVICE_H

#include <pthread.h>

#include "device.h"
#include "helpers.h"

struct cpu_thread {
    struct device *device;
    unsigned index;
    pthread_t thread;
    struct workgroup workgroup;
    struct cpu_jobs *jobs; /* cpu_execute.c's: the parts that it has begun */
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

#endif
