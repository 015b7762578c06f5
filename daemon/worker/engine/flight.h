/* SPDX-License-Identifier: MIT
 *
 * flight.h - the worker writes its flight recorder (proto/flight.h). Engine thread. The inlined functions do nothing for a communicator without
 * a place (NULL).
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_FLIGHT_H
#define FCC_DAEMON_WORKER_ENGINE_FLIGHT_H

#include "daemon/worker/engine/engine.h"
#include "proto/flight.h"

/* A communicator has formed: a place for its records. The places of those that ended first are taken again. NULL: there is no recorder, no
 * memory for it, or as many communicators are recorded as there are places. */
struct flight_comm *flight_open(struct worker *w, uint32_t number, int nranks);
/* What the ranks have launched: the run that has been under way for longest (prepared 0: none), and how many have ended. */
void flight_launched(struct flight_comm *f, const struct flight_launched *now);
/* A run that ranks have launched, for the first time or anew. */
void flight_ran(struct flight_comm *f, const struct flight_run *run);
/* It has ended. */
void flight_close(struct flight_comm *f, enum flight_comm_state state, int status, const char *text);

static inline struct flight_record *flight_at(struct flight_comm *f, uint64_t turn)
{
    return &f->records[(turn - 1) % FLIGHT_OPERATORS];
}

/* The last two words of a record to which one rank has come. They are made of shifts: a word that was just stored as several fields cannot be read from the
 * processor's store buffer, so reading it would wait until the fields are in the cache (8 of the 20 ns that counting a noop took, tests/bench/metrics_cost.c). */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && offsetof(struct flight_record, status) == 48 &&
                  offsetof(struct flight_record, op) == 52 && offsetof(struct flight_record, state) == 55 &&
                  offsetof(struct flight_record, first) == 56 && offsetof(struct flight_record, last) == 58 &&
                  offsetof(struct flight_record, ncame) == 60,
              "shared by processes");
static inline uint64_t flight_waiting(unsigned op)
{
    return (uint64_t)(uint16_t)op << 32 | (uint64_t)FLIGHT_WAITING << 56;
}
static inline uint64_t flight_first(int rank)
{
    return (uint64_t)(uint16_t)rank | (uint64_t)(uint16_t)rank << 16 | 1ull << 32;
}

/* A rank has come to that turn, which counts from 1. */
static inline void flight_came(struct flight_comm *f, uint64_t turn, int rank, unsigned op, uint64_t now_ns)
{
    if (!f)
        return;
    struct flight_record *r = flight_at(f, turn);
    const uint64_t bit = rank < FLIGHT_RANKS ? 1ull << rank : 0;
    if (atomic_load_explicit(&r->turn, memory_order_relaxed) == turn) {
        r->last = (uint16_t)rank;
        r->ncame++;
        r->came |= bit;
        return;
    }
    /* What follows is stored behind the 0: a reader that sees any of it, and then looks at r->turn, sees 0 or `turn` (flight_comm_copy()). */
    atomic_store_explicit(&r->turn, 0, memory_order_relaxed);
    const uint64_t anew[] = {
        0, now_ns, 0, 0, bit, flight_waiting(op), flight_first(rank)}; /* number, arrived, begun, ended, came, ... */
    flight_words_store((char *)r + sizeof(r->turn), anew, sizeof(anew));
    atomic_store_explicit(&r->turn, turn, memory_order_release);
}

/* All ranks have; number: the operator's. 0: an allocation. */
static inline void flight_begun(struct flight_comm *f, uint64_t turn, uint64_t number, unsigned schedule, uint64_t now_ns)
{
    if (!f)
        return;
    struct flight_record *r = flight_at(f, turn);
    r->number = number;
    r->begun_ns = now_ns;
    r->schedule = (uint8_t)schedule;
    r->state = FLIGHT_RUNNING;
    f->turns = turn;
}

static inline void flight_ended(struct flight_comm *f, uint64_t turn, int status, uint64_t now_ns)
{
    if (!f)
        return;
    struct flight_record *r = flight_at(f, turn);
    r->ended_ns = now_ns;
    r->status = status;
    r->state = FLIGHT_ENDED;
}

#endif
