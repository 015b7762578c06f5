/* SPDX-License-Identifier: MIT
 *
 * accelerator.h - a GPU as this process uses it: found by its UUID, because a process may number its GPUs otherwise than
 * fccd does; in the process's own primary context, so that addresses are good for the program's kernels and libraries.
 *
 * An accelerator is made with the first communicator of a context on its GPU and lives until fcc_disconnect(). It does not
 * change, except that more words are mapped. Its functions may be called from any thread; each restores the thread's current
 * context or device.
 */
#ifndef FCC_CLIENT_DEVICE_ACCELERATOR_H
#define FCC_CLIENT_DEVICE_ACCELERATOR_H

#include "client/core/context.h"
#include "client/device/driver.h"
#include "proto/base/list.h"

/* Memory of the worker, mapped on a GPU. */
struct accelerator_memory {
    uint64_t address;
    size_t bytes;
    enum fcc_memory_kind kind;
};

struct accelerator {
    SLIST_ENTRY(accelerator) link; /* context->accelerators */
    const struct driver *driver;
    int number;      /* fccd's number of the GPU */
    int ordinal;     /* the runtime's number among the GPUs that this process sees */
    int device;      /* the driver's handle in this process */
    uint64_t memory; /* where this GPU sees the session memory */
    /* this accelerator registered the session memory with its driver; otherwise another GPU of that driver did */
    bool has_memory;
    bool stream_words; /* its streams can write and wait for words in the session memory */
    void *context;     /* CUDA: the primary context, retained */
    void *side;        /* a stream for copies; in order with no other */
    bool import_by_fd; /* memory_import takes a descriptor by value, not by its address */
    struct driver_uuid uuid;
    uint32_t words_gpus; /* GPUs by fccd's numbers, a bit each, whose words[] are mapped. accelerator_lock */
    struct accelerator_memory words[FCC_MAX_GPUS]; /* struct fcc_stream_words in each GPU's memory, at this GPU's addresses */
};

/* context->accelerator_lock held. The context's accelerator with this UUID; opened if need be. `number` is fccd's. -ENODEV,
 * -ENOENT (this process does not see it), -EIO, -ENOMEM. */
int accelerator_open(struct fcc_context *c, enum fcc_device_kind kind, int number, const unsigned char uuid[16],
                     struct accelerator **out);
/* Close all accelerators of a context of which nothing is in use any more: context, buffers, session memory. */
void accelerators_close(struct fcc_context *c);
/* Wait until all work of this process on the context's GPUs is done. */
int accelerators_synchronize(struct fcc_context *c);

/* Map the memory that the worker sent as a descriptor, which is closed. -EPROTO, -ENOMEM, -EIO. */
int accelerator_map(const struct accelerator *a, int fd, uint32_t kind, size_t bytes, struct accelerator_memory *out);
void accelerator_unmap(const struct accelerator *a, const struct accelerator_memory *m);
/* Copy between host and device; returns when it is done. */
int accelerator_copy_in(const struct accelerator *a, uint64_t to, const void *from, size_t bytes);
int accelerator_copy_out(const struct accelerator *a, void *to, uint64_t from, size_t bytes);

/* Make the GPU the thread's current one until accelerator_leave(), which takes *before. */
int accelerator_enter(const struct accelerator *a, int *before);
void accelerator_leave(const struct accelerator *a, int before);
/* Call a function of the driver: 0, or -EIO (-ENOMEM if memory is used up) with the last error set, which names the GPU and the
 * function and has the driver's words. */
#define ACCELERATOR_CALL(a, function, ...) accelerator_result((a), DRIVER_##function, (a)->driver->function(__VA_ARGS__))
int accelerator_result(const struct accelerator *a, enum driver_function f, int result);

#endif
