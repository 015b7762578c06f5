/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_side.c - a fake GPU's side stream: a thread that stores what it is given, late, and in order.
 */
#include <stdlib.h>

#include "proto/proto.h"
#include "proto/session.h"
#include "tests/fake_gpu/fake_gpu_inside.h"

void side_store(struct gpu *g, uint64_t address, uint64_t value)
{
    struct side_store *s = malloc(sizeof(*s));

    *s = (struct side_store){.address = address, .value = value, .at_ns = now_ns() + control->store_us * UINT64_C(1000)};
    (void)pthread_mutex_lock(&g->lock);
    STAILQ_INSERT_TAIL(&g->stores, s, link);
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}

void side_finish(struct gpu *g)
{
    (void)pthread_mutex_lock(&g->lock);
    while (!STAILQ_EMPTY(&g->stores))
        (void)pthread_cond_wait(&g->changed, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
}

/* Words of streams, and epochs, which are compared by their lower halves; or an epoch that no operator has. */
static bool goes_back(uint64_t before, uint64_t now)
{
    uint32_t seen = (uint32_t)before, value = (uint32_t)now;

    return now != UINT64_MAX && (int32_t)(value - seen) < 0 && seen != fcc_stream_passed(value);
}

void *side_main(void *argument)
{
    struct gpu *g = argument;

    (void)pthread_mutex_lock(&g->lock);
    while (!STAILQ_EMPTY(&g->stores) || !g->end) {
        struct side_store *s = STAILQ_FIRST(&g->stores);
        if (!s) {
            (void)pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&g->lock);
        while (now_ns() < s->at_ns)
            gpu_nap();
        (void)pthread_mutex_lock(&g->lock);
        uint64_t before = atomic_exchange((_Atomic uint64_t *)pointer(s->address), s->value);
        wrong(goes_back(before, s->value), "a store in passing comes too late");
        STAILQ_REMOVE_HEAD(&g->stores, link);
        free(s);
        (void)pthread_cond_broadcast(&g->changed);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}
