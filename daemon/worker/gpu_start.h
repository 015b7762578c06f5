/* SPDX-License-Identifier: MIT
 *
 * gpu_start.h - threads that help the engine to give an operator to several GPUs at a time. The calls of the driver that give
 * one to one GPU take longer than a small operator runs, and on several GPUs one after the other they would be what limits how
 * many operators run in a second, and the first GPU would wait in its kernel until the last one has got its own.
 *
 * The engine does not depend on them: it takes the next GPU itself as long as there is one that nobody has taken. Between
 * operators they look for the next one for a while, then they sleep; with few cores they sleep at once.
 */
#ifndef FCCD_GPU_START_H
#define FCCD_GPU_START_H

#include "worker.h"

#define GPU_HELPERS_MAX 7

struct gpu_starters;

/* helpers may be 0. */
int gpu_starters_open(const struct worker *w, int helpers, struct gpu_starters **out, struct error *e);
void gpu_starters_close(struct gpu_starters *s);
/* Call start(argument, i) once for each i in [0, n), from several threads; returns when all have returned. n is at most 255.
 * Engine thread. What it has written before, the calls see; what they write, it sees after. */
void gpu_start_each(struct gpu_starters *s, int n, void (*start)(void *argument, int i), void *argument);

#endif
