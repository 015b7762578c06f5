/* SPDX-License-Identifier: MIT
 *
 * control.h - messages between the broker and a worker, on a SOCK_SEQPACKET socketpair (the worker's descriptor 3).
 *
 *   broker                          worker
 *     <------------------------- CLOSED   first and once: the worker runs as its user, and other processes cannot inspect its
 *                                         memory (daemon/worker/engine/rights.c)
 *     START + its user's account ---->|   once; the broker's first message
 *     LEDGER + a memfd -------------->|   once, behind START: where the worker counts and records for the broker (ledger.h)
 *     ADOPT + this broker's pidfd --->|   this broker's process is whose end the worker is to look for. Of the broker that has started the
 *                                         worker, behind LEDGER, and of each that takes it over ("another broker", below)
 *     <-------------------------- ADOPTED the answer, with what the worker has received so far
 *     SESSION + the client's socket ->|   for every connection to this job
 *     <------------------------ SESSIONS  when the number of connections has changed; and without a change when the worker has found its
 *                                         bell set (share.h), which says that it begins to use GPUs
 *     <-------------------------- RETIRE  asks whether the worker may end: it has had no client for a while. Has the number of
 *                                         SESSION and PEER messages that the worker has received
 *     RETIRE ------------------------>|   the worker may end; no message follows. (A refusal is not sent: see below)
 *     DRAIN ------------------------->|   finish running operators, refuse new ones, then end. With the reason, or (a message of no more
 *                                         than a fcc_msg, which is the same in all versions) because fccd shuts down
 *     <------------------------- CONNECT  asks for a connection to this job's worker on another node
 *     CONNECTED [+ the socket] ------>|   the answer to a CONNECT, with the same id; in any order
 *     PEER + the socket ------------->|   a connection that this job's worker on another node has asked for
 *     <---------------------------- DENY  asks to tell another node that a rank of this node cannot join there (denial.h),
 *                                         within a time limit
 *     DENIED ------------------------>|   a denial about a rank of this job elsewhere, which the worker must verify
 *     TROUBLE ----------------------->|   which nodes of NODES cannot be reached now, and why: for the error texts of ranks
 *                                         that time out
 *
 * Neither end waits for the other: messages for which the socket has no room are queued (daemon/worker/engine/channel.c,
 * daemon/broker/channel.c). Charging memory needs no message: account.h.
 *
 * The socket with CONNECTED or PEER is a TCP connection to the other worker, non-blocking, TCP_NODELAY, on which nothing has
 * been sent or read yet. The worker that asked for it sends first. CONNECTED is sent when the other broker has handed the
 * connection's other end to its worker.
 *
 * RETIRE is a handshake because a SESSION or a PEER may be in flight. The broker counts the messages that it has sent, the
 * worker those that it has received, and the worker's RETIRE has its count. If both counts are equal, nothing is in flight: the
 * broker answers RETIRE, sends nothing more to this worker, and starts another worker for the next connection. If the counts
 * differ, the broker does not answer: the message in flight tells the worker to go on, and the worker asks again when it is
 * idle again. So the broker never waits, no connection is lost, and no job has two workers that both get connections. While the
 * worker waits for the answer, it accepts no work from other nodes (daemon/worker/nodes/peer.c). Each end notices the other's
 * death by the end of the connection.
 *
 * Another broker. Where a service manager keeps descriptors (daemon/broker/store.h), it has the broker's end of the channel, too, so
 * the channel outlives the broker, with what is unread in it in both directions. A worker notices that its broker has ended by the
 * pidfd of ADOPT, goes on, and drains when ADOPT_SECONDS have passed without another ADOPT. If the channel itself ends then, nobody
 * will come: it drains at once. A worker that has got no ADOPT serves its clients on after the channel's end, until the last has left.
 *
 * The next broker sends ADOPT as its first message. What its predecessors have sent is received before it; what the worker has
 * sent before ADOPTED may be lost, as it may have been read by a predecessor that died over it. Therefore the broker drops all
 * messages but SESSIONS until ADOPTED has come; the worker says there what it has received in all (so both count from the same
 * number again, whatever instant a predecessor died at), and then repeats, by number, each CONNECT that has no answer and each DENY
 * whose time is not over. A RETIRE that was not answered is as if it had been refused. If a predecessor has agreed to a RETIRE, but
 * the worker has not heard of it, the next broker says RETIRE again, in place of ADOPT.
 *
 * A broker that dies between a PEER and its answer to the other node leaves a worker with a connection that nobody has at its other end, while
 * the other node's broker waits for an answer. So the broker counts its answers, where the next one finds the count (ADOPT has it). If
 * the worker has received one PEER more, and nothing has come on that connection, it closes it, and the other node asks again. At most one is in
 * doubt, as the broker answers each before it sends the next, and sends none before ADOPTED.
 *
 * Versions. A broker and a worker that it starts are one program; a broker that adopts may be newer or older. ADOPT names the versions that
 * the broker speaks, and both speak the older one of the newest that each knows. A broker that does not speak a worker's version
 * does not adopt: it sends DRAIN, and leaves the worker alone.
 *
 * Another node may hear of a worker's successor before it hears of that worker's end. So the brokers give each worker an
 * incarnation, and tell both ends of a connection between workers the other end's incarnation.
 */
#ifndef FCC_DAEMON_COMMON_CONTROL_H
#define FCC_DAEMON_COMMON_CONTROL_H

#include <stdbool.h>

#include "daemon/common/account.h"
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
    CONTROL_LEDGER,
    CONTROL_ADOPT,
    CONTROL_ADOPTED,
};

/* Of the messages from ADOPT on; START is said by a broker to its own program only. */
#ifndef CONTROL_VERSION
#define CONTROL_VERSION 1u
#endif
#ifndef CONTROL_OLDEST
#define CONTROL_OLDEST 1u /* the oldest version that is still spoken */
#endif
#define CONTROL_LEAVE_MS 1000 /* a worker that has not ended so long after DRAIN_MS is killed */

#define CONTROL_KEY_BYTES 32

/* Identifies a worker among all workers of its job on a node. If two have the same broker, the one with the larger number was
 * started later, when the other had retired or died. Workers of different brokers have no order: a worker whose broker has died
 * may still serve clients. */
struct incarnation {
    uint64_t broker; /* random number that the broker has drawn at its start */
    uint64_t number; /* from 1; 0: none, or unknown */
};

static inline bool incarnation_same(const struct incarnation *a, const struct incarnation *b)
{
    return a->broker == b->broker && a->number == b->number;
}

/* Is b a successor of a? */
static inline bool incarnation_before(const struct incarnation *a, const struct incarnation *b)
{
    return a->broker == b->broker && a->number < b->number;
}

struct control_start { /* file descriptor: the user's account */
    struct fcc_msg msg;
    struct config config;
    uint32_t uid;
    uint32_t place;               /* index of the worker's entry in the account */
    struct account_limits limits; /* of the user and of this job */
    char job[FCC_JOB_MAX];
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* fcc_hello.mps_pipe of the client for which the worker is started */
    char node[FCC_NODE_MAX];         /* this node's address; "": fccd does not serve other nodes */
    /* The rendezvous key: the same for all workers of this (uid, job) on nodes with the same cluster key. Without a cluster
     * key: random. */
    unsigned char meeting_key[CONTROL_KEY_BYTES];
    struct incarnation self; /* this worker */
};

struct control_session {
    struct fcc_msg msg; /* id: that of the client's HELLO */
    uint32_t role;      /* enum fcc_role */
    uint32_t uid;       /* the client's uid and pid, from the kernel */
    int32_t pid;
    uint32_t version;                /* of the protocol, that this client speaks */
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* fcc_hello.mps_pipe of this client */
};

struct control_sessions {
    struct fcc_msg msg;
    uint32_t sessions; /* connections of clients */
    uint32_t controls; /* connections of fccctl */
    uint64_t got;      /* SESSION messages received so far; the broker knows by it how many are in flight */
};

struct control_retire { /* of the worker; the broker's answer is a fcc_msg alone */
    struct fcc_msg msg;
    uint64_t handed; /* SESSION and PEER messages that the worker has received */
};

struct control_drain { /* or a fcc_msg alone */
    struct fcc_msg msg;
    char text[128]; /* why, for clients */
};

struct control_adopt { /* file descriptor: the broker's pidfd */
    struct fcc_msg msg;
    uint32_t version, oldest;          /* that the broker speaks */
    int32_t pid;                       /* the broker's process */
    uint32_t answered;                 /* PEER messages of which the other node has been told */
    uint64_t limits[ACCOUNT_WHOSE][8]; /* as in control_start, from now on; room for kinds that there are not yet */
};

struct control_adopted {
    struct fcc_msg msg;          /* id: that of the ADOPT */
    uint32_t version;            /* that both speak from now on; 0: there is none, and the worker drains */
    uint32_t draining;           /* 1: the worker takes no new clients */
    uint32_t sessions, controls; /* as in control_sessions */
    uint32_t arrivals;           /* PEER messages that the worker has received */
    uint32_t zero;
    uint64_t got;
    uint64_t handed; /* as in control_retire */
};

struct control_connect {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* address of the other node */
    struct incarnation to;      /* the worker there; -ESTALE if it is gone. number 0: any worker of the job */
    uint32_t purpose;           /* a number of the worker's choice, which the other worker gets in its PEER */
    uint32_t limit_ms;          /* how long it may take until the job has a worker there */
};

struct control_connected {
    struct fcc_msg msg; /* id: that of the CONNECT */
    int32_t status;     /* 0: the message has the socket. A negative errno value: it has none */
    uint32_t zero;
    struct incarnation to; /* the worker at the other end */
    /* With -EADDRNOTAVAIL: the name of the node that answers at the address, which is another node or this one. Otherwise
     * "". */
    char named[FCC_NODE_MAX];
    char text[FCC_TEXT_MAX]; /* the reason, which names the node */
};

struct control_peer {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* address of the node whose worker asked for the connection */
    struct incarnation from;    /* that worker */
    uint32_t purpose;           /* as in that worker's control_connect */
    uint32_t zero;
};

struct control_deny {
    struct fcc_msg msg;
    char address[FCC_NODE_MAX]; /* address of the node where the ranks meet */
    uint32_t limit_ms, zero;    /* limit_ms: how long to try */
    struct denial denial;
};

struct control_denied {
    struct fcc_msg msg;
    struct denial denial;
};

#define CONTROL_TROUBLE_MAX 256 /* the text must fit into FCC_TEXT_MAX together with the rest of an error */
struct control_trouble {
    struct fcc_msg msg;
    char text[CONTROL_TROUBLE_MAX]; /* "": all nodes can be reached */
};

/* What may pass between a broker and a worker of different versions of fccd is the same in all programs that speak version 1. */
static_assert(sizeof(struct control_session) == 32 + FCC_MPS_PIPE_MAX && sizeof(struct control_sessions) == 32 &&
                  sizeof(struct control_retire) == 24 && sizeof(struct control_drain) == 144 &&
                  sizeof(struct control_adopt) == 32 + 128 && sizeof(struct control_adopted) == 56 &&
                  sizeof(struct control_connect) == 40 + FCC_NODE_MAX && sizeof(struct control_peer) == 40 + FCC_NODE_MAX &&
                  sizeof(struct control_connected) == 40 + FCC_NODE_MAX + FCC_TEXT_MAX &&
                  sizeof(struct control_trouble) == 16 + CONTROL_TROUBLE_MAX,
              "version 1");

#endif
