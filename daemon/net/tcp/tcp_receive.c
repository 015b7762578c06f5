/* SPDX-License-Identifier: MIT
 *
 * tcp_receive.c - the receiving end over TCP.
 *
 * One read puts the rest of the current frame's rows directly into the region, and the beginning of what follows into a small
 * buffer. Short rows are read into the buffer and copied from there, because a list of many small pieces would cost the kernel
 * more. Payload that follows a header in the buffer is copied, too. A message is read into the buffer and collected in memory of
 * its own.
 *
 * Trust: before any payload is stored, the whole header is checked against the registration of the region that it names. For
 * each read and each copy the registration is held, and must still be the same one (daemon/net/region.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/net/frame.h"
#include "daemon/net/hello.h"
#include "daemon/net/tcp/tcp.h"
#include "proto/base/clock.h"

#define TCP_BUFFER 65536u
#define TCP_AHEAD 4096u /* bytes that are read after a payload: room for a few headers, but for little payload to copy */
#define TCP_READS 8     /* the most system calls of one receive() */

struct tcp_receiver {
    struct net_receiver receiver;
    const struct net_sink *sink;
    struct net_silence silence;
    bool is_paused;         /* the owner is to handle a message before the early frames behind it, which are in the buffer */
    struct net_frame put;   /* the frame whose payload is being received, a put or a message; valid while at < length */
    unsigned char *message; /* a message's payload. NULL: the payload is a put's */
    uint64_t length, at;    /* bytes of its payload: in total, and stored so far */
    uint64_t serial;        /* the region's registration number; 0: the payload is dropped */
    uint64_t asked;         /* bytes that the last read had room for */
    uint32_t start, filled; /* the buffer's valid bytes are [start, filled) */
    unsigned char buffer[TCP_BUFFER];
};

static struct tcp_receiver *tcp_of(struct net_receiver *r)
{
    return (struct tcp_receiver *)r; /* `receiver` is the first member */
}

int tcp_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                      struct net_receiver **out, struct error *e)
{
    int status = tcp_socket_prepare(sock, options, e);

    if (status)
        return status;
    struct tcp_receiver *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, -ENOMEM, "no memory for a link");
    t->receiver = (struct net_receiver){.ops = &net_tcp, .fd = sock, .counts = counts};
    t->sink = sink;
    t->silence.limit_ns = options->silent_ms * 1000000ull;
    net_heard(&t->silence, clock_ns());
    t->receiver.due_ns = net_look_due(&t->silence);
    *out = &t->receiver;
    return 0;
}

void tcp_receiver_close(struct net_receiver *r)
{
    (void)shutdown(r->fd, SHUT_RDWR);
    (void)close(r->fd);
    free(tcp_of(r)->message);
    free(tcp_of(r));
}

/* ---- frames ---- */

static int put_begin(struct tcp_receiver *t, const struct net_frame *f)
{
    struct net_area area = {.row_bytes = f->row_bytes, .stride = f->stride, .rows = f->rows};
    struct net_regions *regions = t->sink->regions;
    struct net_held memory;
    uint64_t length;

    if (f->region == NET_FLAGS)
        return net_refuse(&t->receiver, -EPROTO, "a write over flags");
    int status = net_regions_hold(regions, f->comm, f->rank, f->region, &memory);
    if (status == -ECANCELED) { /* the payload will be dropped; only the area's form is checked */
        memory.serial = 0;
        status = net_area_check(&area, f->offset, UINT64_MAX, &length);
    } else if (status) {
        return net_refuse(&t->receiver, -EPROTO, "a write into a region that is not known here");
    } else {
        net_regions_release(regions);
        status = net_area_check(&area, f->offset, memory.bytes, &length);
    }
    if (status)
        return net_refuse(&t->receiver, -EPROTO, "a write past the end of a region");
    t->put = *f;
    t->length = length;
    t->at = 0;
    t->serial = memory.serial;
    return 0;
}

static int message_begin(struct tcp_receiver *t, const struct net_frame *f)
{
    if (f->comm || f->rank || f->region || f->offset || f->stride || f->rows)
        return net_refuse(&t->receiver, -EPROTO, "a message with a place");
    if (!f->row_bytes || f->row_bytes > NET_MESSAGE_MAX || !t->sink->message)
        return net_refuse(&t->receiver, -EPROTO, "a message that is empty or too long, or not expected");
    t->message = malloc(f->row_bytes);
    if (!t->message)
        return net_refuse(&t->receiver, -ENOMEM, "no memory for a message");
    t->put = *f;
    t->length = f->row_bytes;
    t->at = 0;
    return 0;
}

static int early_begin(struct tcp_receiver *t, const struct net_frame *f)
{
    const struct net_early_head head = {
        .comm = f->comm, .rank = f->rank, .node = f->region, .turn = f->offset, .guess = f->stride, .length = f->row_bytes};
    struct net_frame keep = {.comm = f->comm, .rank = f->rank, .region = NET_EARLY, .row_bytes = f->row_bytes, .rows = 1};
    struct net_held flags;

    if (f->rows || !f->row_bytes || !t->sink->early)
        return net_refuse(&t->receiver, -EPROTO, "early frames without a length, or not expected");
    int status = net_regions_hold(t->sink->regions, f->comm, f->rank, NET_FLAGS, &flags);
    if (status && status != -ECANCELED)
        return net_refuse(&t->receiver, -EPROTO, "early frames for a rank that is not known here");
    int fate = status ? NET_EARLY_DROP : t->sink->early(t->sink->ctx, &head, &keep.offset);
    if (!status)
        net_regions_release(t->sink->regions);
    if (fate < 0)
        return net_refuse(&t->receiver, fate, "early frames that nobody may send");
    if (fate == NET_EARLY_KEEP)
        return put_begin(t, &keep);
    if (fate == NET_EARLY_DROP) {
        t->put = keep;
        t->length = keep.row_bytes;
        t->at = 0;
        t->serial = 0;
    }
    return 0;
}

static int frame_begin(struct tcp_receiver *t, const struct net_frame *f)
{
    const struct net_place word = {.comm = f->comm, .rank = f->rank, .region = f->region, .offset = f->offset};
    int status;

    if (f->magic != NET_FRAME_MAGIC)
        return net_refuse(&t->receiver, -EPROTO, "not a frame: TRANSPORT must be the same on all nodes");
    if (f->version != NET_FRAME_VERSION)
        return net_refuse(&t->receiver, -EPROTO, "a frame of another version of fccd");
    if (f->zero)
        return net_refuse(&t->receiver, -EPROTO, "a frame whose reserved field is not 0");
    switch (f->kind) {
    case NET_FRAME_PUT:
        if (f->region == NET_EARLY)
            return net_refuse(&t->receiver, -EPROTO, "a write over early frames");
        status = put_begin(t, f);
        break;
    case NET_FRAME_EARLY:
        status = early_begin(t, f);
        break;
    case NET_FRAME_FLAG:
        if (f->row_bytes || f->stride || f->rows)
            return net_refuse(&t->receiver, -EPROTO, "a flag with an area");
        status = net_flag_take(&t->receiver, t->sink, f->comm, f->rank, f->region, f->offset);
        break;
    case NET_FRAME_SIGNAL:
        if (f->row_bytes || f->rows)
            return net_refuse(&t->receiver, -EPROTO, "a signal with an area");
        status = net_signal_take(&t->receiver, t->sink, &word, f->stride);
        break;
    case NET_FRAME_MESSAGE:
        status = message_begin(t, f);
        break;
    case NET_FRAME_BEAT:
        return 0;
    default:
        return net_refuse(&t->receiver, -EPROTO, "a frame of an unknown kind");
    }
    if (!status)
        net_count(&t->receiver.counts->messages, 1);
    return status;
}

/* ---- payload ---- */

/* Holds the region of the payload that is being received. Sets *dropped if the payload is dropped; then nothing is held. */
static int payload_hold(struct tcp_receiver *t, struct net_held *memory, bool *dropped)
{
    *dropped = t->serial == 0;
    if (*dropped)
        return 0;
    int status = net_regions_hold(t->sink->regions, t->put.comm, t->put.rank, t->put.region, memory);
    if (!status && memory->serial != t->serial) {
        net_regions_release(t->sink->regions);
        status = -ENOENT;
    }
    if (status == -ECANCELED) {
        t->serial = 0;
        *dropped = true;
        return 0;
    }
    return status ? net_refuse(&t->receiver, -EPROTO, "a write into a region that was removed meanwhile") : 0;
}

/* The memory from byte `at` of the payload to the end of its row. It is within the region: put_begin() has checked the whole
 * area, and the registration is the same. */
static struct iovec payload_piece(const struct tcp_receiver *t, const struct net_held *memory, uint64_t at)
{
    uint64_t row = at / t->put.row_bytes, inside = at % t->put.row_bytes;

    return (struct iovec){memory->base + t->put.offset + row * t->put.stride + inside, t->put.row_bytes - inside};
}

/* Counts payload that was stored. If it is complete now, calls received(); the region is still held. */
static int payload_stored(struct tcp_receiver *t, const struct net_held *memory, uint64_t bytes)
{
    const struct net_area area = {.row_bytes = t->put.row_bytes, .stride = t->put.stride, .rows = t->put.rows};

    t->at += bytes;
    if (t->at < t->length || !memory->bounce.received)
        return 0;
    return memory->bounce.received(memory->bounce.ctx, t->put.offset, &area, &t->receiver.error);
}

/* Collects the message's bytes in the buffer. When it is complete, hands it over. */
static int message_copy(struct tcp_receiver *t)
{
    uint64_t bytes = t->filled - t->start;
    int status = 0;

    if (bytes > t->length - t->at)
        bytes = t->length - t->at;
    memcpy(t->message + t->at, t->buffer + t->start, bytes);
    t->start += (uint32_t)bytes;
    t->at += bytes;
    if (t->at < t->length)
        return 0;
    status = t->sink->message(t->sink->ctx, t->sink->node, t->message, (uint32_t)t->length);
    free(t->message);
    t->message = NULL;
    return status ? net_refuse(&t->receiver, status, "a message that is none") : 0;
}

/* Copies the payload's bytes in the buffer to the region. */
static int payload_copy(struct tcp_receiver *t)
{
    struct net_held memory;
    bool dropped;
    uint64_t bytes = t->filled - t->start;
    int status = payload_hold(t, &memory, &dropped);

    if (status)
        return status;
    if (bytes > t->length - t->at)
        bytes = t->length - t->at;
    for (uint64_t done = 0; done < bytes && !dropped;) {
        struct iovec piece = payload_piece(t, &memory, t->at + done);
        uint64_t n = piece.iov_len < bytes - done ? piece.iov_len : bytes - done;
        memcpy(piece.iov_base, t->buffer + t->start + done, n);
        done += n;
    }
    t->start += (uint32_t)bytes;
    if (dropped) {
        t->at += bytes;
        return 0;
    }
    status = payload_stored(t, &memory, bytes);
    net_regions_release(t->sink->regions);
    return status;
}

/* Whether the buffer goes on with early frames. Behind a message, the owner had better handle that first: if it begins their operator, they
 * need not be kept. */
static bool early_is_next(const struct tcp_receiver *t)
{
    struct net_frame f;

    if (t->filled - t->start < sizeof(f))
        return false;
    memcpy(&f, t->buffer + t->start, sizeof(f));
    return f.kind == NET_FRAME_EARLY;
}

/* Handles the buffer's bytes. Returns 0 when at most a part of a header is left, or sets is_paused. */
static int buffer_take(struct tcp_receiver *t)
{
    int status = 0;

    while (!status && t->start < t->filled) {
        if (t->message && t->filled - t->start >= t->length - t->at) {
            status = message_copy(t);
            t->is_paused = !status && early_is_next(t);
            if (t->is_paused)
                return 0;
        } else if (t->at < t->length) {
            status = t->message ? message_copy(t) : payload_copy(t);
        } else {
            struct net_frame wire;
            if (t->filled - t->start < sizeof(wire))
                break;
            memcpy(&wire, t->buffer + t->start, sizeof(wire));
            t->start += sizeof(wire);
            status = frame_begin(t, &wire);
        }
    }
    t->filled -= t->start;
    memmove(t->buffer, t->buffer + t->start, t->filled); /* less than a header */
    t->start = 0;
    return status;
}

/* ---- reading ---- */

static ssize_t socket_read(const struct tcp_receiver *t, struct iovec *iov, size_t count)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};

    return recvmsg(t->receiver.fd, &message, MSG_DONTWAIT);
}

/* Reads into the buffer: as much as fits of a payload that is copied or dropped, and TCP_AHEAD bytes of what follows. */
static ssize_t read_buffer(struct tcp_receiver *t)
{
    uint64_t room = TCP_BUFFER - t->filled, payload = t->length - t->at; /* a dropped payload may have any size */
    uint64_t want = payload < room ? payload + TCP_AHEAD : room;
    struct iovec piece = {t->buffer + t->filled, room < want ? room : want};
    t->asked = piece.iov_len;
    ssize_t n = socket_read(t, &piece, 1);

    if (n > 0)
        t->filled += (uint32_t)n;
    return n;
}

/* Reads long rows directly into the region, and TCP_AHEAD bytes of what follows into the buffer, which is empty. The
 * registration is held during the read, which does not block. */
static ssize_t read_rows(struct tcp_receiver *t, const struct net_held *memory)
{
    struct iovec iov[TCP_IOVECS];
    uint64_t at = t->at, direct;
    size_t count = 0;

    while (at < t->length && count < TCP_IOVECS - 1 && at - t->at < TCP_AT_ONCE) {
        iov[count] = payload_piece(t, memory, at);
        if (iov[count].iov_len > TCP_AT_ONCE)
            iov[count].iov_len = TCP_AT_ONCE;
        at += iov[count++].iov_len;
    }
    direct = at - t->at;
    if (at == t->length)
        iov[count++] = (struct iovec){t->buffer, TCP_AHEAD};
    t->asked = direct + (at == t->length ? TCP_AHEAD : 0);
    ssize_t n = socket_read(t, iov, count);
    if (n > 0) {
        uint64_t stored = (uint64_t)n < direct ? (uint64_t)n : direct;
        (void)payload_stored(t, memory, stored);
        t->filled = (uint32_t)((uint64_t)n - stored);
    }
    return n;
}

/* Reads once. Returns the number of bytes, 0 at the connection's end, or a negative errno value. If the receiver's error is set
 * then, the link is broken. */
static ssize_t read_once(struct tcp_receiver *t)
{
    struct net_held memory;
    bool dropped = true;

    if (t->at < t->length && !t->message && t->put.row_bytes >= TCP_LONG_ROW && payload_hold(t, &memory, &dropped))
        return t->receiver.error.status;
    ssize_t n = dropped ? read_buffer(t) : read_rows(t, &memory);
    n = n < 0 ? -errno : n;
    if (!dropped)
        net_regions_release(t->sink->regions);
    return n;
}

static int receiver_broken(struct tcp_receiver *t, ssize_t n)
{
    struct error *e = &t->receiver.error;

    if (n == 0 && t->at == t->length && !t->filled)
        return error_set(e, -ESHUTDOWN, "the other end has closed the connection");
    if (n == 0 || n == -ECONNRESET)
        return error_set(e, -ECONNRESET, "the connection was lost%s", n ? "" : " in the middle of a frame");
    return error_set(e, (int)n, "receiving: %s", strerror((int)-n));
}

int tcp_receive(struct net_receiver *r, uint64_t now_ns)
{
    struct tcp_receiver *t = tcp_of(r);
    uint64_t total = 0;

    if (t->is_paused) {
        t->is_paused = false;
        int rest = buffer_take(t);
        if (rest || t->is_paused)
            return rest ? rest : 1;
    }
    for (int reads = 0; reads < TCP_READS && total < TCP_AT_ONCE; reads++) {
        ssize_t n = read_once(t);
        if (r->error.status)
            return r->error.status;
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN || n == -EWOULDBLOCK) {
            if (net_is_silent(&t->silence, now_ns))
                return error_set(&r->error, -ETIMEDOUT, "nothing has come from there for %llu ms",
                                 (unsigned long long)(t->silence.limit_ns / 1000000));
            r->due_ns = net_look_due(&t->silence);
            return 0;
        }
        if (n <= 0)
            return receiver_broken(t, n);
        if (!r->heard && net_hello_send(r->fd, NET_TCP, NULL, &r->error))
            return r->error.status;
        r->heard = true;
        net_count(&r->counts->bytes, (uint64_t)n);
        total += (uint64_t)n;
        net_heard(&t->silence, now_ns);
        r->due_ns = net_look_due(&t->silence);
        int status = buffer_take(t);
        if (status || t->is_paused)
            return status ? status : 1;
        if ((uint64_t)n < t->asked)
            return 0; /* the socket is empty; what comes now makes fd readable again */
    }
    return 1;
}
