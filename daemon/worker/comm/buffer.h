/* SPDX-License-Identifier: MIT
 *
 * buffer.h - memory that clients use.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BUFFER_H
#define FCC_DAEMON_WORKER_COMM_BUFFER_H

#include <stdbool.h>
#include <sys/queue.h>

#include "daemon/worker/device/memory.h"
#include "proto/base/error.h"

struct comm;
struct device;
struct member;
struct session;

struct buffer_peers {
    int nranks;
    struct buffer *of[]; /* [nranks] */
};

#define BUFFER_BYTES_MAX (1ull << 46)

/* Memory that clients use. */
struct buffer {
    struct device *device;   /* NULL: the bounce buffer of a buffer on another node */
    int refs;                /* its handle, and submissions in flight */
    struct session *session; /* NULL: the handle is gone */
    LIST_ENTRY(buffer) link; /* session.buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    uint32_t comm; /* the number of its communicator, which may be gone: another one never has the same */
    int rank;      /* whose it is in the communicator */
    struct device_memory memory;
    uint64_t bytes;  /* as asked for */
    uint32_t number; /* symmetric: which allocation of its communicator, the same for all ranks' parts; 0: not one yet */
    int fd;          /* the memory, for other ranks' clients to import; -1: nobody can want it */
    struct buffer_peers *peers; /* other ranks' parts that its client has mapped, a reference each; or NULL */
};
/* Do the operators of its communicator store into it, those of other ranks, too? */
static inline bool buffer_takes_results(const struct buffer *b)
{
    return b->kind != FCC_BUFFER_LOCAL;
}
/* May a buffer have so many? */
int buffer_bytes_check(uint64_t bytes, struct error *e);
/* Zeroed memory with one reference, the handle's. *fd is the caller's, for the client. */
int buffer_alloc(struct member *m, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
/* A result buffer of m's rank, of which its other nodes are told. As buffer_alloc(). */
int buffer_alloc_result(struct member *m, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
struct buffer *buffer_find(const struct session *s, uint32_t handle);
/* A symmetric allocation has succeeded: the part of a rank here takes its number and, if other ranks are here, the descriptor.
 * The caller closes it otherwise: false. */
bool buffer_publish(struct buffer *b, const struct comm *c, int fd);
/* The part of `rank` of the allocation that b is a part of, for b's client: it stays until b's handle goes. -EINVAL, -ENOENT
 * (freed, or the communicator has ended), -EXDEV (on another node), -ENOMEM. */
int buffer_peer(struct buffer *b, int rank, struct buffer **out, struct error *e);
void buffer_unref(struct buffer *b);
void buffer_drop_handle(struct buffer *b); /* and its reference */

/* A remote rank's buffer for results, whose memory is a bounce buffer here (bounce.h): one reference, which is the rank's. */
int bounce_add(struct member *m, uint32_t handle, uint64_t bytes, struct buffer **out, struct error *e);
struct buffer *bounce_find(const struct member *m, uint32_t handle); /* NULL: the rank has none of that handle */
void bounce_drop(struct buffer *b);

#endif
