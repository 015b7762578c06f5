/* SPDX-License-Identifier: MIT
 *
 * buffer.h - memory that the worker allocates and this process maps: buffers, other ranks' parts of them, triggers of puts.
 */
#ifndef FCC_CLIENT_MEMORY_BUFFER_H
#define FCC_CLIENT_MEMORY_BUFFER_H

#include "client/core/context.h"
#include "client/device/accelerator.h"

/* Memory of the worker, mapped for a rank's device. */
struct mapping {
    void *data;                    /* on a GPU: gpu.address. NULL: none */
    size_t bytes;                  /* mapped */
    struct accelerator_memory gpu; /* if the rank is on one */
};

struct fcc_buffer {
    struct fcc_comm *comm;
    LIST_ENTRY(fcc_buffer) link; /* context->buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    size_t bytes; /* as asked for */
    struct mapping map;
    struct mapping *peers; /* [nranks] other ranks' parts, which are only ever added; or NULL. context->lock */
};

static inline int buffer_check(const struct fcc_buffer *b)
{
    return handle_check("buffer", b ? b->comm->context : NULL);
}

/* Map a descriptor that the worker sent. Closes it. -EPROTO if it is smaller than `bytes` or could be made smaller (so that
 * touching it would kill us), -ENOMEM. `what` names it in the error's text. */
int shared_map(int fd, size_t bytes, const char *what, void **out);
/* Map a descriptor of the buffer's memory, or of another rank's part of it, and close it. m->bytes is set by the caller; sets
 * m->data and m->gpu. */
int buffer_map(const struct fcc_buffer *b, int fd, uint32_t memory, struct mapping *m);
void buffer_unmap(struct fcc_buffer *b); /* with all its peers */
void mapping_end(const struct fcc_comm *comm, const struct mapping *m);
/* Locked. The handle of a live buffer of this context, or 0 if the pointer is none. Sets *address, unless NULL, to the buffer's
 * address on its rank's GPU. Only compares the pointer, never follows it. */
uint32_t buffer_handle(const struct fcc_context *c, const struct fcc_buffer *buffer, uint64_t *address);

/* Locked. Are there triggers that the worker has not taken yet but still may? */
bool triggers_left(const struct fcc_comm *comm);
void triggers_unmap(struct fcc_comm *comm);

/* In the child of a fork: pool.c's lock is free. */
void pools_forked(void);

#endif
