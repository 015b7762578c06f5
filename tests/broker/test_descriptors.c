/* SPDX-License-Identifier: MIT
 *
 * test_descriptors.c - descriptors that a user sends to the daemon, which wants none: who sends one decides how long its last close takes.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/users_bed.h"

#define LINGER_S 25 /* longer than a client waits, and than any test here may take */
#define SOON_MS 15e3

/* A TCP socket whose peer reads nothing: its last close waits for so long. */
struct lingering {
    int sock, peer;
};

static struct lingering lingering_open(void)
{
    static char bytes[65536];
    struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    struct lingering l = {.sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(listener >= 0 && l.sock >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    CHECK(connect(l.sock, (struct sockaddr *)&address, size) == 0);
    l.peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(l.peer >= 0 && close(listener) == 0);
    while (send(l.sock, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
    CHECK(setsockopt(l.sock, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    return l;
}

/* If it was not sent, this close is the last one, and is not to wait. */
static void lingering_leave(struct lingering *l, int sent)
{
    struct linger off = {.l_onoff = 0};

    if (sent)
        CHECK(setsockopt(l->sock, SOL_SOCKET, SO_LINGER, &off, sizeof(off)) == 0);
    CHECK(close(l->sock) == 0);
}

static void lingering_send(struct raw *r, const void *bytes, size_t length, struct lingering *l)
{
    int sent = raw_try(r, bytes, length, &l->sock, 1);

    CHECK(sent == 0);
    lingering_leave(l, sent);
}

/* In every state that a connection may be in at the broker, and at the worker. */
static void hostile_user(const struct test_daemon *d)
{
    struct lingering with_hello = lingering_open(), unread = lingering_open(), asks = lingering_open(), job = lingering_open(),
                     left = lingering_open();
    struct fcc_hello hello = hello_make(), control = hello;
    struct fcc_msg id = {.length = sizeof(id), .type = FCC_MSG_UNIQUE_ID, .id = 3};
    struct raw *r = raw_open(d);

    lingering_send(r, &hello, sizeof(hello), &with_hello);
    raw_close(r);

    r = raw_open(d); /* it is refused for the first message, and the second lies unread */
    raw_send(r, &hello, 20, NULL, 0);
    (void)raw_try(r, &hello, 0, NULL, 0);
    lingering_leave(&unread, raw_try(r, &hello, sizeof(hello), &unread.sock, 1)); /* it may be closed already */
    raw_close(r);

    r = raw_open(d);
    control.role = FCC_ROLE_CONTROL;
    control.job[0] = '\0';
    raw_send(r, &control, sizeof(control), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    lingering_send(r, &hello, sizeof(hello), &asks);
    raw_close(r);

    r = raw_open(d); /* it closes before it is heard */
    int sent = raw_try(r, &hello, sizeof(hello), &left.sock, 1);
    raw_close(r);
    lingering_leave(&left, sent);

    r = raw_session(d);
    lingering_send(r, &id, sizeof(id), &job);
    raw_close(r);
}

static void another_user(void)
{
    struct test_daemon d;
    int status;

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    double start = now_ms();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        become(HOSTILE);
        hostile_user(&d);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    served(&d, OTHER);
    CHECK(now_ms() - start < SOON_MS);
    daemon_stop(&d);
}

static void forbidden(void)
{
    int pair[2], fd = STDERR_FILENO;
    char byte = 0;

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    msg_fds_forbid(pair[0]);
    struct raw to = {.sock = pair[1]}, from = {.sock = pair[0]};
    CHECK(raw_try(&to, &byte, 1, &fd, 1) == (fds_are_forbidden() ? -EPERM : 0));
    CHECK(raw_try(&from, &byte, 1, &fd, 1) == 0); /* the other direction is as before */
    CHECK(raw_try(&to, &byte, 1, NULL, 0) == 0);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* What is received, what is too much, what lost its message's end, and what is never received. */
static void discarded(void)
{
    enum { SENT = 12 };
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    struct fcc_msg well = {.length = sizeof(well), .type = FCC_MSG_HELLO};
    struct lingering l[SENT];
    int pair[2], fds[FCC_MAX_FDS], nfds, all[7];
    double start = now_ms();

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    struct raw to = {.sock = pair[0]};
    for (int i = 0; i < SENT; i++)
        l[i] = lingering_open();
    for (int i = 0; i < 7; i++)
        all[i] = l[i].sock;
    raw_send(&to, &well, sizeof(well), &l[7].sock, 1);
    raw_send(&to, &well, sizeof(well), all, 7);
    raw_send(&to, &well, 3, &l[8].sock, 1);
    raw_send(&to, &well, sizeof(well), &l[9].sock, 1);
    raw_send(&to, &well, 0, NULL, 0);
    raw_send(&to, &well, 0, NULL, 0);
    raw_send(&to, &well, 0, &l[10].sock, 1);
    raw_send(&to, &well, sizeof(well), &l[11].sock, 1);
    for (int i = 0; i < SENT; i++)
        CHECK(close(l[i].sock) == 0);
    CHECK(msg_recv(pair[1], buf, sizeof(buf), 0, fds, &nfds) == sizeof(well) && nfds == 1);
    fds_discard(fds, nfds);
    CHECK(msg_recv(pair[1], buf, sizeof(buf), 0, fds, &nfds) == -EPROTO && nfds == 0);
    CHECK(msg_recv(pair[1], buf, sizeof(buf), 0, fds, &nfds) == -EPROTO && nfds == 0);
    raw_send(&(struct raw){.sock = pair[1]}, &well, sizeof(well), NULL, 0);
    msg_close(pair[1]);
    CHECK(msg_recv(pair[0], buf, sizeof(buf), 0, fds, &nfds) == sizeof(well)); /* the answer is delivered */
    CHECK(msg_recv(pair[0], buf, sizeof(buf), 0, fds, &nfds) == 0);
    CHECK(now_ms() - start < SOON_MS);
    (void)close(pair[0]);
    for (int i = 0; i < SENT; i++)
        (void)close(l[i].peer);
}

int main(void)
{
    static const struct test tests[] = {
        {"another_user", another_user, 0}, {"forbidden", forbidden, 0}, {"discarded", discarded, 0}};

    return tests_run("descriptors", TESTS(tests));
}
