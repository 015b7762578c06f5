/* SPDX-License-Identifier: MIT
 *
 * share.h - what a worker and its broker say to each other about whose turn it is on a GPU, in two pages at the end of the worker's ledger
 * (ledger.h). Neither waits for the other, and there is no message for an operator. daemon/DESIGN.md, "Shares", has the whole of it.
 *
 * The worker counts, for each GPU, for how long operators that it has launched have occupied it, and whether it holds operators back. The broker
 * compares the workers of a GPU while there are two or more that use it, and says up to which of its own counts a worker may launch
 * (daemon/broker/share/). The worker compares the two before it launches an operator (daemon/worker/device/gpu/share.c).
 *
 * Memory order. All words are loaded and stored whole and relaxed, each has one writer, and each is true by itself: a word that is read too early is
 * one of a moment ago. Nothing that must be safe depends on it, as every wait ends by a clock. `bell` alone has two writers, who exchange it.
 *
 * Trust. A worker runs as its user and may write anything into both pages. The broker never reads what it has said there itself, but for the bell, which
 * only makes it look. Of what a worker says it believes a growth of `used_ns`, up to a limit, and no wait of a worker that it has not told to wait. So a
 * worker that lies gets what a worker without a share gets, what it could take anyway: to launch without asking. It cannot make others wait longer than
 * one that launches all the time.
 */
#ifndef FCC_DAEMON_COMMON_SHARE_H
#define FCC_DAEMON_COMMON_SHARE_H

#include <assert.h>
#include <stdint.h>

#define SHARE_GPUS 16

#define SHARE_PERIOD_NS UINT64_C(2000000)     /* between two words of the broker, while a GPU is shared */
#define SHARE_ACTIVE_NS UINT64_C(100000000)   /* a worker that has used a GPU so recently shares it */
#define SHARE_SILENT_NS UINT64_C(20000000)    /* the broker's last word is void when it is older: it is restarted, or hangs */
#define SHARE_HOLD_NS UINT64_C(100000000)     /* no operator is held back for longer */
#define SHARE_HOLD_NODES_NS UINT64_C(4000000) /* ... that other nodes may wait for */
#define SHARE_SAVED_NS (2 * SHARE_PERIOD_NS)  /* so much of its part a worker may save up */
#define SHARE_DEBT_NS UINT64_C(100000000)     /* ... and so much it may owe */
#define SHARE_FREE UINT64_MAX                 /* no limit */

/* The worker writes. */
struct share_said {
    uint64_t used_ns
        [SHARE_GPUS]; /* how long its kernels have occupied the GPU: grows when one ends, and never faster than the clock */
    uint64_t running[SHARE_GPUS];  /* launches that are enqueued there */
    uint64_t ahead_ns[SHARE_GPUS]; /* how long those will take, as far as the worker knows from when they ran last */
    uint64_t waiting[SHARE_GPUS];  /* communicators whose next operator is held back there */
    uint64_t waits[SHARE_GPUS];    /* how often one has begun to be */
    uint64_t busy_ns
        [SHARE_GPUS]; /* for how long, in all, something of it has been in the GPU's queues, up to when there was nothing last */
    uint64_t since_ns[SHARE_GPUS]; /* ... and since when there is again (CLOCK_MONOTONIC). 0: there is nothing */
};

/* The broker writes. */
struct share_told {
    uint64_t bell;    /* 1: the worker is to ring when it launches next (both exchange it) */
    uint64_t limited; /* a bit for each GPU on which there is a limit */
    uint64_t when_ns; /* CLOCK_MONOTONIC of the broker's last word */
    uint64_t zero[5];
    uint64_t until_ns[SHARE_GPUS]; /* the worker may launch until used_ns is so large */
};

struct share {
    struct share_said said;
    _Alignas(4096) struct share_told told;
};
static_assert(sizeof(struct share_said) <= 4096 && sizeof(struct share) == 8192, "a page for each writer");

static inline uint64_t share_get(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void share_set(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

#endif
