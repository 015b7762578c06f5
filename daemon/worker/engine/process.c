/* SPDX-License-Identifier: MIT
 *
 * process.c - notices the end of a client's process. The socket's end does not suffice, because a forked child keeps the socket open. So the
 * worker holds a descriptor of the process itself.
 */
#include "daemon/worker/engine/process.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

static int pidfd_of_peer(int sock)
{
    socklen_t size = sizeof(int);
    int fd = -1;

    return getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) ? -errno : fd;
}

/* Another process may have got the pid meanwhile, but only if the client's has ended. Then that end is noticed by the socket alone, or later;
 * never too early. */
static int pidfd_of_number(pid_t pid)
{
    int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;

    return fd >= 0 ? fd : pid > 0 ? -errno : -EOPNOTSUPP; /* a pid of 0 is one of another namespace */
}

int process_watch(int sock, pid_t pid, int *out, struct error *e)
{
    int fd = pidfd_of_peer(sock);

    if (fd == -ENOPROTOOPT)
        fd = pidfd_of_number(pid);
    *out = fd >= 0 ? fd : -1;
    if (fd >= 0)
        return 0;
    switch (fd) {
    case -ESRCH:
    case -EINVAL: /* Linux before 6.16, of a process that has been waited for */
        return error_set(e, -ESRCH, "its process has ended");
    case -EMFILE:
    case -ENFILE:
    case -ENOMEM:
        return error_set(e, fd, "a descriptor of its process: %s", strerror(-fd));
    default:
        log_info("pid %d: its end will be noticed by its connection alone, which a child of it may hold: no descriptor of the "
                 "process: %s",
                 pid, strerror(-fd));
        return 0;
    }
}
