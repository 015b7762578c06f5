/* SPDX-License-Identifier: MIT
 *
 * code_make.h - threads that make generated code of programs' steps: source, and what the compiler makes of it, or what the user's cache on disk has. They
 * touch no GPU; what they make is loaded by the engine (code.c).
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_CODE_MAKE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_CODE_MAKE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/worker/device/device.h"
#include "kernels/program/code.h"

/* What a step's source follows from. */
struct code_shape {
    int32_t nranks;
    uint8_t in, dtypes[CODE_TENSORS + 1];
    uint32_t nwords;
    int64_t words[CODE_WORDS_MAX]; /* numbers, keys and a table's first elements, which a run may have anew, are 0 */
};

/* The code whose words are a shape's. */
struct code shape_code(const struct code_shape *s);

/* A kernel that is made. Until `made` is true all else is the threads', but for the shape, which nobody changes. */
struct code_job {
    STAILQ_ENTRY(code_job) link;
    const struct code_shape *shape;
    int gpu;
    bool is_bound; /* for the log: nothing runs the step without it */
    void *image;   /* made: the engine's, to be freed; NULL: error says why there is none */
    size_t bytes;
    struct error error;
    _Atomic bool made; /* stored with release when the rest is there, loaded with acquire */
};

struct code_maker;

/* Starts the first thread; others follow as jobs wait, one for each of the worker's cores at most. `kind` is the GPUs', for the log. */
int code_maker_open(const struct worker *w, const struct gpu_plugin *plugin, const char *kind, struct code_maker **out,
                    struct error *e);
/* Gives the threads a job, which stays where it is until it is made, or the threads have ended. */
void code_maker_give(struct code_maker *m, struct code_job *job);
/* Ends the threads; what they have not begun is not made. A compiler cannot be interrupted, so it is waited for, but no longer than some seconds. False: one
 * compiles still, and has its jobs until the process ends. */
bool code_maker_close(struct code_maker *m);

#endif
