/* SPDX-License-Identifier: MIT */
#include "tests/bed/raw.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bed/harness.h"

struct raw *raw_open(const struct test_daemon *d)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 10};
    int size = 1 << 20;
    struct raw *r = calloc(1, sizeof(*r));

    CHECK(r != NULL && strlen(d->socket) < sizeof(address.sun_path));
    memcpy(address.sun_path, d->socket, strlen(d->socket) + 1);
    r->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(r->sock >= 0);
    CHECK(setsockopt(r->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    (void)setsockopt(r->sock, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    CHECK(connect(r->sock, (struct sockaddr *)&address, sizeof(address)) == 0);
    r->doorbell = -1;
    return r;
}

void raw_close(struct raw *r)
{
    if (r->memory)
        CHECK(munmap(r->memory, sizeof(*r->memory)) == 0);
    if (r->doorbell >= 0)
        (void)close(r->doorbell);
    (void)close(r->sock);
    free(r);
}

const struct fcc_reply *raw_receive(struct raw *r)
{
    r->length = msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds);
    CHECK(r->length >= (ssize_t)sizeof(struct fcc_reply));
    fds_close(r->fds, r->nfds);
    return (const struct fcc_reply *)r->in;
}

bool raw_closed(struct raw *r)
{
    int fds[FCC_MAX_FDS], nfds;
    return msg_recv(r->sock, r->in, sizeof(r->in), 0, fds, &nfds) == 0;
}

bool fds_are_forbidden(void)
{
    int value, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof(value);
    bool known = sock >= 0 && getsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) == 0;

    (void)close(sock);
    return known;
}

int raw_try(struct raw *r, const void *bytes, size_t length, const int *fds, int nfds)
{
    char room[CMSG_SPACE(sizeof(int) * 16)] = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds) {
        h.msg_control = room;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
    }
    ssize_t n = sendmsg(r->sock, &h, MSG_NOSIGNAL);
    CHECK(n < 0 || n == (ssize_t)length);
    return n < 0 ? -errno : 0;
}

void raw_send(struct raw *r, const void *bytes, size_t length, const int *fds, int nfds)
{
    CHECK(raw_try(r, bytes, length, fds, nfds) == 0);
}

struct fcc_hello hello_make(void)
{
    struct fcc_hello h = {.msg = {.length = sizeof(h), .type = FCC_MSG_HELLO, .id = 7},
                          .magic = FCC_PROTO_MAGIC,
                          .version = FCC_PROTO_VERSION,
                          .role = FCC_ROLE_CLIENT,
                          .uid = UINT32_MAX,
                          .job = "raw"};
    return h;
}

struct raw *raw_session(const struct test_daemon *d)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();

    raw_send(r, &h, sizeof(h), NULL, 0);
    r->length = msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds);
    CHECK(r->length == sizeof(struct fcc_welcome) && r->nfds == 2);
    CHECK(((struct fcc_reply *)r->in)->status == 0);
    r->memory = mmap(NULL, sizeof(*r->memory), PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0], 0);
    CHECK(r->memory != MAP_FAILED);
    CHECK(ftruncate(r->fds[0], 0) != 0); /* sealed: nobody can take the memory from under the worker */
    (void)close(r->fds[0]);
    r->doorbell = r->fds[1];
    return r;
}

uint32_t raw_comm(struct raw *r)
{
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};
    struct fcc_comm_init_msg m = {.msg = {.length = sizeof(m), .type = FCC_MSG_COMM_INIT, .id = 2}, .nranks = 1, .device = -1};

    raw_send(r, &ask, sizeof(ask), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    m.unique_id = ((struct fcc_unique_id_reply *)r->in)->unique_id;
    raw_send(r, &m, sizeof(m), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    return ((struct fcc_comm_init_reply *)r->in)->comm;
}

struct fcc_submit noop_make(uint32_t comm, uint32_t slot)
{
    struct fcc_submit m = {
        .msg = {.length = sizeof(m), .type = FCC_MSG_SUBMIT, .id = 77}, .comm = comm, .op = FCC_OP_NOOP, .slot = slot};
    return m;
}

const struct fcc_reply *submit_socket(struct raw *r, const void *m, size_t length)
{
    raw_send(r, m, length, NULL, 0);
    return raw_receive(r);
}
