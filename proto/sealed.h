/* SPDX-License-Identifier: MIT
 *
 * sealed.h - what another process has sent as a file: read once, into memory of our own.
 */
#ifndef FCC_PROTO_SEALED_H
#define FCC_PROTO_SEALED_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"

/* The whole of a memfd that can be neither shrunk nor written to any more: so reading does not block, and nobody changes it meanwhile. It is
 * of `least` to `most` bytes. *out is the caller's to free, and the descriptor stays the caller's. -EPROTO and what is wrong with it, or
 * -ENOMEM; `what` names it. */
int sealed_read(int fd, uint64_t least, uint64_t most, const char *what, void **out, size_t *bytes, struct error *e);

#endif
