/* SPDX-License-Identifier: MIT
 *
 * region.h - the memory of this node that links from other nodes may write, and nothing else may be written by them.
 *
 * The engine adds and removes; receivers look up. A receiver holds the registry (shared) while it writes into memory or raises
 * a flag, for the time of one call that does not wait; adding and removing hold it exclusively. So when a removal returns no
 * receiver is in the memory, and none gets there again: it has to look it up anew for every piece of a frame, and finds the
 * number that it remembers from the frame's head (`serial`) only if it is still the same registration. Neither side waits longer
 * than for one such piece, and a removal that waits comes before new receivers.
 *
 * A transport that lets other nodes write by themselves (RDMA) has no such pieces: it hangs a grant on the registration, and the
 * removal takes that back, at once. At a communicator's end the transport takes it over, and back when nobody uses it any more
 * (daemon/net/verbs/verbs.h). Making one holds the registry for as long as the kernel needs to pin the memory.
 */
#ifndef FCC_DAEMON_NET_REGION_H
#define FCC_DAEMON_NET_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

#define NET_STAGING 0u        /* a rank's staging memory; others: the number of a symmetric buffer at its node */
#define NET_FLAGS 0xffffffffu /* not memory but how many flags the rank has: raising them is the sink's (net.h) */
#define NET_ENDED_KEPT 4096u  /* communicators that are remembered as ended, and regions as retired */

/* An area: rows of row_bytes bytes, stride bytes apart. */
struct net_area {
    uint64_t row_bytes, stride;
    uint32_t rows;
};

/* Whether the area at offset lies within bytes, its rows not within each other; then *length: what its rows hold together. Any
 * values are allowed. An empty area does not fit. */
int net_area_check(const struct net_area *area, uint64_t offset, uint64_t bytes, uint64_t *length);

/* What a sender is given: 0 and *length, and one row, however long, where the rows lie dense; or -EINVAL for an area that cannot be
 * anywhere. */
int net_area_simplify(struct net_area *area, uint64_t offset, uint64_t *length, struct error *e);

/* The memory that what lands goes on to, of as many bytes: for adapters that can write it by themselves. */
struct net_direct {
    int fd; /* a dma-buf; the memory begins at its byte fd_offset. Who added the region closes it when the region is gone */
    uint64_t fd_offset;
    uint64_t address; /* what offsets in the region are added to */
};

/* What else is to be done with what has come: where the memory is but a landing place, and others wait for it elsewhere. */
struct net_landing {
    /* An area has come whole, and is as checked. Called by the receiver while it holds the region, and before what follows on that link:
     * must not wait. Not 0, with the reason, breaks the link. NULL: nothing is to be done. */
    int (*landed)(void *ctx, uint64_t offset, const struct net_area *area, struct error *e);
    void *ctx;
    const struct net_direct *direct; /* NULL: there is none. Stays as long as the region */
    /* Not NULL, if landed() is not. An adapter (its name) has been given the region for others to write: the landing place, or, is_direct, what it goes on to; then
     * nothing lands. why: the direct way was tried, and failed; or NULL. As landed(). */
    void (*given)(void *ctx, const char *adapter, bool is_direct, const struct error *why);
};

struct net_regions;
int net_regions_open(struct net_regions **out, struct error *e);
/* No receiver uses it any more. */
void net_regions_close(struct net_regions *regions);

/* Make memory known: [base, base + bytes) of a rank. -EEXIST if there is one of that name, -ECANCELED after net_comm_end(). NET_FLAGS: base is NULL, bytes is the
 * number of flags. A region of no bytes may be added: nothing fits into it. */
int net_region_add(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base, uint64_t bytes,
                   struct error *e);
/* The same, with somebody who is told of what has come. */
int net_region_add_landing(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base,
                           uint64_t bytes, const struct net_landing *landing, struct error *e);
/* Forget it, if it is there. What still comes for it breaks the link that it comes over. For NET_FLAGS: no flag of the rank is
 * being raised any more when this returns. */
void net_region_remove(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region);
/* The same for a buffer, whose number is never used again: what still comes for it is read and dropped. (Of the last NET_ENDED_KEPT
 * of them. Writes that the sender makes by itself break the link all the same.) Programs' kernels put into buffers of ranks that
 * have died, until they hear of it, and that is not the fault of others who use the link. */
void net_region_retire(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region);
/* Forget all of a communicator. From now on what comes for it is read and dropped: other nodes may still be sending when this
 * one gives a communicator up, and their links carry other communicators too. (Of the last NET_ENDED_KEPT of them.) Its memory may
 * be unmapped when this returns, and is not to be used for anything else: with grants it may still be written. */
void net_comm_end(struct net_regions *regions, uint64_t comm);

/* ---- for receivers ---- */

/* What a transport has given other nodes so that they write a registration's memory by themselves. Both of its functions are called by
 * who removes, with receivers kept out, and take the grant over. */
struct net_grant {
    const void *owner; /* tells grants of one registration from each other */
    /* The region is removed: when this returns nothing more is written. */
    void (*revoke)(struct net_grant *grant);
    /* Its communicator has ended: the memory goes to no other owner as long as something may still be written. Must not wait. */
    void (*end)(struct net_grant *grant);
    struct net_grant *next;
};

struct net_held {
    unsigned char *base;
    uint64_t bytes;
    uint64_t serial; /* of the registration; never 0 */
    struct net_landing landing;
    struct net_grant **grants; /* its list. Several may hold it at a time: who adds has a lock of its own */
};

/* Look up and hold: 0. Not held: -ENOENT, or -ECANCELED if the communicator has ended or the region was retired. Who holds must not wait, and must not
 * call anything of this file but net_regions_release(). */
int net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out);
void net_regions_release(struct net_regions *regions);

/* Store a word of 8 bytes with release, if there is such a place: 0, also if there was one and nobody wants it any more.
 * -ENOENT: there is no such region. -ERANGE: it does not lie there, or not aligned. */
int net_regions_signal(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, uint64_t offset,
                       uint64_t value);

#endif
