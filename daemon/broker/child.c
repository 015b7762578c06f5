/* SPDX-License-Identifier: MIT
 *
 * child.c - processes that ask somebody who may take his time: the name service of hosts and of users. The libraries' way to do that
 * without waiting is threads, which a process that forks must not have. So a child asks, writes what it learnt, and ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/broker/broker.h"

#define OUT_FD 3

struct child {
    LIST_ENTRY(child) link; /* broker.children */
    pid_t pid;
    struct child **holder; /* NULL: nobody waits for it any more */
    unsigned *count;
};

static void child_run(void (*run)(int out, const void *argument), const void *argument, int out, pid_t parent)
{
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGHUP, SIG_IGN); /* for the broker */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(out, OUT_FD) < 0)
        _exit(EXIT_FAILURE);
    closefrom(OUT_FD + 1); /* what the broker closes must not stay open meanwhile */
    run(OUT_FD, argument);
    _exit(EXIT_SUCCESS);
}

int child_start(struct broker *b, void (*run)(int out, const void *argument), const void *argument, struct child **holder,
                unsigned *count, int *in)
{
    struct child *c = calloc(1, sizeof(*c));
    pid_t parent = getpid();
    int ends[2];

    if (!c)
        return -ENOMEM;
    if (pipe2(ends, O_CLOEXEC)) {
        free(c);
        return -errno;
    }
    c->pid = fork();
    if (c->pid == 0)
        child_run(run, argument, ends[1], parent);
    (void)close(ends[1]);
    if (c->pid < 0) {
        int status = -errno;
        (void)close(ends[0]);
        free(c);
        return status;
    }
    (void)evutil_make_socket_nonblocking(ends[0]);
    c->holder = holder;
    c->count = count;
    LIST_INSERT_HEAD(&b->children, c, link);
    ++*count;
    *holder = c;
    *in = ends[0];
    return 0;
}

static void holder_tell(struct child *c)
{
    if (c->holder)
        *c->holder = NULL;
    c->holder = NULL;
}

void child_kill(struct child *c)
{
    holder_tell(c);
    (void)kill(c->pid, SIGKILL); /* it may have ended: it is not reaped yet, so the number is its own */
}

void children_reap(struct broker *b)
{
    struct child *c, *next;

    for (c = LIST_FIRST(&b->children); c; c = next) {
        next = LIST_NEXT(c, link);
        if (waitpid(c->pid, NULL, WNOHANG) == 0)
            continue;
        holder_tell(c);
        LIST_REMOVE(c, link);
        --*c->count;
        free(c);
    }
}

void children_close(struct broker *b)
{
    struct child *c, *next;

    for (c = LIST_FIRST(&b->children); c; c = next) { /* init reaps it */
        next = LIST_NEXT(c, link);
        child_kill(c);
        free(c);
    }
    LIST_INIT(&b->children);
}
