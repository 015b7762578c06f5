/* SPDX-License-Identifier: MIT
 *
 * Memory order. `claim` is the hand-over: the engine fills in the job, then stores it (release). Who takes a GPU does so by
 * compare-and-swap (acquire) of the whole word, with the job's number in it, so a job that was taken from is the one that is
 * there; and it stays there until `left`, which each GPU counts down (release) when it has been done, is 0 (acquire, the
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

#define GPU_BITS 16 /* of what claim is made of: number << 16 | GPUs that nobody has taken yet */
static_assert(GPU_MAX_GPUS <= GPU_BITS, "a bit for each");

/* A thread, and the GPU that it takes. */
struct gpu_helper {
    struct gpu_starters *starters;
    int gpu;
    pthread_t thread;
};

/* A cache line each: what is taken from, what is counted down, what helpers look at. */
struct gpu_starters {
    _Alignas(64) _Atomic uint64_t claim;
    void (*start)(void *argument, int gpu);
    void *argument;
    _Alignas(64) _Atomic uint32_t left;
    uint32_t spin_us;
    int helpers;
    struct gpu_helper helper[GPU_HELPERS_MAX];
    _Alignas(64) _Atomic uint32_t number; /* futex: of the last job */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
};

/* Of the GPUs in `mine`, those that nobody has taken, one after the other. */
static void job_help(struct gpu_starters *s, uint32_t mine)
{
    uint64_t claim = atomic_load_explicit(&s->claim, memory_order_relaxed);

    for (uint32_t free; (free = (uint32_t)claim & mine) != 0;) {
        uint64_t taken = claim & ~(uint64_t)(free & -free);
        if (!atomic_compare_exchange_weak_explicit(&s->claim, &claim, taken, memory_order_acquire, memory_order_relaxed))
            continue;
        s->start(s->argument, __builtin_ctz(free));
        (void)atomic_fetch_sub_explicit(&s->left, 1, memory_order_release);
        claim = atomic_load_explicit(&s->claim, memory_order_relaxed);
    }
}

static void *helper_main(void *arg)
{
    const struct gpu_helper *h = arg;
    struct gpu_starters *s = h->starters;
    struct spin spin = {0};
    uint32_t seen = 0;

    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        uint32_t number = atomic_load_explicit(&s->number, memory_order_acquire); /* the claim was stored before */
        if (number != seen) {
            seen = number;
            job_help(s, 1u << h->gpu);
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
        s->helper[i] = (struct gpu_helper){.starters = s, .gpu = i + 1}; /* GPU 0 is the engine's own */
        int status = pthread_create(&s->helper[i].thread, NULL, helper_main, &s->helper[i]);
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
        (void)pthread_join(s->helper[i].thread, NULL);
    free(s);
}

void gpu_start_each(struct gpu_starters *s, uint32_t gpus, void (*start)(void *argument, int gpu), void *argument)
{
    uint64_t number = atomic_load_explicit(&s->number, memory_order_relaxed) + UINT64_C(1);
    struct spin spin = {0};

    assert(!(gpus >> GPU_BITS));
    s->start = start;
    s->argument = argument;
    atomic_store_explicit(&s->left, (uint32_t)__builtin_popcount(gpus), memory_order_relaxed);
    atomic_store_explicit(&s->claim, number << GPU_BITS | gpus, memory_order_release);
    if (s->helpers && (gpus & (gpus - 1)))
        helpers_call(s);
    job_help(s, gpus); /* its own first; what is left then, nobody has come for yet */
    while (atomic_load_explicit(&s->left, memory_order_acquire))
        (void)spin_once(&spin, UINT32_MAX); /* who is in the driver returns */
}
