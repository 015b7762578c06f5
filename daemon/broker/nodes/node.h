/* SPDX-License-Identifier: MIT
 *
 * node.h - the broker and the brokers of other nodes. All of it is the broker's one thread; nothing in it waits.
 *
 *   node.c          the listening socket, the list of nodes, what is complained of
 *   node_open.c     a TCP connection to another broker: connect or accept
 *   node_conn.c     what goes over it: prove, ask, answer; every state has a time limit
 *   node_resolve.c  names of hosts
 *   node_link.c     the link to each node: heartbeat, round trip, reconnect
 *   node_peer.c     connections for workers: asked for here, and from elsewhere
 *   node_denial.c   word of ranks that cannot join, to and from nodes with which there is no proof
 *   node_trouble.c  which nodes of NODES are not reached, for the errors of who waits in vain
 *   node_ping.c     fccctl ping
 *   node_query.c    fccctl nodes
 *
 * Every connection goes the same way:
 *
 *   initiator                                responder
 *     hello ------------------------------------>|   auth.c
 *     <---------------------------- hello, proof |
 *     proof, node_request --------------------->|   the request and all that follows is sealed: each frame, then its tag
 *     <----------------------------- node_answer |
 *     LINK: node_beat -------------------------->|   and back, unchanged, as often as the initiator likes
 *     PEER: both brokers pass the socket on to their workers; not one byte more is theirs. So each reads no more than the
 *           message that it expects.
 *
 * So a node knows another one by the link that it began itself; two nodes that know each other have two.
 */
#ifndef FCC_DAEMON_BROKER_NODES_NODE_H
#define FCC_DAEMON_BROKER_NODES_NODE_H

#include "daemon/broker/broker.h"
#include "daemon/common/auth.h"

#define HEARTBEAT_MS 500
#define LOST_MS 2000         /* a node that has not answered for so long is lost */
#define LINK_IDLE_MS 6000    /* a link of another node on which nothing came for so long is closed */
#define BACKOFF_FIRST_MS 100 /* between attempts to connect; doubled each time */
#define BACKOFF_LAST_MS 5000
#define CONNECT_MS 3000   /* to find the address of a host; and then to connect to each of its addresses */
#define PROVE_MS 3000     /* from the connection to the request or, on the other side, the answer */
#define STRANGERS_MAX 256 /* connections that have not proven themselves: the next waits in the kernel until one has, */
#define STRANGER_MS 100   /* ... or has let this broker wait for so long, for its hello or then for its proof: it makes room */
#define STRANGERS_SHARE (STRANGERS_MAX / 4) /* ... of one source: an address of IPv4, or the first half of one of IPv6 */
#define GUESTS_MAX 8192                     /* connections of other nodes */
#define CALLS_MAX 4096                      /* connections that a user's jobs may ask for at a time */
#define HELD_MAX 2048    /* connections of other nodes that may wait for workers of one user: a quarter of the guests */
#define CALLS_AT_ONCE 32 /* ... that have not proven themselves, to one node: none alone makes STRANGERS_MAX of them there */
#define KNOWN_MAX 8192   /* nodes in the list */
#define FORGET_MS 60000  /* a node that is not in NODES is forgotten when it was lost for so long */
#define CALL_MAX_MS 86400000u /* of a worker's limit */
#define COMPLAINTS 64
#define COMPLAIN_EVERY_NS 60000000000ull

/* ---- what is said, after the proofs; little-endian ---- */

enum node_purpose { NODE_LINK = 1, NODE_PEER = 2 };

struct node_request {
    uint32_t what;                   /* enum node_purpose */
    uint32_t uid, purpose, limit_ms; /* PEER: as in CONTROL_CONNECT */
    char job[FCC_JOB_MAX];           /* PEER */
    struct incarnation from, to;     /* PEER: as in CONTROL_PEER and CONTROL_CONNECT */
};
struct node_answer {
    int32_t status; /* 0, or a negative errno value as Linux numbers them */
    uint32_t zero;
    struct incarnation at; /* PEER, status 0: who has got this end */
    char text[FCC_TEXT_MAX];
};
struct node_beat {
    uint64_t number, zero;
};
static_assert(sizeof(struct node_request) == 112 && sizeof(struct node_answer) == 536 && sizeof(struct node_beat) == 16,
              "wire");
#define NODE_FRAME_MAX (sizeof(struct node_answer) + AUTH_TAG_BYTES)
#define CONN_IN_MAX sizeof(struct denial)
static_assert(CONN_IN_MAX >= NODE_FRAME_MAX, "any message fits");

/* ---- connections ---- */

struct conn;

/* What becomes of a connection. The connection must not be used after `ended`, which is called once, before it is freed; it
 * belongs to node_conn.c except where these are called. */
struct conn_ops {
    void (*answered)(struct conn *c);                       /* ours: the other said yes */
    void (*asked)(struct conn *c);                          /* theirs: c->request has come */
    void (*beat)(struct conn *c, uint64_t number);          /* a node_beat has come */
    void (*late)(struct conn *c);                           /* in state LINKED or HELD: the limit is over */
    void (*ended)(struct conn *c, const struct error *why); /* closed by the other, or by conn_end() */
};

enum conn_state {
    CONN_RESOLVING,
    CONN_CONNECTING,
    CONN_PROVING,
    CONN_ASKING, /* ours: the request is sent; theirs: it has not come yet */
    CONN_HELD,   /* theirs, PEER: waits for the job's worker here. Nothing may come */
    CONN_LINKED,
    CONN_TELLING, /* ours: a denial is on its way, and the other closes when it has it */
};

struct conn {
    struct nodes *nodes;
    TAILQ_ENTRY(conn) link; /* nodes.conns */
    const struct conn_ops *ops;
    void *owner; /* of the ops */
    enum conn_state state;
    bool ours;
    bool anywhere;          /* ours: it may lead to what is no address of a node in NODES */
    char who[FCC_NODE_MAX]; /* for people: the other's node address; of a stranger the address that the kernel tells */
    int sock;               /* RESOLVING: the pipe of the resolver */
    int failed;             /* errno of a connect() that failed at once; told by the next turn of the event loop */
    struct event *readable, *writable, *limit;
    uint32_t limit_ms;         /* that was set last */
    struct child *resolver;    /* RESOLVING */
    struct resolved *resolved; /* ours: addresses, and which of them is tried */
    struct auth auth;
    struct node_request request; /* in host byte order */
    struct incarnation at;       /* PEER, answered: who has got the other's end (ours), or this one's (theirs) */
    bool denies;                 /* theirs: it says a denial instead of proving itself (denial.h) */
    const struct denial *denial; /* ours: it does; the owner's. NULL: it does not */
    struct node *node;           /* whose bytes these are, or NULL */
    struct user *user;           /* HELD: whose share this is of; or NULL */
    uint64_t source;             /* theirs: where it comes from, as STRANGERS_SHARE counts */
    uint64_t awaited_ns;         /* a stranger: since when it is its turn to speak */
    uint64_t until_ns;           /* ours: the request must be sent by then; 0: no matter */
    size_t want, have, pending;  /* bytes of in; of out */
    unsigned char in[CONN_IN_MAX], out[2 * NODE_FRAME_MAX];
};

/* Connect to that node and ask for that (in host byte order); until_ns, if not 0, is the last time to have asked; uid is who wants it:
 * node_permit(). -EINVAL: it is this node or no address. -EAGAIN: too many host names are being looked up. Nothing of ops is called before
 * it returns. */
int conn_open(struct nodes *ns, const char *address, const struct node_request *request, uint64_t until_ns, uid_t uid,
              const struct conn_ops *ops, void *owner, struct conn **out, struct error *e);
void conn_accept(evutil_socket_t sock, short what, void *nodes); /* event callback of the listening socket */
/* Did it end because the other is there, and one of the two does not want the other? */
bool conn_refused(const struct conn *c, const struct error *why);
/* In at most that time something else must have happened. */
void conn_limit(struct conn *c, uint32_t ms);
/* Returns 0, or -errno: then the caller ends the connection. */
int conn_beat(struct conn *c, uint64_t number);
/* The same, to a request. status 0, or an error that names the node. */
int conn_answer(struct conn *c, int status, const char *text);
/* Close it; ops->ended hears why. */
void conn_end(struct conn *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Forget the connection without a word; its socket is closed, or, if it is to be kept, returned. */
int conn_release(struct conn *c, bool keep);

/* Between node_conn.c and node_open.c. */
struct conn *conn_new(struct nodes *ns, const struct conn_ops *ops, void *owner,
                      bool ours); /* in state PROVING, without socket */
bool conn_is_stranger(const struct conn *c);
void conn_state_set(struct conn *c, enum conn_state state, size_t want);
void conn_hear(struct conn *c);                 /* what has come. May free it */
int conn_events_make(struct conn *c, int sock); /* 0 or -ENOMEM; the socket is the connection's in any case. It has none yet */
void conn_sock_close(struct conn *c);           /* and what belongs to it; another may follow */
int conn_say(struct conn *c, const void *bytes, size_t n);
void conn_closed(struct conn *c, int error);         /* by the other, or (errno) broken: end it, in words that fit its state */
void conn_connected(struct conn *c);                 /* the socket is writable, or has failed */
void conn_connect_failed(struct conn *c, int error); /* try the next address, or end it */
void conn_resolved(struct conn *c);                  /* c->resolved has come, or the resolver has ended without */

/* ---- resolve: "host:port" to addresses ---- */

#define RESOLVED_MAX 4
struct resolved {
    uint32_t n, at;
    char why[64]; /* if n is 0 */
    struct {
        uint32_t length;
        _Alignas(8) unsigned char address[128]; /* struct sockaddr_storage */
    } all[RESOLVED_MAX];
};

/* Without looking anything up: -EAGAIN if the host is a name. */
int resolve_number(const char *address, struct resolved *out);
/* The same for names: takes its time. -EAGAIN: out->why says why not. */
int resolve_name(const char *address, struct resolved *out);
/* Start a child, as child_start() does; *in then yields a struct resolved. 0 or -errno; -EAGAIN: there are too many. */
int resolver_start(struct nodes *ns, const char *address, struct child **holder, int *in);

/* ---- nodes ---- */

enum node_state { NODE_CONNECTING, NODE_CONNECTED, NODE_LOST, NODE_REFUSED };

struct node {
    TAILQ_ENTRY(node) link; /* nodes.list */
    struct nodes *nodes;
    char address[FCC_NODE_MAX];
    bool configured;       /* in NODES */
    struct resolved known; /* its addresses, as they were found last; n is 0: not yet */
    bool was_connected;
    enum node_state state;
    uint64_t since_ns;      /* the state */
    char why[FCC_TEXT_MAX]; /* it is not CONNECTED; "" if it was not tried yet */
    uint64_t round_trip_ns, bytes_in, bytes_out, errors;
    struct conn *conn; /* the link that this node began; NULL between attempts */
    struct event *timer;
    uint32_t backoff_ms;
    bool beats; /* a heartbeat is on its way */
    uint64_t number, beat_ns;
};

struct complaint {
    char who[FCC_NODE_MAX];
    int status;
    uint64_t when_ns, unsaid;
};

struct nodes {
    struct broker *broker;
    struct cluster_key key;
    const char *own; /* this node's address, in the broker's configuration */
    int listen_sock;
    struct event *listen_event, *listen_again; /* again: after a pause */
    TAILQ_HEAD(node_list, node) list;          /* as in NODES, then as they were met */
    unsigned nlist;
    TAILQ_HEAD(conn_list, conn) conns; /* of the strangers that one first which was awaited first */
    unsigned nstrangers, nguests;
    TAILQ_HEAD(call_list, call) calls;          /* node_peer.c; the oldest first */
    struct event *deliver_again;                /* a worker's channel was full */
    TAILQ_HEAD(telling_list, telling) tellings; /* node_denial.c */
    uint64_t denials_since_ns;                  /* a second begins */
    unsigned ndenials;                          /* ... that were heard in it */
    unsigned nresolvers;                        /* children that look a name up */
    char trouble[CONTROL_TROUBLE_MAX];          /* node_trouble.c: what workers have been told last */
    bool closing;
    uint64_t refused, peers_out, peers_in; /* connections refused; handed to workers */
    struct complaint complaints[COMPLAINTS];
    uint64_t unsaid; /* complaints that had no place there */
};

/* node.c. nodes_open() sets broker.nodes, to NULL without NODE_LISTEN; 0 or -errno (logged). */
int nodes_open(struct broker *b);
void nodes_drain(struct broker *b); /* every connection ends; no other comes */
void nodes_close(struct broker *b);
struct node *node_find(const struct nodes *ns, const char *address);
/* Find, or add to the list and link to it. NULL: the list is full. */
struct node *node_know(struct nodes *ns, const char *address);
void node_free(struct node *n);
/* Log it: once for each peer, kind of error, and minute. */
void nodes_complain(struct nodes *ns, const char *who, const struct error *why);
void nodes_catch_up(struct nodes *ns); /* every LOG_WINDOW_S: how many were not logged, of what is not complained of any more */
/* 0, or an error if nobody can be asked for that node: this node speaks to no other, it is this one, it is no address. */
int node_check(const struct nodes *ns, const char *address, struct error *e);
/* May that user make this broker connect to any address? Where NODES says who the others are, only root may, or as whom the broker runs. */
bool node_permit(const struct nodes *ns, uid_t uid);
/* Anybody else may only to the addresses of these; by a name that NODES has not, too. */
bool node_is_at(const struct nodes *ns, const void *address, uint32_t length);

/* node_link.c */
extern const struct conn_ops guest_ops; /* a connection of another node until it is known what for */
int node_start(struct node *n);         /* 0 or -ENOMEM */
const char *node_state_name(enum node_state state);

/* node_peer.c */
void peer_hold(struct conn *c); /* theirs: hand over, or hold until there is a worker */
/* A connection to that node has proven itself or ended: a call that waits for that begins, not before this returns. */
void calls_next(struct nodes *ns, const char *address);
void calls_end(struct nodes *ns);

/* node_trouble.c: the state of a node, or why, has changed. */
void trouble_update(struct nodes *ns);

/* node_denial.c */
void tellings_end(struct nodes *ns);
/* Is what a stranger has said first (c->in) the beginning of a denial? Then the rest is awaited, and denial_hear() frees the connection. */
bool denial_begins(struct conn *c);
void denial_hear(struct conn *c);

#endif
