/* SPDX-License-Identifier: MIT
 *
 * msg.h - one message, with file descriptors, over a SOCK_SEQPACKET socket.
 */
#ifndef FCC_MSG_H
#define FCC_MSG_H

#include <sys/types.h>

#include "proto.h"

#define MSG_FDS_LOST (-1)

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

#endif
