/* SPDX-License-Identifier: MIT
 *
 * buffer.h - memory that clients use.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BUFFER_H
#define FCC_DAEMON_WORKER_COMM_BUFFER_H

#include <stdbool.h>

#include "daemon/worker/device/memory.h"
#include "proto/base/error.h"
#include "proto/base/list.h"

struct comm;
struct device;
struct member;
struct session;

struct buffer_peers {
    int nranks;
    struct buffer *of[]; /* [nranks] */
};

#define BUFFER_BYTES_MAX (1ull << 46)

struct buffer {
    struct device *device;   /* NULL: the bounce buffer of a buffer on another node */
    int refs;                /* one for the handle, and one for each submission in flight */
    struct session *session; /* NULL: the handle is gone */
    LIST_ENTRY(buffer) link; /* session.buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    uint32_t comm; /* comm.number of its communicator, which may be gone. Numbers are not used again */
    int rank;      /* the owner's rank in the communicator */
    struct device_memory memory;
    uint64_t bytes; /* as asked for */
    /* Symmetric: number of the allocation, the same for all ranks' parts. 0: the allocation has not succeeded yet */
    uint32_t number;
    int fd;                     /* the memory, for other ranks' clients to import. -1: no other local rank can import it */
    struct buffer_peers *peers; /* other ranks' parts that the client has mapped, a reference each. NULL: none */
};
/* Whether operators store into the buffer, those of other ranks included. */
static inline bool buffer_takes_results(const struct buffer *b)
{
    return b->kind != FCC_BUFFER_LOCAL;
}
/* Whether a buffer may have this size. */
int buffer_bytes_check(uint64_t bytes, struct error *e);
/* Make a buffer of zeroed memory, with one reference for its handle. *fd, for the client, is the caller's. */
int buffer_alloc(struct member *m, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
/* As buffer_alloc(), for a result buffer, of which the communicator's other nodes are told. */
int buffer_alloc_result(struct member *m, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
struct buffer *buffer_find(const struct session *s, uint32_t handle);
/* A symmetric allocation has succeeded: give the part of a rank here its number. True: other ranks are here, and the buffer owns fd from now
 * on. False: fd stays the caller's. */
bool buffer_publish(struct buffer *b, const struct comm *c, int fd);
/* Give back the other ranks' parts that b's client had mapped. */
void buffer_peers_drop(struct buffer *b);
/* Another rank's part of b's allocation, for b's client. b keeps a reference on it until b's handle goes. -EINVAL; -ENOENT: freed, or the
 * communicator has ended; -EXDEV: the rank is on another node; -ENOMEM. */
int buffer_peer(struct buffer *b, int rank, struct buffer **out, struct error *e);
/* The part that a rank here has of the symmetric allocation of that number. NULL: it has freed it. */
struct buffer *buffer_part(const struct member *m, uint32_t number);
void buffer_unref(struct buffer *b);
void buffer_drop_handle(struct buffer *b); /* drops the handle's reference, too */

/* A remote rank's buffer for results, whose memory is a bounce buffer here (bounce.h): one reference, which is the rank's. */
int bounce_add(struct member *m, uint32_t handle, uint64_t bytes, struct buffer **out, struct error *e);
struct buffer *bounce_find(const struct member *m, uint32_t handle); /* NULL: the rank has none of that handle */
void bounce_drop(struct buffer *b);

#endif
