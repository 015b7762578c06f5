/* SPDX-License-Identifier: MIT
 *
 * broker.h - the process that listens: it learns who is there, finds or starts the worker of that user's job, hands it the
 * connected socket, and is out of the way. It holds no client's memory, no device and no communicator. One thread.
 *
 *   background.c  --background, and the file with the process id
 *   listen.c   the listening socket: made here, or by systemd
 *   user.c     what each user has here
 *   visitor.c  connections that are not handed over yet: who may be here, and who makes room
 *   hello.c    what they say
 *   groups.c   the groups of a user whose worker is to be started
 *   child.c    processes that ask somebody who may take his time
 *   job.c      jobs and their workers: start, hand over, end
 *   channel.c  what is said to a worker, and waits until it has room for it
 *   charge.c   each user's memory account
 *   probe.c    the child that lists the GPUs, and what it found
 *   spawn.c    a worker process with its user's rights and nothing else; the process that lists the GPUs
 *   query.c    what fccctl asks the broker itself
 *   node*.c    other nodes' brokers: node.h
 */
#ifndef FCC_DAEMON_BROKER_BROKER_H
#define FCC_DAEMON_BROKER_BROKER_H

#include <event2/event.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "daemon/common/account.h"
#include "daemon/common/control.h"
#include "proto/base/clock.h"

#define BROKER_SIGNALS 4

struct broker;
struct child;
struct evbuffer;
struct groups;
struct json_object;
struct lookup;
struct nodes;
struct ping;
struct user_account;

/* What a user has here, of which each may have a share. Owned by broker.users; gone with the last of it. */
struct user {
    LIST_ENTRY(user) link; /* broker.users */
    uid_t uid;
    unsigned visitors, askers; /* of his; of those are fccctl's */
    unsigned calls;            /* node_peer.c's: connections to other nodes that his jobs have asked for */
    unsigned held;             /* ... and those of other nodes that wait for his jobs' workers here */
    unsigned tellings;         /* node_denial.c's: denials of his jobs that are told to other nodes */
};

/* A connection that has not said its HELLO yet, or one of fccctl's to the broker. Owned by broker.visitors. */
struct visitor {
    struct broker *broker;
    LIST_ENTRY(visitor) link; /* broker.visitors */
    struct event *event;      /* readable, or the time limit for the HELLO */
    int sock;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    struct user *user;
    uint64_t heard_ns;      /* when it came, or has said something last */
    struct fcc_hello hello; /* once it was well */
    bool control;           /* fccctl, speaking to the broker */
    bool handed_over;       /* its connection has gone to a worker */
    struct lookup *lookup;  /* its job's start waits for this; nothing is read meanwhile */
    bool waits;             /* its question for the devices waits for the probe; nothing is read meanwhile */
    uint64_t query_id;      /* waits: the question's */
    struct ping *ping;      /* its question waits for this; nothing is read meanwhile */
};

/* A (user, job id) and its worker. Owned by broker.jobs. A job whose worker died or retired is removed at once. */
struct job {
    struct broker *broker;
    LIST_ENTRY(job) link; /* broker.jobs */
    uid_t uid;
    char name[FCC_JOB_MAX];
    pid_t pid; /* the worker's */
    struct incarnation worker;
    uint64_t handed; /* SESSION and PEER messages that were sent to it */
    int control;
    struct event *event;                      /* control is readable */
    bool closed;                              /* the worker has said that nobody can look into it: it may hear things */
    TAILQ_HEAD(parcels_head, parcel) parcels; /* channel.c's: what waits until it has room for it */
    struct event *write_event;                /* ... */
    char mps_pipe[FCC_MPS_PIPE_MAX];          /* for its START */
    uint64_t given,
        got; /* SESSION messages that were sent, or wait; and those of which the worker has said that they have come */
    uint32_t connections;         /* that it had when it said so */
    uint32_t sessions;            /* ... of clients, and those that were sent since */
    struct user_account *account; /* charge.c's; NULL: it has none yet */
    uint32_t place;               /* ... the worker's in it */
    uint64_t started_ns;
    bool retired; /* takes no new connections; stays in the list until the process has ended */
};

/* The child that lists the GPUs. It has ended when its output is at its end and it is reaped, or when its time is over. */
struct probe {
    pid_t pid; /* 0: there is none, or it is reaped */
    int wait_status;
    int fd; /* its output; -1: at its end */
    struct event *event, *limit;
    struct evbuffer *said;
    struct json_object *gpus; /* as in gpus.h; "listing" until it has ended. Never NULL once the broker serves */
    bool ended;
};

struct broker {
    struct config config;
    struct event_base *base;
    struct event *listen_event, *listen_again, *signal_events[BROKER_SIGNALS]; /* again: after a pause */
    int argc; /* the command line, to be read again; not owned */
    char **argv;
    int listen_sock;
    unsigned descriptors; /* that this process may have */
    bool socket_is_ours;  /* to be unlinked at the end */
    int exe;              /* this program, for the workers */
    bool draining;
    struct event *drain_event;
    struct event *log_event; /* every LOG_WINDOW_S */
    uint64_t started_ns;
    uint64_t connections, refused, workers_started, workers_died;
    struct incarnation last; /* of the worker started last */
    struct probe probe;
    struct nodes *nodes;                        /* NULL: this node speaks to no other */
    LIST_HEAD(visitors_head, visitor) visitors; /* the newest first */
    unsigned nvisitors, visitors_max;
    LIST_HEAD(users_head, user) users;
    TAILQ_HEAD(lookups_head, lookup) lookups; /* groups.c */
    unsigned nlookups;                        /* children that look one up */
    LIST_HEAD(children_head, child) children; /* child.c */
    LIST_HEAD(jobs_head, job) jobs;
    LIST_HEAD(user_accounts_head, user_account) accounts; /* charge.c's */
};

/* Serve until SIGTERM or SIGINT, then drain. SIGHUP reads the configuration again, with this command line. Returns the process's
 * exit status. */
int broker_run(const struct config *config, int argc, char *argv[]);
/* What that is made of, for programs that turn its event loop themselves. open: 0, or -errno, which is logged; it is to be closed in
 * either case. */
int broker_open(struct broker *b, const struct config *config, int argc, char *argv[]);
void broker_close(struct broker *b);

/* listen.c: returns the listening socket, or -errno (logged). */
int listen_open(struct broker *b);
void listen_close(struct broker *b);

/* user.c. Found or made; NULL: there is no memory. user_put() frees what has nothing any more. */
struct user *user_find(const struct broker *b, uid_t uid);
struct user *user_get(struct broker *b, uid_t uid);
void user_put(struct user *u);

/* visitor.c */
void visitor_accept(evutil_socket_t sock, short what, void *broker); /* event callback of the listening socket */
void visitors_again(evutil_socket_t sock, short what, void *broker);
void visitor_free(struct visitor *v); /* closes its socket */
/* It is fccctl's. May free another of that user's; false: there are too many that wait for an answer. */
bool visitor_may_ask(struct visitor *v);

/* hello.c */
extern const struct timeval visitor_limit;                          /* in which a visitor says something */
void visitor_read(evutil_socket_t sock, short what, void *visitor); /* event callback. May free the visitor */
static inline void visitor_hear(struct visitor *v)
{
    visitor_read(v->sock, EV_READ, v);
}
void visitor_refuse(struct visitor *v, uint64_t id, const struct error *e); /* tells it, and frees it */
void visitors_answer(struct broker *b); /* the probe has ended: those that wait for the devices */
/* The user's groups, or (NULL) the error. Frees the visitor. */
void visitor_grouped(struct visitor *v, const struct groups *groups, const struct error *e);
/* Answer a question with that memfd, which is closed, or with that error. May free the visitor. */
void visitor_reply(struct visitor *v, uint64_t id, int fd, const struct error *e);
/* The answer to a ping is there, or (fd < 0) its error. May free the visitor. */
void visitor_pinged(struct visitor *v, int fd, const struct error *e);

/* job.c. job_hand_over() gives the visitor's socket to the job's worker, which it starts if need be; on success the
 * visitor may be freed. 0, or an error for the visitor. */
struct job *job_find(struct broker *b, uid_t uid, const char *name);
int job_hand_over(struct broker *b, const struct visitor *v, const struct fcc_hello *hello, const struct groups *groups,
                  struct error *e);
/* Would job_hand_over() start a worker as another user than the broker's, for whom it needs his groups? Otherwise it does not look
 * at them. */
bool job_needs_groups(struct broker *b, const struct visitor *v, const struct fcc_hello *hello);
void job_disconnect(struct job *j); /* no more messages to or from the worker; the entry stays until the process has ended */
void jobs_reap(struct broker *b);   /* SIGCHLD */
void jobs_drain(struct broker *b);
void jobs_kill(struct broker *b); /* those that are left when the drain's time is over */

/* channel.c, for a job with a control socket. channel_send() sends a message, and fd (-1: none) with it, which stays the caller's; what
 * there is no room for is kept, and sent later. 0; -EAGAIN: too much is kept already; -EPIPE, -ECONNRESET: the worker is gone; or
 * another error. channel_try() keeps nothing: channel_is_full() of what it returns says that it is to be tried again later. */
int channel_open(struct job *j);
void channel_close(struct job *j); /* clients whose connections were kept are told that the worker is gone */
/* The worker has said CLOSED: this is its START, with the account's descriptor. Then it may have what was kept. */
int channel_greet(struct job *j, struct fcc_msg *start, size_t length, int fd);
int channel_send(struct job *j, struct fcc_msg *m, size_t length, int fd);
/* The same without a descriptor; one of its type that was kept is not sent, but replaced. */
int channel_send_newest(struct job *j, struct fcc_msg *m, size_t length);
int channel_try(struct job *j, struct fcc_msg *m, size_t length, int fd);
bool channel_is_full(int status);

/* charge.c: the job's worker, which is about to be started, gets a place in its user's account; its process has ended; the account's
 * page, for the worker; what the worker has, in bytes. */
int job_account_open(struct job *j, struct error *e);
void job_account_close(struct job *j);
int job_account_fd(const struct job *j);
uint64_t job_memory(const struct job *j);

/* probe.c. What goes wrong is logged, and stands in the list as the plug-ins' state. */
void probe_start(struct broker *b);
void probe_reap(struct broker *b); /* SIGCHLD */
void probe_close(struct broker *b);

/* spawn.c: start a worker for that user, with these supplementary groups (if the broker is root) and `control` as its descriptor 3.
 * Returns its pid or -errno with the reason. */
pid_t worker_spawn(int exe, uid_t uid, gid_t gid, const struct groups *groups, int control, struct error *e);
/* The same for fccd --list-gpus, as the broker's user, with `out` as its standard output. */
pid_t lister_spawn(int exe, const struct config *config, int out, struct error *e);

/* groups.c: find the groups of the visitor's user: v->lookup is set, and visitor_grouped() will be called, in a limited time; or an
 * error. lookups_close(): those that wait are forgotten. */
struct groups {
    size_t n;
    const gid_t *gids;
};
int groups_ask(struct visitor *v, struct error *e);
void lookups_go_on(struct broker *b); /* a child is reaped: the next may be asked */
void lookups_close(struct broker *b);

/* child.c: run(out, argument) in a process of its own, which has that descriptor to write what it learnt, and none other of the
 * broker's. *holder is the child until it is reaped, then NULL; *count counts those that are not. *in (non-blocking, the caller's) yields
 * what it writes, and its end. 0 or -errno. The caller sees to a time limit. */
int child_start(struct broker *b, void (*run)(int out, const void *argument), const void *argument, struct child **holder,
                unsigned *count, int *in);
void child_kill(struct child *c);     /* its holder forgets it */
void children_reap(struct broker *b); /* SIGCHLD */
void children_close(struct broker *b);

/* node_peer.c: for a job's workers; all do nothing on a node that speaks to no other. A CONNECT has come from j's worker; j has
 * a worker, so connections that are held for it can be handed over; j's worker is gone, and so is what it asked for. */
void job_connect(struct job *j, const struct control_connect *m);
/* node_denial.c: its DENY. Nothing comes of one that is none, or of more than may be told at a time. */
void job_deny(struct job *j, const struct control_deny *m);
/* node_trouble.c: the job's new worker hears which nodes are not reached, if there are such. */
void trouble_tell(struct job *j);
void job_peers_deliver(struct job *j);
void job_peers_forget(struct job *j);
/* What CONTROL_START says of the cluster. */
int job_meeting(const struct job *j, struct control_start *start);

/* node_query.c */
struct json_object *nodes_describe(const struct broker *b);
/* node_ping.c: v->ping is set, and visitor_pinged() will be called; or an error. */
int ping_start(struct visitor *v, const struct fcc_query *q, struct error *e);
void ping_forget(struct ping *p); /* the visitor is gone */

/* query.c: the number of the node's devices, as far as they are known */
uint32_t devices_count(const struct broker *b);
/* A memfd with the answer for that user, who sees his own jobs (root and the daemon's user: all), or -errno with the reason. */
int query_answer(const struct broker *b, enum fcc_query_kind what, uid_t asks, struct error *e);

#endif
