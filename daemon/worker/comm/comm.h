/* SPDX-License-Identifier: MIT
 *
 * comm.h - communicators and their members. Engine thread, but for what is said otherwise.
 *
 *   join.c        how they begin: who has joined
 *   comm.c        whose turn it is
 *   end.c         how they end
 *   turn.c        one operator of all ranks: staging, start, completion (turn.h)
 *   early.c       what of an operator runs before all ranks have come (turn.h)
 *   deadline.c    time limits
 *   submission.c  requests (submission.h)
 *   overlap.c     whether an input lies where a result is stored (overlap.h)
 *   buffer.c      memory that clients use (buffer.h)
 *   tune.c        which schedule `auto` takes (tune.h)
 *   bound/        operators whose kernels the ranks' own processes launch
 */
#ifndef FCC_DAEMON_WORKER_COMM_COMM_H
#define FCC_DAEMON_WORKER_COMM_COMM_H

#include <event2/event.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "daemon/worker/comm/submission.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/engine/engine.h"
#include "kernels/plan/program.h"

struct buffer;
struct comm_nodes;
struct device;
struct device_ops;
struct launch;
struct peer;
struct prepared;
struct puts;
struct session;
struct trace_waiter;
struct tune;

enum member_state { MEMBER_ABSENT, MEMBER_JOINED, MEMBER_LEFT };

/* One rank. */
struct member {
    struct comm *comm;
    LIST_ENTRY(member) link; /* session.members, while JOINED */
    int rank;
    enum member_state state;
    struct session *session; /* while JOINED */
    pid_t pid;
    uint32_t handle;             /* in the session */
    uint32_t status_word;        /* ... */
    uint32_t comm_there;         /* remote: its worker's number of the communicator (peer_msg.from) */
    int node;                    /* number of its node, the same on all nodes; 0 if all ranks are here */
    bool remote;                 /* the rank is on another node: it has no session and no device here */
    struct peer *peer;           /* that node's; NULL: it is lost, or the rank is here */
    LIST_HEAD(, buffer) bounces; /* remote: bounce buffers of the rank's buffers for results (bounce.h) */
    struct puts *puts;           /* puts.c's: what its program's kernels send to other nodes; NULL: nothing */
    char *leaving;               /* it has left (why; "": by its own wish) after leaving_turns, which have not ended here yet */
    uint64_t leaving_turns;
    uint64_t staged_bytes;                    /* nodes/nodes.c: of staging memory that all nodes know the rank to have */
    struct device_rank *dev;                  /* the rank as devices know it */
    uint64_t join_id;                         /* of the COMM_INIT message, answered when all have joined */
    TAILQ_HEAD(queue_head, submission) queue; /* those of the launches that run, then those that have not begun */
    bool words_noted;                         /* submission.c's */
    uint64_t operators;                       /* that the rank has submitted */
    struct submission *next;                  /* the first that has not begun; NULL: there is none */
    unsigned queued;
    uint64_t alone;      /* it has allocated, or tried to, by itself since its last operator: the kind + 1. 0: it has not */
    uint64_t arrived_ns; /* when the head of the queue came */
};

enum comm_state { COMM_FORMING, COMM_ACTIVE, COMM_ABORTED };

struct comm {
    struct device_comm dev; /* the communicator as devices know it */
    struct worker *worker;
    LIST_ENTRY(comm) link; /* worker.comms */
    uint32_t number;       /* of all that this worker has had: for people (fccctl --comm), and for other nodes (peer_msg) */
    struct fcc_unique_id unique_id;
    enum comm_state state;
    int nranks, present;      /* members that are JOINED */
    int here;                 /* of them on this node */
    struct comm_nodes *nodes; /* nodes/nodes.c's; NULL: all ranks are here */
    struct error error;       /* why it was aborted */
    uint32_t allocations;     /* symmetric, that have succeeded: the same on all nodes */
    uint64_t operators;       /* begun: the number of the newest or last one */
    uint64_t epoch;           /* of the newest or last launch */
    uint32_t stamp;           /* of the last operator that used the slots since they were made; 0: none */
    struct launch *last;      /* finished last, with its times: in the cache, or running again; NULL: none */
    struct launch *cache;     /* finished launches, kept for their plans, most recently used first */
    struct launch *early;     /* of these: some of its slices have run already, for the next operator; comm/early.c */
    struct op_args *args;     /* [nranks]: scratch for matching */
    struct problem *problem;  /* scratch for matching */
    struct tune *tune;
    LIST_HEAD(, prepared) prepared;          /* comm/bound.c's: operators that its ranks launch themselves */
    uint32_t offers_refused[OFFERS_REFUSED]; /* offers.c: requests of rank 0 that are none to be offered */
    unsigned offers_nrefused;
    uint64_t granted, declined;                                /* ... operators that were offered by ranks */
    struct event *prepared_watch;                              /* ... NULL: there never was one */
    uint32_t prepared_number;                                  /* ... of the newest one */
    struct event *timer;                                       /* looks at deadline_ns */
    uint64_t deadline_ns;                                      /* 0: nothing has a time limit now */
    LIST_HEAD(trace_waiters_head, trace_waiter) trace_waiters; /* fccctl trace --next */
    struct member members[];
};

/* The communicator of a launch. */
static inline struct comm *launch_comm(const struct launch *l)
{
    return (struct comm *)(void *)((char *)l->comm - offsetof(struct comm, dev));
}

/* ---- comm/join.c ---- */

/* A rank here joins. */
void comm_join(struct session *s, const struct fcc_comm_init_msg *m);
/* The number between nodes of a communicator with this id. */
uint64_t id_number(const struct fcc_unique_id *id);
void comm_complete(struct comm *c);                                  /* all ranks have joined, here. The caller releases it */
void comm_active(struct comm *c);                                    /* all have joined: tell them */
struct comm *comm_find_own(const struct worker *w, uint32_t number); /* comm.number; in whatever state */
/* Two processes say that they are this rank of c: the one that has joined, and this one, on that node ("": there are no others). -EALREADY */
int joined_twice(const struct comm *c, int rank, pid_t pid, const char *address, struct error *e);
/* Tell a rank here what has come of its joining. */
void comm_join_answer(struct member *m, int status, const char *text);

/* ---- comm/comm.c ---- */

/* It ends, as comm_abort(), but what is told is another node's. */
void comm_leave_remote(struct member *m, const char *why);
/* End the next submissions' turn: tell every rank and free them. */
void turn_end(struct comm *c, const struct error *e);
void comm_leave(struct member *m, const char *why); /* why NULL: by its own wish */
void comm_abort(struct comm *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Ranks wait for one that has left in good order. Nodes where operators still run that have ended here let them end. */
void comm_abort_left(struct comm *c, int rank);
/* Kernels of the ranks here that wait for others need not any more. */
void comm_status_raise(const struct comm *c, int status);
void comm_drain(struct worker *w); /* ends the communicators that run nothing */
struct member *member_find(const struct session *s, uint32_t handle);
/* Whether it may allocate, submit and the like: -EAGAIN while the communicator forms. */
int member_may_use(const struct member *m, struct error *e);
/* Put a submission into its rank's queue and begin whatever can begin. `submit` is what it was made of; NULL: an allocation. */
void comm_submit(struct member *m, struct submission *s, const struct fcc_submit *submit);
/* Begin whatever can begin: an operator is over, or has come. */
void comm_advance(struct comm *c);
/* No other communicator of this worker is on devices of its kind. */
bool comm_is_only(const struct comm *c);
/* Free it if nobody uses it any more. */
void comm_release(struct comm *c);
/* "rank 1, rank 3": the ranks that have not come to the next operator (deadline.c). */
void comm_missing(const struct comm *c, char *text, size_t room);

/* ---- deadline.c ---- */
void comm_limit_set(struct comm *c, uint32_t limit_ms); /* with what that changes for those that wait already */
void comm_deadline_set(struct comm *c);                 /* after each change of who waits for what */
void comm_deadline_passed(evutil_socket_t sock, short what, void *comm); /* the timer event's callback */
const char *submission_name(const struct submission *sub);               /* for people */

#endif
