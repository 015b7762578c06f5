/* SPDX-License-Identifier: MIT
 *
 * spawn.c - a worker: this program again, as the job's user, with one descriptor, an environment that says nothing about
 * the broker's, no capabilities and no way to gain any.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "broker.h"

#define CAPABILITIES 64 /* more than any kernel has; those that it lacks answer EINVAL */

/* What a worker gets of the broker's environment: how to run sanitizers, and where the service manager's log is. */
static const char *const kept[] = {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "JOURNAL_STREAM", "TZ"};
#define KEPT (sizeof(kept) / sizeof(kept[0]))

struct environment {
    char text[KEPT][512];
    char *list[KEPT + 2];
};

static void environment_make(struct environment *env)
{
    size_t n = 0;

    env->list[n++] = "OPENBLAS_NUM_THREADS=1"; /* the workgroups are the threads */
    for (size_t i = 0; i < KEPT; i++) {
        const char *value = getenv(kept[i]);
        if (value && snprintf(env->text[i], sizeof(env->text[i]), "%s=%s", kept[i], value) < (int)sizeof(env->text[i]))
            env->list[n++] = env->text[i];
    }
    env->list[n] = NULL;
}

static void rights_drop(uid_t uid, gid_t gid)
{
    if (geteuid() == 0) {
        const struct passwd *user = uid ? getpwuid(uid) : NULL; /* only this process's memory: fork()ed from one thread */
        if (user ? initgroups(user->pw_name, gid) : setgroups(0, NULL))
            _exit(120);
        for (int c = 0; c < CAPABILITIES; c++)
            (void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
        if (setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
            _exit(121);
    }
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

pid_t worker_spawn(int exe, uid_t uid, gid_t gid, int control, struct error *e)
{
    static char *const argv[] = {"fccd: worker", "--worker", NULL};
    struct environment env;
    pid_t pid;

    environment_make(&env);
    pid = fork();
    if (pid < 0)
        return error_set(e, -errno, "cannot start a worker: fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    signals_reset();
    (void)setsid(); /* a terminal's Ctrl-C is for the broker, which drains */
    if (chdir("/"))
        _exit(123);
    /* `exe` may be descriptor 3: move it away first. All descriptors but 0 to 3 are close-on-exec or the parent's. */
    int program = exe == CONTROL_FD ? dup(exe) : exe;
    if (control == CONTROL_FD ? 0 : dup2(control, CONTROL_FD) < 0)
        _exit(124);
    rights_drop(uid, gid);
    (void)fexecve(program, argv, env.list);
    _exit(125);
}
