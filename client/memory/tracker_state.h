/* SPDX-License-Identifier: MIT
 *
 * tracker_state.h - a rank's tracker as this process has it, for the files of this folder that make, count and wait.
 */
#ifndef FCC_CLIENT_MEMORY_TRACKER_STATE_H
#define FCC_CLIENT_MEMORY_TRACKER_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/core/context.h"
#include "kernels/gpu/bound.h"
#include "proto/session.h"

/* Whose a rule is, from the first call on. */
enum rule_use { UNUSED, COUNTED, BY_STREAMS };

struct fcc_tracker {
    struct fcc_comm *comm;
    struct fcc_tracker_memory *memory;
    uint64_t address; /* of `memory`, on the rank's GPU; 0: the rank is on a cpu device */
    int bell;
    _Atomic uint32_t nrules;
    /* The thread that calls the program's functions; it begins with the first rule that has one. */
    pthread_mutex_t lock; /* makes rules one after the other */
    bool calls;           /* the thread runs. lock */
    pthread_t thread;
    _Atomic bool stop;      /* the tracker is being freed: calls and waits end */
    _Atomic uint32_t waits; /* threads in fcc_tracker_wait(), which the memory outlives */
    struct {
        void (*call)(void *argument, uint64_t run); /* constant when nrules has it */
        void *argument;
        uint64_t called;           /* the thread's: the last run of which it was called */
        struct fcc_rule has;       /* as the program gave it, without its name; constant, too */
        _Atomic int use;           /* enum rule_use */
        struct gpu_rule_work work; /* BY_STREAMS: found at the first run. lock */
        bool is_found;
    } rule[FCC_RULES_MAX];
};

/* -EINVAL: NULL, or a handle of a context that was made before a fork. */
int tracker_check(const struct fcc_tracker *t);

/* -EINVAL: the tracker has no rule of that number. */
int tracker_number_check(const struct fcc_tracker *t, uint32_t rule);

/* Wake the worker's thread that works off rules. */
void tracker_bell_ring(const struct fcc_tracker *t);

/* Sleep until `news` differs from `seen`, at most for a slice or until the deadline. The caller has looked again after it has added itself to
 * the sleepers. */
void tracker_news_await(struct fcc_tracker_memory *m, uint32_t seen, int64_t deadline);

#endif
