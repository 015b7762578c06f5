/* SPDX-License-Identifier: MIT
 *
 * misbehave.h - what no library does: messages of any kind, and stores into memory that it shares with the worker.
 */
#ifndef FCC_FUZZ_MISBEHAVE_H
#define FCC_FUZZ_MISBEHAVE_H

#include "tests/fuzz/client.h"

/* Any message at all, with any descriptors. Its id is one that nobody awaits. */
void send_anything(struct client *c, struct input *in);
/* A store into the session's memory, at any place that matters. */
void scribble(struct client *c, struct input *in);
/* Stores into one of its buffers: values that count on, or all the same. */
void scribble_buffer(struct client *c, struct input *in);

#endif
