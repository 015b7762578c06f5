/* SPDX-License-Identifier: MIT
 *
 * tracker.c - this rank's rules: made here, counted here, worked off by the worker (memory order: session.h).
 */
#include "client/memory/tracker.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/device/accelerator.h"
#include "client/device/graphs.h"
#include "client/memory/buffer.h"
#include "proto/session.h"

#define GRACE_MS 500 /* after a time limit: the worker's text says more, so it comes first */

struct fcc_tracker {
    struct fcc_comm *comm;
    struct fcc_tracker_memory *memory;
    uint64_t address; /* of `memory`, on the rank's GPU; 0: the rank is on a cpu device */
    int bell;
    _Atomic uint32_t nrules;
    /* The thread that calls the program's functions; it begins with the first rule that has one. */
    pthread_mutex_t lock; /* makes rules one after the other */
    bool calls;           /* the thread runs. lock */
    pthread_t thread;
    _Atomic bool stop;      /* the tracker is being freed: calls and waits end */
    _Atomic uint32_t waits; /* threads in fcc_tracker_wait(), which the memory outlives */
    struct {
        void (*call)(void *argument, uint64_t run); /* constant when nrules has it */
        void *argument;
        uint64_t called; /* the thread's: the last run of which it was called */
    } rule[FCC_RULES_MAX];
};

static int tracker_check(const struct fcc_tracker *t)
{
    return handle_check("tracker", t ? t->comm->context : NULL);
}

/* ---- waiting ---- */

/* Sleep until `news` differs from `seen`, at most for a slice or until the deadline. The caller has looked again after it has added itself to
 * the sleepers. */
static void news_await(struct fcc_tracker_memory *m, uint32_t seen, int64_t deadline)
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

/* ---- trackers ---- */

/* Lets the worker make the tracker, and maps its memory; *bell is to be closed. On failure the worker has none, either. */
static int tracker_take(const struct fcc_comm *comm, void **memory, int *bell)
{
    struct fcc_tracker_msg msg = {.comm = comm->handle};
    struct fcc_reply reply = {.status = 0};
    int fds[2], status = context_call(comm->context, CALL_OF(TRACKER, &msg, &reply, .fds = fds));

    if (!status) {
        *bell = fds[1];
        status = shared_map(fds[0], sizeof(struct fcc_tracker_memory), "tracker", memory);
        if (status)
            (void)close(*bell);
    } else if (!reply.fds) {
        return status; /* the worker's refusal; otherwise its descriptors had no room in this process */
    }
    if (status)
        context_tell(comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
    return status;
}

/* ... and on GPUs, so that kernels count and wait. */
static int memory_register(struct fcc_tracker *t)
{
    const struct accelerator *a = t->comm->accelerator;
    int before = 0, status = accelerator_enter(a, &before);

    if (status)
        return status;
    status = ACCELERATOR_CALL(a, host_register, t->memory, sizeof(*t->memory), DRIVER_HOST_PORTABLE | DRIVER_HOST_MAPPED);
    if (!status) {
        status = ACCELERATOR_CALL(a, host_address, &t->address, t->memory, 0);
        if (status)
            (void)a->driver->host_unregister(t->memory);
    }
    accelerator_leave(a, before);
    return status;
}

/* No kernel uses it any more. */
static void memory_end(void *memory, const struct accelerator *a)
{
    int before = 0;

    if (!accelerator_enter(a, &before)) {
        (void)a->driver->host_unregister(memory);
        accelerator_leave(a, before);
    }
    (void)munmap(memory, sizeof(struct fcc_tracker_memory));
}

/* Kernels that wait leave, and so do those that come later; those on streams have gone when this unmaps the memory, and those of graphs
 * keep it. */
static void memory_release(struct fcc_comm *comm, struct fcc_tracker_memory *memory)
{
    const struct accelerator *a = comm->accelerator;
    int32_t none = 0;
    int before = 0;

    (void)atomic_compare_exchange_strong_explicit(&memory->ended, &none, -ENOENT, memory_order_release, memory_order_relaxed);
    if (!accelerator_enter(a, &before)) {
        (void)a->driver->synchronize();
        accelerator_leave(a, before);
    }
    if (!graphs_hold(comm->graphs, memory_end, memory))
        memory_end(memory, a);
}

int fcc_tracker_create(fcc_comm *comm, fcc_tracker **out)
{
    struct fcc_tracker *t;
    const int32_t *word;
    void *memory = NULL;
    struct error why;
    int status = comm_check(comm);

    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    if (comm->context->version < FCC_PROTO_TRACKERS)
        return last_error_set(-EOPNOTSUPP,
                              "rank %d: tracker: this fccd speaks version %u of the protocol, which has none: upgrade fccd",
                              comm->rank, comm->context->version);
    t = calloc(1, sizeof(*t));
    if (!t)
        return last_error_set(-ENOMEM, "rank %d: tracker: out of memory", comm->rank);
    status = tracker_take(comm, &memory, &t->bell);
    if (status) {
        free(t);
        return status;
    }
    t->comm = comm;
    t->memory = memory;
    status = comm->accelerator ? memory_register(t) : 0;
    if (status) {
        struct fcc_tracker_msg msg = {.comm = comm->handle};
        struct fcc_reply reply;
        (void)error_set(&why, status, "%s", fcc_last_error());
        context_tell(comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
        (void)munmap(t->memory, sizeof(*t->memory));
        (void)close(t->bell);
        free(t);
        return last_error_set(why.status, "rank %d: tracker: %s", comm->rank, why.text);
    }
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_mutex_lock(&comm->context->lock);
    comm->tracker = t; /* the worker gives a rank one at a time */
    comm->tracker_ended = t->address ? &t->memory->ended : NULL;
    if (comm->tracker_ended && comm->context->dead.status) /* it may have died before */
        statuses_raise(comm->context, comm->context->dead.status);
    (void)pthread_mutex_unlock(&comm->context->lock);
    status = fcc_comm_status(comm, &word); /* what ends waits; from now on the worker is watched, too */
    if (status) {
        (void)error_set(&why, status, "%s", fcc_last_error());
        fcc_tracker_free(t);
        return last_error_set(why.status, "%s", why.text);
    }
    *out = t;
    return 0;
}

/* The thread of calls ends, and so do waits that have begun: they look at `stop` whenever there is news, or a slice is over, so this takes no
 * longer than the program's function that is being called. */
static void threads_stop(struct fcc_tracker *t)
{
    static const struct timespec moment = {.tv_nsec = 50000};

    atomic_store(&t->stop, true);
    (void)atomic_fetch_add(&t->memory->news, 1); /* a value that no thread has seen */
    (void)syscall(SYS_futex, &t->memory->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    if (t->calls)
        (void)pthread_join(t->thread, NULL);
    while (atomic_load(&t->waits))
        (void)nanosleep(&moment, NULL);
}

void tracker_end(struct fcc_comm *comm)
{
    struct fcc_tracker *t = comm->tracker;

    if (!t)
        return;
    (void)pthread_mutex_lock(&comm->context->lock);
    comm->tracker = NULL;
    comm->tracker_ended = NULL;
    (void)pthread_mutex_unlock(&comm->context->lock);
    threads_stop(t);
    if (t->address)
        memory_release(comm, t->memory);
    else
        (void)munmap(t->memory, sizeof(*t->memory));
    (void)close(t->bell);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

void fcc_tracker_free(fcc_tracker *tracker)
{
    struct fcc_tracker_msg msg;
    struct fcc_reply reply;

    if (!tracker || tracker_check(tracker))
        return;
    msg = (struct fcc_tracker_msg){.comm = tracker->comm->handle};
    context_tell(tracker->comm->context, CALL_OF(TRACKER_FREE, &msg, &reply));
    tracker_end(tracker->comm);
}

/* ---- calls ---- */

static bool calls_make(struct fcc_tracker *t)
{
    const uint32_t n = atomic_load_explicit(&t->nrules, memory_order_acquire);
    bool any = false;

    for (uint32_t i = 0; i < n; i++) {
        if (!t->rule[i].call || t->rule[i].called >= atomic_load_explicit(&t->memory->rule[i].done, memory_order_acquire) ||
            atomic_load(&t->stop))
            continue;
        t->rule[i].call(t->rule[i].argument, ++t->rule[i].called);
        any = true;
    }
    return any;
}

static void *calls_main(void *tracker)
{
    struct fcc_tracker *t = tracker;

    (void)atomic_fetch_add(&t->memory->sleepers, 1);
    while (!atomic_load(&t->stop)) {
        uint32_t seen = atomic_load(&t->memory->news);
        if (!calls_make(t) && !atomic_load(&t->stop))
            news_await(t->memory, seen, NEVER);
    }
    (void)atomic_fetch_sub(&t->memory->sleepers, 1);
    return NULL;
}

/* Locked by t->lock. */
static int calls_start(struct fcc_tracker *t)
{
    int status = t->calls ? 0 : pthread_create(&t->thread, NULL, calls_main, t);

    if (status)
        return last_error_set(-ENOMEM, "rank %d: tracker: no thread for calls: %s", t->comm->rank, strerror(status));
    t->calls = true;
    return 0;
}

/* ---- rules ---- */

/* Locked by the context's lock. */
static int handle_of(const struct fcc_comm *comm, const struct fcc_buffer *b, const char *name, uint32_t *out)
{
    *out = b ? buffer_handle(comm->context, b, NULL) : 0;
    return b && !*out ? last_error_set(-ENOENT, "rank %d: rule: %s: no buffer of this job", comm->rank, name) : 0;
}

static int reserved_check(const struct fcc_rule *rule)
{
    for (size_t i = 0; i < sizeof(rule->reserved) / sizeof(rule->reserved[0]); i++)
        if (rule->reserved[i])
            return last_error_set(-EINVAL, "rule.reserved[%zu]: %u: must be 0", i, rule->reserved[i]);
    for (int i = 0; i < FCC_RULE_AWAITS; i++)
        if (rule->awaits[i].reserved)
            return last_error_set(-EINVAL, "rule.awaits[%d].reserved: %u: must be 0", i, rule->awaits[i].reserved);
    if (rule->name && strlen(rule->name) >= FCC_RULE_NAME_MAX)
        return last_error_set(-EINVAL, "rule.name: %zu characters: allowed are at most %d", strlen(rule->name),
                              FCC_RULE_NAME_MAX - 1);
    for (const char *at = rule->name; at && *at; at++)
        if (*at < ' ' || *at > '~')
            return last_error_set(-EINVAL, "rule.name: it has a character that is not printable ASCII");
    return 0;
}

static int message_fill(const struct fcc_comm *comm, const struct fcc_rule *rule, struct fcc_rule_msg *msg)
{
    const bool moves = rule->action != FCC_RULE_SIGNAL;
    int status = 0;

    *msg = (struct fcc_rule_msg){.comm = comm->handle,
                                 .rank = rule->rank,
                                 .action = rule->action,
                                 .dtype = rule->action == FCC_RULE_ADD ? rule->dtype : 0,
                                 .rows = moves ? rule->rows : 0,
                                 .count = rule->count,
                                 .row_bytes = moves ? rule->row_bytes : 0,
                                 .from_stride = moves ? rule->from_stride : 0,
                                 .to_stride = moves ? rule->to_stride : 0,
                                 .from_offset = moves ? rule->from_offset : 0,
                                 .to_offset = moves ? rule->to_offset : 0,
                                 .signal_offset = rule->signal_offset};
    if (rule->name)
        text_copy(msg->name, sizeof(msg->name), rule->name);
    (void)pthread_mutex_lock(&comm->context->lock);
    if (moves)
        status = handle_of(comm, rule->from, "from", &msg->from);
    if (moves && !status)
        status = handle_of(comm, rule->to, "to", &msg->to);
    if (!status)
        status = handle_of(comm, rule->signals, "signals", &msg->signals);
    for (int i = 0; i < FCC_RULE_AWAITS && !status; i++) {
        msg->awaits[i].lag = rule->awaits[i].lag;
        msg->awaits[i].offset = rule->awaits[i].offset;
        status = handle_of(comm, rule->awaits[i].buffer, "awaits", &msg->awaits[i].buffer);
    }
    (void)pthread_mutex_unlock(&comm->context->lock);
    return status;
}

/* Locked by t->lock. */
static int rule_add(struct fcc_tracker *t, const struct fcc_rule *rule, uint32_t *number)
{
    struct fcc_rule_reply reply = {.number = FCC_RULES_MAX};
    struct fcc_rule_msg msg;
    int status = message_fill(t->comm, rule, &msg);

    if (!status && rule->call)
        status = calls_start(t);
    if (!status)
        status = context_call(t->comm->context, CALL_OF(RULE, &msg, &reply, .called = "fcc_tracker_rule"));
    if (!status && (reply.number >= FCC_RULES_MAX || reply.number != atomic_load(&t->nrules)))
        status = last_error_set(-EPROTO, "rank %d: rule: the worker gave it number %u: expected is %u", t->comm->rank,
                                reply.number, atomic_load(&t->nrules));
    if (status)
        return status;
    t->rule[reply.number].call = rule->call;
    t->rule[reply.number].argument = rule->argument;
    atomic_store_explicit(&t->nrules, reply.number + 1, memory_order_release);
    *number = reply.number;
    return 0;
}

int fcc_tracker_rule(fcc_tracker *tracker, const struct fcc_rule *rule, uint32_t *number)
{
    int status = tracker_check(tracker);

    if (status)
        return status;
    if (!rule || !number)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", rule ? "number" : "rule");
    status = reserved_check(rule);
    if (status)
        return status;
    (void)pthread_mutex_lock(&tracker->lock);
    status = rule_add(tracker, rule, number);
    (void)pthread_mutex_unlock(&tracker->lock);
    return status;
}

/* ---- counts ---- */

static int number_check(const struct fcc_tracker *t, uint32_t rule)
{
    const uint32_t n = atomic_load_explicit(&t->nrules, memory_order_acquire);

    if (rule < n)
        return 0;
    return last_error_set(-EINVAL, "rank %d: tracker: rule: %u: it has %u rules", t->comm->rank, rule, n);
}

static void bell_ring(const struct fcc_tracker *t)
{
    (void)eventfd_write(t->bell, 1); /* fails only if the counter is full: then it rings already */
}

int fcc_tracker_add(fcc_tracker *tracker, uint32_t rule, uint64_t n)
{
    int status = tracker_check(tracker);
    struct fcc_rule_state *r;
    uint64_t before, need;

    if (!status)
        status = number_check(tracker, rule);
    if (status)
        return status;
    r = &tracker->memory->rule[rule];
    before = atomic_fetch_add_explicit(&r->count, n, memory_order_seq_cst);
    need = atomic_load_explicit(&r->need, memory_order_relaxed);
    /* A run is produced, or the first of one is: its time begins. Otherwise the thread has nothing to do. */
    if ((!need || !n || before / need != (before + n) / need || before % need == 0) &&
        atomic_load_explicit(&tracker->memory->sleeps, memory_order_seq_cst))
        bell_ring(tracker);
    return 0;
}

uint64_t *fcc_tracker_count(fcc_tracker *tracker, uint32_t rule)
{
    if (tracker_check(tracker) || number_check(tracker, rule))
        return NULL;
    atomic_store(&tracker->memory->polls, 1);
    if (atomic_load(&tracker->memory->sleeps))
        bell_ring(tracker);
    if (tracker->address) /* for kernels */
        return (uint64_t *)(uintptr_t)(tracker->address + offsetof(struct fcc_tracker_memory, rule) +
                                       rule * sizeof(struct fcc_rule_state) + offsetof(struct fcc_rule_state, streams));
    return (uint64_t *)&tracker->memory->rule[rule].count;
}

int tracker_rule_words(struct fcc_tracker *t, uint32_t rule, const char *called, struct fcc_comm **comm,
                       struct gpu_rule_words *out)
{
    int status = tracker_check(t);
    uint64_t at;

    if (!status)
        status = number_check(t, rule);
    if (status)
        return status;
    if (!t->address)
        return last_error_set(-EOPNOTSUPP, "rank %d: %s: this rank is on a cpu device, which has no streams", t->comm->rank,
                              called);
    (void)fcc_tracker_count(t, rule); /* streams ring no bell: the worker looks by itself */
    at = t->address + offsetof(struct fcc_tracker_memory, rule) + rule * sizeof(struct fcc_rule_state);
    *comm = t->comm;
    *out = (struct gpu_rule_words){.count = at + offsetof(struct fcc_rule_state, count),
                                   .streams = at + offsetof(struct fcc_rule_state, streams),
                                   .need = at + offsetof(struct fcc_rule_state, need),
                                   .done = at + offsetof(struct fcc_rule_state, done),
                                   .status = at + offsetof(struct fcc_rule_state, status),
                                   .ended = t->address + offsetof(struct fcc_tracker_memory, ended)};
    return 0;
}

/* ---- waits ---- */

/* The thread will wait for that run: its time begins. */
static void run_begin(struct fcc_tracker *t, struct fcc_rule_state *r, uint64_t run)
{
    uint64_t before = atomic_load(&r->awaited);

    while (before < run && !atomic_compare_exchange_weak(&r->awaited, &before, run)) {
    }
    if (before < run && atomic_load(&t->memory->sleeps))
        bell_ring(t);
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
            news_await(m, seen, deadline);
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
        status = number_check(tracker, rule);
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
