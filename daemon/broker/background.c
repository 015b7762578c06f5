/* SPDX-License-Identifier: MIT */
#include "daemon/broker/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/fd.h"
#include "proto/base/log.h"

#define START_LIMIT_MS 60000 /* how long the daemon may take until it listens: it looks up a group and addresses of this node */
#define END_LIMIT_MS 2000    /* how long to wait for the end of another daemon that has locked PID_FILE */

static int ready_fd = -1; /* the pipe's end to which the daemon writes when it listens */
static int pid_fd = -1;   /* the locked PID_FILE */

/* Waits in the started process until the daemon listens or has failed. Does not return. */
static void parent_wait(const struct config *config, pid_t child, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int status, n;
    char byte;

    do
        n = poll(&p, 1, START_LIMIT_MS);
    while (n < 0 && errno == EINTR);
    if (n > 0 && read(fd, &byte, 1) == 1) {
        printf("fccd listens at %s: process %d (%s), log %s\n", config->socket, child, config->pid_file, config->log_file);
        exit(fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    if (n == 0) {
        (void)fprintf(stderr, "fccd: it did not listen within %d s: ended\n", START_LIMIT_MS / 1000);
        (void)kill(child, SIGKILL);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == EXIT_SUCCESS)
        exit(EXIT_FAILURE);
    exit(WEXITSTATUS(status));
}

int background_enter(const struct config *config)
{
    int fds[2], null;
    pid_t child;

    if (pipe2(fds, O_CLOEXEC))
        return -errno;
    (void)fflush(NULL);
    child = fork();
    if (child < 0) {
        int status = -errno;
        (void)close(fds[0]);
        (void)close(fds[1]);
        return status;
    }
    if (child > 0) {
        (void)close(fds[1]);
        parent_wait(config, child, fds[0]);
    }
    (void)close(fds[0]);
    ready_fd = fds[1];
    if (setsid() < 0 || chdir("/"))
        return -errno;
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
        return -errno;
    (void)close(null);
    return 0;
}

void background_ready(void)
{
    if (ready_fd < 0)
        return;
    if (write(ready_fd, "", 1) < 0)
        log_warning("the process that started fccd has ended before fccd listened");
    (void)close(ready_fd);
    ready_fd = -1;
}

/* For the error text if PID_FILE is not set: where its folder comes from. */
#define BESIDE_SOCKET " (it is beside the socket, in a folder that has to be there and be yours to write: SOCKET, --socket)"

static bool is_beside_socket(const struct config *config)
{
    const char *slash = strrchr(config->pid_file, '/');
    size_t folder = slash ? (size_t)(slash - config->pid_file) + 1 : 0;

    return !strncmp(config->pid_file, config->socket, folder) && !strchr(config->socket + folder, '/');
}

/* Another daemon has locked PID_FILE. It may be about to end, so it is given some time. Returns false when that time is
 * over. */
static bool is_to_wait(uint64_t since_ns)
{
    if (clock_ns() - since_ns > (uint64_t)END_LIMIT_MS * 1000000)
        return false;
    (void)poll(NULL, 0, 5);
    return true;
}

/* Opens and locks the file at that path. Returns its descriptor, or -errno: -EPERM if the file does not belong to this
 * process's user,
 * -EWOULDBLOCK if another daemon has locked it. */
static int pid_file_lock(const char *path)
{
    uint64_t since = clock_ns();
    struct stat st, at;
    int fd, status;

    for (;;) {
        fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
        if (fd < 0)
            return -errno;
        if (fstat(fd, &st))
            status = -errno;
        else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
            status = -EPERM; /* in a directory that everybody may write to, another user may have made the file */
        else
            status = flock(fd, LOCK_EX | LOCK_NB) ? -errno : 0;
        if (!status && !lstat(path, &at) && at.st_dev == st.st_dev && at.st_ino == st.st_ino)
            return fd;
        (void)close(fd);
        if (!status) /* a daemon that was ending removed the file between open() and flock() */
            status = -EWOULDBLOCK;
        if (status != -EWOULDBLOCK || !is_to_wait(since))
            return status;
    }
}

int pid_file_write(const struct config *config)
{
    const char *path = config->pid_file;
    int status;

    if (!*path)
        return 0;
    pid_fd = status = pid_file_lock(path);
    if (status >= 0 && !ftruncate(pid_fd, 0) && dprintf(pid_fd, "%d\n", getpid()) > 0)
        return 0;
    if (status >= 0)
        status = -errno;
    if (status == -EWOULDBLOCK)
        log_error("PID_FILE %s: another fccd has it", path);
    else if (status == -EPERM)
        log_error("PID_FILE %s: allowed is a regular file of uid %u, or none", path, geteuid());
    else
        log_error("PID_FILE %s: %s%s", path, strerror(-status), is_beside_socket(config) ? BESIDE_SOCKET : "");
    fd_close(&pid_fd);
    return status;
}

void pid_file_remove(const struct config *config)
{
    if (pid_fd < 0)
        return;
    (void)unlink(config->pid_file); /* before the lock is released, while the file is this process's for sure */
    (void)close(pid_fd);
    pid_fd = -1;
}
