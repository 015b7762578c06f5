/* SPDX-License-Identifier: MIT
 *
 * watch.c - the watch thread, which notices the end of the worker while all other threads are inside their GPU's driver.
 *
 * A thread that waits for an operator on the CPU checks for the worker's end itself (completion.c). A thread that waits for a
 * stream, or has only enqueued, does not, and its stream would wait for ever, because nothing writes stream_finished any more.
 * So a context with a rank on a GPU has a watch thread, and so has one whose program has asked for a communicator's status
 * word, for which its kernels may wait. The watch thread sleeps until the socket ends, then ends the context, which releases
 * the streams (context_die()). It also releases the streams that wait in GPU memory, whichever thread ended the context
 * (words.c).
 *
 * The watch thread also notices a worker that lives but makes no progress. It checks the operators in flight now and then. If
 * none of a communicator's operators has ended for longer than a worker can take (patience_ms()), it gives the worker up, with
 * the same effect. Where the program may wait without operators in flight (context->waits_unseen), it asks the worker now and
 * then for a sign of life.
 *
 * The watch thread is also this process's sign of life to the worker.
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

#include "client/core/call.h"
#include "client/core/request.h"

/* A robust futex on the watch thread's list, so that the kernel marks it when the process dies. That is long before the kernel
 * closes the socket if it has to tear a GPU context down. The list replaces the C library's: this thread holds no robust
 * mutex. */
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
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); /* wakes threads that waited for another value */
}

static void life_end(_Atomic uint32_t *word)
{
    (void)syscall(SYS_set_robust_list, NULL, sizeof(struct robust_list_head));
    atomic_store(word, 0);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#define WATCH_LOOK_MS 1000 /* time between two checks of the operators in flight */

/* Sleep until the socket ends (true), watch_wake() or watch_stop() is called, or it is time for the next check. */
static bool watch_sleep(const struct fcc_context *c)
{
    struct pollfd p[2] = {{.fd = c->sock, .events = POLLRDHUP}, {.fd = c->watch_wake, .events = POLLIN}};
    eventfd_t ignored;

    while (poll(p, 2, WATCH_LOOK_MS) < 0 && errno == EINTR) {
    }
    if (p[1].revents)
        (void)eventfd_read(p[1].fd, &ignored);
    return p[0].revents != 0;
}

/* Locked. Check one communicator's operators. */
static void comm_look(struct fcc_comm *comm)
{
    if (!comm_is_busy(comm) || comm->completed != comm->watched_completed || !patience_has_begun(&comm->watched)) {
        comm->watched_completed = comm->completed;
        patience_begin(&comm->watched, comm_patience_ms(comm));
    } else if (patience_over(&comm->watched)) {
        (void)context_give_up(comm->context, NULL, comm_patience_ms(comm));
    }
}

#define QUESTIONS 8 /* number of questions within one patience */

/* A call that asks the worker for a sign of life and costs it next to nothing. Owned by the watch thread. `pending` is in
 * context->pending until it is done. */
struct question {
    struct pending pending;
    struct fcc_unique_id_reply reply;
    struct patience patience; /* how much longer to wait for the answer */
    uint64_t completed;       /* completed operators of all communicators when `patience` began */
    int64_t next_ns;          /* when to ask the next question */
    bool open, sent;
};

/* Locked. */
static uint64_t completed_of_all(const struct fcc_context *c)
{
    const struct fcc_comm *comm;
    uint64_t sum = 0;

    LIST_FOREACH(comm, &c->comms, link)
        sum += comm->completed;
    return sum;
}

/* Locked; releases the lock meanwhile. Never waits: a socket that is full is tried again at the next look, and the patience
 * goes on. */
static void question_look(struct question *q, struct fcc_context *c)
{
    if (!q->open && c->waits_unseen && now_ns() >= q->next_ns) {
        *q = (struct question){.open = true, .completed = completed_of_all(c)};
        q->pending = (struct pending){.type = FCC_MSG_UNIQUE_ID, .reply = &q->reply.reply, .size = sizeof(q->reply)};
        pending_add(c, &q->pending);
        patience_begin(&q->patience, context_patience_ms(c));
    }
    if (!q->open)
        return;
    if (!q->sent && !q->pending.done) {
        struct fcc_msg ask = {.type = q->pending.type, .id = q->pending.id};
        q->sent = msg_send(c->sock, &ask, sizeof(ask), NULL, 0) == 0;
    }
    if (!q->pending.done)
        context_pump(c, 0);
    if (q->pending.done) {
        q->open = false;
        q->next_ns = deadline_in_ms(context_patience_ms(c) / QUESTIONS);
    } else if (q->completed != completed_of_all(c)) { /* the worker is busy: operators complete */
        q->completed = completed_of_all(c);
        patience_begin(&q->patience, context_patience_ms(c));
    } else if (patience_over(&q->patience)) {
        (void)context_give_up(c, NULL, context_patience_ms(c));
    }
}

/* Locked; releases the lock meanwhile. Check the worker's progress, and give it up if it has made none for too long. */
static void watch_look(struct fcc_context *c, struct question *q)
{
    struct fcc_comm *comm;

    if (c->dead.status)
        return;
    context_collect(c);
    LIST_FOREACH(comm, &c->comms, link)
        comm_look(comm);
    if (!c->dead.status && !c->watch_end)
        question_look(q, c);
}

static void *watch_run(void *argument)
{
    struct fcc_context *c = argument;
    bool hung_up = false, end = false, released = false, dead;
    struct question question = {.open = false};
    struct life life;

    life_begin(&life, &c->memory->life);
    while (!hung_up && !end) {
        hung_up = watch_sleep(c);
        if (hung_up)
            life_end(&c->memory->life);
        /* The worker's last messages, its farewell among them, are read before the end is noticed. If another thread is the
         * reader, it is awake as well. */
        (void)pthread_mutex_lock(&c->lock);
        while (hung_up && !c->watch_end && !c->dead.status)
            context_pump(c, deadline_in_ms(1));
        watch_look(c, &question);
        end = c->watch_end;
        dead = c->dead.status != 0;
        if ((end || hung_up) && question.open && !question.pending.done)
            LIST_REMOVE(&question.pending, link);
        (void)pthread_mutex_unlock(&c->lock);
        if (dead && !released)
            c->release(c);
        released |= dead;
    }
    if (!hung_up)
        life_end(&c->memory->life);
    return NULL;
}

int watch_start(struct fcc_context *c)
{
    sigset_t all, before;
    int status, wake;

    if (c->watch_wake >= 0)
        return 0;
    wake = eventfd(0, EFD_CLOEXEC);
    if (wake < 0)
        return last_error_set(status_of_file(errno), "watching for the worker's end: eventfd: %s", strerror(errno));
    (void)pthread_mutex_lock(&c->lock);
    c->watch_wake = wake;
    (void)pthread_mutex_unlock(&c->lock);
    (void)sigfillset(&all); /* signals are for the program's own threads */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&c->watch, NULL, watch_run, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!status)
        return 0;
    (void)pthread_mutex_lock(&c->lock);
    c->watch_wake = -1;
    (void)pthread_mutex_unlock(&c->lock);
    (void)close(wake);
    return last_error_set(-ENOMEM, "watching for the worker's end: a thread: %s", strerror(status));
}

void watch_wake(struct fcc_context *c)
{
    if (c->watch_wake >= 0)
        (void)eventfd_write(c->watch_wake, 1);
}

void watch_stop(struct fcc_context *c)
{
    if (c->watch_wake < 0)
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->watch_end = true;
    watch_wake(c);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->watch, NULL);
    (void)close(c->watch_wake);
    c->watch_wake = -1;
}
