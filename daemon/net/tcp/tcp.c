/* SPDX-License-Identifier: MIT
 *
 * tcp.c - the sending end over TCP.
 *
 * Frames are queued in a ring. progress() turns the first frames into a list of memory pieces for one sendmsg(): headers and
 * short rows are copied together into `copy`, long rows are sent from their memory. A list is sent to its end before the next
 * one is built, however many calls that takes. So nothing is copied twice, and the byte stream is the lists in order.
 * A frame is flushed when the kernel, which makes a copy of its own, has taken its last byte. (MSG_ZEROCOPY could save that
 * copy on adapters that gather. Over loopback the kernel copies all the same, and each send then costs a notification to read.
 * It is not used, as its benefit has not been measured.)
 */
#include "daemon/net/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/net/frame.h"
#include "daemon/net/hello.h"

#define TCP_COPY (256u * 1024u) /* bytes of headers and short rows in one list */
#define TCP_TRIES 8             /* the most system calls of one progress(), if each takes only a part */

struct tcp_link {
    struct net_link link;
    uint64_t beat_ns; /* options.beat_ms */
    struct net_hello_in hello;
    uint64_t built;               /* frames that have been put into lists whole */
    uint64_t built_at;            /* bytes of the next frame, from its header on, that have been put into lists */
    uint64_t sent_at;             /* bytes of the first frame that is not flushed, from its header on, that have been sent */
    struct iovec iov[TCP_IOVECS]; /* the list; its pieces before iov_at have been sent */
    unsigned iov_at, iov_count;
    uint32_t copied; /* bytes of `copy` in use */
    unsigned char copy[TCP_COPY];
};

static struct tcp_link *tcp_of(struct net_link *l)
{
    return (struct tcp_link *)l; /* `link` is the first member */
}

/* Unix sockets, which tests use, have none of TCP's options. */
int tcp_socket_prepare(int sock, const struct net_options *options, struct error *e)
{
    int domain, type, one = 1, size = (int)options->buffer_bytes;
    unsigned limit_ms = options->silent_ms;
    socklen_t length = sizeof(domain);

    if (getsockopt(sock, SOL_SOCKET, SO_DOMAIN, &domain, &length) || getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &length))
        return error_set(e, -errno, "not a socket: %m");
    if (type != SOCK_STREAM)
        return error_set(e, -EINVAL, "not a stream socket");
    if (size && (setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) ||
                 setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size))))
        return error_set(e, -errno, "cannot set a socket's buffers: %m");
    if (domain != AF_INET && domain != AF_INET6)
        return 0;
    /* A flag is a small message, and the next message may wait for an answer to it, so it must leave at once. */
    if (setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        return error_set(e, -errno, "cannot set TCP_NODELAY: %m");
    /* A peer that acknowledges nothing for this time is dead. A sender always has something in flight: at least its
     * heartbeats. */
    if (setsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms)))
        return error_set(e, -errno, "cannot set TCP_USER_TIMEOUT: %m");
    return 0;
}

static int tcp_link_open(int sock, const struct net_options *options, struct net_counts *counts, struct net_link **out,
                         struct error *e)
{
    struct tcp_link *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, -ENOMEM, "no memory for a link");
    t->beat_ns = options->beat_ms * 1000000ull;
    t->link = (struct net_link){.ops = &net_tcp, .fd = sock, .counts = counts, .rails = net_rails_plain(options)};
    int status = net_queue_make(&t->link, options, e);
    if (!status)
        status = tcp_socket_prepare(sock, options, e);
    if (status) {
        free(t->link.items);
        free(t);
        return status;
    }
    *out = &t->link;
    return 0;
}

static void tcp_link_close(struct net_link *l)
{
    struct tcp_link *t = tcp_of(l);

    /* With unread data close() would reset the connection, and data in flight would be lost. */
    (void)net_hello_read(l->fd, &t->hello, NET_TCP, NULL);
    (void)shutdown(l->fd, SHUT_RDWR); /* close() alone has no effect while the broker that handed the socket over has it open */
    (void)close(l->fd);
    for (; l->flushed < l->queued; l->flushed++)
        net_item_release(&l->items[l->flushed & (l->queue - 1)]);
    free(l->items);
    free(t);
}

static int tcp_queued(struct net_link *l, const struct net_item *item)
{
    (void)item;
    l->due_ns = UINT64_MAX; /* sending the frame stands for a heartbeat, and sets due_ns */
    return 0;
}

/* ---- lists ---- */

static struct net_frame frame_of(const struct net_item *item)
{
    struct net_frame f = {.magic = NET_FRAME_MAGIC,
                          .version = NET_FRAME_VERSION,
                          .comm = item->to.comm,
                          .rank = item->to.rank,
                          .region = item->to.region,
                          .offset = item->to.offset};

    if (item->is_beat) {
        f.kind = NET_FRAME_BEAT;
    } else if (item->is_early) {
        f.kind = NET_FRAME_EARLY;
        f.stride = item->value;
        f.row_bytes = item->area.row_bytes;
    } else if (item->is_message) {
        f.kind = NET_FRAME_MESSAGE;
        f.row_bytes = item->length;
    } else if (item->from) {
        f.kind = NET_FRAME_PUT;
        f.row_bytes = item->area.row_bytes;
        f.stride = item->area.stride;
        f.rows = item->area.rows;
    } else if (item->to.region == NET_FLAGS) {
        f.kind = NET_FRAME_FLAG;
        f.region = (uint32_t)item->to.offset;
        f.offset = item->value;
    } else {
        f.kind = NET_FRAME_SIGNAL;
        f.stride = item->value;
    }
    return f;
}

/* Appends a copy of the bytes to the list. The caller has checked that there is room for the bytes and for a piece. */
static void list_copy(struct tcp_link *t, const void *from, size_t bytes)
{
    unsigned char *to = t->copy + t->copied;
    struct iovec *last = t->iov_count ? &t->iov[t->iov_count - 1] : NULL;

    memcpy(to, from, bytes);
    t->copied += (uint32_t)bytes;
    if (last && (unsigned char *)last->iov_base + last->iov_len == to)
        last->iov_len += bytes;
    else
        t->iov[t->iov_count++] = (struct iovec){to, bytes};
}

/* Appends the next piece of the frame's payload to the list. Returns the piece's bytes; 0: no room. */
static uint64_t list_payload(struct tcp_link *t, const struct net_item *item, uint64_t at, uint64_t room)
{
    uint64_t row = at / item->area.row_bytes, inside = at % item->area.row_bytes;
    uint64_t bytes = item->area.row_bytes - inside;
    const unsigned char *from = item->from + row * item->area.stride + inside;

    if (item->area.row_bytes < TCP_LONG_ROW) {
        if (bytes > TCP_COPY - t->copied)
            return 0;
        list_copy(t, from, bytes);
        return bytes;
    }
    if (bytes > room)
        bytes = room;
    t->iov[t->iov_count++] = (struct iovec){(void *)from, bytes}; /* sendmsg() only reads from it */
    return bytes;
}

/* Builds the next list; it is empty if no frame is queued. */
static void list_build(struct tcp_link *t)
{
    uint64_t total = 0;

    t->iov_at = t->iov_count = t->copied = 0;
    while (t->built < t->link.queued && t->iov_count < TCP_IOVECS && total < TCP_AT_ONCE) {
        const struct net_item *item = &t->link.items[t->built & (t->link.queue - 1)];
        uint64_t bytes;
        if (!t->built_at) {
            struct net_frame frame = frame_of(item);
            bytes = sizeof(frame);
            if (bytes > TCP_COPY - t->copied)
                return;
            list_copy(t, &frame, bytes);
        } else {
            bytes = list_payload(t, item, t->built_at - sizeof(struct net_frame), TCP_AT_ONCE - total);
            if (!bytes)
                return;
        }
        total += bytes;
        t->built_at += bytes;
        if (t->built_at == sizeof(struct net_frame) + item->length) {
            t->built++;
            t->built_at = 0;
        }
    }
}

static void list_sent(struct tcp_link *t, size_t bytes)
{
    t->sent_at += bytes;
    net_count(&t->link.counts->bytes, bytes);
    while (bytes) {
        struct iovec *piece = &t->iov[t->iov_at];
        size_t n = bytes < piece->iov_len ? bytes : piece->iov_len;
        piece->iov_base = (unsigned char *)piece->iov_base + n;
        piece->iov_len -= n;
        bytes -= n;
        if (!piece->iov_len)
            t->iov_at++;
    }
    while (t->link.flushed < t->link.queued) {
        struct net_item *item = &t->link.items[t->link.flushed & (t->link.queue - 1)];
        if (t->sent_at < sizeof(struct net_frame) + item->length)
            break;
        net_item_release(item);
        t->sent_at -= sizeof(struct net_frame) + item->length;
        t->link.flushed++;
        net_count(&t->link.counts->messages, !item->is_beat);
    }
}

/* ---- sending ---- */

static int tcp_progress(struct net_link *l, uint64_t now_ns)
{
    struct tcp_link *t = tcp_of(l);

    if (l->queued == l->flushed && now_ns >= l->due_ns)
        (void)net_queue_add(l, &(struct net_item){.is_beat = true}); /* the queue is empty, so there is room */
    l->is_blocked = false;
    for (int tries = 0; tries < TCP_TRIES; tries++) {
        /* When the list has been sent, return, so that the caller serves its other links. */
        if (t->iov_at == t->iov_count) {
            if (tries)
                break;
            list_build(t);
        }
        if (t->iov_at == t->iov_count)
            break;
        struct msghdr message = {.msg_iov = t->iov + t->iov_at, .msg_iovlen = t->iov_count - t->iov_at};
        ssize_t n = sendmsg(l->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) { /* epoll reports writability only after EAGAIN */
            l->is_blocked = true;
            break;
        }
        if (n < 0)
            return net_socket_broken(errno, "sending", &l->error);
        list_sent(t, (size_t)n);
        l->due_ns = now_ns + t->beat_ns;
    }
    if (l->queued != l->flushed) {
        l->due_ns = UINT64_MAX;
        return 1;
    }
    return 0;
}

static_assert(NET_EARLY_MOST + NET_MESSAGE_MAX + 128 * sizeof(struct net_frame) <= TCP_COPY,
              "what is left of a list can be copied");

/* All that is queued is in the list, which began when nothing was queued. */
static void tcp_settle(struct net_link *l)
{
    struct tcp_link *t = tcp_of(l);

    assert(t->built == l->queued || l->error.status);
    for (unsigned i = t->iov_at; i < t->iov_count; i++) {
        unsigned char *to = t->copy + t->copied, *from = t->iov[i].iov_base;
        if (from >= t->copy && from < t->copy + TCP_COPY)
            continue;
        assert(t->iov[i].iov_len <= TCP_COPY - t->copied);
        memcpy(to, from, t->iov[i].iov_len);
        t->copied += (uint32_t)t->iov[i].iov_len;
        t->iov[i].iov_base = to;
    }
}

static int tcp_look(struct net_link *l)
{
    unsigned char byte;
    int status = net_hello_read(l->fd, &tcp_of(l)->hello, NET_TCP, &l->error);

    if (status == 0 || (status < 0 && status != -ESHUTDOWN))
        return status;
    ssize_t n = recv(l->fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_PEEK);
    if (n > 0)
        return error_set(&l->error, -EPROTO, "the other end sends on a link that it is to read");
    if (n == 0 && l->queued != l->flushed)
        return error_set(&l->error, -ECONNRESET, "the other end has closed the connection while there was more to send");
    if (n == 0)
        return error_set(&l->error, -ESHUTDOWN, "the other end has closed the connection");
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : net_socket_broken(errno, "sending", &l->error);
}

const struct net_ops net_tcp = {
    .name = "tcp",
    .has_messages = true,
    .link_open = tcp_link_open,
    .receiver_open = tcp_receiver_open,
    .queued = tcp_queued,
    .progress = tcp_progress,
    .look = tcp_look,
    .settle = tcp_settle,
    .receive = tcp_receive,
    .link_close = tcp_link_close,
    .receiver_close = tcp_receiver_close,
};
