/* SPDX-License-Identifier: MIT
 *
 * view.h - pieces of shared memory, side by side: their pages mapped a second time, one piece behind the other. A product for several
 * ranks is stored through a view of their rows by one call of the BLAS, which knows nothing of ranks and packs its operands once.
 *
 * Views are kept: making one takes longer than what it saves. So whoever unmaps memory says so first.
 */
#ifndef FCC_KERNELS_CPU_VIEW_H
#define FCC_KERNELS_CPU_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/proto.h"

#define VIEW_PIECES FCC_MAX_RANKS

struct view_piece {
    unsigned char *at; /* mapped shared, to read and write */
    size_t bytes;      /* more than 0 */
};

struct views;

struct views *views_new(void); /* NULL: no memory */
void views_free(struct views *v);

/* A view of n pieces, 1 to VIEW_PIECES, to be given back with views_release(). NULL: there is none, as a border between two pieces is
 * none between two pages, or memory or address space is short. All functions from here on: any thread. */
unsigned char *views_get(struct views *v, const struct view_piece pieces[], int n);
void views_release(struct views *v, unsigned char *view);

/* This memory is about to be unmapped, and no view of it is in use: forget those that there are. */
void views_forget(struct views *v, const void *memory, size_t bytes);

#endif
