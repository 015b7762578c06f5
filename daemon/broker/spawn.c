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
#include <unistd.h>

#include "daemon/broker/broker.h"

/* Variables of the broker's environment that its children get: options of sanitizers, the journal's stream, the time zone. */
static const char *const kept[] = {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "JOURNAL_STREAM", "TZ"};
/* Variables that only workers get: the MPS server for workers whose clients name none. The lister must not find an MPS server,
 * whose client it would become. */
static const char *const kept_for_workers[] = {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct environment {
    char *list[2 + COUNT(kept) + COUNT(kept_for_workers) + 2];
    size_t n;
};

/* Adds a variable of the broker's environment. Its string stays valid, as nothing changes the environment. */
static void environment_keep(struct environment *env, const char *name)
{
    size_t length = strlen(name);

    for (char **e = environ; *e; e++)
        if (!strncmp(*e, name, length) && (*e)[length] == '=') {
            env->list[env->n++] = *e;
            return;
        }
}

static void environment_make(struct environment *env, bool for_worker)
{
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1"; /* the cpu device's workgroups are threads already */
    static char no_mps[] = "CUDA_MPS_PIPE_DIRECTORY=/nonexistent/fccd";

    memset(env, 0, sizeof(*env));
    for (size_t i = 0; i < COUNT(kept); i++)
        environment_keep(env, kept[i]);
    if (geteuid() != 0) /* a broker that is root uses the system's library paths only */
        environment_keep(env, "LD_LIBRARY_PATH");
    for (size_t i = 0; i < COUNT(kept_for_workers) && for_worker; i++)
        environment_keep(env, kept_for_workers[i]);
    env->list[env->n++] = for_worker ? one_thread : no_mps;
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

pid_t worker_spawn(int exe, uid_t uid, gid_t gid, const struct groups *groups, int control, struct error *e)
{
    char user[16];
    char *const argv[] = {"fccd: worker", "--worker", user, NULL};
    struct environment env;
    pid_t pid;

    (void)snprintf(user, sizeof(user), "%u", uid);
    environment_make(&env, true);
    pid = fork();
    if (pid < 0)
        return error_set(e, -errno, "cannot start a worker: fork: %s", strerror(errno));
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
    groups_take(gid, groups);
    (void)fexecve(program, argv, env.list);
    _exit(125);
}

pid_t lister_spawn(int exe, const struct config *config, int out, struct error *e)
{
    char gpus[sizeof(config->gpus)], plugin_dir[sizeof(config->plugin_dir)];
    char *const argv[] = {"fccd: gpus", "--list-gpus",  "--config", "/dev/null", "--gpus",
                          gpus,         "--plugin-dir", plugin_dir, NULL};
    struct environment env;
    pid_t parent = getpid(), pid;

    memcpy(gpus, config->gpus, sizeof(gpus));
    memcpy(plugin_dir, config->plugin_dir, sizeof(plugin_dir));
    environment_make(&env, false);
    pid = fork();
    if (pid < 0)
        return error_set(e, -errno, "cannot list the GPUs: fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    signals_reset();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || chdir("/"))
        _exit(123);
    if (dup2(out, STDOUT_FILENO) < 0)
        _exit(124);
    (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC); /* a precaution; may fail on an old kernel */
    (void)fexecve(exe, argv, env.list);
    _exit(125);
}
