/* SPDX-License-Identifier: MIT
 *
 * A part is handed over in a cache line of its helper's, which is all that moves between the two cores before the helper begins.
 *
 * Memory order. `offer` is the hand-over: the engine fills in the job, then stores the offer (release). Who takes the part does so by
 * compare-and-swap of that offer (acquire): the helper, or the engine, if the helper has not come. The job stays as it is until the
 * part is over, which the helper says in `over` (release; acquire, the engine's).
 *
 * Sleeping: the helper says that it sleeps, then sleeps if the offer is still the one that it knows (the futex looks). The engine
 * looks whether it sleeps, then stores the offer, with no fence between: so a helper that goes to sleep just then may miss it.
 * Then it is the engine that takes the part, and the next offer finds the helper asleep and wakes it.
 */
#include "daemon/worker/device/helpers.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/spin.h"

/* helper.offer: twice the job's number, plus TAKEN when the part has been taken. 0: nothing has been offered yet. */
#define OFFER(number) ((number)*2u)
#define TAKEN 1u
#define REST_NS 50000
static_assert(HELPERS_PARTS <= 32, "a bit for each");

/* A helper thread, and its offered part. */
struct helper {
    _Alignas(64) _Atomic uint32_t offer; /* futex. Stored by the engine; whoever takes the part adds TAKEN */
    bool (*run)(void *argument, int i);
    void *argument;
    _Alignas(64) _Atomic uint32_t over; /* the last offer that the helper has taken and finished */
    _Alignas(64) _Atomic bool sleeps;   /* this cache line rarely changes */
    struct helpers *helpers;
    int part;
    pthread_t thread;
};

struct helpers {
    struct helper helper[HELPERS_MAX];
    uint32_t number; /* of the last job; the engine's */
    uint32_t spin_us;
    int n;
    _Atomic bool stop;
};

static bool offer_take(struct helper *h, uint32_t offer)
{
    return atomic_compare_exchange_strong_explicit(&h->offer, &offer, offer | TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* ---- the helpers ---- */

/* Pause between two looks. A helper mostly has a core to itself: then it goes back to pausing after each yield. */
static bool helper_pause(struct spin *spin, uint32_t limit_us)
{
    if (!spin_once(spin, limit_us))
        return false;
    if (!spin_keeps_core(spin) && !spin->shared)
        spin->turns = 1;
    return true;
}

/* Sleep briefly: the awaited work is under way, and other threads need this core more than further yields would give them (spin.h). */
static void rest(struct spin *spin)
{
    const struct timespec time = {.tv_nsec = REST_NS};

    (void)nanosleep(&time, NULL);
    spin_reset(spin);
}

static void part_help(struct helper *me, uint32_t offer)
{
    struct spin spin = {0};

    if (!offer_take(me, offer))
        return; /* the engine has */
    while (!me->run(me->argument, me->part))
        if (!helper_pause(&spin, UINT32_MAX))
            rest(&spin);
    atomic_store_explicit(&me->over, offer, memory_order_release);
}

static void *helper_main(void *arg)
{
    struct helper *me = arg;
    struct helpers *h = me->helpers;
    struct spin spin = {0};

    for (;;) {
        uint32_t offer = atomic_load_explicit(&me->offer, memory_order_acquire); /* before `stop`: helpers_close() */
        if (atomic_load_explicit(&h->stop, memory_order_relaxed))
            return NULL;
        if (offer && !(offer & TAKEN)) {
            part_help(me, offer);
            spin_reset(&spin);
        } else if (!helper_pause(&spin, h->spin_us)) {
            atomic_store_explicit(&me->sleeps, true, memory_order_relaxed);
            (void)syscall(SYS_futex, &me->offer, FUTEX_WAIT_PRIVATE, offer, NULL, NULL, 0);
            atomic_store_explicit(&me->sleeps, false, memory_order_relaxed);
            spin_reset(&spin);
        }
    }
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
    atomic_store_explicit(&h->stop, true, memory_order_relaxed);
    h->number++;
    for (int i = 0; i < h->n; i++) { /* who has not seen the new value does not sleep for the old one; who has, sees `stop` */
        atomic_store_explicit(&h->helper[i].offer, OFFER(h->number) | TAKEN, memory_order_release);
        (void)syscall(SYS_futex, &h->helper[i].offer, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    for (int i = 0; i < h->n; i++)
        (void)pthread_join(h->helper[i].thread, NULL);
    free(h);
}

/* ---- the engine ---- */

static struct helper *helper_of(struct helpers *h, uint32_t bit)
{
    return &h->helper[__builtin_ctz(bit) - 1];
}

static void part_offer(struct helper *h, uint32_t offer, bool rouse, bool (*run)(void *argument, int i), void *argument)
{
    bool sleeps = atomic_load_explicit(&h->sleeps, memory_order_relaxed);

    h->run = run;
    h->argument = argument;
    atomic_store_explicit(&h->offer, offer, memory_order_release);
    if (rouse && sleeps)
        (void)syscall(SYS_futex, &h->offer, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Offer these parts to their helpers. Returns those that have one. */
static uint32_t parts_offer(struct helpers *h, uint32_t parts, uint32_t offer, bool rouse, bool (*run)(void *argument, int i),
                            void *argument)
{
    uint32_t offered = parts & (uint32_t)((UINT64_C(2) << h->n) - 2); /* helper i has part i + 1 */

    for (uint32_t rest = offered; rest; rest &= rest - 1)
        part_offer(helper_of(h, rest), offer, rouse, run, argument);
    return offered;
}

void helpers_run(struct helpers *h, uint32_t parts, bool rouse, bool (*run)(void *argument, int i), void *argument)
{
    uint32_t offer = OFFER(++h->number), helped = 0;
    uint32_t offered = parts_offer(h, parts & (parts - 1), offer, rouse, run, argument), mine = parts & ~offered;
    struct spin spin = {0};

    assert(!(parts >> HELPERS_PARTS));
    while (mine || offered) {
        bool progress = offered != 0;
        for (uint32_t rest = mine; rest; rest &= rest - 1)
            if (run(argument, __builtin_ctz(rest))) {
                mine &= ~(rest & -rest);
                progress = true;
            }
        if (offered) { /* try a part that no helper has taken yet */
            uint32_t bit = offered & -offered;
            bool taken = offer_take(helper_of(h, bit), offer);
            offered &= ~bit;
            mine |= taken ? bit : 0;
            helped |= taken ? 0 : bit;
        }
        if (progress)
            spin_reset(&spin);
        else if (!spin_once(&spin, UINT32_MAX))
            rest(&spin);
    }
    for (; helped; helped &= helped - 1)
        while (atomic_load_explicit(&helper_of(h, helped)->over, memory_order_acquire) != offer)
            if (!spin_once(&spin, UINT32_MAX))
                rest(&spin);
}
