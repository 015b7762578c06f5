/* SPDX-License-Identifier: MIT
 *
 * msg.h - one message, with file descriptors, over a SOCK_SEQPACKET socket.
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

/* Send one message whole. Sets msg->length. Does not wait: -EAGAIN if the socket's buffer is full. -EPIPE if the peer is gone.
 */
int msg_send(int sock, struct fcc_msg *msg, size_t length, const int *fds, int nfds);

/* Receive one message into buf (room bytes, at least FCC_MSG_MAX). Returns its length (the header's length field is checked
 * against it), 0 at the end of the connection, or:
 *   -EAGAIN   nothing there (only if `flags` has MSG_DONTWAIT, or a receive time-out is set on the socket)
 *   -EPROTO   truncated, oversized or with a length field that lies; its descriptors are closed
 * fds[0 .. *nfds) are the descriptors that came along, close-on-exec; the caller owns them. More than FCC_MAX_FDS: -EPROTO.
 * *nfds is MSG_FDS_LOST if there were some and this process had no room for all of them (RLIMIT_NOFILE, or the system's limit): the
 * message is whole, but it has none, and the connection is as good as before. That is an error of this message: -EMFILE for whom it
 * concerns. */
ssize_t msg_recv(int sock, void *buf, size_t room, int flags, int fds[FCC_MAX_FDS], int *nfds);

/* None if nfds is MSG_FDS_LOST. */
void fds_close(const int *fds, int nfds);

/* ---- descriptors that strangers send ----
 *
 * Who sends a descriptor decides how long its last close takes: a TCP socket's lasts for its SO_LINGER, that of a file of FUSE until its
 * server answers, and the kernel closes what lies unread in a socket, too, when that is closed. So a process that serves several users turns
 * SO_LINGER off, and disconnects the socket, before it closes what was sent to it.
 */

/* From now on nobody can send descriptors to this socket, or to one that it accepts: who tries gets EPERM, and no word from us. Linux knows
 * that since 6.16; where the kernel does not, they come. */
void msg_fds_forbid(int sock);
/* Close descriptors that were not asked for. A TCP socket among them is disconnected, whoever else has it. */
void fds_discard(const int *fds, int nfds);
/* Close a socket on which more may lie unread than was received. What was sent there is still delivered. The connection must not be
 * somebody else's, too. */
void msg_close(int sock);

#endif
