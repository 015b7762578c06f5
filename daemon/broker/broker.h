/* SPDX-License-Identifier: MIT
 *
 * broker.h - the broker: the process that listens. It identifies the user of a connection, finds or starts the worker of that
 * user's job, and hands the connected socket to the worker; after that it takes no part. It holds no client's memory, no device
 * and no communicator. It has one thread.
 *
 *   background.c  --background, and the file with the process id
 *   hold.c     HOLD_FILE, whose locks say how long this daemon is needed
 *   listen.c   the listening socket: made here, or by systemd
 *   user.c     what each user has here, in counts and in memory
 *   visitor.c  connections that are not handed over yet: limits, and which one makes room for another
 *   hello.c    messages of visitors
 *   groups.c   looks up the groups of a user whose worker is to be started
 *   child.c    child processes for what may block or crash
 *   job.c      jobs and their workers: start, hand over, end
 *   store.c    what the service manager keeps for the next broker: store.h
 *   adopt.c    workers that another broker has started
 *   channel.c  messages to workers, queued while a worker's socket is full
 *   probe.c    the child process that lists the GPUs, and its result
 *   spawn.c    starts worker processes, and the process that lists the GPUs
 *   query.c    fccctl's queries to the broker itself
 *   nodes/     other nodes' brokers: node.h
 *   share/     whose turn it is on GPUs that jobs share: share/share.h
 *   metrics/   what all of it counts, as metrics, and flight recorders: metrics.h
 */
#ifndef FCC_DAEMON_BROKER_BROKER_H
#define FCC_DAEMON_BROKER_BROKER_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/common/account.h"
#include "daemon/common/control.h"
#include "daemon/common/events.h"
#include "proto/base/clock.h"

#define BROKER_SIGNALS 4

struct broker;
struct child;
struct groups;
struct job_share;
struct json_object;
struct ledger;
struct ledgers;
struct listener;
struct lookup;
struct nodes;
struct ping;
struct store;

/* What a user has at the broker, in counts, which are limited. Owned by broker.users; freed when all counts are 0. */
struct user {
    LIST_ENTRY(user) link; /* broker.users */
    uid_t uid;
    unsigned visitors;      /* visitors of this user */
    unsigned askers;        /* those of them that are fccctl's */
    unsigned calls;         /* node_peer.c: connections to other nodes that the user's jobs have asked for */
    unsigned held;          /* node_peer.c: connections from other nodes that wait for workers of the user's jobs */
    unsigned tellings;      /* node_denial.c: denials of the user's jobs that are being sent to other nodes */
    unsigned jobs;          /* user.c: jobs with an entry in the account */
    struct account account; /* user.c: open while there are such jobs */
    int account_fd;         /* the account's page, for workers */
};

/* A connection that has not sent its HELLO yet, or a connection of fccctl to the broker. Owned by broker.visitors. */
struct visitor {
    struct broker *broker;
    LIST_ENTRY(visitor) link; /* broker.visitors */
    /* The socket is readable, or a time limit has passed. Off while the visitor waits for a look-up, the probe or a ping: then
     * nothing is read. */
    struct event event;
    int sock;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    struct user *user;
    uint64_t heard_ns;      /* when it connected, or sent its last message */
    struct fcc_hello hello; /* its HELLO, once checked */
    bool control;           /* fccctl, connected to the broker */
    bool handed_over;       /* a worker has the connection now */
    struct lookup *lookup;  /* waits for its user's groups, to start its job */
    bool waits;             /* waits for the probe, to answer a query for the devices */
    struct ping *ping;      /* waits for a ping */
    uint64_t query_id;      /* id of the query that waits */
};

/* A (user, job id) and its worker. Owned by broker.jobs. A job whose worker has died or retired is not found any more. */
struct job {
    struct broker *broker;
    LIST_ENTRY(job) link; /* broker.jobs */
    uid_t uid;
    char name[FCC_JOB_MAX];
    pid_t pid; /* the worker's process */
    struct incarnation worker;
    uint64_t handed; /* SESSION and PEER messages sent to the worker */
    int control;
    struct event event;                       /* control is readable */
    bool closed;                              /* the worker has sent CLOSED, and may receive messages */
    TAILQ_HEAD(parcels_head, parcel) parcels; /* channel.c: queued messages */
    unsigned queued;                          /* how many there are */
    struct event write_event;                 /* channel.c: when to try them again */
    char mps_pipe[FCC_MPS_PIPE_MAX];          /* for the worker's START */
    uint64_t given;                           /* SESSION messages sent or queued, to this worker */
    uint64_t got;                             /* SESSION messages that the worker has received, as it says in its SESSIONS */
    uint32_t connections;                     /* the worker's connections, as it says in its SESSIONS */
    uint32_t sessions;                        /* those of clients, and clients' connections sent since */
    struct user *user;                        /* whose account the worker has an entry in; NULL: it has none yet */
    uint32_t place;                           /* user.c: index of the worker's entry in the account */
    uint64_t started_ns;
    struct ledger *ledger;   /* metrics/ledgers.c. NULL: the worker counts nothing */
    struct job_share *share; /* share/share.c. NULL: there is no ledger, or no memory for it */
    bool retired;            /* takes no new connections; stays in the list until the process has ended */
    bool leaves;             /* the worker has been told that it is to end, or may */
    int slot;                /* store.c: its entry there. -1: it has none, and a restart ends the job */
    int process;             /* its pidfd, if it has an entry; otherwise -1 */
    bool foreign;            /* adopt.c: another broker has started the worker */
    bool asked;        /* adopt.c: ADOPT has been sent, and ADOPTED has not come: `handed`, `given` are what was sent since */
    uint32_t answered; /* PEER messages of which the other node has been told */
    uint32_t version;  /* of control.h, that both ends speak */
    uint32_t proto, proto_oldest; /* the versions of proto.h that the worker speaks with clients */
    struct event ended;           /* adopt.c: the process has ended */
};

/* The list of the GPUs, which a child process makes. */
struct probe {
    struct child *child; /* NULL: it has ended, or its time limit has passed */
    struct event limit;
    struct json_object *gpus; /* as in gpus.h; "listing" until the child has ended. Never NULL once the broker serves */
    bool ended;
};

struct broker {
    struct config config;
    struct event_base *base;
    struct event listen_event, listen_again; /* listen_again: resumes accepting after a pause */
    struct event signal_events[BROKER_SIGNALS];
    int argc; /* the command line, for reading the configuration again; not owned */
    char **argv;
    int listen_sock;
    unsigned descriptors; /* this process's limit of open descriptors */
    bool socket_is_ours;  /* the socket's file is to be removed at the end */
    int exe;              /* this program's file, to start workers */
    bool draining;
    bool leaving;                    /* it ends, and its workers stay for the next broker */
    void (*serve)(struct broker *b); /* broker.c: begins to accept connections */
    /* adopt.c: a worker of another broker has answered, or will not. NULL: none is awaited any more */
    void (*adoption_changed)(struct broker *b);
    struct event adopt_event;
    struct store *store;
    struct event drain_event;
    struct event log_event; /* every LOG_WINDOW_S */
    int hold;               /* HOLD_FILE; -1: it is not set */
    struct event hold_event;
    uint64_t started_ns;
    double started_s;          /* the same in seconds since 1970 */
    struct ledgers *ledgers;   /* metrics/ledgers.c */
    struct event share_event;  /* share/share.c: runs while several jobs use one GPU */
    uint64_t share_ns;         /* when it came last */
    struct listener *listener; /* metrics/http.c. NULL: METRICS_LISTEN is empty */
    uint64_t connections, refused, workers_started, workers_died, workers_adopted;
    struct incarnation last; /* of the worker started last */
    struct probe probe;
    struct nodes *nodes;                        /* NULL: NODE_LISTEN is empty, there are no other nodes */
    LIST_HEAD(visitors_head, visitor) visitors; /* the newest first */
    unsigned nvisitors, visitors_max;
    LIST_HEAD(users_head, user) users;
    TAILQ_HEAD(lookups_head, lookup) lookups; /* groups.c */
    LIST_HEAD(children_head, child) children; /* child.c */
    LIST_HEAD(jobs_head, job) jobs;
};

/* Serves until SIGTERM or SIGINT, then drains. SIGHUP reads the configuration again, with this command line. Returns the
 * process's exit status. */
int broker_run(const struct config *config, int argc, char *argv[]);
/* The parts of broker_run(), for programs that run the event loop themselves. broker_open() returns 0 or -errno (logged);
 * broker_close() must be called in both cases. */
int broker_open(struct broker *b, const struct config *config, int argc, char *argv[]);
void broker_close(struct broker *b);

/* background.c: the started process of fccd --background ends when the daemon listens, or reports why it does not. */

/* Returns in a child process that has left the terminal's session. The calling process does not return: it waits for
 * background_ready(), prints where the process id and the log are, and exits with 0. If the child ends before that, it exits
 * with the child's status. To be called while the process has one thread. Returns 0 or -errno. */
int background_enter(const struct config *config);

/* Writes PID_FILE, if it is set, and keeps it locked as long as the process lives. Returns 0 or -errno (logged): -EWOULDBLOCK
 * if another fccd has locked it and does not end within 2 s. */
int pid_file_write(const struct config *config);
void pid_file_remove(const struct config *config);

/* To be called when the daemon listens: lets the process of background_enter() exit. Without background_enter() it does
 * nothing. */
void background_ready(void);

/* hold.c. hold_open() returns a descriptor of HOLD_FILE, or -errno (logged). hold_is_over() locks the file if no process has it
 * locked, and returns whether it has done so. hold_close() gives the lock back; if no process waits for this daemon, it removes HOLD_FILE
 * before that, and LOG_FILE if it is empty. */
int hold_open(const struct config *config);
bool hold_is_over(int fd);
void hold_close(const struct config *config, int *fd);

/* listen.c. listen_open() returns the listening socket, or -errno (logged). */
int listen_open(struct broker *b);
void listen_close(struct broker *b);

/* user.c. user_get() creates the user if necessary; NULL: out of memory. user_put() frees a user whose counts are all 0. */
struct user *user_find(const struct broker *b, uid_t uid);
struct user *user_get(struct broker *b, uid_t uid);
void user_put(struct user *u);

/* visitor.c */
void visitor_accept(evutil_socket_t sock, short what, void *broker); /* event callback of the listening socket */
void visitors_again(evutil_socket_t sock, short what, void *broker);
void visitor_free(struct visitor *v); /* closes its socket */
/* Admits a visitor as fccctl's. May free another visitor of the same user. Returns false if too many of them wait for an
 * answer. */
bool visitor_may_ask(struct visitor *v);

/* Is there unread data, or an unnoticed end, on a socket? */
bool socket_is_unheard(int sock);

/* hello.c */
extern const struct timeval visitor_limit;                                  /* time limit for a visitor's next message */
void visitor_read(evutil_socket_t sock, short what, void *visitor);         /* event callback. May free the visitor */
void visitor_refuse(struct visitor *v, uint64_t id, const struct error *e); /* sends the error, and frees the visitor */
void visitors_answer(struct broker *b); /* the probe has ended: answers visitors that wait for it */
/* The visitor's groups are known; NULL: the error says why not. Frees the visitor. */
void visitor_grouped(struct visitor *v, const struct groups *groups, const struct error *e);
/* The visitor's ping has ended, with the memfd `fd` or (fd < 0) with the error. May free the visitor. */
void visitor_pinged(struct visitor *v, int fd, const struct error *e);

/* job.c. job_hand_over() sends the visitor's socket to the job's worker, which it starts if necessary; on success the visitor
 * may be freed. Returns 0, or an error for the visitor. */
struct job *job_find(struct broker *b, uid_t uid, const char *name);
int job_hand_over(struct broker *b, const struct visitor *v, const struct fcc_hello *hello, const struct groups *groups,
                  struct error *e);
/* Would job_hand_over() start a worker as another user than the broker's? Then it needs that user's groups; otherwise it
 * ignores them. */
bool job_needs_groups(struct broker *b, const struct visitor *v, const struct fcc_hello *hello);
/* As log_about(), of a job; its user is the line's subject. */
#define job_log(level, j, format, ...)                                                                                         \
    log_about((level), log_user((j)->uid), "job %u/%s: " format, (j)->uid, (j)->name, __VA_ARGS__)
void job_disconnect(
    struct job *j);          /* closes the channel to the worker; the job stays in the list until the process has ended */
void job_end(struct job *j); /* the worker's process has ended: frees the job */
void job_kill(const struct job *j);
int job_listen(struct job *j);    /* hears the worker's messages from now on. 0 or -ENOMEM */
void jobs_reap(struct broker *b); /* SIGCHLD */
void jobs_drain(struct broker *b);
void jobs_leave(struct broker *b); /* forgets all jobs, whose workers stay for the next broker */
void jobs_kill(struct broker *b);  /* kills workers that are left when the drain's time limit has passed */

/* adopt.c: takes over the workers that the last broker has left, and calls b->serve() when they have answered, or at once. */
void jobs_adopt(struct broker *b);

/* channel.c, for a job with a control socket. channel_send() sends a message with descriptor fd (-1: none), which the caller
 * keeps. If the socket has no room, the message is queued. Returns 0; -EAGAIN: too much is queued; -EPIPE, -ECONNRESET: the
 * worker is gone; or another error. channel_try() queues nothing: if channel_is_full() is true of its result, the caller is to
 * try again later. */
void channel_open(struct job *j);
void channel_close(struct job *j); /* tells clients whose connections are queued that the worker is gone */
void channel_drop(struct job *j);  /* drops what is queued: connections end, and their clients connect again */
/* Sends a worker that has sent CLOSED its START, with the account's descriptor, and then the queued messages. */
int channel_greet(struct job *j, struct fcc_msg *start, size_t length, int fd);
int channel_send(struct job *j, struct fcc_msg *m, size_t length, int fd);
/* As channel_send() without a descriptor; replaces a queued message of the same type. */
int channel_send_newest(struct job *j, struct fcc_msg *m, size_t length);
int channel_try(struct job *j, struct fcc_msg *m, size_t length, int fd);
/* Sends a worker ADOPT, with this number, since what a predecessor has asked may be answered first; handles its answer; and the job's channel has
 * ended, so there will be none. */
void job_adopt_ask(struct job *j);
uint64_t job_adoption_id(const struct job *j);
void job_adopted(struct job *j, const struct control_adopted *m);
void job_adoption_end(const struct job *j);
bool channel_is_full(int status);

/* user.c. job_account_open() gives a worker that is about to be started an entry in its user's account; job_account_close()
 * is called when its process has ended. job_used(): what the worker has charged. */
int job_account_open(struct job *j, struct error *e);
void job_account_owned(const struct job *j); /* its worker has a process */
/* The same for a worker that another broker has started, and that has this entry. */
int job_account_adopt(struct job *j, uint32_t place, struct error *e);
void job_account_close(struct job *j);
uint64_t job_used(const struct job *j, enum account_kind kind);

/* probe.c. Errors are logged, and appear in the list as the plug-ins' state. */
void probe_start(struct broker *b);
void probe_close(struct broker *b);

/* spawn.c. Starts a worker for that user, with these supplementary groups (if the broker is root), a nice value that is so much above
 * the broker's, and `control` as its descriptor 3. Returns its pid, or -errno with the reason. */
pid_t worker_spawn(int exe, uid_t uid, gid_t gid, const struct groups *groups, int nicer, int control, struct error *e);
/* Becomes fccd --list-gpus, as the broker's user, with `out` as its standard output and that configuration (struct config). For
 * child_start(). */
void lister_run(int out, const void *config);

/* groups.c. groups_ask() begins to look up the groups of the visitor's user: it sets v->lookup, and visitor_grouped() will be
 * called within a time limit; or it returns an error. lookups_close() drops look-ups without calling it. */
struct groups {
    size_t n;
    const gid_t *gids;
};
int groups_ask(struct visitor *v, struct error *e);
void lookups_go_on(struct broker *b); /* a child process was reaped: starts the next look-up */
void lookups_close(struct broker *b);

/* child.c. Calls run(out, argument) in a child process, which has no other descriptor of the broker's than `out`, for its
 * result. When the child has ended, done() gets what it wrote, and its status as of waitpid(); the child is freed then. A child
 * that writes more than `most` bytes is killed, and done() gets more than so many bytes. Returns 0 or -errno. The caller sets a
 * time limit. */
typedef void child_run(int out, const void *argument);
typedef void child_done(void *owner, const void *bytes, size_t n, int wait_status);
int child_start(struct broker *b, child_run *run, const void *argument, size_t most, child_done *done, void *owner,
                struct child **out);
unsigned children_count(const struct broker *b, child_run *run); /* those that run this and were not reaped */
void child_kill(struct child *c);                                /* done() is not called any more */
void children_reap(struct broker *b);                            /* SIGCHLD */
void children_close(struct broker *b);

/* node_peer.c: connections for jobs' workers. All three do nothing if there are no other nodes. job_connect() handles a CONNECT
 * of the job's worker. job_peers_deliver() hands held connections to the job's worker. job_peers_forget() drops what a worker
 * that is gone had asked for. */
void job_connect(struct job *j, const struct control_connect *m);
void job_peers_deliver(struct job *j);
void job_peers_forget(struct job *j);
/* Fills in what CONTROL_START says of the cluster: node and meeting_key. Returns 0 or -EIO. */
int job_meeting(const struct job *j, struct control_start *start);
/* node_denial.c: handles a DENY of the job's worker. An invalid one, or one beyond the limit, is ignored. */
void job_deny(struct job *j, const struct control_deny *m);
/* node.c: tells the job's new worker which nodes cannot be reached, if there are any. */
void trouble_tell(struct job *j);

/* node.c */
struct json_object *nodes_describe(const struct broker *b);
/* node_ping.c. ping_start() sets v->ping, and visitor_pinged() will be called; or it returns an error. */
int ping_start(struct visitor *v, const struct fcc_query *q, struct error *e);
void ping_forget(struct ping *p); /* to be called when the visitor is freed */

/* listen.c: makes a listening Unix socket at `path` of mode 0660, for those who may connect (SOCKET_GROUP; or, if systemd has made that for clients,
 * its group). `key`: for the log. -errno (logged). */
int socket_listen(const struct broker *b, const char *key, const char *path, int type);
/* listen.c: make(what), once more while that says -EADDRINUSE, for a while, if there was another broker before: one that was killed while it started a
 * process leaves its sockets to that until it has become another program. */
int listener_after(const struct broker *b, int (*make)(const void *what), const void *what);

/* query.c: drains the jobs that the query names and the visitor may end. Returns a memfd with their list, or -errno with the reason. */
int jobs_drain_asked(struct broker *b, const struct fcc_query *q, const struct visitor *v, struct error *e);

/* hello.c: the error for a client whose version fccd, or the job's worker, does not speak. The client asks again for one of these. */
int version_refuse(uint32_t version, uint32_t oldest, uint32_t newest, struct error *e);

/* query.c. devices_count(): the number of the node's devices that are known so far. */
uint32_t devices_count(const struct broker *b);
/* Makes a memfd with the answer for that user, who sees only his own jobs unless he is root or the daemon's user. Returns it,
 * or -errno with the reason. */
int query_answer(const struct broker *b, const struct fcc_query *q, uid_t asks, struct error *e);

#endif
