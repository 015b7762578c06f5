/* SPDX-License-Identifier: MIT
 *
 * doctor_mps.c - checks NVIDIA's Multi-Process Service. Client and worker are two processes on one GPU. Without MPS the GPU
 * switches between them in time slices, and each synchronization of their streams takes about 0.3 ms instead of 3 to 4 us. A
 * control daemon serves one user at a time, unless it was started with -multiuser-server (short: -M).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/field.h"

#define CHECK "mps"
#define PIPE_DEFAULT "/tmp/nvidia-mps"
#define PROGRAM "nvidia-cuda-mps-control"
#define COST "each hand-over between your program and fccd costs about 0.3 ms instead of 3 to 4 us"

/* A directory's path with "/control" must fit into a socket's address. */
#define PATH_ROOM sizeof(((struct sockaddr_un *)0)->sun_path)
#define DIRECTORY_ROOM (PATH_ROOM - sizeof("/control") + 1)

/* The control daemon that listens at a pipe directory. */
struct mps {
    char directory[DIRECTORY_ROOM];
    uid_t uid;
    bool args_known; /* its command line could be read */
    bool multiuser;  /* it was started for several users */
};

/* Connects to a control daemon and disconnects, which it treats as a client without credentials. Returns 0 and the daemon's
 * credentials, or
 * -errno. */
static int socket_probe(const char path[PATH_ROOM], struct ucred *who)
{
    static const int types[] = {SOCK_SEQPACKET, SOCK_STREAM};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(*who);
    int status = -EPROTOTYPE;

    memcpy(address.sun_path, path, PATH_ROOM);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && status == -EPROTOTYPE; i++) {
        int sock = socket(AF_UNIX, types[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (sock < 0)
            return -errno;
        status = connect(sock, (const struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
        if (!status && getsockopt(sock, SOL_SOCKET, SO_PEERCRED, who, &size))
            status = -errno;
        (void)close(sock);
    }
    return status;
}

/* As socket_probe(), for an older control daemon, which listens at a named pipe. */
static int fifo_probe(const char *path, const struct stat *st, struct ucred *who)
{
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return errno == ENXIO ? -ECONNREFUSED : -errno;
    (void)close(fd);
    *who = (struct ucred){.uid = st->st_uid};
    return 0;
}

/* Is this process a control daemon? Then *multiuser says whether it was started for several users. */
static bool args_read(int64_t pid, bool *multiuser)
{
    char args[4096];
    ssize_t n = file_read(words("/proc/%" PRId64 "/cmdline", pid).text, args, sizeof(args));
    bool is_it = false;

    *multiuser = false;
    for (const char *a = args; a < args + n; a += strlen(a) + 1) {
        const char *slash = strrchr(a, '/');
        is_it |= a == args && strcmp(slash ? slash + 1 : a, PROGRAM) == 0;
        *multiuser |= strcmp(a, "-M") == 0 || strcmp(a, "-multiuser-server") == 0 || strcmp(a, "--multiuser-server") == 0;
    }
    return is_it;
}

/* Reads the control daemon's pid from its directory. (The socket's credentials may be those of its parent, which listened
 * before the daemon went to the background.) */
static int64_t pid_read(const char *directory)
{
    char line[32];

    (void)file_read(words("%s/" PROGRAM ".pid", directory).text, line, sizeof(line));
    return strtoll(line, NULL, 10);
}

/* Finds the control daemon. Returns 0 or -errno; -ENOENT and -ECONNREFUSED: none is running. */
static int mps_find(struct mps *m)
{
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct ucred who = {0};
    struct stat st;
    char path[PATH_ROOM] = "";
    int status;

    *m = (struct mps){0};
    if (snprintf(m->directory, sizeof(m->directory), "%s", named && *named ? named : PIPE_DEFAULT) >= (int)sizeof(m->directory))
        return -ENAMETOOLONG;
    (void)snprintf(path, sizeof(path), "%s/control", m->directory);
    if (stat(path, &st) != 0)
        return errno == ENOTDIR ? -ENOENT : -errno;
    status = S_ISSOCK(st.st_mode) ? socket_probe(path, &who) : S_ISFIFO(st.st_mode) ? fifo_probe(path, &st, &who) : -ENOENT;
    if (status)
        return status;
    m->uid = who.uid;
    m->args_known = args_read(pid_read(m->directory), &m->multiuser) || args_read(who.pid, &m->multiuser);
    return 0;
}

static struct words user_name(uid_t uid)
{
    const struct passwd *user = getpwuid(uid);

    return user ? words("%s", user->pw_name) : words("uid %u", (unsigned)uid);
}

/* Does fccd serve several users, that is, does it run as root? */
static bool serves_all(const struct doctor *d)
{
    char path[64];
    struct stat st;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64, field_int(d->status, "pid", 0));
    return stat(path, &st) == 0 && st.st_uid == 0;
}

static void report_missing(struct doctor *d, const struct mps *m, int status)
{
    const char *remedy = serves_all(d) ? "as root: '" PROGRAM
                                         " -d -M' for jobs of several users, who then share one MPS server; "
                                         "'" PROGRAM " -d' for those of one user at a time"
                                       : "'" PROGRAM " -d'";

    if (status == -ENAMETOOLONG)
        finding_add(d, FINDING_BAD, CHECK, "choose a shorter one", "$CUDA_MPS_PIPE_DIRECTORY: longer than %zu characters",
                    sizeof(m->directory) - 1);
    else if (status == -ENOENT || status == -ECONNREFUSED)
        finding_add(d, FINDING_WARN, CHECK, remedy, "no MPS control daemon listens at %s: " COST, m->directory);
    else
        finding_add(d, FINDING_WARN, CHECK,
                    "open the directory to your user, or set CUDA_MPS_PIPE_DIRECTORY to another server's",
                    "%s/control: %s: " COST, m->directory, strerror(-status));
}

static void report_found(struct doctor *d, const struct mps *m)
{
    struct words name = user_name(m->uid);

    if (m->uid != 0 && m->uid != getuid())
        finding_add(d, FINDING_WARN, CHECK,
                    "start your own: '" PROGRAM
                    " -d' with a CUDA_MPS_PIPE_DIRECTORY of yours, also for your programs; or one for "
                    "all, as root: '" PROGRAM " -d -M'",
                    "the MPS control daemon at %s belongs to %s and serves that user only: " COST, m->directory, name.text);
    else if (m->uid != 0)
        finding_add(d, FINDING_OK, CHECK, "", "your own MPS control daemon listens at %s", m->directory);
    else if (m->args_known && m->multiuser)
        finding_add(
            d, FINDING_OK, CHECK, "",
            "an MPS control daemon for all users listens at %s. All their jobs share one server: a process that dies while its "
            "kernel runs takes the GPU contexts of all of them",
            m->directory);
    else if (m->args_known && serves_all(d))
        finding_add(d, FINDING_WARN, CHECK,
                    "as root: 'echo quit | " PROGRAM "', then '" PROGRAM
                    " -d -M'. The price: the jobs of all users share one MPS "
                    "server, and a process that dies while its kernel runs takes the GPU contexts of all of them",
                    "the MPS control daemon at %s is for one user at a time: while one's jobs run, another's GPU programs wait",
                    m->directory);
    else
        finding_add(d, FINDING_OK, CHECK, "", "an MPS control daemon of %s listens at %s%s", name.text, m->directory,
                    m->args_known ? ", for one user at a time" : "; whether for one user at a time cannot be seen from here");
}

void doctor_mps(struct doctor *d)
{
    struct mps m;
    bool nvidia = false;
    int status;

    for (size_t i = 0; i < field_count(d->devices, "devices"); i++)
        nvidia |= strcmp(field_text(field_at(d->devices, "devices", i), "kind"), "cuda") == 0;
    if (!nvidia)
        return;
    status = mps_find(&m);
    if (status)
        report_missing(d, &m, status);
    else
        report_found(d, &m);
}
