/* SPDX-License-Identifier: MIT
 *
 * child.c - child processes for look-ups that may block: names of hosts and users. Libraries use threads for asynchronous
 * look-ups, but a process that forks must not have threads. So a child process looks up, writes the result, and ends.
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
    struct child **holder; /* NULL: nobody waits for the child any more */
    unsigned *count;
};

static void child_run(void (*run)(int out, const void *argument), const void *argument, int out, pid_t parent)
{
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGHUP, SIG_IGN); /* SIGHUP is meant for the broker */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(out, OUT_FD) < 0)
        _exit(EXIT_FAILURE);
    closefrom(OUT_FD + 1); /* a descriptor that the broker closes must not stay open here */
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
    (void)kill(c->pid, SIGKILL); /* safe even if the child has ended: it is not reaped, so the pid was not reused */
}

void children_reap(struct broker *b)
{
    struct child *c, *next;

    LIST_FOREACH_SAFE(c, &b->children, link, next) {
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

    LIST_FOREACH_SAFE(c, &b->children, link, next) { /* init reaps the children */
        child_kill(c);
        free(c);
    }
    LIST_INIT(&b->children);
}
