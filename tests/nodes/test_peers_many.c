/* SPDX-License-Identifier: MIT
 *
 * test_peers_many.c - many connections between workers at a time, and brokers that have too much to do. The test is the workers
 * (relay_broker.c), and here and there one of the brokers.
 */
#include <poll.h>

#include "daemon/broker/nodes/node.h"
#include "tests/nodes/relay_bed.h"

/* Many at a time, in both directions: each answered once, and each end has its own other end. */
static void many(void)
{
    enum { MANY = 200 };
    static int here[2][MANY], there[2][MANY];

    pair_start();
    struct worker_end w[2] = {worker_open(&a, "one"), worker_open(&b, "one")};
    const char *const address[2] = {a.address, b.address};
    for (uint32_t i = 0; i < MANY; i++)
        for (int side = 0; side < 2; side++)
            connect_send(&w[side], 1000 + i, address[!side], i, 60000);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2 * MANY; i++) {
            int fd;
            const struct fcc_msg *m = hear(&w[side], &fd);
            CHECK(fd >= 0);
            bool out = m->type == CONTROL_CONNECTED;
            uint64_t n = out ? m->id - 1000 : ((const struct control_peer *)m)->purpose;
            int *place = out ? &here[side][n] : &there[side][n];
            CHECK(n < MANY && !*place && (!out || ((const struct control_connected *)m)->status == 0));
            *place = fd;
        }
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < MANY; i++)
            pipe_check(here[side][i], there[!side][i]);
    (void)close(w[0].sock);
    (void)close(w[1].sock);
    pair_stop();
}

/* ---- a broker that closes: the test is between the two ---- */

enum { HELLO = sizeof(struct auth_hello), PROOF = AUTH_TAG_BYTES, ASKED = sizeof(struct node_request) + AUTH_TAG_BYTES };
enum { ANSWERED = sizeof(struct node_answer) + AUTH_TAG_BYTES };

static int tcp_listen(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    CHECK(sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    CHECK(bind(sock, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(sock, 1024) == 0);
    return sock;
}

/* The next that connects. */
static int tcp_accept(int listener)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};

    CHECK(poll(&p, 1, (int)NODE_WAIT_MS) == 1);
    int sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(sock >= 0);
    return sock;
}

/* False: it has closed. */
static bool pass_on(int from, int to, size_t n)
{
    unsigned char bytes[1024];

    return recv(from, bytes, n, MSG_WAITALL) == (ssize_t)n && send(to, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* All that two brokers say to each other until a worker has its connection; or to where one gives it up. */
static void call_pass_on(int from)
{
    int to = tcp_connect(b.port);

    (void)(pass_on(from, to, HELLO) && pass_on(to, from, HELLO + PROOF) && pass_on(from, to, PROOF + ASKED) &&
           pass_on(to, from, ANSWERED));
    (void)close(to);
    (void)close(from);
}

/* Until all of them are answered, well, and have arrived. listener: where they are passed on; or -1. */
static void all_come(const struct worker_end *wa, const struct worker_end *wb, int listener, int calls)
{
    struct pollfd p[] = {
        {.fd = wa->sock, .events = POLLIN}, {.fd = wb->sock, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
    int answers = 0, arrivals = 0, fd;
    uint32_t purpose;

    while (answers < calls || arrivals < calls) {
        CHECK(poll(p, 3, (int)NODE_WAIT_MS) > 0);
        if (p[0].revents) {
            const struct control_connected *m = (const struct control_connected *)hear(wa, &fd);
            if (m->status)
                check_failed(__FILE__, __LINE__, "call %d: status %d: %s", (int)m->msg.id, m->status, m->text);
            CHECK(m->msg.type == CONTROL_CONNECTED && fd >= 0);
            (void)close(fd);
            answers++;
        }
        if (p[1].revents) {
            (void)close(arrived(wb, a.address, &purpose));
            CHECK(purpose < (uint32_t)calls);
            arrivals++;
        }
        if (p[2].revents)
            call_pass_on(tcp_accept(listener));
    }
}

/* The other node's worker does not read: its broker holds what does not fit into the channel, and hands it over later. */
static void slow_worker(void)
{
    enum { MANY = 800 };

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    for (uint32_t i = 0; i < MANY; i++)
        connect_send(&wa, i, b.address, i, 60000);
    log_await(&b, "its worker's channel is full");
    all_come(&wa, &wb, -1, MANY);
    (void)close(wa.sock);
    (void)close(wb.sock);
    pair_stop();
}

enum { UNHEARD, HEARD, PROVEN, WAYS };

/* Close it. Of a connection on which the other has to say something still it may hear by any of ECONNRESET, EPIPE and the end. */
static void turn_away(int sock, int way)
{
    unsigned char bytes[HELLO];

    if (way == HEARD)
        CHECK(recv(sock, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
    if (way == PROVEN) {
        int to = tcp_connect(b.port);
        CHECK(pass_on(sock, to, HELLO));
        CHECK(kill(a.d.pid, SIGSTOP) == 0); /* it hears of the proof and of the end at once, and has two things to send */
        CHECK(pass_on(to, sock, HELLO + PROOF));
        (void)close(to);
    }
    (void)close(sock);
    if (way == PROVEN)
        CHECK(kill(a.d.pid, SIGCONT) == 0);
}

/* A broker begins so many at a time; those that are closed before they were answered are made again, and none is lost. */
static void turned_away(void)
{
    enum { MANY = 100 };
    const char *const named[] = {"--node-address", b.address, NULL};
    int socks[CALLS_AT_ONCE];

    a = node_name("a");
    b = node_name("b");
    key = key_make("key");
    uint16_t between = port_choose();
    (void)snprintf(b.address, sizeof(b.address), "127.0.0.1:%u", between);
    int listener = tcp_listen(between);
    node_run(&a, relay_binary(), key, "", NULL);
    node_run(&b, relay_binary(), key, "", named);
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    for (uint32_t i = 0; i < MANY; i++)
        connect_send(&wa, i, b.address, i, 60000);
    connect_send(&wa, MANY, "nonsense", 0, 60000);
    refused(&wa, MANY, -EINVAL, "nonsense", "allowed is host:port"); /* so all before it were read */
    for (int i = 0; i < CALLS_AT_ONCE; i++)
        socks[i] = tcp_accept(listener);
    CHECK(accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0 && errno == EAGAIN);
    for (int i = 0; i < CALLS_AT_ONCE; i++)
        turn_away(socks[i], i % WAYS);
    all_come(&wa, &wb, listener, MANY);
    (void)close(listener);
    (void)close(wa.sock);
    (void)close(wb.sock);
    daemon_stop_unclean(&a.d);
    daemon_stop_unclean(&b.d);
}

/* Those that wait for others have a limit, too, have their turn when one of these fails, and go with their worker. */
static void waiting(void)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    enum { MANY = 3 * CALLS_AT_ONCE };
    char silent[FCC_NODE_MAX];
    int fd;

    a = node_name("a");
    uint16_t port = port_choose();
    (void)snprintf(silent, sizeof(silent), "127.0.0.1:%u", port);
    int listener = tcp_listen(port);
    node_run(&a, relay_binary(), key_make("key"), "", NULL);
    struct worker_end w = worker_open(&a, "one");
    for (uint32_t i = 0; i < MANY; i++)
        connect_send(&w, i, silent, i, 60000);
    connect_send(&w, MANY, silent, 0, 100);
    refused(&w, MANY, -ETIMEDOUT, silent, "32 other connections are being made to it");
    for (int i = 0; i < CALLS_AT_ONCE; i++) {
        int sock = tcp_accept(listener);
        CHECK(send(sock, http, sizeof(http), MSG_NOSIGNAL) == sizeof(http));
        const struct control_connected *m = (const struct control_connected *)hear(&w, &fd);
        CHECK(m->msg.id < MANY && m->status == -EPROTO && strstr(m->text, "does not speak fccd's protocol"));
        (void)close(sock);
    }
    for (int i = 0; i < CALLS_AT_ONCE; i++)
        (void)close(tcp_accept(listener));
    (void)close(w.sock);
    descriptors_await(&a, 0);
    (void)close(listener);
    daemon_stop(&a.d);
}

/* ---- what a user may have ---- */

/* What is asked for after all that was asked before has been read, and answered at once: any answers to others come first, of which some may
 * be that the user has too many. Returns how many. */
static int nonsense_answered(const struct worker_end *w, uint64_t id, const char *node)
{
    const struct control_connected *m;
    int refusals = 0, fd;

    connect_send(w, id, "nonsense", 0, 60000);
    do {
        m = (const struct control_connected *)hear(w, &fd);
        CHECK(m->msg.type == CONTROL_CONNECTED && fd < 0 && m->status < 0);
        refusals +=
            m->status == -EAGAIN && strstr(m->text, node) && strstr(m->text, "4096 connections are being made for uid") != NULL;
    } while (m->msg.id != id);
    CHECK(m->status == -EINVAL);
    return refusals;
}

/* The jobs of a user share what may be asked for at a time, so they cannot take the memory and descriptors of all. Those that are made to a node
 * which says nothing fail after a while, a few at a time. */
static void calls_of_a_user(void)
{
    enum { NONSENSE = 100000 };
    char silent[FCC_NODE_MAX];
    uint32_t asked;

    a = node_name("a");
    uint16_t port = port_choose();
    (void)snprintf(silent, sizeof(silent), "127.0.0.1:%u", port);
    int listener = tcp_listen(port);
    node_run(&a, relay_binary(), key_make("key"), "", NULL);
    struct worker_end one = worker_open(&a, "one"), two = worker_open(&a, "two");
    for (asked = 0; asked < CALLS_MAX / 2; asked++)
        connect_send(&one, asked, silent, asked, 600000);
    CHECK(nonsense_answered(&one, NONSENSE, silent) == 0);
    for (asked = 0; asked < CALLS_MAX / 4; asked++)
        connect_send(&two, asked, silent, asked, 600000);
    CHECK(nonsense_answered(&two, NONSENSE, silent) == 0); /* three quarters of them */
    for (double until = now_ms() + NODE_WAIT_MS;; asked++) {
        CHECK(now_ms() < until);
        connect_send(&two, asked, silent, asked, 600000);
        if (nonsense_answered(&two, NONSENSE, silent))
            break;
    }
    printf("%u were asked for in the second job\n", asked);
    CHECK(asked >= CALLS_MAX / 2);
    (void)close(one.sock); /* that job's go, and the other has room */
    for (double until = now_ms() + NODE_WAIT_MS;; asked++) {
        CHECK(now_ms() < until);
        connect_send(&two, asked, silent, asked, 600000);
        if (!nonsense_answered(&two, NONSENSE, silent))
            break;
    }
    (void)close(two.sock);
    descriptors_await(&a, 0);
    (void)close(listener);
    daemon_stop(&a.d);
}

/* Connections that wait here for a worker that never comes. */
static void held_of_a_user(void)
{
    enum { MORE = 20 };
    uint32_t purpose;

    pair_start();
    struct worker_end wa = worker_open(&a, "one");
    for (uint32_t i = 0; i < HELD_MAX; i++)
        connect_send(&wa, i, b.address, i, 600000);
    descriptors_await(&b, 2 + HELD_MAX);
    for (uint32_t i = 0; i < MORE; i++)
        connect_send(&wa, HELD_MAX + i, b.address, i, 5000); /* it is tried again until then */
    for (uint32_t i = 0; i < MORE; i++) {
        int fd;
        const struct control_connected *m = (const struct control_connected *)hear(&wa, &fd);
        CHECK(m->msg.id >= HELD_MAX && m->status == -EAGAIN && fd < 0);
        CHECK(strstr(m->text, b.address) && strstr(m->text, "has 2048 connections there already"));
    }
    (void)close(wa.sock);
    descriptors_await(&b, 2);
    wa = worker_open(&a, "one"); /* and then there is room again */
    struct worker_end wb = worker_open(&b, "one");
    connect_send(&wa, 1, b.address, 4242, 60000);
    int there = arrived(&wb, a.address, &purpose), here = connected(&wa, 1);
    pipe_check(here, there);
    (void)close(wa.sock);
    (void)close(wb.sock);
    pair_stop();
}

/* ---- a broker that is late itself ---- */

/* It has stood still while strangers said what they had to say: it hears them before it calls them silent. */
static void late(void)
{
    enum { MORE = 8 };
    const struct auth_hello hello = {.header = {.magic = {'f', 'c', 'c', 'd', 'n', 'o', 'd', 'e'}, .version = AUTH_VERSION},
                                     .address = "192.0.2.1:7000"};
    static int socks[STRANGERS_MAX + MORE];
    unsigned char answer[HELLO + PROOF];
    int status;

    b = node_name("b");
    node_run(&b, relay_binary(), key_make("key"), "", NULL);
    for (int i = 0; i < STRANGERS_MAX; i++)
        socks[i] = tcp_connect_from((uint8_t)(1 + i / STRANGERS_SHARE), b.port);
    descriptors_await(&b, STRANGERS_MAX);
    CHECK(kill(b.d.pid, SIGSTOP) == 0 && waitpid(b.d.pid, &status, WUNTRACED) == b.d.pid && WIFSTOPPED(status));
    for (int i = STRANGERS_MAX; i < STRANGERS_MAX + MORE; i++)
        socks[i] = tcp_connect_from(100, b.port); /* these want their places: the first that it hears of */
    for (int i = 0; i < STRANGERS_MAX + MORE; i++)
        CHECK(send(socks[i], &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
    (void)usleep(2 * STRANGER_MS * 1000);
    CHECK(kill(b.d.pid, SIGCONT) == 0);
    for (int i = 0; i < STRANGERS_MAX + MORE; i++)
        CHECK(recv(socks[i], answer, sizeof(answer), MSG_WAITALL) == sizeof(answer));
    log_await(&b, "newer connections wait"); /* and none of them proves anything */
    for (int i = 0; i < STRANGERS_MAX + MORE; i++) {
        CHECK(tcp_closed(socks[i]));
        (void)close(socks[i]);
    }
    descriptors_await(&b, 0);
    daemon_stop(&b.d);
}

int main(void)
{
    static const struct test tests[] = {
        {"many", many, 60},
        {"slow_worker", slow_worker, 60},
        {"turned_away", turned_away, 60},
        {"waiting", waiting, 0},
        {"late", late, 0},
        {"calls_of_a_user", calls_of_a_user, 60},
        {"held_of_a_user", held_of_a_user, 60},
    };
    return tests_run("peers_many", TESTS(tests));
}
