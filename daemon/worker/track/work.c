/* SPDX-License-Identifier: MIT
 *
 * work.c - the thread that works off rules. It goes over all rules again and again: those that are due are worked off by at most
 * PIECE_BYTES each time. It spins while rules wait for words only, which no bell tells of, and otherwise sleeps until a bell rings.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/track/inside.h"
#include "kernels/cpu/combine.h"
#include "kernels/plan/plan.h"
#include "proto/base/clock.h"
#include "proto/base/spin.h"

#define REST_NS 50000 /* between two looks at words, when spinning has taken long enough */
#define LIVELY_NS                                                                                                              \
    20000000 /* streams, which ring no bell, count again soon after a run of theirs: so long it looks at counts as at words */
#define COUNTS_POLL_MS 1  /* between two looks at counts that are raised without a bell */
#define LIMITS_POLL_MS 50 /* between two looks at time limits */

/* What a look at rules has found, the least to wait for last. */
enum found { FOUND_NOTHING, FOUND_COUNTING, FOUND_WAITING, FOUND_WORK };

uint64_t rule_count(const struct tracker *t, const struct rule *r)
{
    return fcc_rule_counted(&t->memory->rule[r->number]);
}

bool rule_is_in_stream(const struct tracker *t, const struct rule *r)
{
    return atomic_load_explicit(&t->memory->rule[r->number].begun, memory_order_relaxed) > r->done;
}

uint64_t rule_word_value(const struct tracker *t, const struct rule_word *w)
{
    return !w->buffer ? 0 : t->words ? w->seen : atomic_load_explicit(w->word, memory_order_acquire);
}

void rule_tell(struct tracker *t, struct rule *r)
{
    struct fcc_tracker_memory *m = t->memory;

    atomic_store_explicit(&m->rule[r->number].done, r->done, memory_order_release);
    atomic_store_explicit(&m->rule[r->number].status, r->status, memory_order_release);
    (void)atomic_fetch_add_explicit(&m->news, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&m->sleepers, memory_order_seq_cst))
        (void)syscall(SYS_futex, &m->news, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- rows ---- */

static void add(const struct rule *r, unsigned char *to, const unsigned char *from, uint64_t bytes)
{
    _Alignas(64) unsigned char sum[COMBINE_BLOCK_BYTES];
    const size_t element = dtype_size(r->dtype);

    while (bytes) {
        size_t n = bytes / element < COMBINE_BLOCK ? (size_t)(bytes / element) : COMBINE_BLOCK;
        combine(FCC_SUM, r->dtype, FCC_F32, (const unsigned char *const[]){to, from}, 2, n, sum);
        combine_convert(to, r->dtype, sum, FCC_F32, n);
        to += n * element;
        from += n * element;
        bytes -= n * element;
    }
}

/* Moves at most PIECE_BYTES. True: all rows are moved. */
static bool rows_move(struct rule *r)
{
    uint64_t room = PIECE_BYTES;

    while (r->row < r->rows && room) {
        uint64_t left = r->row_bytes - r->bytes, n = left < room ? left : room;
        unsigned char *to = r->to + r->row * r->to_stride + r->bytes;
        const unsigned char *from = r->from + r->row * r->from_stride + r->bytes;
        if (r->action == FCC_RULE_ADD)
            add(r, to, from, n);
        else
            memcpy(to, from, n);
        room -= n;
        r->bytes += n;
        if (r->bytes == r->row_bytes) {
            r->row++;
            r->bytes = 0;
        }
    }
    return r->row == r->rows;
}

/* ---- a rule ---- */

bool rule_words_are_there(const struct tracker *t, const struct rule *r, uint64_t run)
{
    for (int i = 0; i < FCC_RULE_AWAITS; i++)
        if (r->awaits[i].buffer && rule_word_value(t, &r->awaits[i]) + r->awaits[i].lag < run)
            return false;
    return true;
}

/* A rule is due: go on with its run. */
static enum found rule_work(struct tracker *t, struct rule *r)
{
    const uint64_t run = r->done + 1;

    if (!r->begun_ns)
        r->begun_ns = clock_ns();
    if (r->put.puts) {
        int status = r->is_triggered ? 0 : puts_rule_trigger(&r->put, run);
        r->is_triggered = !status;
        if (!status)
            status = puts_rule_taken(&r->put);
        if (status == -EAGAIN)
            return FOUND_WAITING; /* for the proxy */
        r->is_triggered = false;
        r->status = status;
    } else if (t->words) {
        int status = gpu_rule_run(t, r, run);
        if (!status)
            return FOUND_WAITING; /* for a GPU */
        r->status = status < 0 ? status : 0;
        t->all->lively_ns = clock_ns();
    } else if (!rows_move(r)) {
        return FOUND_WORK;
    }
    r->row = 0;
    if (!r->status) {
        if (r->signal && !t->words)
            atomic_store_explicit(r->signal, run, memory_order_release);
        r->done = run;
        runs_add(t->runs, r);
    }
    r->produced_ns = r->begun_ns = 0;
    rule_tell(t, r);
    return FOUND_WORK;
}

/* Something may be new. */
static void rule_see(const struct tracker *t, struct rule *r, uint64_t count, bool has_begun)
{
    const uint64_t begun = atomic_load_explicit(&t->memory->rule[r->number].begun, memory_order_relaxed);
    bool is_new = !r->since_ns || count != r->seen_count || begun != r->seen_begun;

    r->seen_count = count;
    r->seen_begun = begun;
    for (int i = 0; i < FCC_RULE_AWAITS; i++) {
        uint64_t value = rule_word_value(t, &r->awaits[i]);
        is_new |= value != r->seen_words[i];
        r->seen_words[i] = value;
    }
    if (!has_begun)
        r->since_ns = 0;
    else if (is_new)
        r->since_ns = clock_ns();
}

/* The rule has begun, and nothing new has come for the time limit. */
static void rule_limit(struct tracker *t, struct rule *r)
{
    const uint64_t limit_ms = t->member->comm->dev.time_limit_ms;
    char text[FCC_TEXT_MAX];

    if (t->ended || t->late.status || !limit_ms || clock_ns() - r->since_ns < limit_ms * 1000000)
        return;
    rule_say(t, r, text, sizeof(text));
    (void)error_set(&t->late, -ETIMEDOUT, "%.400s; nothing new has come for %llu ms", text, (unsigned long long)limit_ms);
    atomic_store_explicit(&t->all->news, 1, memory_order_seq_cst);
    worker_wake(t->all->worker);
}

/* Takes in what streams of the rank have worked off by themselves. A rule that is counted for is the thread's alone, whatever its client writes. */
static void streams_look(struct tracker *t, struct rule *r)
{
    const uint64_t ran = atomic_load_explicit(&t->memory->rule[r->number].ran, memory_order_acquire);

    if (ran <= r->done)
        return;
    r->done = ran;
    r->since_ns = 0;
    rule_tell(t, r);
}

static enum found rule_look(struct tracker *t, struct rule *r)
{
    const uint64_t count = rule_count(t, r);
    bool produced, has_begun;
    enum found found;

    if (!count)
        streams_look(t, r);
    produced = count / r->need > r->done;
    has_begun = (count && count > r->done * r->need) || /* done runs were counted, so this does not overflow */
                atomic_load_explicit(&t->memory->rule[r->number].awaited, memory_order_relaxed) > r->done ||
                rule_is_in_stream(t, r);
    if (produced && rule_words_are_there(t, r, r->done + 1)) {
        found = rule_work(t, r);
        if (found == FOUND_WORK) {
            r->since_ns = 0;
            return found;
        }
    } else {
        if (produced && !r->produced_ns)
            r->produced_ns = clock_ns();
        found = produced ? FOUND_WAITING : has_begun ? FOUND_COUNTING : FOUND_NOTHING;
    }
    rule_see(t, r, count, has_begun);
    if (has_begun)
        rule_limit(t, r);
    return found;
}

/* ---- all rules ---- */

/* Lets the engine have the lock if it wants to. */
static void step_aside(struct tracking *all)
{
    tracking_unlock(all);
    while (atomic_load_explicit(&all->wanted, memory_order_relaxed))
        (void)sched_yield();
    (void)pthread_mutex_lock(&all->lock);
}

/* Locked. If the engine wants the lock, the look ends early, as if there were more to do. */
static enum found look(struct tracking *all)
{
    enum found found = FOUND_NOTHING, one;
    struct tracker *t;

    LIST_FOREACH(t, &all->trackers, link) {
        if (atomic_load_explicit(&t->member->comm->dev.shared->status, memory_order_relaxed))
            continue;
        if (t->words)
            gpu_words_look(t);
        for (uint32_t i = 0; i < t->nrules; i++) {
            one = t->rules[i]->status ? FOUND_NOTHING : rule_look(t, t->rules[i]);
            found = one > found ? one : found;
            if (one == FOUND_WORK && atomic_load_explicit(&all->wanted, memory_order_relaxed))
                return FOUND_WORK;
        }
    }
    return found;
}

static void sleeps_set(struct tracking *all, uint32_t sleeps)
{
    struct tracker *t;

    LIST_FOREACH(t, &all->trackers, link)
        atomic_store_explicit(&t->memory->sleeps, sleeps, memory_order_seq_cst);
}

/* How long the thread may sleep. */
static int sleep_ms(const struct tracking *all, enum found found)
{
    const struct tracker *t;
    bool polls = false;

    LIST_FOREACH(t, &all->trackers, link)
        polls |= atomic_load_explicit(&t->memory->polls, memory_order_relaxed) != 0;
    return polls ? COUNTS_POLL_MS : found == FOUND_COUNTING ? LIMITS_POLL_MS : -1;
}

/* Locked; lets go of the lock while it sleeps. Nothing is due, and no rule waits for a word only. */
static void sleep_until_rung(struct tracking *all)
{
    struct epoll_event
        rung[8]; /* which of them is not asked; what finds no place here is the next sleep's, which then is none */
    enum found found;

    sleeps_set(all, 1);
    found = look(all);
    if (found <= FOUND_COUNTING) {
        int ms = sleep_ms(all, found);
        tracking_unlock(all);
        if (!atomic_load_explicit(&all->stop, memory_order_seq_cst))
            (void)epoll_wait(all->epoll, rung, (int)(sizeof(rung) / sizeof(rung[0])), ms);
        (void)pthread_mutex_lock(&all->lock);
    }
    sleeps_set(all, 0);
}

void *work_main(void *tracking)
{
    static const struct timespec rest = {.tv_nsec = REST_NS};
    struct tracking *all = tracking;
    struct spin spin = {0};

    (void)pthread_mutex_lock(&all->lock);
    while (!atomic_load_explicit(&all->stop, memory_order_relaxed)) {
        enum found found = look(all);
        if (found == FOUND_WORK) {
            spin_reset(&spin);
            step_aside(all);
        } else if (spin_once(&spin, all->worker->config.spin_us)) {
            if (!spin_keeps_core(&spin))
                step_aside(all);
        } else if (found == FOUND_WAITING || clock_ns() - all->lively_ns < LIVELY_NS) {
            tracking_unlock(all);
            (void)nanosleep(&rest, NULL);
            (void)pthread_mutex_lock(&all->lock);
        } else {
            sleep_until_rung(all);
            spin_reset(&spin);
        }
    }
    tracking_unlock(all);
    return NULL;
}
