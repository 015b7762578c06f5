/* SPDX-License-Identifier: MIT
 *
 * control.h - what the broker and a worker say to each other, over a SOCK_SEQPACKET socketpair (the worker's descriptor 3).
 *
 *   broker                          worker
 *     <------------------------- CLOSED   once, first: it has its user's rights, and nobody can look into it (daemon/worker/engine/rights.c)
 *     START + its user's account ---->|   once, and nothing before it
 *     SESSION + the client's socket ->|   for every connection to this job
 *     <------------------------ SESSIONS  when the number of connections changed
 *     <-------------------------- RETIRE  no client for a while, and so many SESSION and PEER have come: may I go?
 *     RETIRE ------------------------>|   yes: nothing comes after this message. A no is what has been sent meanwhile
 *     DRAIN ------------------------->|   finish what runs, refuse the rest, go
 *     <------------------------- CONNECT  a connection to this job's worker on another node, please
 *     CONNECTED [+ the socket] ------>|   same id, for every CONNECT, in any order
 *     PEER + the socket ------------->|   this job's worker on another node asked for a connection to here
 *     <---------------------------- DENY  tell that node that a rank here cannot join there (denial.h), until so long from now
 *     DENIED ------------------------>|   somebody says so of a rank of this job elsewhere: it is the worker's to judge
 *     TROUBLE ----------------------->|   which nodes of NODES this one does not reach now, and why: for the errors of who waits in vain
 *
 * Neither end waits for the other: what the other's socket has no room for is kept, and sent later (daemon/worker/engine/channel.c,
 * daemon/broker/channel.c). Memory is charged without a word: account.h.
 *
 * A socket that comes with CONNECTED or PEER is a TCP connection to the other worker, non-blocking, TCP_NODELAY, on which
 * nothing has been sent or read yet. Who asked for it sends first; CONNECTED comes when the other broker has handed the
 * connection's other end to its worker.
 *
 * RETIRE is a handshake because a SESSION or a PEER may be on its way. The broker counts what it has handed over, the worker what it
 * has got, and RETIRE says how much that was. If the numbers are the same, nothing is on its way: the broker says RETIRE, hands over
 * nothing any more, and starts another worker for the next connection. If they are not, the broker says nothing: what the worker
 * will read next tells it to go on, and it asks again when it is idle again. So the broker never waits, no connection is lost, and
 * no job has two workers that both get connections. While the worker waits for the answer it takes no work from other nodes either
 * (peer.c). Each end notices the other's death by the end of the connection. A worker whose broker died goes on serving its
 * clients and goes when the last one has left.
 *
 * Other nodes may hear of a worker's successor before they have heard of its end. So brokers give each worker an incarnation, and tell
 * those whom they connect to each other which one is at the other end.
 */
#ifndef FCC_DAEMON_COMMON_CONTROL_H
#define FCC_DAEMON_COMMON_CONTROL_H

#include <stdbool.h>

#include "daemon/common/config.h"
#include "daemon/common/denial.h"
#include "proto/proto.h"

#define CONTROL_FD 3

enum control_type {
    CONTROL_CLOSED = 0x4000,
    CONTROL_START,
    CONTROL_SESSION,
    CONTROL_SESSIONS,
    CONTROL_RETIRE,
    CONTROL_DRAIN,
    CONTROL_CONNECT,
    CONTROL_CONNECTED,
    CONTROL_PEER,
    CONTROL_DENY,
    CONTROL_DENIED,
    CONTROL_TROUBLE,
};

#define CONTROL_KEY_BYTES 32

/* Of a worker. Of two that the same broker has started for a job the one with the larger number came later, and the other had
 * retired or was gone then. Of different brokers' nothing is known: one whose broker died may serve its clients still. */
struct incarnation {
    uint64_t broker; /* random: drawn when the broker started */
    uint64_t number; /* from 1; 0: none, or not known */
};

static inline bool incarnation_same(const struct incarnation *a, const struct incarnation *b)
{
    return a->broker == b->broker && a->number == b->number;
}

/* Has a's place been taken by b? */
static inline bool incarnation_before(const struct incarnation *a, const struct incarnation *b)
{
    return a->broker == b->broker && a->number < b->number;
}

struct control_start { /* fd: the user's account */
    struct fcc_msg msg;
    struct config config;
    uint32_t uid;
    uint32_t place;        /* the worker's in the account */
    uint64_t memory_limit; /* bytes of all of the user's workers together */
    char job[FCC_JOB_MAX];
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* as in fcc_hello, of the client that the worker is started for */
    char node[FCC_NODE_MAX];         /* this node's address; "": it speaks to no other */
    /* Same for all workers of this (uid, job) on nodes with the same cluster key. Without a cluster key: random, this worker's. */
    unsigned char meeting_key[CONTROL_KEY_BYTES];
    struct incarnation self; /* this worker */
};

struct control_session {
    struct fcc_msg msg; /* id: of the client's HELLO */
    uint32_t role;      /* enum fcc_role */
    uint32_t uid;       /* who is there: from the kernel */
    int32_t pid;
    uint32_t zero;
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* this client's own */
};

struct control_sessions {
    struct fcc_msg msg;
    uint32_t sessions; /* of clients */
    uint32_t controls; /* of fccctl */
    uint64_t got;      /* SESSION messages that have come: of those that were sent the others are on their way */
};

struct control_retire { /* the worker's */
    struct fcc_msg msg;
    uint64_t handed; /* SESSION and PEER messages that it has got */
};

struct control_connect {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* the other node's */
    struct incarnation to; /* number 0: whichever the job has there. Otherwise -ESTALE, if that one is not there any more */
    uint32_t purpose;      /* the worker's own number: the other worker reads it in its PEER */
    uint32_t limit_ms;     /* how long the job may take to have a worker there */
};

struct control_connected {
    struct fcc_msg msg; /* id: the CONNECT's */
    int32_t status;     /* 0: the socket came along. Otherwise a negative errno value, and no socket */
    uint32_t zero;
    struct incarnation to; /* who has the other end */
    char named
        [FCC_NODE_MAX]; /* -EADDRNOTAVAIL: whom that address leads to is called so: another node, or this one; otherwise "" */
    char text[FCC_TEXT_MAX]; /* the reason; it names the node */
};

struct control_peer {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* of the node whose worker asked for the connection */
    struct incarnation from;    /* ... and which one */
    uint32_t purpose;
    uint32_t zero;
};

struct control_deny {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* of the node where the ranks meet */
    uint32_t limit_ms, zero;
    struct denial denial;
};

struct control_denied {
    struct fcc_msg msg;
    struct denial denial;
};

#define CONTROL_TROUBLE_MAX 256 /* with the rest of an error it must fit into FCC_TEXT_MAX */
struct control_trouble {
    struct fcc_msg msg;
    char text[CONTROL_TROUBLE_MAX]; /* "": there is none */
};

#endif
