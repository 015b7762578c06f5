/* SPDX-License-Identifier: MIT
 *
 * engine.h - the process that serves one job of one user: what its threads share, and the services of its loop.
 *
 * Threads. The engine thread runs the loop (daemon/worker/run.c) and owns every object of the worker: sessions, communicators, buffers,
 * submissions, peers. Workgroups of devices touch only a launch that they were given, and in it only what device/launch.h says is theirs,
 * until they hand it back (worker_launch_give()). The last workgroup of a launch also tells the ranks, so it writes their
 * sessions' completion slots; a session stays as long as a submission names it. The engine sends to other nodes and receives from them, or the
 * proxy's thread does (nodes/data.c).
 *
 * Ownership. The worker owns sessions and communicators. A session owns its buffers' handles and its memberships. A communicator owns its
 * members, one for each rank. A member owns its queue of submissions. A submission holds a reference on each buffer that it uses, so memory
 * outlives its handle and its session while an operator may touch it.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_ENGINE_H
#define FCC_DAEMON_WORKER_ENGINE_ENGINE_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "daemon/common/account.h"
#include "daemon/common/control.h"
#include "daemon/common/events.h"
#include "proto/base/cgroup.h"

struct channel_ops;
struct comm;
struct device;
struct flight;
struct gpus;
struct helpers;
struct meters;
struct launch;
struct nodes_account;
struct nodes_data;
struct peer;
struct regroup_ops;
struct session;
struct span_ops;
struct track_ops;
struct tracking;
struct unformed;
struct views;

/* A launch that is handed back, as the engine's stack holds it. */
struct finished {
    struct finished *next;
    struct launch *launch;
};

#define CONTENDED_FOR 1024u
#define DENIALS_KEPT 64 /* as many as a broker hands over in a second */

struct worker {
    /* What the broker said at the start. */
    struct config config;
    char job[FCC_JOB_MAX];
    uid_t uid;
    char node[FCC_NODE_MAX]; /* this node's address. "": the worker speaks to no other node */
    unsigned char meeting_key[32];
    struct incarnation self;
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* CUDA_MPS_PIPE_DIRECTORY of the job's first client */
    cpu_set_t affinity;              /* the cores that this process may use */
    int cores;                       /* their number */

    /* The loop. */
    struct event_base *base;
    struct event *terminate_event, *hangup_event, *idle_event, *drain_event, *wake_event, *log_event;
    bool draining, quit;
    bool sweep;        /* some sessions or peers are broken, and are to be freed */
    char ending[128];  /* draining: why, for clients */
    uint64_t idle_ns;  /* since when operators run though there is no client. 0: that is not so */
    struct error lost; /* why the GPUs' contexts are lost. status 0: they are not */
    /* Workgroups push launches that have finished onto a stack; the eventfd is written if the engine sleeps. */
    _Atomic(struct finished *) finished;
    _Atomic uint32_t engine_sleeps;
    int wake_fd;
    /* Protects `session` of submissions whose launch runs: the engine, or the last workgroup of the launch, tells the ranks under it. */
    pthread_mutex_t tell_lock;

    /* The channel to the broker (engine/channel.c). */
    const struct channel_ops *channel_ops;
    int control;      /* the socket. -1: the broker is gone, and no other one will come */
    int broker;       /* the broker's pidfd. -1: it has ended, or has sent no ADOPT */
    bool adoptable;   /* a broker has sent ADOPT: when it ends, another one may come */
    uint64_t over_ns; /* engine/adopt.c: when the channel to a broker that lives has ended */
    struct event *broker_event,
        *adopt_event; /* the broker has ended; ADOPT_SECONDS have passed since. NULL: that is not awaited */
    struct event *control_event, *control_write_event;
    TAILQ_HEAD(letters_head, letter) letters;       /* messages that the socket had no room for */
    TAILQ_HEAD(questions_head, question) questions; /* engine/adopt.c: what the next broker is to be asked again */
    unsigned nquestions;
    int spare;                         /* a descriptor that makes room for one that comes. -1: there is none */
    uint64_t sessions_got;             /* SESSION messages that have come */
    uint64_t handed;                   /* SESSION and PEER messages that have come */
    uint32_t arrivals;                 /* PEER messages that have come */
    bool retiring;                     /* the broker was asked, and has not answered: no other node's work is taken meanwhile */
    char trouble[CONTROL_TROUBLE_MAX]; /* which nodes the broker does not reach, and why. "": it reaches all of NODES */

    /* The account (engine/account.c). */
    struct account account;       /* of the user */
    uint32_t place;               /* this worker's index in it */
    struct account_limits limits; /* for all workers of the user together, and for this one */
    struct counted {
        uint64_t used, charged; /* what there is, and how much of it the account was charged for */
    } counted[ACCOUNT_COUNT];   /* of the kinds that are counted one by one */
    struct cgroup cgroup;
    bool memory_limited;                /* whether the control group had a limit at the last look */
    uint64_t small_used, small_charged; /* bytes of many small things, and the bytes that the account was charged for them */
    unsigned unpaid; /* submissions that were not charged, because there was no room (comm/request/submission.c) */

    /* What the broker reads without asking (daemon/common/ledger.h). NULL: the broker has sent no ledger. */
    struct flight *flight;     /* engine/flight.h */
    struct meters *meters;     /* engine/meter.h */
    int ledger;                /* its descriptor. -1: there is none */
    uint64_t links_metered_ns; /* when nodes/links.c reported last */
    bool links_stale;          /* turns have ended over nodes since */

    /* Clients. */
    TAILQ_HEAD(sessions_head, session) sessions;
    uint32_t nclients, ncontrols;
    bool (*session_poll)(struct session *s); /* read what a client has put into its ring. True if there was anything */
    uint64_t arrivals_ns; /* when the submissions came that are being read from the rings. 0: none are being read */

    /* Devices. */
    struct device *devices; /* the cpu's, [ndevices] */
    int ndevices;
    struct views *views;                /* of the cpu devices' memory */
    struct helpers *helpers;            /* threads that share small operators of the cpu devices. NULL: there are none */
    bool helpers_tried;                 /* they have been started, or could not be */
    const struct device *engine_device; /* device/cpu/device.c: the engine runs on this device's cores. NULL: on any */
    unsigned engine_strays;             /* launches in a row that it has run for others */
    struct gpus *gpus;                  /* device/gpu/gpus.c's. NULL: nobody has asked for a GPU */
    uint64_t launches;                  /* that have begun */
    /* Over nodes: not 0 if another thread than the engine has wanted its core, during so many of the last CONTENDED_FOR requests. Then clients
     * sleep while they wait, rather than spin. */
    unsigned contended;
    bool told;        /* a client has been told of an operator's end since the loop looked last */
    unsigned crowded; /* launches in flight that need all cores: the engine does not spin while there are any */

    /* Communicators. */
    LIST_HEAD(comms_head, comm) comms;
    TAILQ_HEAD(unformed_head, unformed) unformed; /* comm/unformed.c */
    unsigned nunformed;
    uint32_t comm_number;              /* of the communicator made last */
    const struct span_ops *span;       /* for communicators over several nodes */
    const struct track_ops *track;     /* of trackers, for comm/ */
    const struct regroup_ops *regroup; /* comm/regroup/regroup.c's, for the rest of comm/ */
    struct tracking *tracking;         /* track/'s. NULL: no rank has had a tracker */
    struct comm *awaits; /* the last one of which some ranks have come to an operator, and others not. NULL: none */

    /* Other nodes (nodes/). */
    unsigned char denials[DENIALS_KEPT][DENIAL_NONCE_BYTES]; /* deny.c: nonces of the denials that were taken last */
    unsigned ndenials;
    char alias[FCC_NODE_MAX];                         /* another address of this node that was found to be one. "": none */
    LIST_HEAD(peers_head, peer) peers;                /* peer.c: the job's workers on other nodes */
    LIST_HEAD(accounts_head, nodes_account) accounts; /* links.c: of nodes whose peers have gone */
    struct event *ping_event;                         /* peer.c */
    unsigned peer_index;                              /* peer.c */
    uint64_t connect_id;                              /* peer.c */
    uint32_t peer_serial;                             /* peer.c */
    unsigned arrival_index;   /* peer.c: of the peer of the PEER that has come last, and for what it was */
    uint32_t arrival_purpose; /* peer.c */
    struct nodes_data *data;  /* data.c. NULL: there is no other node */
};

/* A worker whose channel to the broker is that descriptor, and which has nothing else yet. */
#define WORKER_CLOSED(channel)                                                                                                 \
    {                                                                                                                          \
        .control = (channel), .broker = -1, .spare = -1, .wake_fd = -1, .ledger = -1, .tell_lock = PTHREAD_MUTEX_INITIALIZER   \
    }

/* Any thread: push a finished launch for the engine (worker_launch_finished(): and wake the engine). */
void worker_launch_give(struct worker *w, struct finished *f);
void worker_launch_finished(struct worker *w, struct finished *f);
/* The engine: the launches that have been pushed since the last call, in the order in which they were pushed. Returns the first, linked by
 * `next`; NULL if there is none. */
struct finished *worker_launches_take(struct worker *w);
/* Any thread, after it has stored what the engine looks at before it sleeps (sequentially consistent): wake the engine if it sleeps. */
void worker_wake(struct worker *w);
/* The engine: the callback of wake_event, which reads wake_fd. */
void worker_on_wake(evutil_socket_t fd, short what, void *worker);

/* Tell the broker the number of sessions. */
void worker_sessions_tell(struct worker *w);
/* The number of sessions has changed: tell the broker, and watch for the time without any. */
void worker_sessions_changed(struct worker *w);
/* Let idle_event come after WORKER_IDLE_MS without a session, or, at_least_ms, after that if it is longer. */
void worker_idle_watch(struct worker *w, uint32_t at_least_ms);

#endif
