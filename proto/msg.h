/* SPDX-License-Identifier: MIT
 *
 * msg.h - sends and receives one message, with file descriptors, on a SOCK_SEQPACKET socket.
 */
#ifndef FCC_PROTO_MSG_H
#define FCC_PROTO_MSG_H

#include <sys/socket.h>
#include <sys/types.h>

#include "proto/proto.h"

#define MSG_FDS_LOST (-1)
#ifndef SO_PASSRIGHTS /* the C library's headers may be older than the kernel */
#define SO_PASSRIGHTS 83
#endif

/* Send one message whole. Sets msg->length. Does not wait. Errors: -EAGAIN: the socket's buffer is full; -EPIPE: the peer has
 * closed.
 */
int msg_send(int sock, struct fcc_msg *msg, size_t length, const int *fds, int nfds);

/* Receive one message into buf (room bytes, at least FCC_MSG_MAX). Returns its length, which is checked against the header's
 * length field, 0 at the end of the connection, or:
 *   -EAGAIN   no message (only if `flags` has MSG_DONTWAIT, or the socket has a receive time-out)
 *   -EPROTO   the message is truncated, oversized, has a wrong length field or more than FCC_MAX_FDS descriptors; all its
 *             descriptors are closed
 * fds[0 .. *nfds) are the message's descriptors, close-on-exec; the caller owns them. *nfds is MSG_FDS_LOST if this process
 * could not receive all of them (RLIMIT_NOFILE, or the system's limit). Then the message is whole, none of its descriptors is
 * left, and the connection remains usable: only the request in this message fails, with -EMFILE. */
ssize_t msg_recv(int sock, void *buf, size_t room, int flags, int fds[FCC_MAX_FDS], int *nfds);

/* Closes nothing if nfds is MSG_FDS_LOST. */
void fds_close(const int *fds, int nfds);

/* ---- descriptors from untrusted processes ----
 *
 * The sender of a descriptor decides how long its last close takes: a TCP socket's close may last for its SO_LINGER, that of a
 * FUSE file until its server answers. When a socket is closed, the kernel also closes the descriptors that lie in it unread. So
 * a process that serves several users turns SO_LINGER off and disconnects the socket before it closes a descriptor that was
 * sent to it.
 */

/* From now on nobody can send descriptors to this socket, or to one that it accepts; the sender gets EPERM from the kernel.
 * Needs Linux 6.16; on older kernels descriptors still arrive. */
void msg_fds_forbid(int sock);
/* Close descriptors that were not asked for. A TCP socket among them is disconnected for all processes that have it. */
void fds_discard(const int *fds, int nfds);
/* Close a socket that may hold unread messages, and discard their descriptors. What was sent to the peer is still delivered. No
 * other process may use the connection. */
void msg_close(int sock);

#endif
