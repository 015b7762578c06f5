/* SPDX-License-Identifier: MIT
 *
 * region.h - the registry of regions: the only memory of this node that links from other nodes may write.
 *
 * The engine adds and removes regions; receivers look them up. A receiver holds the registry shared while it writes into a
 * region or raises a flag, for one call that does not block. Adding and removing hold it exclusively. So when a removal
 * returns, no receiver is writing into the region, and none will: a receiver looks the region up again for every piece of a
 * frame, and compares the registration's number (`serial`) with the one that it found for the frame's header. Each side waits
 * for one such piece at most, and a waiting removal goes before new receivers.
 *
 * With RDMA other nodes write by themselves, so there are no such pieces. The transport attaches a grant to the registration,
 * and the removal revokes the grant at once. At a communicator's end the transport takes the grant over, and revokes it when no
 * node uses it any more (daemon/net/verbs/verbs.h). Making a grant holds the registry while the kernel pins the memory.
 */
#ifndef FCC_DAEMON_NET_REGION_H
#define FCC_DAEMON_NET_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

#define NET_STAGING 0u        /* a rank's staging memory; other numbers: a symmetric buffer's number at its node */
#define NET_FLAGS 0xffffffffu /* no memory: its size is the rank's number of flags, which struct net_sink raises (net.h) */
#define NET_EARLY 0xfffffffeu /* where frames wait that have come too early (net.h: early()). No write names it */
#define NET_ENDED_KEPT 4096u  /* how many ended communicators, and retired regions, are remembered */

/* An area: rows of row_bytes bytes, stride bytes apart. */
struct net_area {
    uint64_t row_bytes, stride;
    uint32_t rows;
};

/* Does the area at `offset` lie within `bytes` bytes, with rows that do not overlap? Then *length is the number of bytes of all
 * rows. Any values are allowed. An empty area is -EINVAL. */
int net_area_check(const struct net_area *area, uint64_t offset, uint64_t bytes, uint64_t *length);

/* The memory behind a receive bounce buffer, of the same size, for adapters that can write it directly. */
struct net_direct {
    int fd;             /* a dma-buf, closed by the region's owner after the region is gone */
    uint64_t fd_offset; /* where the memory begins in the dma-buf */
    uint64_t address;   /* the memory's address, to which offsets in the region are added */
};

/* For a region that is a receive bounce buffer: what arrives there goes on to other memory, a GPU's. */
struct net_bounce {
    /* An area that has been checked has arrived whole. The receiver calls this while it holds the region, and before it handles
     * what follows on that link. It must not block. A result other than 0, with the reason, breaks the link. NULL: not a bounce
     * buffer. */
    int (*received)(void *ctx, uint64_t offset, const struct net_area *area, struct error *e);
    void *ctx;
    /* the memory behind; valid as long as the region; NULL: adapters cannot write it directly */
    const struct net_direct *direct;
    /* Set if received() is. Reports that an adapter (by name) can now write for other nodes: into the bounce buffer or, with
     * is_direct, into the memory behind, and then received() is not called. `why`: the reason if the direct way was tried and
     * failed, else NULL. The same restrictions as received(). */
    void (*given)(void *ctx, const char *adapter, bool is_direct, const struct error *why);
};

struct net_regions;
int net_regions_open(struct net_regions **out, struct error *e);
/* To be called when no receiver uses the registry any more. */
void net_regions_close(struct net_regions *regions);

/* Registers a rank's memory [base, base + bytes). Errors: -EEXIST: there is such a region already; -ECANCELED: after
 * net_comm_end();
 * -ENOMEM. For NET_FLAGS base is NULL and bytes is the number of flags. A region of 0 bytes is allowed; nothing fits into
 * it. */
int net_region_add(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base, uint64_t bytes,
                   struct error *e);
/* As net_region_add(), for a region that is a receive bounce buffer. */
int net_region_add_bounce(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base,
                          uint64_t bytes, const struct net_bounce *bounce, struct error *e);
/* Removes a region if there is one. Data that still arrives for it breaks its link. For NET_FLAGS: when this returns, no flag
 * of the rank is being raised any more. */
void net_region_remove(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region);
/* Removes a buffer whose number is never used again. Data that still arrives for it is read and dropped, for the last
 * NET_ENDED_KEPT such buffers; but an RDMA write breaks its link. A program's kernels may put into a buffer of a rank that has
 * died until they hear of the death, and other users of the link must not suffer from that. */
void net_region_retire(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region);
/* Removes all regions of a communicator. Data that still arrives for it is read and dropped, for the last NET_ENDED_KEPT
 * communicators: other nodes may still be sending when this node ends a communicator, and their links carry other
 * communicators, too. When this returns, the memory may be unmapped, but must not be used for anything else: by RDMA grants it
 * may still be written. */
void net_comm_end(struct net_regions *regions, uint64_t comm);

/* ---- for receivers ---- */

/* A transport's permission for other nodes to write a registration's memory by RDMA. The thread that removes the registration
 * calls revoke() or end() while it holds the registry exclusively; either call takes the grant over. */
struct net_grant {
    const void *owner; /* distinguishes the grants of one registration */
    /* The region is being removed. When this returns, the memory is not written any more. */
    void (*revoke)(struct net_grant *grant);
    /* The communicator has ended. The transport keeps the memory from being reused while it may still be written. Must not
     * block. */
    void (*end)(struct net_grant *grant);
    struct net_grant *next;
};

/* A registration that a receiver holds. */
struct net_held {
    unsigned char *base;
    uint64_t bytes;
    uint64_t serial; /* the registration's number; never 0 */
    struct net_bounce bounce;
    /* the registration's list. Several receivers may hold it at a time, so the transport locks additions */
    struct net_grant **grants;
};

/* Looks up a region and holds the registry (0). Otherwise it is not held: -ENOENT, or -ECANCELED if the communicator has ended
 * or the region was retired. The holder must not block, and must call no function of this file except net_regions_release(). */
int net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out);
void net_regions_release(struct net_regions *regions);

#endif
