/* SPDX-License-Identifier: MIT
 *
 * outside_wire.h - the connections of the outside node (outside.h) to and from the worker.
 */
#ifndef FCC_FUZZ_OUTSIDE_WIRE_H
#define FCC_FUZZ_OUTSIDE_WIRE_H

#include "daemon/net/frame.h"
#include "daemon/worker/nodes/peer.h"
#include "tests/fuzz/bed.h"

void wire_open(bool connects); /* connects: when the worker does */
void wire_close(void);
/* On the connection for messages, or for data, which is made if there is none. in: it may want some of it otherwise; NULL: it has no say. */
void wire_say(struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length, struct input *in);
void wire_frame(const struct net_frame *f, size_t payload, struct input *in);
/* What has come: outside_hear() gets the messages, outside_hear_frame() the frames. */
void wire_read(void);
/* A connection comes or goes, or says what is no message. */
void wire_step(struct input *in);

/* outside.c: */
void outside_hear(struct peer_msg *m);
void outside_hear_frame(struct net_frame *f);

#endif
