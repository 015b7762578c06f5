/* SPDX-License-Identifier: MIT
 *
 * relay_bed.h - two nodes' brokers, with a relay in place of each worker: the test is the workers (relay_broker.c).
 */
#ifndef FCC_TEST_RELAY_BED_H
#define FCC_TEST_RELAY_BED_H

#include <netinet/tcp.h>

#include "daemon/common/control.h"
#include "tests/nodes/node_bed.h"

/* Of a broker, for a user: the page of its memory account. */
#define USER_DESCRIPTORS 1

static struct bed_node a, b;
static const char *key;

/* A worker, as the broker sees it. */
struct worker_end {
    int sock;
    struct control_start start;
};

static inline const char *relay_binary(void)
{
    const char *path = getenv("FCC_TEST_RELAY_BROKER");
    return path ? path : "build/tests/relay_broker";
}

/* The next message of the broker's that is for this test; its descriptor, or -1, in *fd. */
static inline const struct fcc_msg *hear(const struct worker_end *w, int *fd)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds;

    do {
        if (msg_recv(w->sock, buf, sizeof(buf), 0, fds, &nfds) <= 0)
            check_failed(__FILE__, __LINE__, "the worker's connection has ended");
    } while (((const struct fcc_msg *)buf)->type == CONTROL_TROUBLE);
    CHECK(nfds <= 1);
    *fd = nfds ? fds[0] : -1;
    return (const struct fcc_msg *)buf;
}

static inline struct worker_end worker_open(const struct bed_node *n, const char *job)
{
    struct fcc_hello hello = {.msg = {.type = FCC_MSG_HELLO, .id = 1},
                              .magic = FCC_PROTO_MAGIC,
                              .version = FCC_PROTO_VERSION,
                              .role = FCC_ROLE_CLIENT,
                              .uid = UINT32_MAX};
    struct worker_end w = {.sock = broker_connect(&n->d)};
    int fd;

    (void)snprintf(hello.job, sizeof(hello.job), "%s", job);
    CHECK(w.sock >= 0 && msg_send(w.sock, &hello.msg, sizeof(hello), NULL, 0) == 0);
    const struct fcc_msg *m = hear(&w, &fd);
    CHECK(m->type == CONTROL_START && m->length == sizeof(w.start) && fd < 0);
    memcpy(&w.start, m, sizeof(w.start));
    return w;
}

static inline void connect_send(const struct worker_end *w, uint64_t id, const char *address, uint32_t purpose,
                                uint32_t limit_ms)
{
    struct control_connect m = {.msg = {.type = CONTROL_CONNECT, .id = id}, .purpose = purpose, .limit_ms = limit_ms};
    int status;

    (void)snprintf(m.address, sizeof(m.address), "%s", address);
    while ((status = msg_send(w->sock, &m.msg, sizeof(m), NULL, 0)) == -EAGAIN)
        (void)usleep(1000);
    CHECK(status == 0);
}

/* The answer to the only CONNECT: the socket. */
static inline int connected(const struct worker_end *w, uint64_t id)
{
    int fd;
    const struct control_connected *m = (const struct control_connected *)hear(w, &fd);

    if (m->status)
        check_failed(__FILE__, __LINE__, "status %d: %s", m->status, m->text);
    CHECK(m->msg.type == CONTROL_CONNECTED && m->msg.length == sizeof(*m) && m->msg.id == id && fd >= 0 && !m->zero);
    return fd;
}

static inline void refused(const struct worker_end *w, uint64_t id, int status, const char *node, const char *words)
{
    int fd;
    const struct control_connected *m = (const struct control_connected *)hear(w, &fd);

    CHECK(m->msg.type == CONTROL_CONNECTED && m->msg.length == sizeof(*m) && m->msg.id == id && fd < 0);
    if (m->status != status || !strstr(m->text, words) || !strstr(m->text, node))
        check_failed(__FILE__, __LINE__, "status %d: %s: expected %d and \"%s\"", m->status, m->text, status, words);
}

/* Whom `node` leads to is called otherwise. */
static inline void refused_by_name(const struct worker_end *w, uint64_t id, const char *node, const char *itself,
                                   const char *words)
{
    int fd;
    const struct control_connected *m = (const struct control_connected *)hear(w, &fd);

    CHECK(m->msg.type == CONTROL_CONNECTED && m->msg.id == id && fd < 0 && m->status == -EADDRNOTAVAIL);
    CHECK(!strcmp(m->named, itself));
    CHECK(strstr(m->text, node) && strstr(m->text, itself) && strstr(m->text, words));
}

static inline int arrived(const struct worker_end *w, const char *from, uint32_t *purpose)
{
    int fd;
    const struct control_peer *m = (const struct control_peer *)hear(w, &fd);

    CHECK(m->msg.type == CONTROL_PEER && m->msg.length == sizeof(*m) && fd >= 0 && !m->zero);
    CHECK(!strcmp(m->address, from));
    *purpose = m->purpose;
    return fd;
}

static inline void blocking_set(int sock)
{
    int on = 0;
    socklen_t size = sizeof(on);

    CHECK(getsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, &size) == 0 && on);
    int flags = fcntl(sock, F_GETFL);
    CHECK(flags >= 0 && flags & O_NONBLOCK && fcntl(sock, F_SETFL, flags & ~O_NONBLOCK) == 0);
}

/* What is sent at one end comes out at the other, from its very first byte. Closes both. */
static inline void pipe_check(int from, int to)
{
    enum { BYTES = 1 << 16 };
    static uint32_t sent[BYTES / 4], got[BYTES / 4];

    blocking_set(from);
    blocking_set(to);
    for (uint32_t i = 0; i < BYTES / 4; i++)
        sent[i] = i * 2654435761u + (uint32_t)from;
    CHECK(send(from, sent, BYTES, MSG_NOSIGNAL) == BYTES);
    CHECK(recv(to, got, BYTES, MSG_WAITALL) == BYTES);
    CHECK(memcmp(sent, got, BYTES) == 0);
    (void)close(from);
    CHECK(tcp_closed(to));
    (void)close(to);
}

static inline void pair_start(void)
{
    key = key_make("key");
    a = node_name("a");
    b = node_name("b");
    node_run(&a, relay_binary(), key, b.address, NULL);
    node_run(&b, relay_binary(), key, a.address, NULL);
    b.d.descriptors = a.d.descriptors;
    (void)node_await(&a, b.address, "connected", "");
    (void)node_await(&b, a.address, "connected", "");
    descriptors_await(&a, 2);
    descriptors_await(&b, 2);
}

static inline void pair_stop(void)
{
    descriptors_await(&a, 2); /* links, and nothing of the jobs */
    descriptors_await(&b, 2);
    daemon_stop_unclean(&a.d);
    daemon_stop(&b.d);
    CHECK(log_count(&a, ": error:") + log_count(&b, ": error:") == 0);
}

#endif
