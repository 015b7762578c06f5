/* SPDX-License-Identifier: MIT
 *
 * accelerator.h - a GPU as this process uses it. The GPU is found by its UUID, because fccd may number GPUs differently. The
 * process's primary context is used, so addresses are valid in the program's kernels and libraries.
 *
 * An accelerator is made with a context's first communicator on the GPU and lives until fcc_disconnect(). Only its words[]
 * change later. Its functions may be called from any thread; each restores the thread's current context or device.
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
    int number;      /* the GPU's number at fccd */
    int ordinal;     /* the GPU's number among those that this process's runtime sees */
    int device;      /* the driver's handle in this process */
    uint64_t memory; /* the session memory's address on this GPU */
    /* this accelerator has registered the session memory with its driver; if false, another GPU of the same driver has */
    bool has_memory;
    bool stream_words; /* its streams can write and await words in the session memory */
    void *context;     /* CUDA: the retained primary context */
    void *side;        /* a stream for copies, ordered with no other stream */
    bool import_by_fd; /* memory_import takes the descriptor's value; if false, its address */
    struct driver_uuid uuid;
    uint32_t words_gpus; /* bit g: words[g] is mapped, g being fccd's number of a GPU. accelerator_lock */
    struct accelerator_memory words[FCC_MAX_GPUS]; /* the struct fcc_stream_words of each GPU, at this GPU's addresses */
};

/* context->accelerator_lock held. Finds or opens the context's accelerator with this UUID. `number`: fccd's number of the
 * GPU. -ENODEV, -ENOENT (this process does not see the GPU), -EIO, -ENOMEM. */
int accelerator_open(struct fcc_context *c, enum fcc_device_kind kind, int number, const unsigned char uuid[16],
                     struct accelerator **out);
/* Closes all accelerators of a context. Nothing of the context may be in use any more. */
void accelerators_close(struct fcc_context *c);
/* Waits until all work of this process on the context's GPUs is done. */
int accelerators_synchronize(struct fcc_context *c);

/* Maps memory that the worker has sent as a descriptor, and closes the descriptor. -EPROTO, -ENOMEM, -EIO. */
int accelerator_map(const struct accelerator *a, int fd, uint32_t kind, size_t bytes, struct accelerator_memory *out);
void accelerator_unmap(const struct accelerator *a, const struct accelerator_memory *m);
/* Copies between host and device. Returns when the copy is complete. */
int accelerator_copy_in(const struct accelerator *a, uint64_t to, const void *from, size_t bytes);
int accelerator_copy_out(const struct accelerator *a, void *to, uint64_t from, size_t bytes);

/* Makes the GPU the thread's current one until accelerator_leave(), which is given *before. CUDA: meanwhile the thread may also
 * call what is not allowed to others while a stream is captured into a graph, because none of it concerns such a stream. So a
 * capture is not spoilt by this library's calls, whichever thread makes them. */
int accelerator_enter(const struct accelerator *a, int *before);
void accelerator_leave(const struct accelerator *a, int before);
/* Calls a function of the driver. Returns 0, or -EIO (-ENOMEM: out of memory) with the last error set to the GPU, the
 * function and the driver's text. */
#define ACCELERATOR_CALL(a, function, ...) accelerator_result((a), DRIVER_##function, (a)->driver->function(__VA_ARGS__))
int accelerator_result(const struct accelerator *a, enum driver_function f, int result);

#endif
