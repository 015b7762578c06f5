/* SPDX-License-Identifier: MIT
 *
 * listen.c - the listening socket: passed by systemd, or made here (mode 0660, with the configured group).
 */
#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/broker/store.h"
#include "proto/base/log.h"

#define BACKLOG 1024

#define KEPT_AS "listen"
#define LEFT_MS 1000 /* how long a killed broker's child may have its sockets: it is on its way to an exec */
#define LEFT_STEP_MS 10

/* Returns -ENOENT if there is none. */
static int socket_from_systemd(struct broker *b)
{
    int sock = -1, n = store_sockets(b, &sock);

    if (n == 0)
        return -ENOENT;
    if (n > 1 || sd_is_socket_unix(sock, SOCK_SEQPACKET, 1, NULL, 0) <= 0) {
        log_error("systemd passed %d sockets: allowed is one listening Unix socket (ListenSequentialPacket=)", n);
        return -EINVAL;
    }
    return sock;
}

/* The socket of the last broker, if that has made it and left it at the same path. */
static int socket_from_store(struct broker *b)
{
    int sock = store_take(b, KEPT_AS);

    if (sock >= 0 && (sd_is_socket_unix(sock, SOCK_SEQPACKET, 1, b->config.socket, 0) <= 0 || access(b->config.socket, F_OK))) {
        store_drop(b, KEPT_AS);
        fd_close(&sock);
    }
    return sock < 0 ? -ENOENT : sock;
}

/* Removes a socket at which nobody listens: it is left over from a daemon that was killed. */
static int leftover_remove(const struct sockaddr_un *address, int type)
{
    struct stat st;
    int probe;

    if (lstat(address->sun_path, &st))
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    probe = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return -errno;
    int refused = connect(probe, (const struct sockaddr *)address, sizeof(*address)) && errno == ECONNREFUSED;
    (void)close(probe);
    if (!refused)
        return -EADDRINUSE;
    return unlink(address->sun_path) ? -errno : 0;
}

/* The group that sockets get: SOCKET_GROUP, or that of the socket for clients, if it is there already, or this process's own. -errno (logged) */
static int group_find(const struct broker *b, gid_t *gid)
{
    const char *group = b->config.socket_group;
    struct sockaddr_un a = {.sun_family = AF_UNSPEC};
    socklen_t size = sizeof(a);
    struct stat st;

    *gid = getegid();
    errno = 0;
    const struct group *g = *group ? getgrnam(group) : NULL;
    if (*group && !g) {
        int status = errno ? -errno : -ENOENT;
        log_error("SOCKET_GROUP %s: %s", group, status == -ENOENT ? "no such group" : strerror(-status));
        return status;
    }
    if (g)
        *gid = g->gr_gid;
    else if (b->listen_sock >= 0 && !getsockname(b->listen_sock, (struct sockaddr *)&a, &size) && a.sun_family == AF_UNIX &&
             *a.sun_path && !stat(a.sun_path, &st))
        *gid = st.st_gid;
    return 0;
}

/* The socket has that group, and then the mode of a new one. One that has had it stays as it is, whatever mode somebody has given it. */
static int group_set(const char *path, gid_t gid, bool anew)
{
    struct stat st;
    bool had = !stat(path, &st) && st.st_gid == gid;

    if (had && !anew)
        return 0;
    int status = (!had && chown(path, (uid_t)-1, gid)) || chmod(path, 0660) ? -errno : 0;
    if (status)
        log_error("SOCKET_GROUP: %s cannot be given to group %u: %s", path, gid, strerror(-status));
    return status;
}

/* Other users cannot connect before the mode is set. It is made as a file of that group where this process may take groups: the service may do that, and
 * give no file away (CAP_SETGID, and no CAP_CHOWN). Who may not gives it to the group behind it. */
static int bind_for(int sock, const struct sockaddr_un *address, gid_t gid)
{
    const gid_t own = getegid();
    const int dumps = prctl(PR_GET_DUMPABLE);
    const bool taken = gid != own && !setegid(gid);
    const mode_t mask = umask(0177);
    int status = bind(sock, (const struct sockaddr *)address, sizeof(*address)) ? -errno : 0;

    (void)umask(mask);
    if (taken && setegid(own) && !status)
        status = -errno;
    if (taken)
        (void)prctl(PR_SET_DUMPABLE, dumps == 1, 0, 0, 0); /* which another group takes away */
    return status;
}

int listener_after(const struct broker *b, int (*make)(const void *what), const void *what)
{
    const struct timespec step = {.tv_nsec = LEFT_STEP_MS * 1000000L};
    int status = make(what);

    for (int ms = 0; status == -EADDRINUSE && store_followed(b) && ms < LEFT_MS; ms += LEFT_STEP_MS) {
        (void)nanosleep(&step, NULL);
        status = make(what);
    }
    return status;
}

struct leftover {
    const struct sockaddr_un *address;
    int type;
};

static int leftover_try(const void *what)
{
    const struct leftover *l = what;

    return leftover_remove(l->address, l->type);
}

int socket_listen(const struct broker *b, const char *key, const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int status, sock;
    gid_t gid;

    text_copy(address.sun_path, sizeof(address.sun_path), path);
    status = listener_after(b, leftover_try, &(struct leftover){&address, type});
    if (status) {
        log_error("%s %s: %s", key, path,
                  status == -EADDRINUSE ? "another daemon listens there"
                  : status == -EEXIST   ? "something is there that is no socket: allowed is a path where nothing is"
                                        : strerror(-status));
        return status;
    }
    status = group_find(b, &gid);
    if (status)
        return status;
    sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return -errno;
    status = bind_for(sock, &address, gid);
    if (status) {
        log_error("%s %s: %s", key, path, strerror(-status));
        (void)close(sock);
        return status;
    }
    status = group_set(path, gid, true);
    if (!status && listen(sock, BACKLOG))
        log_error("%s %s: listen: %s", key, path, strerror(-(status = -errno)));
    if (status) {
        (void)unlink(path);
        (void)close(sock);
        return status;
    }
    return sock;
}

int listen_open(struct broker *b)
{
    int sock = socket_from_systemd(b);

    if (sock >= 0)
        (void)evutil_make_socket_nonblocking(sock);
    if (sock != -ENOENT)
        return sock;
    sock = socket_from_store(b);
    if (sock >= 0) { /* the configuration may have changed */
        gid_t gid;
        int status = group_find(b, &gid);
        status = status ? status : group_set(b->config.socket, gid, false);
        if (status) {
            (void)close(sock);
            return status;
        }
    } else {
        sock = socket_listen(b, "SOCKET", b->config.socket, SOCK_SEQPACKET);
        if (sock >= 0)
            (void)store_keep(b, KEPT_AS, sock);
    }
    b->socket_is_ours = sock >= 0;
    return sock;
}

void listen_close(struct broker *b)
{
    if (b->listen_sock < 0)
        return;
    if (b->socket_is_ours && !b->leaving) {
        (void)unlink(b->config.socket);
        store_drop(b, KEPT_AS);
    }
    (void)close(b->listen_sock);
    b->listen_sock = -1;
}
