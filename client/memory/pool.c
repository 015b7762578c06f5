/* SPDX-License-Identifier: MIT
 *
 * pool.c - buffers for allocators whose functions take only a size and a device number (torch.cuda.MemPool).
 *
 * Such functions have no argument for a communicator. So the process keeps, for each device, the communicator whose memory
 * its allocations use, and a list of the allocations by address. The allocator above asks for few, large allocations, so a
 * list is fast enough.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/memory/buffer.h"

struct allocation {
    LIST_ENTRY(allocation) link;
    fcc_buffer *buffer;
};

struct pool {
    fcc_comm *comm; /* the communicator whose memory is allocated; NULL: the pool is not open */
    unsigned busy;  /* number of threads that are allocating from it */
    LIST_HEAD(allocations_head, allocation) allocations;
};

/* Innermost lock: no function that locks is called while it is held. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[FCC_POOL_DEVICES]; /* pools_lock */
/* number of frees. Written under pools_lock, read without: aligned, so reads are never torn */
static volatile uint64_t pool_frees;

/* The child has no pools: the allocations are the parent's. */
void pools_forked(void)
{
    (void)pthread_mutex_init(&pools_lock, NULL);
    for (int device = 0; device < FCC_POOL_DEVICES; device++)
        pools[device] = (struct pool){.comm = NULL};
}

static int device_check(int device)
{
    return device >= 0 && device < FCC_POOL_DEVICES
               ? 0
               : last_error_set(-EINVAL, "pool: device %d: allowed are 0 to %d", device, FCC_POOL_DEVICES - 1);
}

int fcc_pool_open(fcc_comm *comm, int device)
{
    int status = comm_check(comm);

    if (!status)
        status = device_check(device);
    if (status)
        return status;
    (void)pthread_mutex_lock(&pools_lock);
    if (pools[device].comm)
        status = -EALREADY;
    else
        pools[device].comm = comm;
    (void)pthread_mutex_unlock(&pools_lock);
    return status ? last_error_set(status, "rank %d: pool: device %d has one that is open", comm->rank, device) : 0;
}

int fcc_pool_close(int device)
{
    int status = device_check(device);

    if (status)
        return status;
    (void)pthread_mutex_lock(&pools_lock);
    if (!pools[device].comm)
        status = -ENOENT;
    else if (pools[device].busy || !LIST_EMPTY(&pools[device].allocations))
        status = -EBUSY;
    else
        pools[device].comm = NULL;
    (void)pthread_mutex_unlock(&pools_lock);
    return !status ? 0
                   : last_error_set(status,
                                    status == -ENOENT ? "pool: device %d has none that is open"
                                                      : "pool: device %d: what was allocated from it is not all freed",
                                    device);
}

/* The calling thread is no longer busy with the pool. `a`: the new allocation, or NULL. */
static void pool_leave(struct pool *p, struct allocation *a)
{
    (void)pthread_mutex_lock(&pools_lock);
    p->busy--;
    if (a)
        LIST_INSERT_HEAD(&p->allocations, a, link);
    (void)pthread_mutex_unlock(&pools_lock);
}

void *fcc_pool_alloc(ptrdiff_t bytes, int device, void *stream)
{
    struct allocation *a;
    fcc_comm *comm;

    (void)stream;
    if (bytes < 1 ? last_error_set(-EINVAL, "pool: %td bytes: allowed are 1 and more", bytes) : device_check(device))
        return NULL;
    (void)pthread_mutex_lock(&pools_lock);
    comm = pools[device].comm;
    pools[device].busy += comm != NULL; /* so it lives at least until pool_leave() */
    (void)pthread_mutex_unlock(&pools_lock);
    if (!comm) {
        (void)last_error_set(-ENOENT, "pool: device %d has none that is open", device);
        return NULL;
    }
    a = malloc(sizeof(*a));
    if (!a)
        (void)last_error_set(-ENOMEM, "rank %d: pool: out of memory", comm->rank);
    if (a && fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)bytes, &a->buffer)) {
        free(a);
        a = NULL;
    }
    pool_leave(&pools[device], a);
    return a ? fcc_buffer_data(a->buffer) : NULL;
}

/* Removes the allocation at that address from its pool; NULL: there is none. The pool's communicator lives until
 * pool_leave(). */
static struct allocation *allocation_take(struct pool *p, const void *memory)
{
    struct allocation *a;

    (void)pthread_mutex_lock(&pools_lock);
    LIST_FOREACH(a, &p->allocations, link)
        if (a->buffer->map.data == memory)
            break;
    if (a) {
        LIST_REMOVE(a, link);
        p->busy++;
        pool_frees++;
    }
    (void)pthread_mutex_unlock(&pools_lock);
    return a;
}

void fcc_pool_free(void *memory, ptrdiff_t bytes, int device, void *stream)
{
    struct allocation *a;

    (void)bytes, (void)stream;
    if (!memory || device_check(device))
        return;
    a = allocation_take(&pools[device], memory);
    if (!a)
        return;
    /* an error means that the GPU has failed and does nothing any more */
    (void)accelerators_synchronize(a->buffer->comm->context);
    fcc_buffer_free(a->buffer);
    free(a);
    pool_leave(&pools[device], NULL);
}

const volatile uint64_t *fcc_pool_frees(void)
{
    return &pool_frees;
}
