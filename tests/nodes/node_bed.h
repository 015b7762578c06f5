/* SPDX-License-Identifier: MIT
 *
 * node_bed.h - several brokers on 127.0.0.1, each with a port, a socket and a log of its own, and what fccctl says of them.
 */
#ifndef FCC_TEST_NODE_BED_H
#define FCC_TEST_NODE_BED_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/msg.h"
#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#define NODE_WAIT_MS 60000.0 /* for what must happen; the test's own limit comes first */
#define POLL_EVERY_US 5000

struct bed_node {
    struct test_daemon d;
    uint16_t port;
    char address[FCC_NODE_MAX]; /* 127.0.0.1:port, unless the test says otherwise */
};

/* From 127.0.0.`from`. */
static inline int tcp_connect_from(uint8_t from, uint16_t port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from)};
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(sock >= 0 && bind(sock, (struct sockaddr *)&here, sizeof(here)) == 0);
    CHECK(connect(sock, (struct sockaddr *)&there, sizeof(there)) == 0);
    return sock;
}

static inline int tcp_connect(uint16_t port)
{
    return tcp_connect_from(1, port);
}

/* A key file of its own name for this test; the path. */
static inline const char *key_make(const char *name)
{
    static char paths[4][96];
    static int n;
    unsigned char bytes[48];
    char *path = paths[n++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/.%s", test_directory(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    CHECK(write(fd, bytes, sizeof(bytes)) == sizeof(bytes));
    (void)close(fd);
    return path;
}

static inline struct bed_node node_name(const char *name)
{
    struct bed_node n = {.port = port_choose()};
    char directory[96];

    (void)snprintf(directory, sizeof(directory), "%s/.%s", test_directory(), name);
    CHECK(mkdir(directory, 0755) == 0);
    (void)snprintf(n.d.socket, sizeof(n.d.socket), "%s/fccd.sock", directory);
    (void)snprintf(n.d.log, sizeof(n.d.log), "%s/daemon.log", directory);
    (void)snprintf(n.address, sizeof(n.address), "127.0.0.1:%u", n.port);
    return n;
}

/* A SEQPACKET connection to the broker, or -1. */
static inline int broker_connect(const struct test_daemon *d)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(a.sun_path, d->socket, strlen(d->socket) + 1);
    CHECK(sock >= 0);
    if (connect(sock, (struct sockaddr *)&a, sizeof(a)) == 0)
        return sock;
    (void)close(sock);
    return -1;
}

/* Has the broker come as far as to answer? All that it opens at its start is then open. */
static inline bool broker_serves(const struct test_daemon *d)
{
    struct fcc_hello hello = {.msg = {.type = FCC_MSG_HELLO, .id = 1},
                              .magic = FCC_PROTO_MAGIC,
                              .version = FCC_PROTO_VERSION,
                              .role = FCC_ROLE_CONTROL,
                              .uid = UINT32_MAX};
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds, sock = broker_connect(d);

    if (sock < 0)
        return false;
    CHECK(msg_send(sock, &hello.msg, sizeof(hello), NULL, 0) == 0);
    CHECK(msg_recv(sock, buf, sizeof(buf), 0, fds, &nfds) == sizeof(struct fcc_welcome));
    (void)close(sock);
    return true;
}

/* The fewest that it has for a while: attempts to connect come and go. */
static inline int descriptors_at_rest(pid_t pid)
{
    int least = descriptors_count(pid);

    for (int i = 0; i < 50; i++) {
        int n = descriptors_count(pid);
        least = n < least ? n : least;
        (void)usleep(1000);
    }
    return least;
}

/* Start a broker (again) and wait until it serves. options: as of daemon_start(). */
static inline void node_run(struct bed_node *n, const char *binary, const char *key, const char *nodes,
                            const char *const options[])
{
    char listen_at[FCC_NODE_MAX];
    char *argv[48] = {(char *)(uintptr_t)binary,
                      "--config",
                      "/dev/null",
                      "--socket",
                      n->d.socket,
                      "--gpus",
                      "none",
                      "--cpu-workgroups",
                      "1",
                      "--worker-idle-ms",
                      "50",
                      "--log-level",
                      "debug",
                      "--node-listen",
                      listen_at,
                      "--cluster-key",
                      (char *)(uintptr_t)key,
                      "--nodes",
                      (char *)(uintptr_t)nodes};
    int i = 19;

    (void)snprintf(listen_at, sizeof(listen_at), "127.0.0.1:%u", n->port);
    for (; options && *options; options++)
        argv[i++] = (char *)(uintptr_t)*options;
    n->d.pid = fork();
    CHECK(n->d.pid >= 0);
    if (n->d.pid == 0) {
        int log = open(n->d.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
            _exit(126);
        (void)execv(argv[0], argv);
        _exit(127);
    }
    double until = now_ms() + NODE_WAIT_MS;
    while (!broker_serves(&n->d)) {
        CHECK(now_ms() < until && waitpid(n->d.pid, NULL, WNOHANG) == 0);
        (void)usleep(POLL_EVERY_US);
    }
    n->d.descriptors = descriptors_at_rest(n->d.pid);
}

/* With SIGKILL. */
static inline void node_kill(const struct bed_node *n)
{
    CHECK(kill(n->d.pid, SIGKILL) == 0);
    CHECK(waitpid(n->d.pid, NULL, 0) == n->d.pid);
}

/* fccctl's answer as JSON, and its exit code in *code. The caller puts it. */
static inline struct json_object *fccctl_json(const struct bed_node *n, int *code, const char *verb, const char *operand)
{
    static char text[1 << 16];
    const char *arguments[] = {"--socket", n->d.socket, verb, "--json", operand, NULL};

    *code = program_run(text, sizeof(text), fccctl_binary(), arguments);
    struct json_object *o = json_tokener_parse(text);
    if (!o)
        check_failed(__FILE__, __LINE__, "fccctl %s: not JSON: %s", verb, text);
    return o;
}

static inline struct json_object *member(struct json_object *o, const char *name)
{
    struct json_object *value;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in %s", name, json_object_to_json_string(o));
    return value;
}

struct seen {
    char state[16], why[FCC_TEXT_MAX];
    int64_t errors;
};

/* What `n` says of the node at that address; state "" if it does not know of it. */
static inline struct seen node_see(const struct bed_node *n, const char *address)
{
    struct seen s = {0};
    int code;
    struct json_object *o = fccctl_json(n, &code, "nodes", NULL), *list = member(o, "nodes");

    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *other = json_object_array_get_idx(list, i);
        if (strcmp(json_object_get_string(member(other, "address")), address) != 0)
            continue;
        (void)snprintf(s.state, sizeof(s.state), "%s", json_object_get_string(member(other, "state")));
        if (!strcmp(s.state, "here"))
            break;
        (void)snprintf(s.why, sizeof(s.why), "%s", json_object_get_string(member(other, "why")));
        s.errors = json_object_get_int64(member(other, "errors"));
    }
    (void)json_object_put(o);
    return s;
}

/* Wait until `n` says that, and in its reason these words; how long that took, in ms. */
static inline double node_await(const struct bed_node *n, const char *address, const char *state, const char *why)
{
    double begun = now_ms();
    struct seen s = node_see(n, address);

    while (strcmp(s.state, state) != 0 || !strstr(s.why, why)) {
        if (now_ms() - begun > NODE_WAIT_MS)
            check_failed(__FILE__, __LINE__, "node %s is \"%s\" (%s) and never became \"%s\" (%s)", address, s.state, s.why,
                         state, why);
        (void)usleep(POLL_EVERY_US);
        s = node_see(n, address);
    }
    return now_ms() - begun;
}

/* The broker has that many descriptors more than at rest without any other node. */
static inline void descriptors_await(const struct bed_node *n, int more)
{
    double until = now_ms() + NODE_WAIT_MS;
    int have;

    while ((have = descriptors_count(n->d.pid)) != n->d.descriptors + more) {
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "%s: %d descriptors, %d at rest, and never %d more", n->address, have,
                         n->d.descriptors, more);
        (void)usleep(POLL_EVERY_US);
    }
}

/* How often the log says that. */
static inline int log_count(const struct bed_node *n, const char *text)
{
    char line[2048];
    int count = 0;

    FILE *f = fopen(n->d.log, "re");
    while (f && fgets(line, sizeof(line), f))
        count += strstr(line, text) != NULL;
    if (f)
        (void)fclose(f);
    return count;
}

static inline void log_await(const struct bed_node *n, const char *text)
{
    if (!daemon_logged(&n->d, text, true))
        check_failed(__FILE__, __LINE__, "%s never logged \"%s\"", n->address, text);
}

/* Is the connection closed by the other end, with nothing more coming? Waits for it. */
static inline bool tcp_closed(int sock)
{
    char byte;
    ssize_t n = recv(sock, &byte, 1, 0);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

#endif
