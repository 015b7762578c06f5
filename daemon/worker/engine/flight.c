/* SPDX-License-Identifier: MIT */
#include "daemon/worker/engine/flight.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#include "proto/base/clock.h"

/* A place that was never used, otherwise the one whose communicator ended first. */
static struct flight_comm *place_find(struct flight *f)
{
    struct flight_comm *best = NULL;

    for (unsigned i = 0; i < FLIGHT_COMMS; i++) {
        struct flight_comm *c = &f->comms[i];
        if (!atomic_load_explicit(&c->number, memory_order_relaxed))
            return c;
        if (c->ended_ns && (!best || c->ended_ns < best->ended_ns))
            best = c;
    }
    return best;
}

struct flight_comm *flight_open(struct worker *w, uint32_t number, int nranks)
{
    struct flight_comm *f = w->flight ? place_find(w->flight) : NULL;

    /* The pages are made now: without memory for them a store would kill the worker. */
    if (f && fallocate(w->ledger, 0, (off_t)((char *)f - (char *)w->flight), sizeof(*f)))
        f = NULL;
    if (!f) {
        if (w->flight)
            w->flight->unrecorded++;
        return NULL;
    }
    atomic_store_explicit(&f->number, 0, memory_order_relaxed);
    __atomic_store_n(&f->nranks, (uint32_t)nranks, __ATOMIC_RELEASE); /* this and the rest behind the 0, as in flight_came() */
    flight_words_store((char *)f + offsetof(struct flight_comm, state), NULL, sizeof(*f) - offsetof(struct flight_comm, state));
    f->state = FLIGHT_COMM_ACTIVE;
    f->formed_ns = clock_ns();
    atomic_store_explicit(&f->number, number, memory_order_release);
    return f;
}

void flight_launched(struct flight_comm *f, const struct flight_launched *now)
{
    if (!f)
        return;
    struct flight_launched *l = &f->launched;
    __atomic_store_n(&l->ended, now->ended, __ATOMIC_RELAXED);
    const uint32_t prepared = atomic_load_explicit(&l->prepared, memory_order_relaxed);
    if (!prepared && !now->prepared)
        return;
    if (prepared == now->prepared && l->run == now->run && l->missing == now->missing)
        return;
    atomic_store_explicit(&l->prepared, 0, memory_order_relaxed); /* and what follows behind it, as in flight_came() */
    const uint64_t what[] = {now->op, now->since_ns, now->missing};
    __atomic_store_n(&l->run, now->run, __ATOMIC_RELEASE);
    flight_words_store(&l->op, what, sizeof(what));
    atomic_store_explicit(&l->prepared, now->prepared, memory_order_release);
}

void flight_ran(struct flight_comm *f, const struct flight_run *run)
{
    const uint64_t record = atomic_load_explicit(&run->record, memory_order_relaxed);

    if (!f)
        return;
    struct flight_run *r = &f->runs[(record - 1) % FLIGHT_RUNS];
    atomic_store_explicit(&r->record, 0, memory_order_relaxed); /* and what follows behind it, as in flight_came() */
    flight_words_store((char *)r + sizeof(r->record), (const char *)run + sizeof(r->record), sizeof(*r) - sizeof(r->record));
    atomic_store_explicit(&r->record, record, memory_order_release);
}

void flight_close(struct flight_comm *f, enum flight_comm_state state, int status, const char *text)
{
    if (!f || f->ended_ns)
        return;
    f->status = status;
    text_copy(f->text, sizeof(f->text), text);
    f->state = state;
    f->ended_ns = clock_ns();
}
