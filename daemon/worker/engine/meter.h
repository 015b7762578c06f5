/* SPDX-License-Identifier: MIT
 *
 * meter.h - what the worker counts for the broker (daemon/common/ledger.h). Engine thread. All of it is a few loads and stores in the cache of
 * the engine's core, with times that the caller has taken anyway. A worker without a ledger counts nothing.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_METER_H
#define FCC_DAEMON_WORKER_ENGINE_METER_H

#include "daemon/common/ledger.h"
#include "daemon/worker/engine/engine.h"

/* An operator has begun on all ranks: the first of them had come at first_ns. */
static inline void meter_begun(const struct worker *w, unsigned op, uint64_t first_ns, uint64_t now_ns)
{
    if (w->meters && op < FCC_OP_COUNT)
        meter_time(&w->meters->counters.wait[op], now_ns > first_ns ? now_ns - first_ns : 0);
}

/* It has ended for all ranks, with that status, after run_ns. */
static inline void meter_ended(const struct worker *w, unsigned op, enum meter_schedule schedule, int status, uint64_t run_ns)
{
    struct counters *c = w->meters ? &w->meters->counters : NULL;

    if (!c || op >= FCC_OP_COUNT || (unsigned)schedule >= METER_SCHEDULE_COUNT)
        return;
    meter_add(status ? &c->failed[op] : &c->operators[op][schedule], 1);
    meter_time(&c->run[op], run_ns);
}

/* So many runs have ended that the ranks' processes have launched, of which the worker sees no more than that. */
static inline void meter_runs(const struct worker *w, unsigned op, uint64_t runs)
{
    if (w->meters && op < FCC_OP_COUNT)
        meter_add(&w->meters->counters.operators[op][METER_SCHEDULE_PREPARED], runs);
}

static inline void meter_limit(const struct worker *w, enum meter_limit what)
{
    if (w->meters)
        meter_add(&w->meters->counters.limits[what], 1);
}

/* A gauge has changed by `more`, which may be negative. */
#define METER_GAUGE(w, gauge, more)                                                                                            \
    ((w)->meters ? meter_set(&(w)->meters->gauge, (w)->meters->gauge + (uint64_t)(int64_t)(more)) : (void)0)

/* A communicator was aborted with that status; `asked`: somebody has asked for it, with fccctl or fcc_comm_abort(). */
void meter_aborted(const struct worker *w, int status, bool asked);
/* The counts of what was exchanged with that node. */
void meter_node(const struct worker *w, const char *address, const char *transport, const struct meter_node *counts);

#endif
