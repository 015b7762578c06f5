/* SPDX-License-Identifier: MIT */
#include "tests/bed/harness.h"

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
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define EXIT_SKIP 77
#define POLL_US 2000
#define SHOWN_LINES 400 /* of what a failed test printed, and of each log */

static const struct test *current; /* of this process */
static char directory[64];
static char output[80];
static uint64_t seed;
static bool drawn;
#define SLOW_FACTOR 4
#define AWAIT_MS 50e3
#define TAKEN_OF 3 /* cases, where tests are slow */

double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

double await_end(void)
{
    return now_ms() + AWAIT_MS * (getenv("FCC_TEST_SLOW") ? SLOW_FACTOR : 1);
}

const char *test_directory(void)
{
    return directory;
}

int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atoi(text) : otherwise;
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

void descriptors_fall(pid_t pid, int most)
{
    for (double until = await_end(); descriptors_count(pid) > most; (void)usleep(2000))
        CHECK(now_ms() < until);
}

/* A program's tests have a block of ports for themselves, as long as it runs: also those where nobody is to listen, and those of a node that is dead
 * for a while. The block is its that has the abstract name. */
enum { PORT_FIRST = 12000, PORT_BLOCK = 128, PORT_BLOCKS = 140 };
static int port_block = -1;

static void ports_take(void)
{
    for (unsigned i = 0; port_block < 0; i++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        const int block = (int)(((unsigned)getpid() + i) % PORT_BLOCKS);
        const int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "fccd-test-ports-%d", block);
        int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        CHECK(i < PORT_BLOCKS && sock >= 0);
        if (bind(sock, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
            port_block = block; /* the socket is the program's until it ends */
        else
            (void)close(sock);
    }
}

uint16_t port_choose(void)
{
    static unsigned next;

    ports_take();
    for (unsigned i = 0; i < PORT_BLOCK; i++) {
        uint16_t port =
            (uint16_t)(PORT_FIRST + port_block * PORT_BLOCK + (int)(((unsigned)getpid() * 13 + next++) % PORT_BLOCK));
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(sock >= 0);
        bool is_free = bind(sock, (struct sockaddr *)&a, sizeof(a)) == 0;
        (void)close(sock);
        if (is_free)
            return port;
    }
    check_failed(__FILE__, __LINE__, "no port is free");
}

/* Before the test's process forks. The pid would not do: where a machine has just started, runs have the same ones. */
static void seed_draw(void)
{
    const char *given = getenv("FCC_TEST_SEED");
    uint32_t number;

    CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
    seed = given && *given ? strtoull(given, NULL, 10) : number + UINT64_C(1);
    drawn = true;
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
    seed_draw();
    int before = descriptors_count(getpid());
    current->run();
    int after = descriptors_count(getpid());
    if (after != before)
        check_failed(__FILE__, __LINE__, "the test leaked descriptors: %d before, %d after", before, after);
    if (directory_leftovers())
        check_failed(__FILE__, __LINE__, "the test left files behind");
    exit(EXIT_SUCCESS);
}

/* The end of a file: a daemon may have logged more than anybody reads. */
static void file_show(const char *path)
{
    char line[2048];
    long begin, lines = 0, shown = 0;

    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof(line), f))
        lines++;
    begin = lines > SHOWN_LINES ? lines - SHOWN_LINES : 0;
    if (begin)
        print_message("  (%ld lines, then)\n", begin);
    rewind(f);
    while (fgets(line, sizeof(line), f))
        if (shown++ >= begin)
            print_message("  %s", line);
    (void)fclose(f);
}

/* If the test failed, what its daemons logged; and, last, where a log that is cut still has it, what the test printed. */
static void output_show(bool all)
{
    static const char *const places[] = {"*.log", ".[!.]*/*.log"};

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
    file_show(output);
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
    ports_take();
    (void)fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        test_child();
    (void)setpgid(pid, pid);
    return child_await(pid, limit_s);
}

int test_rounds(int n)
{
    return getenv("FCC_TEST_SLOW") ? (n + 3) / 4 : n;
}

uint64_t test_seed(void)
{
    if (!drawn) /* a program of one process */
        seed_draw();
    printf("FCC_TEST_SEED=%lu\n", (unsigned long)seed);
    return seed;
}

bool test_takes(size_t i)
{
    static bool said;

    if (!getenv("FCC_TEST_SLOW"))
        return true;
    if (!said)
        (void)test_seed();
    said = true;
    return (seed + i) % TAKEN_OF == 0;
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
    if (only && count == 0)
        print_message("%s: no test is called \"%s\"\n", group, only);
    int failures = list && (count || !only) ? _cmocka_run_group_tests(group, list, count, NULL, NULL) : 1;
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
