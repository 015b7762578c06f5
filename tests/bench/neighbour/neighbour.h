/* SPDX-License-Identifier: MIT
 *
 * neighbour.h - what the files of the bench of a hostile neighbour share: neighbour.c says what it measures.
 */
#ifndef FCC_TESTS_BENCH_NEIGHBOUR_H
#define FCC_TESTS_BENCH_NEIGHBOUR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "proto/fccclient.h"

enum {
    VICTIM = 40001, /* users */
    HOSTILE,
    ELEMENTS = 16384, /* of the all_reduce: 64 KiB */
    COMMS = 8,        /* of the flood */
    SAMPLES = 1 << 19,
};

enum measured { NOOP, ALL_REDUCE, CONNECT, MEASURED };

/* Between all processes of the bench. */
struct shared {
    char socket[108];
    struct fcc_unique_id victim, flood[COMMS], products;
    _Atomic int formed, met,
        over; /* the victim's: ranks that have a communicator, that have come to a block's end; whether the ranks end */
    _Atomic int measures, ends, quit; /* whether times count, whether the neighbour ends, the bench is over */
    _Atomic uint64_t hostile_done;    /* what the neighbour has done */
    _Atomic unsigned counts[MEASURED];
    double samples[MEASURED][SAMPLES]; /* us, of this phase; each is written by one process, and read while nobody measures */
};

extern struct shared *s;

double now_us(void);
void must(int status, const char *what); /* ends the process unless status is 0 */
void become(uid_t uid);                  /* if it is root */
fcc_context *context_open(const char *job);
struct fcc_tensor tensor_new(fcc_comm *comm, enum fcc_buffer_kind kind, int64_t rows, int64_t cols);
struct fcc_all_reduce_args reduce_new(fcc_comm *comm);

/* ---- victim.c ---- */
_Noreturn void victim_rank(int rank);
_Noreturn void victim_connects(void);

/* ---- hostile.c: processes of the neighbour, until they are killed; two of each ---- */
_Noreturn void flood_rank(int rank);
_Noreturn void products_rank(int rank);
_Noreturn void connect_rank(int rank);
_Noreturn void refused_rank(int rank);
_Noreturn void buffers_rank(int rank);

/* ---- plain.c: processes without fccd, until they are killed ---- */
_Noreturn void plain_computes(void);
_Noreturn void plain_streams(void);
_Noreturn void plain_calls(void);

/* ---- load.c ---- */

/* What the machine has done since it began, or between two such looks. Times are in us. */
struct load {
    double at;
    double hostile_user, hostile_system,
        hostile_waits;           /* of its processes and its workers; waits: threads that could run, for a core */
    double broker;               /* both */
    double victim, victim_waits; /* its two ranks and their worker: threads' time on cores, and waiting for one */
    double preempted, moved;     /* switches of those threads that they did not want; moves to another core. -1: not known */
    double user, system, interrupts, stolen;     /* of the whole machine */
    double switches, shootdowns, calls, wakeups; /* of the whole machine; the last three: interrupts from core to core */
};

/* victims: the pids of the two ranks and of their worker. */
void load_read(struct load *l, pid_t broker, const pid_t victims[3]);
struct load load_between(const struct load *begin, const struct load *end);
/* Tells all processes of that user to end (SIGTERM). Returns how many there were. */
int processes_end(uid_t uid);
/* The only worker of that user. 0: there is none, or more than one. */
pid_t worker_of(uid_t uid, pid_t broker);

/* ---- neighbour.c, figures.c ---- */

enum {
    KINDS = 6, /* that are compared */
    WAYS = 4,  /* what a neighbour does at the same time, at most */
    PHASES = 1 + 3 * KINDS + WAYS,
    ROUNDS_MOST = 64,
};

/* What runs beside the victim. */
struct phase {
    char name[40];
    void (*ways[WAYS])(int rank); /* of the neighbour, each with two processes */
    int computes, streams, calls; /* processes without fccd */
};

struct result {
    unsigned n[MEASURED];
    double p50[MEASURED], p99[MEASURED], done;
    struct load load;
};

/* The first one: the victim alone. Then for each kind it, as many processes that compute, as many that do what it does. Then all kinds but one. */
extern struct phase phases[PHASES];
extern struct result results[ROUNDS_MOST][PHASES];
extern int nrounds;

int is_more(const void *a, const void *b); /* of two doubles, for qsort() */
void figures_print(void);

#endif
