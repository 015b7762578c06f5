/* SPDX-License-Identifier: MIT
 *
 * buffer.h - memory that the worker makes and this process maps: buffers, other ranks' parts of them, triggers of puts.
 */
#ifndef FCC_CLIENT_MEMORY_BUFFER_H
#define FCC_CLIENT_MEMORY_BUFFER_H

#include "client/core/context.h"
#include "client/device/accelerator.h"

/* Memory that the worker made, mapped where a rank's device is. */
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
    struct mapping *peers; /* [nranks] other ranks' parts, only ever more of them; or NULL. context->lock */
};

static inline int buffer_check(const struct fcc_buffer *b)
{
    return handle_check("buffer", b ? b->comm->context : NULL);
}

/* Map a descriptor that the worker sent. Closes it. -EPROTO if it is smaller than `bytes` or could be made smaller (so that
 * touching it would kill us), -ENOMEM. `what` names it in the error's text. */
int shared_map(int fd, size_t bytes, const char *what, void **out);
/* The buffer's memory, or that of another rank's part of it, from a descriptor, which is closed. Sets m->data and m->gpu; bytes
 * is set. */
int buffer_map(const struct fcc_buffer *b, int fd, uint32_t memory, struct mapping *m);
void buffer_unmap(struct fcc_buffer *b); /* with all its peers */
void mapping_end(const struct fcc_comm *comm, const struct mapping *m);
/* Locked. The handle of a live buffer of this context, and, unless `address` is NULL, where it is on its rank's GPU; 0: it is none (any
 * more). Compares only, never follows the pointer. */
uint32_t buffer_handle(const struct fcc_context *c, const struct fcc_buffer *buffer, uint64_t *address);

/* Locked. Has the worker not taken all triggers yet, and may it still? */
bool triggers_left(const struct fcc_comm *comm);
void triggers_unmap(struct fcc_comm *comm);

/* In the child of a fork: pool.c's lock is free. */
void pools_forked(void);

#endif
