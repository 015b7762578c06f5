/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_inside.h - what the files of the fake GPU plug-in offer each other.
 *
 *   fake_gpu.c          the plug-in: what it has, what it is told, and whether that is allowed
 *   fake_gpu_kernel.c   a GPU's thread, which runs what is in its queue
 */
#ifndef FAKE_GPU_INSIDE_H
#define FAKE_GPU_INSIDE_H

#include <pthread.h>

#include "fake_gpu.h"

extern struct fake_gpus *control;

/* Counts what the contract forbids. */
void wrong(bool yes, const char *what);

struct gpu_launch {
    int gpu, nruns;
    uint32_t epoch;         /* of the last call */
    struct gpu_fixed fixed; /* its plans' addresses are of copies */
    int64_t *tables[GPU_MAX_RUNS];
};

/* A launch in a GPU's queue. */
struct task {
    struct task *next;
    struct gpu_launch *launch;
    struct gpu_call call;
    uint64_t words[GPU_MAX_WORDS];
    uint32_t values[GPU_MAX_WORDS];
    int nwords;
};

struct gpu {
    int number;
    _Atomic bool open; /* true: the rest is there */
    pthread_t thread;
    pthread_mutex_t lock;      /* what follows */
    pthread_cond_t changed;    /* a task came or went, or the end */
    struct task *first, *last; /* the first one runs */
    bool end;                  /* when the queue is empty */
};
extern struct gpu gpus[GPU_MAX_GPUS];

static inline void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* A GPU's thread; its argument is the struct gpu. */
void *gpu_main(void *gpu);

#endif
