/* SPDX-License-Identifier: MIT
 *
 * comms.h - the communicators of all jobs that the caller may see, and which of them are in trouble.
 */
#ifndef FCC_CLIENT_FCCCTL_COMMS_H
#define FCC_CLIENT_FCCCTL_COMMS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/error.h"
#include "proto/proto.h"

struct json_object;

#define COMMS_STUCK_AFTER_S 10.0

/* Is this communicator aborted, or waiting for ranks longer than stuck_after_s? If so, the reason in words is in text. */
bool comm_is_unwell(struct json_object *comm, double stuck_after_s, char *text, size_t room);

#endif
