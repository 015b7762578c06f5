/* SPDX-License-Identifier: MIT
 *
 * test_metrics.c - metrics: the text is OpenMetrics; they count what was run, on one node and over two; they stay when a worker ends; users see
 * their own; and what METRICS_LISTEN answers, also to those who want to harm it.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/fccctl/fccctl_run.h"
#include "tests/fccctl/openmetrics.h"

static struct om *metrics(void)
{
    CHECK(FCCCTL("metrics") == 0);
    return om_parse(output);
}

static double value(const char *name, const char *labels)
{
    struct om *om = metrics();
    double v = om_value(om, name, labels);

    free(om);
    return v;
}

static void output_free(void)
{
    free(output);
    output = NULL;
}

/* ---- counts ---- */

#define NOOPS 7
#define GEMVS 5

/* COMMS_PER_JOB is 1. */
static bool one_is_all;

static void counted_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    for (int i = 0; i < NOOPS; i++)
        OK(fcc_noop(comm));
    gemv_once(comm, GEMVS);
    if (rank == 0 && one_is_all) {
        struct fcc_unique_id id;
        fcc_comm *more;
        OK(fcc_get_unique_id(comm_context(), &id));
        FAILS(fcc_comm_init(comm_context(), &id, 1, 0, NULL, &more), -EUSERS, "COMMS_PER_JOB");
    }
    struct fcc_gemv_all_reduce_args wrong = {.schedule = FCC_SCHEDULE_FUSED};
    CHECK(fcc_gemv_all_reduce(comm, &wrong) == -EINVAL); /* ends with an error for all ranks */
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void expect_counts(const struct om *om)
{
    CHECK(om_value(om, "fccd_operators_total", "operator=\"noop\",schedule=\"none\"") == NOOPS);
    CHECK(om_value(om, "fccd_operators_total", "operator=\"gemv_all_reduce\",schedule=\"fused\"") == GEMVS);
    CHECK(om_value(om, "fccd_operators_failed_total", "operator=\"gemv_all_reduce\"") == 1);
    CHECK(om_value(om, "fccd_operator_wait_seconds_count", "operator=\"noop\"") == NOOPS);
    CHECK(om_value(om, "fccd_operator_run_seconds_count", "operator=\"gemv_all_reduce\"") == GEMVS + 1);
    CHECK(om_value(om, "fccd_operator_run_seconds_sum", "operator=\"gemv_all_reduce\"") > 0);
    CHECK(om_value(om, "fccd_communicators_formed_total", "") == 1);
    CHECK(om_value(om, "fccd_workers_started_total", "") >= 1 && om_value(om, "fccd_workers_died_total", "") == 0);
}

/* What a worker has counted is shown while it runs, and stays when it has ended. */
static void counts_what_was_run(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    char uid[32];
    struct om *om;

    daemon_start(&d, (const char *const[]){"--worker-idle-ms", "50", "--jobs-per-user", "9", "--comms-per-user", "3",
                                           "--comms-per-job", "1", NULL});
    om = metrics();
    CHECK(om_value(om, "fccd_operators_total", "operator=\"noop\",schedule=\"none\"") == -1);
    CHECK(om_value(om, "fccd_build_info", "version=\"0.1.0\"") == 1 && om_value(om, "fccd_limit_jobs", "") == 9);
    free(om);
    one_is_all = true;
    ranks_start(&r, 2, counted_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    om = metrics();
    expect_counts(om);
    (void)snprintf(uid, sizeof(uid), "uid=\"%u\"", getuid());
    CHECK(om_value(om, "fccd_user_jobs", uid) == 1 && om_value(om, "fccd_user_connections", uid) == 2);
    CHECK(om_value(om, "fccd_user_memory_bytes", uid) > 1024 * 2048 * 4);
    CHECK(om_value(om, "fccd_user_communicators", uid) == 1 && om_value(om, "fccd_user_operators", uid) <= 64);
    CHECK(om_value(om, "fccd_user_gpu_memory_bytes", uid) == 0 && om_value(om, "fccd_user_stream_operators", uid) == 0);
    CHECK(om_value(om, "fccd_limit_communicators", "") == 3 && om_value(om, "fccd_limit_gpu_memory_bytes", "") == -1);
    CHECK(om_value(om, "fccd_limit_operators", "") == 262144 && om_value(om, "fccd_limit_stream_operators", "") == 65536);
    CHECK(om_value(om, "fccd_limit_refusals_total", "limit=\"COMMS_PER_JOB\"") == 1);
    CHECK(om_value(om, "fccd_limit_refusals_total", "limit=\"COMMS_PER_USER\"") == 0);
    CHECK(om_value(om, "fccd_communicators", "") == 1 && om_value(om, "fccd_operators_running", "") == 0);
    CHECK(om_value(om, "fccd_operators_queued", "") == 0);
    free(om);
    CHECK(FCCCTL("metrics", "--json") == 0);
    struct json_object *o = parse();
    CHECK(json_object_array_length(field(o, "metrics")) > 30 && *text(o, "metrics.0.name") == 'f');
    (void)json_object_put(o);
    stage->go = 1;
    ranks_join(&r);
    for (double until = await_end(); value("fccd_user_jobs", uid) > 0; (void)usleep(10000))
        CHECK(now_ms() < until);
    om = metrics();
    expect_counts(om);
    CHECK(om_value(om, "fccd_communicators", "") == 0 && om_value(om, "fccd_user_jobs", uid) == -1);
    free(om);
    daemon_stop(&d);
    output_free();
}

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 1500);

    if (rank == 0)
        CHECK(fcc_noop(comm) == -ETIMEDOUT);
    stage->ready++;
    while (stage->ready < 2)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void killed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    OK(fcc_noop(comm));
    if (rank == 1)
        (void)raise(SIGKILL);
    CHECK(fcc_noop(comm) == -ECONNABORTED);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void asked_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    OK(fcc_noop(comm));
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    CHECK(fcc_noop(comm) == -ECONNABORTED);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void counts_aborts(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    struct om *om;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, late_rank, stage);
    ranks_join(&r);
    ranks_start(&r, 2, killed_rank, NULL);
    CHECK(rank_wait(&r, 0) == 0 && WIFSIGNALED(rank_wait(&r, 1)));
    stage->ready = 0;
    ranks_start(&r, 2, asked_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    CHECK(FCCCTL("abort") == 2);
    CHECK(FCCCTL("comms", "--json") == 0);
    struct json_object *o = parse();
    char comm[16];
    (void)snprintf(comm, sizeof(comm), "%d", (int)number(o, "workers.0.comms.0.comm"));
    (void)json_object_put(o);
    CHECK(FCCCTL("abort", "--comm", comm) == 0);
    stage->go = 1;
    ranks_join(&r);
    om = metrics();
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"time_limit\"") == 1);
    CHECK(om_value(om, "fccd_time_limits_total", "what=\"come\"") == 1);
    CHECK(om_value(om, "fccd_time_limits_total", "what=\"form\"") == 0 &&
          om_value(om, "fccd_time_limits_total", "what=\"run\"") == 0);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"rank_gone\"") == 1);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"asked\"") == 1);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"other\"") == 0 && om_value(om, "fccd_operators_queued", "") == 0);
    free(om);
    daemon_stop(&d);
    output_free();
}

/* Both nodes count what was sent; one that ends is a loss at the other. */
static void counts_over_nodes(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    char labels[128], node[96];
    struct om *om;

    daemons_start(&d, 2, NULL);
    ranks_start(&r, 2, counted_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    (void)snprintf(labels, sizeof(labels), "node=\"%.64s\",transport=\"%s\"", d.node[1].address,
                   test_over_verbs() ? "verbs" : "tcp");
    (void)snprintf(node, sizeof(node), "node=\"%s\"", d.node[1].address);
    for (double until = await_end(); value("fccd_link_sent_messages_total", labels) < GEMVS; (void)usleep(10000))
        CHECK(now_ms() < until);
    om = metrics();
    CHECK(om_value(om, "fccd_link_sent_bytes_total", labels) > 0 && om_value(om, "fccd_link_received_bytes_total", labels) > 0);
    CHECK(om_value(om, "fccd_link_sent_messages_total", labels) > 0 && om_value(om, "fccd_link_losses_total", labels) == 0);
    CHECK(om_value(om, "fccd_node_up", node) == 1 && om_value(om, "fccd_node_link_losses_total", node) == 0);
    CHECK(om_value(om, "fccd_proxy_lag_seconds_count", "") >= GEMVS);
    expect_counts(om);
    free(om);
    stage->go = 1;
    ranks_join(&r);
    CHECK(kill(d.node[1].pid, SIGKILL) == 0 && waitpid(d.node[1].pid, NULL, 0) == d.node[1].pid);
    for (double until = await_end(); value("fccd_node_up", node) != 0; (void)usleep(10000))
        CHECK(now_ms() < until);
    CHECK(value("fccd_node_up", node) == 0 && value("fccd_node_link_losses_total", node) == 1);
    node_restart(&d, 1);
    for (double until = await_end(); value("fccd_node_up", node) != 1; (void)usleep(10000))
        CHECK(now_ms() < until);
    CHECK(value("fccd_node_up", node) == 1 && value("fccd_node_link_losses_total", node) == 1);
    daemon_stop_unclean(&d);
    output_free();
}

/* ---- HTTP ---- */

static char where[128]; /* METRICS_LISTEN */

static int http_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", where);
    CHECK(sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0);
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
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        argv[4] = wrong[i];
        CHECK(run(daemon_binary(), argv) == 2 && says("METRICS_LISTEN") && says("127.x.x.x:port"));
    }
    CHECK(sock >= 0 && !bind(sock, (struct sockaddr *)&address, size) &&
          !getsockname(sock, (struct sockaddr *)&address, &size));
    (void)close(sock); /* its port is free a moment ago */
    (void)snprintf(where, sizeof(where), "127.0.0.1:%u", ntohs(address.sin_port));
    daemon_start(&d, (const char *const[]){"--metrics-listen", where, NULL});
    sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(sock >= 0 && connect(sock, (struct sockaddr *)&address, size) == 0);
    CHECK(send(sock, GET, sizeof(GET) - 1, MSG_NOSIGNAL) == sizeof(GET) - 1);
    expect_page(http_read(sock));
    daemon_stop(&d);
    output_free();
}

int main(void)
{
    const struct test tests[] = {
        {"counts_what_was_run", counts_what_was_run, 0}, {"counts_aborts", counts_aborts, 0},
        {"counts_over_nodes", counts_over_nodes, 60},    {"http_answers", http_answers, 0},
        {"http_is_bounded", http_is_bounded, 0},         {"http_without_end", http_without_end, 0},
        {"where_it_listens", where_it_listens, 0},
    };

    return tests_run("metrics", TESTS(tests));
}
