/* SPDX-License-Identifier: MIT
 *
 * verbs.h - the parts of the verbs transport. verbs.c sends, keys.c caches the receiver's memory keys, connect.c makes the
 * queue pair; receive.c receives, notice.c handles messages, grant.c hands out memory keys and revokes them; address.c finds
 * the devices' addresses, places.c chooses among them, device.c handles devices and queues for both ends.
 *
 *   sender                     socket                        receiver
 *                              <-- hello: addresses, token   listens with rdma_cm at an address in each network of its adapters
 *   connects to one,
 *   presents the token         ===== queue pair =====        accepts only the connection with the token
 *                              ask: (comm, rank, region) ->  registers that memory unless it is registered
 *                              <-- key: address, rkey
 *   RDMA writes of the rows    ===== queue pair =====>       (nothing to do)
 *   written: a message         ===== queue pair =====>       a receive completes: received(), if the memory is a bounce buffer
 *   a flag: a message          ===== queue pair =====>       a receive completes: raise()
 *                              beat ->                       the sender is alive
 *
 * Order. Each link has one reliable connected queue pair. The receiver's adapter executes its operations in the order in which
 * they were posted, and a receive completes only when all earlier writes on that queue pair are in memory. So a flag that is
 * raised after its receive has completed comes after the rows. Different queue pairs have no order, so a flag on one could
 * overtake rows on another. So if one queue pair does not fill the network, or there are several adapters, each further one is
 * a link of its own, a rail, and sends whose order matters use the same rail: all sends of a rank. A message on behalf of
 * several ranks is sent on all rails, and counts when it has arrived over all (daemon/worker/nodes/rails.c).
 *
 * Receive bounce buffers. The receiver does not notice RDMA writes. So if the memory is a bounce buffer (region.h: struct
 * net_bounce), which the key says, the sender describes what it has written in a message, after the writes and before the
 * flags that follow. When that message's receive has completed, the rows are in the buffer, and received() passes them on before
 * the next message is handled. If the adapter can write the memory behind the bounce buffer itself (by a dma-buf), the key is
 * for that memory, and there is no such message. A flag's receive completes after such writes, too; that the GPU then sees them
 * is up to the function that raises the flag.
 *
 * Trust. A key lets its holder write one region of one communicator of this job. All keys of a job at an adapter belong to one
 * protection domain, which no other job uses; so a region has a key for each adapter through which others write it. Removing a
 * region revokes its keys at once: the ranks have agreed that nobody writes it any more (daemon/worker/nodes/nodes.c). If a
 * sender writes it nevertheless, the adapter breaks that sender's queue pair.
 *
 * A communicator's end is not agreed upon: a node ends it while others still write. If its keys were revoked at once, the
 * adapter would break the queue pair, and sends of all other communicators of the job on it would be lost. So it takes two
 * steps:
 *
 *   receiver                               sender
 *   net_comm_end(): removes the regions
 *     end: comm ------------------------>  posts nothing more for it, drops what is queued; posted requests complete
 *     <------------------- ended: comm     when all requests posted up to then have completed
 *   revokes the keys
 *
 * A write completes at its sender when the receiver's adapter has executed and acknowledged it. If one of its packets arrives
 * again, the packet is older than what the adapter expects, and is acknowledged again but not executed. So after `ended` that
 * link writes nothing for the communicator. A sender that does not answer within silent_ms is given up: its queue pair is
 * destroyed, which stops it, and then the keys are revoked. So a key outlives its communicator by that time at most, whoever
 * misbehaves, and no honest sender's queue pair breaks.
 *
 * net_comm_end() waits for none of this, and the memory's owner may unmap it at once. A registration holds the pages themselves
 * (pinned pages, or a reference to the dma-buf), so nobody else gets them before it ends. What is still written to them is
 * never read.
 */
#ifndef FCC_DAEMON_NET_VERBS_VERBS_H
#define FCC_DAEMON_NET_VERBS_VERBS_H

#include <rdma/rdma_cma.h>

#include "daemon/net/hello.h"
#include "daemon/net/net.h"
#include "proto/base/list.h"

#define VERBS_MAGIC 0x76636366u /* "fccv" */

enum verbs_kind { VERBS_ASK = 1, VERBS_KEY, VERBS_BEAT, VERBS_END, VERBS_ENDED };

/* A message on the socket after the hello, in both directions. Little-endian. */
struct verbs_msg {
    uint32_t magic;
    uint16_t kind;    /* enum verbs_kind */
    uint16_t bounces; /* KEY: 1: the memory is a bounce buffer, and writes into it must be followed by VERBS_WRITTEN */
    uint64_t comm;
    uint32_t rank, region;
    uint64_t version; /* ASK: net_place.version; KEY repeats it */
    /* The fields from here on are for KEY only. */
    uint64_t address, bytes;
    uint32_t rkey;
    int32_t status; /* 0; -ECANCELED: the communicator has ended, and writes are to be dropped; other values: there is no key */
};
static_assert(sizeof(struct verbs_msg) == 56, "wire");

enum verbs_notice_kind { VERBS_FLAG = 1, VERBS_SIGNAL, VERBS_WRITTEN };

/* A message on the queue pair. Little-endian. A signal is a message, not an RDMA write of 8 bytes: only a completed receive
 * guarantees that earlier writes are in memory. So the receiver stores the signal after the receive has completed. */
struct verbs_notice {
    uint64_t comm;
    uint32_t rank, region;    /* FLAG: region is NET_FLAGS */
    uint64_t bytes, messages; /* the link's counters up to and with this message, as the receiver does not notice RDMA writes */
    uint16_t kind;            /* enum verbs_notice_kind */
    uint16_t zero;
    uint32_t number; /* FLAG: the flag's number; LANDED: the number of rows */
    uint64_t offset; /* SIGNAL, LANDED: offset in the region */
    uint64_t value;  /* FLAG: the epoch; SIGNAL: the word's value; LANDED: bytes of a row */
    uint64_t stride; /* LANDED: bytes from row to row */
};
static_assert(sizeof(struct verbs_notice) == 64, "wire");

/* The socket of a link, with messages that it has not taken yet, and the received part of an incomplete message. */
#define VERBS_OUT 8192
struct verbs_socket {
    int fd, epoll;
    bool waits_out;     /* epoll watches for EPOLLOUT */
    uint32_t nout, nin; /* bytes in `out` and `in` */
    unsigned char out[VERBS_OUT];
    unsigned char in[sizeof(struct verbs_msg) * 64];
};

/* The sources of a link's epoll events. */
enum verbs_source { VERBS_SOCKET = 1, VERBS_CM, VERBS_CQ, VERBS_BELL };

struct verbs_device;
struct verbs_place;
struct verbs_places;

/* One end of a queue pair. */
struct verbs_end {
    int epoll; /* the descriptor that the proxy watches; it watches the descriptors of this end */
    struct verbs_socket socket;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id; /* the queue pair's connection */
    struct verbs_device *device;
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    struct ibv_qp_cap cap;
    unsigned char *memory; /* for what is sent, or received, over the queue pair */
    size_t bytes;          /* of the memory */
    struct ibv_mr *mr;     /* the memory's registration */
};

/* ---- device.c ---- */

/* References on the protection domain of this process at a device, which all links and keys share. */
void verbs_device_hold(struct verbs_device *d); /* takes one more reference */
void verbs_device_put(struct verbs_device *d);
/* Registers memory. access: IBV_ACCESS_ flags. */
int verbs_register(struct verbs_device *d, void *base, size_t bytes, int access, struct ibv_mr **out, struct error *e);
/* Registers a dma-buf: memory of another device. */
int verbs_register_direct(struct verbs_device *d, const struct net_direct *direct, size_t bytes, int access,
                          struct ibv_mr **out, struct error *e);
const char *verbs_device_name(const struct verbs_device *d);

/* Opens an end: socket options, event channel, epoll. Whether it fails or not, verbs_end_close() frees it. The caller closes
 * the socket. */
int verbs_end_open(struct verbs_end *end, int sock, const struct net_options *options, struct error *e);
/* Adds a descriptor to the end's epoll, as that source. */
int verbs_end_watch(const struct verbs_end *end, int fd, enum verbs_source source, struct error *e);
/* verbs_end_stop() destroys the queue pair; verbs_end_drop() frees the rest of the connection. Both may be called
 * repeatedly. */
void verbs_end_stop(struct verbs_end *end);
void verbs_end_drop(struct verbs_end *end);
void verbs_end_close(struct verbs_end *end);
/* Makes the queue pair, and `bytes` of registered memory. The id has been bound to a device. */
int verbs_end_queues(struct verbs_end *end, uint32_t sends, uint32_t receives, size_t bytes, struct error *e);
/* Consumes a completion event. After it the completion queue must be polled. Does nothing if there is no queue any more. */
int verbs_end_notified(struct verbs_end *end, struct error *e);
int verbs_wc_error(const struct ibv_wc *wc, struct error *e);

/* ---- address.c ---- */

/* An address's socket address. scope: the interface's index for a link-local IPv6 address. */
void verbs_address_of(const struct network *at, uint32_t scope, uint16_t port, struct sockaddr_storage *out);
/* The addresses of this node that a link can use (places.h). -ENODEV: the socket's own address is not an RDMA device's. */
int verbs_places_find(int sock, const struct net_options *options, struct verbs_places **out, struct error *e);
void verbs_places_free(struct verbs_places *p);
/* Binds an id to a place's address, with any port. -ENODEV: the address is not an RDMA device's. */
int verbs_bind(struct rdma_cm_id *id, const struct verbs_place *at, struct error *e);
int verbs_usable(int sock, struct error *e);
int verbs_channel_open(struct rdma_event_channel **out, struct error *e);

/* ---- socket.c ---- */

/* Queues a message and sends what the socket takes. Returns 0 or an error. */
int verbs_socket_send(struct verbs_socket *s, struct verbs_msg m, struct error *e);
int verbs_socket_flush(struct verbs_socket *s, struct error *e);
/* Reads what has arrived. Returns the number of messages in `out`; -ESHUTDOWN (without
 * setting e) at the connection's end; or an error. */
#define VERBS_MSGS 64
int verbs_socket_read(struct verbs_socket *s, struct verbs_msg out[VERBS_MSGS], struct error *e);

/* ---- keys.c ---- */

#define VERBS_KEYS 2048u /* a power of two */
struct verbs_key {
    enum { KEY_NONE, KEY_ASKED, KEY_KNOWN } state;
    struct verbs_msg m; /* KEY_ASKED: the question; KEY_KNOWN: the answer */
};
struct verbs_keys {
    uint32_t used;
    struct verbs_key keys[VERBS_KEYS]; /* a hash table with open addressing */
};

/* Finds a place's key. Returns 0 with *out, or -EAGAIN if the key is not known yet; then *ask says whether to send a question
 * now. */
int verbs_keys_find(struct verbs_keys *keys, const struct net_place *place, struct verbs_msg *out, bool *ask);
/* Requests a key before it is needed. Returns true if a question is to be sent. */
bool verbs_keys_want(struct verbs_keys *keys, const struct net_place *place);
void verbs_keys_answer(struct verbs_keys *keys, const struct verbs_msg *m);
/* The communicator has ended at the receiver: writes for its known keys are dropped from now on. */
void verbs_keys_end(struct verbs_keys *keys, uint64_t comm);

/* ---- grant.c ---- */

/* A receiving end's sender as a holder of keys. All functions are called by the receiving end's thread. */
struct verbs_lease;
struct verbs_party {
    int bell; /* an eventfd that rings when a communicator has ended whose keys the sender holds */
    LIST_HEAD(verbs_leases, verbs_lease) has; /* the sender's keys; protected by grants_lock of grant.c */
    unsigned waits;                           /* leases whose end the sender has been told, but has not confirmed */
};

int verbs_party_open(struct verbs_party *p, struct error *e);
/* To be called after the queue pair was destroyed. Revokes keys of ended communicators that no other sender holds. */
void verbs_party_close(struct verbs_party *p);
/* Gives the sender a key for a region that is held (daemon/net/region.h), and registers the region unless it is registered. The
 * caller has set comm, rank and region of *key. */
int verbs_grant(struct verbs_party *p, struct verbs_device *d, const struct net_held *held, struct verbs_msg *key,
                struct error *e);
/* Finds an ended communicator that the sender is to be told of now. Returns false if there is none. */
bool verbs_party_next(struct verbs_party *p, uint64_t now_ns, uint64_t *comm);
/* The sender has confirmed that it writes nothing more for the communicator: ends its leases. -ENOENT: it was not told of the
 * end. */
int verbs_party_ended(struct verbs_party *p, uint64_t comm);
/* The time since which the sender owes such a confirmation; 0: it owes none. */
uint64_t verbs_party_owes(struct verbs_party *p);

/* ---- receive.c ---- */

int verbs_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                        struct net_receiver **out, struct error *e);
int verbs_receive(struct net_receiver *r, uint64_t now_ns);
void verbs_receiver_close(struct net_receiver *r);

extern const struct net_ops net_verbs;

#endif
