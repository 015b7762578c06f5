/* SPDX-License-Identifier: MIT
 *
 * peer.h - the job's workers on other nodes (peers): connections to them, and the messages that workers send each other (nodes.c).
 *
 * Workers do not connect by themselves. Their brokers connect, authenticate each other, and hand each worker its end of the connection
 * (control.h). Only the worker that asked for a connection sends on it, so two workers may ask for one at the same time. To each peer a
 * worker has one connection for messages (the engine's) and one or several for data, its rails (the proxy's; rails.c). The first rail is
 * opened with the connection for messages, others when a communicator has a rank that sends over them. Where the first rail carries messages
 * (tcp), they go there as soon as it is open, but for pings: peer.c.
 *
 * A peer is one worker, not one node. Successive workers of a node (control.h: incarnations) are different peers. So is a worker that was
 * lost and connects again, with a new serial. Connections of one peer are never taken for another's, in whatever order they open and end.
 *
 * Engine thread, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_NODES_PEER_H
#define FCC_DAEMON_WORKER_NODES_PEER_H

#include "daemon/net/net.h"
#include "daemon/worker/comm/regroup/regroup.h"
#include "daemon/worker/comm/span.h"
#include "proto/base/list.h"

struct bufferevent;
struct evbuffer;
struct proxy_early;

#define PEERS_MAX 64u

enum peer_purpose { PEER_MESSAGES = 1, PEER_DATA = 2 };
/* The purpose in CONTROL_CONNECT: messages or data, the rail if data, and the serial of the asking worker's peer, by which the receiver
 * knows which connections belong together. */
#define PEER_PURPOSE(purpose, rail, serial) ((uint32_t)(purpose) | (uint32_t)(rail) << 4 | (serial) << 8)
#define PEER_PURPOSE_OF(told) ((told)&0xfu)
#define PEER_RAIL_OF(told) ((told) >> 4 & 0xfu)
#define PEER_SERIAL_OF(told) ((told) >> 8)

/* Message types; form.c, nodes.c, alloc.c and end.c say when each is sent. All fields are little-endian. */
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
    PEER_REGROUP,
    PEER_REGROUPED,
    PEER_MOVED, /* the last one on this connection but for pings: all others come over the sender's first rail */
    PEER_TYPES
};
const char *peer_type_name(unsigned type);

/* The header of every message. */
struct peer_msg {
    uint32_t length; /* of the whole message */
    uint16_t type;   /* enum peer_type */
    uint16_t zero;
    uint64_t comm; /* id_number() of the communicator. PING: 0 */
    /* The sender's and the receiver's own number of the communicator (comm.number). to 0: the sender does not know it yet. A unique id may
     * be used again while messages of its former communicator are in flight; by these numbers a receiver drops such messages. */
    uint32_t from, to;
};
static_assert(sizeof(struct peer_msg) == 24, "wire");

#define PEER_MSG_MAX (FCC_MSG_MAX + 4096u)

struct peer_join { /* to the root: this rank has joined at the sender */
    struct peer_msg msg;
    struct fcc_unique_id unique_id;
    int32_t nranks, rank;
    uint32_t time_limit_ms;
    uint32_t device_kind;
    int32_t pid;
    uint32_t zero;
};
static_assert(sizeof(struct peer_join) == 176, "wire");

struct peer_joined { /* from the root: the rank's JOIN was accepted */
    struct peer_msg msg;
    int32_t rank;
    uint32_t zero;
};
static_assert(sizeof(struct peer_joined) == 32, "wire");

struct
    peer_refuse { /* from the root: the JOIN was refused. -ESTALE: this worker takes no new communicators, a successor does */
    struct peer_msg msg;
    int32_t rank;
    int32_t status;
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_refuse) == 544, "wire");

struct peer_deny { /* to the root: the sender has refused a rank that was to join there */
    struct peer_msg msg;
    struct fcc_unique_id unique_id;
    int32_t rank;
    int32_t status;
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_deny) == 160 + FCC_TEXT_MAX, "wire");

struct peer_formed { /* from the root: all ranks have joined. Arrays by node, then by rank */
    struct peer_msg msg;
    uint32_t nranks, nnodes, time_limit_ms, zero;
    char addresses[SPAN_NODES][FCC_NODE_MAX];
    struct incarnation workers[SPAN_NODES]; /* each node's worker */
    uint32_t comms[SPAN_NODES];             /* that worker's number of the communicator (peer_msg.from of its JOINs) */
    int32_t pids[FCC_MAX_RANKS];
    uint16_t node_of[FCC_MAX_RANKS];
};
static_assert(PEERS_MAX + 1 <= SPAN_NODES, "FORMED names this node and all others");
static_assert(sizeof(struct peer_formed) <= PEER_MSG_MAX, "it fits");

struct peer_here { /* while a communicator forms, to each other node except the root: this connection works */
    struct peer_msg msg;
    uint32_t node; /* the sender's node number */
    uint32_t zero;
};
static_assert(sizeof(struct peer_here) == 32, "wire");

struct peer_submit { /* a rank's next request. An operator's fcc_submit follows, as the client sent it */
    struct peer_msg msg;
    /* The turns that have ended on the sender's node, whose data is ahead of this message: stands for DONE. 0: says nothing */
    uint64_t ended;
    uint32_t
        early; /* bytes that the sender keeps of what comes before its operator has begun there (early.c). 0: nothing may */
    uint32_t zero;
    struct remote_request request;
};
static_assert(sizeof(struct peer_submit) == 96 + FCC_TEXT_MAX + 16 * FCC_MAX_TENSORS, "wire");

struct peer_memory { /* a rank's part of a symmetric allocation: allocated (status 0), or why not */
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

struct peer_result { /* a rank has allocated a result buffer. Sent before the first SUBMIT that names it */
    struct peer_msg msg;
    int32_t rank;
    uint32_t handle;
    uint64_t bytes;
};
static_assert(sizeof(struct peer_result) == 40, "wire");

struct peer_turn {
    struct peer_msg msg;
    /* STAGED: the turn whose staging memory is made. FAIL: the turn that failed. ABORT, LEAVE: turns that have ended */
    uint64_t turn;
    int32_t status;
    int32_t
        rank; /* LEAVE: the rank. Its status is that of the communicator which has ended there, and text the reason; or 0 and why it died */
    char text[FCC_TEXT_MAX];
};
static_assert(sizeof(struct peer_turn) == 40 + FCC_TEXT_MAX, "wire");

struct peer_regroup { /* a rank has come to a round of new groups, or (round 0) waits no more */
    struct peer_msg msg;
    int32_t rank;
    uint32_t zero;
    struct regroup_entry entry;
};
static_assert(sizeof(struct peer_regroup) == 56 + FCC_MAX_RANKS / 8, "wire");

struct peer_regrouped {
    struct peer_msg msg;
    struct regroup_decision decision;
};
static_assert(sizeof(struct peer_regrouped) == 24 + 656 + 4 * FCC_MAX_RANKS, "wire");

/* Check a received message: type, length, terminated text, status. 0, or -EPROTO with the reason. */
int peer_message_check(const struct peer_msg *m, struct error *e);

/* Messages that have come over rails. */
struct peer_letter {
    STAILQ_ENTRY(peer_letter) link;
    uint32_t node, length;                /* node: the peer's index */
    _Alignas(16) unsigned char message[]; /* a struct peer_msg, not checked */
};
STAILQ_HEAD(peer_letters, peer_letter);

enum peer_state { PEER_CLOSED, PEER_CONNECTING, PEER_OPEN };

struct peer {
    struct worker *worker;
    LIST_ENTRY(peer) link; /* worker.peers */
    char address[FCC_NODE_MAX];
    struct incarnation who;               /* number 0: not known before a connection is open in either direction */
    unsigned index;                       /* unique among the worker's peers; the proxy knows the peer by it */
    uint32_t serial;                      /* counts the worker's peers, modulo 2^24 */
    uint32_t theirs;                      /* the serial that the peer has given this worker, once it has connected */
    bool is_past;                         /* the peer takes no new communicators */
    bool is_unreachable;                  /* broken because the brokers could not connect: asking again is of no use */
    char named[FCC_NODE_MAX];             /* broken because the node has this address, and not `address`. "": that is not so */
    enum peer_state out;                  /* our connection for messages */
    enum peer_state data[NET_RAILS_MAX];  /* by rail: our data connection */
    uint64_t out_request;                 /* while `out` is CONNECTING: the id of our CONTROL_CONNECT */
    uint64_t data_request[NET_RAILS_MAX]; /* the same for `data` */
    struct net_rails rails;               /* set by nodes_data_open() when data[0] opens */
    struct bufferevent *writer, *reader;  /* of our and of the peer's connection for messages */
    struct evbuffer *waiting;             /* messages to send when `out` has opened */
    bool by_rail;                         /* messages to the peer go over our first rail: MOVED was sent */
    bool moved;                           /* the peer has sent MOVED */
    struct peer_letters held;             /* what has come over its rail before MOVED has been read */
    uint64_t held_bytes;
    bool has_rail, rail_over, reader_over; /* the peer has a rail to us; its rails have ended, and the reader's connection */
    bool heard;                            /* something has come on the reader's connection */
    unsigned silent;                       /* pings that we have sent since the reader last had data */
    struct error ending;                   /* a connection other than the reader's has ended. status 0: none has */
    unsigned ended;                        /* pings that we have sent since then */
    struct {
        uint64_t bytes_out, bytes_in, messages_out, messages_in, waits;
    } before;            /* the proxy's counts of `index` when this peer took it */
    struct error broken; /* why the peer is about to be freed. status 0: it is not */
};

/* The peer that is this worker of that node; connects if it is not connected. who NULL: the worker that the node has now, which becomes
 * known when the connection opens. NULL with the reason. */
struct peer *peer_get(struct worker *w, const char *address, const struct incarnation *who, struct error *e);
bool peer_is_open(const struct peer *p); /* our connection for messages and the first rail are open */
/* Whether this rail of an open peer is open. If not it is opened, and nodes_peer_open() is called then. */
bool peer_rail_open(struct peer *p, uint32_t rail);
/* Send a message, in the order of calls, as soon as the connection is open. The caller sets m->from and m->to. A peer that leaves too many
 * bytes unread breaks. */
void peer_send(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length);
/* The same, and `early` behind it if the message goes over the rail (NULL: nothing). */
void peer_send_with(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length,
                    struct proxy_early *early);
/* The proxy's thread (struct proxy_owner: message()): keep a message for the engine. */
int peers_message(void *nodes_data, uint32_t node, const void *bytes, uint32_t length);
/* The engine: handle the messages that have come over rails. */
void peers_take(struct worker *w);
void peers_letters_free(struct peer_letters *letters);
/* Our first rail to p is open: messages go there from now on, if it carries any. */
void peer_move(struct peer *p);
/* MOVED has come. */
void peer_moved(struct peer *p);
/* Send a message over the rail (by_rail), and `early` behind it (NULL: nothing). */
void peer_send_by_rail(struct peer *p, const struct peer_msg *m, struct proxy_early *early);

/* Give the peer up: its connections have failed, or it has violated the protocol. The loop frees it (peers_sweep()). */
void peer_break(struct peer *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A connection of the peer has ended. The peer breaks when those on which its messages come have ended, too. */
void peer_ends(struct peer *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void peers_sweep(struct worker *w);
void peers_close(struct worker *w);
/* Whether messages to any peer have not been sent yet. */
bool peers_are_busy(const struct worker *w);
/* Stop reading messages from all peers, until peers_resume(). */
void peers_pause(struct worker *w);
void peers_resume(struct worker *w);

/* Set up our connection for messages, and the peer's. */
void peer_writer_open(struct peer *p, int sock); /* takes the socket */
void peer_reader_drop(struct peer *p);
bool peer_reader_open(struct peer *p, int sock); /* false: no memory; the socket is still the caller's */
/* Send PINGs from now on. 0 or -ENOMEM. */
int peers_ping_start(struct worker *w);

/* engine/channel.c calls these; they own the socket (-1: none). */
void peer_arrived(struct worker *w, const struct control_peer *m, int sock);
void peer_connected(struct worker *w, const struct control_connected *m, int sock);
/* The broker has died, and perhaps had not told the other node of the connection that came last. If nothing has come on it, it is closed: whoever
 * asked for it asks again. */
void peer_arrival_doubt(struct worker *w);

#endif
