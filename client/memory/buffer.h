/* SPDX-License-Identifier: MIT
 *
 * buffer.h - memory that the worker allocates and this process maps: buffers, other ranks' parts of them, triggers of puts.
 */
#ifndef FCC_CLIENT_MEMORY_BUFFER_H
#define FCC_CLIENT_MEMORY_BUFFER_H

#include "client/core/context.h"
#include "client/device/accelerator.h"
#include "client/device/graphs.h"

/* Memory of the worker, mapped for a rank's device. */
struct mapping {
    void *data;                    /* address of the memory; on a GPU gpu.address. NULL: not mapped */
    size_t bytes;                  /* bytes that are mapped */
    struct accelerator_memory gpu; /* set if the rank is on a GPU */
};

struct fcc_buffer {
    struct fcc_comm *comm;
    LIST_ENTRY(fcc_buffer) link; /* context->buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    size_t bytes; /* size as requested */
    struct mapping map;
    struct graphs *graphs; /* of a communicator of which a captured operator uses the buffer. NULL: none. context->lock */
    bool stays;            /* ... and there is a second one: it stays mapped until the process ends. context->lock */
    struct mapping *peers; /* [nranks] mappings of other ranks' parts; entries are only added. NULL: none yet. context->lock */
};

static inline int buffer_check(const struct fcc_buffer *b)
{
    return handle_check("buffer", b ? b->comm->context : NULL);
}

/* Maps and closes a descriptor from the worker. -EPROTO if the file is smaller than `bytes` or not sealed against shrinking
 * (access beyond its end would kill this process), -ENOMEM. `what` names it in the error's text. */
int shared_map(int fd, size_t bytes, const char *what, void **out);
void buffers_move(struct fcc_comm *from,
                  struct fcc_comm *to);  /* the buffers of one communicator belong to the other from now on */
void buffer_unmap(struct fcc_buffer *b); /* and the mappings of other ranks' parts */
/* Graphs use the buffer from now on. Without effect on a pointer that is no live buffer of the context. */
void buffer_capture(struct fcc_context *c, const fcc_buffer *buffer, struct graphs *graphs);
/* Where a tensor lies. */
struct tensor_place {
    const struct fcc_comm *comm; /* whose buffer it lies in */
    uint64_t address;            /* of its first element, on the rank's GPU, if the rank is on one */
    uint64_t room;               /* bytes from there to the end of the buffer */
};
/* Locked. The handle of a live buffer of this context; 0: the pointer is not one. Sets *at, unless NULL, to the buffer's begin.
 * The pointer is only compared, never dereferenced. */
uint32_t buffer_handle(const struct fcc_context *c, const struct fcc_buffer *buffer, struct tensor_place *at);

/* Locked. Whether some triggers have not been taken by the worker, which may still take them. */
bool triggers_left(const struct fcc_comm *comm);
void triggers_unmap(struct fcc_comm *comm);

/* In the child of a fork: resets pool.c's lock, which a thread of the parent may have held. */
void pools_forked(void);

#endif
