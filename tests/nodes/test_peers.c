/* SPDX-License-Identifier: MIT
 *
 * test_peers.c - connections between the workers of a job on two nodes, made by their brokers. The test is the workers
 * (relay_broker.c).
 */
#include "tests/nodes/relay_bed.h"

static void handed_over(void)
{
    uint32_t purpose;
    int code;

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one"), other = worker_open(&a, "two");
    CHECK(!strcmp(wa.start.node, a.address) && !strcmp(wb.start.node, b.address));
    CHECK(memcmp(wa.start.meeting_key, wb.start.meeting_key, CONTROL_KEY_BYTES) == 0);
    CHECK(memcmp(wa.start.meeting_key, other.start.meeting_key, CONTROL_KEY_BYTES) != 0);
    connect_send(&wa, 77, b.address, 4242, 60000);
    int there = arrived(&wb, a.address, &purpose), here = connected(&wa, 77);
    CHECK(purpose == 4242);
    descriptors_await(&a, 2 + 2 + USER_DESCRIPTORS); /* links, two workers' channels: the brokers have no end of it any more */
    descriptors_await(&b, 2 + 1 + USER_DESCRIPTORS);
    pipe_check(here, there);
    connect_send(&wb, 1, a.address, UINT32_MAX, 86400000);
    there = arrived(&wa, b.address, &purpose);
    CHECK(purpose == UINT32_MAX);
    pipe_check(connected(&wb, 1), there);
    struct json_object *o = fccctl_json(&a, &code, "nodes", NULL);
    CHECK(json_object_get_int(member(o, "peers_in")) == 1 && json_object_get_int(member(o, "peers_out")) == 1);
    (void)json_object_put(o);
    (void)close(wa.sock);
    (void)close(wb.sock);
    (void)close(other.sock);
    pair_stop();
}

static void held(void)
{
    uint32_t purpose;

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), two = worker_open(&b, "two");
    for (uint32_t i = 0; i < 3; i++)
        connect_send(&wa, i, b.address, i, 60000);
    descriptors_await(&b, 2 + 1 + 3 + USER_DESCRIPTORS); /* a job of another name has none of them */
    struct worker_end wb = worker_open(&b, "one");
    for (int i = 0; i < 3; i++) {
        int there = arrived(&wb, a.address, &purpose), fd;
        CHECK(purpose < 3);
        const struct fcc_msg *m = hear(&wa, &fd);
        CHECK(m->type == CONTROL_CONNECTED && m->id < 3 && fd >= 0);
        (void)close(there);
        (void)close(fd);
    }
    (void)close(wa.sock);
    (void)close(wb.sock);
    (void)close(two.sock);
    pair_stop();
}

static void errors(void)
{
    char nowhere[FCC_NODE_MAX], named[FCC_NODE_MAX], text[96];
    struct control_connect m = {.msg = {.type = CONTROL_CONNECT, .id = 9}, .limit_ms = 1000};

    pair_start();
    struct worker_end w = worker_open(&a, "one");
    (void)snprintf(text, sizeof(text), "job %u/one has no process there", geteuid());
    connect_send(&w, 1, b.address, 0, 3000); /* that is enough for the proofs, and then nobody comes */
    refused(&w, 1, -ETIMEDOUT, b.address, text);
    connect_send(&w, 2, a.address, 0, 1000);
    refused(&w, 2, -EINVAL, a.address, "that is this node itself");
    connect_send(&w, 3, "nonsense", 0, 1000);
    refused(&w, 3, -EINVAL, "nonsense", "allowed is host:port");
    connect_send(&w, 4, b.address, 0, 0);
    refused(&w, 4, -EINVAL, b.address, "limit of 0 ms");
    memset(m.address, '1', sizeof(m.address));
    CHECK(msg_send(w.sock, &m.msg, sizeof(m), NULL, 0) == 0);
    refused(&w, 9, -EINVAL, "node", "allowed is host:port");
    (void)snprintf(nowhere, sizeof(nowhere), "127.0.0.1:%u", port_choose());
    connect_send(&w, 5, nowhere, 0, 200); /* it might be starting: tried until the limit */
    refused(&w, 5, -ECONNREFUSED, nowhere, "Connection refused");
    (void)snprintf(named, sizeof(named), "localhost:%u", b.port);
    connect_send(&w, 6, named, 0, 60000);
    refused_by_name(&w, 6, named, b.address, "it calls itself");
    (void)snprintf(named, sizeof(named), "localhost:%u", a.port);
    connect_send(&w, 7, named, 0, 60000);
    refused_by_name(&w, 7, named, a.address, "it is this node itself");
    CHECK(!*node_see(&a, nowhere).state && !*node_see(&a, named).state); /* whom nobody proved to be is in no list */
    (void)close(w.sock);
    pair_stop();
}

/* b calls itself by a name. */
static void by_name(void)
{
    const char *const named[] = {"--node-address", b.address, NULL};
    uint32_t purpose;

    a = node_name("a");
    b = node_name("b");
    key = key_make("key");
    (void)snprintf(b.address, sizeof(b.address), "localhost:%u", b.port);
    node_run(&a, relay_binary(), key, "", NULL); /* told of nobody */
    node_run(&b, relay_binary(), key, "", named);
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    connect_send(&wa, 1, b.address, 5, 60000);
    int there = arrived(&wb, a.address, &purpose);
    pipe_check(connected(&wa, 1), there);
    (void)node_await(&a, b.address, "connected", ""); /* they know each other now */
    (void)node_await(&b, a.address, "connected", "");
    (void)close(wa.sock);
    (void)close(wb.sock);
    pair_stop();
}

static void wrong_key(void)
{
    a = node_name("a");
    b = node_name("b");
    node_run(&a, relay_binary(), key_make("key"), "", NULL);
    node_run(&b, relay_binary(), key_make("other"), "", NULL);
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    CHECK(memcmp(wa.start.meeting_key, wb.start.meeting_key, CONTROL_KEY_BYTES) != 0);
    connect_send(&wa, 1, b.address, 5, 60000);
    refused(&wa, 1, -EACCES, b.address, "another CLUSTER_KEY");
    log_await(&b, "closed when it had seen this node's proof");
    (void)close(wa.sock);
    (void)close(wb.sock);
    daemon_stop(&a.d);
    daemon_stop(&b.d);
}

/* A worker that is gone takes with it what it asked for, here and there. */
static void worker_dies(void)
{
    uint32_t purpose;

    pair_start();
    struct worker_end wa = worker_open(&a, "one");
    for (uint32_t i = 0; i < 5; i++)
        connect_send(&wa, i, b.address, i, 60000);
    descriptors_await(&b, 2 + 5);
    descriptors_await(&a, 2 + 1 + 5 + USER_DESCRIPTORS);
    (void)close(wa.sock);
    descriptors_await(&b, 2);
    descriptors_await(&a, 2);

    wa = worker_open(&a, "one"); /* and those that have their connection see its end */
    struct worker_end wb = worker_open(&b, "one");
    connect_send(&wa, 1, b.address, 0, 60000);
    int there = arrived(&wb, a.address, &purpose), here = connected(&wa, 1);
    (void)close(wb.sock);
    (void)close(there);
    blocking_set(here);
    CHECK(tcp_closed(here));
    (void)close(here);
    (void)close(wa.sock);
    pair_stop();
}

/* Neither broker is needed for a connection that is handed over. */
static void brokers_die(void)
{
    uint32_t purpose;

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    connect_send(&wa, 1, b.address, 0, 60000);
    int there = arrived(&wb, a.address, &purpose), here = connected(&wa, 1);
    node_kill(&a);
    node_kill(&b);
    pipe_check(here, there);
    (void)close(wa.sock);
    (void)close(wb.sock);
}

/* The other broker is killed while it holds a call, and is there again at once: the call is made once more. If it does not come
 * again, that is said. */
static void broker_returns(void)
{
    uint32_t purpose;
    int fd;

    pair_start();
    struct worker_end wa = worker_open(&a, "one");
    connect_send(&wa, 1, b.address, 6, 60000);
    log_await(&b, "waits for a worker");
    node_kill(&b);
    const struct control_connected *m = (const struct control_connected *)hear(&wa, &fd);
    CHECK(m->msg.type == CONTROL_CONNECTED && m->msg.id == 1 && fd < 0 && m->status == -ECONNREFUSED);
    CHECK(strstr(m->text, b.address));
    connect_send(&wa, 2, b.address, 7, 60000);
    node_run(&b, relay_binary(), key, a.address, NULL);
    struct worker_end wb = worker_open(&b, "one");
    int there = arrived(&wb, a.address, &purpose);
    CHECK(purpose == 7);
    pipe_check(connected(&wa, 2), there);
    (void)close(wa.sock);
    (void)close(wb.sock);
    daemon_stop_unclean(&a.d);
    daemon_stop_unclean(&b.d);
}

static void draining(void)
{
    pair_start();
    struct worker_end wa = worker_open(&a, "one");
    connect_send(&wa, 1, b.address, 0, 60000);
    log_await(&b, "waits for a worker");
    daemon_stop_unclean(&b.d);
    refused(&wa, 1, -ESHUTDOWN, b.address, "that node's fccd is shutting down");

    CHECK(kill(a.d.pid, SIGTERM) == 0);
    int fd; /* the worker is told to drain; it is this test, and goes */
    CHECK(hear(&wa, &fd)->type == CONTROL_DRAIN && fd < 0);
    (void)close(wa.sock);
    int status;
    CHECK(waitpid(a.d.pid, &status, 0) == a.d.pid && status == 0);
}

static void no_other_node(void)
{
    char *argv[] = {(char *)(uintptr_t)relay_binary(), "--config", "/dev/null", "--socket", a.d.socket, "--gpus", "none", NULL};
    unsigned char nothing[CONTROL_KEY_BYTES] = {0};
    int status;

    a = node_name("a");
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)execv(argv[0], argv);
        _exit(127);
    }
    while ((status = broker_connect(&a.d)) < 0)
        (void)usleep(POLL_EVERY_US);
    (void)close(status);
    struct worker_end w = worker_open(&a, "one"), other = worker_open(&a, "two");
    CHECK(w.start.node[0] == '\0' && memcmp(w.start.meeting_key, nothing, sizeof(nothing)) != 0);
    CHECK(memcmp(w.start.meeting_key, other.start.meeting_key, sizeof(nothing)) != 0);
    connect_send(&w, 1, "127.0.0.1:7000", 0, 1000);
    refused(&w, 1, -ENOTSUP, "127.0.0.1:7000", "NODE_LISTEN is empty");
    (void)close(w.sock);
    (void)close(other.sock);
    CHECK(kill(pid, SIGTERM) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

int main(void)
{
    static const struct test tests[] = {
        {"handed_over", handed_over, 0}, {"held", held, 0},
        {"errors", errors, 0},           {"by_name", by_name, 0},
        {"wrong_key", wrong_key, 0},     {"worker_dies", worker_dies, 0},
        {"brokers_die", brokers_die, 0}, {"broker_returns", broker_returns, 0},
        {"draining", draining, 0},       {"no_other_node", no_other_node, 0},
    };
    return tests_run("peers", TESTS(tests));
}
