/* SPDX-License-Identifier: MIT
 *
 * broker.h - the process that listens: it learns who is there, finds or starts the worker of that user's job, hands it the
 * connected socket, and is out of the way. It holds no client's memory, no device and no communicator. One thread.
 *
 *   background.c  --background, and the file with the process id
 *   listen.c   the listening socket: made here, or by systemd
 *   hello.c    a connection until it is handed over or refused
 *   job.c      jobs and their workers: start, hand over, end
 *   charge.c   each user's memory account
 *   probe.c    the child that lists the GPUs, and what it found
 *   spawn.c    a worker process with its user's rights and nothing else; the process that lists the GPUs
 *   query.c    what fccctl asks the broker itself
 *   node*.c    other nodes' brokers: node.h
 */
#ifndef FCCD_BROKER_H
#define FCCD_BROKER_H

#include <event2/event.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "clock.h"
#include "control.h"

#define BROKER_SIGNALS 4

struct broker;
struct evbuffer;
struct json_object;
struct nodes;
struct ping;

/* A connection that has not said its HELLO yet, or one of fccctl's to the broker. Owned by broker.visitors. */
struct visitor {
    struct broker *broker;
    LIST_ENTRY(visitor) link; /* broker.visitors */
    struct event *event;      /* readable, or the time limit for the HELLO */
    int sock;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    bool control;      /* fccctl, speaking to the broker */
    bool waits;        /* its question for the devices waits for the probe; nothing is read meanwhile */
    uint64_t query_id; /* waits: the question's */
    struct ping *ping; /* its question waits for this; nothing is read meanwhile */
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
    struct event *event; /* control is readable */
    uint32_t sessions;
    int64_t memory_bytes;
    struct control_charge asked; /* asks: by the worker, and not answered yet */
    bool asks;
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
    struct event *listen_event, *signal_events[BROKER_SIGNALS];
    int argc; /* the command line, to be read again; not owned */
    char **argv;
    int listen_sock;
    bool socket_is_ours; /* to be unlinked at the end */
    int exe;             /* this program, for the workers */
    bool draining;
    struct event *drain_event;
    struct event *charges_event; /* a charge may have to be refused */
    struct event *log_event;     /* every LOG_WINDOW_S */
    uint64_t started_ns;
    uint64_t connections, refused, workers_started, workers_died;
    struct incarnation last; /* of the worker started last */
    struct probe probe;
    struct nodes *nodes; /* NULL: this node speaks to no other */
    LIST_HEAD(visitors_head, visitor) visitors;
    LIST_HEAD(jobs_head, job) jobs;
};

/* Serve until SIGTERM or SIGINT, then drain. SIGHUP reads the configuration again, with this command line. Returns the process's
 * exit status. */
int broker_run(const struct config *config, int argc, char *argv[]);

/* listen.c: returns the listening socket, or -errno (logged). */
int listen_open(struct broker *b);
void listen_close(struct broker *b);

/* hello.c */
void visitor_accept(evutil_socket_t sock, short what, void *broker); /* event callback of the listening socket */
void visitor_free(struct visitor *v);                                /* closes its socket */
void visitors_answer(struct broker *b);                              /* the probe has ended: those that wait for the devices */
/* Answer a question with that memfd, which is closed, or with that error. May free the visitor. */
void visitor_reply(struct visitor *v, uint64_t id, int fd, const struct error *e);
/* The answer to a ping is there, or (fd < 0) its error. May free the visitor. */
void visitor_pinged(struct visitor *v, int fd, const struct error *e);

/* job.c. job_hand_over() gives the visitor's socket to the job's worker, which it starts if need be; on success the
 * visitor may be freed. 0, or an error for the visitor. */
struct job *job_find(struct broker *b, uid_t uid, const char *name);
int job_hand_over(struct broker *b, const struct visitor *v, const struct fcc_hello *hello, struct error *e);
void job_disconnect(struct job *j); /* no more messages to or from the worker; the entry stays until the process has ended */
void jobs_reap(struct broker *b);   /* SIGCHLD */
void jobs_drain(struct broker *b);
void jobs_kill(struct broker *b); /* those that are left when the drain's time is over */
bool job_hear(struct job *j);     /* handle one message of its worker; false: there is none */

/* charge.c: the worker has more memory than before, or less; the time for charges that do not fit has come (charges_event);
 * what the user's jobs have, in bytes */
void charge_handle(struct job *j, const struct control_charge *m);
void charges_judge(evutil_socket_t sock, short what, void *broker);
int64_t user_memory(const struct broker *b, uid_t uid);

/* probe.c. What goes wrong is logged, and stands in the list as the plug-ins' state. */
void probe_start(struct broker *b);
void probe_reap(struct broker *b); /* SIGCHLD */
void probe_close(struct broker *b);

/* spawn.c: start a worker as that user, with `control` as its descriptor 3. Returns its pid or -errno with the reason. */
pid_t worker_spawn(int exe, uid_t uid, gid_t gid, int control, struct error *e);
/* The same for fccd --list-gpus, as the broker's user, with `out` as its standard output. */
pid_t lister_spawn(int exe, const struct config *config, int out, struct error *e);

/* node_peer.c: for a job's workers; all do nothing on a node that speaks to no other. A CONNECT has come from j's worker; j has
 * a worker, so connections that are held for it can be handed over; j's worker is gone, and so is what it asked for. */
void job_connect(struct job *j, const struct control_connect *m);
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
