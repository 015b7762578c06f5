/* SPDX-License-Identifier: MIT
 *
 * child.c - child processes for what may block, crash or hang: looking up the names of hosts and users, and listing GPUs.
 * Libraries use threads for asynchronous look-ups, but a process that forks must not have threads. So a child process looks up,
 * writes the result, and ends.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/broker/broker.h"

#define OUT_FD 3
#define KILLED_LIMIT_MS 1000 /* how long a broker that ends waits for the children that it has killed */

struct child {
    LIST_ENTRY(child) link; /* broker.children */
    child_run *run;
    pid_t pid; /* 0: reaped */
    int wait_status;
    int fd; /* the child's output; -1: complete */
    struct event event;
    struct evbuffer *said;
    size_t most;
    child_done *done; /* NULL: nobody waits for the child any more */
    void *owner;
};

static void child_main(child_run *run, const void *argument, int out, pid_t parent)
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

/* Tells the owner of a child whose output is complete and that was reaped, and frees it. */
static void child_look(struct child *c)
{
    if (c->pid || c->fd >= 0)
        return;
    LIST_REMOVE(c, link);
    if (c->done)
        c->done(c->owner, evbuffer_pullup(c->said, -1), evbuffer_get_length(c->said), c->wait_status);
    evbuffer_free(c->said);
    free(c);
}

static void output_end(struct child *c)
{
    event_stop(&c->event);
    fd_close(&c->fd);
    child_look(c);
}

static void on_output(evutil_socket_t fd, short what, void *arg)
{
    struct child *c = arg;
    int n = evbuffer_read(c->said, fd, -1);

    (void)what;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool says_too_much = evbuffer_get_length(c->said) > c->most;
    if (says_too_much && c->pid)
        (void)kill(c->pid, SIGKILL);
    if (says_too_much || n <= 0)
        output_end(c);
}

int child_start(struct broker *b, child_run *run, const void *argument, size_t most, child_done *done, void *owner,
                struct child **out)
{
    struct child *c = calloc(1, sizeof(*c));
    struct evbuffer *said = evbuffer_new();
    pid_t parent = getpid();
    int ends[2] = {-1, -1}, status = c && said ? 0 : -ENOMEM;

    if (!status && (pipe2(ends, O_CLOEXEC) || (c->pid = fork()) < 0))
        status = -errno;
    if (!status && c->pid == 0)
        child_main(run, argument, ends[1], parent);
    fd_close(&ends[1]);
    if (status) {
        fd_close(&ends[0]);
        if (said)
            evbuffer_free(said);
        free(c);
        return status;
    }
    *c = (struct child){.run = run, .pid = c->pid, .fd = ends[0], .said = said, .most = most, .done = done, .owner = owner};
    LIST_INSERT_HEAD(&b->children, c, link);
    (void)evutil_make_socket_nonblocking(c->fd);
    (void)event_assign(&c->event, b->base, c->fd, EV_READ | EV_PERSIST, on_output, c);
    if (event_add(&c->event, NULL)) {
        child_kill(c);
        return -ENOMEM;
    }
    *out = c;
    return 0;
}

unsigned children_count(const struct broker *b, child_run *run)
{
    const struct child *c;
    unsigned n = 0;

    LIST_FOREACH(c, &b->children, link)
        n += c->run == run && c->pid;
    return n;
}

void child_kill(struct child *c)
{
    c->done = NULL;
    if (c->pid)
        (void)kill(c->pid, SIGKILL); /* safe even if the child has ended: it is not reaped, so the pid was not reused */
    output_end(c);
}

void children_reap(struct broker *b)
{
    struct child *c, *next;

    LIST_FOREACH_SAFE(c, &b->children, link, next) {
        if (!c->pid || waitpid(c->pid, &c->wait_status, WNOHANG) == 0)
            continue;
        c->pid = 0;
        child_look(c);
    }
}

void children_close(struct broker *b)
{
    const struct timespec step = {.tv_nsec = 1000000L};
    struct child *c, *next;

    LIST_FOREACH_SAFE(c, &b->children, link, next)
        child_kill(c);
    for (int ms = 0; ms < KILLED_LIMIT_MS && !LIST_EMPTY(&b->children); ms++) {
        children_reap(b);
        (void)nanosleep(&step, NULL);
    }
    LIST_FOREACH_SAFE(c, &b->children, link, next) { /* a child that a driver holds in the kernel may outlive the broker */
        c->pid = 0;
        child_look(c);
    }
}
