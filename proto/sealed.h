/* SPDX-License-Identifier: MIT
 *
 * sealed.h - sealed memfds: memory that is shared with another process and cannot shrink, and files that are read once.
 */
#ifndef FCC_PROTO_SEALED_H
#define FCC_PROTO_SEALED_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"

/* Reads all of a memfd of `least` to `most` bytes. It must be sealed against shrinking and writing, so that reading does not
 * block and its contents cannot change meanwhile. The caller frees *out and keeps the descriptor. `what` names the file in the
 * error's text.
 * Errors: -EPROTO (not sealed, wrong size, unreadable), -ENOMEM. */
int sealed_read(int fd, uint64_t least, uint64_t most, const char *what, void **out, size_t *bytes, struct error *e);

/* Makes `bytes` of zeroed memory that other processes may map, and maps it here, its pages included. It cannot be resized. The
 * caller owns *memory, to be unmapped, and the descriptor *fd. Returns 0 or -errno; `name` is for /proc. */
int sealed_memory_make(const char *name, size_t bytes, void **memory, int *fd);

#endif
