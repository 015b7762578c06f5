/* SPDX-License-Identifier: MIT
 *
 * view.h - views: pieces of shared memory mapped a second time, one directly behind the other. One call of the BLAS then stores
 * a product for several ranks through a view of their rows, and packs its operands once.
 *
 * Views are cached, because making one takes longer than it saves. So code that unmaps memory must call views_forget() first.
 */
#ifndef FCC_KERNELS_CPU_VIEW_H
#define FCC_KERNELS_CPU_VIEW_H

#include <stddef.h>

#include "proto/proto.h"

#define VIEW_PIECES 64

struct view_piece {
    unsigned char *at; /* begin of the piece, in a shared mapping for reading and writing */
    size_t bytes;      /* size of the piece, at least 1 */
};

struct views;

struct views *views_new(void); /* NULL: no memory */
void views_free(struct views *v);

/* Makes or finds a view of n pieces, 1 to VIEW_PIECES. The caller returns it with views_release(). NULL: two pieces do not
 * meet at a page boundary, or memory or address space is short. All functions from here on: any thread. */
unsigned char *views_get(struct views *v, const struct view_piece pieces[], int n);
void views_release(struct views *v, unsigned char *view);

/* Drops the cached views of memory that is about to be unmapped. None of them may be in use. */
void views_forget(struct views *v, const void *memory, size_t bytes);

#endif
