/* SPDX-License-Identifier: MIT
 *
 * rankset.h - a set of ranks of one communicator.
 */
#ifndef FCC_KERNELS_PLAN_RANKSET_H
#define FCC_KERNELS_PLAN_RANKSET_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fccclient.h"

#define RANKSET_WORDS ((FCC_MAX_RANKS + 63) / 64)

struct rankset {
    uint64_t words[RANKSET_WORDS]; /* bit r % 64 of word r / 64: rank r. All zero: the empty set */
};

/* `rank` is 0 to FCC_MAX_RANKS - 1. */
static inline void rankset_add(struct rankset *s, int rank)
{
    s->words[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline bool rankset_has(const struct rankset *s, int rank)
{
    return s->words[rank / 64] >> rank % 64 & 1u;
}

/* Add all of b to a. */
static inline void rankset_join(struct rankset *a, const struct rankset *b)
{
    for (int i = 0; i < RANKSET_WORDS; i++)
        a->words[i] |= b->words[i];
}

/* Have they a rank in common? */
static inline bool rankset_meets(const struct rankset *a, const struct rankset *b)
{
    uint64_t both = 0;

    for (int i = 0; i < RANKSET_WORDS; i++)
        both |= a->words[i] & b->words[i];
    return both != 0;
}

#endif
