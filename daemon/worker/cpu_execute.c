/* SPDX-License-Identifier: MIT
 *
 * cpu_execute.c - the threads of a cpu device.
 *
 * They take the device's parts in order, each thread every part; within a part they take the slices of its runs (one run per rank on this
 * device) through the run's counter, so each slice is done once. A thread that holds a slice whose flags have not come keeps it
 * and looks at the part's other runs; when none of them can go on, it takes the next part besides. So parts that wait for another
 * node do not hold up those behind them: the nodes need no common order of communicators, which they do not have. When
 * there is nothing to do in all of them, the thread backs off: spins, gives its core away, then sleeps on the device's signal word, which
 * whoever raises a flag for this device, or gives it a part, increments.
 *
 * Sleeping loses no signal: the sleeper announces itself (sleepers), reads the signal word, looks at the flags and for a part again, and
 * sleeps if the word is still the same. The raiser stores the flag, then reads `sleepers`, then moves the word. All of these
 * are sequentially consistent, so either the raiser sees the sleeper or the sleeper sees the flag. Sleeps are bounded
 * anyway, to poll the status word.
 *
 * The queue: the engine appends under the mutex; a thread takes the part whose number is next for it under the mutex, which
 * orders the engine's preparation before the workgroups. The last thread to leave a part (acquire-release countdown) unlinks it
 * and, if it was the launch's last part, hands the launch back with a release push that the engine pairs with an acquire.
 *
 * An inline launch is run by the engine and, where helpers look for work, by these: a part by one thread, at the same time as the others.
 * So its counters need no instructions that lock anything; and whoever runs a part sets them, so that what a helper works with stays in
 * its core's caches from one operator to the next.
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu_device.h"
#include "helpers.h"
#include "nodes.h"
#include "spin.h"

#define BACKOFF_SLEEP_NS 20000000 /* the status word is polled at least this often */
#define JOBS_MAX 64               /* parts that a thread has begun; more than that wait for one of them to end */

/* ---- slices ---- */

/* Where a thread stands in one run. */
struct cursor {
    uint32_t slice;
    bool holds, finished;
};

static bool slice_ready(const struct launch_run *r, const struct slice *s, uint64_t epoch)
{
    /* acquire, for the data; sequentially consistent, for the argument about sleeping above: the same instruction on x86 and
     * arm64 */
    for (uint32_t i = 0; i < s->wait_count; i++)
        if (atomic_load_explicit(&r->flags[s->wait_first + i * s->wait_stride], memory_order_seq_cst) < epoch)
            return false;
    return true;
}

void cpu_device_signal(struct device *d)
{
    struct cpu_device *cpu = d->state;

    if (!atomic_load_explicit(&cpu->sleepers, memory_order_seq_cst))
        return;
    atomic_fetch_add_explicit(&cpu->signals, 1, memory_order_seq_cst);
    (void)syscall(SYS_futex, &cpu->signals, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void flag_raise(struct launch *l, const struct launch_run *from, int rank, uint32_t flag)
{
    struct launch_run *r = &l->runs[rank];

    if (!r->device) {
        nodes_flag(l, from, rank, flag);
        return;
    }
    if (l->inline_) { /* nobody sleeps for it */
        atomic_store_explicit(&r->flags[flag], l->epoch, memory_order_release);
        return;
    }
    atomic_store_explicit(&r->flags[flag], l->epoch, memory_order_seq_cst);
    cpu_device_signal(r->device);
}

/* A flag that was raised by a rank on another node. */
void device_cpu_flag_raise(struct device *d, _Atomic uint64_t *flag, uint64_t epoch)
{
    atomic_store_explicit(flag, epoch, memory_order_seq_cst);
    cpu_device_signal(d);
}

/* The next slices of a run; `alone`: no other thread takes any. */
static uint32_t slices_next(struct launch_run *r, uint32_t count, bool alone)
{
    if (!alone)
        return atomic_fetch_add_explicit(&r->next, count, memory_order_relaxed);
    uint32_t first = atomic_load_explicit(&r->next, memory_order_relaxed);
    atomic_store_explicit(&r->next, first + count, memory_order_relaxed);
    return first;
}

/* How many slices of a group are left when this one has been done. */
static uint32_t group_leave(struct launch_run *r, uint32_t group, bool alone)
{
    if (!alone)
        return atomic_fetch_sub_explicit(&r->group_left[group], 1, memory_order_acq_rel) - 1;
    uint32_t left = atomic_load_explicit(&r->group_left[group], memory_order_relaxed) - 1;
    atomic_store_explicit(&r->group_left[group], left, memory_order_relaxed);
    return left;
}

/* A slice is done: count down its group, and raise the group's flag if it was the last. */
static void slice_signal(struct launch *l, struct launch_run *r, const struct slice *s, bool alone)
{
    if (s->group == SLICE_NO_GROUP || group_leave(r, s->group, alone))
        return;
    const struct signal_group *g = &r->plan->groups[s->group];
    if (!(g->dst & SLICE_DST_SET)) {
        flag_raise(l, r, g->dst, g->flag);
        return;
    }
    for (int i = 1; i <= l->nranks; i++) { /* beginning with the next rank, as the puts do */
        int rank = (r->run.rank + i) % l->nranks;
        if (plan_reaches(r->plan, g->dst, rank))
            flag_raise(l, r, rank, g->flag);
    }
}

/* How many slices, from one on that this thread has taken, it executes together. If there are more they are taken, too: nobody else
 * takes slices of the run. Between nodes each is to leave as soon as it is done. */
static uint32_t slices_take(const struct launch *l, struct launch_run *r, uint32_t first, const struct workgroup *wg)
{
    const struct op *op = op_get(l->problem->op);
    uint32_t count = 1;

    if (wg->alone && !l->nodes_number && op->together)
        count = op->together(&r->run, first);
    if (count > 1)
        (void)slices_next(r, count - 1, true);
    return count;
}

/* Slices that were executed together share the time by their sizes, one after the other, so that all of them is what it took. */
static void times_note(const struct slice s[], struct slice_time t[], uint32_t count, unsigned wg_index, uint64_t start_ns,
                       uint64_t end_ns)
{
    double all = 0, done = 0;

    for (uint32_t i = 0; i < count; i++)
        all += (double)s[i].rows * s[i].cols;
    for (uint32_t i = 0; i < count; i++) {
        t[i].workgroup = wg_index;
        t[i].start_ns = i ? t[i - 1].end_ns : start_ns;
        done += (double)s[i].rows * s[i].cols;
        t[i].end_ns = i + 1 < count ? start_ns + (uint64_t)((double)(end_ns - start_ns) * done / all) : end_ns;
    }
}

/* *now_ns: what the clock said last, if nothing has been waited for since; 0: it is to be looked at. */
static int slices_run(struct launch *l, struct launch_run *r, uint32_t first, struct workgroup *wg, unsigned wg_index,
                      uint64_t *now_ns)
{
    const struct op *op = op_get(l->problem->op);
    const struct slice *s = &r->plan->slices[first];
    uint32_t count = slices_take(l, r, first, wg);
    struct error e;
    int status = 0;

    error_clear(&e);
    uint64_t start_ns = *now_ns ? *now_ns : clock_ns();
    if (count > 1)
        status = op->slices(&r->run, first, count, wg, &e);
    else if (s->kind != SLICE_WAIT)
        status = op->slice(&r->run, s, wg, &e);
    *now_ns = s->kind == SLICE_WAIT ? start_ns : clock_ns();
    times_note(s, &r->times[l->turn][first], count, wg_index, start_ns, *now_ns);
    if (status) {
        launch_fail(l, r->run.rank, &e);
        return status;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (l->nodes_number)
            nodes_put(l, r, first + i); /* before its flag */
        slice_signal(l, r, &s[i], wg->alone);
    }
    if (l->nodes_number)
        *now_ns = 0; /* that took a while */
    return 0;
}

/* Go on with one run as far as it goes. True if something was done. */
static bool run_advance(struct launch *l, struct launch_run *r, struct cursor *c, struct workgroup *wg, unsigned wg_index)
{
    bool progress = false;
    uint64_t now_ns = 0;

    while (!atomic_load_explicit(l->status, memory_order_relaxed)) {
        if (!c->holds) {
            c->slice = slices_next(r, 1, wg->alone);
            if (c->slice >= r->plan->nslices) {
                c->finished = true;
                return true;
            }
            c->holds = true;
        }
        if (!slice_ready(r, &r->plan->slices[c->slice], l->epoch)) {
            if (!r->times[l->turn][c->slice].wait_ns)
                r->times[l->turn][c->slice].wait_ns = clock_ns();
            return progress;
        }
        c->holds = false;
        progress = true;
        if (slices_run(l, r, c->slice, wg, wg_index, &now_ns))
            return true;
    }
    return progress;
}

/* ---- parts ---- */

/* A part that a thread has begun. */
struct job {
    struct launch_part *part;
    int finished; /* of its runs */
    struct cursor cursors[FCC_MAX_RANKS];
};

struct cpu_jobs {
    int n;
    struct job job[JOBS_MAX];
};

static void job_begin(struct job *j, struct launch_part *p)
{
    j->part = p;
    j->finished = 0;
    memset(j->cursors, 0, (size_t)p->nruns * sizeof(j->cursors[0]));
}

static bool job_is_over(const struct job *j)
{
    return j->finished == j->part->nruns || atomic_load_explicit(j->part->launch->status, memory_order_relaxed);
}

/* Go on with it as far as it goes. True if something was done. */
static bool job_advance(struct job *j, struct workgroup *wg, unsigned wg_index)
{
    const struct launch_part *p = j->part;
    bool progress = false;

    for (int i = 0; i < p->nruns; i++) {
        if (j->cursors[i].finished)
            continue;
        progress |= run_advance(p->launch, &p->launch->runs[p->ranks[i]], &j->cursors[i], wg, wg_index);
        j->finished += j->cursors[i].finished;
    }
    return progress;
}

static bool job_is_ready(const struct job *j)
{
    const struct launch_part *p = j->part;

    for (int i = 0; i < p->nruns; i++) {
        const struct launch_run *r = &p->launch->runs[p->ranks[i]];
        if (j->cursors[i].holds && slice_ready(r, &r->plan->slices[j->cursors[i].slice], p->launch->epoch))
            return true;
    }
    return atomic_load_explicit(p->launch->status, memory_order_relaxed) != 0;
}

/* `next`: the number of the part that would be taken besides; UINT64_MAX: none would. */
static void backoff_sleep(struct cpu_device *cpu, const struct job *jobs, int njobs, uint64_t next)
{
    const struct timespec limit = {.tv_nsec = BACKOFF_SLEEP_NS};

    atomic_fetch_add_explicit(&cpu->sleepers, 1, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&cpu->signals, memory_order_seq_cst);
    bool ready = atomic_load_explicit(&cpu->submitted, memory_order_seq_cst) > next;
    for (int i = 0; i < njobs && !ready; i++)
        ready = job_is_ready(&jobs[i]);
    if (!ready)
        (void)syscall(SYS_futex, &cpu->signals, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    atomic_fetch_sub_explicit(&cpu->sleepers, 1, memory_order_relaxed);
}

static void part_leave(struct cpu_device *cpu, struct launch_part *p)
{
    struct launch *l = p->launch;

    if (atomic_fetch_sub_explicit(&p->workgroups_left, 1, memory_order_acq_rel) != 1)
        return;
    (void)pthread_mutex_lock(&cpu->lock);
    TAILQ_REMOVE(&cpu->queue, p, link);
    (void)pthread_mutex_unlock(&cpu->lock);
    if (atomic_fetch_sub_explicit(&l->parts_left, 1, memory_order_acq_rel) != 1)
        return;
    if (l->nodes_number)
        nodes_launch_left(l);
    else
        worker_launch_finished(l->worker, l);
}

/* The part with this number; NULL: it has not come. */
static struct launch_part *part_find(struct cpu_device *cpu, uint64_t number)
{
    struct launch_part *p = NULL;

    if (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) <= number)
        return NULL;
    (void)pthread_mutex_lock(&cpu->lock);
    TAILQ_FOREACH(p, &cpu->queue, link)
        if (p->number == number)
            break;
    (void)pthread_mutex_unlock(&cpu->lock);
    return p;
}

/* Wait for it; NULL if the device closes. */
static struct launch_part *part_await(struct cpu_device *cpu, uint64_t number, uint32_t spin_us)
{
    struct spin spin = {0};

    while (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) <= number && spin_once(&spin, spin_us))
        ;
    (void)pthread_mutex_lock(&cpu->lock);
    while (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) <= number && !cpu->stop)
        (void)pthread_cond_wait(&cpu->more, &cpu->lock);
    (void)pthread_mutex_unlock(&cpu->lock);
    return part_find(cpu, number);
}

/* Go on with all jobs; those that are over leave. True if something was done. */
static bool jobs_advance(struct cpu_thread *t)
{
    struct cpu_jobs *jobs = t->jobs;
    bool progress = false;
    int kept = 0;

    for (int i = 0; i < jobs->n; i++) {
        struct job *j = &jobs->job[i];
        progress |= !job_is_over(j) && job_advance(j, &t->workgroup, t->index);
        if (job_is_over(j)) {
            part_leave(t->device->state, j->part);
            progress = true;
            continue;
        }
        if (kept != i)
            jobs->job[kept] = *j;
        kept++;
    }
    jobs->n = kept;
    return progress;
}

void *cpu_thread_main(void *arg)
{
    struct cpu_thread *t = arg;
    struct cpu_device *cpu = t->device->state;
    struct cpu_jobs *jobs = t->jobs;
    uint32_t spin_us = t->device->worker->config.spin_us;
    struct launch_part *p;
    struct spin spin = {0};

    for (uint64_t number = 0; (p = part_await(cpu, number, spin_us)); spin_reset(&spin)) {
        job_begin(&jobs->job[jobs->n++], p);
        number++;
        while (jobs->n > 0) {
            if (jobs_advance(t)) {
                spin_reset(&spin);
            } else if (jobs->n < JOBS_MAX && (p = part_find(cpu, number))) {
                job_begin(&jobs->job[jobs->n++], p);
                number++;
            } else if (!spin_once(&spin, spin_us)) {
                backoff_sleep(cpu, jobs->job, jobs->n, jobs->n < JOBS_MAX ? number : UINT64_MAX);
            }
        }
    }
    workgroup_release(&t->workgroup);
    return NULL;
}

struct cpu_jobs *cpu_jobs_new(void)
{
    return calloc(1, sizeof(struct cpu_jobs));
}

/* ---- inline launches ---- */

/* A part as far as it goes. True if it is over. */
static bool inline_part_run(struct launch *l, struct launch_part *p)
{
    struct cpu_device *cpu = p->device->state;
    struct cpu_thread *t = &cpu->engine;
    struct job *j = &t->jobs->job[0];

    if (p->begun_epoch != l->epoch) {
        p->begun_epoch = l->epoch;
        for (int i = 0; i < p->nruns; i++)
            launch_run_reset(l, p->ranks[i]);
        job_begin(j, p);
    }
    if (!job_is_over(j))
        (void)job_advance(j, &t->workgroup, t->index);
    return job_is_over(j);
}

static bool inline_parts_run(void *launch, int i)
{
    struct launch *l = launch;
    bool over = true;

    for (; i < l->nparts; i += HELPERS_PARTS)
        over &= inline_part_run(l, &l->parts[i]);
    return over;
}

void cpu_inline_execute(struct launch *l, struct helpers *helpers, bool rouse)
{
    int n = l->nparts < HELPERS_PARTS ? l->nparts : HELPERS_PARTS;
    bool over = helpers != NULL;

    if (helpers)
        helpers_run(helpers, (1u << n) - 1, rouse, inline_parts_run, l);
    while (!over) {
        over = true;
        for (int i = 0; i < n; i++)
            over &= inline_parts_run(l, i);
    }
}
