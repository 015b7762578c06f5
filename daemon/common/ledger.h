/* SPDX-License-Identifier: MIT
 *
 * ledger.h - what a worker reports to its broker without a message: a memfd that the broker makes for each worker, hands it (CONTROL_LEDGER),
 * and keeps. It has the flight recorder (proto/flight.h), then the worker's counters, then what the two say about shares of GPUs (share.h).
 *
 * The engine's thread is the only writer of the first two: it loads, adds and stores (relaxed), so counting costs no locked instruction and asks nobody.
 * The broker reads when somebody asks it. The memfd is sealed against shrinking, so neither process can take it away from the other, and its
 * pages are made when they are first written.
 *
 * A worker runs as its user and may write anything. The broker adds what it reads to what other workers say, so a user can spoil the node's
 * counts; it takes no decision by them, a counter never falls (counters_take()), and texts among them are checked.
 */
#ifndef FCC_DAEMON_COMMON_LEDGER_H
#define FCC_DAEMON_COMMON_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/common/account.h"
#include "daemon/common/share.h"
#include "proto/flight.h"
#include "proto/operators.h"

/* A histogram of times. Bucket i counts those of at most 1 us * 4^i that are in no bucket before; the last one counts the rest. */
#define METER_BUCKETS 15
struct meter_times {
    uint64_t count[METER_BUCKETS];
    uint64_t sum_ns;
};

/* Why communicators were aborted. */
#define METER_ABORTS(X)                                                                                                        \
    X(TIME_LIMIT, time_limit)                                                                                                  \
    X(RANK_GONE, rank_gone)                                                                                                    \
    X(ASKED, asked)                                                                                                            \
    X(NODE_LOST, node_lost)                                                                                                    \
    X(MEMORY, memory)                                                                                                          \
    X(SHUTDOWN, shutdown)                                                                                                      \
    X(OTHER, other)
/* What took longer than a time limit. */
#define METER_LIMITS(X)                                                                                                        \
    X(FORM, form)                                                                                                              \
    X(COME, come)                                                                                                              \
    X(RUN, run)
/* By which schedule an operator ran: the first ones are enum fcc_schedule_kind's. */
#define METER_SCHEDULES(X)                                                                                                     \
    X(NONE, none)                                                                                                              \
    X(FUSED, fused)                                                                                                            \
    X(SEQUENTIAL, sequential)                                                                                                  \
    X(COMPUTE_ONLY, compute_only)                                                                                              \
    X(COMM_ONLY, comm_only)                                                                                                    \
    X(BOUND, bound)                                                                                                            \
    X(PREPARED, prepared)

#define X(NAME, name) METER_ABORT_##NAME,
enum meter_abort { METER_ABORTS(X) METER_ABORT_COUNT };
#undef X
#define X(NAME, name) METER_LIMIT_##NAME,
enum meter_limit { METER_LIMITS(X) METER_LIMIT_COUNT };
#undef X
#define X(NAME, name) METER_SCHEDULE_##NAME,
enum meter_schedule { METER_SCHEDULES(X) METER_SCHEDULE_COUNT };
#undef X

/* Counters: they only grow. All are uint64_t, and the struct is read as an array of them. */
struct counters {
    uint64_t operators[FCC_OP_COUNT][METER_SCHEDULE_COUNT]; /* that have ended well */
    uint64_t failed[FCC_OP_COUNT];                          /* that have ended with an error for all ranks */
    struct meter_times run[FCC_OP_COUNT];                   /* from when all ranks had come to the end */
    struct meter_times wait[FCC_OP_COUNT];                  /* from when the first rank came until all had come */
    struct meter_times proxy_lag; /* over nodes: from the end of computing until all was sent and had come */
    uint64_t aborts[METER_ABORT_COUNT];
    uint64_t limits[METER_LIMIT_COUNT];
    uint64_t formed;                                /* communicators */
    uint64_t shrunk;                                /* of these, by fcc_comm_shrink() */
    uint64_t refused[ACCOUNT_WHOSE][ACCOUNT_COUNT]; /* what a limit of the user or the job has refused, by kind */
    uint64_t held_ns; /* how long communicators' next operators were held back for the job's share of a GPU */
    uint64_t held;    /* how often */
};
#define COUNTERS (sizeof(struct counters) / sizeof(uint64_t))

/* What has been exchanged with another node. The counters among it only grow. */
#define METER_NODES 64
struct meter_node {
    char address[FCC_NODE_MAX]; /* "": no node here yet */
    char transport[16];
    uint64_t bytes_out, bytes_in, messages_out, messages_in, waits, lost;
};

struct meters {
    uint64_t ncounters; /* COUNTERS of the fccd that has made it: one of another version does not count what lies elsewhere */
    struct counters counters;
    /* Gauges. */
    uint64_t communicators; /* that are active */
    uint64_t queued;        /* requests of ranks here and elsewhere whose operators have not ended */
    uint64_t running;       /* operators */
    uint64_t gpus;          /* GPUs whose context the worker holds */
    uint64_t mps;           /* 1: they are contexts of an MPS server */
    struct meter_node nodes[METER_NODES];
};

#define LEDGER_METERS sizeof(struct flight) /* where the meters begin */
#define LEDGER_SHARE (LEDGER_METERS + (sizeof(struct meters) + 4095) / 4096 * 4096)
#define LEDGER_BYTES (LEDGER_SHARE + sizeof(struct share))

/* Broker: makes the memfd, with a flight recorder that has no records. Returns the descriptor, or -errno. */
int ledger_make(void);
/* Broker: maps all of it, to be read. NULL: that failed. */
const struct flight *ledger_map(int fd);
void ledger_unmap(const struct flight *flight);
static inline const struct meters *ledger_meters(const struct flight *flight)
{
    return (const struct meters *)(const void *)((const char *)flight + LEDGER_METERS);
}
/* What the worker says about its use of GPUs. */
static inline const struct share_said *ledger_said(const struct flight *flight)
{
    return (const struct share_said *)(const void *)((const char *)flight + LEDGER_SHARE);
}
/* Broker: maps what it tells the worker about that, to be written. NULL: that failed. */
struct share_told *ledger_told_map(int fd);
void ledger_told_unmap(struct share_told *told);
/* Worker: both, where ledger_open() has mapped the ledger. */
static inline struct share *ledger_share(struct flight *flight)
{
    return (struct share *)(void *)((char *)flight + LEDGER_SHARE);
}
/* Copies a communicator's records, which the worker may be writing: those that were begun anew meanwhile are none in the copy (turn 0), and if the
 * whole place was, its number is 0. */
void flight_comm_copy(const struct flight_comm *from, struct flight_comm *to);
/* Worker: maps all of it. -EPROTO: it is no such memfd. */
int ledger_open(int fd, struct flight **flight, struct meters **meters);
void ledger_close(struct flight *flight);
/* Adds what has grown between *last and what `now`, which another process writes, says to *sum, and sets *last to it. A counter that has fallen
 * is taken as it was. */
void counters_take(const struct counters *now, struct counters *last, struct counters *sum);

/* The counters of one writer: relaxed, so that readers see whole numbers. */
static inline void meter_add(uint64_t *counter, uint64_t more)
{
    __atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

static inline void meter_set(uint64_t *gauge, uint64_t value)
{
    __atomic_store_n(gauge, value, __ATOMIC_RELAXED);
}

static inline uint64_t meter_get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* The bucket of a time. */
static inline unsigned meter_bucket(uint64_t ns)
{
    uint64_t us = ns ? (ns - 1) / 1000 : 0;
    unsigned i = us ? (64 - (unsigned)__builtin_clzll(us) + 1) / 2 : 0;

    return i < METER_BUCKETS ? i : METER_BUCKETS - 1;
}

static inline void meter_time(struct meter_times *t, uint64_t ns)
{
    meter_add(&t->count[meter_bucket(ns)], 1);
    meter_add(&t->sum_ns, ns);
}

#endif
