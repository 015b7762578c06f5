/* SPDX-License-Identifier: MIT
 *
 * net_verbs.h - the parts of the verbs transport: net_verbs.c sends, net_verbs_keys.c knows where to, net_verbs_receive.c
 * receives, net_verbs_device.c has what both need of an RDMA device.
 *
 *   sender                     socket                        receiver
 *                              <-- hello: port, token        listens with rdma_cm at the socket's local address
 *   connects, shows the token  ===== queue pair =====        accepts the one that has it; nobody else
 *                              ask: (comm, rank, region) ->  registers that memory, if it has not
 *                              <-- key: address, rkey
 *   RDMA writes of the rows    ===== queue pair =====>       (nothing to do)
 *   a flag: a message          ===== queue pair =====>       a receive completes: raise()
 *                              beat ->                       is alive
 *
 * Order. There is one reliable connected queue pair for each link. Its messages are executed at the receiver in the order in
 * which they were posted, and a receive completes only when what came before it on its queue pair lies in memory. So who raises the flag
 * after its completion comes after the rows. Two queue pairs would have no order between them, and a flag could overtake rows: one that
 * does not fill its link needs more of them only if each flag waits for the rows on all others.
 *
 * Trust. A key opens one region of one communicator of this job to whoever has it, for as long as the region is known
 * (net_region.h): it is taken back before a removal returns. All keys of a job are of one protection domain, that no other job uses.
 */
#ifndef FCCD_NET_VERBS_H
#define FCCD_NET_VERBS_H

#include <rdma/rdma_cma.h>

#include "net.h"
#include "net_hello.h"

#define VERBS_MAGIC 0x76636366u /* "fccv" */

enum verbs_kind { VERBS_ASK = 1, VERBS_KEY, VERBS_BEAT };

/* What goes over the socket after the hello, both ways. Little-endian. */
struct verbs_msg {
    uint32_t magic;
    uint16_t kind; /* enum verbs_kind */
    uint16_t zero;
    uint64_t comm;
    uint32_t rank, region;
    uint64_t version; /* of the question: the answer repeats it */
    /* KEY: */
    uint64_t address, bytes;
    uint32_t rkey;
    int32_t status; /* -ECANCELED: the communicator has ended; writes are dropped. Another one: there is no key */
};
static_assert(sizeof(struct verbs_msg) == 56, "wire");

/* A flag, as a message on the queue pair. Little-endian. */
struct verbs_flag {
    uint64_t comm;
    uint32_t rank, flag;
    uint64_t epoch;
    uint64_t bytes, messages; /* of the link so far, with this one: writes leave no trace at the receiver but for these */
};
static_assert(sizeof(struct verbs_flag) == 40, "wire");

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
enum verbs_source { VERBS_SOCKET = 1, VERBS_CM, VERBS_CQ };

struct verbs_device;

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

/* ---- net_verbs_device.c ---- */

/* The protection domain of this process at a device: one for all links and keys. */
struct verbs_device *verbs_device_get(struct ibv_context *context, struct error *e);
void verbs_device_put(struct verbs_device *d);
/* For what a device has registered of a region that is held (net_region.h): registered now, if it was not. */
int verbs_grant(struct verbs_device *d, const struct net_held *held, struct verbs_msg *key, struct error *e);
/* Register memory of this end's own. */
int verbs_register(struct verbs_device *d, void *base, size_t bytes, struct ibv_mr **out, struct error *e);

/* The address of a socket's local or remote end; IPv4 as such. */
int verbs_address(int sock, bool remote, struct sockaddr_storage *out, struct error *e);
/* Give an id the local address of a socket, any port. -ENODEV: it is no RDMA device's. */
int verbs_bind(struct rdma_cm_id *id, int sock, struct error *e);
int verbs_usable(int sock, struct error *e);

/* Prepare an end: socket, channel, epoll. verbs_end_close() takes what there is; the socket stays the caller's. */
int verbs_end_open(struct verbs_end *end, int sock, const struct net_options *options, struct error *e);
void verbs_end_close(struct verbs_end *end);
/* Its queue pair, once its id is at a device. */
int verbs_end_queues(struct verbs_end *end, uint32_t sends, uint32_t receives, struct error *e);
/* A completion has been announced: take that up; the queue is to be looked at again. */
int verbs_end_notified(struct verbs_end *end, struct error *e);
int verbs_wc_error(const struct ibv_wc *wc, struct error *e);

/* ---- net_verbs_socket.c ---- */

/* Send a message when the socket takes it: 0, or an error. */
int verbs_socket_send(struct verbs_socket *s, struct verbs_msg m, struct error *e);
int verbs_socket_flush(struct verbs_socket *s, struct error *e);
/* Read some. The messages' number, in this host's order in `out`; -ESHUTDOWN, without a text: the end; an error. */
#define VERBS_MSGS 64
int verbs_socket_read(struct verbs_socket *s, struct verbs_msg out[VERBS_MSGS], struct error *e);

/* ---- net_verbs_keys.c ---- */

struct verbs_keys;

struct verbs_keys *verbs_keys_new(void);
void verbs_keys_free(struct verbs_keys *keys);
/* The key of a place: 0 and *out; -EAGAIN: it has not come yet, and *ask says whether it is to be asked for now. */
int verbs_keys_find(struct verbs_keys *keys, const struct net_place *place, struct verbs_msg *out, bool *ask);
/* The same before it is needed: true if it is to be asked for. */
bool verbs_keys_want(struct verbs_keys *keys, const struct net_place *place);
void verbs_keys_answer(struct verbs_keys *keys, const struct verbs_msg *m);

/* ---- net_verbs_receive.c ---- */

int verbs_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                        struct net_receiver **out, struct error *e);
int verbs_receive(struct net_receiver *r, uint64_t now_ns);
void verbs_receiver_close(struct net_receiver *r);

extern const struct net_ops net_verbs;

#endif
