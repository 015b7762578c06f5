/* SPDX-License-Identifier: MIT
 *
 * test_node_permits.c - where a user may have root's broker connect to, and who of those that come from elsewhere gets a place.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "daemon/broker/nodes/node.h"
#include "tests/bed/users_bed.h"
#include "tests/nodes/node_bed.h"

static struct bed_node a, b, c;

/* a is told of b; b of a; and c is there, has the key, and nobody is told of it. */
static void nodes_start(const char *nodes_of_a)
{
    const char *key = key_make("key");

    a = node_name("a");
    b = node_name("b");
    c = node_name("c");
    node_run(&a, daemon_binary(), key, nodes_of_a ? nodes_of_a : b.address, NULL);
    node_run(&b, daemon_binary(), key, a.address, NULL);
    node_run(&c, daemon_binary(), key, "", NULL);
    if (!nodes_of_a)
        (void)node_await(&a, b.address, "connected", "");
    CHECK(chmod(test_directory(), 0711) == 0);
    CHECK(chmod(a.d.socket, 0666) == 0 && chmod(b.d.socket, 0666) == 0 && chmod(c.d.socket, 0666) == 0);
}

static void nodes_stop(void)
{
    daemon_stop_unclean(&a.d);
    daemon_stop_unclean(&b.d);
    daemon_stop_unclean(&c.d);
}

/* fccctl ping, as that user. */
static void pings(uid_t uid, const char *address, int wanted, const char *words)
{
    const char *arguments[] = {"--socket", a.d.socket, "ping", address, NULL};
    char text[4096];
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        if (uid)
            become(uid);
        int code = program_run(text, sizeof(text), fccctl_binary(), arguments);
        if (code != wanted || !strstr(text, words))
            check_failed(__FILE__, __LINE__, "uid %u, ping %s: %d: %s", uid, address, code, text);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void ping(void)
{
    char closed[FCC_NODE_MAX];

    needs_users();
    (void)snprintf(closed, sizeof(closed), "127.0.0.1:%u", port_choose());
    nodes_start(NULL);
    pings(HOSTILE, b.address, 0, "10 round trips");
    pings(HOSTILE, c.address, 1, "only root may ask for others, not uid 40001");
    pings(HOSTILE, closed, 1, "is not in this node's NODES");
    pings(HOSTILE, "no.such.host.invalid:7000", 1, "is not in this node's NODES"); /* nor is its name looked up */
    pings(0, c.address, 0, "10 round trips");
    pings(0, closed, 1, "cannot connect");
    nodes_stop();
}

/* Where nobody is named, nobody may be asked for, not even one that a link leads to. */
static void ping_without_names(void)
{
    needs_users();
    nodes_start("");
    (void)node_await(&a, b.address, "connected", "");
    pings(HOSTILE, b.address, 1, "is not in this node's NODES");
    pings(0, b.address, 0, "10 round trips");
    nodes_stop();
}

/* A communicator's id names a node, and any program can make one. As that user, rank 1 of 2 comes to a with an id of that node's; or to meet
 * there, if that is what it is called. */
static int joins(uid_t uid, const struct bed_node *root, const char *meeting, uint32_t limit_ms, char text[FCC_TEXT_MAX])
{
    struct answer {
        int status;
        char text[FCC_TEXT_MAX];
    } *answer = shared_memory(sizeof(*answer));
    struct fcc_comm_options options = {.time_limit_ms = limit_ms, .device = -1};
    struct fcc_unique_id id;
    fcc_context *there, *here;
    fcc_comm *comm;
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        if (uid)
            become(uid);
        CHECK(setenv("FCCD_SOCKET", root->d.socket, 1) == 0);
        OK(fcc_connect(NULL, &there));
        OK(fcc_get_unique_id(there, &id));
        CHECK(setenv("FCCD_SOCKET", a.d.socket, 1) == 0);
        OK(fcc_connect(NULL, &here));
        if (meeting)
            CHECK(setenv("FCC_RANK", "1", 1) == 0 && setenv("FCC_SIZE", "2", 1) == 0 && setenv("FCC_MEETING", meeting, 1) == 0);
        answer->status = meeting ? fcc_comm_init_env(here, &options, &comm) : fcc_comm_init(here, &id, 2, 1, &options, &comm);
        (void)snprintf(answer->text, sizeof(answer->text), "%s", fcc_last_error());
        fcc_disconnect(here);
        fcc_disconnect(there);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    memcpy(text, answer->text, FCC_TEXT_MAX);
    return answer->status;
}

static void joins_nowhere(const char *meeting)
{
    char text[FCC_TEXT_MAX];
    double start = now_ms();
    int status = joins(HOSTILE, &c, meeting, 20000, text);

    if (status != -EPERM || !strstr(text, meeting ? meeting : c.address) || !strstr(text, "is not in this node's NODES"))
        check_failed(__FILE__, __LINE__, "%d: %s", status, text);
    CHECK(now_ms() - start < 15e3); /* at once, and not at the limit */
    CHECK(log_count(&c, a.address) == 0);
    log_await(&a, "cannot join: it is not in this node's NODES"); /* nor may it be told that the rank cannot join */
    CHECK(log_count(&c, "that a rank cannot join") == 0);
}

/* Rank 0 is waited for: the node was found. */
static void joins_there(uid_t uid, const struct bed_node *root, const char *meeting)
{
    char text[FCC_TEXT_MAX];
    int status = joins(uid, root, meeting, 1000, text);

    if (status != -ETIMEDOUT || strstr(text, "NODES"))
        check_failed(__FILE__, __LINE__, "%d: %s", status, text);
}

static void join(void)
{
    char alias_b[FCC_NODE_MAX], alias_c[FCC_NODE_MAX];

    needs_users();
    nodes_start(NULL);
    (void)snprintf(alias_b, sizeof(alias_b), "localhost:%u", b.port);
    (void)snprintf(alias_c, sizeof(alias_c), "localhost:%u", c.port);
    joins_nowhere(NULL);
    joins_nowhere(c.address);
    joins_nowhere(alias_c);
    joins_there(HOSTILE, &b, NULL);
    joins_there(HOSTILE, &b, alias_b); /* NODES has it by another name, but it is that node */
    joins_there(0, &c, NULL);
    nodes_stop();
}

/* Nobody is named: ids say where the others are. */
static void join_without_names(void)
{
    needs_users();
    nodes_start("");
    joins_there(HOSTILE, &c, NULL);
    nodes_stop();
}

/* ---- those that come from elsewhere ---- */

/* Connections that say nothing, ever more of them, from one address. */
static void besiege(uint16_t port, uint8_t from, _Atomic int *opened)
{
    static int socks[300];

    for (int i = 0;; i = (i + 1) % 300, ++*opened) {
        if (socks[i] > 0)
            (void)close(socks[i]);
        socks[i] = tcp_connect_from(from, port);
    }
}

/* They have a quarter of the places at most, make room for each other, and are no trouble for the nodes, though those come one by one. */
static void strangers_of_one_source(void)
{
    _Atomic int *opened = shared_memory(sizeof(*opened));
    char text[4096];
    int status;
    pid_t pid;

    nodes_start(NULL);
    int before = descriptors_count(a.d.pid);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        besiege(a.port, 77, opened);
    for (double until = await_end(); *opened < 400; nap())
        CHECK(now_ms() < until);
    for (int i = 0; i < 20; i++) {
        const char *arguments[] = {"--socket", b.d.socket, "ping", a.address, NULL};
        if (program_run(text, sizeof(text), fccctl_binary(), arguments) != 0)
            check_failed(__FILE__, __LINE__, "%s", text);
        int more = descriptors_count(a.d.pid) - before;
        CHECK(more <= STRANGERS_SHARE + 16); /* 16: b's own, fccctl's, and one that is being accepted */
    }
    CHECK(!strcmp(node_see(&b, a.address).state, "connected"));
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    printf("%d strangers came\n", *opened);
    CHECK(log_count(&a, "node 127.0.0.77: ") > 0 && log_count(&a, "node 127.0.0.77: ") < 20);
    nodes_stop();
}

/* All that its log has said of complaints that had no place in it. */
static int complaints_unsaid(const struct bed_node *n)
{
    FILE *f = fopen(n->d.log, "re");
    char line[1024];
    int sum = 0, more;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, "nodes: ");
        sum += at && strstr(at, " more complaints, of more than") && sscanf(at, "nodes: %d", &more) == 1 ? more : 0;
    }
    (void)fclose(f);
    return sum;
}

/* More addresses are complained of than there is room for in a minute: the rest is counted, and the number is said, every 10 s. */
static void complaints_without_number(void)
{
    enum { SOURCES = COMPLAINTS + 36 };
    static const char http[] = "GET / HTTP/1.1\r\nHost: fccd\r\nUser-Agent: somebody\r\n\r\n";

    a = node_name("a");
    node_run(&a, daemon_binary(), key_make("key"), "", NULL);
    for (int i = 0; i < SOURCES; i++) {
        int sock = tcp_connect_from((uint8_t)(100 + i), a.port);
        CHECK(send(sock, http, sizeof(http), MSG_NOSIGNAL) == sizeof(http));
        CHECK(tcp_closed(sock));
        (void)close(sock);
    }
    for (double until = now_ms() + NODE_WAIT_MS; complaints_unsaid(&a) < SOURCES - COMPLAINTS; (void)usleep(POLL_EVERY_US))
        CHECK(now_ms() < until);
    CHECK(complaints_unsaid(&a) == SOURCES - COMPLAINTS);
    daemon_stop(&a.d);
}

int main(void)
{
    const struct test tests[] = {
        {"ping", ping, 0},
        {"ping_without_names", ping_without_names, 0},
        {"join", join, 60},
        {"join_without_names", join_without_names, 0},
        {"complaints_without_number", complaints_without_number, 60},
        {"strangers_of_one_source", strangers_of_one_source, 60},
    };
    return tests_run("node_permits", TESTS(tests));
}
