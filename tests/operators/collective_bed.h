/* SPDX-License-Identifier: MIT
 *
 * collective_bed.h - a rank with a buffer for inputs and one for results, and images of both.
 */
#ifndef FCC_TEST_COLLECTIVE_BED_H
#define FCC_TEST_COLLECTIVE_BED_H

#include "tests/bed/harness.h"

enum { ROOM = 1 << 20 }; /* bytes of each buffer */

struct rank {
    fcc_comm *comm;
    int rank, n;
    fcc_buffer *local, *result;
    unsigned char *images[2]; /* of the two */
};

static inline void rank_open(struct rank *r, int rank, const struct ranks *all)
{
    r->comm = comm_open(all, rank, 0);
    r->rank = rank;
    r->n = all->n;
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ROOM, &r->local));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_RESULT, ROOM, &r->result));
    for (int i = 0; i < 2; i++) {
        r->images[i] = calloc(1, ROOM);
        CHECK(r->images[i] != NULL);
    }
}

static inline void rank_close(struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
    free(r->images[0]);
    free(r->images[1]);
}

#endif
