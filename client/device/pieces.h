/* SPDX-License-Identifier: MIT
 *
 * pieces.h - memory on GPUs a second time, piece by piece, at addresses one behind the other.
 */
#ifndef FCC_CLIENT_DEVICE_PIECES_H
#define FCC_CLIENT_DEVICE_PIECES_H

#include "client/device/accelerator.h"

struct accelerator_piece {
    const struct accelerator_memory *memory; /* a mapping of the whole, whose begin the piece is */
    size_t bytes;                            /* a multiple of the granularity, at most memory->bytes */
};

/* What pieces are multiples of. -EIO. */
int accelerator_granularity(const struct accelerator *a, size_t *out);

struct accelerator_pieces; /* such a range. It keeps what it needs of the accelerator, which may be closed before */
/* -EOPNOTSUPP: memory of a kind that cannot be mapped so; -EIO, -ENOMEM. */
int accelerator_pieces_map(const struct accelerator *a, const struct accelerator_piece pieces[], int n,
                           struct accelerator_pieces **out);
uint64_t accelerator_pieces_address(const struct accelerator_pieces *p);
/* Waits until the GPU has done what this process has given to it, then unmaps the range. If the driver cannot say so, the range stays. */
void accelerator_pieces_unmap(struct accelerator_pieces *p);

#endif
