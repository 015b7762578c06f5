/* SPDX-License-Identifier: MIT
 *
 * test_nodes.c - brokers that know each other: links, their end and return, and whoever else comes to the port.
 */
#include "daemon/common/auth.h"
#include "tests/nodes/node_bed.h"

static struct bed_node a, b;

static void pair_start(const char *key_of_a, const char *key_of_b)
{
    a = node_name("a");
    b = node_name("b");
    node_run(&a, daemon_binary(), key_of_a, b.address, NULL);
    node_run(&b, daemon_binary(), key_of_b, a.address, NULL);
    b.d.descriptors = a.d.descriptors; /* b may have been linked before they were counted */
}

static void pair_connect(void)
{
    const char *key = key_make("key");

    pair_start(key, key);
    (void)node_await(&a, b.address, "connected", "");
    (void)node_await(&b, a.address, "connected", "");
    descriptors_await(&a, 2); /* two links: each node has begun one */
    descriptors_await(&b, 2);
}

static void pair_stop(void)
{
    daemon_stop_unclean(&a.d);
    daemon_stop(&b.d); /* with no descriptor more than it had before */
    CHECK(log_count(&a, ": error:") + log_count(&b, ": error:") == 0);
}

static int fccctl(char *text, size_t room, const struct bed_node *n, const char *verb, const char *first, const char *second,
                  const char *third)
{
    const char *arguments[] = {"--socket", n->d.socket, verb, first, second, third, NULL};
    return program_run(text, room, fccctl_binary(), arguments);
}

static void two_nodes(void)
{
    char text[4096];
    int code;

    pair_connect();
    CHECK(!strcmp(node_see(&a, a.address).state, "here"));
    CHECK(fccctl(text, sizeof(text), &a, "nodes", NULL, NULL, NULL) == 0);
    CHECK(strstr(text, "NODE") && strstr(text, a.address) && strstr(text, b.address) && strstr(text, "connected"));
    CHECK(fccctl(text, sizeof(text), &a, "doctor", NULL, NULL, NULL) <= 1 && strstr(text, "1 other nodes, all connected"));
    struct json_object *o = fccctl_json(&a, &code, "ping", b.address);
    double least = json_object_get_double(member(o, "min_us")), median = json_object_get_double(member(o, "median_us"));
    CHECK(code == 0 && json_object_get_int(member(o, "round_trips")) == 10);
    CHECK(least > 0 && least <= median && median <= json_object_get_double(member(o, "max_us")));
    (void)json_object_put(o);
    CHECK(fccctl(text, sizeof(text), &b, "ping", a.address, "--count", "1000") == 0);
    CHECK(strstr(text, "1000 round trips: min "));
    descriptors_await(&a, 2);
    o = fccctl_json(&b, &code, "nodes", NULL);
    struct json_object *other = json_object_array_get_idx(member(o, "nodes"), 1);
    CHECK(json_object_get_double(member(other, "round_trip_us")) > 0);
    CHECK(json_object_get_int(member(other, "bytes_in")) > 0 && json_object_get_int(member(other, "bytes_out")) > 0);
    (void)json_object_put(o);
    pair_stop();
}

static void ping_errors(void)
{
    char text[4096], nowhere[FCC_NODE_MAX];

    pair_connect();
    CHECK(fccctl(text, sizeof(text), &a, "ping", a.address, NULL, NULL) == 1 && strstr(text, "is this node itself"));
    (void)snprintf(nowhere, sizeof(nowhere), "127.0.0.1:%u", port_choose());
    CHECK(fccctl(text, sizeof(text), &a, "ping", nowhere, NULL, NULL) == 1);
    CHECK(strstr(text, nowhere) && strstr(text, "cannot connect: Connection refused"));
    CHECK(fccctl(text, sizeof(text), &a, "ping", "no.such.host.invalid:7000", NULL, NULL) == 1);
    CHECK(strstr(text, "its host's name is not resolved"));
    CHECK(fccctl(text, sizeof(text), &a, "ping", "nonsense", NULL, NULL) == 1 && strstr(text, "allowed is host:port"));
    CHECK(fccctl(text, sizeof(text), &a, "ping", NULL, NULL, NULL) == 2 && strstr(text, "NODE is missing"));
    CHECK(fccctl(text, sizeof(text), &a, "ping", b.address, "--count", "0") == 2);
    (void)snprintf(nowhere, sizeof(nowhere), "localhost:%u", b.port); /* found, and proven; but by another name */
    CHECK(fccctl(text, sizeof(text), &a, "ping", nowhere, NULL, NULL) == 1);
    CHECK(strstr(text, "it calls itself") && strstr(text, b.address));
    descriptors_await(&a, 2);
    pair_stop();
}

/* b is told of nobody; it learns of a when a comes. And it has a host's name for an address. */
static void one_is_told(void)
{
    const char *key = key_make("key"), *const named[] = {"--node-address", b.address, NULL};

    a = node_name("a");
    b = node_name("b");
    (void)snprintf(b.address, sizeof(b.address), "localhost:%u", b.port);
    node_run(&b, daemon_binary(), key, "", named);
    node_run(&a, daemon_binary(), key, b.address, NULL);
    a.d.descriptors = b.d.descriptors;
    (void)node_await(&a, b.address, "connected", "");
    (void)node_await(&b, a.address, "connected", "");
    pair_stop();
}

static void nobody_is_told(void)
{
    struct test_daemon d;
    char text[4096];
    const char *const nodes[] = {"nodes", NULL}, *const ping[] = {"ping", "127.0.0.1:7000", NULL},
                      *const doctor[] = {"doctor", NULL};

    daemon_start(&d, NULL);
    CHECK(program_run(text, sizeof(text), fccctl_binary(), nodes) == 0 && strstr(text, "NODE_LISTEN is empty"));
    CHECK(program_run(text, sizeof(text), fccctl_binary(), ping) == 1 && strstr(text, "NODE_LISTEN is empty"));
    CHECK(program_run(text, sizeof(text), fccctl_binary(), doctor) <= 1 && strstr(text, "this fccd speaks to no other node"));
    daemon_stop(&d);
}

static void wrong_key(void)
{
    char text[8192], finding[128];

    pair_start(key_make("key"), key_make("other"));
    (void)node_await(&a, b.address, "refused", "another CLUSTER_KEY");
    (void)node_await(&b, a.address, "refused", "another CLUSTER_KEY");
    log_await(&a, "node 127.0.0.1: closed when it had seen this node's proof");
    CHECK(fccctl(text, sizeof(text), &a, "nodes", NULL, NULL, NULL) == 1 && strstr(text, "refused"));
    CHECK(fccctl(text, sizeof(text), &a, "ping", b.address, NULL, NULL) == 1 && strstr(text, "another CLUSTER_KEY"));
    CHECK(fccctl(text, sizeof(text), &a, "doctor", NULL, NULL, NULL) == 1);
    (void)snprintf(finding, sizeof(finding), "bad   nodes         %s: refused for", b.address);
    CHECK(strstr(text, finding) && strstr(text, "the same bytes in CLUSTER_KEY") && !strstr(text, "all connected"));
    while (node_see(&a, b.address).errors < 4) /* it goes on trying */
        (void)usleep(POLL_EVERY_US);
    CHECK(log_count(&a, "its proof is wrong") == 1); /* and says so once */
    pair_stop();
}

/* A stop and a start, without a restart of the other. */
static void restarted(void)
{
    const char *key = key_make("key");

    pair_start(key, key);
    for (int round = 0; round < 3; round++) {
        (void)node_await(&a, b.address, "connected", "");
        daemon_stop_unclean(&b.d);
        (void)node_await(&a, b.address, "lost", "");
        node_run(&b, daemon_binary(), key, a.address, NULL);
        printf("connected again %.0f ms after the restart\n", node_await(&a, b.address, "connected", ""));
        b.d.descriptors = a.d.descriptors;
    }
    (void)node_await(&b, a.address, "connected", "");
    CHECK(log_count(&a, "is lost") == 3);
    pair_stop();
}

/* Does a's doctor find that about b? With its level, which "bad" makes its exit code; and `why` as the broker says it. */
static bool doctor_finds(const char *level, const char *state, const char *why)
{
    char text[8192], finding[160];
    int code = fccctl(text, sizeof(text), &a, "doctor", NULL, NULL, NULL);

    (void)snprintf(finding, sizeof(finding), "%-4s  nodes         %s: %s for ", level, b.address, state);
    CHECK(code <= 1 && !strstr(text, "all connected"));
    const char *line = strstr(text, finding), *end = line ? strchr(line, '\n') : NULL,
               *reason = line ? strstr(line, why) : NULL;
    bool found = end && reason && reason < end && !strncmp(end + 1, "                    -> is fccd running there", 43);
    CHECK(!found || strcmp(level, "bad") != 0 || code == 1);
    return found;
}

static void killed(void)
{
    pair_connect();
    node_kill(&b);
    printf("lost %.0f ms after SIGKILL\n", node_await(&a, b.address, "lost", ""));
    (void)node_await(&a, b.address, "lost", "Connection refused"); /* it has tried again */
    CHECK(doctor_finds("bad", "lost", "Connection refused"));
    CHECK(unlink(b.d.socket) == 0);
    daemon_stop(&a.d);
}

/* One that neither answers nor closes. */
static void stopped(void)
{
    pair_connect();
    CHECK(kill(b.d.pid, SIGSTOP) == 0);
    printf("lost %.0f ms after SIGSTOP\n", node_await(&a, b.address, "lost", ""));
    CHECK(log_count(&a, "is lost: has not answered for 2000 ms") == 1);
    CHECK(doctor_finds("bad", "lost", ""));
    (void)node_await(&a, b.address, "lost", "said nothing for 3000 ms"); /* its socket still takes connections */
    CHECK(doctor_finds("bad", "lost", "said nothing for 3000 ms"));
    CHECK(kill(b.d.pid, SIGCONT) == 0);
    (void)node_await(&a, b.address, "connected", "");
    (void)node_await(&b, a.address, "connected", "");
    descriptors_await(&a, 2);
    pair_stop();
}

static void garbage(void)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: fccd\r\nUser-Agent: somebody\r\n\r\n";
    static char bytes[1 << 16];

    pair_connect();
    int64_t errors = node_see(&a, b.address).errors; /* from before b was there */
    for (int i = 0; i < 20; i++) {
        int sock = tcp_connect(a.port);
        CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
        const char *what = i % 2 ? bytes : http;
        size_t n = i % 2 ? sizeof(bytes) : sizeof(http);
        for (size_t done = 0; done < n;) {
            ssize_t sent = send(sock, what + done, n - done, MSG_NOSIGNAL);
            if (sent < 0)
                break; /* closed already */
            done += (size_t)sent;
        }
        CHECK(tcp_closed(sock));
        (void)close(sock);
    }
    log_await(&a, "node 127.0.0.1: it does not speak fccd's protocol");
    CHECK(log_count(&a, "it does not speak fccd's protocol") == 1);
    descriptors_await(&a, 2);
    CHECK(!strcmp(node_see(&a, b.address).state, "connected") && node_see(&a, b.address).errors == errors);
    pair_stop();
}

/* Many that say nothing, or half of a hello. The others are served, and these are closed. */
static void silence(void)
{
    const struct auth_header header = {.magic = {'f', 'c', 'c', 'd', 'n', 'o', 'd', 'e'}, .version = htole32(AUTH_VERSION)};
    unsigned char half[50] = {0};
    enum { MANY = 600 };
    static int socks[MANY];
    char text[4096];

    memcpy(half, &header, sizeof(header));
    pair_connect();
    int64_t errors = node_see(&a, b.address).errors + node_see(&b, a.address).errors;
    for (int i = 0; i < MANY; i++) {
        socks[i] = tcp_connect(a.port);
        CHECK(i % 2 == 0 || send(socks[i], half, sizeof(half), MSG_NOSIGNAL) == sizeof(half));
    }
    CHECK(fccctl(text, sizeof(text), &b, "ping", a.address, "--count", "100") == 0);
    log_await(&a, "newer connections wait");
    for (int i = 0; i < MANY; i++) {
        CHECK(tcp_closed(socks[i]));
        (void)close(socks[i]);
    }
    log_await(&a, " 3000 ms");                    /* "said nothing for", or "has not proven itself within" */
    CHECK(log_count(&a, "node 127.0.0.1: ") < 5); /* one for each kind of error */
    descriptors_await(&a, 2);
    CHECK(node_see(&a, b.address).errors + node_see(&b, a.address).errors == errors);
    pair_stop();
}

/* ---- somebody in between, who sees all that is said ---- */

enum { SAID_MAX = 4096 };
struct said {
    unsigned char bytes[SAID_MAX];
    size_t n;
};

static int tcp_listen(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    CHECK(bind(sock, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(sock, 8) == 0);
    return sock;
}

static void pass_on(int from, int to, struct said *said, size_t n)
{
    CHECK(n <= SAID_MAX - said->n);
    CHECK(recv(from, said->bytes + said->n, n, MSG_WAITALL) == (ssize_t)n);
    CHECK(send(to, said->bytes + said->n, n, MSG_NOSIGNAL) == (ssize_t)n);
    said->n += n;
}

/* A link of b's to a, through here; all that opens it is recorded. */
static void link_record(int middle, struct said *of_b, struct said *of_a)
{
    int to_b = accept4(middle, NULL, NULL, SOCK_CLOEXEC), to_a = tcp_connect(a.port);

    CHECK(to_b >= 0);
    pass_on(to_b, to_a, of_b, 112);      /* hello */
    pass_on(to_a, to_b, of_a, 112 + 32); /* hello, proof */
    pass_on(to_b, to_a, of_b, 32 + 144); /* proof, request */
    pass_on(to_a, to_b, of_a, 536 + 32); /* answer */
    pass_on(to_b, to_a, of_b, 16 + 32);  /* heartbeat */
    pass_on(to_a, to_b, of_a, 16 + 32);  /* and back */
    (void)node_await(&b, a.address, "connected", "");
    (void)close(to_a);
    (void)close(to_b);
}

static void played_back(void)
{
    const char *key = key_make("key"), *const named[] = {"--node-address", a.address, NULL};
    static struct said of_a, of_b;
    unsigned char answer[4096];

    a = node_name("a");
    b = node_name("b");
    uint16_t between = port_choose();
    (void)snprintf(a.address, sizeof(a.address), "127.0.0.1:%u", between);
    int middle = tcp_listen(between);
    node_run(&a, daemon_binary(), key, "", named);
    node_run(&b, daemon_binary(), key, a.address, NULL);
    link_record(middle, &of_b, &of_a);

    int sock = tcp_connect(a.port); /* b's part, to a: it answers the hello, and believes nothing */
    CHECK(send(sock, of_b.bytes, of_b.n, MSG_NOSIGNAL) == (ssize_t)of_b.n);
    CHECK(recv(sock, answer, 112 + 32, MSG_WAITALL) == 112 + 32);
    CHECK(memcmp(answer, of_a.bytes, 112 + 32) != 0);
    CHECK(tcp_closed(sock));
    (void)close(sock);
    log_await(&a, "node 127.0.0.1: its proof is wrong");

    (void)node_await(&b, a.address, "lost", ""); /* a's part, to b when it comes again */
    do {                                         /* its next attempts, of which some may have been given up */
        sock = accept4(middle, NULL, NULL, SOCK_CLOEXEC);
        CHECK(sock >= 0);
        (void)send(sock, of_a.bytes, of_a.n, MSG_NOSIGNAL);
        CHECK(recv(sock, answer, 112, MSG_WAITALL) == 112);
        CHECK(tcp_closed(sock)); /* not one byte of a proof */
        (void)close(sock);
    } while (strcmp(node_see(&b, a.address).state, "refused") != 0);
    CHECK(strstr(node_see(&b, a.address).why, "its proof is wrong"));
    (void)close(middle);
    daemon_stop_unclean(&a.d);
    daemon_stop_unclean(&b.d);
}

/* The list names the node itself, and twice the same; and two nodes that think they are one. */
static void names(void)
{
    const char *key = key_make("key"), *const same[] = {"--node-address", a.address, NULL};
    char list[256];
    int code;

    a = node_name("a");
    b = node_name("b");
    (void)snprintf(list, sizeof(list), "%s, %s,%s", a.address, b.address, b.address);
    node_run(&a, daemon_binary(), key, list, NULL);
    struct json_object *o = fccctl_json(&a, &code, "nodes", NULL);
    CHECK(json_object_array_length(member(o, "nodes")) == 2);
    (void)json_object_put(o);
    (void)snprintf(list, sizeof(list), "localhost:%u", a.port);
    node_run(&b, daemon_binary(), key, list, same);
    (void)node_await(&b, list, "refused", "it is this node itself");
    (void)node_await(&a, b.address, "refused", "it is this node itself");
    daemon_stop_unclean(&b.d);
    daemon_stop_unclean(&a.d);
}

/* One that has never said a word: whoever listens at its address takes the connections, and answers none. */
static void never_answers(void)
{
    const char *key = key_make("key");

    a = node_name("a");
    b = node_name("b");
    int mute = tcp_listen(b.port);
    node_run(&a, daemon_binary(), key, b.address, NULL);
    CHECK(doctor_finds("warn", "connecting", "")); /* it may be about to come */
    (void)node_await(&a, b.address, "connecting", "said nothing for 3000 ms");
    for (double until = now_ms() + NODE_WAIT_MS; !doctor_finds("bad", "connecting", "said nothing for 3000 ms");
         (void)usleep(100000))
        CHECK(now_ms() < until);
    (void)close(mute);
    daemon_stop_unclean(&a.d);
}

int main(void)
{
    static const struct test tests[] = {
        {"two_nodes", two_nodes, 0},
        {"ping_errors", ping_errors, 0},
        {"one_is_told", one_is_told, 0},
        {"nobody_is_told", nobody_is_told, 0},
        {"wrong_key", wrong_key, 0},
        {"restarted", restarted, 60},
        {"killed", killed, 0},
        {"stopped", stopped, 60},
        {"garbage", garbage, 0},
        {"silence", silence, 0},
        {"played_back", played_back, 60},
        {"never_answers", never_answers, 60},
        {"names", names, 0},
    };
    return tests_run("nodes", TESTS(tests));
}
