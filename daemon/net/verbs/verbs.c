/* SPDX-License-Identifier: MIT
 *
 * verbs.c - the sending end over RDMA verbs (verbs.h).
 *
 * Frames are queued in a ring. progress() turns the first frames into a list of work requests and posts it at once: one
 * doorbell, and one completion, of the last request. Short rows and flags go inline. Other rows are copied into `ring`, memory
 * that is registered once; as completions come in the order of requests, each one frees the ring up to its list's end. So a
 * frame does not need its source any more when it has been posted. (Sending from the source itself would need a registration
 * for as long as the source lives: bounce buffers are short-lived, and most of their pages are never touched. The tcp
 * transport makes a copy, too.)
 *
 * The queue of work requests and the ring are bounded: a frame that finds no room waits for a completion.
 */
#include "daemon/net/verbs/link.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define PIECE (256u << 10) /* the most bytes of one work request */
#define SETUP_MS 10000u    /* how long making the queue pair may take */
#define LINGER_MS 300      /* how long closing a link waits for its requests */

static struct verbs_link *verbs_of(struct net_link *l)
{
    return (struct verbs_link *)l; /* `link` is the first member */
}

static int key_ask(struct verbs_link *v, const struct net_place *to)
{
    struct verbs_msg m = {.kind = VERBS_ASK, .comm = to->comm, .rank = to->rank, .region = to->region, .version = to->version};

    return verbs_socket_send(&v->end.socket, m, &v->link.error);
}

/* Asks for a write's key: the answer arrives while earlier frames are sent. */
static int verbs_queued(struct net_link *l, const struct net_item *item)
{
    struct verbs_link *v = verbs_of(l);
    bool ask = item->from && v->state == READY && v->end.socket.nout < VERBS_OUT / 2 && verbs_keys_want(&v->keys, &item->to);

    return ask ? key_ask(v, &item->to) : 0;
}

/* ---- lists of work requests ---- */

static bool list_has_room(const struct verbs_link *v)
{
    return v->nwrs < VERBS_LIST && v->posted - v->done + v->nwrs < v->end.cap.max_send_wr;
}

/* Takes contiguous bytes of the ring; NULL: no room. If the rest up to the ring's end is too small, it is skipped, and freed
 * together with these bytes. */
static unsigned char *ring_take(struct verbs_link *v, uint64_t bytes)
{
    uint64_t at = v->ring_posted & (VERBS_RING - 1), skip = VERBS_RING - at < bytes ? VERBS_RING - at : 0;

    if (v->ring_posted + skip + bytes - v->ring_done > VERBS_RING)
        return NULL;
    v->ring_posted += skip + bytes;
    return v->end.memory + ((v->ring_posted - bytes) & (VERBS_RING - 1));
}

/* Appends a request for the bytes at `from`, inline or with a copy in the ring. The bytes must not change before the list is
 * posted. NULL: no room. */
static struct ibv_send_wr *list_add(struct verbs_link *v, const void *from, uint32_t bytes)
{
    bool is_inline = bytes <= v->end.cap.max_inline_data;
    unsigned char *copy = is_inline ? NULL : ring_take(v, bytes);

    if (!is_inline && !copy)
        return NULL;
    if (copy)
        memcpy(copy, from, bytes);
    struct ibv_sge *sge = &v->sges[v->nwrs];
    *sge = (struct ibv_sge){copy ? (uintptr_t)copy : (uintptr_t)from, bytes, copy ? v->end.mr->lkey : 0};
    struct ibv_send_wr *wr = &v->wrs[v->nwrs];
    *wr = (struct ibv_send_wr){.wr_id = v->posted + v->nwrs + 1, .sg_list = sge, .num_sge = 1};
    wr->send_flags = is_inline ? IBV_SEND_INLINE : 0;
    if (v->nwrs)
        v->wrs[v->nwrs - 1].next = wr;
    v->nwrs++;
    v->marks[wr->wr_id % VERBS_SENDS] = v->ring_posted;
    return wr;
}

/* Appends a message, and fills in its kind, address and counters. Returns 1, or 0: no room. v->bytes has the bytes of earlier
 * writes already. A LANDED message stands for its write in v->messages. */
static int list_notice(struct verbs_link *v, enum verbs_notice_kind kind, const struct net_item *item, struct verbs_notice n)
{
    struct verbs_notice *there = &v->notices[v->nwrs];

    if (!list_has_room(v))
        return 0;
    n.kind = (uint16_t)kind;
    n.comm = item->to.comm;
    n.rank = item->to.rank;
    n.region = item->to.region;
    n.bytes = v->bytes + sizeof(n);
    n.messages = v->messages + 1;
    *there = n;
    struct ibv_send_wr *wr = list_add(v, there, sizeof(n));
    if (!wr)
        return 0;
    wr->opcode = IBV_WR_SEND;
    v->bytes += sizeof(n);
    v->messages++;
    return 1;
}

/* Appends the message for a flag or a signal. */
static int list_signal(struct verbs_link *v, const struct net_item *item)
{
    struct verbs_notice n = {.value = item->value};

    if (item->to.region != NET_FLAGS) {
        n.offset = item->to.offset;
        return list_notice(v, VERBS_SIGNAL, item, n);
    }
    n.number = (uint32_t)item->to.offset;
    return list_notice(v, VERBS_FLAG, item, n);
}

/* Appends the message that describes a write into a bounce buffer. */
static int list_written(struct verbs_link *v, const struct net_item *item)
{
    return list_notice(
        v, VERBS_WRITTEN, item,
        (struct verbs_notice){
            .number = item->area.rows, .offset = item->to.offset, .value = item->area.row_bytes, .stride = item->area.stride});
}

/* Appends requests for a write. Returns 1: the whole payload (and its LANDED message) is in lists, or was dropped; 0: no room,
 * or the key is not known yet; or an error. */
static int list_put(struct verbs_link *v, const struct net_item *item)
{
    struct error *e = &v->link.error;
    struct verbs_msg key;
    uint64_t length;
    bool ask;

    if (verbs_keys_find(&v->keys, &item->to, &key, &ask))
        return ask ? key_ask(v, &item->to) : 0;
    if (key.status == -ECANCELED)
        return 1; /* the communicator has ended: drop the write */
    if (key.status)
        return error_set(e, key.status, "the other end has no memory for what is sent: %s; look at its log",
                         strerror(-key.status));
    if (net_area_check(&item->area, item->to.offset, key.bytes, &length))
        return error_set(e, -EPROTO, "a write past the end of a region of %llu bytes", (unsigned long long)key.bytes);
    while (v->first_at < length) {
        uint64_t row = v->first_at / item->area.row_bytes, inside = v->first_at % item->area.row_bytes;
        uint64_t bytes = item->area.row_bytes - inside, from = row * item->area.stride + inside;
        if (bytes > PIECE)
            bytes = PIECE;
        struct ibv_send_wr *wr = list_has_room(v) ? list_add(v, item->from + from, (uint32_t)bytes) : NULL;
        if (!wr)
            return 0;
        wr->opcode = IBV_WR_RDMA_WRITE;
        wr->wr.rdma.remote_addr = key.address + item->to.offset + from;
        wr->wr.rdma.rkey = key.rkey;
        v->first_at += bytes;
        v->bytes += bytes;
    }
    if (key.bounces)
        return list_written(v, item);
    v->messages++;
    return 1;
}

static int list_post(struct verbs_link *v)
{
    struct ibv_send_wr *bad;

    v->wrs[v->nwrs - 1].send_flags |= IBV_SEND_SIGNALED;
    int error = ibv_post_send(v->end.id->qp, v->wrs, &bad);
    if (error)
        return error_set(&v->link.error, -EIO, "RDMA: the device refuses work requests: %s", strerror(error));
    v->posted += v->nwrs;
    v->nwrs = 0;
    return 0;
}

/* Builds and posts the next list. Returns 1 if there was something to do; 0: no room, no key, or no frame; or an error. */
static int list_send(struct verbs_link *v)
{
    uint64_t bytes = v->bytes, messages = v->messages, flushed = v->link.flushed;
    int status = 1;

    v->nwrs = 0;
    while (flushed < v->link.queued && list_has_room(v)) {
        const struct net_item *item = &v->link.items[flushed & (v->link.queue - 1)];
        status = item->from ? list_put(v, item) : list_signal(v, item);
        if (status <= 0)
            break;
        flushed++;
        v->first_at = 0;
    }
    if (status < 0)
        return status;
    bool any = v->nwrs > 0 || flushed > v->link.flushed;
    status = v->nwrs ? list_post(v) : 0;
    if (status)
        return status;
    v->link.flushed = flushed; /* the frames' bytes are in the ring or inline in the requests */
    net_count(&v->link.counts->bytes, v->bytes - bytes);
    net_count(&v->link.counts->messages, v->messages - messages);
    return any;
}

/* ---- completions ---- */

int verbs_completions_take(struct verbs_link *v)
{
    struct ibv_wc wc[16];
    int total = 0;

    for (;;) {
        int n = ibv_poll_cq(v->end.cq, 16, wc);
        if (n < 0)
            return error_set(&v->link.error, -EIO, "RDMA: the completion queue is in error");
        for (int i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS)
                return verbs_wc_error(&wc[i], &v->link.error);
            v->done = wc[i].wr_id;
            v->ring_done = v->marks[wc[i].wr_id % VERBS_SENDS];
        }
        total += n;
        if (n < 16)
            return total;
    }
}

/* Requests an event for the next completion, then polls once more, as one may have come before the request. Returns as
 * verbs_completions_take(). */
static int completions_await(struct verbs_link *v)
{
    if (ibv_req_notify_cq(v->end.cq, 0))
        return error_set(&v->link.error, -EIO, "RDMA: the device announces no completions");
    return verbs_completions_take(v);
}

int verbs_end_take(struct verbs_link *v, uint64_t comm)
{
    if (v->ends_next - v->ends_first == VERBS_ENDS)
        return error_set(&v->link.error, -EPROTO, "the other end has ended more than %u communicators at a time", VERBS_ENDS);
    verbs_keys_end(&v->keys, comm);
    v->ends[v->ends_next % VERBS_ENDS].comm = comm;
    v->ends[v->ends_next++ % VERBS_ENDS].posted = v->posted;
    return 0;
}

int verbs_ends_answer(struct verbs_link *v)
{
    struct verbs_msg m = {.kind = VERBS_ENDED};
    int n = 1;

    while (v->ends_first != v->ends_next) {
        uint64_t at = v->ends_first % VERBS_ENDS;
        if (v->done < v->ends[at].posted && n == 0)
            return 0; /* the next completion will be an event */
        if (v->done < v->ends[at].posted) {
            n = completions_await(v);
            if (n < 0)
                return n;
            continue;
        }
        m.comm = v->ends[at].comm;
        v->ends_first++;
        int status = verbs_socket_send(&v->end.socket, m, &v->link.error);
        if (status)
            return status;
    }
    return 0;
}

/* Nothing can be posted before a completion or an answer comes. Returns 1 if there was a completion; 0: the link is blocked
 * now; or an error. */
static int block(struct verbs_link *v)
{
    if (v->state == READY && v->posted != v->done) {
        int n = completions_await(v);
        if (n)
            return n;
    }
    v->link.is_blocked = true;
    return 0;
}

static int send_some(struct verbs_link *v)
{
    int status = verbs_completions_take(v);

    if (status < 0)
        return status;
    status = verbs_ends_answer(v);
    if (status)
        return status;
    while (v->link.queued != v->link.flushed) {
        status = list_send(v);
        if (status == 0)
            status = block(v);
        if (status <= 0)
            return status;
    }
    return 0;
}

static int verbs_progress(struct net_link *l, uint64_t now_ns)
{
    struct verbs_link *v = verbs_of(l);
    int status = 0;

    if (now_ns >= l->due_ns) {
        status = verbs_socket_send(&v->end.socket, (struct verbs_msg){.kind = VERBS_BEAT}, &l->error);
        l->due_ns = now_ns + v->beat_ns;
    }
    if (!status && v->state == READY)
        status = send_some(v);
    else if (!status && verbs_connect_late(v, now_ns))
        status = l->error.status;
    else if (!status && now_ns - v->opened_ns > SETUP_MS * 1000000ull && now_ns > v->opened_ns)
        status = error_set(&l->error, -ETIMEDOUT, "the queue pair was not established within %u ms: %s", SETUP_MS,
                           v->state == WAITS_HELLO
                               ? "the other end has said nothing: is it of the same version of fccd?"
                               : "look at the link (rdma link) and whether UDP port 4791 gets through, for RoCE");
    else if (!status)
        l->is_blocked = true;
    if (status < 0)
        return status;
    return l->queued != l->flushed || v->posted != v->done;
}

/* ---- coming and going ---- */

static void link_free(struct verbs_link *v)
{
    verbs_end_close(&v->end);
    verbs_places_free(v->places);
    free(v->link.items);
    free(v);
}

static int verbs_link_open(int sock, const struct net_options *options, struct net_counts *counts, struct net_link **out,
                           struct error *e)
{
    struct verbs_link *v = calloc(1, sizeof(*v));
    if (!v)
        return error_set(e, -ENOMEM, "no memory for a link");
    v->end.epoll = -1;
    int status = net_queue_make(&v->link, options, e);
    if (!status)
        status = verbs_end_open(&v->end, sock, options, e);
    if (!status)
        status = verbs_places_find(sock, options, &v->places, e);
    if (status) {
        link_free(v);
        return status;
    }
    v->beat_ns = options->beat_ms * 1000000ull;
    v->opened_ns = clock_ns();
    v->link.ops = &net_verbs;
    v->link.fd = v->end.epoll;
    v->link.counts = counts;
    v->link.rails = places_rails(v->places);
    *out = &v->link;
    return 0;
}

/* Waits for the acknowledgement of posted requests. Unlike a socket's data they are lost when the queue pair is destroyed. */
static void linger(struct verbs_link *v)
{
    uint64_t end = clock_ns() + LINGER_MS * 1000000ull, now;

    while (v->state == READY && !v->link.error.status && v->posted != v->done && (now = clock_ns()) < end) {
        struct pollfd fd = {.fd = v->end.completions->fd, .events = POLLIN};
        if (block(v) == 0) {
            (void)poll(&fd, 1, (int)((end - now) / 1000000 + 1));
            (void)verbs_end_notified(&v->end, &v->link.error);
        }
    }
}

static void verbs_link_close(struct net_link *l)
{
    struct verbs_link *v = verbs_of(l);
    int sock = v->end.socket.fd;

    linger(v);
    link_free(v);
    (void)shutdown(sock, SHUT_RDWR);
    (void)close(sock);
}

const struct net_ops net_verbs = {
    .name = "verbs",
    .usable = verbs_usable,
    .link_open = verbs_link_open,
    .receiver_open = verbs_receiver_open,
    .queued = verbs_queued,
    .progress = verbs_progress,
    .look = verbs_look,
    .receive = verbs_receive,
    .link_close = verbs_link_close,
    .receiver_close = verbs_receiver_close,
};
