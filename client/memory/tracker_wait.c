/* SPDX-License-Identifier: MIT
 *
 * tracker_wait.c - who waits for a run of a rule, or for a word in memory, on the host.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/memory/tracker_state.h"

#define GRACE_MS 500 /* after a time limit: the worker's text says more, so it comes first */

void tracker_news_await(struct fcc_tracker_memory *m, uint32_t seen, int64_t deadline)
{
    int64_t ns = deadline == NEVER ? WAIT_SLICE_NS : deadline - now_ns();
    struct timespec time;

    if (ns > WAIT_SLICE_NS)
        ns = WAIT_SLICE_NS;
    if (ns <= 0)
        return;
    time = (struct timespec){.tv_sec = 0, .tv_nsec = (long)ns};
    (void)syscall(SYS_futex, &m->news, FUTEX_WAIT, seen, &time, NULL, 0);
}

/* The communicator has ended with that status: sets the error to its reason in words, which the worker has. */
static int comm_ended(struct fcc_comm *comm, int status, const char *called)
{
    struct fcc_tracker_msg msg = {.comm = comm->handle, .tells = 1};
    struct fcc_reply reply;
    int why, fds[2] = {-1, -1};

    why = context_call(comm->context, CALL_OF(TRACKER, &msg, &reply, .fds = fds, .called = called));
    if (!why) { /* no worker answers so */
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    return why && why != -EAGAIN
               ? why
               : last_error_set(status, "%s: rank %d: another rank has left the communicator", called, comm->rank);
}

/* The thread will wait for that run: its time begins. */
static void run_begin(struct fcc_tracker *t, struct fcc_rule_state *r, uint64_t run)
{
    uint64_t before = atomic_load(&r->awaited);

    while (before < run && !atomic_compare_exchange_weak(&r->awaited, &before, run)) {
    }
    if (before < run && atomic_load(&t->memory->sleeps))
        tracker_bell_ring(t);
}

/* Whether the run is done (1), is not (0), or will never be: an error. */
static int run_look(struct fcc_tracker *t, uint32_t rule, uint64_t run)
{
    struct fcc_rule_state *r = &t->memory->rule[rule];
    int status, over = status_of(t->comm);

    status = atomic_load_explicit(&r->status, memory_order_acquire);
    if (atomic_load_explicit(&r->done, memory_order_acquire) >= run)
        return 1;
    if (over)
        return comm_ended(t->comm, over, "fcc_tracker_wait");
    if (!status && atomic_load(&t->stop))
        status = -ENOENT;
    if (status)
        return last_error_set(status_taken(status),
                              "rank %d: rule %u: a buffer that it names has been freed, or the tracker has been freed",
                              t->comm->rank, rule);
    return 0;
}

/* The caller is one of tracker->waits. */
static int run_await(struct fcc_tracker *tracker, uint32_t rule, uint64_t run, int64_t deadline)
{
    struct fcc_tracker_memory *m = tracker->memory;
    struct spin spin;
    uint32_t seen;
    int is_done = run_look(tracker, rule, run);

    if (!is_done)
        run_begin(tracker, &m->rule[rule], run);
    spin_begin(&spin, tracker->comm->context->spin_us, deadline);
    while (!is_done && spin_more(&spin))
        is_done = run_look(tracker, rule, run);
    if (!is_done) {
        (void)atomic_fetch_add(&m->sleepers, 1);
        for (;;) {
            seen = atomic_load(&m->news);
            is_done = run_look(tracker, rule, run);
            if (is_done || now_ns() >= deadline)
                break;
            tracker_news_await(m, seen, deadline);
        }
        (void)atomic_fetch_sub(&m->sleepers, 1);
    }
    if (is_done)
        return is_done < 0 ? is_done : 0;
    return last_error_set(-EAGAIN, "rank %d: rule %u: run %llu is not done yet", tracker->comm->rank, rule,
                          (unsigned long long)run);
}

int fcc_tracker_wait(fcc_tracker *tracker, uint32_t rule, uint64_t run, int timeout_ms)
{
    const int64_t deadline = deadline_in_ms(timeout_ms);
    int status = tracker_check(tracker);

    if (!status)
        status = tracker_number_check(tracker, rule);
    if (!status && !run)
        status = last_error_set(-EINVAL, "rank %d: tracker: run: 0: the first is 1", tracker->comm->rank);
    if (status)
        return status;
    (void)atomic_fetch_add(&tracker->waits, 1);
    status = run_await(tracker, rule, run, deadline);
    (void)atomic_fetch_sub(&tracker->waits, 1); /* the last touch of the tracker */
    return status;
}

/* The word has not come within the communicator's time limit. */
static int signal_is_late(fcc_comm *comm, uint64_t seen, uint64_t value)
{
    char reason[FCC_ABORT_REASON_MAX + 1];

    (void)snprintf(reason, sizeof(reason), "fcc_signal_wait: a word is %llu, and %llu has not come within %u ms",
                   (unsigned long long)seen, (unsigned long long)value, comm->time_limit_ms);
    (void)comm_tell(comm, FCC_MSG_COMM_ABORT, reason);
    return last_error_set(-ETIMEDOUT, "rank %d: %s", comm->rank, reason);
}

int fcc_signal_wait(fcc_comm *comm, const uint64_t *word, uint64_t value, int timeout_ms)
{
    static const struct timespec moment = {.tv_nsec = 50000};
    const int32_t *ended;
    struct spin spin;
    uint64_t seen;
    int64_t deadline;
    int status = comm_check(comm);

    if (!status && (!word || (uintptr_t)word % sizeof(*word)))
        status = last_error_set(-EINVAL,
                                "rank %d: fcc_signal_wait: word: %p: allowed are addresses of 8 bytes that are aligned to 8",
                                comm->rank, (const void *)word);
    if (!status && comm->accelerator)
        status = last_error_set(
            -EOPNOTSUPP, "rank %d: fcc_signal_wait: this rank's memory is on a GPU: its streams and kernels wait", comm->rank);
    if (!status && __atomic_load_n(word, __ATOMIC_ACQUIRE) >= value)
        return 0;
    if (!status)
        status = fcc_comm_status(comm, &ended);
    if (status)
        return status;
    deadline = deadline_in_ms(timeout_ms < 0 ? (int64_t)comm->time_limit_ms + GRACE_MS : timeout_ms);
    spin_begin(&spin, comm->context->spin_us, deadline);
    for (;;) {
        status = status_of(comm);
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (seen >= value)
            return 0;
        if (status)
            return comm_ended(comm, status, "fcc_signal_wait");
        if (spin_more(&spin))
            continue;
        if (now_ns() >= deadline)
            break;
        (void)nanosleep(&moment, NULL);
    }
    if (timeout_ms < 0)
        return signal_is_late(comm, seen, value);
    return last_error_set(-EAGAIN, "rank %d: the word is %llu: %llu has not come yet", comm->rank, (unsigned long long)seen,
                          (unsigned long long)value);
}
