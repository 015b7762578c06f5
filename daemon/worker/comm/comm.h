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
 *   buffer.c      memory that clients use (buffer.h)
 *   tune.c        which schedule `auto` takes (tune.h)
 *   request/      ranks' requests: accepted or refused (submission.h), resolved to buffers (resolve.h), and whether an input lies where a
 *                 result is stored (overlap.h)
 *   regroup/      ranks that agree on new communicators (regroup/regroup.h)
 *   bound/        operators whose kernels the ranks' own processes launch, and who launches the next one (bound/launcher.h)
 */
#ifndef FCC_DAEMON_WORKER_COMM_COMM_H
#define FCC_DAEMON_WORKER_COMM_COMM_H

#include <stdbool.h>

#include "daemon/common/events.h"
#include "daemon/worker/comm/request/submission.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/engine/engine.h"
#include "kernels/plan/program.h"

struct buffer;
struct comm_nodes;
struct device;
struct device_ops;
struct flight_comm;
struct launch;
struct peer;
struct prepared;
struct puts;
struct regroup;
struct session;
struct trace_waiter;
struct tracker;
struct tune;

enum member_state { MEMBER_ABSENT, MEMBER_JOINED, MEMBER_LEFT };

/* One rank. */
struct member {
    struct comm *comm;
    LIST_ENTRY(member) link; /* session.members, while the state is JOINED */
    int rank;
    enum member_state state;
    struct session
        *session;         /* of the rank's client, while the state is JOINED. NULL: the rank is on another node, or has left */
    pid_t pid;            /* of the rank's process */
    uint32_t handle;      /* the communicator's handle in the session */
    uint32_t status_word; /* index of the communicator's status word in the session memory, or FCC_NO_STATUS_WORD */
    struct device_rank *dev; /* the rank as devices know it */
    uint64_t join_id;        /* id of the COMM_INIT message, which is answered when all ranks have joined */
    uint64_t arrived_ns;     /* when the rank joined */

    /* Requests. */
    TAILQ_HEAD(queue_head, submission) queue; /* those of launches that run, then those that have not begun */
    unsigned queued;                          /* length of the queue */
    struct submission *next;                  /* the first in the queue that has not begun. NULL: there is none */
    uint64_t operators;                       /* number of operators that the rank has submitted */
    uint64_t turns;                           /* number of turns that it has submitted: operators and symmetric allocations */
    /* Kind + 1 of the last buffer that the rank has asked for by itself since its last operator. 0: it has not */
    uint64_t alone;
    bool gone;               /* remote, and the communicator is aborted: the rank has left. For regroup/ alone */
    struct tracker *tracker; /* track/'s: the rank's rules. NULL: none */
    bool words_noted;        /* request/submission.c: it has been logged where the words of the rank's streams lie */

    /* Ranks on other nodes, and ranks whose communicator has some. */
    bool remote;                 /* the rank is on another node: it has no session and no device here */
    int node;                    /* number of the rank's node, the same on all nodes. 0: all ranks are here */
    struct peer *peer;           /* the worker of the rank's node. NULL: that worker is lost, or the rank is here */
    uint32_t comm_there;         /* remote: number of the communicator in the rank's worker (peer_msg.from) */
    LIST_HEAD(, buffer) bounces; /* remote: bounce buffers of the rank's buffers for results (bounce.h) */
    struct puts *puts;           /* nodes/puts.c: what the rank's own kernels send to other nodes. NULL: nothing */
    char *leaving; /* why the rank leaves when turn leaving_turns has ended here; "": by its own wish. NULL: it does not */
    uint64_t leaving_turns;
    uint64_t staged_bytes; /* size of the rank's staging memory, as far as all nodes know it */
};

enum comm_state { COMM_FORMING, COMM_ACTIVE, COMM_ABORTED };

struct comm {
    struct device_comm dev; /* the communicator as devices know it */
    struct worker *worker;
    LIST_ENTRY(comm) link; /* worker.comms */
    uint32_t number;       /* counts the worker's communicators: for people (fccctl --comm), and for other nodes (peer_msg) */
    struct fcc_unique_id unique_id;
    enum comm_state state;
    int nranks;
    int present;              /* number of members whose state is JOINED */
    int here;                 /* number of them that are on this node */
    struct comm_nodes *nodes; /* nodes/nodes.h. NULL: all ranks are here */
    struct regroup *regroup;  /* regroup/regroup.c. NULL: no rank has asked for new communicators */
    struct error error;       /* why the communicator was aborted, or why it will be at the next operator */
    uint32_t allocations;     /* number of symmetric allocations that have succeeded, the same on all nodes */

    /* Turns. */
    uint64_t operators;         /* number of operators that have begun */
    uint64_t turns;             /* number of turns that have: these, and symmetric allocations */
    struct flight_comm *flight; /* engine/flight.h: its records. NULL: there are none */
    bool counted;               /* it has formed, and is one of the worker's meters.communicators */
    bool asked;                 /* somebody asks for the communicator's end: why it is aborted, for engine/meter.h */
    uint64_t epoch;             /* of the launch that began last */
    uint32_t stamp;             /* of the last operator that used the packet memory since it was made. 0: none has */
    struct launch *last;        /* the launch that ended last with its times: in the cache, or running again. NULL: none */
    struct launch *cache;       /* launches that have ended, kept for their plans, most recently used first */
    /* The one of the cache that some slices of the next operator have been run of (early.c). NULL: none */
    struct launch *early;
    struct op_args *args;    /* [nranks]: scratch for matching */
    struct problem *problem; /* scratch for matching */
    struct tune *tune;
    struct event *timer;      /* looks at deadline_ns */
    uint64_t deadline_ns;     /* 0: nothing has a time limit now */
    uint64_t held_ns;         /* share.c: since when the next operator is held back. 0: it is not */
    struct event *hold_event; /* share.c: looks again. NULL: none was held back yet */
    LIST_HEAD(trace_waiters_head, trace_waiter) trace_waiters; /* fccctl trace --next */

    /* Operators that the ranks launch themselves (bound/). */
    LIST_HEAD(, prepared) prepared;
    uint32_t prepared_number;            /* of the newest one */
    struct event *prepared_watch;        /* NULL: no operator was prepared yet */
    struct prepared *adopting;           /* bound/launcher.c: not all clients have adopted it yet. NULL: there is none */
    struct launch *bound_unused;         /* launches for runs of bound operators */
    uint32_t bind_refused[BIND_REFUSED]; /* requests of rank 0 to bind an operator that never is to be bound */
    unsigned bind_nrefused;
    uint64_t bind_again;           /* no operator is bound before this one */
    uint64_t runs;                 /* that ranks have launched, that have ended and been seen */
    uint64_t recorded;             /* of these, and of those that go on: records of the flight recorder */
    uint64_t bound_runs, recalled; /* numbers of operators that the ranks have launched, and of those that they could not run */

    struct member members[]; /* [nranks] */
};

/* What comm/ tells of a communicator that has a regroup. */
struct regroup_ops {
    void (*look)(struct comm *c);     /* a launch has ended, or a rank is gone */
    void (*forget)(struct member *m); /* the rank's connection ends */
    void (*free)(struct comm *c);
};

/* The communicator of a launch. */
static inline struct comm *launch_comm(const struct launch *l)
{
    return (struct comm *)(void *)((char *)l->comm - offsetof(struct comm, dev));
}

/* ---- join.c ---- */

/* A rank here joins. */
void comm_join(struct session *s, const struct fcc_comm_init_msg *m);
/* The number between nodes of a communicator with this id. */
uint64_t id_number(const struct fcc_unique_id *id);
/* All ranks have joined at this node's worker. The caller releases the communicator. */
void comm_complete(struct comm *c);
/* The communicator has formed: tell its ranks here. */
void comm_active(struct comm *c);
/* The communicator of this number, in whatever state. NULL: there is none. */
struct comm *comm_find_own(const struct worker *w, uint32_t number);
/* Two processes say that they are this rank of c: the one that has joined, and this one, on that node ("": there are no others). -EALREADY */
int joined_twice(const struct comm *c, int rank, pid_t pid, const char *address, struct error *e);
/* Tell a rank here what has come of its joining. */
void comm_join_answer(struct member *m, int status, const char *text);

/* ---- comm.c ---- */

struct member *member_find(const struct session *s, uint32_t handle);
/* Whether the rank may allocate, submit and the like. -EAGAIN: the communicator still forms. */
int member_may_use(const struct member *m, struct error *e);
/* Put a submission into its rank's queue and begin whatever can begin. `submit` is what it was made of; NULL: an allocation. */
void comm_submit(struct member *m, struct submission *s, const struct fcc_submit *submit);
/* Begin whatever can begin: an operator is over, or has come. */
void comm_advance(struct comm *c);
/* Since when the ranks' next turn could begin but for ranks that had not come. */
uint64_t turn_arrived_ns(const struct comm *c);
/* End the turn of the next submissions: tell every rank and free them. */
void turn_end(struct comm *c, const struct error *e);
/* Whether no other communicator of this worker is on devices of c's kind. */
bool comm_is_only(const struct comm *c);

/* ---- end.c ---- */

/* The rank leaves. why: NULL if it does so by its own wish. */
void comm_leave(struct member *m, const char *why);
/* The same of a rank on another node, which that node has told of. */
void comm_leave_remote(struct member *m, const char *why);
/* The communicator ends: all ranks hear why, and what runs is made to leave. */
void comm_abort(struct comm *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The communicator ends because ranks wait for one that has left in good order. Nodes where an operator still runs that has ended here let
 * it end. */
void comm_abort_left(struct comm *c, int rank);
/* Raise the status words of the ranks here: kernels of theirs that wait for other ranks need not any more. */
void comm_status_raise(const struct comm *c, int status);
/* The worker drains: end the communicators that run nothing. */
void comm_drain(struct worker *w);
/* Free the communicator if nobody uses it any more. */
void comm_release(struct comm *c);

/* ---- deadline.c ---- */

/* Change the time limit, also for those that wait already. */
void comm_limit_set(struct comm *c, uint32_t limit_ms);
/* To be called after each change of who waits for what. */
void comm_deadline_set(struct comm *c);
/* "; rank 0 waits in all_reduce, which fccd launches; rank 1 waits in all_reduce, run 7, which it has launched itself": such ranks wait for each
 * other. Empty unless there are ranks of both kinds. */
void comm_apart_say(const struct comm *c, char *text, size_t room);
/* For the text of a time limit: where what came before is recorded; "": nowhere. */
const char *comm_flight_hint(const struct comm *c);
/* The callback of comm.timer. */
void comm_deadline_passed(evutil_socket_t sock, short what, void *comm);

#endif
