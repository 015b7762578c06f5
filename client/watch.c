/* SPDX-License-Identifier: MIT
 *
 * watch.c - the thread that sees the end of the worker while all others sit in their GPU's driver.
 *
 * Who waits for an operator on the CPU looks for the worker's end himself (completion.c). A thread that waits for a stream, or
 * that has only enqueued, does not come by here; and its stream would wait for ever, because nobody is left to write
 * stream_finished. So a context with a rank on a GPU has this thread. It sleeps until the socket ends, then lets the context
 * die, which releases the streams (context_die()). So has one whose program has asked for a communicator's status word: its own
 * kernels may be what waits.
 *
 * And it is the sign of life of this process to the worker.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"

/* The thread's list of robust futexes has one, so the kernel marks it when the process dies: long before it closes the
 * socket, if there is a GPU context to take down. The list is the thread's own, in place of the C library's: it holds no
 * robust mutex. */
struct life {
    struct robust_list_head head;
    struct robust_list entry;
};

static void life_begin(struct life *life, _Atomic uint32_t *word)
{
    *life = (struct life){.head.futex_offset = (long)((uintptr_t)word - (uintptr_t)&life->entry)};
    life->head.list.next = &life->entry;
    life->entry.next = &life->head.list;
    atomic_store(word, (uint32_t)syscall(SYS_gettid));
    (void)syscall(SYS_set_robust_list, &life->head, sizeof(life->head));
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); /* who waited for another value */
}

static void life_end(_Atomic uint32_t *word)
{
    (void)syscall(SYS_set_robust_list, NULL, sizeof(struct robust_list_head));
    atomic_store(word, 0);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void *watch_run(void *argument)
{
    struct fcc_context *c = argument;
    struct pollfd p[2] = {{.fd = c->sock, .events = POLLRDHUP}, {.fd = c->watch_end, .events = POLLIN}};
    struct life life;

    life_begin(&life, &c->memory->life);
    while (poll(p, 2, -1) < 0 && errno == EINTR) {
    }
    life_end(&c->memory->life);
    if (p[1].revents)
        return NULL;
    /* What the worker sent last, its farewell among it, comes before the end. If another thread is the reader, it is awake
     * too. */
    (void)pthread_mutex_lock(&c->lock);
    while (!c->dead.status)
        context_pump(c, deadline_in_ms(1));
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

int watch_start(struct fcc_context *c)
{
    sigset_t all, before;
    int status;

    if (c->watch_end >= 0)
        return 0;
    c->watch_end = eventfd(0, EFD_CLOEXEC);
    if (c->watch_end < 0)
        return last_error_set(-errno, "watching for the worker's end: eventfd: %s", strerror(errno));
    (void)sigfillset(&all); /* signals are the program's threads' */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&c->watch, NULL, watch_run, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!status)
        return 0;
    (void)close(c->watch_end);
    c->watch_end = -1;
    return last_error_set(-status, "watching for the worker's end: a thread: %s", strerror(status));
}

void watch_stop(struct fcc_context *c)
{
    if (c->watch_end < 0)
        return;
    (void)eventfd_write(c->watch_end, 1);
    (void)pthread_join(c->watch, NULL);
    (void)close(c->watch_end);
    c->watch_end = -1;
}
