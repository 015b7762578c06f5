/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/unformed.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/engine/engine.h"
#include "proto/base/clock.h"

#define KEPT_MAX 64u

static_assert(FCC_MAX_RANKS <= 64, "unformed.told has a bit for each rank");

uint64_t rank_bit(int rank)
{
    return rank >= 0 && rank < FCC_MAX_RANKS ? UINT64_C(1) << rank : 0;
}

static void unformed_drop(struct worker *w, struct unformed *u)
{
    TAILQ_REMOVE(&w->unformed, u, link);
    w->nunformed--;
    free(u);
}

static struct unformed *unformed_find(struct worker *w, const struct fcc_unique_id *id)
{
    struct unformed *u, *next;

    for (u = TAILQ_FIRST(&w->unformed); u; u = next) {
        next = TAILQ_NEXT(u, link);
        if (clock_ns() >= u->until_ns)
            unformed_drop(w, u);
        else if (!memcmp(&u->unique_id, id, sizeof(*id)))
            return u;
    }
    return NULL;
}

void unformed_note(struct worker *w, const struct fcc_unique_id *id, uint64_t told, uint32_t limit_ms, const struct error *e)
{
    static const struct fcc_unique_id none;
    struct unformed *u = unformed_find(w, id);

    if (!memcmp(id, &none, sizeof(none)))
        return;
    if (u && u->told & told) { /* who has heard has come again, and with it the communicator */
        unformed_drop(w, u);
        u = NULL;
    }
    if (u) {
        u->told |= told;
        return;
    }
    u = calloc(1, sizeof(*u));
    if (!u)
        return;
    u->unique_id = *id;
    u->error = *e;
    u->told = told;
    u->until_ns = clock_ns() + limit_ms * UINT64_C(1000000);
    if (w->nunformed == KEPT_MAX)
        unformed_drop(w, TAILQ_FIRST(&w->unformed));
    TAILQ_INSERT_TAIL(&w->unformed, u, link);
    w->nunformed++;
}

void unformed_told(struct worker *w, const struct fcc_unique_id *id, int rank)
{
    struct unformed *u = unformed_find(w, id);

    if (u)
        u->told |= rank_bit(rank);
}

bool unformed_tells(struct worker *w, const struct fcc_unique_id *id, int rank, struct error *e)
{
    struct unformed *u = unformed_find(w, id);

    if (!u)
        return false;
    if (u->told & rank_bit(rank)) {
        unformed_drop(w, u);
        return false;
    }
    u->told |= rank_bit(rank);
    *e = u->error;
    return true;
}

void unformed_free(struct worker *w)
{
    struct unformed *u, *next;

    for (u = TAILQ_FIRST(&w->unformed); u; u = next) {
        next = TAILQ_NEXT(u, link);
        unformed_drop(w, u);
    }
}
