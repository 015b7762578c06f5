/* SPDX-License-Identifier: MIT
 *
 * fake_driver.h - what a test can see of the fake GPU driver, and how it makes it fail.
 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_GPUS 3
#define FAKE_UUID(gpu) ((unsigned char)(0xa0 + (gpu))) /* every byte of it */
#define FAKE_GRANULARITY 65536                         /* fake_gpu_memory.c's, too */
#define FAKE_FAILURE 700                               /* the result of a call that is to fail */

struct fake_driver {
    _Atomic int fail; /* enum driver_function: every call of it fails; -1: none */
    _Atomic int gpus; /* that the process sees */
    _Atomic bool no_stream_words;
    _Atomic bool capturing; /* all streams of the process */
    _Atomic int hip_version;
    /* what there is, and must be gone at the end */
    _Atomic int contexts, streams, handles, addresses, mappings, registered, graphs, objects;
    /* what has happened */
    _Atomic int writes, batches, fills, waits, functions, synchronized;
    _Atomic int broken; /* wrong calls: without a current GPU, say, or a word that goes back */
    /* Functions that are put onto any stream until capture_end() are those of its graph. */
    void (*capture_begin)(void);
    void *(*capture_end)(void);
    void (*graph_launch)(void *graph, void *stream);
    void (*graph_destroy)(void *graph); /* no stream runs it */
};
/* The control of a loaded fake driver. */
#define FAKE_DRIVER_SYMBOL "fake_driver"

#endif
