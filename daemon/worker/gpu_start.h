/* SPDX-License-Identifier: MIT
 *
 * gpu_start.h - threads that give operators to GPUs, one for each. The calls of the driver that give one to one GPU take longer
 * than a small operator runs, and on several GPUs one after the other they would be what limits how many operators run in a
 * second, and the first GPU would wait in its kernel until the last one has got its own. Where operators stand behind each other
 * the engine does not wait for these calls either, but looks after what has ended meanwhile.
 *
 * Each helper takes one GPU's part only: what the driver keeps for a GPU stays in one core's caches. The engine does not depend on
 * them: when it waits, it takes what nobody has come for. Between operators they look for the next one for a while, then they
 * sleep; with few cores they sleep at once.
 */
#ifndef FCCD_GPU_START_H
#define FCCD_GPU_START_H

#include "worker.h"

#define GPU_HELPERS_MAX GPU_MAX_GPUS

struct gpu_starters;

/* helpers: one for each of so many GPUs; may be 0. */
int gpu_starters_open(const struct worker *w, int helpers, struct gpu_starters **out, struct error *e);
void gpu_starters_close(struct gpu_starters *s);

/* All of these: engine thread. */

/* Call start(argument, gpu) once for each bit of gpus, from several threads; returns when all have returned. What the engine has
 * written before, the calls see; what they write, it sees after. */
void gpu_start_each(struct gpu_starters *s, uint32_t gpus, void (*start)(void *argument, int gpu), void *argument);
/* The same, but the calls are left to the helpers, or, where those sleep at once, to when the engine looks or waits next. What they
 * use stays until they have returned. One at a time. */
void gpu_start_begin(struct gpu_starters *s, uint32_t gpus, void (*start)(void *argument, int gpu), void *argument);
/* Have all returned? True also when nothing was begun. What they have written the engine sees then. */
bool gpu_start_look(struct gpu_starters *s);
/* Until they have. */
void gpu_start_wait(struct gpu_starters *s);

#endif
