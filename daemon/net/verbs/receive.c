/* SPDX-License-Identifier: MIT
 *
 * receive.c - the receiving end over RDMA verbs (verbs.h). Rows arrive by RDMA writes; this end hands out keys and receives
 * messages.
 *
 * End of the connection. A sender that closes the link waits until all its requests have been acknowledged, then closes its
 * socket. So when this end sees the socket's end, every message has completed here, and polling the queue once more finds them
 * all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/net/verbs/places.h"
#include "daemon/net/verbs/receiver.h"
#include "proto/base/clock.h"

#define RECEIVES 1024u        /* posted receives: messages that may be in flight */
#define SLOT 64u              /* bytes of each receive buffer: a cache line */
#define POLL 32               /* completions of one poll */
#define TURNS 16              /* iterations of one receive() */
#define GRACE_NS 500000000ull /* how long the socket's end may come after the queue pair's end */
#define RNR_TIMER 10          /* 0.16 ms */
static_assert(sizeof(struct verbs_notice) <= SLOT, "a message fits");

static struct verbs_receiver *verbs_of(struct net_receiver *r)
{
    return (struct verbs_receiver *)r; /* `receiver` is the first member */
}

/* ---- messages ---- */

static int slots_post(struct verbs_receiver *v, const uint64_t slots[], int n)
{
    struct ibv_recv_wr wrs[POLL], *bad;
    struct ibv_sge sges[POLL];

    for (int i = 0; i < n; i++) {
        sges[i] = (struct ibv_sge){(uintptr_t)(v->end.memory + slots[i] * SLOT), SLOT, v->end.mr->lkey};
        wrs[i] =
            (struct ibv_recv_wr){.wr_id = slots[i], .sg_list = &sges[i], .num_sge = 1, .next = i + 1 < n ? &wrs[i + 1] : NULL};
    }
    int error = n ? ibv_post_recv(v->end.id->qp, wrs, &bad) : 0;
    return error ? error_set(&v->receiver.error, -EIO, "RDMA: the device refuses receive requests: %s", strerror(error)) : 0;
}

/* Handles some of the messages that have arrived. Returns the number of completions, or an error. */
static int notices_take(struct verbs_receiver *v)
{
    struct ibv_wc wc[POLL];
    uint64_t slots[POLL];
    struct verbs_notice notice;
    int taken = 0, status = 0;

    if (!v->end.cq || v->receiver.error.status)
        return 0;
    int n = ibv_poll_cq(v->end.cq, POLL, wc);
    if (n < 0)
        return error_set(&v->receiver.error, -EIO, "RDMA: the completion queue is in error");
    for (int i = 0; i < n && !status; i++) {
        if (wc[i].status == IBV_WC_WR_FLUSH_ERR) { /* not a message: the queue pair has ended */
            v->ended_ns = v->ended_ns ? v->ended_ns : clock_ns();
            continue;
        }
        if (wc[i].status != IBV_WC_SUCCESS)
            return verbs_wc_error(&wc[i], &v->receiver.error);
        if (wc[i].opcode != IBV_WC_RECV || wc[i].byte_len != sizeof(notice))
            return net_refuse(&v->receiver, -EPROTO, "a message of a wrong size");
        memcpy(&notice, v->end.memory + wc[i].wr_id * SLOT, sizeof(notice));
        status = verbs_notice_take(v, notice);
        slots[taken++] = wc[i].wr_id;
    }
    if (!status && !v->ended_ns)
        status = slots_post(v, slots, taken);
    return status ? status : n;
}

/* ---- keys ---- */

static int ask_answer(struct verbs_receiver *v, struct verbs_msg m)
{
    struct net_regions *regions = v->sink->regions;
    struct error *e = &v->receiver.error;
    struct net_held held;

    m.kind = VERBS_KEY;
    if (!v->end.device)
        return net_refuse(&v->receiver, -EPROTO, "a question before the queue pair");
    m.status = m.region == NET_FLAGS ? -ENOENT : net_regions_hold(regions, m.comm, m.rank, m.region, &held);
    if (m.status == 0) {
        struct error why = {0};
        m.status = verbs_grant(&v->party, v->end.device, &held, &m, &why);
        net_regions_release(regions);
        if (m.status)
            *e = why;
    } else if (m.status != -ECANCELED) {
        (void)net_refuse(&v->receiver, -EPROTO, "a write into a region that is not known here");
    }
    int broken = e->status;
    struct error ignored;
    int status = verbs_socket_send(&v->end.socket, m, broken ? &ignored : e); /* answer even if the link is broken now */
    return broken ? broken : status;
}

/* Tells the sender of communicators that have ended here and whose keys it holds. */
static int ends_tell(struct verbs_receiver *v, uint64_t now_ns)
{
    struct verbs_msg m = {.kind = VERBS_END};
    struct net_held held;
    uint64_t rings;
    int status = 0;

    if (read(v->party.bell, &rings, sizeof(rings)) < 0 && errno != EAGAIN)
        return error_set(&v->receiver.error, -errno, "cannot read an eventfd: %m");
    /* net_comm_end() holds the registry exclusively while it ends a communicator's grants, one after the other. Holding the
     * registry here waits for that; after it all of them have ended, and none is added. So the sender is told of each
     * communicator once. */
    if (!net_regions_hold(v->sink->regions, 0, 0, NET_FLAGS, &held))
        net_regions_release(v->sink->regions);
    while (!status && verbs_party_next(&v->party, now_ns, &m.comm))
        status = verbs_socket_send(&v->end.socket, m, &v->receiver.error);
    return status;
}

static int ended_take(struct verbs_receiver *v, uint64_t comm)
{
    return verbs_party_ended(&v->party, comm) ? net_refuse(&v->receiver, -EPROTO, "an answer to a question that was not asked")
                                              : 0;
}

static int socket_take(struct verbs_receiver *v, uint64_t now_ns)
{
    struct error *e = &v->receiver.error;
    struct verbs_msg m[VERBS_MSGS];
    struct error refusal = {0};
    int n = verbs_socket_read(&v->end.socket, m, &refusal), status = 0;

    if (n == -ESHUTDOWN) {
        v->has_ended = true;
        return 0;
    }
    if (!v->receiver.heard &&
        (n > 0 || n == -EPROTO)) { /* also to a sender over another transport, which then learns this one */
        v->receiver.heard = true;
        status = net_hello_send(v->end.socket.fd, NET_VERBS, &v->hello, e);
    }
    if (n < 0)
        return error_set(e, n, "%s", refusal.text);
    if (n > 0)
        net_heard(&v->silence, now_ns);
    for (int i = 0; i < n && !status; i++)
        status = m[i].kind == VERBS_ASK     ? ask_answer(v, m[i])
                 : m[i].kind == VERBS_BEAT  ? 0
                 : m[i].kind == VERBS_ENDED ? ended_take(v, m[i].comm)
                                            : net_refuse(&v->receiver, -EPROTO, "a message of an unknown kind");
    return status ? status : verbs_socket_flush(&v->end.socket, e);
}

/* ---- the connection ---- */

static bool token_is_right(const struct verbs_receiver *v, const struct rdma_conn_param *param)
{
    const unsigned char *got = param->private_data;
    unsigned char differs = 0;

    if (!got || param->private_data_len < NET_TOKEN_BYTES)
        return false;
    for (int i = 0; i < NET_TOKEN_BYTES; i++) /* in constant time */
        differs |= (unsigned char)(got[i] ^ v->hello.token[i]);
    return differs == 0;
}

static int queue_pair_make(struct verbs_receiver *v)
{
    struct error *e = &v->receiver.error;
    struct rdma_conn_param param = {.rnr_retry_count = 7};
    uint64_t slots[POLL];
    int status = verbs_end_queues(&v->end, 1, RECEIVES, RECEIVES * SLOT, e);

    if (status)
        return status;
    uint32_t depth = v->end.cap.max_recv_wr < RECEIVES ? v->end.cap.max_recv_wr : RECEIVES;
    for (uint32_t at = 0; at < depth && !status;) {
        int n = 0;
        while (n < POLL && at < depth)
            slots[n++] = at++;
        status = slots_post(v, slots, n);
    }
    if (!status && ibv_req_notify_cq(v->end.cq, 0))
        status = error_set(e, -EIO, "RDMA: the device announces no completions");
    if (!status && rdma_accept(v->end.id, &param))
        status = error_set(e, -errno, "rdma_accept: %m");
    return status;
}

static void queue_pair_drop(struct verbs_receiver *v)
{
    verbs_end_drop(&v->end);
    v->ended_ns = 0;
}

static void listeners_close(struct verbs_receiver *v)
{
    while (v->nlisteners)
        (void)rdma_destroy_id(v->listeners[--v->nlisteners]);
}

/* Handles a connection request. Until a queue pair is known to be established at both ends, its sender may give it up and try
 * another address. So a new request replaces the queue pair. */
static int request_take(struct verbs_receiver *v, struct rdma_cm_id *id, bool is_welcome)
{
    if (!is_welcome || !v->nlisteners) {
        (void)rdma_reject(id, NULL, 0);
        (void)rdma_destroy_id(id);
        return 0;
    }
    queue_pair_drop(v);
    v->end.id = id;
    return queue_pair_make(v);
}

/* Sets how soon a sender tries again if no receive was posted; rdma_cm's default is the longest time, 0.66 s. The queue pair
 * works since before the ESTABLISHED event, so it may have ended already. */
static int timer_set(struct verbs_receiver *v)
{
    struct ibv_qp_attr attr = {.min_rnr_timer = RNR_TIMER};
    struct ibv_qp_init_attr ignored;
    int error = ibv_modify_qp(v->end.id->qp, &attr, IBV_QP_MIN_RNR_TIMER);

    if (!error)
        return 0;
    if (!ibv_query_qp(v->end.id->qp, &attr, IBV_QP_STATE, &ignored) && attr.qp_state == IBV_QPS_ERR) {
        v->ended_ns = v->ended_ns ? v->ended_ns : clock_ns();
        return 0;
    }
    return error_set(&v->receiver.error, -error, "RDMA: cannot set a queue pair's timer: %s", strerror(error));
}

static int cm_take(struct verbs_receiver *v)
{
    struct error *e = &v->receiver.error;
    struct rdma_cm_event *event;

    if (rdma_get_cm_event(v->end.channel, &event))
        return errno == EAGAIN ? 0 : error_set(e, -errno, "rdma_get_cm_event: %m");
    enum rdma_cm_event_type what = event->event;
    struct rdma_cm_id *id = event->id;
    int code = event->status;
    bool is_welcome = what == RDMA_CM_EVENT_CONNECT_REQUEST && token_is_right(v, &event->param.conn);
    (void)rdma_ack_cm_event(event);
    if (what != RDMA_CM_EVENT_CONNECT_REQUEST && id != v->end.id)
        return 0; /* an event of a listener: its device or address is gone. A sender that tries it will try another address */
    switch (what) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return request_take(v, id, is_welcome);
    case RDMA_CM_EVENT_ESTABLISHED:
        listeners_close(v); /* no other connection is expected */
        return timer_set(v);
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_REJECTED:
        if (what == RDMA_CM_EVENT_REJECTED && v->nlisteners)
            queue_pair_drop(v); /* the sender gave up before it saw that this end accepted; it may connect again */
        else
            v->ended_ns = v->ended_ns ? v->ended_ns : clock_ns();
        return 0;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return 0;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return error_set(e, -ENODEV, "RDMA: the device has been removed");
    default:
        return error_set(e, -ECONNABORTED, "RDMA: no queue pair: %s (status %d)", rdma_event_str(what), code);
    }
}

/* ---- all of it ---- */

/* Handles events of the socket, the connection manager, the completion queue and the bell. Returns their number, or an
 * error. */
static int sources_take(struct verbs_receiver *v, uint64_t now_ns)
{
    struct epoll_event events[4];
    int n = epoll_wait(v->end.epoll, events, 4, 0), status = 0;

    for (int i = 0; i < n && !status; i++) {
        if (events[i].data.u32 == VERBS_CQ) {
            status = verbs_end_notified(&v->end, &v->receiver.error);
            if (!status && v->end.cq && ibv_req_notify_cq(v->end.cq, 0)) /* the caller polls the queue after this */
                status = error_set(&v->receiver.error, -EIO, "RDMA: the device announces no completions");
        } else {
            status = events[i].data.u32 == VERBS_CM     ? cm_take(v)
                     : events[i].data.u32 == VERBS_BELL ? ends_tell(v, now_ns)
                                                        : socket_take(v, now_ns);
        }
        if (v->has_ended)
            return 1; /* stop here: at its end the socket stays readable */
    }
    return status ? status : n;
}

/* To be called when nothing has arrived: checks time limits, and sets when the next check is due. */
static int quiet(struct verbs_receiver *v, uint64_t now_ns)
{
    struct net_receiver *r = &v->receiver;
    uint64_t owes = verbs_party_owes(&v->party);

    if (net_is_silent(&v->silence, now_ns))
        return error_set(&r->error, -ETIMEDOUT, "nothing has come from there for %llu ms",
                         (unsigned long long)(v->silence.limit_ns / 1000000));
    if (owes && now_ns > owes && now_ns - owes > v->silence.limit_ns)
        return error_set(&r->error, -ETIMEDOUT,
                         "it has not said for %llu ms that it writes no more for a communicator that has ended here",
                         (unsigned long long)(v->silence.limit_ns / 1000000));
    r->due_ns = net_look_due(&v->silence);
    if (owes && owes + v->silence.limit_ns < r->due_ns)
        r->due_ns = owes + v->silence.limit_ns;
    if (!v->ended_ns)
        return 0;
    if (now_ns > v->ended_ns && now_ns - v->ended_ns > GRACE_NS)
        return error_set(&r->error, -ECONNRESET,
                         "RDMA: the queue pair has come to its end, and its sender has not: a write into memory that was taken "
                         "back does that; look at the other node's log");
    if (v->ended_ns + GRACE_NS < r->due_ns)
        r->due_ns = v->ended_ns + GRACE_NS;
    return 0;
}

int verbs_receive(struct net_receiver *r, uint64_t now_ns)
{
    struct verbs_receiver *v = verbs_of(r);

    for (int turn = 0; turn < TURNS; turn++) {
        bool was_over = v->has_ended; /* then all messages are in the completion queue */
        int n = notices_take(v);
        if (n < 0)
            return n;
        if (n > 0) {
            net_heard(&v->silence, now_ns);
            continue;
        }
        if (was_over)
            return error_set(&r->error, -ESHUTDOWN, "the other end has closed the connection");
        n = sources_take(v, now_ns);
        if (n < 0)
            return n;
        if (n == 0)
            return quiet(v, now_ns);
    }
    return 1;
}

/* ---- coming and going ---- */

static void receiver_free(struct verbs_receiver *v)
{
    verbs_end_stop(&v->end);
    verbs_party_close(&v->party);
    listeners_close(v);
    verbs_end_close(&v->end);
    free(v);
}

/* Listens at one place, and lists it in the hello. */
static int place_listen(struct verbs_receiver *v, const struct verbs_place *place, struct error *e)
{
    struct net_hello_place *listed = &v->hello.places[v->nlisteners];
    struct rdma_cm_id *id;

    if (rdma_create_id(v->end.channel, &id, NULL, RDMA_PS_TCP))
        return error_set(e, -errno, "rdma_create_id: %m");
    int status = verbs_bind(id, place, e);
    if (!status && rdma_listen(id, 4))
        status = error_set(e, -errno, "rdma_listen: %m");
    if (status) {
        (void)rdma_destroy_id(id);
        return status;
    }
    *listed =
        (struct net_hello_place){.family = place->at.family, .prefix = place->at.prefix, .port = ntohs(rdma_get_src_port(id))};
    memcpy(listed->address, place->at.address, sizeof(listed->address));
    v->listeners[v->nlisteners++] = id;
    return 0;
}

static int listen_begin(struct verbs_receiver *v, const struct verbs_places *places, struct error *e)
{
    uint8_t offered[NET_HELLO_PLACES];
    uint32_t n = places_offer(places, offered);
    int status = 0;

    if (getrandom(v->hello.token, sizeof(v->hello.token), 0) != (ssize_t)sizeof(v->hello.token))
        return error_set(e, -EIO, "no random bytes: %m");
    v->hello.token[NET_TOKEN_BYTES - 1] |= 1; /* the token arrives padded with zeros, so it must not end with one */
    for (uint32_t i = 0; i < n && !status; i++) {
        struct error gone; /* an address may have been removed meanwhile; only the socket's own is needed */
        status = place_listen(v, &places->of[offered[i]], i ? &gone : e);
        status = i ? 0 : status;
    }
    v->hello.nplaces = v->nlisteners;
    return status;
}

int verbs_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                        struct net_receiver **out, struct error *e)
{
    struct verbs_receiver *v = calloc(1, sizeof(*v));
    struct verbs_places *places = NULL;

    if (!v)
        return error_set(e, -ENOMEM, "no memory for a link");
    v->end.epoll = v->party.bell = -1;
    v->sink = sink;
    int status = verbs_end_open(&v->end, sock, options, e);
    if (!status)
        status = verbs_party_open(&v->party, e);
    if (!status)
        status = verbs_end_watch(&v->end, v->party.bell, VERBS_BELL, e);
    if (!status)
        status = verbs_places_find(sock, options, &places, e);
    if (!status)
        status = listen_begin(v, places, e);
    verbs_places_free(places);
    if (status) {
        receiver_free(v);
        return status;
    }
    v->silence.limit_ns = options->silent_ms * 1000000ull;
    net_heard(&v->silence, clock_ns());
    v->receiver =
        (struct net_receiver){.ops = &net_verbs, .fd = v->end.epoll, .due_ns = net_look_due(&v->silence), .counts = counts};
    *out = &v->receiver;
    return 0;
}

void verbs_receiver_close(struct net_receiver *r)
{
    struct verbs_receiver *v = verbs_of(r);
    int sock = v->end.socket.fd;

    receiver_free(v);
    (void)shutdown(sock, SHUT_RDWR);
    (void)close(sock);
}
