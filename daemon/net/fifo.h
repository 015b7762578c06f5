/* SPDX-License-Identifier: MIT
 *
 * fifo.h - the trigger FIFO: many producers (workgroups) push triggers of 16 bytes to one consumer (the proxy thread).
 *
 * The FIFO is a ring of slots of two 8-byte words each. A producer takes a position with one fetch-add on `head`, and stores its
 * trigger's two words into the slot of that position. A trigger is complete when both words of its slot are not 0: launch numbers
 * and kinds are not 0, so no trigger has a word of 0. The consumer reads the slots in order. It stores 0 into both words of a slot
 * that it has read, and then advances `tail`. A push needs only 8-byte loads and stores and one fetch-add, so GPU kernels can push
 * into pinned host memory (kernels/gpu/device/triggers.h). Each GPU has a FIFO of its own, and keeps `head`, which the consumer
 * never reads, in GPU memory.
 *
 * Memory order:
 * - Data. The producer stores the slice, then the trigger's first word (release). A GPU stores the slice, executes a fence, and
 *   then stores both words. The consumer loads both words (acquire), then the slice. So the slice is complete when neither word is
 *   0.
 * - Reuse of a slot. The consumer loads both words and stores 0 into them, then stores tail (release). A producer loads tail
 *   (acquire) before it takes a position (acquire and release), and only then stores its words. So its stores come after the
 *   consumer's loads and zeroes. (The proof below covers the case that another producer loaded that tail.)
 * - Order of triggers. If a thread has observed (acquire) that another thread's push is complete, that push's fetch-add happened
 *   before the thread's own next fetch-add. All changes of `head` have one order, so the thread's position is greater. The consumer
 *   takes triggers in the order of positions.
 * - Sleep. The consumer stores `sleeps`, then loads the slot once more. A producer stores the slot, then loads `sleeps`. All
 *   four are sequentially consistent. So either the consumer sees the trigger, or the producer sees that it has to ring.
 *
 * Full FIFO: *before* a producer takes a position, it checks that enough slots are free for all producers to take one at once. So
 * a producer that gives up waiting leaves no empty slot in the FIFO, and no slot is overwritten before it is read. Proof: assume that a
 * producer took position p while p - tail >= capacity. At least one producer took two of the `producers` + 1 positions up to p,
 * q1 < q2. It checked for q2 after it had taken q1. So it read a head h >= q1 + 1 >= p - producers + 1 and, to go on, a tail t
 * with h - t <= capacity - producers. Hence t >= p + 1 - capacity, and as tail never decreases, p - tail < capacity: a
 * contradiction. The producer of p may not have read that tail itself. But q2 <= p, and each fetch-add acquires what earlier
 * ones released, so its stores come after the consumer's loads of the slot nevertheless.
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

/* What a kernel pushes to the proxy. */
struct fcc_trigger {
    uint32_t launch; /* the proxy's number of a running operator; not 0 */
    uint16_t rank;   /* the rank whose plan has the slice or flag */
    uint16_t dst;    /* the destination rank */
    uint32_t what;   /* FCC_TRIGGER_* | the slice's or flag's number */
    uint32_t epoch;
};
static_assert(sizeof(struct fcc_trigger) == 16, "shared by host and devices");

#define FCC_TRIGGER_PUT 0x40000000u  /* send that slice */
#define FCC_TRIGGER_FLAG 0x80000000u /* raise that flag after everything sent before */
#define FCC_TRIGGER_END 0xc0000000u  /* the launch's last trigger: report when the sources of all its sends are free */
#define FCC_TRIGGER_KIND 0xc0000000u
#define FCC_TRIGGER_NUMBER 0x3fffffffu

struct fifo_slot {
    _Atomic uint64_t first;  /* launch, rank, dst; 0: empty */
    _Atomic uint64_t second; /* what, epoch */
};
static_assert(sizeof(struct fifo_slot) == sizeof(struct fcc_trigger), "shared by host and devices");

struct fifo {
    _Alignas(64) _Atomic uint64_t head;   /* positions taken; written by producers */
    _Alignas(64) _Atomic uint64_t tail;   /* positions consumed; written by the consumer */
    _Alignas(64) _Atomic uint32_t sleeps; /* 1: ring the doorbell; set by the consumer, cleared by the producer that rings */
    /* The fields from here on are constant. */
    struct fifo_slot *slots;
    uint32_t capacity;  /* slots; a power of two */
    uint32_t producers; /* the most threads that push at the same time */
    int doorbell;       /* a non-blocking eventfd, or -1 */
};
static_assert(sizeof(struct fifo) % 64 == 0, "layout");

/* `slots` is zeroed memory of the caller. capacity is at least twice producers, else producers would keep each other
 * waiting. */
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

/* Is there room for all producers to push at once? */
static inline bool fifo_has_room(const struct fifo *f)
{
    uint64_t head = atomic_load_explicit(&f->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&f->tail, memory_order_acquire);

    return (int64_t)(head - tail) <= (int64_t)(f->capacity - f->producers); /* tail was loaded later, and may be past head */
}

/* Pushes a trigger; waits while the FIFO is full. Gives up, and returns false, if *status becomes not 0 meanwhile; `status` may
 * be NULL. */
static inline bool fifo_push(struct fifo *f, struct fcc_trigger trigger, const _Atomic uint32_t *status)
{
    static const uint64_t one = 1;
    struct spin spin = {0};
    uint64_t words[2];

    assert(trigger.launch && trigger.what);
    memcpy(words, &trigger, sizeof(words));
    while (!fifo_has_room(f)) {
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
        ssize_t n = write(f->doorbell, &one, sizeof(one)); /* fails only if the counter is full, so the bell rings already */
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

/* Has the consumer taken all that the calling thread has pushed, and what threads have pushed that it has synchronised with? (Their places are in
 * `head` then.) The caller keeps the consumer from consuming. Unlike fifo_is_empty(), which may see another producer's
 * place that is not written yet, with later ones behind it. */
static inline bool fifo_is_drained(const struct fifo *f)
{
    return atomic_load_explicit(&f->head, memory_order_relaxed) == atomic_load_explicit(&f->tail, memory_order_relaxed);
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

/* Announces that the consumer is about to sleep until the doorbell rings. Returns false if there is a trigger: then the consumer must
 * not sleep. */
static inline bool fifo_sleep(struct fifo *f)
{
    uint64_t at = atomic_load_explicit(&f->tail, memory_order_relaxed);

    atomic_store_explicit(&f->sleeps, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&f->slots[at & (f->capacity - 1)].first, memory_order_seq_cst))
        return true;
    atomic_store_explicit(&f->sleeps, 0, memory_order_relaxed);
    return false;
}

/* The consumer no longer sleeps: producers need not ring. */
static inline void fifo_wake(struct fifo *f)
{
    atomic_store_explicit(&f->sleeps, 0, memory_order_relaxed);
}

#endif
