/* SPDX-License-Identifier: MIT
 *
 * tracker.c - this rank's tracker: made and freed here; rules.c counts, tracker_wait.c waits, and the worker works off (memory order:
 * session.h).
 */
#include "client/memory/tracker.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/device/accelerator.h"
#include "client/device/graphs.h"
#include "client/memory/buffer.h"
#include "client/memory/tracker_state.h"

int tracker_check(const struct fcc_tracker *t)
{
    return handle_check("tracker", t ? t->comm->context : NULL);
}

/* Lets the worker make the tracker, and maps its memory; *bell is to be closed. On failure the worker has none, either. */
static int tracker_take(const struct fcc_comm *comm, void **memory, int *bell)
{
    struct fcc_tracker_msg msg = {.comm = comm->handle};
    struct fcc_reply reply = {.status = 0};
    int fds[2], status = context_call(comm->context, CALL_OF(TRACKER, &msg, &reply, .fds = fds));

    if (!status) {
        *bell = fds[1];
        status = shared_map(fds[0], sizeof(struct fcc_tracker_memory), "tracker", memory);
        if (status)
            (void)close(*bell);
    } else if (!reply.fds) {
        return status; /* the worker's refusal; otherwise its descriptors had no room in this process */
    }
    if (status)
        context_tell(comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
    return status;
}

/* ... and on GPUs, so that kernels count and wait. */
static int memory_register(struct fcc_tracker *t)
{
    const struct accelerator *a = t->comm->accelerator;
    int before = 0, status = accelerator_enter(a, &before);

    if (status)
        return status;
    status = ACCELERATOR_CALL(a, host_register, t->memory, sizeof(*t->memory), DRIVER_HOST_PORTABLE | DRIVER_HOST_MAPPED);
    if (!status) {
        status = ACCELERATOR_CALL(a, host_address, &t->address, t->memory, 0);
        if (status)
            (void)a->driver->host_unregister(t->memory);
    }
    accelerator_leave(a, before);
    return status;
}

/* No kernel uses it any more. */
static void memory_end(void *memory, const struct accelerator *a)
{
    int before = 0;

    if (!accelerator_enter(a, &before)) {
        (void)a->driver->host_unregister(memory);
        accelerator_leave(a, before);
    }
    (void)munmap(memory, sizeof(struct fcc_tracker_memory));
}

/* Kernels that wait leave, and so do those that come later; those on streams have gone when this unmaps the memory, and those of graphs
 * keep it. */
static void memory_release(struct fcc_comm *comm, struct fcc_tracker_memory *memory)
{
    const struct accelerator *a = comm->accelerator;
    int32_t none = 0;
    int before = 0;

    (void)atomic_compare_exchange_strong_explicit(&memory->ended, &none, -ENOENT, memory_order_release, memory_order_relaxed);
    if (!accelerator_enter(a, &before)) {
        (void)a->driver->synchronize();
        accelerator_leave(a, before);
    }
    if (!graphs_hold(comm->graphs, memory_end, memory))
        memory_end(memory, a);
}

int fcc_tracker_create(fcc_comm *comm, fcc_tracker **out)
{
    struct fcc_tracker *t;
    const int32_t *word;
    void *memory = NULL;
    struct error why;
    int status = comm_check(comm);

    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    if (comm->context->version < FCC_PROTO_TRACKERS)
        return last_error_set(-EOPNOTSUPP,
                              "rank %d: tracker: this fccd speaks version %u of the protocol, which has none: upgrade fccd",
                              comm->rank, comm->context->version);
    t = calloc(1, sizeof(*t));
    if (!t)
        return last_error_set(-ENOMEM, "rank %d: tracker: out of memory", comm->rank);
    status = tracker_take(comm, &memory, &t->bell);
    if (status) {
        free(t);
        return status;
    }
    t->comm = comm;
    t->memory = memory;
    status = comm->accelerator ? memory_register(t) : 0;
    if (status) {
        struct fcc_tracker_msg msg = {.comm = comm->handle};
        struct fcc_reply reply;
        (void)error_set(&why, status, "%s", fcc_last_error());
        context_tell(comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
        (void)munmap(t->memory, sizeof(*t->memory));
        (void)close(t->bell);
        free(t);
        return last_error_set(why.status, "rank %d: tracker: %s", comm->rank, why.text);
    }
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_mutex_lock(&comm->context->lock);
    comm->tracker = t; /* the worker gives a rank one at a time */
    comm->tracker_ended = t->address ? &t->memory->ended : NULL;
    if (comm->tracker_ended && comm->context->dead.status) /* it may have died before */
        statuses_raise(comm->context, comm->context->dead.status);
    (void)pthread_mutex_unlock(&comm->context->lock);
    status = fcc_comm_status(comm, &word); /* what ends waits; from now on the worker is watched, too */
    if (status) {
        (void)error_set(&why, status, "%s", fcc_last_error());
        fcc_tracker_free(t);
        return last_error_set(why.status, "%s", why.text);
    }
    *out = t;
    return 0;
}

/* The thread of calls ends, and so do waits that have begun: they look at `stop` whenever there is news, or a slice is over, so this takes no
 * longer than the program's function that is being called. */
static void threads_stop(struct fcc_tracker *t)
{
    static const struct timespec moment = {.tv_nsec = 50000};

    atomic_store(&t->stop, true);
    (void)atomic_fetch_add(&t->memory->news, 1); /* a value that no thread has seen */
    (void)syscall(SYS_futex, &t->memory->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    if (t->calls)
        (void)pthread_join(t->thread, NULL);
    while (atomic_load(&t->waits))
        (void)nanosleep(&moment, NULL);
}

void tracker_end(struct fcc_comm *comm)
{
    struct fcc_tracker *t = comm->tracker;

    if (!t)
        return;
    (void)pthread_mutex_lock(&comm->context->lock);
    comm->tracker = NULL;
    comm->tracker_ended = NULL;
    (void)pthread_mutex_unlock(&comm->context->lock);
    threads_stop(t);
    if (t->address)
        memory_release(comm, t->memory);
    else
        (void)munmap(t->memory, sizeof(*t->memory));
    (void)close(t->bell);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

void fcc_tracker_free(fcc_tracker *tracker)
{
    struct fcc_tracker_msg msg;
    struct fcc_reply reply;

    if (!tracker || tracker_check(tracker))
        return;
    msg = (struct fcc_tracker_msg){.comm = tracker->comm->handle};
    context_tell(tracker->comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
    tracker_end(tracker->comm);
}
