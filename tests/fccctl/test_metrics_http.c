/* SPDX-License-Identifier: MIT
 *
 * test_metrics_http.c - what METRICS_LISTEN answers, also to those who want to harm it, and where it may listen.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/fccctl/fccctl_run.h"
#include "tests/fccctl/openmetrics.h"

static void output_free(void)
{
    free(output);
    output = NULL;
}

static char where[128]; /* METRICS_LISTEN */

/* -1: nobody listens there (yet: the file is there a moment before). */
static int http_try(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(sock >= 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", where);
    if (connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0)
        return sock;
    CHECK(errno == ENOENT || errno == ECONNREFUSED);
    (void)close(sock);
    return -1;
}

static int http_connect(void)
{
    int sock = http_try();

    CHECK(sock >= 0);
    return sock;
}

/* All that comes until the connection's end. */
static const char *http_read(int sock)
{
    static char answer[1 << 20];
    size_t have = 0;
    ssize_t n;

    while ((n = recv(sock, answer + have, sizeof(answer) - 1 - have, 0)) > 0)
        have += (size_t)n;
    answer[have] = '\0';
    (void)close(sock);
    return answer;
}

static const char *http(const char *request, size_t bytes)
{
    int sock = http_connect();

    (void)send(sock, request, bytes, MSG_NOSIGNAL);
    return http_read(sock);
}

static void expect_page(const char *answer)
{
    const char *body = strstr(answer, "\r\n\r\n");
    char length[64];

    CHECK(body && strncmp(answer, "HTTP/1.1 200 OK\r\n", 17) == 0);
    (void)snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(body + 4));
    CHECK(strstr(answer, length) &&
          strstr(answer, "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    free(om_parse(body + 4));
}

static void listener_start(struct test_daemon *d)
{
    (void)snprintf(where, sizeof(where), "%.100s/m.sock", test_directory());
    daemon_start(d, (const char *const[]){"--metrics-listen", where, NULL});
}

#define GET "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"

static void http_answers(void)
{
    static const struct {
        const char *request;
        size_t bytes;
        const char *status;
    } cases[] = {
#define REQUEST(text, status) {text, sizeof(text) - 1, "HTTP/1." status}
        REQUEST("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "0 200"),
        REQUEST("GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "0 200"),
        REQUEST("HEAD /metrics HTTP/1.1\r\n\r\n", "1 200"),
        REQUEST("GET /metrics HTTP/1.1\n\n", "1 200"),
        REQUEST("GET http://x/metrics HTTP/1.1\r\n\r\n", "1 200"),
        REQUEST("GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n", "1 200"),
        REQUEST("GET / HTTP/1.1\r\n\r\n", "1 404"),
        REQUEST("GET /metricsx HTTP/1.1\r\n\r\n", "1 404"),
        REQUEST("GET /../metrics HTTP/1.1\r\n\r\n", "1 404"),
        REQUEST("GET %n%n%n%n HTTP/1.1\r\n\r\n", "1 404"),
        REQUEST("GET /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "1 413"),
        REQUEST("POST /metrics HTTP/1.1\r\nContent-Length: 9999999\r\n\r\nx", "1 413"),
        REQUEST("POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nx", "1 413"),
        REQUEST("POST /metrics HTTP/1.1\r\n\r\n", "1 501"),
        REQUEST("DELETE /metrics HTTP/1.1\r\n\r\n", "1 501"),
        REQUEST("NONE /metrics HTTP/1.1\r\n\r\n", "1 501"),
        REQUEST("GET /metrics HTTP/2.0\r\n\r\n", "1 400"),
        REQUEST("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "1 400"),
        REQUEST("GET /metrics\r\n\r\n", "1 400"),
        REQUEST("GET\r\n\r\n", "1 400"),
        REQUEST("\r\n\r\n", "1 400"),
        REQUEST("\x16\x03\x01\x02\x00\x01\n\n", "1 400"), /* TLS */
        REQUEST("GET /metrics\0 HTTP/1.1\r\n\r\n", "1 400"),
        REQUEST("GET /metrics HTTP/1.1\r\nX\r\n\r\n", "1 400"),
    };
    struct test_daemon d;
    struct stat st;
    char *large = malloc(1 << 20);
    int sock;

    listener_start(&d);
    CHECK(stat(where, &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0660);
    expect_page(http(GET, sizeof(GET) - 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *answer = http(cases[i].request, cases[i].bytes);
        if (strncmp(answer, cases[i].status, strlen(cases[i].status)) != 0)
            check_failed(__FILE__, __LINE__, "case %zu: %s: %.80s", i, cases[i].request, answer);
    }
    memset(large, 'a', 1 << 20); /* a request without an end */
    CHECK(strncmp(http(large, 1 << 20), "HTTP/1.1 400", 12) == 0);
    memcpy(large, "GET /metrics HTTP/1.1\r\nX: ", 26);
    CHECK(strncmp(http(large, 1 << 16), "HTTP/1.1 400", 12) == 0);
    sock = http_connect(); /* byte by byte */
    for (size_t i = 0; i < sizeof(GET) - 1; i++)
        CHECK(send(sock, GET + i, 1, MSG_NOSIGNAL) == 1);
    expect_page(http_read(sock));
    sock = http_connect(); /* gone before the answer */
    CHECK(send(sock, GET, sizeof(GET) - 1, MSG_NOSIGNAL) > 0);
    (void)close(sock);
    expect_page(http(GET, sizeof(GET) - 1));
    free(large);
    daemon_stop(&d);
    CHECK(access(where, F_OK) != 0);
}

#define SILENT 200

/* Connections that say nothing, or do not read, are bounded and delay nobody; the broker has the descriptors back. */
static void http_is_bounded(void)
{
    struct test_daemon d;
    int silent[SILENT], open = 0;
    char byte;

    listener_start(&d);
    for (int i = 0; i < SILENT; i++) {
        silent[i] = http_connect();
        (void)send(silent[i], i % 2 ? GET : "GET /met", i % 2 ? sizeof(GET) - 1 : 8, MSG_NOSIGNAL);
        if (i % 20 == 0)
            expect_page(http(GET, sizeof(GET) - 1));
    }
    expect_page(http(GET, sizeof(GET) - 1));
    for (int i = 0; i < SILENT; i += 2) { /* those without a whole request: at most as many as are allowed still stand */
        ssize_t n = recv(silent[i], &byte, 1, MSG_DONTWAIT);
        open += n < 0 && errno == EAGAIN;
    }
    CHECK(open <= 16);
    CHECK(FCCCTL("status") == 0);
    for (int i = 0; i < SILENT; i++)
        (void)close(silent[i]);
    daemon_stop(&d);
    output_free();
}

/* A connection whose request has no end is ended, and what it sends is not gathered. */
static void http_without_end(void)
{
    static const char begin[] = "POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"; /* and then a chunk's length */
    static char zeros[1 << 16];
    struct test_daemon d;
    size_t sent = 0;
    ssize_t n;

    listener_start(&d);
    int sock = http_connect();
    CHECK(send(sock, begin, sizeof(begin) - 1, MSG_NOSIGNAL) == sizeof(begin) - 1);
    memset(zeros, '0', sizeof(zeros));
    while (sent < 256u << 20 && (n = send(sock, zeros, sizeof(zeros), MSG_NOSIGNAL)) > 0)
        sent += (size_t)n;
    if (sent > 4u << 20) /* more than sockets hold */
        check_failed(__FILE__, __LINE__, "%zu bytes were taken", sent);
    (void)http_read(sock);
    expect_page(http(GET, sizeof(GET) - 1));
    daemon_stop(&d);
}

/* Where it may listen. */
static void where_it_listens(void)
{
    static const char *const wrong[] = {"0.0.0.0:9477",   "192.0.2.1:9477", "127.0.0.1",   "[::]:9477",
                                        "localhost:9477", "9477",           "metrics.sock"};
    const char *argv[] = {"--check-config", "--config", "/dev/null", "--metrics-listen", NULL, NULL};
    struct test_daemon d;
    const uint16_t port = port_choose();
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        argv[4] = wrong[i];
        CHECK(run(daemon_binary(), argv) == 2 && says("METRICS_LISTEN") && says("127.x.x.x:port"));
    }
    (void)snprintf(where, sizeof(where), "127.0.0.1:%u", port);
    daemon_start(&d, (const char *const[]){"--metrics-listen", where, NULL});
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(sock >= 0 && connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK(send(sock, GET, sizeof(GET) - 1, MSG_NOSIGNAL) == sizeof(GET) - 1);
    expect_page(http_read(sock));
    daemon_stop(&d);
    output_free();
}

/* ---- whose socket it is ---- */

/* As fccd.service has it: SETUID, SETGID, SETPCAP and KILL only, and the socket for clients is systemd's. */
static pid_t service_start(const struct sockaddr_un *at, gid_t gid, const char *const options[])
{
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const char *arguments[16] = {"fccd",        "--config", "/dev/null",        "--gpus", "none",
                                 "--log-level", "warning",  "--metrics-listen", where};
    int n = 9;

    for (; options && *options; options++)
        arguments[n++] = *options;
    CHECK(sock >= 0 && !bind(sock, (const struct sockaddr *)at, sizeof(*at)) && !listen(sock, 16));
    CHECK(!chown(at->sun_path, 0, gid) && !chmod(at->sun_path, 0660));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char self[16];
        (void)snprintf(self, sizeof(self), "%d", getpid());
        CHECK(!setenv("LISTEN_FDS", "1", 1) && !setenv("LISTEN_PID", self, 1) && !unsetenv("NOTIFY_SOCKET"));
        for (int c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
            if (c != CAP_SETUID && c != CAP_SETGID && c != CAP_SETPCAP && c != CAP_KILL)
                CHECK(!prctl(PR_CAPBSET_DROP, c, 0, 0, 0));
        CHECK(dup2(sock, 3) == 3 && !fcntl(3, F_SETFD, 0));
        (void)execv(daemon_binary(), (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    (void)close(sock);
    return pid;
}

static void belongs_to(const struct sockaddr_un *at, gid_t of_clients, gid_t gid, const char *const options[])
{
    struct stat st;
    int status, sock;
    pid_t pid = service_start(at, of_clients, options);

    for (double until = await_end(); (sock = http_try()) < 0; (void)usleep(10000))
        CHECK(now_ms() < until && waitpid(pid, NULL, WNOHANG) == 0);
    (void)close(sock);
    expect_page(http(GET, sizeof(GET) - 1));
    CHECK(!stat(where, &st) && st.st_uid == 0 && st.st_gid == gid && (st.st_mode & 0777) == 0660);
    CHECK(kill(pid, SIGTERM) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(access(where, F_OK) != 0 && unlink(at->sun_path) == 0);
}

/* It is for those who may connect, also where fccd may give no file away. */
static void whose_it_is(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const struct group *g = getgrnam("daemon");
    const gid_t clients = g ? g->gr_gid : 0, another = (g = getgrnam("games")) ? g->gr_gid : 0;

    if (geteuid())
        test_skip("skipped: needs root, to give a socket to another group");
    CHECK(clients && another);
    (void)snprintf(where, sizeof(where), "%.100s/m.sock", test_directory());
    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%.90s/clients.sock", test_directory());
    belongs_to(&at, clients, clients, NULL);
    belongs_to(&at, clients, another, (const char *const[]){"--socket-group", "games", NULL});
}

int main(void)
{
    const struct test tests[] = {{"http_answers", http_answers, 0},
                                 {"http_is_bounded", http_is_bounded, 0},
                                 {"http_without_end", http_without_end, 0},
                                 {"where_it_listens", where_it_listens, 0},
                                 {"whose_it_is", whose_it_is, 0}};

    return tests_run("metrics_http", TESTS(tests));
}
