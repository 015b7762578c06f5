/* SPDX-License-Identifier: MIT
 *
 * verbs.h - the parts of the verbs transport: verbs.c sends, keys.c knows where to, receive.c
 * receives, notice.c takes its messages, grant.c hands keys out and takes them back, address.c
 * finds the devices' addresses, places.c chooses among them, device.c has what both ends need of the device.
 *
 *   sender                     socket                        receiver
 *                              <-- hello: where, token       listens with rdma_cm at an address in each network that it has adapters in
 *   connects to one, shows the token  ===== queue pair =====        accepts the one that has it; nobody else
 *                              ask: (comm, rank, region) ->  registers that memory, if it has not
 *                              <-- key: address, rkey
 *   RDMA writes of the rows    ===== queue pair =====>       (nothing to do)
 *   where they land: a message ===== queue pair =====>       a receive completes: landed(), of memory that is but a landing place
 *   a flag: a message          ===== queue pair =====>       a receive completes: raise()
 *                              beat ->                       is alive
 *
 * Order. There is one reliable connected queue pair for each link. Its messages are executed at the receiver in the order in
 * which they were posted, and a receive completes only when what came before it on its queue pair lies in memory. So who raises the flag
 * after its completion comes after the rows. Two queue pairs have no order between them, and a flag on one could overtake rows on the
 * other. So where one does not fill its link, or there are several adapters, each of them is a link of its own, a rail, and what has an order
 * takes the same one: all that a rank sends. What stands for several ranks is told on all rails, and counts when it has come over all
 * (daemon/worker/nodes/rails.c).
 *
 * Landing places. RDMA writes leave no trace at the receiver. So where the memory is but a landing place (daemon/net/region.h), which the key
 * says, the sender tells what it has written there, behind the writes and before the flags that follow. When that message's receive
 * has completed the rows lie there, by the same order, and landed() passes them on before the next message is looked at. Where the
 * memory behind the landing place is a device's that the adapter can write (a dma-buf), the key is of that, and nothing lands. A flag's
 * receive completes behind such writes, too; when the device sees them is the matter of who raises flags.
 *
 * Trust. A key opens one region of one communicator of this job to whoever has it. All keys of a job at an adapter are of one protection
 * domain, that no other job uses; so a region has a key for each adapter that others write it through. A region that is removed takes them
 * back at once: its users have agreed that nobody writes it any more (daemon/worker/nodes/nodes.c), and who does so all the same has its queue pair broken by
 * the adapter.
 *
 * The end of a communicator is not agreed: a node gives one up while others still write. If its keys were taken back then, the
 * adapter would break the queue pair, and what all other communicators of the job send over it would be lost. So it goes in two steps:
 *
 *   receiver                               sender
 *   net_comm_end(): forgets the regions
 *     end: comm ------------------------>  posts nothing more for it, drops what it has; what is posted completes
 *     <------------------- ended: comm     when all that was posted up to then has completed
 *   takes the keys back
 *
 * A write completes at its sender when the receiver's adapter has executed and acknowledged it. A packet of it that comes once more
 * is older than what the adapter expects next, and is acknowledged again but not executed. So after `ended` that link writes nothing
 * for the communicator. A sender that does not say it in the time in which it may be silent is given up: its queue pair is destroyed, which stops it, and then the
 * keys are taken back. So a key outlives its communicator by that time at most, whoever misbehaves, and no
 * queue pair of an honest sender breaks.
 *
 * net_comm_end() waits for none of this, and the memory's owner may unmap it at once: a registration holds the pages themselves (they are
 * pinned; a dma-buf is referenced), so they go to nobody else before it ends. What is still written lands there and is seen by
 * nobody.
 */
#ifndef FCC_DAEMON_NET_VERBS_VERBS_H
#define FCC_DAEMON_NET_VERBS_VERBS_H

#include <rdma/rdma_cma.h>
#include <sys/queue.h>

#include "daemon/net/hello.h"
#include "daemon/net/net.h"

#define VERBS_MAGIC 0x76636366u /* "fccv" */

enum verbs_kind { VERBS_ASK = 1, VERBS_KEY, VERBS_BEAT, VERBS_END, VERBS_ENDED };

/* What goes over the socket after the hello, both ways. Little-endian. */
struct verbs_msg {
    uint32_t magic;
    uint16_t kind;  /* enum verbs_kind */
    uint16_t lands; /* KEY: 1: a landing place; VERBS_LANDED is to follow what is written there */
    uint64_t comm;
    uint32_t rank, region;
    uint64_t version; /* of the question: the answer repeats it */
    /* KEY: */
    uint64_t address, bytes;
    uint32_t rkey;
    int32_t status; /* -ECANCELED: the communicator has ended; writes are dropped. Another one: there is no key */
};
static_assert(sizeof(struct verbs_msg) == 56, "wire");

enum verbs_notice_kind { VERBS_FLAG = 1, VERBS_SIGNAL, VERBS_LANDED };

/* A message on the queue pair. Little-endian. A signal is not an RDMA write of 8 bytes: what the writes
 * before it have left in memory is only promised to be there when a receive has completed, and then the receiver stores it. */
struct verbs_notice {
    uint64_t comm;
    uint32_t rank, region;    /* FLAG: NET_FLAGS */
    uint64_t bytes, messages; /* of the link so far, with this one: writes leave no trace at the receiver but for these */
    uint16_t kind;            /* enum verbs_notice_kind */
    uint16_t zero;
    uint32_t number; /* FLAG: the flag's; LANDED: rows */
    uint64_t offset; /* SIGNAL, LANDED */
    uint64_t value;  /* FLAG: the epoch; SIGNAL: the word; LANDED: bytes of a row */
    uint64_t stride; /* LANDED */
};
static_assert(sizeof(struct verbs_notice) == 64, "wire");

/* Messages that the socket has not taken yet, and a part of one that has come. */
#define VERBS_OUT 8192
struct verbs_socket {
    int fd, epoll;
    bool waits_out; /* for EPOLLOUT */
    uint32_t nout, nin;
    unsigned char out[VERBS_OUT];
    unsigned char in[sizeof(struct verbs_msg) * 64];
};

/* What epoll tells of a link's own descriptors. */
enum verbs_source { VERBS_SOCKET = 1, VERBS_CM, VERBS_CQ, VERBS_BELL };

struct verbs_device;
struct verbs_places;

/* One end of a queue pair. */
struct verbs_end {
    int epoll; /* the fd that the proxy waits for */
    struct verbs_socket socket;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id; /* of the queue pair */
    struct verbs_device *device;
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    struct ibv_qp_cap cap;
};

/* ---- device.c ---- */

/* The protection domain of this process at a device: one for all links and keys. */
struct verbs_device *verbs_device_get(struct ibv_context *context, struct error *e);
void verbs_device_hold(struct verbs_device *d); /* once more */
void verbs_device_put(struct verbs_device *d);
/* Register memory. access: IBV_ACCESS_ flags. */
int verbs_register(struct verbs_device *d, void *base, size_t bytes, int access, struct ibv_mr **out, struct error *e);
/* Register memory of another device. */
int verbs_register_direct(struct verbs_device *d, const struct net_direct *direct, size_t bytes, int access,
                          struct ibv_mr **out, struct error *e);
const char *verbs_device_name(const struct verbs_device *d);

/* Prepare an end: socket, channel, epoll. verbs_end_close() takes what there is; the socket stays the caller's. */
int verbs_end_open(struct verbs_end *end, int sock, const struct net_options *options, struct error *e);
/* Have a descriptor of its own told of as that source. */
int verbs_end_watch(const struct verbs_end *end, int fd, enum verbs_source source, struct error *e);
/* Its id and its queue pair are no more. What was registered for them is to go between: the queue pair first (verbs_end_stop()). */
void verbs_end_stop(struct verbs_end *end);
void verbs_end_drop(struct verbs_end *end);
void verbs_end_close(struct verbs_end *end);
/* Its queue pair, once its id is at a device. */
int verbs_end_queues(struct verbs_end *end, uint32_t sends, uint32_t receives, struct error *e);
/* A completion has been announced: take that up; the queue is to be looked at again. There may be no queue any more. */
int verbs_end_notified(struct verbs_end *end, struct error *e);
int verbs_wc_error(const struct ibv_wc *wc, struct error *e);

/* ---- address.c ---- */

/* The address of a socket's local or remote end; IPv4 as such. */
int verbs_address(int sock, bool remote, struct sockaddr_storage *out, struct error *e);
void *verbs_address_bytes(const struct sockaddr_storage *address, size_t *length);
void verbs_address_port(struct sockaddr_storage *address, uint16_t port);
/* A place's address. scope: the interface, if it is a link-local one. */
void verbs_address_of(const struct network *place, uint32_t scope, uint16_t port, struct sockaddr_storage *out);
/* The addresses that a link beside this socket may have here (places.h). -ENODEV: the socket's is no RDMA device's. */
int verbs_places_find(int sock, const struct net_options *options, struct verbs_places **out, struct error *e);
void verbs_places_free(struct verbs_places *p);
/* Give an id an address, any port. -ENODEV: it is no RDMA device's. */
int verbs_bind(struct rdma_cm_id *id, const struct sockaddr_storage *at, struct error *e);
int verbs_usable(int sock, struct error *e);
int verbs_channel_open(struct rdma_event_channel **out, struct error *e);

/* ---- socket.c ---- */

/* Send a message when the socket takes it: 0, or an error. */
int verbs_socket_send(struct verbs_socket *s, struct verbs_msg m, struct error *e);
int verbs_socket_flush(struct verbs_socket *s, struct error *e);
/* Read some. The messages' number, in this host's order in `out`; -ESHUTDOWN, without a text: the end; an error. */
#define VERBS_MSGS 64
int verbs_socket_read(struct verbs_socket *s, struct verbs_msg out[VERBS_MSGS], struct error *e);

/* ---- keys.c ---- */

struct verbs_keys;

struct verbs_keys *verbs_keys_new(void);
void verbs_keys_free(struct verbs_keys *keys);
/* The key of a place: 0 and *out; -EAGAIN: it has not come yet, and *ask says whether it is to be asked for now. */
int verbs_keys_find(struct verbs_keys *keys, const struct net_place *place, struct verbs_msg *out, bool *ask);
/* The same before it is needed: true if it is to be asked for. */
bool verbs_keys_want(struct verbs_keys *keys, const struct net_place *place);
void verbs_keys_answer(struct verbs_keys *keys, const struct verbs_msg *m);
/* The communicator has ended there: its keys are none any more. */
void verbs_keys_end(struct verbs_keys *keys, uint64_t comm);

/* ---- grant.c ---- */

/* Who has been given keys: the sender of a receiving end, whose thread calls all of this. */
struct verbs_lease;
struct verbs_party {
    int bell;                                 /* rings when a communicator has ended of which it has keys */
    LIST_HEAD(verbs_leases, verbs_lease) has; /* grant.c's lock */
    unsigned waits;                           /* leases of which it was told that they end */
};

int verbs_party_open(struct verbs_party *p, struct error *e);
/* Its queue pair is no more: what it alone has had is taken back, if its communicator has ended. */
void verbs_party_close(struct verbs_party *p);
/* Give a key to a region that is held (daemon/net/region.h), registered now if it was not. key: comm, rank and region are there. */
int verbs_grant(struct verbs_party *p, struct verbs_device *d, const struct net_held *held, struct verbs_msg *key,
                struct error *e);
/* A communicator that has ended, of which it is to be told now; false: there is none (any more). */
bool verbs_party_next(struct verbs_party *p, uint64_t now_ns, uint64_t *comm);
/* It has said that it writes no more for it: its keys are taken back. -ENOENT: it was not told that it ends. */
int verbs_party_ended(struct verbs_party *p, uint64_t comm);
/* Since when it owes that; 0: it owes nothing. */
uint64_t verbs_party_owes(struct verbs_party *p);

/* ---- receive.c ---- */

int verbs_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                        struct net_receiver **out, struct error *e);
int verbs_receive(struct net_receiver *r, uint64_t now_ns);
void verbs_receiver_close(struct net_receiver *r);

extern const struct net_ops net_verbs;

#endif
