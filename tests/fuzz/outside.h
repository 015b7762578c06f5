/* SPDX-License-Identifier: MIT
 *
 * outside.h - a node of the cluster that is no worker's but the input's. It has the cluster's key, so its connections are as good as any
 * node's; what it says on them is what the input wants, or what a worker would say (its reflexes).
 *
 * The only worker of the bed is node 0. Two connections lead there (messages, data), and two come from there, when the worker asks for them.
 */
#ifndef FCC_FUZZ_OUTSIDE_H
#define FCC_FUZZ_OUTSIDE_H

#include "tests/fuzz/bed.h"

#define OUTSIDE_ADDRESS "node-1:7000"

/* What it does by itself, as a worker would: a bit each. */
enum {
    REFLEX_CONNECT = 1, /* connect, when it is connected to */
    REFLEX_JOIN = 2,    /* JOINED, FORMED, READY and GO */
    REFLEX_SUBMIT = 4,  /* its ranks ask for the same as those of the worker */
    REFLEX_MEMORY = 8,  /* MEMORY and STAGED */
    REFLEX_FLAG = 16,   /* flags: of slices, and of turns that have ended */
};

void outside_open(uint32_t reflexes);
void outside_close(void);
/* An id of a communicator whose ranks meet there. */
struct fcc_unique_id outside_id(uint32_t number);
/* It says or does something that the input chooses. */
void outside_step(struct input *in);
/* It reads what has come, and its reflexes answer. */
void outside_read(void);

#endif
