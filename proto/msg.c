/* SPDX-License-Identifier: MIT */
#include "proto/msg.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS_AT_ONCE 253 /* the kernel's limit for one message (SCM_MAX_FD) */

int msg_send(int sock, struct fcc_msg *msg, size_t length, const int *fds, int nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FCC_MAX_FDS)];
    } control = {0};
    struct iovec iov = {.iov_base = msg, .iov_len = length};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (nfds < 0 || nfds > FCC_MAX_FDS || length < sizeof(*msg) || length > FCC_MSG_MAX)
        return -EINVAL;
    msg->length = (uint32_t)length;
    msg->zero = 0;
    if (nfds > 0) {
        h.msg_control = control.bytes;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
    }
    do
        n = sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Appends a received message's descriptors to fds. Discards those beyond FCC_MAX_FDS; then -EPROTO. */
static int take_fds(struct msghdr *h, int fds[FCC_MAX_FDS], int *nfds)
{
    int status = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*nfds < FCC_MAX_FDS) {
                fds[(*nfds)++] = fd;
            } else {
                fds_discard(&fd, 1);
                status = -EPROTO;
            }
        }
    }
    return status;
}

ssize_t msg_recv(int sock, void *buf, size_t room, int flags, int fds[FCC_MAX_FDS], int *nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS_AT_ONCE)]; /* room for surplus descriptors, so that they can be discarded */
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = room};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    struct fcc_msg msg;
    ssize_t n;
    int status;

    *nfds = 0;
    /* If the peer closed with messages unread, the first recvmsg() fails with ECONNRESET. The peer's own messages can be read
     * after it. */
    bool reset = false;
    do
        n = recvmsg(sock, &h, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !reset && (reset = true))));
    if (n < 0)
        return errno == ECONNRESET || reset ? 0 : -errno;
    status = take_fds(&h, fds, nfds);
    if (n == 0 && *nfds == 0 && !status)
        return 0;
    if (status || (h.msg_flags & MSG_TRUNC) || n < (ssize_t)sizeof(msg))
        goto malformed;
    if (h.msg_flags &
        MSG_CTRUNC) { /* this process is out of descriptors: `control` has room for all that one message can carry */
        fds_discard(fds, *nfds);
        *nfds = MSG_FDS_LOST;
    }
    memcpy(&msg, buf, sizeof(msg));
    if (msg.length != (size_t)n || msg.zero)
        goto malformed;
    return n;
malformed:
    if (*nfds > 0)
        fds_discard(fds, *nfds);
    *nfds = 0;
    return -EPROTO;
}

void fds_close(const int *fds, int nfds)
{
    for (int i = 0; i < nfds; i++)
        (void)close(fds[i]);
}

void msg_fds_forbid(int sock)
{
    const int off = 0;

    (void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)); /* fails on an older kernel */
}

/* setsockopt() and connect() fail on a descriptor that is not a socket, which does no harm. The sender may set SO_LINGER again
 * in between, but the socket is disconnected then, and its close waits for nothing. */
void fds_discard(const int *fds, int nfds)
{
    static const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    static const struct linger off = {.l_onoff = 0};

    for (int i = 0; i < nfds; i++) {
        (void)setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &off, sizeof(off));
        (void)connect(fds[i], &nowhere, sizeof(nowhere));
        (void)close(fds[i]);
    }
}

/* Receives and discards one message with its descriptors. Returns false if there is none. A message of 0 bytes differs from the
 * end of the connection by its credentials (SO_PASSCRED), which come with every message. */
static bool unread_discard(int sock)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int) * FDS_AT_ONCE)];
    } control;
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    int fds[FCC_MAX_FDS], nfds = 0;
    ssize_t n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n < 0)
        return errno == EINTR || errno == ECONNRESET; /* ECONNRESET is reported only once */
    bool any = n > 0 || h.msg_controllen > 0;
    (void)take_fds(&h, fds, &nfds);
    fds_discard(fds, nfds);
    return any;
}

void msg_close(int sock)
{
    const int on = 1;

    (void)shutdown(sock, SHUT_RD); /* no more messages can arrive, so the loop ends */
    (void)setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
    while (unread_discard(sock)) {
    }
    (void)close(sock);
}
