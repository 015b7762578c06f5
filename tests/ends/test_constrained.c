/* SPDX-License-Identifier: MIT
 *
 * test_constrained.c - machines, or parts of them, that have little: one core for many ranks, a share of a core, full file systems, processes that
 * do not see each other's numbers, no descriptors at the start. What comes out is right, or an error that says what is missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/operators/operator_cases.h"

#define PATIENCE_MS 120000 /* of a communicator: on such a machine a rank may come late, but all of them come */

/* The three operators by value, in f32. */
static void operators_rank(int rank, const struct ranks *all, void *argument)
{
    struct bed bed = {.rank = rank, .n = all->n, .dtypes = 1, .shared = argument};

    bed.comm = comm_open(all, rank, PATIENCE_MS);
    cases_run(&bed);
    fcc_disconnect(comm_context());
}

static void operators(int n, void (*rank)(int rank, const struct ranks *all, void *argument))
{
    struct ranks r;

    ranks_start(&r, n, rank, shared_memory(ELEMENTS_MAX * 8));
    ranks_join(&r);
}

/* ---- processors ---- */

static void one_core(void)
{
    struct test_daemon d;
    cpu_set_t mine, one;
    int core = 0;

    CHECK(sched_getaffinity(0, sizeof(mine), &mine) == 0);
    while (!CPU_ISSET(core, &mine))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0); /* the daemon's and the ranks', too */
    daemon_start(&d, NULL);
    operators(8, operators_rank);
    daemon_stop(&d);
}

static char group[300];

static bool group_write(const char *name, const char *text)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/%s", group, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        (void)close(fd);
    return is_written;
}

/* A control group of this test's own that has a tenth of one core. False: this machine does not let it. */
static bool group_make(void)
{
    static const char *const above[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"};
    static const char *const settings[][2] = {{"cpu.cfs_quota_us", "10000"}, {"cpu.max", "10000 100000"}};

    for (int i = 0; i < 2; i++) {
        (void)snprintf(group, sizeof(group), "%s/fccd-test-cpu-%d", above[i], getpid());
        if (mkdir(group, 0755))
            continue;
        if ((i == 1 || group_write("cpu.cfs_period_us", "100000")) && group_write(settings[i][0], settings[i][1]))
            return true;
        (void)rmdir(group);
    }
    return false;
}

static void group_enter(int node)
{
    (void)node;
    CHECK(group_write("cgroup.procs", "0"));
}

/* So often all in the group had to wait for their next tenth. */
static int group_waits(void)
{
    char path[400], line[128];
    int waits = 0;

    (void)snprintf(path, sizeof(path), "%s/cpu.stat", group);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        (void)sscanf(line, "nr_throttled %d", &waits);
    (void)fclose(f);
    return waits;
}

static void group_rank(int rank, const struct ranks *all, void *argument)
{
    group_enter(0);
    operators_rank(rank, all, argument);
}

static void cpu_quota(void)
{
    struct test_daemon d;

    if (geteuid() || !group_make())
        test_skip("skipped: needs root and a cpu controller, to make a control group");
    daemons_place(NULL, group_enter);
    daemon_start(&d, NULL);
    operators(4, group_rank);
    CHECK(group_waits() > 0);
    CHECK(group_write("cpu.cfs_quota_us", "-1") || group_write("cpu.max", "max")); /* the end takes no longer than elsewhere */
    daemon_stop(&d);
    for (double until = await_end(); rmdir(group) && now_ms() < until;) /* the last process has just ended */
        (void)usleep(5000);
    CHECK(access(group, F_OK) != 0);
}

/* ---- namespaces ---- */

static void text_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

/* That user or group is itself there, and nobody else is. */
static void map_write(const char *path, unsigned id)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%u %u 1", id, id);
    text_write(path, text);
}

/* Move to new namespaces; in one of users (which who is not root needs) the process is the user that it was, and in one of file systems
 * nobody else sees what is mounted. 0 or -errno: -EINVAL in a chroot, whose root is no mount point. */
static int spaces_make(int kinds)
{
    unsigned uid = geteuid(), gid = getegid();

    if (uid)
        kinds |= CLONE_NEWUSER;
    if (unshare(kinds))
        return -errno;
    if (kinds & CLONE_NEWUSER) {
        text_write("/proc/self/setgroups", "deny");
        map_write("/proc/self/uid_map", uid);
        map_write("/proc/self/gid_map", gid);
    }
    if (kinds & CLONE_NEWNS && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return -errno;
    return 0;
}

/* In a process of its own: 0, or why not. */
static int spaces_try(int kinds)
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        _exit(-spaces_make(kinds));
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Ends the test as skipped if such namespaces cannot be made. */
static void spaces_need(int kinds)
{
    char why[128];
    int error = spaces_try(kinds);

    if (!error)
        return;
    (void)snprintf(why, sizeof(why), "skipped: no namespaces of its own: %s",
                   error == EINVAL ? "the root is no mount point, as in a chroot" : strerror(error));
    test_skip(why);
}

/* ---- file systems ---- */

/* A file system of 64 KiB in which there is not one byte left. */
static void full_mount(const char *path)
{
    static const char bytes[4096];
    char file[160];

    CHECK(mount("fccd-test", path, "tmpfs", 0, "size=64k,mode=1777") == 0);
    (void)snprintf(file, sizeof(file), "%s/.full", path);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, bytes, sizeof(bytes)) > 0)
        ;
    CHECK(errno == ENOSPC);
    (void)close(fd);
}

/* The node's memory is in no file system, and a log that cannot be written is not read: all else goes on. */
static void full_file_systems(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stat log;

    spaces_need(CLONE_NEWNS);
    CHECK(spaces_make(CLONE_NEWNS) == 0);
    full_mount("/dev/shm");
    full_mount(test_directory());
    daemon_start(&d, NULL);
    operators(4, operators_rank);
    CHECK(stat(d.log, &log) == 0 && log.st_size == 0);
    ranks_start(&r, 2, alive_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
    CHECK(umount2(test_directory(), MNT_DETACH) == 0);
}

/* ---- processes' numbers ---- */

/* In the child: the process 1 of a namespace, which has its own /proc if it may. */
static pid_t fork_inside(int kinds, bool is_mapped)
{
    CHECK(is_mapped || geteuid() == 0);
    CHECK((is_mapped ? spaces_make(kinds) : unshare(kinds) ? -errno : 0) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(getpid() == 1);
        if (kinds & CLONE_NEWNS)
            CHECK(mount("proc", "/proc", "proc", 0, NULL) == 0);
    }
    return pid;
}

/* Rank 0 is where the daemon is; the others each have numbers, and some have users, of their own; the last is nobody there. */
static void inside_rank(int rank, const struct ranks *all, void *argument)
{
    static const int kinds[] = {0, CLONE_NEWPID, CLONE_NEWPID | CLONE_NEWUSER, CLONE_NEWPID | CLONE_NEWUSER};
    int status;
    pid_t pid = rank ? fork_inside(kinds[rank], rank < 3) : 0;

    if (!pid)
        operators_rank(rank, all, argument);
    else
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    if (rank)
        _exit(EXIT_SUCCESS); /* the address sanitizer's look for leaks needs a thread with a number that it sees */
}

static void clients_inside(void)
{
    struct test_daemon d;

    spaces_need(CLONE_NEWPID);
    bool users = spaces_try(CLONE_NEWPID | CLONE_NEWUSER) == 0; /* not where a sanitizer has threads */
    daemon_start(&d, NULL);
    operators(!users ? 2 : geteuid() ? 3 : 4, inside_rank);
    daemon_stop(&d);
}

static pid_t child_of(pid_t pid)
{
    char path[64];
    int child = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    FILE *f = fopen(path, "re");
    CHECK(f && fscanf(f, "%d", &child) == 1);
    (void)fclose(f);
    return child;
}

static void daemon_run_inside(const char *socket)
{
    int status;
    pid_t pid = fork_inside(CLONE_NEWPID | CLONE_NEWNS, true);

    if (pid == 0) {
        (void)execl(daemon_binary(), daemon_binary(), "--config", "/dev/null", "--socket", socket, "--gpus", "none",
                    "--cpu-workgroups", "1", "--worker-idle-ms", "50", "--log-level", "debug", NULL);
        _exit(127);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 126);
}

/* The clients have no number where the daemon is, as it is in a container of its own. */
static void daemon_inside(void)
{
    char path[128];
    fcc_context *probe;
    int status;

    spaces_need(CLONE_NEWPID | CLONE_NEWNS);
    (void)snprintf(path, sizeof(path), "%s/fccd.sock", test_directory());
    (void)setenv("FCCD_SOCKET", path, 1);
    (void)setenv("FCCD_JOB", "test", 1);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        daemon_run_inside(path);
    for (double until = await_end(); fcc_connect(NULL, &probe); (void)usleep(2000))
        CHECK(now_ms() < until && waitpid(pid, NULL, WNOHANG) == 0);
    fcc_disconnect(probe);
    operators(3, operators_rank);
    CHECK(kill(child_of(pid), SIGTERM) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* ---- descriptors ---- */

/* The lowest number that no descriptor of that process has. */
static int first_free(pid_t pid)
{
    struct stat st;
    char path[64];
    int fd = -1;

    do
        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, ++fd);
    while (lstat(path, &st) == 0);
    return fd;
}

/* A worker that has hardly any descriptors while the first communicator forms, which is when it opens what it needs for all of them: that is that
 * call's error, and when it has some again nothing is amiss. */
static void descriptors_at_first(void)
{
    enum { TRIES = 10 };
    struct rlimit enough, few;
    struct test_daemon d;
    char job[16];
    int refused = 0;

    if (geteuid())
        test_skip("skipped: needs root, to see which descriptors a worker has");
    daemon_start(&d, NULL);
    for (int more = 0; more < TRIES; more++) {
        struct fcc_connect_options options = {.job = job};
        struct fcc_unique_id id;
        fcc_context *context;
        fcc_comm *comm;
        (void)snprintf(job, sizeof(job), "few-%d", more);
        OK(fcc_connect(&options, &context));
        pid_t worker = daemon_worker(&d);
        OK(fcc_get_unique_id(context, &id));
        CHECK(prlimit(worker, RLIMIT_NOFILE, NULL, &enough) == 0);
        few = (struct rlimit){.rlim_cur = (rlim_t)(first_free(worker) + more), .rlim_max = enough.rlim_max};
        CHECK(prlimit(worker, RLIMIT_NOFILE, &few, NULL) == 0);
        int status = fcc_comm_init(context, &id, 1, 0, NULL, &comm);
        if (status && !strstr(fcc_last_error(), "Too many open files") && !strstr(fcc_last_error(), "RLIMIT_NOFILE"))
            check_failed(__FILE__, __LINE__, "%d more: %d: %s", more, status, fcc_last_error());
        refused += status != 0;
        CHECK(prlimit(worker, RLIMIT_NOFILE, &enough, NULL) == 0);
        OK(fcc_get_unique_id(context, &id));
        OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
        OK(fcc_noop(comm));
        CHECK(daemon_worker(&d) == worker);
        fcc_disconnect(context);
        for (double until = await_end(); kill(worker, 0) == 0; (void)usleep(2000))
            CHECK(now_ms() < until);
    }
    printf("%d of %d were refused\n", refused, TRIES);
    CHECK(refused > 0 && refused < TRIES);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"one_core", one_core, 120},
        {"cpu_quota", cpu_quota, 180},
        {"full_file_systems", full_file_systems, 60},
        {"clients_inside", clients_inside, 60},
        {"daemon_inside", daemon_inside, 60},
        {"descriptors_at_first", descriptors_at_first, 60},
    };
    return tests_run("constrained", TESTS(tests));
}
