/* SPDX-License-Identifier: MIT
 *
 * hold.c - HOLD_FILE: processes that need this daemon hold shared locks on it (flock). The kernel takes the lock of a process back
 * when it ends, however that happens. The daemon ends when it gets the exclusive lock. It keeps that until it is gone: a process that
 * wants the next daemon waits for the lock, and so cannot meet one that is about to end.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "proto/base/fd.h"
#include "proto/base/log.h"

int hold_open(const struct config *config)
{
    const char *path = config->hold_file;
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    const bool there = fd >= 0 && fstat(fd, &st) == 0;
    int status = there ? 0 : -errno;

    if (there && (!S_ISREG(st.st_mode) || st.st_uid != geteuid()))
        status = -EPERM;
    if (!status && flock(fd, LOCK_SH | LOCK_NB) && errno != EWOULDBLOCK) /* a file system without locks */
        status = -errno;
    if (!status) {
        (void)flock(fd, LOCK_UN);
        return fd;
    }
    if (status == -EPERM)
        log_error("HOLD_FILE %s: allowed is a regular file of uid %u", path, geteuid());
    else
        log_error("HOLD_FILE %s: %s", path, strerror(-status));
    fd_close(&fd);
    return status;
}

bool hold_is_over(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

void hold_close(const struct config *config, int *fd)
{
    struct stat st;

    if (*fd < 0)
        return;
    if (hold_is_over(*fd)) { /* nobody needs it any more: not so after a signal */
        if (*config->log_file && !stat(config->log_file, &st) && S_ISREG(st.st_mode) && st.st_size == 0)
            (void)unlink(config->log_file);
        (void)unlink(config->hold_file);
    }
    fd_close(fd);
}
