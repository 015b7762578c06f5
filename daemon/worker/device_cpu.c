/* SPDX-License-Identifier: MIT
 *
 * device_cpu.c - workgroups are threads, symmetric memory is shared memory, a put is a store.
 *
 * A device has W threads. They take the device's parts in order, each thread every part; within a part they take
 * the slices of its runs (one run per rank on this device) through the run's counter, so each slice is done once. A thread that
 * holds a slice whose flags have not come keeps it and looks at the part's other runs; when none of them can go on, it
 * backs off: spins, gives its core away, then sleeps on the device's signal word, which whoever raises a flag for this
 * device increments.
 *
 * Sleeping loses no signal: the sleeper announces itself (sleepers), reads the signal word, looks at the flags again, and
 * sleeps if the word is still the same. The raiser stores the flag, then reads `sleepers`, then moves the word. All of these
 * are sequentially consistent, so either the raiser sees the sleeper or the sleeper sees the flag. Sleeps are bounded
 * anyway, to poll the status word.
 *
 * The queue: the engine appends under the mutex; a thread takes the part whose number is next for it under the mutex, which
 * orders the engine's preparation before the workgroups. The last thread to leave a part (acquire-release countdown) unlinks it
 * and, if it was the launch's last part, hands the launch back with a release push that the engine pairs with an acquire.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blas.h"
#include "device.h"
#include "spin.h"

#define BACKOFF_SLEEP_NS 20000000 /* the status word is polled at least this often */

struct cpu_thread {
    struct device *device;
    unsigned index;
    pthread_t thread;
    struct workgroup workgroup;
};

struct cpu_device {
    pthread_mutex_t lock; /* queue, stop */
    pthread_cond_t more;
    TAILQ_HEAD(part_head, launch_part) queue;
    _Atomic uint64_t submitted; /* parts ever queued */
    bool stop;
    _Atomic uint32_t signals; /* futex: moved when a flag was raised for this device and somebody sleeps */
    _Atomic uint32_t sleepers;
    struct workgroup engine; /* scratch memory for run_inline */
    unsigned nthreads;
    struct cpu_thread threads[];
};

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

static void device_signal(struct device *d)
{
    struct cpu_device *cpu = d->state;

    if (!atomic_load_explicit(&cpu->sleepers, memory_order_seq_cst))
        return;
    atomic_fetch_add_explicit(&cpu->signals, 1, memory_order_seq_cst);
    (void)syscall(SYS_futex, &cpu->signals, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void flag_raise(struct launch *l, int rank, uint32_t flag)
{
    struct launch_run *r = &l->runs[rank];

    atomic_store_explicit(&r->flags[flag], l->epoch, memory_order_seq_cst);
    device_signal(r->device);
}

/* A slice is done: count down its group, and raise the group's flag if it was the last. */
static void slice_signal(struct launch *l, struct launch_run *r, const struct slice *s)
{
    if (s->group == SLICE_NO_GROUP)
        return;
    if (atomic_fetch_sub_explicit(&r->group_left[s->group], 1, memory_order_acq_rel) != 1)
        return;
    const struct signal_group *g = &r->plan->groups[s->group];
    if (g->dst != SLICE_DST_ALL) {
        flag_raise(l, g->dst, g->flag);
        return;
    }
    for (int i = 1; i <= l->nranks; i++) /* beginning with the next rank, as the puts do */
        flag_raise(l, (r->run.rank + i) % l->nranks, g->flag);
}

static int slice_run(struct launch *l, struct launch_run *r, uint32_t index, struct workgroup *wg, unsigned wg_index)
{
    const struct slice *s = &r->plan->slices[index];
    struct slice_time *t = &r->times[index];
    struct error e = {0};

    t->workgroup = wg_index;
    t->start_ns = clock_ns();
    int status = s->kind == SLICE_WAIT ? 0 : op_get(l->problem->op)->slice(&r->run, s, wg, &e);
    t->end_ns = clock_ns();
    if (status) {
        launch_fail(l, r->run.rank, &e);
        return status;
    }
    slice_signal(l, r, s);
    return 0;
}

/* Go on with one run as far as it goes. True if something was done. */
static bool run_advance(struct launch *l, struct launch_run *r, struct cursor *c, struct workgroup *wg, unsigned wg_index)
{
    bool progress = false;

    while (!atomic_load_explicit(l->status, memory_order_relaxed)) {
        if (!c->holds) {
            c->slice = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
            if (c->slice >= r->plan->nslices) {
                c->finished = true;
                return true;
            }
            c->holds = true;
        }
        if (!slice_ready(r, &r->plan->slices[c->slice], l->epoch)) {
            if (!r->times[c->slice].wait_ns)
                r->times[c->slice].wait_ns = clock_ns();
            return progress;
        }
        c->holds = false;
        progress = true;
        if (slice_run(l, r, c->slice, wg, wg_index))
            return true;
    }
    return progress;
}

/* ---- waiting ---- */

static bool anything_ready(const struct launch *l, const uint16_t *ranks, int nruns, const struct cursor *cursors)
{
    for (int i = 0; i < nruns; i++) {
        const struct launch_run *r = &l->runs[ranks[i]];
        if (cursors[i].holds && slice_ready(r, &r->plan->slices[cursors[i].slice], l->epoch))
            return true;
    }
    return atomic_load_explicit(l->status, memory_order_relaxed) != 0;
}

static void backoff_sleep(struct cpu_device *cpu, const struct launch *l, const uint16_t *ranks, int nruns,
                          const struct cursor *cursors)
{
    const struct timespec limit = {.tv_nsec = BACKOFF_SLEEP_NS};

    atomic_fetch_add_explicit(&cpu->sleepers, 1, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&cpu->signals, memory_order_seq_cst);
    if (!anything_ready(l, ranks, nruns, cursors))
        (void)syscall(SYS_futex, &cpu->signals, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    atomic_fetch_sub_explicit(&cpu->sleepers, 1, memory_order_relaxed);
}

/* Run the given ranks' plans until they are finished or the status word says to leave. */
static void ranks_execute(struct device *d, struct launch *l, const uint16_t *ranks, int nruns, struct workgroup *wg,
                          unsigned wg_index)
{
    struct cpu_device *cpu = d->state;
    struct cursor cursors[FCC_MAX_RANKS] = {0};
    struct spin spin = {0};
    int finished = 0;

    while (finished < nruns && !atomic_load_explicit(l->status, memory_order_relaxed)) {
        bool progress = false;
        for (int i = 0; i < nruns; i++) {
            if (cursors[i].finished)
                continue;
            progress |= run_advance(l, &l->runs[ranks[i]], &cursors[i], wg, wg_index);
            finished += cursors[i].finished;
        }
        if (progress)
            spin_reset(&spin);
        else if (!spin_once(&spin, d->worker->config.spin_us))
            backoff_sleep(cpu, l, ranks, nruns, cursors);
    }
}

/* ---- threads ---- */

static void part_leave(struct cpu_device *cpu, struct launch_part *p)
{
    struct launch *l = p->launch;

    if (atomic_fetch_sub_explicit(&p->workgroups_left, 1, memory_order_acq_rel) != 1)
        return;
    (void)pthread_mutex_lock(&cpu->lock);
    TAILQ_REMOVE(&cpu->queue, p, link);
    (void)pthread_mutex_unlock(&cpu->lock);
    if (atomic_fetch_sub_explicit(&l->parts_left, 1, memory_order_acq_rel) == 1)
        worker_launch_finished(l->worker, l);
}

/* The part with this number, or NULL if the device closes. */
static struct launch_part *part_await(struct cpu_device *cpu, uint64_t number, uint32_t spin_us)
{
    struct launch_part *p = NULL;
    struct spin spin = {0};

    while (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) <= number && spin_once(&spin, spin_us))
        ;
    (void)pthread_mutex_lock(&cpu->lock);
    while (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) <= number && !cpu->stop)
        (void)pthread_cond_wait(&cpu->more, &cpu->lock);
    if (atomic_load_explicit(&cpu->submitted, memory_order_relaxed) > number)
        TAILQ_FOREACH(p, &cpu->queue, link)
            if (p->number == number)
                break;
    (void)pthread_mutex_unlock(&cpu->lock);
    return p;
}

static void *thread_main(void *arg)
{
    struct cpu_thread *t = arg;
    struct cpu_device *cpu = t->device->state;
    struct launch_part *p;

    for (uint64_t number = 0; (p = part_await(cpu, number, t->device->worker->config.spin_us)); number++) {
        ranks_execute(t->device, p->launch, p->ranks, p->nruns, &t->workgroup, t->index);
        part_leave(cpu, p);
    }
    workgroup_release(&t->workgroup);
    return NULL;
}

static void cpu_close(struct device *d)
{
    struct cpu_device *cpu = d->state;

    (void)pthread_mutex_lock(&cpu->lock);
    cpu->stop = true;
    (void)pthread_cond_broadcast(&cpu->more);
    (void)pthread_mutex_unlock(&cpu->lock);
    for (unsigned i = 0; i < cpu->nthreads; i++)
        (void)pthread_join(cpu->threads[i].thread, NULL);
    workgroup_release(&cpu->engine);
    (void)pthread_mutex_destroy(&cpu->lock);
    (void)pthread_cond_destroy(&cpu->more);
    free(cpu);
}

/* A cpu device is a set of cores: the devices share the worker's cores out. A single one has them all. */
static int cores_bind(struct device *d, struct cpu_thread *t)
{
    cpu_set_t all, mine;
    int cores, devices = d->worker->ndevices, seen = 0;

    if (sched_getaffinity(0, sizeof(all), &all))
        return errno;
    cores = CPU_COUNT(&all);
    CPU_ZERO(&mine);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &all))
            continue;
        if (cores >= devices ? seen * devices / cores == d->index : seen == d->index % cores)
            CPU_SET(c, &mine);
        seen++;
    }
    return pthread_setaffinity_np(t->thread, sizeof(mine), &mine);
}

static int cpu_open(struct device *d, struct error *e)
{
    struct cpu_device *cpu;
    int status = blas_open(e);

    if (status)
        return status;
    cpu = calloc(1, sizeof(*cpu) + d->workgroups * sizeof(cpu->threads[0]));
    if (!cpu)
        return error_set(e, -ENOMEM, "device %d: out of memory", d->index);
    TAILQ_INIT(&cpu->queue);
    (void)pthread_mutex_init(&cpu->lock, NULL);
    (void)pthread_cond_init(&cpu->more, NULL);
    d->state = cpu;
    for (; cpu->nthreads < d->workgroups; cpu->nthreads++) {
        struct cpu_thread *t = &cpu->threads[cpu->nthreads];
        *t = (struct cpu_thread){.device = d, .index = cpu->nthreads};
        status = pthread_create(&t->thread, NULL, thread_main, t);
        if (!status && (status = cores_bind(d, t)))
            cpu->nthreads++; /* it runs, and is to be joined */
        if (status) {
            cpu_close(d);
            d->state = NULL;
            return error_set(e, -status, "device %d: cannot start workgroup %u: %s", d->index, t->index, strerror(status));
        }
    }
    return 0;
}

static void part_queue(struct device *d, struct launch_part *p)
{
    struct cpu_device *cpu = d->state;

    atomic_store_explicit(&p->workgroups_left, cpu->nthreads, memory_order_relaxed);
    (void)pthread_mutex_lock(&cpu->lock);
    p->number = atomic_load_explicit(&cpu->submitted, memory_order_relaxed);
    TAILQ_INSERT_TAIL(&cpu->queue, p, link);
    atomic_store_explicit(&cpu->submitted, p->number + 1, memory_order_relaxed);
    (void)pthread_cond_broadcast(&cpu->more);
    (void)pthread_mutex_unlock(&cpu->lock);
}

static void cpu_launch(struct device *d, struct launch *l)
{
    (void)d;
    for (int p = 0; p < l->nparts; p++)
        part_queue(l->parts[p].device, &l->parts[p]);
}

static bool cpu_launch_follows(const struct comm *c)
{
    (void)c;
    return false; /* one after the other */
}

static bool cpu_launch_collect(struct device *d, struct launch *l)
{
    (void)d, (void)l;
    return true;
}

static void cpu_launch_release(struct device *d, struct launch *l)
{
    (void)d, (void)l;
}

static int cpu_times_fetch(struct device *d, struct launch *l, struct error *e)
{
    (void)d, (void)l, (void)e; /* the workgroups wrote them where they are */
    return 0;
}

void device_cpu_run_inline(struct device *d, struct launch *l)
{
    struct cpu_device *cpu = d->state;
    uint16_t ranks[FCC_MAX_RANKS];

    assert(cpu && l->inline_ && d->ops == &device_cpu);
    for (int i = 0; i < l->nranks; i++)
        ranks[i] = (uint16_t)i;
    ranks_execute(d, l, ranks, l->nranks, &cpu->engine, 0);
}

/* ---- memory: shared where a client imports it, and charged to the user ---- */

static uint64_t page_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Always fresh from the kernel, so always zero; sealed, so that no client can shrink what is mapped here. */
static int shared_make(struct device_memory *m, int *fd)
{
    int memory = memfd_create("fccd-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING), status = 0;

    /* fallocate: a full node is an error here and now, not a SIGBUS in a kernel later */
    if (memory < 0 || ftruncate(memory, (off_t)m->bytes) || fallocate(memory, 0, 0, (off_t)m->bytes) ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        status = errno == ENOSPC ? -ENOMEM : -errno;
    } else {
        m->data = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        if (m->data == MAP_FAILED)
            status = -errno;
    }
    if (status && memory >= 0)
        (void)close(memory);
    else
        *fd = memory;
    return status;
}

static int private_make(struct device_memory *m)
{
    m->data = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return m->data == MAP_FAILED ? -errno : 0;
}

static int cpu_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e)
{
    struct device_memory m = {.bytes = page_round(bytes), .kind = FCC_MEMORY_HOST};
    int status = worker_memory_charge(d->worker, m.bytes, e);

    if (status)
        return status;
    status = fd ? shared_make(&m, fd) : private_make(&m);
    if (status) {
        worker_memory_release(d->worker, m.bytes);
        return error_set(e, status, "%llu bytes: %s", (unsigned long long)bytes, strerror(-status));
    }
    *out = m;
    return 0;
}

static void cpu_memory_free(struct device *d, struct device_memory *m)
{
    (void)munmap(m->data, m->bytes);
    worker_memory_release(d->worker, m->bytes);
}

static int cpu_comm_open(struct device *d, struct comm *c, struct error *e)
{
    (void)d;
    c->shared = calloc(1, sizeof(*c->shared));
    return c->shared ? 0 : error_set(e, -ENOMEM, "no memory for a communicator");
}

static void cpu_comm_close(struct device *d, struct comm *c)
{
    (void)d;
    free(c->shared);
    c->shared = NULL;
}

const struct device_ops device_cpu = {
    .kind = "cpu",
    .number = FCC_DEVICE_CPU,
    .open = cpu_open,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .comm_open = cpu_comm_open,
    .comm_close = cpu_comm_close,
    .launch = cpu_launch,
    .launch_follows = cpu_launch_follows,
    .launch_collect = cpu_launch_collect,
    .launch_release = cpu_launch_release,
    .times_fetch = cpu_times_fetch,
    .close = cpu_close,
};
