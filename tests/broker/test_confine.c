/* SPDX-License-Identifier: MIT
 *
 * test_confine.c - broker and workers run under a seccomp filter: a worker's lets through what it needs and refuses what it has no use for, the
 * broker's also lets it start programs, SECCOMP=off leaves both unconfined, and a mode that is none is refused.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "daemon/common/confine.h"
#include "tests/bed/harness.h"

/* 0: unconfined; 2: under a filter (/proc/PID/status). `filters`: how many. */
static int confined(pid_t pid, int *filters)
{
    char path[64], line[256];
    int mode = -1;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    CHECK(f);
    *filters = -1;
    while (fgets(line, sizeof(line), f)) {
        (void)sscanf(line, "Seccomp: %d", &mode);
        (void)sscanf(line, "Seccomp_filters: %d", filters);
    }
    (void)fclose(f);
    return mode;
}

/* How many filters this test has been started under, as in a container. */
static int filters_around(void)
{
    int filters;

    (void)confined(getpid(), &filters);
    return filters;
}

static void both_see(const char *mode, int seccomp, int more)
{
    struct test_daemon d;
    fcc_context *context;
    int filters, around = filters_around();

    CHECK(setenv("FCCD_SECCOMP", mode, 1) == 0);
    daemon_start(&d, NULL);
    OK(fcc_connect(&(struct fcc_connect_options){.socket_path = d.socket}, &context));
    CHECK(confined(d.pid, &filters) == (around > 0 ? 2 : seccomp) && filters == around + (more > 0));
    CHECK(confined(daemon_worker(&d), &filters) == (around > 0 ? 2 : seccomp) && filters == around + more);
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void daemon_is(void)
{
    both_see("on", 2, 2); /* a worker has its broker's and its own */
}

static void daemon_is_not(void)
{
    both_see("off", 0, 0);
}

#define REFUSED(call) CHECK((errno = 0, (call) < 0) && errno == ENOSYS)

static void worker_calls(void)
{
    struct error e = {0};
    char *none[] = {NULL};

    CHECK(confine(CONFINE_WORKER, "on", &e) == 0);
    /* what it has no use for; all of these would fail otherwise by rights or arguments alone, with another error */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    REFUSED(execve("/bin/true", none, none));
    REFUSED(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
#endif
    (void)none;
    REFUSED(syscall(SYS_execveat, -1, "", none, none, 0));
    REFUSED(unshare(CLONE_NEWUSER));
    REFUSED(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0));
    REFUSED(syscall(SYS_clone3, NULL, 0));
    REFUSED(syscall(SYS_bpf, BPF_PROG_LOAD, NULL, 0));
    REFUSED(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    REFUSED(syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0));
    REFUSED(syscall(SYS_pidfd_getfd, -1, 0, 0));
    REFUSED(syscall(SYS_mount, NULL, NULL, NULL, 0, NULL));
    REFUSED(syscall(SYS_init_module, NULL, 0, ""));
    REFUSED(syscall(SYS_io_uring_setup, 0, NULL));
    REFUSED(syscall(SYS_keyctl, 0, 0, 0, 0, 0));
    REFUSED(syscall(SYS_userfaultfd, 0));
    REFUSED(syscall(SYS_setuid, getuid()));
    REFUSED(syscall(SYS_setgroups, 0, NULL));
    REFUSED(syscall(SYS_chown, "/nowhere", 0, 0));
    REFUSED(socket(AF_PACKET, SOCK_RAW, 0));
    REFUSED(socket(AF_ALG, SOCK_SEQPACKET, 0));
    /* what it needs */
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(sock >= 0 && fd >= 0 && ftruncate(fd, 4096) == 0);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(page != MAP_FAILED && munmap(page, 4096) == 0 && close(sock) == 0 && close(fd) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    /* it stays: another one can only take more away */
    CHECK(confine(CONFINE_BROKER, "on", &e) == 0);
    REFUSED(syscall(SYS_setuid, getuid()));
}

static void broker_calls(void)
{
    struct error e = {0};
    int status;

    CHECK(confine(CONFINE_BROKER, "on", &e) == 0);
    REFUSED(syscall(SYS_mount, NULL, NULL, NULL, 0, NULL));
    REFUSED(syscall(SYS_bpf, BPF_PROG_LOAD, NULL, 0));
    REFUSED(unshare(CLONE_NEWUSER));
    pid_t child = fork();
    if (child == 0) {
        (void)execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(syscall(SYS_setuid, getuid()) == 0);
}

static void mode_wrong(void)
{
    CHECK(setenv("FCCD_SECCOMP", "perhaps", 1) == 0);
    FILE *said = NULL;
    char command[512], text[512] = "";
    (void)snprintf(command, sizeof(command), "%s --check-config 2>&1", daemon_binary());
    said = popen(command, "re");
    CHECK(said && fgets(text, sizeof(text), said));
    CHECK(WEXITSTATUS(pclose(said)) == 2);
    CHECK(strstr(text, "FCCD_SECCOMP: SECCOMP: \"perhaps\": allowed are on, log and off"));
}

int main(void)
{
    const struct test tests[] = {{.name = "daemon_is", .run = daemon_is},
                                 {.name = "daemon_is_not", .run = daemon_is_not},
                                 {.name = "worker_calls", .run = worker_calls},
                                 {.name = "broker_calls", .run = broker_calls},
                                 {.name = "mode_wrong", .run = mode_wrong}};

    return tests_run("confine", TESTS(tests));
}
