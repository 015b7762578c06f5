/* SPDX-License-Identifier: MIT
 *
 * spawn.c - starts workers and the lister, which are this program again. A worker gets one descriptor, and an environment with
 * almost nothing of the broker's. It becomes the job's user by itself, before anything else (daemon/worker/engine/rights.c says
 * why). The lister runs as the broker's user and lists the GPUs.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/broker/broker.h"

/* Variables of the broker's environment that its children keep: options of sanitizers, the journal's stream, the time zone. The
 * last two are for workers only: the MPS server for workers whose clients name none. The lister must not find an MPS server,
 * whose client it would become. */
static const char *const kept[] = {
    "ASAN_OPTIONS",          "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "JOURNAL_STREAM", "TZ", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY"};
#define KEPT (sizeof(kept) / sizeof(kept[0]))

static bool is_kept(const char *variable, bool for_worker)
{
    size_t length = strcspn(variable, "=");

    for (size_t i = 0; i < KEPT - (for_worker ? 0 : 2); i++)
        if (!strncmp(variable, kept[i], length) && !kept[i][length])
            return true;
    /* a broker that is root uses the system's library paths only */
    return geteuid() != 0 && !strncmp(variable, "LD_LIBRARY_PATH=", strlen("LD_LIBRARY_PATH="));
}

/* Leaves only those variables in the environment, in a child process. */
static void environment_make(bool for_worker)
{
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1"; /* the cpu device's workgroups are threads already */
    static char no_mps[] = "CUDA_MPS_PIPE_DIRECTORY=/nonexistent/fccd";
    char **to = environ;

    for (char **v = environ; v && *v; v++)
        if (is_kept(*v, for_worker))
            *to++ = *v;
    if (to)
        *to = NULL;
    (void)putenv(for_worker ? one_thread : no_mps);
}

/* Takes the user's groups. The uid stays the broker's until the worker itself changes it: rights.c. */
static void groups_take(gid_t gid, const struct groups *groups)
{
    if (geteuid() == 0 && (setgroups(groups->n, groups->gids) || setresgid(gid, gid, gid)))
        _exit(120);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _exit(122);
}

static void signals_reset(void)
{
    sigset_t none;
    for (int s = 1; s < NSIG; s++)
        (void)signal(s, SIG_DFL); /* fails for SIGKILL and SIGSTOP */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Detaches a worker from the broker's terminal: Ctrl-C is for the broker, which then drains, and the worker's user must not
 * read the terminal. setsid() would do both, but the scheduler shares the cores among sessions first (sched(7), autogroups). So
 * engine and clients would wait for the end of each other's time slices. On Linux 6.18 some ten such groups on two cores kept
 * threads from running for seconds. */
static void terminal_leave(void)
{
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    bool left = terminal < 0 ? errno == ENXIO : ioctl(terminal, TIOCNOTTY) == 0; /* ENXIO: there is no terminal */

    fd_close(&terminal);
    if (!left || setpgid(0, 0))
        (void)setsid();
}

pid_t worker_spawn(int exe, uid_t uid, gid_t gid, const struct groups *groups, int nicer, int control, struct error *e)
{
    char user[16];
    char *const argv[] = {"fccd: worker", "--worker", user, NULL};
    pid_t pid;

    (void)snprintf(user, sizeof(user), "%u", uid);
    pid = fork();
    if (pid < 0)
        return error_set(e, -errno, "cannot start a worker: fork: %m");
    if (pid > 0)
        return pid;
    signals_reset();
    terminal_leave();
    if (chdir("/"))
        _exit(123);
    /* `exe` may be descriptor 3, which is needed for `control`: duplicate it first. All descriptors from 4 on are
     * close-on-exec. */
    int program = exe == CONTROL_FD ? dup(exe) : exe;
    if (control == CONTROL_FD ? 0 : dup2(control, CONTROL_FD) < 0)
        _exit(124);
    /* Before the worker is its user's, who could not lower it again. To raise it takes no right. */
    if (nicer && setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nicer))
        _exit(121);
    groups_take(gid, groups);
    environment_make(true);
    (void)fexecve(program, argv, environ);
    _exit(125);
}

void lister_run(int out, const void *config)
{
    struct config c = *(const struct config *)config;
    char *const argv[] = {"fccd: gpus", "--list-gpus",  "--config",   "/dev/null", "--gpus",
                          c.gpus,       "--plugin-dir", c.plugin_dir, NULL};

    signals_reset();
    environment_make(false);
    if (chdir("/"))
        _exit(123);
    if (dup2(out, STDOUT_FILENO) < 0 || close(out))
        _exit(124);
    (void)execv("/proc/self/exe", argv);
    _exit(125);
}
