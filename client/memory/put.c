/* SPDX-License-Identifier: MIT
 *
 * put.c - puts to ranks on other nodes. They are registered here; kernels trigger them through memory that the worker's proxy
 * polls (memory order: session.h).
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "client/core/call.h"
#include "client/memory/buffer.h"
#include "proto/session.h"

bool triggers_left(const struct fcc_comm *comm)
{
    const struct fcc_trigger_memory *t = comm->triggers;

    return t && !comm->context->dead.status && !status_of(comm) &&
           atomic_load_explicit(&t->tail, memory_order_relaxed) < atomic_load_explicit(&t->head, memory_order_relaxed);
}

void triggers_unmap(struct fcc_comm *comm)
{
    if (comm->triggers)
        (void)munmap(comm->triggers, sizeof(*comm->triggers));
    comm->triggers = NULL;
}

static int triggers_get(struct fcc_comm *comm, struct fcc_trigger_memory **out, const char *called)
{
    struct fcc_triggers_msg msg = {.comm = comm->handle};
    struct fcc_context *c = comm->context;
    struct fcc_trigger_memory *known;
    struct fcc_reply reply;
    void *memory = NULL;
    int fd = -1, status;

    (void)pthread_mutex_lock(&c->lock);
    known = comm->triggers;
    (void)pthread_mutex_unlock(&c->lock);
    if (!known) {
        status = context_call(c, CALL_OF(TRIGGERS, &msg, &reply, .fds = &fd, .called = called));
        if (!status)
            status = shared_map(fd, sizeof(*known), "triggers", &memory);
        if (status)
            return status;
        (void)pthread_mutex_lock(&c->lock);
        known = comm->triggers;
        if (!known) {
            known = comm->triggers = memory;
            memory = NULL;
        }
        (void)pthread_mutex_unlock(&c->lock);
        if (memory) /* another thread has mapped it meanwhile */
            (void)munmap(memory, sizeof(*known));
    }
    *out = known;
    return 0;
}

int fcc_comm_triggers(fcc_comm *comm, struct fcc_triggers *out)
{
    struct fcc_trigger_memory *t;
    int status;

    status = comm_check(comm);
    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    status = triggers_get(comm, &t, NULL);
    if (!status)
        *out = (struct fcc_triggers){.head = (uint64_t *)&t->head,
                                     .tail = (const uint64_t *)&t->tail,
                                     .slots = (uint64_t(*)[2])(void *)t->slot,
                                     .capacity = FCC_TRIGGER_SLOTS};
    return status;
}

/* Locked. The handle of a put's buffer; 0: no buffer. */
static int put_buffer(const struct fcc_comm *comm, const struct fcc_buffer *b, const char *name, uint32_t *out)
{
    *out = b ? buffer_handle(comm->context, b, NULL) : 0;
    return b && !*out ? last_error_set(-EINVAL, "rank %d: put: %s: no buffer of this context", comm->rank, name) : 0;
}

int fcc_put_register(fcc_comm *comm, const struct fcc_put *put, uint32_t *number)
{
    struct fcc_put_reply reply;
    struct fcc_put_msg msg;
    int status;

    status = comm_check(comm);
    if (status)
        return status;
    if (!put || !number)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", put ? "number" : "put");
    for (size_t i = 0; i < sizeof(put->reserved) / sizeof(put->reserved[0]); i++)
        if (put->reserved[i])
            return last_error_set(-EINVAL, "put.reserved[%zu]: %u: must be 0", i, put->reserved[i]);
    msg = (struct fcc_put_msg){.comm = comm->handle,
                               .rank = put->rank,
                               .rows = put->rows,
                               .row_bytes = put->row_bytes,
                               .stride = put->stride,
                               .from_offset = put->from_offset,
                               .to_offset = put->to_offset,
                               .signal_offset = put->signal_offset};
    (void)pthread_mutex_lock(&comm->context->lock);
    status = put_buffer(comm, put->from, "from", &msg.from);
    if (!status)
        status = put_buffer(comm, put->to, "to", &msg.to);
    if (!status)
        status = put_buffer(comm, put->signals, "signals", &msg.signals);
    (void)pthread_mutex_unlock(&comm->context->lock);
    if (!status)
        status = context_call(comm->context, CALL_OF(PUT_REGISTER, &msg, &reply));
    if (!status && !reply.number)
        status = last_error_set(-EPROTO, "rank %d: put: the worker gave it number 0, which means none", comm->rank);
    if (!status)
        *number = reply.number;
    return status;
}

static const char put_trigger[] = "fcc_put_trigger";

/* Fails with the communicator's error, which its status word has. */
static int put_is_late(fcc_comm *comm, int status, uint32_t number)
{
    int dead;

    (void)pthread_mutex_lock(&comm->context->lock);
    dead = context_dead(comm->context, put_trigger);
    (void)pthread_mutex_unlock(&comm->context->lock);
    return dead ? dead
                : last_error_set(status, "rank %d: put %u: the communicator has ended; the next operator says why", comm->rank,
                                 number);
}

/* The FIFO is full: waits until the worker has taken a trigger or the communicator has ended. */
static int room_await(fcc_comm *comm, struct fcc_trigger_memory *t, uint64_t at, uint32_t number)
{
    static const struct timespec moment = {.tv_nsec = 20000};
    uint64_t tail, seen = atomic_load_explicit(&t->tail, memory_order_acquire);
    struct fcc_context *c = comm->context;
    struct patience patience;
    struct spin spin;

    spin_begin(&spin, c->spin_us, NEVER);
    patience_begin(&patience, comm_patience_ms(comm));
    while (at - (tail = atomic_load_explicit(&t->tail, memory_order_acquire)) >= FCC_TRIGGER_SLOTS) {
        int status = status_of(comm);
        if (!status && (int64_t)(tail - seen) > 0) { /* a tail that moves backwards is not progress */
            seen = tail;
            patience_begin(&patience, comm_patience_ms(comm));
        } else if (!status && patience_over(&patience)) {
            (void)pthread_mutex_lock(&c->lock);
            status = context_give_up(c, put_trigger, comm_patience_ms(comm));
            (void)pthread_mutex_unlock(&c->lock);
            return status;
        }
        if (status)
            return put_is_late(comm, status, number);
        if (!spin_more(&spin))
            (void)nanosleep(&moment, NULL);
    }
    return 0;
}

int fcc_put_trigger(fcc_comm *comm, uint32_t number, uint64_t value)
{
    struct fcc_trigger_memory *t;
    int status = comm_check(comm);
    uint64_t at;

    if (!status && !number)
        status = last_error_set(-EINVAL, "number: 0: allowed is what fcc_put_register() gave");
    if (!status)
        status = triggers_get(comm, &t, put_trigger);
    if (status)
        return status;
    status = status_of(comm);
    if (status)
        return put_is_late(comm, status, number);
    at = atomic_fetch_add_explicit(&t->head, 1, memory_order_acq_rel);
    if (at - atomic_load_explicit(&t->tail, memory_order_acquire) >= FCC_TRIGGER_SLOTS)
        status = room_await(comm, t, at, number);
    if (status)
        return status;
    atomic_store_explicit(&t->slot[at % FCC_TRIGGER_SLOTS].second, value, memory_order_relaxed);
    atomic_store_explicit(&t->slot[at % FCC_TRIGGER_SLOTS].first, number, memory_order_release);
    return 0;
}
