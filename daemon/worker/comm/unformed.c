/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/unformed.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/engine/engine.h"
#include "proto/base/clock.h"

#define KEPT_MAX 64u

/* Whether the rank that a request names is valid. */
static bool rank_is_any(int rank)
{
    return rank >= 0 && rank < FCC_MAX_RANKS;
}

static void unformed_drop(struct worker *w, struct unformed *u)
{
    TAILQ_REMOVE(&w->unformed, u, link);
    w->nunformed--;
    free(u);
}

static struct unformed *unformed_find(struct worker *w, const struct fcc_unique_id *id)
{
    struct unformed *u;

    TAILQ_FOREACH(u, &w->unformed, link)
        if (clock_ns() < u->until_ns && !memcmp(&u->unique_id, id, sizeof(*id)))
            return u;
    return NULL;
}

/* Free the entries whose time has passed, and the oldest one if the list is full. */
static void unformed_make_room(struct worker *w)
{
    struct unformed *u, *next;

    TAILQ_FOREACH_SAFE(u, &w->unformed, link, next) {
        if (w->nunformed == KEPT_MAX || clock_ns() >= u->until_ns)
            unformed_drop(w, u);
    }
}

void unformed_note(struct worker *w, const struct fcc_unique_id *id, const struct rankset *told, uint32_t limit_ms,
                   const struct error *e)
{
    static const struct fcc_unique_id none;
    struct unformed *u = unformed_find(w, id);

    if (!memcmp(id, &none, sizeof(none)))
        return;
    if (u &&
        rankset_meets(&u->told, told)) { /* a rank that had heard has joined again, and with it a new communicator has begun */
        unformed_drop(w, u);
        u = NULL;
    }
    if (u) {
        rankset_join(&u->told, told);
        return;
    }
    unformed_make_room(w);
    u = calloc(1, sizeof(*u));
    if (!u)
        return;
    u->unique_id = *id;
    u->error = *e;
    u->told = *told;
    u->until_ns = clock_ns() + limit_ms * UINT64_C(1000000);
    TAILQ_INSERT_TAIL(&w->unformed, u, link);
    w->nunformed++;
}

void unformed_told(struct worker *w, const struct fcc_unique_id *id, int rank)
{
    struct unformed *u = unformed_find(w, id);

    if (u && rank_is_any(rank))
        rankset_add(&u->told, rank);
}

bool unformed_tells(struct worker *w, const struct fcc_unique_id *id, int rank, struct error *e)
{
    struct unformed *u = unformed_find(w, id);

    if (!u)
        return false;
    if (rank_is_any(rank) && rankset_has(&u->told, rank)) {
        unformed_drop(w, u);
        return false;
    }
    if (rank_is_any(rank))
        rankset_add(&u->told, rank);
    *e = u->error;
    return true;
}

void unformed_free(struct worker *w)
{
    struct unformed *u, *next;

    TAILQ_FOREACH_SAFE(u, &w->unformed, link, next)
        unformed_drop(w, u);
}

void unformed_note_rank(struct worker *w, const struct fcc_unique_id *id, int rank, uint32_t limit_ms, const struct error *e)
{
    struct rankset told = {{0}};

    if (rank_is_any(rank))
        rankset_add(&told, rank);
    unformed_note(w, id, &told, limit_ms, e);
}
