/* SPDX-License-Identifier: MIT
 *
 * daemons.c - the daemons and ranks that a test starts (harness.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/raw.h"

#define POLL_US 2000
#define NODE_PORT 7411 /* where each has a host of its own */

const char *daemon_binary(void)
{
    const char *path = getenv("FCCD_BINARY");
    return path ? path : "build/bin/fccd";
}

static bool daemon_serves(void)
{
    fcc_context *probe;
    struct fcc_connect_options options = {.job = "probe"};
    int status = fcc_connect(&options, &probe);

    if (!status)
        fcc_disconnect(probe);
    return !status;
}

static int children_count(pid_t pid)
{
    char path[64];
    int n = 0, child;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%d", &child) == 1)
        n++;
    if (f)
        (void)fclose(f);
    return n;
}

int test_nodes(void)
{
    const char *text = getenv("FCC_TEST_NODES");
    int n = text ? atoi(text) : 1;

    return n < 1 ? 1 : n > TEST_NODES_MAX ? TEST_NODES_MAX : n;
}

bool test_over_verbs(void)
{
    const char *transport = getenv("FCCD_TRANSPORT");

    return transport && !strcmp(transport, "verbs");
}

static const char *key_path(void)
{
    static char path[160];

    (void)snprintf(path, sizeof(path), "%s/cluster.key", test_directory());
    return path;
}

static void key_make(void)
{
    int fd = open(key_path(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    CHECK(fd >= 0 && write(fd, "a key that only these tests have, 64 bytes of it: 0123456789abcd\n", 64) == 64);
    (void)close(fd);
}

static struct test_daemon *started; /* for the ranks */
static const char *const *node_hosts;
static void (*node_enter)(int node);

void daemons_place(const char *const hosts[], void (*enter)(int node))
{
    node_hosts = hosts;
    node_enter = enter;
}

static pid_t daemon_fork(const struct test_node *d, const char *const options[])
{
    char code[256]; /* what programs' steps are compiled into */
    char *argv[48] = {(char *)(uintptr_t)daemon_binary(), "--config", "/dev/null", "--socket", (char *)(uintptr_t)d->socket};
    char *idle = getenv("FCC_TEST_IDLE_MS"); /* on a machine so slow that a job's next process may come later */
    char *gpus = test_device() == FCC_DEVICE_CPU ? "none" : test_device() == FCC_DEVICE_HIP ? "hip" : "cuda";
    char *defaults[] = {"--cpu-devices", "4",     "--cpu-workgroups", "1",  "--worker-idle-ms", idle ? idle : "50",
                        "--log-level",   "debug", "--gpus",           gpus, "--code-cache",     code};
    char *node[] = {"--node-listen", (char *)(uintptr_t)d->address, "--cluster-key", (char *)(uintptr_t)key_path()};
    int n = 5;

    (void)snprintf(code, sizeof(code), "%s/.code", test_directory());
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        argv[n++] = defaults[i];
    for (size_t i = 0; *d->address && i < sizeof(node) / sizeof(node[0]); i++)
        argv[n++] = node[i];
    for (; options && *options; options++)
        argv[n++] = (char *)(uintptr_t)*options;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
            _exit(126);
        if (node_enter)
            node_enter((int)(d - started->node));
        (void)execv(argv[0], argv);
        _exit(127);
    }
    return pid;
}

/* The broker has no worker. It is one thread, so what it answers now it answers after all that the last worker's end has brought about; and it
 * has one descriptor more for this connection. */
static int descriptors_at_rest(const struct test_node *d)
{
    struct test_daemon at = {.node = {*d}};
    struct raw *r = raw_open(&at);
    struct fcc_hello h = hello_make();

    h.version = FCC_PROTO_OLDEST; /* which a fccd of any version takes */
    h.role = FCC_ROLE_CONTROL;
    h.uid = geteuid();
    h.job[0] = '\0';
    raw_send(r, &h, sizeof(h), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    int n = descriptors_count(d->pid) - 1;
    raw_close(r);
    return n;
}

static void node_serve(struct test_node *d, const char *const options[])
{
    (void)setenv("FCCD_SOCKET", d->socket, 1);
    d->pid = daemon_fork(d, options);
    double until = await_end();
    while (!daemon_serves()) {
        CHECK(now_ms() < until);
        CHECK(waitpid(d->pid, NULL, WNOHANG) == 0);
        (void)usleep(POLL_US);
    }
}

static void node_start(struct test_node *d, const char *const options[])
{
    double until = await_end();

    node_serve(d, options);
    while (children_count(d->pid)) { /* the probe's worker goes after 50 ms: then the broker is at rest */
        CHECK(now_ms() < until);
        (void)usleep(POLL_US);
    }
    /* It may have just one open for a moment, which nobody waits for: the count is right when it is the same again. */
    for (int before = -1; (d->descriptors = descriptors_at_rest(d)) != before; before = d->descriptors) {
        CHECK(now_ms() < until);
        (void)usleep(POLL_US);
    }
}

void node_restart(struct test_daemon *d, int node)
{
    node_restart_with(d, node, NULL);
}

void node_restart_with(struct test_daemon *d, int node, const char *const options[])
{
    node_start(&d->node[node], options);
    (void)setenv("FCCD_SOCKET", d->socket, 1);
}

void node_restart_busy(struct test_daemon *d, int node, const char *const options[])
{
    node_serve(&d->node[node], options);
    (void)setenv("FCCD_SOCKET", d->socket, 1);
}

void node_start_fails(struct test_daemon *d, int node, const char *const options[])
{
    int status;
    pid_t pid = daemon_fork(&d->node[node], options);

    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_FAILURE)
        check_failed(__FILE__, __LINE__, "a daemon that cannot start ended with wait status 0x%x", status);
}

void daemons_start(struct test_daemon *d, int nodes, const char *const options[])
{
    const char *host = getenv("FCC_TEST_HOST"); /* the address of this machine that nodes reach each other under */

    memset(d, 0, sizeof(*d));
    d->nodes = nodes;
    started = d;
    (void)setenv("FCCD_JOB", "test", 1);
    if (nodes > 1)
        key_make();
    for (int i = 0; i < nodes; i++) {
        struct test_node *node = &d->node[i];
        char number[12] = "";
        if (i)
            (void)snprintf(number, sizeof(number), "%d", i);
        (void)snprintf(node->socket, sizeof(node->socket), "%s/fccd%s.sock", test_directory(), number);
        (void)snprintf(node->log, sizeof(node->log), "%s/daemon%s.log", test_directory(), number);
        if (nodes > 1 && node_hosts)
            (void)snprintf(node->address, sizeof(node->address), "%s:%d", node_hosts[i], NODE_PORT);
        else if (nodes > 1)
            (void)snprintf(node->address, sizeof(node->address), "%s:%d", host ? host : "127.0.0.1", port_choose());
        node_start(node, options);
    }
    (void)setenv("FCCD_SOCKET", d->socket, 1);
}

void daemon_start(struct test_daemon *d, const char *const options[])
{
    daemons_start(d, test_nodes(), options);
}

bool node_logged(const struct test_node *d, const char *text, bool awaited)
{
    double until = await_end();
    char line[2048];

    do {
        FILE *f = fopen(d->log, "re");
        while (f && fgets(line, sizeof(line), f))
            if (strstr(line, text)) {
                (void)fclose(f);
                return true;
            }
        if (f)
            (void)fclose(f);
        (void)usleep(POLL_US);
    } while (awaited && now_ms() < until);
    return false;
}

static void daemon_end(struct test_node *d)
{
    int status = 0;
    double until = await_end();

    CHECK(kill(d->pid, SIGTERM) == 0);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        CHECK(now_ms() < until);
        (void)usleep(POLL_US);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        check_failed(__FILE__, __LINE__, "the broker ended with wait status 0x%x", status);
}

bool daemon_logged(const struct test_daemon *d, const char *text, bool awaited)
{
    return node_logged(&d->node[0], text, awaited);
}

int daemon_log_count(const struct test_daemon *d, const char *text)
{
    char line[2048];
    FILE *f = fopen(d->node[0].log, "re");
    int n = 0;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, text) != NULL;
    (void)fclose(f);
    return n;
}

/* A broker keeps a connection to and from each other node that it has had to do with. */
static void daemon_rest(const struct test_node *d, int nodes)
{
    double until = await_end(); /* a sanitizer looks for leaks at a worker's end */
    int n;

    while ((n = descriptors_count(d->pid)) < d->descriptors || n > d->descriptors + 2 * (nodes - 1) || children_count(d->pid)) {
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "the broker has %d descriptors (%d at rest) and %d workers", n, d->descriptors,
                         children_count(d->pid));
        (void)usleep(POLL_US);
    }
}

/* One that a test has started by itself is one node. */
static int nodes_of(const struct test_daemon *d)
{
    return d->nodes > 1 ? d->nodes : 1;
}

void daemon_stop(struct test_daemon *d)
{
    for (int i = 0; i < nodes_of(d); i++)
        daemon_rest(&d->node[i], nodes_of(d));
    daemon_stop_unclean(d);
    for (int i = 0; i < nodes_of(d); i++)
        CHECK(!node_logged(&d->node[i], ": error:", false));
}

void daemon_stop_unclean(struct test_daemon *d)
{
    for (int i = 0; i < nodes_of(d); i++)
        if (d->node[i].pid)
            daemon_end(&d->node[i]);
    if (nodes_of(d) > 1)
        (void)unlink(key_path());
}

/* The broker has other children for a while, and a worker is one until it has become the program again. */
static bool process_is_worker(pid_t pid)
{
    char path[64], name[64] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool is = fgets(name, sizeof(name), f) && !strcmp(name, "fccd: worker");
    (void)fclose(f);
    return is;
}

/* The first of the broker's workers; *n: how many there are. */
static pid_t workers_look(const struct test_daemon *d, int *n)
{
    char path[64];
    int child, first = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", d->pid, d->pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    for (*n = 0; fscanf(f, "%d", &child) == 1;) {
        if (!process_is_worker(child))
            continue;
        first = *n ? first : child;
        ++*n;
    }
    (void)fclose(f);
    return first;
}

pid_t daemon_worker(const struct test_daemon *d)
{
    double until = await_end();
    int n;

    for (pid_t worker;; (void)usleep(POLL_US)) {
        CHECK(now_ms() < until);
        worker = workers_look(d, &n);
        if (n == 1)
            return worker;
    }
}

/* ---- ranks ---- */

/* In a rank that ranks_start() has started: how many of its ranks have come to their first communicator, and of how many. */
static _Atomic int *come;
static int come_all;

void ranks_meet(bool waits)
{
    static bool counted;
    double until = await_end();

    if (!come)
        return;
    if (!counted)
        ++*come;
    counted = true;
    while (waits && *come < come_all)
        AWAITING(until);
}

void ranks_start(struct ranks *r, int n, void (*run)(int, const struct ranks *, void *), void *argument)
{
    fcc_context *context;

    CHECK(n <= RANKS_MAX);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &r->id));
    fcc_disconnect(context);
    r->n = n;
    come = shared_memory(sizeof(*come));
    come_all = n;
    ranks_start_some(r, 0, n, run, argument);
    come = NULL; /* the ranks have it */
}

void ranks_start_some(struct ranks *r, int first, int count, void (*run)(int, const struct ranks *, void *), void *argument)
{
    CHECK(first >= 0 && count >= 0 && first + count <= r->n && r->n <= RANKS_MAX);
    for (int rank = first; rank < first + count; rank++) {
        r->pid[rank] = fork();
        CHECK(r->pid[rank] >= 0);
        if (r->pid[rank] == 0) {
            if (started)
                (void)setenv("FCCD_SOCKET", started->node[rank % started->nodes].socket, 1);
            run(rank, r, argument);
            exit(EXIT_SUCCESS);
        }
    }
}

struct fcc_unique_id id_parse(const char *text)
{
    struct fcc_unique_id id;

    CHECK(strlen(text) == 2 * sizeof(id));
    for (size_t i = 0; i < sizeof(id); i++) {
        unsigned byte;
        CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
        id.bytes[i] = (unsigned char)byte;
    }
    return id;
}

int rank_wait(struct ranks *r, int rank)
{
    int status;

    CHECK(waitpid(r->pid[rank], &status, 0) == r->pid[rank]);
    r->pid[rank] = 0;
    return status;
}

void ranks_join(struct ranks *r)
{
    for (int rank = 0; rank < r->n; rank++) {
        int status = r->pid[rank] ? rank_wait(r, rank) : 0;
        if (status)
            check_failed(__FILE__, __LINE__, "rank %d ended with wait status 0x%x", rank, status);
    }
}

static fcc_context *opened;

fcc_context *comm_context(void)
{
    return opened;
}

fcc_comm *comm_open(const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = time_limit_ms, .device_kind = test_device()};
    fcc_comm *comm;

    OK(fcc_connect(NULL, &opened));
    ranks_meet(time_limit_ms != 0);
    OK(fcc_comm_init(opened, &all->id, all->n, rank, &options, &comm));
    return comm;
}

void alive_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

void expect_alive(int ranks)
{
    struct ranks r;

    ranks_start(&r, ranks, alive_rank, NULL);
    ranks_join(&r);
}

void ranks_run(int n, void (*run)(int rank, const struct ranks *all, void *argument), void *argument)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, n, run, argument);
    ranks_join(&r);
    daemon_stop(&d);
}
