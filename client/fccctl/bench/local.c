/* SPDX-License-Identifier: MIT */
#include "client/fccctl/bench/local.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "proto/base/clock.h"
#include "proto/base/fd.h"

#define LOCAL_LIMIT_MS 10000 /* time limit for starting and for ending */
#define STEP_MS 5

static void step(void)
{
    const struct timespec t = {.tv_nsec = STEP_MS * 1000000L};
    (void)nanosleep(&t, NULL); /* may end early, by a signal */
}

int local_find_daemon(char *out, size_t room, struct error *e)
{
    const char *named = getenv("FCCD_BINARY"), *path = getenv("PATH");
    char self[PATH_MAX] = "";

    if (named && *named) {
        if (access(named, X_OK) != 0)
            return error_set(e, -ENOENT, "$FCCD_BINARY: \"%s\": %s", named, strerror(errno));
        if (snprintf(out, room, "%s", named) >= (int)room)
            return error_set(e, -ENOENT, "$FCCD_BINARY: longer than %zu characters", room - 1);
        return 0;
    }
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0 && snprintf(out, room, "%s/fccd", dirname(self)) < (int)room &&
        access(out, X_OK) == 0)
        return 0;
    for (const char *p = path ? path : "/usr/sbin:/usr/bin"; *p;) {
        size_t n = strcspn(p, ":");
        if (n > 0 && snprintf(out, room, "%.*s/fccd", (int)n, p) < (int)room && access(out, X_OK) == 0)
            return 0;
        p += n + (p[n] == ':');
    }
    return error_set(e, -ENOENT, "no fccd beside this program nor in $PATH; $FCCD_BINARY may name it");
}

/* Makes a directory of mode 0700 in $TMPDIR or /tmp. */
static int directory_make(char out[96], struct error *e)
{
    const char *tmp = getenv("TMPDIR");
    char path[96];

    if (snprintf(path, sizeof(path), "%s/fccd-XXXXXX", tmp && *tmp ? tmp : "/tmp") >= (int)sizeof(path))
        return error_set(e, -ENAMETOOLONG, "$TMPDIR: \"%s\": too long for a socket's path", tmp);
    if (!mkdtemp(path))
        return error_set(e, -errno, "%s: %s", path, strerror(errno));
    memcpy(out, path, sizeof(path));
    return 0;
}

/* With its files. "": there is none. */
static void directory_remove(const char *path)
{
    DIR *dir = *path ? opendir(path) : NULL;

    if (!*path)
        return;
    if (dir) { /* the daemon makes no directories */
        const struct dirent *entry;
        while ((entry = readdir(dir))) {
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
        (void)closedir(dir);
    }
    (void)rmdir(path);
}

/* In the child: becomes fccd. The caller's descriptors beyond 2 are close-on-exec. */
static void become_daemon(const char *binary, const struct local_options *options, const struct local_daemon *d, pid_t parent)
{
    char *argv[20] = {"fccd"}, devices[16];
    const char *const pairs[][2] = {
        {"--config", "/dev/null"},
        {"--socket", d->socket},
        {"--cpu-devices", devices},
        {"--gpus", options->gpus ? options->gpus : "none"},
        {"--log-level", options->log_level ? options->log_level : "warning"},
        {"--node-listen", options->listen},
        {"--cluster-key", options->key},
    };
    int n = 1;
    sigset_t none;

    (void)setpgid(0, 0); /* the terminal's SIGINT goes to the caller only, who then ends the daemon */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)snprintf(devices, sizeof(devices), "%d", options->devices);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        if (!pairs[i][1])
            continue;
        argv[n++] = (char *)(uintptr_t)pairs[i][0];
        argv[n++] = (char *)(uintptr_t)pairs[i][1];
    }
    if (options->cores && sched_setaffinity(0, sizeof(*options->cores), options->cores))
        _exit(1);
    (void)execv(binary, argv);
    _exit(127);
}

static const char *how_it_ended(int wait_status, char out[64])
{
    if (WIFSIGNALED(wait_status))
        (void)snprintf(out, 64, "was killed by signal %d", WTERMSIG(wait_status));
    else
        (void)snprintf(out, 64, "ended with exit status %d", WEXITSTATUS(wait_status));
    return out;
}

/* Waits until the daemon answers a HELLO. */
static int wait_until_up(struct local_daemon *d, const char *binary, struct error *e)
{
    int64_t deadline = clock_ms() + LOCAL_LIMIT_MS;
    struct error last = {0};
    struct control *c;
    int wait_status;
    char how[64];

    while (clock_ms() < deadline) {
        if (waitpid(d->pid, &wait_status, WNOHANG) == d->pid) {
            d->pid = 0;
            return error_set(e, -ECONNREFUSED, "%s %s before it took connections", binary, how_it_ended(wait_status, how));
        }
        if (control_open(d->socket, getuid(), "", CONTROL_LIMIT_MS, &c, &last) == 0) {
            control_close(c);
            return 0;
        }
        if (last.status != -ECONNREFUSED)
            return error_set(e, last.status, "%s: %s", binary, last.text);
        step();
    }
    return error_set(e, -ETIMEDOUT, "%s took no connections within %d s: %s", binary, LOCAL_LIMIT_MS / 1000, last.text);
}

int local_daemon_start(const struct local_options *options, struct local_daemon *out, struct error *e)
{
    struct local_daemon d = {0};
    char binary[4096];
    pid_t self = getpid();
    int status;

    if (options->binary)
        (void)snprintf(binary, sizeof(binary), "%s", options->binary);
    else if ((status = local_find_daemon(binary, sizeof(binary), e)))
        return status;
    if ((status = directory_make(d.directory, e)))
        return status;
    (void)snprintf(d.socket, sizeof(d.socket), "%s/fccd.sock", d.directory);
    (void)fflush(NULL);
    d.pid = fork();
    if (d.pid < 0) {
        status = error_set(e, -errno, "no new process: %s", strerror(errno));
        (void)rmdir(d.directory);
        return status;
    }
    if (d.pid == 0)
        become_daemon(binary, options, &d, self);
    status = wait_until_up(&d, binary, e);
    if (status) {
        (void)local_daemon_stop(&d, NULL);
        return status;
    }
    *out = d;
    return 0;
}

/* Returns true if the child has ended within the limit; it is then reaped. */
static bool wait_for_end(pid_t pid, int limit_ms, int *wait_status)
{
    int64_t deadline = clock_ms() + limit_ms;

    for (;;) {
        pid_t got = waitpid(pid, wait_status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return true;
        if (clock_ms() >= deadline)
            return false;
        step();
    }
}

/* Sends SIGTERM only, so that several daemons can end at the same time. */
static void daemon_terminate(struct local_daemon *d)
{
    if (d->pid > 0 && !d->terminated) /* a second SIGTERM would end the daemon without waiting for its jobs */
        (void)kill(d->pid, SIGTERM);
    d->terminated = true;
}

int local_daemon_stop(struct local_daemon *d, struct error *e)
{
    int status = 0, wait_status = 0;
    char how[64];

    if (d->pid > 0) {
        daemon_terminate(d);
        if (!wait_for_end(d->pid, LOCAL_LIMIT_MS, &wait_status)) {
            (void)kill(d->pid, SIGKILL);
            (void)wait_for_end(d->pid, LOCAL_LIMIT_MS, &wait_status);
            status = error_set(e, -ETIMEDOUT, "fccd did not end within %d s of SIGTERM and was killed", LOCAL_LIMIT_MS / 1000);
        } else if (wait_status != 0) {
            status = error_set(e, -EIO, "fccd %s", how_it_ended(wait_status, how));
        }
        d->pid = 0;
    }
    directory_remove(d->directory);
    d->directory[0] = '\0';
    return status;
}

/* ---- several, each for itself a node ---- */

#define KEY_BYTES 64

/* The cores for node `index` of n: a share of this process's cores, or all if there are fewer than n. 0 or a negative
 * errno. */
static int local_cores(int index, int n, cpu_set_t *out)
{
    cpu_set_t all;
    int cores, seen = 0;

    if (sched_getaffinity(0, sizeof(all), &all))
        return -errno;
    cores = CPU_COUNT(&all);
    CPU_ZERO(out);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &all))
            continue;
        if (cores < n || seen * n / cores == index) /* a daemon's cores are neighbours */
            CPU_SET(c, out);
        seen++;
    }
    return 0;
}

static int key_make(struct local_nodes *l, char path[112], struct error *e)
{
    unsigned char key[KEY_BYTES];
    int fd, status = directory_make(l->directory, e);

    if (status)
        return status;
    (void)snprintf(path, 112, "%s/cluster.key", l->directory);
    if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
        return error_set(e, -EIO, "no random bytes for a key: %s", strerror(errno));
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, key, sizeof(key)) != (ssize_t)sizeof(key))
        status = error_set(e, -errno, "%s: %s", path, strerror(errno));
    fd_close(&fd);
    explicit_bzero(key, sizeof(key));
    return status;
}

/* Binds a free port. Returns the socket; writes its address. */
static int port_hold(char address[FCC_NODE_MAX], struct error *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (sock < 0 || bind(sock, (struct sockaddr *)&a, size) || getsockname(sock, (struct sockaddr *)&a, &size)) {
        int status = error_set(e, -errno, "no port on 127.0.0.1: %s", strerror(errno));
        fd_close(&sock);
        return status;
    }
    (void)snprintf(address, FCC_NODE_MAX, "127.0.0.1:%d", ntohs(a.sin_port));
    return sock;
}

/* Finds a free port for each daemon. All are held until the last is found, so they differ. */
static int ports_find(struct local_nodes *l, struct error *e)
{
    int held[LOCAL_NODES_MAX], n = 0, status = 0;

    for (; n < l->n && !status; n += !status) {
        held[n] = port_hold(l->addresses[n], e);
        status = held[n] < 0 ? held[n] : 0;
    }
    while (n > 0)
        (void)close(held[--n]);
    return status;
}

static int node_start(struct local_options *options, const char *key, int index, struct local_nodes *l, struct error *e)
{
    cpu_set_t cores;
    int status = local_cores(index, l->n, &cores);
    struct error why = {0};

    if (status)
        return error_set(e, status, "the cores of this process: %s", strerror(-status));
    options->cores = &cores;
    options->listen = *l->addresses[index] ? l->addresses[index] : NULL;
    options->key = key;
    if (key && !options->log_level)
        options->log_level = "error"; /* when they end, each daemon would warn that the others are lost */
    status = local_daemon_start(options, &l->daemons[index], &why);
    options->cores = NULL;
    if (status && l->n > 1)
        return error_set(e, status, "node %s: %s", l->addresses[index], why.text);
    return status ? error_set(e, status, "%s", why.text) : 0;
}

int local_nodes_start(struct local_options options[], int n, struct local_nodes *out, struct error *e)
{
    char key[112];
    int status = 0;

    memset(out, 0, sizeof(*out));
    out->n = n;
    if (n > 1 && !(status = key_make(out, key, e)))
        status = ports_find(out, e);
    for (int i = 0; i < n && !status; i++)
        status = node_start(&options[i], n > 1 ? key : NULL, i, out, e);
    if (status)
        (void)local_nodes_stop(out, NULL);
    return status;
}

int local_nodes_stop(struct local_nodes *l, struct error *e)
{
    int status = 0;

    for (int i = 0; i < l->n; i++) /* the daemons end at the same time */
        daemon_terminate(&l->daemons[i]);
    for (int i = l->n; i-- > 0;) {
        struct error why = {0};
        int s = local_daemon_stop(&l->daemons[i], &why);
        if (s && !status)
            status = error_set(e, s, "%s%s%s", l->addresses[i], *l->addresses[i] ? ": " : "", why.text);
    }
    directory_remove(l->directory);
    l->n = 0;
    return status;
}
