/* SPDX-License-Identifier: MIT
 *
 * node.h - the broker's connections with the brokers of other nodes. All of it runs in the broker's one thread; nothing blocks.
 *
 *   node.c          the listening socket, the list of nodes, rate-limited complaints, fccctl nodes
 *   node_open.c     opens a TCP connection to another broker: resolves its host's name and connects, or accepts
 *   node_conn.c     the protocol on it: prove, ask, answer; every state has a time limit
 *   node_link.c     the link to each node: heartbeat, round-trip time, reconnect
 *   node_peer.c     connections for workers, asked for by workers here and on other nodes
 *   node_denial.c   denials (denial.h), to and from nodes that need not have proven themselves
 *   node_ping.c     fccctl ping
 *
 * The protocol of every connection:
 *
 *   initiator                                responder
 *     hello ------------------------------------>|   auth.c
 *     <---------------------------- hello, proof |
 *     proof, node_request --------------------->|   the request and all later frames are sealed: each frame, then its tag
 *     <----------------------------- node_answer |
 *     LINK: node_beat -------------------------->|   the responder sends each heartbeat back unchanged
 *     PEER: both brokers pass the socket on to their workers, for which all further bytes are. So each broker reads no more
 *           than the message that it expects.
 *
 * A node watches another node by the link that it has begun itself; two nodes that know each other have two links.
 */
#ifndef FCC_DAEMON_BROKER_NODES_NODE_H
#define FCC_DAEMON_BROKER_NODES_NODE_H

#include "daemon/broker/broker.h"
#include "daemon/common/auth.h"

#define HEARTBEAT_MS 500
#define LOST_MS 2000         /* a node that has not answered a heartbeat for this time is lost */
#define LINK_IDLE_MS 6000    /* another node's link on which nothing has arrived for this time is closed */
#define BACKOFF_FIRST_MS 100 /* time between attempts to connect; doubled each time */
#define BACKOFF_LAST_MS 5000
#define CONNECT_MS 3000 /* time limit for resolving a host's name, and then for connecting to each of its addresses */
/* Time limit from the connection to the request. The answer to a request must come within the request's own limit plus this
 * one. */
#define PROVE_MS 3000
/* Strangers are accepted connections that have not proven themselves. When there are STRANGERS_MAX, the next one waits in the
 * kernel's queue, and a stranger for whose hello or proof this broker has waited STRANGER_MS makes room. */
#define STRANGERS_MAX 256
#define STRANGER_MS 100
#define STRANGERS_SHARE (STRANGERS_MAX / 4) /* strangers of one source: an IPv4 address, or the first half of an IPv6 address */
#define GUESTS_MAX 8192                     /* accepted connections */
#define CALLS_MAX 4096                      /* connections that a user's jobs may ask for at a time */
#define CALLS_AT_ONCE 32      /* those to one node that are not proven yet, so that no node alone fills STRANGERS_MAX there */
#define HELD_MAX 2048         /* connections of other nodes that may wait for workers of one user: a quarter of the guests */
#define KNOWN_MAX 8192        /* nodes in the list */
#define FORGET_MS 60000       /* a node that is not in NODES is forgotten when it has been lost for this time */
#define CALL_MAX_MS 86400000u /* the longest time limit that a worker may ask for */
#define COMPLAINTS 64
#define COMPLAIN_EVERY_NS 60000000000ull

/* ---- messages after the proofs; little-endian ---- */

enum node_purpose { NODE_LINK = 1, NODE_PEER = 2 };

struct node_request {
    uint32_t what;                   /* enum node_purpose */
    uint32_t uid, purpose, limit_ms; /* PEER: as in CONTROL_CONNECT */
    char job[FCC_JOB_MAX];           /* PEER: the job's id */
    struct incarnation from, to;     /* PEER: as in CONTROL_PEER and CONTROL_CONNECT */
};
struct node_answer {
    int32_t status; /* 0, or a negative errno value in Linux's numbering */
    uint32_t zero;
    struct incarnation at; /* PEER, status 0: the worker that has the responder's end */
    char text[FCC_TEXT_MAX];
};
struct node_beat {
    uint64_t number, zero;
};
static_assert(sizeof(struct node_request) == 112 && sizeof(struct node_answer) == 536 && sizeof(struct node_beat) == 16,
              "wire");
#define NODE_FRAME_MAX (sizeof(struct node_answer) + AUTH_TAG_BYTES)
#define CONN_IN_MAX sizeof(struct denial)
static_assert(CONN_IN_MAX >= NODE_FRAME_MAX, "conn.in has room for any message");

/* ---- connections ---- */

struct conn;

/* The owner's callbacks. `ours`: this broker is the initiator; `theirs`: the responder. The connection is freed after `ended`,
 * which is called once. NULL: no state that the connection can have
 * calls it. Apart from these calls the connection belongs to node_conn.c. */
struct conn_ops {
    void (*answered)(struct conn *c);                     /* ours: the answer has status 0 */
    void (*asked)(struct conn *c);                        /* theirs: c->request has arrived */
    void (*beat)(struct conn *c, uint64_t round_trip_ns); /* ours: the answer to a heartbeat has arrived */
    void (*late)(struct conn *c); /* HELD, or LINKED and no heartbeat under way: the time limit has passed */
    void (*ended)(struct conn *c, const struct error *why); /* closed by the other node, or by conn_end() */
};

enum conn_state {
    CONN_RESOLVING,
    CONN_CONNECTING,
    CONN_PROVING,
    CONN_ASKING, /* ours: the request was sent; theirs: the request has not arrived yet */
    CONN_HELD,   /* theirs, PEER: waits for the job's worker here. Nothing may arrive meanwhile */
    CONN_LINKED,
    CONN_TELLING, /* ours: a denial was sent; the other node closes the connection when it has received it */
};

struct conn {
    struct nodes *nodes;
    TAILQ_ENTRY(conn) link; /* nodes.conns */
    const struct conn_ops *ops;
    void *owner; /* for the ops */
    enum conn_state state;
    bool ours;
    uid_t uid;              /* ours: on whose behalf */
    bool anywhere;          /* ours: may connect to addresses that do not belong to a node in NODES */
    char who[FCC_NODE_MAX]; /* for texts: the other node's address; of a stranger its IP address */
    int sock;
    int failed; /* errno of a connect() that failed at once; handled by the next iteration of the event loop */
    struct event readable, writable, limit;
    uint32_t limit_ms;         /* the time limit that was set last */
    struct child *resolver;    /* RESOLVING */
    struct resolved *resolved; /* ours: the host's addresses, and which of them is tried */
    struct auth auth;
    struct node_request request;
    struct incarnation at;       /* PEER, answered: the worker that has the responder's end */
    bool denies;                 /* theirs: it sends a denial instead of proving itself (denial.h) */
    const struct denial *denial; /* ours: the denial to send instead of a proof; the owner's. NULL: none */
    struct node *node;           /* the node that counts this connection's bytes, or NULL */
    struct user *user;           /* HELD: the user who counts this connection, or NULL */
    bool beats;                  /* ours: a heartbeat has not been answered yet */
    uint64_t number, beat_ns;    /* ours: the number of the last heartbeat, and when it was sent */
    uint64_t source;             /* theirs: the source of the connection, for STRANGERS_SHARE */
    uint64_t awaited_ns;         /* a stranger: since when this broker has waited for its next message */
    uint64_t until_ns;           /* ours: when the request must have been sent; 0: no limit */
    size_t want, have;           /* bytes of `in`: expected, and received */
    size_t pending;              /* bytes of `out` */
    unsigned char in[CONN_IN_MAX], out[2 * NODE_FRAME_MAX];
};

/* Begins to connect to a node, and sends it the request, not later than until_ns unless that is 0.
 * uid is the user on whose behalf: node_permit(). Errors: -EINVAL: this node itself, or not an address; -EAGAIN: too many names
 * are being resolved, in all or for that user's jobs. No callback is called before this returns. */
int conn_open(struct nodes *ns, const char *address, const struct node_request *request, uint64_t until_ns, uid_t uid,
              const struct conn_ops *ops, void *owner, struct conn **out, struct error *e);
void conn_accept(evutil_socket_t sock, short what, void *nodes); /* event callback of the listening socket */
/* Did the connection end because the other node is there, but one of the two refuses the other? */
bool conn_refused(const struct conn *c, const struct error *why);
/* Sets the time limit for the connection's next step. */
void conn_limit(struct conn *c, uint32_t ms);
/* Ours: sends a heartbeat, which must be answered within LOST_MS. May free the connection. */
void conn_beat(struct conn *c);
/* Answers the request: status 0, or an error whose text names the node. Returns 0, or -errno: then the caller ends the
 * connection. */
int conn_answer(struct conn *c, int status, const char *text);
/* Closes and frees the connection, after a call of ops->ended with the reason. */
void conn_end(struct conn *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Frees the connection without a callback. Closes its socket or, with `keep`, returns it. */
int conn_release(struct conn *c, bool keep);

/* Between node_conn.c and node_open.c. */
struct conn *conn_new(struct nodes *ns, const struct conn_ops *ops, void *owner,
                      bool ours); /* in state PROVING, without a socket */
bool conn_is_stranger(const struct conn *c);
void conn_state_set(struct conn *c, enum conn_state state, size_t want);
void conn_hear(struct conn *c);               /* reads what has arrived. May free the connection */
void conn_sock_set(struct conn *c, int sock); /* gives the connection a socket, which it owns */
void conn_sock_close(struct conn *c);         /* closes the socket and frees its events; another socket may follow */
int conn_say(struct conn *c, const void *bytes, size_t n);
void conn_closed(struct conn *c,
                 int error);         /* the other node has closed, or the socket has failed with `error`: ends the connection */
void conn_connected(struct conn *c); /* connect() has succeeded or failed */
void conn_connect_failed(struct conn *c, int error); /* tries the next address, or ends the connection */

/* ---- resolving "host:port" ---- */

#define RESOLVED_MAX 4
struct resolved {
    uint32_t n, at; /* number of addresses; the one that is tried */
    char why[64];   /* n is 0: the reason */
    struct {
        uint32_t length;
        _Alignas(8) unsigned char address[128]; /* struct sockaddr_storage */
    } all[RESOLVED_MAX];
};

/* Resolves an address. A name may take long; with is_number the host must not be one. Returns 0, or -EAGAIN with the reason in
 * out->why. */
int resolve(const char *address, bool is_number, struct resolved *out);

/* ---- nodes ---- */

enum node_state { NODE_CONNECTING, NODE_CONNECTED, NODE_LOST, NODE_REFUSED };

struct node {
    TAILQ_ENTRY(node) link; /* nodes.list */
    struct nodes *nodes;
    char address[FCC_NODE_MAX];
    bool configured;       /* listed in NODES */
    struct resolved known; /* its addresses, as last resolved; n is 0: not resolved yet */
    bool was_connected;
    enum node_state state;
    uint64_t since_ns;      /* when the state began */
    char why[FCC_TEXT_MAX]; /* why the state is not CONNECTED; "": not tried yet */
    uint64_t round_trip_ns, bytes_in, bytes_out, errors;
    uint64_t losses;   /* how often the link ended after it had stood */
    struct conn *conn; /* the link to it; NULL between attempts */
    struct event timer;
    uint32_t backoff_ms;
};

/* A kind of complaint: an error of a peer. */
struct complaint {
    char who[FCC_NODE_MAX];
    int status;
    uint64_t when_ns; /* when it was last logged */
    uint64_t unsaid;  /* how often it was not logged since */
};

struct nodes {
    struct broker *broker;
    struct cluster_key key;
    const char *own; /* this node's address; points into the broker's configuration */
    int listen_sock;
    struct event listen_event, listen_again; /* listen_again: resumes accepting after a pause */
    TAILQ_HEAD(node_list, node) list;        /* nodes of NODES in their order, then others in the order of their appearance */
    unsigned nlist;
    TAILQ_HEAD(conn_list, conn) conns; /* strangers among them are in the order of awaited_ns */
    unsigned nstrangers, nguests;
    TAILQ_HEAD(call_list, call) calls;          /* node_peer.c; the oldest first */
    struct event deliver_again;                 /* delivers held connections again after a worker's channel was full */
    TAILQ_HEAD(telling_list, telling) tellings; /* node_denial.c */
    uint64_t denials_since_ns;                  /* when the current second of counting denials began */
    unsigned ndenials;                          /* denials that were received in this second */
    char trouble[CONTROL_TROUBLE_MAX];          /* trouble_update(): the last text that workers were sent */
    bool closing;
    uint64_t refused;             /* connections that were refused */
    uint64_t peers_out, peers_in; /* connections handed to workers: asked for here, and by other nodes */
    struct complaint complaints[COMPLAINTS];
    uint64_t unsaid; /* complaints that found no free entry in `complaints` */
};

/* node.c. nodes_open() sets broker.nodes, to NULL without NODE_LISTEN. Returns 0 or -errno (logged). */
int nodes_open(struct broker *b);
void nodes_drain(struct broker *b); /* ends all connections, and accepts no more */
void nodes_close(struct broker *b);
struct node *node_find(const struct nodes *ns, const char *address);
/* Finds a node, or adds it to the list and begins a link to it. NULL: the list is full, or it is this node. */
struct node *node_know(struct nodes *ns, const char *address);
void node_free(struct node *n);
/* Logs an error of a peer, at most once a minute for each peer and status. */
void nodes_complain(struct nodes *ns, const char *who, const struct error *why);
void nodes_catch_up(struct nodes *ns); /* every LOG_WINDOW_S: logs how many complaints were not logged */
/* Returns 0, or an error if the address cannot be connected to: there are no other nodes, it is this node, it is not an
 * address, or fccd is shutting down. */
int node_check(const struct nodes *ns, const char *address, struct error *e);
/* May that user make this broker connect to any address? If NODES is set, only root and the broker's own user may. */
bool node_permit(const struct nodes *ns, uid_t uid);
/* Does the IP address belong to a node of NODES? Other users may make the broker connect only to such addresses, under any
 * name. */
bool node_is_at(const struct nodes *ns, const void *address, uint32_t length);

/* node_link.c */
extern const struct conn_ops guest_ops; /* for an accepted connection */
void node_start(struct node *n);        /* begins the link */
const char *node_state_name(enum node_state state);

/* node_peer.c */
void peer_hold(struct conn *c); /* theirs: hands the connection to the job's worker, or holds it until there is one */
/* To be called when a connection to that node has proven itself or ended. Lets a waiting call begin, after this returns. */
void calls_next(struct nodes *ns, const char *address);
void calls_end(struct nodes *ns);

/* node.c: to be called when a node's state, or its reason, has changed. */
void trouble_update(struct nodes *ns);

/* node_denial.c */
void tellings_end(struct nodes *ns);
/* Is a stranger's first message (c->in) the header of a denial? Then the rest will be received, and denial_hear() handles it
 * and frees the connection. */
bool denial_begins(struct conn *c);
void denial_hear(struct conn *c);

#endif
