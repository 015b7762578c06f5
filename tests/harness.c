/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define EXIT_SKIP 77
#define POLL_US 2000

static const struct test *current; /* of this process */
static char directory[64];
static char output[80];
#define SLOW_FACTOR 4
#define NODE_PORT 7411 /* where each has a host of its own */

double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

const char *test_directory(void)
{
    return directory;
}

void *shared_memory(size_t bytes)
{
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED);
    return m;
}

/* ---- checks ---- */

void check_failed(const char *file, int line, const char *format, ...)
{
    va_list ap;

    (void)fprintf(stderr, "%s:%d: pid %d: failed: ", file, line, getpid());
    va_start(ap, format);
    (void)vfprintf(stderr, format, ap);
    va_end(ap);
    (void)fprintf(stderr, "\n");
    _exit(EXIT_FAILURE); /* the daemon ends with the test's process group */
}

void check_error(const char *file, int line, const char *call, int got, int want, const char *const words[])
{
    const char *text = fcc_last_error();

    if (got != want)
        check_failed(file, line, "%s: got %d (%s), expected %d: \"%s\"", call, got, strerror(-got), want, text);
    for (; *words; words++)
        if (!strstr(text, *words))
            check_failed(file, line, "%s: \"%s\" does not say \"%s\"", call, text, *words);
}

void test_skip(const char *reason)
{
    printf("%s\n", reason);
    (void)fflush(stdout);
    exit(EXIT_SKIP);
}

int descriptors_count(pid_t pid)
{
    char path[64];
    int n = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n - 2 - (pid == getpid()); /* ".", "..", and the one that reads */
}

/* ---- one test, in a child ---- */

static int directory_leftovers(void)
{
    DIR *d = opendir(directory);
    const struct dirent *entry;
    int n = 0;

    while (d && (entry = readdir(d))) {
        if (entry->d_name[0] == '.' || !strncmp(entry->d_name, "daemon", 6)) /* their logs */
            continue;
        (void)fprintf(stderr, "left behind: %s/%s\n", directory, entry->d_name);
        n++;
    }
    if (d)
        (void)closedir(d);
    return n;
}

static void test_child(void)
{
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    (void)setpgid(0, 0); /* what it leaves running is ended with the group */
    CHECK(fd >= 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int before = descriptors_count(getpid());
    current->run();
    int after = descriptors_count(getpid());
    if (after != before)
        check_failed(__FILE__, __LINE__, "the test leaked descriptors: %d before, %d after", before, after);
    if (directory_leftovers())
        check_failed(__FILE__, __LINE__, "the test left files behind");
    exit(EXIT_SUCCESS);
}

static void file_show(const char *path)
{
    char line[2048];

    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        print_message("  %s", line);
    if (f)
        (void)fclose(f);
}

/* What the test printed, and, if it failed, what its daemons logged. */
static void output_show(bool all)
{
    static const char *const places[] = {"*.log", ".[!.]*/*.log"};

    file_show(output);
    for (size_t i = 0; all && i < sizeof(places) / sizeof(places[0]); i++) {
        char pattern[128];
        glob_t logs;
        (void)snprintf(pattern, sizeof(pattern), "%s/%s", directory, places[i]);
        if (glob(pattern, 0, NULL, &logs))
            continue;
        for (size_t f = 0; f < logs.gl_pathc; f++) {
            print_message("  %s:\n", logs.gl_pathv[f]);
            file_show(logs.gl_pathv[f]);
        }
        globfree(&logs);
    }
}

static int file_remove(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    (void)remove(path);
    return 0;
}

static void directory_remove(void)
{
    (void)nftw(directory, file_remove, 8, FTW_DEPTH | FTW_PHYS);
    (void)unlink(output);
}

/* Waits for the child; past the limit it is killed with all that it started. Its wait status, or -1. */
static int child_await(pid_t pid, unsigned limit_s)
{
    double until = now_ms() + limit_s * 1e3;
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now_ms() > until) {
            (void)kill(-pid, SIGABRT);
            (void)usleep(200000);
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return -1;
        }
        (void)usleep(POLL_US);
    }
    (void)kill(-pid, SIGKILL); /* ranks and daemons of a test that failed */
    return status;
}

/* Runs `current` in a child with a directory of its own. Its wait status; -1: it was not finished in time. */
static int test_fork(unsigned limit_s)
{
    (void)snprintf(directory, sizeof(directory), "/tmp/fccd-test.XXXXXX");
    if (!mkdtemp(directory))
        check_failed(__FILE__, __LINE__, "mkdtemp: %s", strerror(errno));
    (void)chmod(directory, 0755);
    (void)snprintf(output, sizeof(output), "%s.out", directory);
    (void)fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        test_child();
    (void)setpgid(pid, pid);
    return child_await(pid, limit_s);
}

static unsigned limit_of(const struct test *t)
{
    bool slow = getenv("FCC_TEST_SLOW") || test_device() != FCC_DEVICE_CPU;

    return (t->limit_s ? t->limit_s : TEST_LIMIT_S) * (slow ? SLOW_FACTOR : 1);
}

static void test_wrapper(void **state)
{
    current = *state;
    unsigned limit = limit_of(current);
    int status = test_fork(limit);
    bool well = status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    bool skipped = status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIP;
    if (!well || getenv("FCC_TEST_VERBOSE"))
        output_show(!well);
    directory_remove();
    if (skipped)
        skip();
    if (status < 0)
        fail_msg("%s: not finished within %u s", current->name, limit);
    if (!well)
        fail_msg("%s: wait status 0x%x", current->name, status);
}

int tests_run(const char *group, const struct test tests[], size_t n)
{
    const char *only = getenv("FCC_TEST_ONLY");
    struct CMUnitTest *list = calloc(n, sizeof(*list));
    size_t count = 0;

    for (size_t i = 0; list && i < n; i++)
        if (!only || !strcmp(only, tests[i].name))
            list[count++] = (struct CMUnitTest){
                .name = tests[i].name, .test_func = test_wrapper, .initial_state = (void *)(uintptr_t)&tests[i]};
    int failures = list ? _cmocka_run_group_tests(group, list, count, NULL, NULL) : 1;
    free(list);
    return failures;
}

/* ---- devices ---- */

enum fcc_device_kind test_device(void)
{
    const char *name = getenv("FCC_TEST_DEVICE");

    if (!name || !*name || !strcmp(name, "cpu"))
        return FCC_DEVICE_CPU;
    if (strcmp(name, "cuda") != 0 && strcmp(name, "hip") != 0)
        check_failed(__FILE__, __LINE__, "FCC_TEST_DEVICE: \"%s\": allowed are cpu, cuda and hip", name);
    return strcmp(name, "hip") ? FCC_DEVICE_CUDA : FCC_DEVICE_HIP;
}

/* Why there is no GPU; "" if there is one. */
static char *missing;
#define MISSING_ROOM 1024

static void device_ask(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_comm_options options = {.device = -1, .device_kind = test_device()};
    fcc_context *context;
    fcc_comm *comm;

    (void)argument;
    OK(fcc_connect(NULL, &context));
    int status = fcc_comm_init(context, &all->id, all->n, rank, &options, &comm);
    if (status == -ENODEV)
        (void)snprintf(missing, MISSING_ROOM, "%s", fcc_last_error());
    else
        OK(status);
    fcc_disconnect(context);
}

static void device_look(void)
{
    struct test_daemon d;
    struct ranks one;

    daemon_start(&d, NULL);
    ranks_start(&one, 1, device_ask, NULL);
    ranks_join(&one);
    daemon_stop_unclean(&d);
}

bool test_device_missing(void)
{
    static const struct test look = {"device_look", device_look, 0};

    if (test_device() == FCC_DEVICE_CPU)
        return false;
    missing = shared_memory(MISSING_ROOM);
    current = &look;
    int status = test_fork(limit_of(&look));
    if (status)
        output_show(true);
    directory_remove();
    if (status) /* what is wrong, the tests say */
        print_message("asking for a GPU ended with wait status 0x%x\n", status);
    else if (*missing)
        print_message("skipped: no GPU (%s)\n", missing);
    return *missing != '\0';
}

/* ---- daemons ---- */

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

    return n < 1 ? 1 : n > NODES_MAX ? NODES_MAX : n;
}

/* A port that nobody has now. */
static int port_free(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(sock >= 0 && bind(sock, (struct sockaddr *)&a, size) == 0 && getsockname(sock, (struct sockaddr *)&a, &size) == 0);
    (void)close(sock);
    return ntohs(a.sin_port);
}

static const char *key_path(void)
{
    static char path[160];

    (void)snprintf(path, sizeof(path), "%s/cluster.key", directory);
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
    char *argv[48] = {(char *)(uintptr_t)daemon_binary(), "--config", "/dev/null", "--socket", (char *)(uintptr_t)d->socket};
    char *idle = getenv("FCC_TEST_IDLE_MS"); /* on a machine so slow that a job's next process may come later */
    char *gpus = test_device() == FCC_DEVICE_CPU ? "none" : test_device() == FCC_DEVICE_HIP ? "hip" : "cuda";
    char *defaults[] = {"--cpu-devices", "4",     "--cpu-workgroups", "1", "--worker-idle-ms", idle ? idle : "50",
                        "--log-level",   "debug", "--gpus",           gpus};
    char *node[] = {"--node-listen", (char *)(uintptr_t)d->address, "--cluster-key", (char *)(uintptr_t)key_path()};
    int n = 5;

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

static void node_start(struct test_node *d, const char *const options[])
{
    (void)setenv("FCCD_SOCKET", d->socket, 1);
    d->pid = daemon_fork(d, options);
    double until = now_ms() + 20e3;
    while (!daemon_serves()) {
        CHECK(now_ms() < until);
        CHECK(waitpid(d->pid, NULL, WNOHANG) == 0);
        (void)usleep(POLL_US);
    }
    while (children_count(d->pid)) { /* the probe's worker goes after 50 ms: then the broker is at rest */
        CHECK(now_ms() < until);
        (void)usleep(POLL_US);
    }
    d->descriptors = descriptors_count(d->pid);
}

void node_restart(struct test_daemon *d, int node)
{
    node_start(&d->node[node], NULL);
    (void)setenv("FCCD_SOCKET", d->socket, 1);
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
        (void)snprintf(node->socket, sizeof(node->socket), "%s/fccd%s.sock", directory, number);
        (void)snprintf(node->log, sizeof(node->log), "%s/daemon%s.log", directory, number);
        if (nodes > 1 && node_hosts)
            (void)snprintf(node->address, sizeof(node->address), "%s:%d", node_hosts[i], NODE_PORT);
        else if (nodes > 1)
            (void)snprintf(node->address, sizeof(node->address), "%s:%d", host ? host : "127.0.0.1", port_free());
        node_start(node, options);
    }
    (void)setenv("FCCD_SOCKET", d->socket, 1);
}

void daemon_start(struct test_daemon *d, const char *const options[])
{
    daemons_start(d, test_nodes(), options);
}

bool node_logged(const struct test_node *d, const char *text, int limit_ms)
{
    double until = now_ms() + limit_ms;
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
    } while (now_ms() < until);
    return false;
}

static void daemon_end(struct test_node *d)
{
    int status = 0;
    double until = now_ms() + 20e3;

    CHECK(kill(d->pid, SIGTERM) == 0);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        CHECK(now_ms() < until);
        (void)usleep(POLL_US);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        check_failed(__FILE__, __LINE__, "the broker ended with wait status 0x%x", status);
}

bool daemon_logged(const struct test_daemon *d, const char *text, int limit_ms)
{
    return node_logged(&d->node[0], text, limit_ms);
}

/* A broker keeps a connection to and from each other node that it has had to do with. */
static void daemon_rest(const struct test_node *d, int nodes)
{
    double until = now_ms() + 10e3;
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
        CHECK(!node_logged(&d->node[i], ": error:", 0));
}

void daemon_stop_unclean(struct test_daemon *d)
{
    for (int i = 0; i < nodes_of(d); i++)
        if (d->node[i].pid)
            daemon_end(&d->node[i]);
    if (nodes_of(d) > 1)
        (void)unlink(key_path());
}

pid_t daemon_worker(const struct test_daemon *d)
{
    char path[64];
    int child = 0;
    double until = now_ms() + 10e3;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", d->pid, d->pid);
    while (!child) {
        CHECK(now_ms() < until);
        FILE *f = fopen(path, "re");
        CHECK(f != NULL);
        if (fscanf(f, "%d", &child) != 1)
            child = 0;
        (void)fclose(f);
        (void)usleep(POLL_US);
    }
    return child;
}

/* ---- ranks ---- */

void ranks_start(struct ranks *r, int n, void (*run)(int, const struct ranks *, void *), void *argument)
{
    fcc_context *context;

    CHECK(n <= RANKS_MAX);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &r->id));
    fcc_disconnect(context);
    r->n = n;
    for (int rank = 0; rank < n; rank++) {
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
