/* SPDX-License-Identifier: MIT
 *
 * net_hello.h - what a receiving end says first, and only once, over the socket that it was given: which transport it takes. So
 * two ends that were set differently tell that, and do not misread each other. 48 bytes, little-endian.
 *
 * It says that when the first bytes have come from the sender, and not before: until then the other node's broker may still be
 * reading from the socket (control.h). A sender has something to say at once: its first sign of life.
 */
#ifndef FCCD_NET_HELLO_H
#define FCCD_NET_HELLO_H

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "error.h"

#define NET_HELLO_MAGIC 0x68636366u /* "fcch" */
#define NET_HELLO_VERSION 1u
#define NET_TOKEN_BYTES 32

enum net_transport { NET_TCP = 1, NET_VERBS = 2 };

struct net_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t transport; /* enum net_transport */
    uint16_t port;      /* verbs: where it listens */
    uint16_t zero[3];
    unsigned char token[NET_TOKEN_BYTES]; /* verbs: whoever connects there has to show it */
};
static_assert(sizeof(struct net_hello) == 48, "wire");

/* What of one has come. */
struct net_hello_in {
    struct net_hello hello;
    uint32_t bytes;
};

static inline const char *net_transport_name(unsigned transport)
{
    return transport == NET_TCP ? "tcp" : transport == NET_VERBS ? "verbs" : "a transport of another version of fccd";
}

/* Nothing was sent before, so there is room for it. */
static inline int net_hello_send(int sock, enum net_transport transport, uint16_t port, const unsigned char *token,
                                 struct error *e)
{
    struct net_hello hello = {.magic = htole32(NET_HELLO_MAGIC),
                              .version = htole16(NET_HELLO_VERSION),
                              .transport = htole16((uint16_t)transport),
                              .port = htole16(port)};

    if (token)
        memcpy(hello.token, token, sizeof(hello.token));
    ssize_t n = send(sock, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == (ssize_t)sizeof(hello))
        return 0;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
        return 0; /* it is gone already: the first read tells */
    return error_set(e, -EIO, "cannot greet the other end: %s", n < 0 ? strerror(errno) : "no room");
}

/* Read some of it. 1: it is here whole, and the other end takes `transport`; 0: more is to come; -ESHUTDOWN: the end, without a
 * text; another error: with it. */
static inline int net_hello_read(int sock, struct net_hello_in *in, enum net_transport transport, struct error *e)
{
    struct net_hello *hello = &in->hello;

    if (in->bytes == sizeof(*hello))
        return 1;
    while (in->bytes < sizeof(*hello)) { /* to the end of what is there: epoll does not tell twice */
        ssize_t n = recv(sock, (unsigned char *)hello + in->bytes, sizeof(*hello) - in->bytes, MSG_DONTWAIT);
        if (n == 0)
            return -ESHUTDOWN;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0)
            return error_set(e, -errno, "%s",
                             errno == ECONNRESET ? "the other end has closed the connection" : strerror(errno));
        in->bytes += (uint32_t)n;
    }
    if (le32toh(hello->magic) != NET_HELLO_MAGIC)
        return error_set(e, -EPROTO, "the other end sends something that no receiver says");
    if (le16toh(hello->transport) != (uint16_t)transport)
        return error_set(e, -EPROTONOSUPPORT,
                         "the other end takes %s and this one sends over %s: TRANSPORT must be the same on all nodes (and auto "
                         "takes verbs where the node's address is one of an RDMA device)",
                         net_transport_name(le16toh(hello->transport)), net_transport_name(transport));
    if (le16toh(hello->version) != NET_HELLO_VERSION)
        return error_set(e, -EPROTO, "the other end is of another version of fccd");
    return 1;
}

#endif
