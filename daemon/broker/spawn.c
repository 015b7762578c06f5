/* SPDX-License-Identifier: MIT
 *
 * spawn.c - a worker: this program again, with one descriptor and an environment that says nothing about the broker's. It becomes the
 * job's user by itself, first of all (daemon/worker/engine/rights.c says why not here). And the lister: this program again, as the broker's user, which
 * asks the GPUs' runtimes what there is.
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

/* What the children get of the broker's environment: how to run sanitizers, and where the service manager's log is. */
static const char *const kept[] = {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "JOURNAL_STREAM", "TZ"};
/* Where a worker whose clients say nothing finds the MPS server. The lister must not find one: it would become its client. */
static const char *const kept_for_workers[] = {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct environment {
    char *list[2 + COUNT(kept) + COUNT(kept_for_workers) + 2];
    size_t n;
};

/* The broker's variable as it stands in its environment: the string stays valid, as nothing changes that. */
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
    static char one_thread[] = "OPENBLAS_NUM_THREADS=1"; /* the workgroups are the threads */
    static char no_mps[] = "CUDA_MPS_PIPE_DIRECTORY=/nonexistent/fccd";

    memset(env, 0, sizeof(*env));
    for (size_t i = 0; i < COUNT(kept); i++)
        environment_keep(env, kept[i]);
    if (geteuid() != 0) /* root's loader loads what the system's configuration names, and nothing else */
        environment_keep(env, "LD_LIBRARY_PATH");
    for (size_t i = 0; i < COUNT(kept_for_workers) && for_worker; i++)
        environment_keep(env, kept_for_workers[i]);
    env->list[env->n++] = for_worker ? one_thread : no_mps;
}

/* The user itself stays the broker's until the worker changes it: rights.c. */
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
        (void)signal(s, SIG_DFL); /* KILL and STOP answer EINVAL */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* A terminal's Ctrl-C is for the broker, which drains, and its keyboard is not for whoever the worker runs as. setsid() would see to
 * both, but the scheduler shares the cores among sessions first (sched(7), autogroups), so that engine and clients would wait for each
 * other's turns to be over; and on Linux 6.18 some ten such groups on two cores kept each other's threads from running for seconds. */
static void terminal_leave(void)
{
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    bool left = terminal < 0 ? errno == ENXIO : ioctl(terminal, TIOCNOTTY) == 0; /* ENXIO: there is none */

    if (terminal >= 0)
        (void)close(terminal);
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
    /* `exe` may be descriptor 3: move it away first. All descriptors but 0 to 3 are close-on-exec or the parent's. */
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
    (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC); /* they all are already; a kernel may lack the call */
    (void)fexecve(exe, argv, env.list);
    _exit(125);
}
