/* SPDX-License-Identifier: MIT
 *
 * helpers.h - threads that help the engine with what is to be done for several devices at once: to give an operator to several
 * GPUs (the calls of the driver that give one to one GPU take longer than a small operator runs, and the first GPU would wait in
 * its kernel until the last one has got its own), and to run a small operator of several cpu devices.
 *
 * Each thread takes one part only, always the part of the same number: what the driver keeps for a GPU, or what a cpu device works
 * on, stays in one core's caches. The engine does not depend on them: it takes the first part, and then what nobody has come for.
 * Between jobs they look for the next one for a while, then they sleep.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_HELPERS_H
#define FCC_DAEMON_WORKER_DEVICE_HELPERS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

#define HELPERS_MAX 15
#define HELPERS_PARTS (HELPERS_MAX + 1)

struct helpers;

/* n threads (HELPERS_MAX, if n is more; n may be 0), which take part 1, 2 and so on, and look for more for spin_us. */
int helpers_open(int n, uint32_t spin_us, struct helpers **out, struct error *e);
void helpers_close(struct helpers *h); /* NULL: nothing */
/* Call run(argument, i) for each bit i of `parts` (at most HELPERS_PARTS) until it says that the part is over (true); returns when all
 * are. A part's calls all come from one thread, different parts' from several at a time. run() may not wait for another part: it returns
 * false instead and is called again, as the engine goes round its parts and those that it has yet to take. Engine thread. What it has
 * written before, the calls see; what they write, it sees after. `rouse`: those that sleep are woken, which takes some microseconds. */
void helpers_run(struct helpers *h, uint32_t parts, bool rouse, bool (*run)(void *argument, int i), void *argument);

#endif
