/* SPDX-License-Identifier: MIT */
#include "tests/bed/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define KEPT_MAX 512
#define FDS_START 3 /* sd_listen_fds(3) */

/* ---- the keeper's process ---- */

struct kept {
    int n;
    int fd[KEPT_MAX];
    char name[KEPT_MAX][64];
};
/* A datagram of an order is its byte; behind that of ORDER_COUNT stands which name counts, and nothing for all. */
enum order { ORDER_GIVE = 'g', ORDER_DROP = 'd', ORDER_COUNT = 'c' };

static int takes = KEPT_MAX;

static void kept_remove(struct kept *k, int i)
{
    (void)close(k->fd[i]);
    k->n--;
    k->fd[i] = k->fd[k->n];
    memmove(k->name[i], k->name[k->n], sizeof(k->name[0]));
}

/* As systemd, which is told by epoll. */
static void kept_look(struct kept *k)
{
    for (int i = k->n - 1; i >= 0; i--) {
        struct pollfd p = {.fd = k->fd[i]};
        if (poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR))
            kept_remove(k, i);
    }
}

static void kept_store(struct kept *k, const char *text, const int *fds, size_t nfds)
{
    const char *name = strstr(text, "FDNAME=");
    char plain[64] = "stored";

    if (name)
        (void)snprintf(plain, sizeof(plain), "%.*s", (int)strcspn(name + 7, "\n"), name + 7);
    for (size_t i = 0; i < nfds; i++) {
        CHECK(strstr(text, "FDSTORE=1"));
        if (k->n >= takes) {
            (void)close(fds[i]);
            continue;
        }
        k->fd[k->n] = fds[i];
        memcpy(k->name[k->n++], plain, sizeof(plain));
    }
    for (int i = k->n - 1; i >= 0 && strstr(text, "FDSTOREREMOVE=1"); i--)
        if (!strcmp(k->name[i], plain))
            kept_remove(k, i);
}

/* One datagram of a broker. False: there is none. */
static bool kept_hear(struct kept *k, int notify)
{
    char text[1024];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 8)];
    } control;
    struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(notify, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&h);

    if (n < 0)
        return false;
    text[n] = '\0';
    kept_store(k, text, c ? (const int *)(const void *)CMSG_DATA(c) : NULL, c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0);
    return true;
}

static void descriptor_send(int sock, const char *name, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)name, .iov_len = strlen(name) + 1};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        h.msg_control = control.bytes;
        h.msg_controllen = sizeof(control);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    CHECK(sendmsg(sock, &h, MSG_NOSIGNAL) > 0);
}

static void order_follow(struct kept *k, int sock, enum order order, const char *name)
{
    int count = 0;

    kept_look(k);
    if (order == ORDER_DROP)
        while (k->n)
            kept_remove(k, k->n - 1);
    for (int i = 0; order == ORDER_GIVE && i < k->n; i++)
        descriptor_send(sock, k->name[i], k->fd[i]);
    if (order == ORDER_GIVE)
        descriptor_send(sock, "", -1);
    for (int i = 0; i < k->n; i++)
        count += !*name || !strcmp(k->name[i], name);
    if (order != ORDER_GIVE)
        CHECK(write(sock, &count, sizeof(count)) == sizeof(count));
}

static void keeper_main(int notify, int sock)
{
    static struct kept kept;
    struct pollfd p[2] = {{.fd = notify, .events = POLLIN}, {.fd = sock, .events = POLLIN}};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        char order[64] = {0};
        CHECK(poll(p, 2, 1000) >= 0 || errno == EINTR);
        while (kept_hear(&kept, notify)) {
        }
        kept_look(&kept);
        ssize_t n = recv(sock, order, sizeof(order) - 1, MSG_DONTWAIT);
        if (n > 0)
            order_follow(&kept, sock, (enum order)order[0], order + 1);
        else if (n == 0)
            _exit(EXIT_SUCCESS);
    }
}

/* ---- the test's ---- */

static struct keeper {
    pid_t pid;
    int sock;
    char path[108];
} keepers[TEST_NODES_MAX];
static int nkeepers, store_most;

static void order_send(int node, enum order order, const char *name)
{
    char text[64];
    int length = snprintf(text, sizeof(text), "%c%s", order, name);

    CHECK(length < (int)sizeof(text) && write(keepers[node].sock, text, (size_t)length) == length);
}

static int order_count(int node, enum order order, const char *name)
{
    int n = -1;

    order_send(node, order, name);
    CHECK(read(keepers[node].sock, &n, sizeof(n)) == sizeof(n));
    return n;
}

static int descriptor_receive(int sock, char *name, size_t room)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = name, .iov_len = room};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    int fd = -1;

    CHECK(recvmsg(sock, &h, 0) > 0);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    if (c)
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

/* In the process that becomes the node's broker. What it has open but its standard descriptors is not the test's to leave it. */
static void broker_enter(int node)
{
    static int fds[KEPT_MAX];
    static char names[KEPT_MAX * 64];
    char name[64], number[16];
    int n = 0;

    order_send(node, ORDER_GIVE, "");
    for (int fd; (fd = descriptor_receive(keepers[node].sock, name, sizeof(name))) >= 0; n++) {
        CHECK(n < KEPT_MAX && (fds[n] = fcntl(fd, F_DUPFD_CLOEXEC, FDS_START + KEPT_MAX)) >= 0);
        (void)close(fd);
        (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", n ? ":" : "", name);
    }
    for (int i = 0; i < n; i++)
        CHECK(dup2(fds[i], FDS_START + i) == FDS_START + i);
    (void)snprintf(number, sizeof(number), "%d", getpid());
    CHECK(!setenv("LISTEN_PID", number, 1));
    (void)snprintf(number, sizeof(number), "%d", n);
    CHECK(!setenv("LISTEN_FDS", number, 1) && !setenv("LISTEN_FDNAMES", names, 1));
    (void)snprintf(number, sizeof(number), "%d", store_most);
    CHECK(!setenv("NOTIFY_SOCKET", keepers[node].path, 1) && !setenv("FDSTORE", number, 1));
}

static void keeper_start(struct keeper *k, int node)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int pair[2], notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    (void)snprintf(k->path, sizeof(k->path), "%s/.notify%d", test_directory(), node);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", k->path);
    CHECK(notify >= 0 && !bind(notify, (const struct sockaddr *)&a, sizeof(a)));
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    k->pid = fork();
    CHECK(k->pid >= 0);
    if (k->pid == 0) {
        (void)close(pair[0]);
        for (int i = 0; i < node; i++)
            (void)close(keepers[i].sock);
        keeper_main(notify, pair[1]);
    }
    k->sock = pair[0];
    (void)close(pair[1]);
    (void)close(notify);
}

void keepers_take(int most)
{
    takes = most;
}

void keepers_start(int nodes, int most)
{
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    nkeepers = nodes;
    store_most = most;
    for (int i = 0; i < nodes; i++)
        keeper_start(&keepers[i], i);
    daemons_place(NULL, broker_enter);
}

void keeper_kill(struct test_daemon *d, int node, int number)
{
    struct test_node *n = &d->node[node];
    int status = 0;

    CHECK(!kill(n->pid, number) && waitpid(n->pid, &status, 0) == n->pid);
    if (number == SIGKILL ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status))
        check_failed(__FILE__, __LINE__, "the broker ended with wait status 0x%x", status);
    n->pid = 0;
}

void keeper_next(struct test_daemon *d, int node, const char *const options[])
{
    node_restart_busy(d, node, options);
}

void keeper_restart(struct test_daemon *d, int node, int number)
{
    keeper_kill(d, node, number);
    keeper_next(d, node, NULL);
}

void keeper_drop(int node)
{
    CHECK(order_count(node, ORDER_DROP, "") == 0);
}

void keeper_add(int node, const char *name, int fd)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), before = order_count(node, ORDER_COUNT, name);
    char text[128];

    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", keepers[node].path);
    (void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
    CHECK(sock >= 0 && !connect(sock, (const struct sockaddr *)&a, sizeof(a)));
    descriptor_send(sock, text, fd);
    (void)close(sock);
    /* Of that name alone, as a worker that ends takes its own away meanwhile. */
    CHECK(order_count(node, ORDER_COUNT, name) == before + 1);
}

int keeper_count(int node)
{
    return order_count(node, ORDER_COUNT, "");
}

void orphans_await(void)
{
    for (double until = await_end();;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        bool keeper = false;
        for (int i = 0; i < nkeepers; i++)
            keeper |= pid == keepers[i].pid;
        CHECK(!keeper && now_ms() < until);
        char path[64];
        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
        FILE *f = fopen(path, "re");
        int child, others = 0;
        while (f && fscanf(f, "%d", &child) == 1) {
            bool known = false;
            for (int i = 0; i < nkeepers; i++)
                known |= child == keepers[i].pid;
            others += !known;
        }
        if (f)
            (void)fclose(f);
        if (!others)
            return;
        if (pid <= 0)
            (void)usleep(2000);
    }
}

void keepers_stop(struct test_daemon *d)
{
    for (int i = 0; i < nkeepers; i++) {
        if (d->node[i].pid)
            keeper_kill(d, i, SIGINT);
        else
            (void)unlink(d->node[i].socket); /* which was for a next broker */
    }
    orphans_await();
    for (int i = 0; i < nkeepers; i++) {
        keeper_drop(i);
        (void)close(keepers[i].sock);
        CHECK(waitpid(keepers[i].pid, NULL, 0) == keepers[i].pid);
        (void)unlink(keepers[i].path);
    }
    daemon_stop_unclean(d); /* the brokers have ended: what is left of them */
    daemons_place(NULL, NULL);
    nkeepers = 0;
}
