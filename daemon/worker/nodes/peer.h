/* SPDX-License-Identifier: MIT
 *
 * peer.h - the job's workers on other nodes: their connections, and what they say to each other (nodes.c).
 *
 * The brokers introduce workers to each other: they connect, prove who they are, and hand each worker its end of the
 * connection (control.h). A connection is used one way, by the worker that asked for it; so nothing has to be agreed when two ask at the
 * same time. A worker has one to each peer for messages (the engine's), and one or several for data, its rails (the proxy's;
 * rails.c): the first with that for messages, others when a communicator has a rank that sends over them.
 *
 * A peer is one worker, not one node: of the workers that a node has one after the other (control.h: incarnations) each is a peer of its
 * own, and so is one that has been lost and connects anew (its serial). What belongs to one is never taken for another's, whatever
 * order connections come and end in.
 *
 * All of this is the engine thread's, but for what is said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_NODES_PEER_H
#define FCC_DAEMON_WORKER_NODES_PEER_H

#include "daemon/net/net.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/tune.h"

struct bufferevent;
struct evbuffer;

#define PEERS_MAX 64u

enum peer_purpose { PEER_MESSAGES = 1, PEER_DATA = 2 };
/* What CONTROL_CONNECT says: what for, data: for which rail, and which of the worker's peers asks, so that all connections of one are
 * known to be. */
#define PEER_PURPOSE(purpose, rail, serial) ((uint32_t)(purpose) | (uint32_t)(rail) << 4 | (serial) << 8)
#define PEER_PURPOSE_OF(told) ((told)&0xfu)
#define PEER_RAIL_OF(told) ((told) >> 4 & 0xfu)
#define PEER_SERIAL_OF(told) ((told) >> 8)

/* What they say; see nodes.c for when. Little-endian: nodes have one byte order. */
enum peer_type {
    PEER_PING = 1,
    PEER_JOIN,
    PEER_JOINED,
    PEER_REFUSE,
    PEER_DENY,
    PEER_FORMED,
    PEER_HERE,
    PEER_READY,
    PEER_GO,
    PEER_SUBMIT,
    PEER_MEMORY,
    PEER_FREE,
    PEER_STAGED,
    PEER_FAIL,
    PEER_ABORT,
    PEER_LEAVE,
    PEER_RESULT,
    PEER_TYPES
};
const char *peer_type_name(unsigned type);

/* Opens every message. */
struct peer_msg {
    uint32_t length; /* of the whole message */
    uint16_t type;   /* enum peer_type */
    uint16_t zero;
    uint64_t comm; /* the communicator's number between nodes, which follows from its id; PING: 0 */
    /* An id may serve again after its communicator has ended, while messages of that one are still under way. So each worker counts the
     * communicators that it has had: the sender's number of this one, and the receiver's (0: the sender has not heard it). A receiver takes
     * nothing for another communicator than the one that it was meant for. */
    uint32_t from, to;
};
static_assert(sizeof(struct peer_msg) == 24, "wire");

#define PEER_MSG_MAX (FCC_MSG_MAX + 4096u)

struct peer_join { /* to the root: this rank is here */
    struct peer_msg msg;
    struct fcc_unique_id unique_id;
    int32_t nranks, rank;
    uint32_t time_limit_ms;
    uint32_t device_kind;
    int32_t pid;
    uint32_t zero;
};
static_assert(sizeof(struct peer_join) == 176, "wire");

struct peer_joined { /* from the root: it knows of this rank */
    struct peer_msg msg;
    int32_t rank;
    uint32_t zero;
};
static_assert(sizeof(struct peer_joined) == 32, "wire");

struct peer_refuse { /* from the root. -ESTALE: by a worker that takes no new communicators; there is another one, or will be */
    struct peer_msg msg;
    int32_t rank;
    int32_t status;
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_refuse) == 544, "wire");

struct peer_deny { /* to the root: a rank that would join it was refused here */
    struct peer_msg msg;
    struct fcc_unique_id unique_id;
    int32_t rank;
    int32_t status;
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_deny) == 160 + FCC_TEXT_MAX, "wire");

struct peer_formed { /* from the root: all have joined, and where */
    struct peer_msg msg;
    uint32_t nranks, nnodes, time_limit_ms, zero;
    char addresses[SPAN_NODES][FCC_NODE_MAX];
    struct incarnation workers[SPAN_NODES]; /* there */
    uint32_t comms[SPAN_NODES];             /* their numbers of the communicator, as peer_msg.from of their JOINs */
    int32_t pids[FCC_MAX_RANKS];
    uint16_t node_of[FCC_MAX_RANKS];
};
static_assert(PEERS_MAX + 1 <= SPAN_NODES, "FORMED names this node and all others");
static_assert(sizeof(struct peer_formed) <= PEER_MSG_MAX, "it fits");

struct peer_here { /* to each other node of a communicator that forms, but the root */
    struct peer_msg msg;
    uint32_t node; /* the sender's number in it */
    uint32_t zero;
};
static_assert(sizeof(struct peer_here) == 32, "wire");

struct peer_submit { /* a rank's turn; then, for an operator, its SUBMIT as the client sent it */
    struct peer_msg msg;
    struct remote_request request;
};
static_assert(sizeof(struct peer_submit) == 80 + FCC_TEXT_MAX + 16 * FCC_MAX_TENSORS, "wire");

struct peer_memory { /* a rank's part of a symmetric allocation is there, or is not */
    struct peer_msg msg;
    int32_t rank;
    int32_t status;
    uint32_t handle;
    uint32_t zero;
    uint64_t bytes, turn;
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_memory) == 56 + FCC_TEXT_MAX, "wire");

struct peer_free {
    struct peer_msg msg;
    int32_t rank;
    uint32_t handle;
};
static_assert(sizeof(struct peer_free) == 32, "wire");

struct peer_result { /* a rank has made a result buffer: before the first SUBMIT that names it */
    struct peer_msg msg;
    int32_t rank;
    uint32_t handle;
    uint64_t bytes;
};
static_assert(sizeof(struct peer_result) == 40, "wire");

struct
    peer_turn { /* STAGED: staging memory for this turn is there. FAIL: its operator has failed here. ABORT, LEAVE: after so many */
    struct peer_msg msg;
    uint64_t turn;
    int32_t status;
    int32_t rank; /* LEAVE */
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_turn) == 40 + FCC_TEXT_MAX, "wire");

/* Has it the length of its type, is it a type, has its text an end, and is its status one? -EPROTO and why not. */
int peer_message_check(const struct peer_msg *m, struct error *e);

enum peer_state { PEER_CLOSED, PEER_CONNECTING, PEER_OPEN };

struct peer {
    struct worker *worker;
    LIST_ENTRY(peer) link; /* worker.peers */
    char address[FCC_NODE_MAX];
    struct incarnation who;               /* number 0: it has not connected, nor have we to it */
    unsigned index;                       /* of all peers: the proxy's number for it */
    uint32_t serial;                      /* of all that this worker has had, to 2^24 */
    uint32_t theirs;                      /* its own of us, once it has connected */
    bool is_past;                         /* it takes no new communicators */
    bool is_unreachable;                  /* broken, because its broker could not connect us: asking once more is of no use */
    char named[FCC_NODE_MAX];             /* ... as the node is called so, and not by `address`; otherwise "" */
    enum peer_state out;                  /* our connections to it */
    enum peer_state data[NET_RAILS_MAX];  /* ... */
    uint64_t out_request;                 /* ids of our CONNECTs, while CONNECTING */
    uint64_t data_request[NET_RAILS_MAX]; /* ... */
    struct net_rails rails;               /* nodes_data_open() sets it, when data[0] opens */
    struct bufferevent *writer, *reader;
    struct evbuffer *waiting; /* messages for a connection that is not there yet */
    unsigned silent;          /* pings of ours since the reader last had something */
    struct error ending;      /* another of its connections has ended than the reader; status 0: none has */
    unsigned ended;           /* ... pings since then */
    struct {
        uint64_t bytes_out, bytes_in, messages_out, messages_in, waits;
    } before;            /* what the proxy had counted for its index when it began */
    struct error broken; /* why it is about to be freed; status 0: it is not */
};

/* That worker of that node, connecting if it is not connected; who NULL: the one that the node has now, which is not known before
 * it is connected. NULL with the reason. */
struct peer *peer_get(struct worker *w, const char *address, const struct incarnation *who, struct error *e);
bool peer_is_open(const struct peer *p); /* messages, and its first rail */
/* Whether a rail is open, of one that is; if it is not it is asked for, and nodes_peer_open() tells. */
bool peer_rail_open(struct peer *p, uint32_t rail);
/* In the order of calls, when it is connected; m->from and m->to are the caller's. A peer that takes too little breaks. */
void peer_send(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length);
/* Its connections have failed, or it has broken the protocol. It is freed by the loop. */
void peer_break(struct peer *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* One of its connections has ended, but not the one on which its messages come: it breaks when that does, which is soon. */
void peer_ends(struct peer *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void peers_sweep(struct worker *w);
void peers_close(struct worker *w);
/* Is there something that has not been sent yet? */
bool peers_are_busy(const struct worker *w);
/* Nothing is read from peers that there are, until they are resumed. */
void peers_pause(struct worker *w);
void peers_resume(struct worker *w);

/* Its connections for messages, ours and theirs. */
void peer_writer_open(struct peer *p, int sock); /* takes the socket */
bool peer_reader_open(struct peer *p, int sock); /* false: no memory; the socket is still the caller's */
/* Pings, from now on. 0 or -ENOMEM. */
int peers_ping_start(struct worker *w);

/* engine/channel.c calls these; they own the socket (-1: none). */
void peer_arrived(struct worker *w, const struct control_peer *m, int sock);
void peer_connected(struct worker *w, const struct control_connected *m, int sock);

#endif
