/* SPDX-License-Identifier: MIT
 *
 * execute.c - the threads of a cpu device.
 *
 * Every thread takes all parts of the device, in order. Within a part the threads take slices of its runs (one run per rank on this device) by
 * the run's counter, so each slice is executed once. A thread whose slice waits for flags keeps the slice and goes on with the part's other
 * runs. When none of them can go on, it takes the next part as well. So a part that waits for another node does not block the parts behind it,
 * and the nodes need no common order of communicators. A thread with nothing to do backs off: it spins, yields its core, then sleeps on the
 * device's signal word. Threads that raise a flag for this device, or give it a part, increment that word.
 *
 * No lost wake-up. The sleeper increments `sleepers`, reads the signal word, checks the flags and the queue again, and sleeps if the word is
 * unchanged. The raiser stores the flag, then reads `sleepers`, then increments the word. All of these are sequentially consistent, so either
 * the raiser sees the sleeper or the sleeper sees the flag. Sleeps are bounded anyway, to poll the status word.
 *
 * The queue. The engine appends under the mutex. A thread takes the part with its next number under the mutex, which orders the engine's
 * preparation before the workgroups. The last thread to leave a part (acquire-release countdown) unlinks it. If it was the launch's last part,
 * that thread hands the launch back with a release push, which the engine pairs with an acquire, and tells the ranks (launch_end()).
 *
 * Launches in steps (over nodes) are run by the engine alone, which is one more thread of each device (launch.h: stepwise). No thread of the
 * device takes part in them, so they are not in the queue.
 *
 * Inline launches are run by the engine and its helpers at the same time. One thread runs a part, or several share its slices in fixed turns,
 * so a helper's data stays in its core's caches from one operator to the next. A thread that has a run to itself counts without locked
 * instructions.
 *
 * No deadlock. Each thread executes its slices, however assigned, in the plan's order. So of the unfinished slices, one with the lowest level
 * is its thread's next one. A thread with several shares goes round them.
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/worker/device/cpu/threads.h"
#include "daemon/worker/device/helpers.h"
#include "proto/base/clock.h"
#include "proto/base/spin.h"

#define BACKOFF_SLEEP_NS 20000000 /* the status word is polled at least this often */

/* ---- slices ---- */

/* A thread's position in one run. */
struct cursor {
    uint32_t slice;
    uint32_t next,
        step; /* the thread takes every step-th slice, `next` is the next one. step 0: it takes slices by the run's counter */
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
        l->ops->flag(l, from, rank, flag);
        return;
    }
    if (l->inline_) { /* no thread sleeps while an inline launch runs */
        atomic_store_explicit(&r->flags[flag], l->epoch, memory_order_release);
        return;
    }
    atomic_store_explicit(&r->flags[flag], l->epoch, memory_order_seq_cst);
    cpu_device_signal(r->device);
}

/* A flag that was raised by a rank on another node. */
void device_cpu_flag_raise(struct device *d, _Atomic uint64_t *flag, uint64_t epoch)
{
    const struct cpu_device *cpu = d->state;

    atomic_store_explicit(flag, epoch, memory_order_seq_cst);
    cpu_device_signal(d);
    if (atomic_load_explicit(&cpu->stepping, memory_order_seq_cst))
        worker_wake(d->worker);
}

/* Count down a finished slice's group. True if it was the last of its group; the counter is reset then. */
static bool group_leave(struct launch_run *r, uint32_t group, bool alone)
{
    uint32_t left;

    if (alone) {
        left = atomic_load_explicit(&r->group_left[group], memory_order_relaxed) - 1;
        atomic_store_explicit(&r->group_left[group], left, memory_order_relaxed);
    } else {
        left = atomic_fetch_sub_explicit(&r->group_left[group], 1, memory_order_acq_rel) - 1;
    }
    if (!left)
        atomic_store_explicit(&r->group_left[group], r->plan->groups[group].slices, memory_order_relaxed);
    return !left;
}

void cpu_slice_signal(struct launch *l, struct launch_run *r, const struct slice *s, bool alone)
{
    if (s->group == SLICE_NO_GROUP || !group_leave(r, s->group, alone))
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

static void slice_take(struct launch *l, struct launch_run *r, struct cursor *c)
{
    do {
        c->slice = c->step ? c->next : atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        c->next += c->step;
    } while (r->early && c->slice < CPU_EARLY_SLICES && r->early >> c->slice & 1u);
    c->finished = c->slice >= r->plan->nslices;
    c->holds = !c->finished;
    if (c->holds)
        r->times[l->turn][c->slice].wait_ns = 0;
}

/* How many slices the thread executes together, beginning with one that it has taken; takes the others, too. Over nodes only one, so that it is
 * sent as soon as it is done. */
static uint32_t slices_take(const struct launch *l, const struct launch_run *r, struct cursor *c)
{
    uint32_t count = c->step == 1 && !r->early && !r->staged && !l->nodes_number ? cpu_slices_together(&r->run, c->slice) : 1;

    c->next += count - 1;
    return count;
}

void cpu_times_note(const struct slice s[], struct slice_time t[], uint32_t count, unsigned wg_index, uint64_t start_ns,
                    uint64_t end_ns)
{
    double all = 0, done = 0;

    for (uint32_t i = 0; i < count; i++)
        all += (double)s[i].rows * s[i].cols;
    for (uint32_t i = 0; i < count; i++) {
        t[i].workgroup = wg_index;
        t[i].wait_ns = i ? 0 : t[0].wait_ns;
        t[i].start_ns = i ? t[i - 1].end_ns : start_ns;
        done += (double)s[i].rows * s[i].cols;
        t[i].end_ns = i + 1 < count ? start_ns + (uint64_t)((double)(end_ns - start_ns) * done / all) : end_ns;
    }
}

/* Whether the slice has been computed into staging memory (early.c), and has only to be put. */
static bool is_staged(const struct launch_run *r, uint32_t slice)
{
    return slice < CPU_EARLY_SLICES && r->staged >> slice & 1u;
}

static int staged_put(const struct launch_run *r, uint32_t slice, struct workgroup *wg, struct error *e)
{
    struct slice put = r->plan->slices[slice];

    put.kind = SLICE_PUT;
    return cpu_slice(&r->run, &put, wg, e);
}

/* *now_ns: the time, if the thread has not waited since it read the clock; 0: read it again. */
static int slices_run(struct launch *l, struct launch_run *r, struct cursor *c, struct workgroup *wg, unsigned wg_index,
                      uint64_t *now_ns)
{
    const uint32_t first = c->slice, count = slices_take(l, r, c);
    const struct slice *s = &r->plan->slices[first];
    struct error e;
    int status = 0;

    error_clear(&e);
    uint64_t start_ns = *now_ns ? *now_ns : clock_ns();
    if (count > 1)
        status = cpu_slices(&r->run, first, count, wg, &e);
    else if (is_staged(r, first))
        status = staged_put(r, first, wg, &e);
    else if (s->kind != SLICE_WAIT)
        status = cpu_slice(&r->run, s, wg, &e);
    *now_ns = s->kind == SLICE_WAIT ? start_ns : clock_ns();
    if (!is_staged(r, first)) /* a staged slice's time was noted when it was computed */
        cpu_times_note(s, &r->times[l->turn][first], count, wg_index, start_ns, *now_ns);
    if (status) {
        launch_fail(l, r->run.rank, &e);
        return status;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (l->nodes_number)
            l->ops->put(l, r, first + i); /* before its flag */
        cpu_slice_signal(l, r, &s[i], wg->alone);
    }
    if (l->nodes_number)
        *now_ns = 0; /* putting took time */
    return 0;
}

/* Whether executing the slice only tells the proxy where its data lies. */
static bool is_only_sent(const struct launch *l, const struct launch_run *r, const struct slice *s)
{
    struct put_area area = {.from = NULL};

    if (s->kind == SLICE_COMPUTE_PUT && !(s->dst & SLICE_DST_SET) && !l->runs[s->dst].device)
        cpu_slice_area(&r->run, s, s->dst, &area);
    return area.from;
}

/* Run the thread's slices of one run until one has to wait, `most` of them at most besides waits; of launches that the engine runs, also besides
 * those that are only sent, so that they leave together. True if any was executed. */
static bool run_advance(struct launch *l, struct launch_run *r, struct cursor *c, struct cpu_thread *t, uint32_t most)
{
    bool progress = false;
    uint64_t now_ns = 0;

    for (uint32_t n = 0; !atomic_load_explicit(l->status, memory_order_relaxed);) {
        if (!c->holds)
            slice_take(l, r, c);
        if (c->finished)
            return true;
        const struct slice *s = &r->plan->slices[c->slice];
        const bool is_free = s->kind == SLICE_WAIT || (l->stepwise && is_only_sent(l, r, s));
        if (n >= most && !(is_free && most))
            return progress;
        if (s->kind != SLICE_WAIT && progress && most == 1 && !l->ops->has_room(l))
            return progress;
        if (!slice_ready(r, s, l->epoch)) {
            if (!r->times[l->turn][c->slice].wait_ns)
                r->times[l->turn][c->slice].wait_ns = clock_ns();
            return progress;
        }
        c->holds = false;
        progress = true;
        n += !is_free;
        if (slices_run(l, r, c, &t->workgroup, t->index, &now_ns))
            return true;
    }
    return progress;
}

/* ---- parts ---- */

/* A part that a thread has begun. */
struct job {
    struct launch_part *part;
    uint64_t serial; /* inline: launch.serial */
    int finished;    /* number of runs that this thread has finished */
    struct cursor cursors[FCC_MAX_RANKS];
};

struct cpu_jobs {
    int n;
    struct job job[];
};

/* first, step: the slices of each run that the thread takes (struct cursor). */
static void job_begin(struct job *j, struct launch_part *p, uint32_t first, uint32_t step)
{
    j->part = p;
    j->serial = p->launch->serial;
    j->finished = 0;
    for (int i = 0; i < p->nruns; i++)
        j->cursors[i] = (struct cursor){.next = first, .step = step};
}

static bool job_is_over(const struct job *j)
{
    return j->finished == j->part->nruns || atomic_load_explicit(j->part->launch->status, memory_order_relaxed);
}

/* Whether the part's triggers find room. The engine may be the one who takes them, and must not wait for that. */
static bool may_push(const struct job *j)
{
    return j->part->launch->ops->has_room(j->part->launch);
}

/* Run the thread's slices of all runs until each has to wait, `most` of each at most. True if any was executed. `most` is 1 for the engine, which
 * looks for room before each slice: what it has pushed may have filled the FIFO. */
static bool job_advance(struct job *j, struct cpu_thread *t, uint32_t most)
{
    const struct launch_part *p = j->part;
    bool progress = false;

    for (int i = 0; i < p->nruns; i++) {
        if (j->cursors[i].finished)
            continue;
        if (most == 1 && !may_push(j))
            break;
        progress |= run_advance(p->launch, &p->launch->runs[p->ranks[i]], &j->cursors[i], t, most);
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

/* Whether each of the job's runs has ended or holds a slice, whose flags it looked at. */
static bool job_waits(const struct job *j)
{
    for (int i = 0; i < j->part->nruns; i++)
        if (!j->cursors[i].finished && !j->cursors[i].holds)
            return false;
    return true;
}

/* next: number of the part that the thread would also take. UINT64_MAX: it takes no more. */
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
    if (p->is_queued) {
        (void)pthread_mutex_lock(&cpu->lock);
        TAILQ_REMOVE(&cpu->queue, p, link);
        (void)pthread_mutex_unlock(&cpu->lock);
    }
    if (atomic_fetch_sub_explicit(&l->parts_left, 1, memory_order_acq_rel) == 1)
        l->ops->ended(l);
}

/* The part with this number. NULL: it is not queued yet. */
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

/* Wait for the part with this number. NULL: the device closes. */
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

/* Go on with all jobs, with `most` slices of each run at most, and leave those that are over. True if any slice was executed. */
static bool jobs_advance(struct cpu_thread *t, uint32_t most)
{
    struct cpu_jobs *jobs = t->jobs;
    bool progress = false;
    int kept = 0;

    for (int i = 0; i < jobs->n; i++) {
        struct job *j = &jobs->job[i];
        progress |= !job_is_over(j) && job_advance(j, t, most);
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
        job_begin(&jobs->job[jobs->n++], p, 0, t->workgroup.alone ? 1 : 0);
        number++;
        while (jobs->n > 0) {
            if (jobs_advance(t, UINT32_MAX)) {
                spin_reset(&spin);
            } else if (jobs->n < CPU_JOBS_MAX && (p = part_find(cpu, number))) {
                job_begin(&jobs->job[jobs->n++], p, 0, t->workgroup.alone ? 1 : 0);
                number++;
            } else if (!spin_once(&spin, spin_us)) {
                backoff_sleep(cpu, jobs->job, jobs->n, jobs->n < CPU_JOBS_MAX ? number : UINT64_MAX);
            }
        }
    }
    workgroup_release(&t->workgroup);
    return NULL;
}

struct cpu_jobs *cpu_jobs_new(int room)
{
    return calloc(1, sizeof(struct cpu_jobs) + (size_t)room * sizeof(struct job));
}

/* ---- launches that the engine runs in steps ----
 *
 * The engine is one more thread of each device, which takes launches that no other thread does. It runs one slice of each run and then goes
 * round its loop, where it sends what the slice has stored, receives, and serves its clients. */

bool cpu_steps_begin(struct launch *l)
{
    for (int i = 0; i < l->nparts; i++)
        if (((struct cpu_device *)l->parts[i].device->state)->steps.jobs->n == CPU_STEPS_MAX)
            return false;
    for (int i = 0; i < l->nparts; i++) {
        struct launch_part *p = &l->parts[i];
        struct cpu_device *cpu = p->device->state;
        struct cpu_jobs *jobs = cpu->steps.jobs;
        p->is_queued = false;
        atomic_store_explicit(&p->workgroups_left, 1, memory_order_relaxed);
        job_begin(&jobs->job[jobs->n++], p, 0, 1);
        atomic_store_explicit(&cpu->stepping, (uint32_t)jobs->n, memory_order_seq_cst);
    }
    return true;
}

bool device_cpu_steps_poll(struct worker *w)
{
    bool any = false;

    for (int i = 0; i < w->ndevices; i++) {
        struct cpu_device *cpu = w->devices[i].state;
        if (!cpu || !cpu->steps.jobs->n)
            continue;
        any |= jobs_advance(&cpu->steps, may_push(&cpu->steps.jobs->job[0]) ? 1 : 0); /* 0: those that have failed are left */
        atomic_store_explicit(&cpu->stepping, (uint32_t)cpu->steps.jobs->n, memory_order_relaxed);
    }
    return any;
}

bool device_cpu_steps_ready(const struct worker *w)
{
    for (int i = 0; i < w->ndevices; i++) {
        const struct cpu_device *cpu = w->devices[i].state;
        for (int n = 0; cpu && n < cpu->steps.jobs->n; n++) {
            const struct job *j = &cpu->steps.jobs->job[n];
            bool ended = atomic_load_explicit(j->part->launch->status, memory_order_relaxed);
            if (ended || (may_push(j) && (job_is_ready(j) || !job_waits(j))))
                return true;
        }
    }
    return false;
}

/* ---- inline launches ---- */

/* The engine's timers do not run during an inline launch, so the time limit is checked here. Only an error in a plan could exceed it, because
 * all ranks have come. */
#define VAIN_LOOKS 1024u /* a thread's vain looks between two readings of the clock; each takes 20 ns to 50 us */

static void inline_time_look(struct launch *l, const struct launch_part *p)
{
    uint32_t limit_ms = l->comm->time_limit_ms;
    struct error e;

    if (clock_ns() - l->began_ns <= (uint64_t)limit_ms * 1000000u)
        return;
    (void)error_set(&e, -ETIMEDOUT, "within %u ms not all that its plan waits for has come", limit_ms);
    launch_fail(l, p->ranks[0], &e);
}

/* Run a share of a part until it has to wait. True if the share is over. */
static bool inline_share_run(struct launch *l, struct launch_part *p, int share)
{
    struct cpu_device *cpu = p->device->state;
    struct cpu_thread *t = &cpu->inline_[share];
    struct job *j = &t->jobs->job[0];

    if (j->serial != l->serial) {
        t->workgroup.alone = l->shares == 1;
        job_begin(j, p, (uint32_t)share, (uint32_t)l->shares);
    }
    if (!job_is_over(j) && !job_advance(j, t, UINT32_MAX) && ++t->vain % VAIN_LOOKS == 0)
        inline_time_look(l, p);
    return job_is_over(j);
}

/* Run helper i's share, always the same share of the same part. The engine's is the first share of the first part. */
static bool inline_run(void *launch, int i)
{
    struct launch *l = launch;
    bool over = true;

    for (; i < l->nparts * l->shares; i += HELPERS_PARTS)
        over &= inline_share_run(l, &l->parts[i % l->nparts], i / l->nparts);
    return over;
}

void cpu_inline_execute(struct launch *l, struct helpers *helpers, bool rouse)
{
    int all = l->nparts * l->shares, n = all < HELPERS_PARTS ? all : HELPERS_PARTS;
    bool over = helpers != NULL;

    if (helpers)
        helpers_run(helpers, (1u << n) - 1, rouse, inline_run, l);
    while (!over) {
        over = true;
        for (int i = 0; i < n; i++)
            over &= inline_run(l, i);
    }
}
