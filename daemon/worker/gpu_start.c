/* SPDX-License-Identifier: MIT
 *
 * Memory order. `claim` is the hand-over: the engine fills in the job, then stores it (release). Who takes an index does so by
 * compare-and-swap (acquire) of the whole word, with the job's number in it, so a job that was taken from is the one that is
 * there; and it stays there until `left`, which each index counts down (release) when it has been done, is 0 (acquire, the
 * engine's). Sleeping is the argument of proto.h's doorbell: the helper counts itself among the sleepers, then looks at the
 * job's number once more (the futex); the engine changes the number, then looks at the sleepers; all sequentially consistent.
 */
#include "gpu_start.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spin.h"

#define INDEX_BITS 8 /* of what claim is made of: number << 16 | n << 8 | the next index */
#define INDEX_MASK 0xffu

struct gpu_starters {
    _Alignas(64) _Atomic uint64_t claim;
    _Alignas(64) _Atomic uint32_t left;
    _Alignas(64) _Atomic uint32_t number; /* futex: of the last job */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    void (*start)(void *argument, int i);
    void *argument;
    uint32_t spin_us;
    int helpers;
    pthread_t threads[GPU_HELPERS_MAX];
};

/* Take and do what there is. */
static void job_help(struct gpu_starters *s)
{
    uint64_t claim = atomic_load_explicit(&s->claim, memory_order_relaxed);

    while ((claim & INDEX_MASK) < (claim >> INDEX_BITS & INDEX_MASK)) {
        if (!atomic_compare_exchange_weak_explicit(&s->claim, &claim, claim + 1, memory_order_acquire, memory_order_relaxed))
            continue;
        s->start(s->argument, (int)(claim & INDEX_MASK));
        (void)atomic_fetch_sub_explicit(&s->left, 1, memory_order_release);
        claim = atomic_load_explicit(&s->claim, memory_order_relaxed);
    }
}

static void *helper_main(void *arg)
{
    struct gpu_starters *s = arg;
    struct spin spin = {0};
    uint32_t seen = 0;

    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        uint32_t number = atomic_load_explicit(&s->number, memory_order_relaxed);
        if (number != seen) {
            seen = number;
            job_help(s);
            spin_reset(&spin);
        } else if (!spin_once(&spin, s->spin_us)) {
            (void)atomic_fetch_add(&s->sleepers, 1);
            (void)syscall(SYS_futex, &s->number, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            (void)atomic_fetch_sub(&s->sleepers, 1);
            spin_reset(&spin);
        }
    }
    return NULL;
}

static void helpers_call(struct gpu_starters *s)
{
    (void)atomic_fetch_add(&s->number, 1);
    if (atomic_load(&s->sleepers))
        (void)syscall(SYS_futex, &s->number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int gpu_starters_open(const struct worker *w, int helpers, struct gpu_starters **out, struct error *e)
{
    struct gpu_starters *s = aligned_alloc(_Alignof(struct gpu_starters), sizeof(*s));

    if (!s)
        return error_set(e, -ENOMEM, "no memory to start operators on GPUs");
    memset(s, 0, sizeof(*s));
    if (helpers > GPU_HELPERS_MAX)
        helpers = GPU_HELPERS_MAX;
    /* The engine, the clients and the helpers may all spin. */
    s->spin_us = w->cores > 3 * (helpers + 1) ? w->config.spin_us : 0;
    for (int i = 0; i < helpers; i++) {
        int status = pthread_create(&s->threads[i], NULL, helper_main, s);
        if (status) {
            gpu_starters_close(s);
            return error_set(e, -status, "cannot start a thread that starts operators on GPUs: %s", strerror(status));
        }
        s->helpers++;
    }
    *out = s;
    return 0;
}

void gpu_starters_close(struct gpu_starters *s)
{
    atomic_store(&s->stop, true);
    helpers_call(s);
    for (int i = 0; i < s->helpers; i++)
        (void)pthread_join(s->threads[i], NULL);
    free(s);
}

void gpu_start_each(struct gpu_starters *s, int n, void (*start)(void *argument, int i), void *argument)
{
    assert(n <= (int)INDEX_MASK);
    if (n < 2 || !s->helpers) {
        for (int i = 0; i < n; i++)
            start(argument, i);
        return;
    }
    uint64_t number = atomic_load_explicit(&s->number, memory_order_relaxed) + UINT64_C(1);
    s->start = start;
    s->argument = argument;
    atomic_store_explicit(&s->left, (uint32_t)n, memory_order_relaxed);
    atomic_store_explicit(&s->claim, number << 2 * INDEX_BITS | (uint64_t)n << INDEX_BITS, memory_order_release);
    helpers_call(s);
    job_help(s);
    while (atomic_load_explicit(&s->left, memory_order_acquire))
        spin_pause();
}
