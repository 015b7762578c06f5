/* SPDX-License-Identifier: MIT
 *
 * gpu_start.h - threads that help the engine to give an operator to several GPUs at a time. The calls of the driver that give
 * one to one GPU take longer than a small operator runs, and on several GPUs one after the other they would be what limits how
 * many operators run in a second, and the first GPU would wait in its kernel until the last one has got its own.
 *
 * Each thread takes one GPU's part only, always the same one's: what the driver keeps for a GPU stays in one core's caches. The engine
 * does not depend on them: it takes the first GPU's, and then what nobody has come for. Between operators they look for the
 * next one for a while, then they sleep; with few cores they sleep at once.
 */
#ifndef FCCD_GPU_START_H
#define FCCD_GPU_START_H

#include "worker.h"

#define GPU_HELPERS_MAX (GPU_MAX_GPUS - 1)

struct gpu_starters;

/* helpers may be 0. */
int gpu_starters_open(const struct worker *w, int helpers, struct gpu_starters **out, struct error *e);
void gpu_starters_close(struct gpu_starters *s);
/* Call start(argument, gpu) once for each bit of gpus, from several threads; returns when all have returned. Engine thread. What it
 * has written before, the calls see; what they write, it sees after. */
void gpu_start_each(struct gpu_starters *s, uint32_t gpus, void (*start)(void *argument, int gpu), void *argument);

#endif
