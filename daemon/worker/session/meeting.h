/* SPDX-License-Identifier: MIT
 *
 * meeting.h - makes a communicator's unique id from a name on which its ranks have agreed.
 */
#ifndef FCC_DAEMON_WORKER_SESSION_MEETING_H
#define FCC_DAEMON_WORKER_SESSION_MEETING_H

#include "proto/proto.h"

#define MEETING_KEY_BYTES 32

/* The unique id for this message. node: this node's address; "": it speaks to no other. -EINVAL; -ENETUNREACH: the message names a node, and
 * this node speaks to no other. */
int meeting_id(const unsigned char key[MEETING_KEY_BYTES], const char *node, const struct fcc_meeting *m,
               struct fcc_unique_id *out, struct error *e);

#endif
