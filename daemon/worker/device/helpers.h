/* SPDX-License-Identifier: MIT
 *
 * helpers.h - threads that help the engine to launch an operator on several GPUs, or to run a small operator of several cpu devices.
 *
 * Launching on one GPU takes the driver longer than a small operator runs. Launched one after the other, the first GPU's kernel would wait
 * for the last one's to start.
 *
 * Helper i always takes part i, so the driver's state for a GPU, or the data of a cpu device, stays in one core's caches. The engine does not
 * depend on helpers: it takes part 0, and then every part that no helper has taken. Helpers spin for a while between jobs, then sleep.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_HELPERS_H
#define FCC_DAEMON_WORKER_DEVICE_HELPERS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

#define HELPERS_MAX 15
#define HELPERS_PARTS (HELPERS_MAX + 1)

struct helpers;

/* Start n threads, at most HELPERS_MAX; n may be 0. They take parts 1, 2 and so on, and spin for spin_us between jobs. */
int helpers_open(int n, uint32_t spin_us, struct helpers **out, struct error *e);
void helpers_close(struct helpers *h); /* NULL: nothing */
/* Engine thread: call run(argument, i) for each bit i of `parts` (at most HELPERS_PARTS) until it returns true; returns when all parts have.
 * All calls for one part come from one thread; parts run concurrently. run() must not wait for another part: it returns false and is called
 * again. The calls see what the engine has written before, and the engine sees their writes after. rouse: wake helpers that sleep, which
 * takes some microseconds. */
void helpers_run(struct helpers *h, uint32_t parts, bool rouse, bool (*run)(void *argument, int i), void *argument);

#endif
