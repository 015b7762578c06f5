/* SPDX-License-Identifier: MIT
 *
 * inside.h - trackers and rules, for this folder's files.
 */
#ifndef FCC_DAEMON_WORKER_TRACK_INSIDE_H
#define FCC_DAEMON_WORKER_TRACK_INSIDE_H

#include <pthread.h>

#include "daemon/worker/nodes/puts.h"
#include "daemon/worker/track/track.h"
#include "proto/base/list.h"
#include "proto/session.h"

#define PIECE_BYTES (256u << 10) /* that are moved before the lock is let go */
#define RUNS_KEPT 4096u          /* the last runs of a tracker's rules, for fccctl trace --rules */

/* A word that a rule awaits. */
struct rule_word {
    const _Atomic uint64_t *word; /* NULL: none */
    uint32_t lag;
    uint64_t offset;             /* in its buffer, for people */
    const struct buffer *buffer; /* only compared */
};

struct rule {
    uint32_t number;
    char name[FCC_RULE_NAME_MAX];
    uint64_t need; /* how much of the count makes a run */
    enum fcc_rule_action action;
    enum fcc_dtype dtype;
    int rank;
    struct rule_word awaits[FCC_RULE_AWAITS];
    /* A rank of this node. */
    const unsigned char *from;
    unsigned char *to;
    uint64_t rows, row_bytes, from_stride, to_stride; /* rows 0: nothing is moved */
    _Atomic uint64_t *signal;                         /* NULL: none */
    const struct buffer *buffers[5];                  /* that `from`, `to` and `signal` are of; only compared. NULL: none */
    struct rule_put put;                              /* a rank of another node. puts NULL: it is of this one */
    /* How far it has come. The thread's, under the lock. */
    int status;          /* not 0: it does nothing any more */
    uint64_t done;       /* the last run that is done */
    uint64_t row, bytes; /* of the run that is being worked off: rows, and bytes of the next one, that are moved */
    bool is_triggered; /* ... its put is; it is done when the proxy has taken it, as a put that is removed before is not sent */
    uint64_t seen_count, seen_words[FCC_RULE_AWAITS], since_ns; /* what was seen last, and since when; 0: it has not begun */
    /* For people. */
    uint64_t run_bytes; /* how many a run moves, also to another node */
    uint64_t produced_ns,
        begun_ns; /* of the run at hand: since when its words are awaited, and since when it is worked off; 0: not */
};

/* One run of a rule. */
struct rule_run {
    uint32_t rule;
    uint64_t run, produced_ns, begun_ns, done_ns; /* CLOCK_MONOTONIC; produced_ns 0: it awaited no word */
};

/* The last RUNS_KEPT runs of a tracker's rules: run i is in kept[i % RUNS_KEPT]. The thread writes it, under the lock. */
struct rule_runs {
    uint64_t n; /* all that there were */
    struct rule_run kept[RUNS_KEPT];
};

struct tracker {
    LIST_ENTRY(tracker) link; /* tracking.trackers */
    struct tracking *all;
    struct member *member;
    struct fcc_tracker_memory *memory;
    int fd;
    struct rule_runs *runs;
    int bell;          /* an eventfd that this rank's process rings, and no other one has; see tracking.epoll */
    bool ended;        /* nobody waits for others any more: there are no time limits */
    struct error late; /* a time limit has passed: for the engine */
    uint32_t nrules;
    struct rule *rules[FCC_RULES_MAX];
};

/* worker.tracking */
struct tracking {
    struct worker *worker;
    pthread_mutex_t lock;
    _Atomic uint32_t wanted; /* how many times the engine wants the lock: the thread then lets it */
    LIST_HEAD(, tracker) trackers;
    pthread_t thread;
    bool runs; /* the thread does */
    /* What the thread sleeps on: `wake` and the trackers' bells, edge-triggered. A bell's client shares its file: it may fill or drain the
     * counter, and may let reads and writes block. So nobody here ever reads or writes a bell: each write of a client is an edge, whatever
     * the counter is, and a client that spoils its bell misses its own rings only. */
    int epoll;
    int wake; /* the engine's eventfd, which no client has; never read: its counter does not fill in a worker's life */
    _Atomic bool stop;
    _Atomic uint32_t news; /* there is a tracker with `late` */
};

static inline void tracking_lock(struct tracking *t)
{
    (void)atomic_fetch_add_explicit(&t->wanted, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&t->lock);
    (void)atomic_fetch_sub_explicit(&t->wanted, 1, memory_order_relaxed);
}

static inline void tracking_unlock(struct tracking *t)
{
    (void)pthread_mutex_unlock(&t->lock);
}

/* check.c: fill in a rule. */
int rule_check(struct member *m, const struct fcc_rule_msg *msg, struct rule *out, struct error *e);

/* work.c: the thread; and, locked, what it tells the client of a rule: that a run is done, or with `status` that the rule has ended. */
void *work_main(void *tracking);
void rule_tell(struct tracker *t, struct rule *r);
/* Locked. The count of a rule; and whether it has begun, and sees nothing new, since when. */
uint64_t rule_count(const struct tracker *t, const struct rule *r);
uint64_t rule_word_value(const struct rule_word *w);

/* runs.c: locked. The rule has been worked off once more. */
void runs_add(struct rule_runs *runs, const struct rule *r);

extern const char *const rule_actions[FCC_RULE_ADD + 1];
/* show.c: locked. What a rule is, and what it waits for: "rank 1: rule 3 "halo" (store to rank 2): run 5: its count is 17 of 20". */
void rule_say(const struct tracker *t, const struct rule *r, char *text, size_t room);

#endif
