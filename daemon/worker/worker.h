/* SPDX-License-Identifier: MIT
 *
 * worker.h - the process that serves one job of one user: its objects, and which thread may touch what.
 *
 *   worker.c      start, the loop, the end
 *   rights.c      it becomes its user's
 *   engine/channel.c     the channel to the broker
 *   engine/account.c      what it may take of the user's memory account
 *   session.c     a client's connection: messages in, replies out; session/messages.c: what they ask for
 *   session/ring.c        its shared memory: the submission ring and the completion slots
 *   submission.c  a request copied out, checked, and resolved to memory
 *   comm/join.c   communicators: how they begin, who has joined
 *   unformed.c    ... and those that did not begin, for ranks that come too late
 *   comm/comm.c        whose turn it is in them, how they end
 *   deadline.c    its time limits
 *   comm/turn.c      one operator of all ranks: staging, start, completion
 *   device/launch.c, comm/early.c   ... made, with its plans, and kept; begun before all ranks have come
 *   tune.c        which schedule `auto` takes
 *   overlap.c     whether an input lies where a result is stored
 *   comm/buffer.c      memory that clients use
 *   puts.c, puts_check.c   what programs' own kernels send to other nodes
 *   comm/bound.c    operators that the ranks' own processes launch; comm/bind.c: what they are given for that; offers.c: ...
 *                 that they launch though the program has not prepared them
 *   device.h      what holds memory and runs plans: device/cpu/device.c (and device/cpu/execute.c), device/gpu/device.c (and device/gpu/gpus.c, device/gpu/steps.c,
 *                 device/gpu/parts.c, device/gpu/stream.c, device/gpu/watch.c); helpers.c, threads that help the engine with either
 *   life.c        hears that a client has died
 *   meeting.c     the id of a communicator whose ranks agreed on a name
 *   session/query.c       what fccctl asks
 *
 * Threads. The engine thread runs worker.c's loop and owns every object here. The workgroups of the devices touch only a
 * launch that they were given, and in it only what launch.h says is theirs, until they hand it back. The last of them also tells
 * the ranks (launch_end()), so it writes their sessions' slots, which are there as long as a submission names its session.
 *
 * Ownership. The worker owns sessions and communicators. A session owns its buffers' handles and memberships; a communicator
 * owns its members (one per rank); a member owns its queue of submissions. A submission holds a reference on each buffer that
 * it uses, so memory outlives its handle and its session while an operator may touch it.
 */
#ifndef FCC_DAEMON_WORKER_WORKER_H
#define FCC_DAEMON_WORKER_WORKER_H

#include <event2/event.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "daemon/common/account.h"
#include "daemon/common/cgroup.h"
#include "daemon/common/control.h"
#include "kernels/plan/program.h"
#include "proto/base/clock.h"

struct comm;
struct device;
struct gpu_words;
struct gpus;
struct helpers;
struct launch;
struct member;
struct outgoing;
struct peer;
struct peer_deny;
struct peer_join;
struct peer_submit;
struct prepared;
struct puts;
struct session;

#define DENIALS_KEPT 64 /* as many as a broker hands over in a second */

struct worker {
    struct config config;
    char job[FCC_JOB_MAX];
    uid_t uid;
    struct event_base *base;
    int control; /* to the broker; -1: it is gone */
    struct event *control_event, *control_write_event, *terminate_event, *hangup_event, *idle_event, *drain_event, *wake_event,
        *log_event;
    TAILQ_HEAD(letters_head, letter) letters; /* engine/channel.c's: messages to the broker that its socket had no room for */
    int spare;                                /* ... a descriptor that makes room for one that comes; -1: there is none */
    TAILQ_HEAD(sessions_head, session) sessions;
    uint32_t nclients, ncontrols;
    uint64_t sessions_got; /* SESSION messages of the broker */
    LIST_HEAD(comms_head, comm) comms;
    TAILQ_HEAD(unformed_head, unformed) unformed; /* unformed.c's */
    unsigned nunformed;
    unsigned char denials[DENIALS_KEPT][DENIAL_NONCE_BYTES]; /* nodes/deny.c's: that were taken; those of the last */
    unsigned ndenials;
    uint32_t comm_number;   /* of the comm made last */
    struct device *devices; /* cpu */
    int ndevices;
    struct views *views;     /* of the cpu devices' memory */
    struct helpers *helpers; /* with small operators of the cpu devices; NULL: there are none */
    bool helpers_tried;      /* they are, or could not be */
    uint64_t launches;       /* that have begun */
    struct gpus *gpus;       /* device/gpu/device.c's; NULL: nobody has asked for a GPU */
    char node[FCC_NODE_MAX]; /* this node's address; "": it speaks to no other */
    unsigned char meeting_key[32];
    struct incarnation self;
    char trouble[CONTROL_TROUBLE_MAX]; /* which nodes the broker does not reach, and why; "": it reaches all of NODES */
    char alias[FCC_NODE_MAX];          /* another address of this node that was found to be one; "": none */
    uint64_t handed;                   /* SESSION and PEER messages that have come */
    bool retiring; /* has asked the broker, and knows of no answer: no other node's work is taken meanwhile */
    LIST_HEAD(peers_head, peer) peers;                /* peer.c's: the job's workers on other nodes */
    LIST_HEAD(accounts_head, nodes_account) accounts; /* nodes/links.c's: of nodes whose peers have gone */
    struct event *ping_event;                         /* peer.c's */
    unsigned peer_index;                              /* ... */
    uint64_t connect_id;                              /* ... */
    uint32_t peer_serial;                             /* ... */
    struct nodes_data *data;                          /* nodes/data.c's; NULL: there is no other node */
    char mps_pipe[FCC_MPS_PIPE_MAX];
    int cores;              /* that this process may use */
    struct comm *awaits;    /* the last one of which a rank has come to an operator, and not all; NULL: none */
    uint64_t arrivals_ns;   /* when what is being read from the rings came; 0: nothing is */
    unsigned crowded;       /* launches in flight that need all cores: the engine does not spin while there are any */
    struct account account; /* engine/account.c's: the user's */
    uint32_t place;         /* ... this worker's in it */
    uint64_t memory_limit;  /* ... of all that is in it */
    struct cgroup cgroup;   /* ... */
    bool memory_limited;    /* ... at the last look that was one: the kernel kills who takes memory that is not there */
    uint64_t small_used, small_charged; /* ... bytes of many small things, and what is charged for them */
    unsigned unpaid;                    /* submission.c's: those that had no room */
    bool draining, quit;
    char ending[128];  /* why it drains, for clients */
    uint64_t idle_ns;  /* since when there are operators and no client; 0: that is not so */
    bool sweep;        /* some sessions are broken */
    struct error lost; /* why the GPUs' contexts are lost; status 0: they are not */

    /* Workgroups hand finished launches back: a stack that they push to, and an eventfd that is written if the engine sleeps.
     */
    _Atomic(struct launch *) finished;
    /* Ranks of launches that run in workgroups are told under this, by the engine or by the last workgroup: submissions' `session` */
    pthread_mutex_t tell_lock;
    _Atomic uint32_t engine_sleeps;
    int wake_fd;
};

/* The process: its argument is the user that it is to be. Returns its exit status. */
int worker_run(int argc, char *argv[]);

/* What the process is made of, for programs that have several workers, or somebody else's loop. A worker whose channel to the broker is
 * that descriptor, before it is opened: */
#define WORKER_CLOSED(channel)                                                                                                 \
    {                                                                                                                          \
        .control = (channel), .spare = -1, .wake_fd = -1, .tell_lock = PTHREAD_MUTEX_INITIALIZER                               \
    }
/* 0 or -errno; it is to be closed in either case. Its channel is then closed, too. account: its user's, a descriptor that stays the caller's. */
int worker_open(struct worker *w, const struct control_start *start, int account);
void worker_close(struct worker *w);
/* One turn of the loop: all that there is to do but what the event loop does; nothing is waited for. Was there anything? */
struct spin;
bool worker_turn(struct worker *w, const struct spin *spin);

/* Finish what runs, refuse the rest, end. */
void worker_drain(struct worker *w, const char *why);

/* engine/channel.c. The first words: the broker hears that nobody can look into this process, whose arguments say which user's it is to be, and
 * says what it is (*start has room for FCC_MSG_MAX bytes). Before that nothing is told to it: see rights.c. Returns the account's descriptor,
 * which is the caller's, or -1 if nobody is there who starts a worker. */
int control_start(int argc, char *argv[], struct control_start *start);
int control_open(struct worker *w);
void control_close(struct worker *w); /* the broker is gone, or not needed any more */
/* Send a message, or keep it until the broker's socket has room for it. -EPIPE: the broker is gone; -ENOMEM. */
int control_send(struct worker *w, struct fcc_msg *m, size_t length);

/* engine/account.c. Charge `bytes` to the user's account. 0, or -ENOMEM with the reason: MEMORY_PER_USER_MB, or the control group has no more. */
int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_memory_release(struct worker *w, uint64_t bytes);
/* The same for what is small and comes often, as a request that waits: mostly without a look at the account. */
int worker_small_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_small_release(struct worker *w, uint64_t bytes);
/* The number of sessions has changed: tell the broker, and watch for the time without any. */
void worker_sessions_changed(struct worker *w);
/* The broker has handed a connection over. It is not idle, whatever it has said (control.h). */
void worker_handed(struct worker *w);
/* The broker says that it may go. */
void worker_retire(struct worker *w);
/* Any thread: hand a finished launch back to the engine; and wake it. */
void worker_launch_give(struct worker *w, struct launch *l);
void worker_launch_finished(struct worker *w, struct launch *l);
/* The engine: what was handed back is over, in that order. True if something was. To be called before it hears what clients want that
 * may have been told of an operator's end by a workgroup. */
bool worker_collect(struct worker *w);
/* Any thread, after it has stored what nodes_have_news() looks at (sequentially consistent): wake the engine if it sleeps. */
void worker_wake(struct worker *w);

/* ---- comm/buffer.c ---- */

/* Memory of a device, as this process and the devices of its kind address it. */
struct device_memory {
    unsigned char *data; /* NULL: none. A GPU's is not for the CPU to touch */
    uint64_t bytes;      /* at least what was asked for */
    enum fcc_memory_kind kind;
    struct gpu_memory gpu;
    struct gpus *gpus; /* host memory that GPUs see (device/gpu/steps.c); NULL: it is not */
};

struct buffer_peers {
    struct buffer *of[FCC_MAX_RANKS];
};

#define BUFFER_BYTES_MAX (1ull << 46)

/* Memory that clients use. */
struct buffer {
    struct device *device;   /* NULL: the shadow of a buffer on another node */
    int refs;                /* its handle, and submissions in flight */
    struct session *session; /* NULL: the handle is gone */
    LIST_ENTRY(buffer) link; /* session.buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    uint32_t comm; /* the number of its communicator, which may be gone: another one never has the same */
    int rank;      /* whose it is in the communicator */
    struct device_memory memory;
    uint64_t bytes;  /* as asked for */
    uint32_t number; /* symmetric: which allocation of its communicator, the same for all ranks' parts; 0: not one yet */
    int fd;          /* the memory, for other ranks' clients to import; -1: nobody can want it */
    struct buffer_peers *peers; /* [FCC_MAX_RANKS] other ranks' parts that its client has mapped, a reference each; or NULL */
};
/* Do the operators of its communicator store into it, those of other ranks, too? */
static inline bool buffer_takes_results(const struct buffer *b)
{
    return b->kind != FCC_BUFFER_LOCAL;
}
/* May a buffer have so many? */
int buffer_bytes_check(uint64_t bytes, struct error *e);
/* Zeroed memory with one reference, the handle's. *fd is the caller's, for the client. */
int buffer_alloc(struct member *m, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
/* A result buffer of m's rank, of which its other nodes are told. As buffer_alloc(). */
int buffer_alloc_result(struct member *m, uint64_t bytes, struct buffer **out, int *fd, struct error *e);
struct buffer *buffer_find(const struct session *s, uint32_t handle);
/* A symmetric allocation has succeeded: the part of a rank here takes its number and, if other ranks are here, the descriptor.
 * The caller closes it otherwise: false. */
bool buffer_publish(struct buffer *b, const struct comm *c, int fd);
/* The part of `rank` of the allocation that b is a part of, for b's client: it stays until b's handle goes. -EINVAL, -ENOENT
 * (freed, or the communicator has ended), -EXDEV (on another node), -ENOMEM. */
int buffer_peer(struct buffer *b, int rank, struct buffer **out, struct error *e);
void buffer_unref(struct buffer *b);
void buffer_drop_handle(struct buffer *b); /* and its reference */

/* ---- session.c, session/messages.c, session/ring.c ---- */

struct session {
    struct worker *worker;
    TAILQ_ENTRY(session) link; /* worker.sessions */
    int sock;
    uint32_t role; /* enum fcc_role */
    uid_t uid;
    pid_t pid;
    int process; /* a descriptor of it; -1: there is none (process.h) */
    struct event *event, *write_event, *again_event, *doorbell_event, *process_event;
    TAILQ_HEAD(outbox_head, outgoing) outbox; /* replies that the socket had no room for */
    unsigned outbox_length;
    uint64_t outbox_since_ns;          /* the first of them cannot be sent though the socket has room; 0: that is not so */
    uint64_t charged;                  /* bytes, for the session itself */
    struct fcc_session_memory *memory; /* NULL: control session */
    uint64_t gpu_address;              /* where GPUs see `memory`; 0: they do not */
    TAILQ_ENTRY(session) life_link;    /* life.c's, while gpu_address is not 0 */
    _Atomic bool life_over;            /* its process has died */
    struct gpu_words *words;           /* device/gpu/stream.c's: its streams' words in the memory of GPUs; NULL: none */
    uint32_t words_gpus;               /* ... of these */
    int doorbell;
    uint64_t tail;        /* bytes read from the ring: ours, memory->tail is for the client */
    uint32_t engine_core; /* as written to memory */
    LIST_HEAD(members_head, member) members;
    LIST_HEAD(buffers_head, buffer) buffers;
    uint32_t last_handle;
    uint64_t status_words[FCC_STATUS_WORDS / 64]; /* session/ring.c: a bit for each that is in use */
    uint64_t prepared_places;                     /* comm/bound.c: a bit for each of memory->prepared[] that is in use */
    uint64_t offered_places;                      /* ... for those behind them */
    uint64_t stream_slots;                        /* submission.c: a bit for each whose operator has its place on a stream */
    const char *broken;                           /* why it is about to be freed; NULL: it is not */
};

/* Take over a connection and greet it. Owns sock from now on. */
void session_open(struct worker *w, int sock, const struct control_session *who);
/* Say why the connection ends: the client's calls end with this rather than with -ECONNRESET. */
void session_farewell(struct session *s, int status, const char *text);
/* The connection has ended or broken the protocol (why: a literal, for the log and for the other ranks). Nothing more is read
 * from it; the loop frees it, when no function is in the middle of using it. */
void session_break(struct session *s, const char *why);
/* Free the broken sessions: each leaves its communicators, and its buffers go when no operator uses them. */
void sessions_sweep(struct worker *w);
/* Send a reply; takes care of a full socket, and of a kernel that takes no more descriptors for a while. fds are duplicated as needed; the
 * caller keeps its own. What cannot be sent ends the connection. */
void session_reply(struct session *s, struct fcc_reply *reply, size_t length, const int *fds, int nfds);
/* session/messages.c: do what a message asks for, of `length` bytes and with so many descriptors, and answer it. */
void session_handle(struct session *s, const struct fcc_msg *m, size_t length, int nfds);
/* A reply without a body. */
void session_reply_status(struct session *s, const struct fcc_msg *request, int status, const char *text);

int ring_open(struct session *s, int *memory_fd, struct error *e);
void ring_close(struct session *s);
/* Has the client put anything into its ring? If so, it is on its way here from the client's core. */
bool ring_look(const struct session *s);
/* Read what the client has put into its ring. True if there was anything. */
bool ring_poll(struct session *s);
void ring_set_sleeping(struct session *s, bool sleeping);
bool ring_has_more(const struct session *s);
/* The slot's operator has begun and needs the cores: whoever waits for it is to sleep. */
void slot_running(struct session *s, uint32_t slot);
/* Write a completion into a slot and wake who sleeps on it. */
void slot_complete(struct session *s, uint32_t slot, uint64_t id, int status, const char *text, const int64_t *values,
                   int nvalues);
/* The same of an operator that went well; any thread. */
void slot_succeed(const struct session *s, uint32_t slot, uint64_t id, const int64_t *values, int nvalues);
/* A word for a communicator's status, which is 0; FCC_NO_STATUS_WORD: there is none left. And back. */
uint32_t status_word_take(struct session *s);
void status_word_give(struct session *s, uint32_t word);
/* It says why from now on, unless it does already. */
void status_word_raise(struct session *s, uint32_t word, int status);
/* Let the client's stream go on that waits for the slot's operator by the slot's own words. */
void slot_stream_finish(struct session *s, uint32_t slot, uint32_t value);

/* ---- submission.c ---- */

enum submission_kind { SUBMISSION_OPERATOR, SUBMISSION_ALLOC };

/* Problems of about the same size: what is measured of one holds for all of them. */
struct tune_class {
    uint32_t op, dtype;
    int32_t bytes, flops; /* half powers of two; a class's work is within 1.42 of each other */
};
struct tune_sample {
    struct tune_class class;
    uint32_t kind; /* enum fcc_schedule_kind */
    uint32_t zero;
    uint64_t ns; /* 0: none */
};
static_assert(sizeof(struct tune_sample) == 32, "wire: peer.h");

#define OFFERS_REFUSED 32

/* Where it is decided whether an offered operator's kernel may run (offers.h). */
struct offer_word {
    uint64_t address;
    int gpu;
};

/* One rank's turn in a communicator's order: an operator, or its part of a symmetric allocation. */
struct submission {
    TAILQ_ENTRY(submission) link; /* member.queue */
    struct session *session;      /* who is to be told; NULL: gone, or told. While its launch runs: worker.tell_lock */
    enum submission_kind kind;
    uint64_t id;
    uint32_t slot;
    uint32_t stream;   /* not 0: it has its place on a stream of the client (struct fcc_slot) */
    bool gpu_words;    /* ... by the words in the memory of GPUs */
    uint32_t own_gpus; /* ... a bit for the rank's */
    bool prepare;      /* the operator is not to run, but to be prepared (comm/bound.c) */
    bool asks;         /* ... or, if all ranks ask, to be prepared beside, as what the client calls `request` */
    uint32_t request;
    uint64_t number; /* the how-manieth operator of its rank in the communicator; an allocation: 0 */
    uint32_t offer;  /* offers.c: the prepared operator whose run stands on the stream; 0: none */
    uint64_t run;    /* ... */
    bool decided;    /* ... whether it may run, by this word: */
    struct offer_word word;
    bool reads_others; /* overlap.c: an input lies in memory for results that is another rank's */
    uint64_t arrived_ns;
    uint64_t alloc_bytes;
    struct tune_sample sample; /* rank 0's, over several nodes: all record it when this turn begins */
    struct op_args args;       /* attrs point into `words` */
    struct buffer *buffers[FCC_MAX_TENSORS];
    bool again;           /* its memory is used again (submission_new()) */
    struct worker *payer; /* charged with submission_bytes() of it; NULL: nobody yet */
    bool unpaid;          /* there was no room for it: counted in worker.unpaid, and not charged */
    struct error error;   /* what is wrong with the request by itself: told to all ranks when its turn comes */
    int64_t words[];      /* the attributes: our copy */
};

/* Handle a SUBMIT message that lies in our own memory: check it and queue it in its communicator. The message came through
 * the ring (with a slot) or over the socket. */
void submission_accept(struct session *s, const struct fcc_submit *m, size_t length);
/* The same for a rank on another node, whose worker has checked it: its buffers for results are shadows here. NULL with the reason. */
struct submission *submission_remote(struct member *m, const struct fcc_submit *submit, size_t length,
                                     const struct peer_submit *from, struct error *e);
struct submission *submission_new(struct session *s, enum submission_kind kind, uint64_t id, size_t words);
/* There is no memory for a rank's turn, and what it submits later would be taken for it: the communicator is over. */
void order_lose(struct member *m);
/* Tell the client how it ended, if it has not been told and is still there. */
void submission_tell(struct submission *s, int status, const char *text, const int64_t *values, int nvalues);
void submission_free(struct submission *s);
/* It is about to wait in a queue: charge it to the user's account. If there is no room, *sub becomes a smaller one that has that as its error,
 * and is not charged but counted: so it can take its turn nevertheless. -ENOMEM then, with the reason. */
int submission_charge(struct submission **sub, struct worker *w, struct error *e);

/* ---- communicators ---- */

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
    LIST_HEAD(, buffer) shadows; /* of its buffers for results */
    struct puts *puts;           /* puts.c's: what its program's kernels send to other nodes; NULL: nothing */
    char *leaving;               /* it has left (why; "": by its own wish) after leaving_turns, which have not ended here yet */
    uint64_t leaving_turns;
    uint64_t staged_bytes; /* nodes/nodes.c: of staging memory that all nodes know the rank to have */
    struct device *device;
    uint64_t join_id;                         /* of the COMM_INIT message, answered when all have joined */
    TAILQ_HEAD(queue_head, submission) queue; /* those of the launches that run, then those that have not begun */
    bool words_noted;                         /* submission.c's */
    uint64_t operators;                       /* that the rank has submitted */
    struct submission *next;                  /* the first that has not begun; NULL: there is none */
    unsigned queued;
    uint64_t alone; /* it has allocated, or tried to, by itself since its last operator: the kind + 1. 0: it has not */
    struct device_memory staging; /* grows as operators need it */
    struct device_memory slots;   /* GPUs: two of comm.slots_bytes, for operators by turns */
    struct device_memory flags;   /* uint64_t[PLAN_MAX_FLAGS + 1]: epochs; workgroups of all ranks. GPUs: [GPU_FLAG_WORDS] */
    _Atomic uint64_t *arrived; /* GPUs, over nodes: [PLAN_MAX_FLAGS], flags that other nodes have raised. The proxy thread's */
    uint64_t arrived_ns;       /* when the head of the queue came */
};

/* What workgroups and the engine share of a communicator. */
struct comm_shared {
    _Atomic int32_t status; /* the word that every wait polls: not 0 means leave */
    int32_t zero;
};

enum comm_state { COMM_FORMING, COMM_ACTIVE, COMM_ABORTED };

struct tune;
struct comm {
    struct worker *worker;
    LIST_ENTRY(comm) link; /* worker.comms */
    uint32_t number;       /* of all that this worker has had: for people (fccctl --comm), and for other nodes (peer_msg) */
    struct fcc_unique_id unique_id;
    enum comm_state state;
    int nranks, present;      /* members that are JOINED */
    int here;                 /* of them on this node */
    struct comm_nodes *nodes; /* nodes/nodes.c's; NULL: all ranks are here */
    uint32_t time_limit_ms;
    struct error error;           /* why it was aborted */
    uint32_t allocations;         /* symmetric, that have succeeded: the same on all nodes */
    uint64_t operators;           /* begun: the number of the newest or last one */
    uint64_t epoch;               /* of the newest or last launch */
    uint64_t slots_bytes;         /* that an operator may have; 0: there are none */
    uint32_t stamp;               /* of the last operator that used the slots since they were made; 0: none */
    struct comm_shared *shared;   /* what waits look at; the device's */
    const struct device_ops *ops; /* of all its ranks' devices: they are of one kind */
    uint32_t words_gpus;          /* its GPUs, if streams can hand over to it by words in the memory of all of them; or 0 */
    struct launch *current;       /* of those that run, the one that began first: the others follow (launch.following) */
    struct launch *newest;        /* ... and the one that began last. On GPUs several run, one behind the other */
    unsigned running;             /* how many */
    struct launch *last;          /* finished last, with its times: in the cache, or running again; NULL: none */
    struct launch *cache;         /* finished launches, kept for their plans, most recently used first */
    struct launch *early;         /* of these: some of its slices have run already, for the next operator; comm/early.c */
    struct problem *problem;      /* scratch for matching */
    struct tune *tune;
    LIST_HEAD(, prepared) prepared;          /* comm/bound.c's: operators that its ranks launch themselves */
    uint32_t offers_refused[OFFERS_REFUSED]; /* offers.c: requests of rank 0 that are none to be offered */
    unsigned offers_nrefused;
    uint64_t granted, declined;                                /* ... operators that were offered by ranks */
    struct event *prepared_watch;                              /* ... NULL: there never was one */
    uint32_t prepared_number;                                  /* ... of the newest one */
    struct event *timer;                                       /* looks at deadline_ns */
    uint64_t turn_ns;                                          /* when the last turn ended; 0: there was none */
    uint64_t deadline_ns;                                      /* 0: nothing has a time limit now */
    LIST_HEAD(trace_waiters_head, trace_waiter) trace_waiters; /* fccctl trace --next */
    struct member members[];
};

/* ---- comm/join.c ---- */

void comm_join(struct session *s, const struct fcc_comm_init_msg *m);
/* The same for a rank that is on another node, and comes to form a communicator here. */
void comm_join_remote(struct peer *p, const struct peer_join *m);
/* A rank on another node has been refused there. */
void comm_deny_remote(struct peer *p, const struct peer_deny *m);
/* The same, as the root of c, which forms, has learned it otherwise. It may free c. */
void comm_deny(struct comm *c, int rank, const struct error *e);
void comm_complete(struct comm *c); /* all ranks have joined, here. The caller releases it */
void comm_active(struct comm *c);   /* all have joined: tell them */
struct peer_msg;
/* Which one that worker's message is meant for; NULL: it has ended here. */
struct comm *comm_find_addressed(const struct worker *w, const struct peer *p, const struct peer_msg *m);
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

/* ---- session/query.c ---- */
void query_handle(struct session *s, const struct fcc_query *q);
void trace_waiters_answer(struct comm *c, const struct error *e); /* after an operator, or at the comm's end */
void trace_waiters_forget(struct session *s);

#endif
