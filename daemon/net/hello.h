/* SPDX-License-Identifier: MIT
 *
 * hello.h - a receiving end's only message to its sender: the transport that it expects. So two nodes with different settings
 * report that, and do not misread each other. 720 bytes, little-endian. The first 8 bytes are the same in all versions and are
 * checked first; the rest may differ between versions.
 *
 * The receiving end sends its hello after the first bytes from the sender have arrived. Before that the other node's broker may
 * still be reading from the socket (daemon/common/control.h). A sender sends its first heartbeat at once.
 */
#ifndef FCC_DAEMON_NET_HELLO_H
#define FCC_DAEMON_NET_HELLO_H

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/error.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages between nodes are sent as they lie in memory");

#define NET_HELLO_MAGIC 0x68636366u /* "fcch" */
#define NET_HELLO_VERSION 5u
#define NET_HELLO_HEAD 8u /* bytes: magic, version and transport */
#define NET_HELLO_PLACES 32u
#define NET_TOKEN_BYTES 32

enum net_transport { NET_TCP = 1, NET_VERBS = 2 };

/* verbs: an address at which the receiving end listens, and that address's network. */
struct net_hello_place {
    unsigned char address[16];
    uint8_t family; /* NETWORK_IPV4 or NETWORK_IPV6 (network.h) */
    uint8_t prefix; /* bits of the network prefix */
    uint16_t port;
};
static_assert(sizeof(struct net_hello_place) == 20, "wire");

struct net_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t transport; /* enum net_transport */
    /* The fields from here on are for verbs. */
    uint32_t nplaces; /* number of `places`, at least 1 */
    uint8_t zero[36];
    unsigned char token[NET_TOKEN_BYTES];            /* a secret that a queue pair's connection must present */
    struct net_hello_place places[NET_HELLO_PLACES]; /* [0]: the socket's own address; the others: one for each network */
};
static_assert(sizeof(struct net_hello) == 720, "wire");

/* A hello that is being received. */
struct net_hello_in {
    struct net_hello hello;
    uint32_t bytes; /* received so far */
};

static inline const char *net_transport_name(unsigned transport)
{
    return transport == NET_TCP ? "tcp" : transport == NET_VERBS ? "verbs" : "a transport of another version of fccd";
}

/* Sends the hello. It is the first thing sent on the socket, so the socket's buffer has room. `with` has the fields for verbs,
 * or is NULL. */
static inline int net_hello_send(int sock, enum net_transport transport, const struct net_hello *with, struct error *e)
{
    struct net_hello hello = with ? *with : (struct net_hello){.nplaces = 0};

    hello.magic = NET_HELLO_MAGIC;
    hello.version = NET_HELLO_VERSION;
    hello.transport = (uint16_t)transport;
    ssize_t n = send(sock, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == (ssize_t)sizeof(hello))
        return 0;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
        return 0; /* the sender has closed; the next read reports it */
    return error_set(e, -EIO, "cannot greet the other end: %s", n < 0 ? strerror(errno) : "no room");
}

/* Checks a hello of which at least NET_HELLO_HEAD bytes have arrived. */
static inline int net_hello_judge(const struct net_hello *hello, enum net_transport transport, struct error *e)
{
    if (hello->magic != NET_HELLO_MAGIC)
        return error_set(e, -EPROTO, "the other end's first message is not a receiver's hello");
    if (hello->transport != (uint16_t)transport)
        return error_set(e, -EPROTONOSUPPORT,
                         "the other end takes %s and this one sends over %s: TRANSPORT must be the same on all nodes (and auto "
                         "takes verbs where the node's address is one of an RDMA device)",
                         net_transport_name(hello->transport), net_transport_name(transport));
    if (hello->version != NET_HELLO_VERSION)
        return error_set(e, -EPROTO, "the other end is of another version of fccd");
    return 0;
}

/* Reads what has arrived of the hello. Returns 1 when it is complete and its transport is `transport`, 0 if more is to come,
 * -ESHUTDOWN (without setting e) at the connection's end, or another error. */
static inline int net_hello_read(int sock, struct net_hello_in *in, enum net_transport transport, struct error *e)
{
    struct net_hello *hello = &in->hello;

    while (in->bytes < sizeof(*hello)) { /* reads until EAGAIN, as epoll is edge-triggered */
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
        int status = in->bytes < NET_HELLO_HEAD ? 0 : net_hello_judge(hello, transport, e);
        if (status)
            return status;
    }
    return 1;
}

#endif
