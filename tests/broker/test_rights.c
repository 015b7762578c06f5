/* SPDX-License-Identifier: MIT
 *
 * test_rights.c - what a worker may do, and what its own user's other processes may do to it: nothing, at any time.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/common/control.h"
#include "tests/bed/harness.h"

static pid_t user_fork(uid_t uid)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        CHECK(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
    return pid;
}

struct grabs {
    _Atomic int over;
    long tried, workers;
};

/* The broker's children that are workers of that user, or are about to be. */
static int children_find(pid_t broker, pid_t all[], int most)
{
    char path[64];
    int n = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", broker, broker);
    FILE *f = fopen(path, "re");
    while (f && n < most && fscanf(f, "%d", &all[n]) == 1)
        n++;
    if (f)
        (void)fclose(f);
    return n;
}

/* What a process of the worker's own user can do to it from its first moment: take its descriptors, read or write its memory, trace it.
 * Nothing of that is ever let. */
static void grab(pid_t pid, struct grabs *g)
{
    char path[64];
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (fd < 0)
        return; /* it has ended */
    for (int i = 0; i < 20; i++, g->tried++) {
        CHECK(syscall(SYS_pidfd_getfd, fd, CONTROL_FD, 0) < 0);
        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, CONTROL_FD);
        CHECK(open(path, O_RDONLY | O_CLOEXEC) < 0);
        (void)snprintf(path, sizeof(path), "/proc/%d/mem", pid);
        CHECK(open(path, O_RDWR | O_CLOEXEC) < 0);
        CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0);
    }
    (void)close(fd);
}

static void grabber(pid_t broker, struct grabs *g)
{
    pid_t now[64], last = 0;

    while (!g->over) {
        int n = children_find(broker, now, 64);
        for (int i = 0; i < n; i++) {
            grab(now[i], g);
            g->workers += now[i] > last;
            last = now[i] > last ? now[i] : last;
        }
    }
    printf("%ld attempts at %ld workers\n", g->tried, g->workers);
    CHECK(g->tried > 0);
}

static void own_worker(void)
{
    struct test_daemon d;
    struct grabs *g = shared_memory(sizeof(*g));
    int status;

    if (geteuid())
        test_skip("skipped: needs root, to be another user than the daemon");
#ifdef __SANITIZE_ADDRESS__
    CHECK(setenv("ASAN_OPTIONS", "detect_leaks=0", 1) ==
          0); /* the leak detector makes a process that ends dumpable, to trace it */
#endif
    daemon_start(&d, NULL);
    CHECK(chmod(test_directory(), 0711) == 0 && chmod(d.socket, 0666) == 0);
    pid_t pid = user_fork(40001);
    if (pid == 0) {
        grabber(d.pid, g);
        _exit(0);
    }
    pid_t client = user_fork(40001);
    if (client == 0) {
        for (int i = 0; i < 20; i++) { /* a worker each */
            char job[16];
            fcc_context *context;
            (void)snprintf(job, sizeof(job), "job-%d", i % 8);
            OK(fcc_connect(&(struct fcc_connect_options){.job = job}, &context));
            (void)usleep(5000);
            fcc_disconnect(context);
        }
        _exit(0);
    }
    CHECK(waitpid(client, &status, 0) == client && status == 0);
    g->over = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    daemon_stop(&d);
}

/* As what it runs: its user's, without any capability, and with no way to gain one. */
static void no_rights(void)
{
    static const char *const wanted[] = {"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
                                         "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"};
    char path[64], text[8192];
    struct test_daemon d;
    fcc_context *context;

    if (geteuid())
        test_skip("skipped: needs root, who has rights to lose");
    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context)); /* root's own job, too */
    (void)snprintf(path, sizeof(path), "/proc/%d/status", daemon_worker(&d));
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    (void)fclose(f);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strstr(text, wanted[i]))
            check_failed(__FILE__, __LINE__, "not \"%s\": %s", wanted[i], text);
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"own_worker", own_worker, 0},
        {"no_rights", no_rights, 0},
    };
    return tests_run("rights", TESTS(tests));
}
