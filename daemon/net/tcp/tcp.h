/* SPDX-License-Identifier: MIT
 *
 * tcp.h - the two halves of the tcp transport: tcp.c sends, tcp_receive.c receives. Also over Unix stream sockets.
 */
#ifndef FCC_DAEMON_NET_TCP_TCP_H
#define FCC_DAEMON_NET_TCP_TCP_H

#include "daemon/net/net.h"

#define TCP_LONG_ROW 4096u        /* rows of at least so many bytes are sent and received without a copy */
#define TCP_IOVECS 256u           /* iovecs of one system call */
#define TCP_AT_ONCE (1024 * 1024) /* bytes of one system call, so that a thread also serves its other links */

/* Sets the socket's options; the same at both ends. */
int tcp_socket_prepare(int sock, const struct net_options *options, struct error *e);

int tcp_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                      struct net_receiver **out, struct error *e);
int tcp_receive(struct net_receiver *r, uint64_t now_ns);
void tcp_receiver_close(struct net_receiver *r);

#endif
