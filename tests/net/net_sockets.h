/* SPDX-License-Identifier: MIT
 *
 * net_sockets.h - connected sockets of the kinds that links run over. Include after cmocka.h.
 */
#ifndef FCC_TEST_NET_SOCKETS_H
#define FCC_TEST_NET_SOCKETS_H

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/net.h"

enum bed_kind { BED_UNIX, BED_TCP, BED_KINDS, BED_VERBS = BED_KINDS };

/* The address that BED_VERBS's sockets have, of an RDMA device; for the other kinds it is loopback. */
static struct in_addr bed_address;

/* out[0] is to send, out[1] to receive. A TCP receiver's buffer takes about receive_bytes: 0 for what the system gives, which grows by
 * megabytes as it likes, also while nobody reads. */
static inline void bed_sockets_of(enum bed_kind kind, int receive_bytes, int out[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);

    if (kind == BED_UNIX) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out), 0);
        return;
    }
    if (kind == BED_VERBS)
        address.sin_addr = bed_address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    if (receive_bytes) /* before it listens: what it accepts offers no more from the start */
        assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes)), 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    out[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(out[0] >= 0);
    assert_int_equal(connect(out[0], (struct sockaddr *)&address, sizeof(address)), 0);
    out[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(out[1] >= 0);
    (void)close(listener);
}

static inline void bed_sockets(enum bed_kind kind, int out[2])
{
    bed_sockets_of(kind, 0, out);
}

/* A time limit that no test reaches: under a sanitizer, on a busy machine, a second is nothing. */
#define BED_OPTIONS                                                                                                            \
    (struct net_options)                                                                                                       \
    {                                                                                                                          \
        .beat_ms = NET_BEAT_MS, .silent_ms = 60000, .queue = 64, .buffer_bytes = 0                                             \
    }

#endif
