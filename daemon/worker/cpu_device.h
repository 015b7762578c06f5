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

struct cpu_device {
    pthread_mutex_t lock; /* queue, stop */
    pthread_cond_t more;
    TAILQ_HEAD(part_head, launch_part) queue;
    _Atomic uint64_t submitted; /* parts ever queued */
    bool stop;
    _Atomic uint32_t signals; /* futex: moved when a flag was raised for this device and somebody sleeps */
    _Atomic uint32_t sleepers;
    struct cpu_thread engine; /* no thread: what a part of an inline launch is run with, by the engine or by a helper */
    unsigned nthreads;
    struct cpu_thread threads[];
};

/* A thread of the device: until the device is closed. `jobs` is set. */
void *cpu_thread_main(void *thread);
struct cpu_jobs *cpu_jobs_new(void); /* to be free()d; NULL: no memory */
/* Whoever sleeps on the device is to look again. Any thread. */
void cpu_device_signal(struct device *d);
/* Run a launch (l->inline_) until it is finished or has failed. helpers: NULL, nobody helps; rouse: helpers.h. */
void cpu_inline_execute(struct launch *l, struct helpers *helpers, bool rouse);

#endif
