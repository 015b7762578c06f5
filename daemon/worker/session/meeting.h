/* SPDX-License-Identifier: MIT
 *
 * meeting.h - the id of a communicator whose ranks agreed on a name.
 */
#ifndef FCC_DAEMON_WORKER_SESSION_MEETING_H
#define FCC_DAEMON_WORKER_SESSION_MEETING_H

#include "proto/proto.h"

#define MEETING_KEY_BYTES 32

/* The id that this message asks for, at the node with this address ("": it speaks to no other). -EINVAL; -ENETUNREACH if the
 * message names a node and this one speaks to no other. */
int meeting_id(const unsigned char key[MEETING_KEY_BYTES], const char *node, const struct fcc_meeting *m,
               struct fcc_unique_id *out, struct error *e);

#endif
