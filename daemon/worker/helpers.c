/* SPDX-License-Identifier: MIT
 *
 * Memory order. `claim` is the hand-over: the engine fills in the job, then stores it (release). Who takes a part does so by
 * compare-and-swap (acquire) of the whole word, with the job's number in it, so a job that was taken from is the one that is
 * there; and it stays there until `left`, which each part counts down (release) when it has been done, is 0 (acquire, the
 * engine's). Sleeping is the argument of proto.h's doorbell: the helper says that it sleeps, then looks at its call
 * once more (the futex); the engine changes the call, then looks whether it sleeps; all sequentially consistent.
 */
#include "helpers.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spin.h"

#define PART_BITS 16 /* of what claim is made of: number << 16 | parts that nobody has taken yet */
static_assert(HELPERS_PARTS <= PART_BITS, "a bit for each");

/* A thread and the part that it takes: a cache line, which the engine writes to if there is such a part. */
struct helper {
    _Alignas(64) _Atomic uint32_t call; /* futex: moved when there is a job for it */
    _Atomic bool sleeps;
    struct helpers *helpers;
    int part;
    pthread_t thread;
};

/* A cache line each: what is taken from, what is counted down. */
struct helpers {
    _Alignas(64) _Atomic uint64_t claim;
    void (*run)(void *argument, int i);
    void *argument;
    _Alignas(64) _Atomic uint32_t left;
    _Alignas(64) uint64_t number; /* of the last job; the engine's */
    uint32_t spin_us;
    int n;
    _Atomic bool stop;
    struct helper helper[HELPERS_MAX];
};

/* Of the parts in `mine`, those that nobody has taken, one after the other. */
static void job_help(struct helpers *h, uint32_t mine)
{
    uint64_t claim = atomic_load_explicit(&h->claim, memory_order_relaxed);

    for (uint32_t free; (free = (uint32_t)claim & mine) != 0;) {
        uint64_t taken = claim & ~(uint64_t)(free & -free);
        if (!atomic_compare_exchange_weak_explicit(&h->claim, &claim, taken, memory_order_acquire, memory_order_relaxed))
            continue;
        h->run(h->argument, __builtin_ctz(free));
        (void)atomic_fetch_sub_explicit(&h->left, 1, memory_order_release);
        claim = atomic_load_explicit(&h->claim, memory_order_relaxed);
    }
}

static void *helper_main(void *arg)
{
    struct helper *me = arg;
    struct helpers *h = me->helpers;
    struct spin spin = {0};
    uint32_t seen = 0;

    while (!atomic_load_explicit(&h->stop, memory_order_relaxed)) {
        uint32_t call = atomic_load_explicit(&me->call, memory_order_acquire); /* the claim was stored before */
        if (call != seen) {
            seen = call;
            job_help(h, 1u << me->part);
            spin_reset(&spin);
        } else if (!spin_once(&spin, h->spin_us)) {
            atomic_store(&me->sleeps, true);
            (void)syscall(SYS_futex, &me->call, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_store(&me->sleeps, false);
            spin_reset(&spin);
        }
    }
    return NULL;
}

static void helper_call(struct helper *h, bool rouse)
{
    (void)atomic_fetch_add(&h->call, 1);
    if (rouse && atomic_load(&h->sleeps))
        (void)syscall(SYS_futex, &h->call, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int helpers_open(int n, uint32_t spin_us, struct helpers **out, struct error *e)
{
    struct helpers *h = aligned_alloc(_Alignof(struct helpers), sizeof(*h));

    if (!h)
        return error_set(e, -ENOMEM, "no memory for threads that help the engine");
    memset(h, 0, sizeof(*h));
    h->spin_us = spin_us;
    for (int i = 0; i < n && i < HELPERS_MAX; i++) {
        struct helper *helper = &h->helper[i];
        helper->helpers = h;
        helper->part = i + 1; /* part 0 is the engine's own */
        int status = pthread_create(&helper->thread, NULL, helper_main, helper);
        if (status) {
            helpers_close(h);
            return error_set(e, -status, "cannot start a thread that helps the engine: %s", strerror(status));
        }
        h->n++;
    }
    *out = h;
    return 0;
}

void helpers_close(struct helpers *h)
{
    if (!h)
        return;
    atomic_store(&h->stop, true);
    for (int i = 0; i < h->n; i++)
        helper_call(&h->helper[i], true);
    for (int i = 0; i < h->n; i++)
        (void)pthread_join(h->helper[i].thread, NULL);
    free(h);
}

void helpers_run(struct helpers *h, uint32_t parts, bool rouse, void (*run)(void *argument, int i), void *argument)
{
    struct spin spin = {0};

    assert(!(parts >> PART_BITS));
    h->run = run;
    h->argument = argument;
    atomic_store_explicit(&h->left, (uint32_t)__builtin_popcount(parts), memory_order_relaxed);
    atomic_store_explicit(&h->claim, ++h->number << PART_BITS | parts, memory_order_release);
    for (int i = 0; i < h->n && (parts & (parts - 1)); i++)
        if (parts >> h->helper[i].part & 1u)
            helper_call(&h->helper[i], rouse);
    job_help(h, parts); /* its own first; what is left then, nobody has come for yet */
    while (atomic_load_explicit(&h->left, memory_order_acquire))
        (void)spin_once(&spin, UINT32_MAX); /* who runs a part returns */
}
