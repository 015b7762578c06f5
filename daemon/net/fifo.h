/* SPDX-License-Identifier: MIT
 *
 * fifo.h - the trigger FIFO: many producers (workgroups) hand 16 bytes each to one consumer (the proxy thread).
 *
 * A producer takes a position with one fetch-add and stores the trigger there. A slot of which one of the words is 0 has no trigger yet:
 * no launch has number 0, and no trigger is of no kind. The consumer reads the slots in order, empties each and then moves `tail`.
 * Nothing but 8-byte stores and loads and the one fetch-add is needed, so kernels do the same over pinned host memory, each GPU's in a
 * FIFO of its own (and keep `head`, which the consumer never looks at, in their own memory): kernels/gpu/device/triggers.h.
 *
 * Memory order:
 * - What the trigger is about. The producer's stores (the slice) come before its store of the first word (release) or, on a GPU, before
 *   a fence that comes before both words; the consumer loads both words (acquire), then the slice. So all is there when neither
 *   word is 0.
 * - The slot's next use. The consumer reads both words and empties them, then stores tail (release). A producer loads tail
 *   (acquire) before it takes a position (release and acquire), and only then stores there. So its stores come after those reads,
 *   and its words after the 0s (below: why also if it was another producer who saw that tail).
 * - Order. If a thread has seen that another one's push is done (acquire), that push's fetch-add happened before its own, and
 *   one word's changes have one order: its position is the greater one, and the consumer goes by positions.
 * - Sleep. The consumer stores `sleeps`, then looks at the slot once more; a producer stores the slot, then loads `sleeps`; all
 *   four sequentially consistent. So either the consumer sees the trigger or the producer sees that it has to ring.
 *
 * Full: a producer looks *before* it takes a position whether so many are free that all producers could take one at once. So it
 * can turn round and leave if it waits in vain, without leaving a hole in the FIFO, and still nothing is overwritten. Proof:
 * say a producer took p, where p - tail >= capacity at that time. Of the `producers` + 1 positions up to p one producer
 * took two, q1 < q2. It looked for q2 after it had taken q1, so it saw a head h >= q1 + 1 >= p - producers + 1 and, to go on, a
 * tail t with h - t <= capacity - producers. Hence t >= p + 1 - capacity, and tail never goes back: p - tail < capacity. Who took
 * p need not have seen that tail itself; but q2 <= p, and each fetch-add acquires what those before it released, so it comes
 * after what was read in the slot all the same.
 */
#ifndef FCC_DAEMON_NET_FIFO_H
#define FCC_DAEMON_NET_FIFO_H

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/spin.h"

/* What a kernel hands the proxy. */
struct fcc_trigger {
    uint32_t launch; /* the proxy's number of a running operator; not 0 */
    uint16_t rank;   /* whose plan */
    uint16_t dst;    /* a rank */
    uint32_t what;   /* FCC_TRIGGER_* | the number of a slice or a flag */
    uint32_t epoch;
};
static_assert(sizeof(struct fcc_trigger) == 16, "shared by host and devices");

#define FCC_TRIGGER_PUT 0x40000000u  /* send that slice */
#define FCC_TRIGGER_FLAG 0x80000000u /* raise that flag, behind what was sent */
#define FCC_TRIGGER_END 0xc0000000u  /* the launch pushes nothing more: say when its sources are free */
#define FCC_TRIGGER_KIND 0xc0000000u
#define FCC_TRIGGER_NUMBER 0x3fffffffu

struct fifo_slot {
    _Atomic uint64_t first;  /* launch, rank, dst; 0: empty */
    _Atomic uint64_t second; /* what, epoch */
};
static_assert(sizeof(struct fifo_slot) == sizeof(struct fcc_trigger), "shared by host and devices");

struct fifo {
    _Alignas(64) _Atomic uint64_t head;   /* positions taken. Producers write */
    _Alignas(64) _Atomic uint64_t tail;   /* positions done with. The consumer writes */
    _Alignas(64) _Atomic uint32_t sleeps; /* 1: ring the doorbell. The consumer sets it, who rings clears it */
    struct fifo_slot *slots;              /* the rest does not change */
    uint32_t capacity;                    /* a power of two */
    uint32_t producers;                   /* threads that may push at the same time, at most */
    int doorbell;                         /* an eventfd that does not block, or -1 */
};
static_assert(sizeof(struct fifo) % 64 == 0, "layout");

/* The slots are the caller's, zeroed. Twice as many as producers at least, or they would keep each other waiting. */
static inline int fifo_init(struct fifo *f, struct fifo_slot *slots, uint32_t capacity, uint32_t producers, int doorbell)
{
    if (!capacity || capacity & (capacity - 1) || !producers || producers > capacity / 2)
        return -EINVAL;
    atomic_init(&f->head, 0);
    atomic_init(&f->tail, 0);
    atomic_init(&f->sleeps, 0);
    f->slots = slots;
    f->capacity = capacity;
    f->producers = producers;
    f->doorbell = doorbell;
    return 0;
}

/* Waits while the FIFO is full, unless *status (may be NULL) is or becomes other than 0: then false, and nothing was pushed. */
static inline bool fifo_push(struct fifo *f, struct fcc_trigger trigger, const _Atomic uint32_t *status)
{
    static const uint64_t one = 1;
    struct spin spin = {0};
    uint64_t words[2];

    assert(trigger.launch && trigger.what);
    memcpy(words, &trigger, sizeof(words));
    for (;;) {
        uint64_t head = atomic_load_explicit(&f->head, memory_order_relaxed);
        uint64_t tail = atomic_load_explicit(&f->tail, memory_order_acquire);
        if ((int64_t)(head - tail) <= (int64_t)(f->capacity - f->producers)) /* tail may be younger than head */
            break;
        if (status && atomic_load_explicit(status, memory_order_relaxed))
            return false;
        (void)spin_once(&spin, UINT32_MAX);
    }
    uint64_t at = atomic_fetch_add_explicit(&f->head, 1, memory_order_acq_rel);
    struct fifo_slot *slot = &f->slots[at & (f->capacity - 1)];
    atomic_store_explicit(&slot->second, words[1], memory_order_relaxed);
    atomic_store_explicit(&slot->first, words[0], memory_order_seq_cst);
    if (atomic_load_explicit(&f->sleeps, memory_order_seq_cst) &&
        atomic_exchange_explicit(&f->sleeps, 0, memory_order_relaxed)) {
        ssize_t n = write(f->doorbell, &one, sizeof(one)); /* fails only if it rings already */
        (void)n;
    }
    return true;
}

/* ---- the consumer ---- */

static inline bool fifo_is_empty(const struct fifo *f)
{
    uint64_t at = atomic_load_explicit(&f->tail, memory_order_relaxed);

    return !atomic_load_explicit(&f->slots[at & (f->capacity - 1)].first, memory_order_acquire);
}

static inline bool fifo_pop(struct fifo *f, struct fcc_trigger *out)
{
    uint64_t words[2];
    uint64_t at = atomic_load_explicit(&f->tail, memory_order_relaxed);
    struct fifo_slot *slot = &f->slots[at & (f->capacity - 1)];

    words[0] = atomic_load_explicit(&slot->first, memory_order_acquire);
    words[1] = atomic_load_explicit(&slot->second, memory_order_acquire);
    if (!words[0] || !words[1])
        return false;
    atomic_store_explicit(&slot->first, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->second, 0, memory_order_relaxed);
    atomic_store_explicit(&f->tail, at + 1, memory_order_release);
    memcpy(out, words, sizeof(words));
    return true;
}

/* Announce that the consumer is going to sleep until the doorbell rings: true. False: there is a trigger, do not. */
static inline bool fifo_sleep(struct fifo *f)
{
    uint64_t at = atomic_load_explicit(&f->tail, memory_order_relaxed);

    atomic_store_explicit(&f->sleeps, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&f->slots[at & (f->capacity - 1)].first, memory_order_seq_cst))
        return true;
    atomic_store_explicit(&f->sleeps, 0, memory_order_relaxed);
    return false;
}

static inline void fifo_wake(struct fifo *f)
{
    atomic_store_explicit(&f->sleeps, 0, memory_order_relaxed);
}

#endif
