/* SPDX-License-Identifier: MIT
 *
 * inside.h - trackers and rules, for this folder's files.
 */
#ifndef FCC_DAEMON_WORKER_TRACK_INSIDE_H
#define FCC_DAEMON_WORKER_TRACK_INSIDE_H

#include <pthread.h>

#include "daemon/worker/device/memory.h"
#include "daemon/worker/nodes/puts.h"
#include "daemon/worker/track/track.h"
#include "proto/base/list.h"
#include "proto/session.h"

#define PIECE_BYTES (256u << 10) /* that are moved before the lock is let go */
#define RUNS_KEPT 4096u          /* the last runs of a tracker's rules, for fccctl trace --rules */

/* A word that a rule awaits. */
struct rule_word {
    const _Atomic uint64_t *word; /* of a rank on a GPU: an address there, which the CPU cannot load */
    uint64_t seen;                /* of a rank on a GPU: its value at the last look (gpu.c) */
    uint32_t lag;
    uint64_t offset;             /* in its buffer, for people */
    const struct buffer *buffer; /* only compared. NULL: there is no word */
};

/* In host memory, into which the GPUs of a tracker's rules store (gpu.c). */
struct gpu_words {
    _Atomic uint64_t landed[FCC_RULES_MAX];                        /* of each rule: the last run that has been done */
    _Alignas(64) _Atomic uint64_t looked;                          /* the last look that has been done */
    _Alignas(64) uint64_t values[FCC_RULES_MAX * FCC_RULE_AWAITS]; /* what it has found */
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
    int gpu;                                          /* of a rank on a GPU: whose queues do it (struct gpu_rule_run) */
    /* How far it has come. The thread's, under the lock. */
    int status;          /* not 0: it does nothing any more */
    uint64_t done;       /* the last run that is done */
    uint64_t row, bytes; /* of the run that is being worked off: rows, and bytes of the next one, that are moved */
    bool is_triggered; /* ... its put is; it is done when the proxy has taken it, as a put that is removed before is not sent */
    bool is_started;   /* on GPUs: ... has been given to a queue, and has landed when struct gpu_words says so */
    uint64_t seen_count, seen_begun, seen_words[FCC_RULE_AWAITS],
        since_ns; /* what was seen last, and since when; 0: it has not begun */
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
    struct error late; /* a time limit has passed, or a GPU has refused a run: for the engine */
    /* Of a rank on a GPU: gpu.c. */
    struct device_memory host; /* struct gpu_words. None: the rank is on a cpu device */
    struct gpu_words *words;
    uint64_t looks;  /* looks that were begun */
    uint32_t looked; /* words of the last one, whose places[] say of which rules they are; 0: it has been taken in */
    struct {
        uint32_t rule, await;
    } places[FCC_RULES_MAX * FCC_RULE_AWAITS];
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
    uint64_t lively_ns; /* the thread's: when a run of a rule on GPUs was done last */
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
/* Locked. Whether a stream of the rank works off a run of the rule by itself, which then is done when `ran` says so. */
bool rule_is_in_stream(const struct tracker *t, const struct rule *r);
uint64_t rule_word_value(const struct tracker *t, const struct rule_word *w);
/* Whether the words are there that run `run` awaits. */
bool rule_words_are_there(const struct tracker *t, const struct rule *r, uint64_t run);

/* gpu.c: rules of ranks on GPUs; locked, but open and close. Makes struct gpu_words; frees it. */
int gpu_words_open(struct tracker *t, struct error *e);
void gpu_words_close(struct tracker *t);
/* Takes in the last look at words, if it has been done, and begins another one if rules wait for words. */
void gpu_words_look(struct tracker *t);
/* Goes on with a rule's run: 1 when it is done; 0: it is under way; -EIO, and t->late has the reason. */
int gpu_rule_run(struct tracker *t, struct rule *r, uint64_t run);
/* Waits until GPUs do nothing of the tracker any more. */
void gpu_rules_settle(struct tracker *t);

/* runs.c: locked. The rule has been worked off once more. */
void runs_add(struct rule_runs *runs, const struct rule *r);

extern const char *const rule_actions[FCC_RULE_ADD + 1];
/* show.c: locked. What a rule is, and what it waits for: "rank 1: rule 3 "halo" (store to rank 2): run 5: its count is 17 of 20". */
void rule_say(const struct tracker *t, const struct rule *r, char *text, size_t room);

#endif
