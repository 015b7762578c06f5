/* SPDX-License-Identifier: MIT
 *
 * raw_send.h - a message as it is, with any descriptors: more than any message has, and of any kind.
 */
#ifndef FCC_FUZZ_RAW_SEND_H
#define FCC_FUZZ_RAW_SEND_H

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { RAW_FDS = 64 };

static inline void raw_send(int sock, const void *bytes, size_t length, const int *fds, int nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * RAW_FDS)];
    } room = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds) {
        h.msg_control = room.bytes;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *m = CMSG_FIRSTHDR(&h);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(m), fds, sizeof(int) * (size_t)nfds);
    }
    (void)sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A descriptor of some kind, or -1. */
static inline int raw_fd(struct input *in)
{
    int pair[2];

    switch (input_below(in, 6)) {
    case 0:
        return pipe2(pair, O_CLOEXEC) ? -1 : (close(pair[1]), pair[0]);
    case 1:
        return open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    case 2:
        return memfd_create("fuzz", MFD_CLOEXEC);
    case 3:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 4:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    default:
        return eventfd(0, EFD_CLOEXEC);
    }
}

/* The message with `want` descriptors of the input's choice. */
static inline void raw_send_with(int sock, const void *bytes, size_t length, uint32_t want, struct input *in)
{
    int fds[RAW_FDS] = {0}, nfds = 0;

    while ((uint32_t)nfds < want && nfds < RAW_FDS && (fds[nfds] = raw_fd(in)) >= 0)
        nfds++;
    raw_send(sock, bytes, length, fds, nfds);
    for (int i = 0; i < nfds; i++)
        (void)close(fds[i]);
}

#endif
