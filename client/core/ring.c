/* SPDX-License-Identifier: MIT
 *
 * ring.c - a request's way through the session memory: a completion slot, a record in the submission ring, the doorbell.
 *
 * Memory order. The ring and the slots are two hand-overs, one in each direction.
 *
 * Record: the client writes the record, then head (release); the worker reads head (acquire), then the record. Its space comes
 * back the other way: the worker reads the record, then writes tail (release); the client reads tail (acquire), then overwrites
 * the record. The slot's PENDING is written before head as well, so the worker sees PENDING.
 *
 * Completion: the worker writes the slot, then its state DONE (release); the client reads DONE (acquire), then the slot. Only
 * then is the slot used again, and the worker learns of the new use only through a later head.
 *
 * Doorbell: the argument is in session.h; here it is the sequentially consistent store of head and load of worker_sleeps.
 *
 * Sleep: the client changes PENDING to WAITING by compare-and-swap, and the worker writes DONE by exchange, so the later of the
 * two sees the earlier. Either the client sees DONE and does not sleep, or the worker sees WAITING and wakes the client. If
 * DONE comes between the client's swap and its futex call, the kernel sees that the value has changed.
 *
 * What the worker writes is not trusted: tail is checked, what a slot holds is copied out once and the copy is checked.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "proto/base/cache.h"
#include "proto/session.h"

/* ---- completion slots ---- */

bool run_is_over(const struct fcc_context *c, const struct slot_run *run)
{
    uint64_t ended = atomic_load_explicit(&c->memory->bindings[run->place].ended, memory_order_acquire);

    return fcc_run_ended(ended, run->number);
}

/* Locked. The stream of the slot's last operator will not write the slot's words again. */
static bool stream_has_left(const struct fcc_context *c, unsigned slot)
{
    if (c->slot_runs[slot].place)
        return run_is_over(c, &c->slot_runs[slot]);
    return atomic_load(&c->memory->slot[slot].stream_started) == c->stream_count[slot];
}

/* Locked. Free the late slots whose streams have written their words by now. */
static void slots_catch_up(struct fcc_context *c)
{
    for (uint64_t late = c->late_slots; late; late &= late - 1) {
        unsigned s = (unsigned)__builtin_ctzll(late);
        if (stream_has_left(c, s)) {
            c->late_slots &= ~(UINT64_C(1) << s);
            slot_return(c, s, false);
        }
    }
}

int slot_take(struct fcc_context *c, struct fcc_request *r)
{
    struct patience patience = {0};
    int64_t limit_ms = 0;
    struct spin spin;

    while (!c->free_slots) {
        context_collect(c);
        slots_catch_up(c);
        if (c->free_slots || c->dead.status)
            break;
        if (!limit_ms) {
            limit_ms = context_patience_ms(c);
            patience_begin(&patience, limit_ms);
            spin_begin(&spin, c->spin_us, NEVER);
        } else if (patience_over(&patience)) {
            return ~c->late_slots
                       ? context_give_up(c, operator_name(r->op), limit_ms)
                       : last_error_set(
                             -ETIMEDOUT, "%u operators are in flight on streams that have not come to them for %lld ms",
                             FCC_SLOTS, (long long)limit_ms); /* only streams hold the slots: not the worker's fault */
        }
        context_nap(c, &spin);
    }
    if (c->dead.status)
        return context_dead(c, operator_name(r->op));
    r->slot = (uint32_t)__builtin_ctzll(c->free_slots);
    c->free_slots &= ~(UINT64_C(1) << r->slot);
    atomic_store_explicit(&c->memory->slot[r->slot].state, FCC_SLOT_PENDING, memory_order_relaxed);
    return 0;
}

void slot_return(struct fcc_context *c, uint32_t slot, bool late)
{
    *(late ? &c->late_slots : &c->free_slots) |= UINT64_C(1) << slot;
}

/* For what the worker may change at any moment: reads it exactly once, so the value that was checked is the value that is
 * used. */
#define READ_ONCE(field) (*(const volatile __typeof__(field) *)&(field))

bool slot_collect(struct fcc_request *r)
{
    const struct fcc_slot *slot = &r->context->memory->slot[r->slot];
    struct fcc_submit_reply *result = &r->result;

    if (atomic_load_explicit(&slot->state, memory_order_acquire) != FCC_SLOT_DONE)
        return false;
    int32_t slot_status = READ_ONCE(slot->status);
    uint32_t nvalues = READ_ONCE(slot->nvalues);
    result->reply.msg.id = READ_ONCE(slot->id);
    result->reply.status = slot_status;
    result->nvalues = nvalues;
    /* Copy only the valid values: a slot is a kilobyte that another core has written. */
    memcpy(result->values, slot->values, (nvalues < FCC_SLOT_VALUES ? nvalues : FCC_SLOT_VALUES) * sizeof(int64_t));
    result->reply.text[0] = '\0';
    if (slot_status)
        memcpy(result->reply.text, slot->text, sizeof(result->reply.text));
    slot_return(r->context, r->slot, r->stream && !stream_has_left(r->context, r->slot));
    return true;
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0); /* not FUTEX_PRIVATE: the worker, another process, wakes it */
}

uint32_t slot_state(const struct fcc_request *r)
{
    return atomic_load_explicit(&r->context->memory->slot[r->slot].state, memory_order_relaxed);
}

bool ring_is_taken(const struct fcc_context *c)
{
    return atomic_load_explicit(&c->memory->tail, memory_order_relaxed) ==
           atomic_load_explicit(&c->memory->head, memory_order_relaxed);
}

void slot_sleep(struct fcc_request *r, int64_t deadline)
{
    _Atomic uint32_t *state = &r->context->memory->slot[r->slot].state;
    struct timespec t = {.tv_nsec = WAIT_SLICE_NS};
    uint32_t expected = slot_state(r) == FCC_SLOT_RUNNING ? FCC_SLOT_RUNNING : FCC_SLOT_PENDING;
    int64_t left = deadline == NEVER ? WAIT_SLICE_NS : deadline - now_ns();

    if (left <= 0)
        return;
    if (left < WAIT_SLICE_NS)
        t.tv_nsec = (long)left;
    /* The sleeper is counted before `finished` is read, and request_poll() sets `finished` before it reads the count. So if
     * another thread takes this request's completion, that thread wakes this one, or this one sees `finished`. If the slot
     * has a new owner by now, the worker may wake this thread for nothing, or nobody wakes it before the slice is over. */
    (void)atomic_fetch_add(&r->sleepers, 1);
    if (!atomic_load(&r->finished) && (atomic_compare_exchange_strong_explicit(state, &expected, FCC_SLOT_WAITING,
                                                                               memory_order_relaxed, memory_order_relaxed) ||
                                       expected == FCC_SLOT_WAITING))
        (void)futex(state, FUTEX_WAIT, FCC_SLOT_WAITING, &t);
    (void)atomic_fetch_sub(&r->sleepers, 1);
}

void slot_wake(const struct fcc_request *r)
{
    (void)futex(&r->context->memory->slot[r->slot].state, FUTEX_WAKE, INT_MAX, NULL);
}

/* ---- submission ring ---- */

/* The head is published. Sequentially consistent: see "doorbell" above. quiet: not if the worker sleeps soundly. */
static void doorbell_ring(struct fcc_context *c, bool quiet)
{
    static const uint64_t one = 1;
    uint32_t sleeps = atomic_load(&c->memory->worker_sleeps);

    if (sleeps == FCC_WORKER_AWAKE || (quiet && sleeps == FCC_WORKER_SLEEPS_SOUNDLY))
        return;
    /* Fails only if the counter is full, and then the doorbell rings already. */
    ssize_t n = write(c->doorbell, &one, sizeof(one));
    (void)n;
}

/* ring_lock held. 1: there is room for `size` bytes, 0: not yet, -EPROTO: the worker's tail is not valid. The worker writes its
 * tail all the time, so it is read only when the tail read before leaves no room. */
static int ring_has_room(struct fcc_context *c, size_t size)
{
    if (FCC_RING_BYTES - (c->head - c->tail) >= size)
        return 1;
    uint64_t tail = atomic_load_explicit(&c->memory->tail, memory_order_acquire);
    if (c->head - tail > FCC_RING_BYTES)
        return -EPROTO;
    c->tail = tail;
    return FCC_RING_BYTES - (c->head - tail) >= size;
}

/* ring_lock held, and there is room. */
static void ring_write(struct fcc_context *c, const struct fcc_msg *msg, size_t size)
{
    size_t at = c->head % FCC_RING_BYTES;
    size_t first = FCC_RING_BYTES - at < msg->length ? FCC_RING_BYTES - at : msg->length;

    memcpy(c->memory->data + at, msg, first);
    memcpy(c->memory->data, (const unsigned char *)msg + first, msg->length - first);
    c->head += size;
    atomic_store(&c->memory->head, c->head); /* sequentially consistent: a release, and see "doorbell" above */
    /* Prefetches the cache lines of the next record, which is assumed to be as long, while the caller waits for this operator. */
    for (at = 0; at < size + CACHE_LINE && at < CACHE_FETCH_MOST; at += CACHE_LINE)
        cache_own(c->memory->data + (c->head + at) % FCC_RING_BYTES);
}

void ring_hurry(struct fcc_context *c)
{
    if (!c->no_ring && !ring_is_taken(c))
        doorbell_ring(c, false);
}

int ring_push(struct fcc_context *c, const struct fcc_submit *msg, bool quiet)
{
    size_t size = (msg->msg.length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
    struct patience patience = {0};
    int64_t limit_ms = 0;
    struct spin spin;
    int room, status;

    for (;;) {
        (void)pthread_mutex_lock(&c->ring_lock);
        room = ring_has_room(c, size);
        if (room > 0)
            ring_write(c, &msg->msg, size);
        (void)pthread_mutex_unlock(&c->ring_lock);
        doorbell_ring(c, quiet && room > 0);
        if (room > 0)
            return 0;

        (void)pthread_mutex_lock(&c->lock);
        if (room < 0)
            context_die(c, -EPROTO, "the worker of job '%s' (pid %u) wrote a wrong tail into the submission ring", c->job,
                        c->worker_pid);
        if (!limit_ms) {
            limit_ms = context_patience_ms(c);
            patience_begin(&patience, limit_ms);
            spin_begin(&spin, c->spin_us, NEVER);
        }
        if (!c->dead.status)
            context_nap(c, &spin);
        if (!c->dead.status && patience_over(&patience))
            (void)context_give_up(c, NULL, limit_ms);
        status = context_dead(c, operator_name(msg->op));
        (void)pthread_mutex_unlock(&c->lock);
        if (status)
            return status;
    }
}
