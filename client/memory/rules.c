/* SPDX-License-Identifier: MIT
 *
 * rules.c - this rank's rules: made here, counted here, and the program's functions called.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>

#include "client/core/call.h"
#include "client/memory/buffer.h"
#include "client/memory/tracker.h"
#include "client/memory/tracker_state.h"

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
            tracker_news_await(t->memory, seen, NEVER);
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
    t->rule[reply.number].has = *rule;
    t->rule[reply.number].has.name = NULL;
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

int tracker_number_check(const struct fcc_tracker *t, uint32_t rule)
{
    const uint32_t n = atomic_load_explicit(&t->nrules, memory_order_acquire);

    if (rule < n)
        return 0;
    return last_error_set(-EINVAL, "rank %d: tracker: rule: %u: it has %u rules", t->comm->rank, rule, n);
}

void tracker_bell_ring(const struct fcc_tracker *t)
{
    (void)eventfd_write(t->bell, 1); /* fails only if the counter is full: then it rings already */
}

/* The rule's runs are produced by counts, or streams work them off: one of both, for good. */
static int rule_use(struct fcc_tracker *t, uint32_t rule, enum rule_use use, const char *called)
{
    int status = tracker_number_check(t, rule), known = UNUSED;

    if (status)
        return status;
    if (atomic_load_explicit(&t->rule[rule].use, memory_order_relaxed) == (int)use ||
        atomic_compare_exchange_strong(&t->rule[rule].use, &known, (int)use) || known == (int)use)
        return 0;
    return last_error_set(
        -EINVAL, "rank %d: %s: rule %u: %s", t->comm->rank, called, rule,
        known == COUNTED
            ? "it is counted for, or streams wait for its counts: a rule whose runs streams work off is another one"
            : "streams work off its runs: nothing counts for it, and what is behind a run on its stream waits for it");
}

int fcc_tracker_add(fcc_tracker *tracker, uint32_t rule, uint64_t n)
{
    int status = tracker_check(tracker);
    struct fcc_rule_state *r;
    uint64_t before, need;

    if (!status)
        status = rule_use(tracker, rule, COUNTED, "fcc_tracker_add");
    if (status)
        return status;
    r = &tracker->memory->rule[rule];
    before = atomic_fetch_add_explicit(&r->count, n, memory_order_seq_cst);
    need = atomic_load_explicit(&r->need, memory_order_relaxed);
    /* A run is produced, or the first of one is: its time begins. Otherwise the thread has nothing to do. */
    if ((!need || !n || before / need != (before + n) / need || before % need == 0) &&
        atomic_load_explicit(&tracker->memory->sleeps, memory_order_seq_cst))
        tracker_bell_ring(tracker);
    return 0;
}

uint64_t *fcc_tracker_count(fcc_tracker *tracker, uint32_t rule)
{
    if (tracker_check(tracker) || rule_use(tracker, rule, COUNTED, "fcc_tracker_count"))
        return NULL;
    atomic_store(&tracker->memory->polls, 1);
    if (atomic_load(&tracker->memory->sleeps))
        tracker_bell_ring(tracker);
    if (tracker->address) /* for kernels */
        return (uint64_t *)(uintptr_t)(tracker->address + offsetof(struct fcc_tracker_memory, rule) +
                                       rule * sizeof(struct fcc_rule_state) + offsetof(struct fcc_rule_state, streams));
    return (uint64_t *)&tracker->memory->rule[rule].count;
}

/* Of a rank on a GPU. */
static struct gpu_rule_words words_of(const struct fcc_tracker *t, uint32_t rule)
{
    const uint64_t at = t->address + offsetof(struct fcc_tracker_memory, rule) + rule * sizeof(struct fcc_rule_state);

    return (struct gpu_rule_words){.count = at + offsetof(struct fcc_rule_state, count),
                                   .streams = at + offsetof(struct fcc_rule_state, streams),
                                   .need = at + offsetof(struct fcc_rule_state, need),
                                   .done = at + offsetof(struct fcc_rule_state, done),
                                   .begun = at + offsetof(struct fcc_rule_state, begun),
                                   .ran = at + offsetof(struct fcc_rule_state, ran),
                                   .status = at + offsetof(struct fcc_rule_state, status),
                                   .ended = t->address + offsetof(struct fcc_tracker_memory, ended)};
}

/* The rule will be used by streams, which ring no bell: the worker looks by itself. */
static int streams_begin(struct fcc_tracker *t, uint32_t rule, enum rule_use use, const char *called)
{
    int status = tracker_check(t);

    if (!status)
        status = tracker_number_check(t, rule);
    if (!status && !t->address)
        status = last_error_set(-EOPNOTSUPP, "rank %d: %s: this rank is on a cpu device, which has no streams", t->comm->rank,
                                called);
    if (!status)
        status = rule_use(t, rule, use, called);
    if (status)
        return status;
    atomic_store(&t->memory->polls, 1);
    if (atomic_load(&t->memory->sleeps))
        tracker_bell_ring(t);
    return 0;
}

int tracker_rule_words(struct fcc_tracker *t, uint32_t rule, const char *called, struct fcc_comm **comm,
                       struct gpu_rule_words *out)
{
    int status = streams_begin(t, rule, COUNTED, called);

    if (status)
        return status;
    *comm = t->comm;
    *out = words_of(t, rule);
    return 0;
}

/* ---- runs that streams work off ---- */

/* Where a byte of a rank's part of a buffer lies for this rank's GPU. */
static int place_find(const struct fcc_tracker *t, fcc_buffer *b, int rank, uint64_t offset, uint64_t *out)
{
    struct tensor_place own = {.address = 0};
    void *at = NULL;
    int status = 0;
    uint32_t handle;

    (void)pthread_mutex_lock(&t->comm->context->lock);
    handle = buffer_handle(t->comm->context, b, &own);
    (void)pthread_mutex_unlock(&t->comm->context->lock);
    if (!handle)
        return last_error_set(-ENOENT, "rank %d: a buffer of the rule has been freed", t->comm->rank);
    if (rank != t->comm->rank)
        status = fcc_buffer_peer(b, rank, &at);
    *out = (rank == t->comm->rank ? own.address : (uint64_t)(uintptr_t)at) + offset;
    return status;
}

/* Locked by t->lock. */
static int work_find(const struct fcc_tracker *t, const struct fcc_rule *rule, struct gpu_rule_work *out)
{
    const int rank = t->comm->rank;
    struct gpu_rule_work w = {.action = rule->action, .dtype = rule->dtype};
    int status = 0;

    if (rule->action != FCC_RULE_SIGNAL) {
        w.rows = rule->rows;
        w.row_bytes = rule->row_bytes;
        w.from_stride = rule->rows > 1 ? rule->from_stride : rule->row_bytes;
        w.to_stride = rule->rows > 1 ? rule->to_stride : rule->row_bytes;
        status = place_find(t, rule->from, rank, rule->from_offset, &w.from);
        if (!status)
            status = place_find(t, rule->to, rule->rank, rule->to_offset, &w.to);
    }
    if (!status && rule->signals)
        status = place_find(t, rule->signals, rule->rank, rule->signal_offset, &w.signal);
    for (int i = 0; i < FCC_RULE_AWAITS && !status; i++) {
        w.awaits[i].lag = rule->awaits[i].lag;
        if (rule->awaits[i].buffer)
            status = place_find(t, rule->awaits[i].buffer, rank, rule->awaits[i].offset, &w.awaits[i].word);
    }
    *out = w;
    return status;
}

int tracker_rule_work(struct fcc_tracker *t, uint32_t rule, const char *called, struct fcc_comm **comm,
                      struct gpu_rule_words *out, struct gpu_rule_work *work)
{
    int status = streams_begin(t, rule, BY_STREAMS, called);

    if (!status && t->comm->context->version < FCC_PROTO_STREAM_RUNS)
        status = last_error_set(-EOPNOTSUPP,
                                "rank %d: %s: this fccd speaks version %u of the protocol, which has none: upgrade fccd",
                                t->comm->rank, called, t->comm->context->version);
    if (!status && atomic_load_explicit(&t->memory->rule[rule].status, memory_order_acquire))
        status =
            last_error_set(-ENOENT, "rank %d: %s: rule %u: a buffer that it names has been freed", t->comm->rank, called, rule);
    if (status)
        return status;
    (void)pthread_mutex_lock(&t->lock);
    if (!t->rule[rule].is_found)
        status = work_find(t, &t->rule[rule].has, &t->rule[rule].work);
    t->rule[rule].is_found = t->rule[rule].is_found || !status;
    *work = t->rule[rule].work;
    (void)pthread_mutex_unlock(&t->lock);
    *comm = t->comm;
    *out = words_of(t, rule);
    return status;
}

void tracker_rule_capture(struct fcc_tracker *t, uint32_t rule, struct graphs *graphs)
{
    const struct fcc_rule *r = &t->rule[rule].has;
    const fcc_buffer *const buffers[] = {r->action == FCC_RULE_SIGNAL ? NULL : r->from,
                                         r->action == FCC_RULE_SIGNAL ? NULL : r->to, r->signals, r->awaits[0].buffer,
                                         r->awaits[1].buffer};

    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        buffer_capture(t->comm->context, buffers[i], graphs);
}
