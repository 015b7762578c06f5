/* SPDX-License-Identifier: MIT
 *
 * device.c - workgroups are threads, symmetric memory is shared memory, a put is a store.
 *
 * A device has W threads, which execute.c is about.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/device/cpu/threads.h"
#include "daemon/worker/engine/account.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/view.h"
#include "proto/base/huge.h"
#include "proto/base/log.h"

static void cpu_close(struct device *d)
{
    struct cpu_device *cpu = d->state;

    (void)pthread_mutex_lock(&cpu->lock);
    cpu->stop = true;
    (void)pthread_cond_broadcast(&cpu->more);
    (void)pthread_mutex_unlock(&cpu->lock);
    for (unsigned i = 0; i < cpu->nthreads; i++)
        (void)pthread_join(cpu->threads[i].thread, NULL);
    for (unsigned i = 0; i < d->workgroups; i++)
        free(cpu->threads[i].jobs);
    free(cpu->steps.jobs);
    workgroup_release(&cpu->steps.workgroup);
    for (int i = 0; i < CPU_SHARES; i++) {
        free(cpu->inline_[i].jobs);
        workgroup_release(&cpu->inline_[i].workgroup);
    }
    (void)pthread_mutex_destroy(&cpu->lock);
    (void)pthread_cond_destroy(&cpu->more);
    free(cpu);
}

/* The device's cores: the worker's, which are `all`, are divided among the cpu devices. */
static cpu_set_t cores_of(const struct device *d, const cpu_set_t *all)
{
    int cores = CPU_COUNT(all), devices = d->worker->ndevices, seen = 0;
    cpu_set_t mine;

    CPU_ZERO(&mine);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, all))
            continue;
        if (cores >= devices ? seen * devices / cores == d->index : seen == d->index % cores)
            CPU_SET(c, &mine);
        seen++;
    }
    return mine;
}

static int cores_bind(const struct device *d, const struct cpu_thread *t)
{
    const struct worker *w = d->worker;
    cpu_set_t mine = cores_of(d, &w->affinity);

    return pthread_setaffinity_np(t->thread, sizeof(mine), &mine);
}

#define ENGINE_MOVES_AFTER 64u /* launches in a row that ran elsewhere */

static void engine_move(struct worker *w, const struct device *d)
{
    cpu_set_t cores = d ? cores_of(d, &w->affinity) : w->affinity;

    w->engine_device = d;
    w->engine_strays = 0;
    if (sched_setaffinity(0, sizeof(cores), &cores))
        log_debug("the engine cannot be placed on the cores of a device: %s", strerror(errno));
}

void device_cpu_engine_release(struct worker *w)
{
    if (w->engine_device)
        engine_move(w, NULL);
}

/* The engine is about to run slices of a device's ranks. It then is one of that device's threads and runs on the device's cores, as the kernel
 * leaves threads that only yield where they are, be it all on one core. NULL: slices of several devices, or none: it runs on any core. A move
 * takes as long as a small operator, so it stays where it is unless launches of another kind follow each other. */
static void engine_place(struct worker *w, const struct device *d)
{
    if (d == w->engine_device) {
        w->engine_strays = 0;
        return;
    }
    if (w->engine_device && ++w->engine_strays < ENGINE_MOVES_AFTER)
        return;
    engine_move(w, d);
}

static int cpu_open(struct device *d, struct error *e)
{
    struct cpu_device *cpu;
    int status = blas_open(e);

    if (!status)
        status = blas_reserve(d->workgroups + CPU_SHARES, e);
    if (status)
        return status;
    cpu = calloc(1, sizeof(*cpu) + d->workgroups * sizeof(cpu->threads[0]));
    if (!cpu)
        return error_set(e, -ENOMEM, "device %d: out of memory", d->index);
    TAILQ_INIT(&cpu->queue);
    (void)pthread_mutex_init(&cpu->lock, NULL);
    (void)pthread_cond_init(&cpu->more, NULL);
    bool room = true;
    for (unsigned i = 0; i < CPU_SHARES; i++) {
        cpu->inline_[i] = (struct cpu_thread){.device = d, .index = i, .jobs = cpu_jobs_new(1)};
        cpu->inline_[i].workgroup.views = d->worker->views;
        room = room && cpu->inline_[i].jobs;
    }
    cpu->steps = (struct cpu_thread){.device = d, .jobs = cpu_jobs_new(CPU_STEPS_MAX)};
    cpu->steps.workgroup = (struct workgroup){.alone = true, .views = d->worker->views};
    room = room && cpu->steps.jobs;
    d->state = cpu;
    if (!room) {
        cpu_close(d);
        d->state = NULL;
        return error_set(e, -ENOMEM, "device %d: out of memory", d->index);
    }
    for (; cpu->nthreads < d->workgroups; cpu->nthreads++) {
        struct cpu_thread *t = &cpu->threads[cpu->nthreads];
        unsigned index = cpu->nthreads;
        *t = (struct cpu_thread){.device = d, .index = index, .jobs = cpu_jobs_new(CPU_JOBS_MAX)};
        t->workgroup = (struct workgroup){.alone = d->workgroups == 1, .views = d->worker->views};
        status = t->jobs ? pthread_create(&t->thread, NULL, cpu_thread_main, t) : ENOMEM;
        if (!status && (status = cores_bind(d, t)))
            cpu->nthreads++; /* it runs, and is to be joined */
        if (status) {
            cpu_close(d);
            d->state = NULL;
            return error_set(e, -status, "device %d: cannot start workgroup %u: %s", d->index, index, strerror(status));
        }
    }
    return 0;
}

static void part_queue(struct device *d, struct launch_part *p)
{
    struct cpu_device *cpu = d->state;

    atomic_store_explicit(&p->workgroups_left, cpu->nthreads, memory_order_relaxed);
    p->is_queued = true;
    (void)pthread_mutex_lock(&cpu->lock);
    p->number = atomic_load_explicit(&cpu->submitted, memory_order_relaxed);
    TAILQ_INSERT_TAIL(&cpu->queue, p, link);
    atomic_store_explicit(&cpu->submitted, p->number + 1, memory_order_seq_cst);
    (void)pthread_cond_broadcast(&cpu->more);
    (void)pthread_mutex_unlock(&cpu->lock);
    cpu_device_signal(d); /* whoever has begun others, and sleeps for them */
}

static void cpu_launch(struct device *d, struct launch *l)
{
    bool steps = l->stepwise && cpu_steps_begin(l);

    engine_place(l->worker, steps && l->nparts == 1 && l->engine_sends ? d : NULL);
    if (steps)
        return;
    for (int p = 0; p < l->nparts; p++)
        part_queue(l->parts[p].device, &l->parts[p]);
}

static bool cpu_launch_follows(const struct device_comm *c, const struct op_args *next)
{
    (void)next;
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
    (void)d, (void)e;
    /* The workgroups wrote them where they are, over those of an operator before. */
    for (int r = 0; r < l->nranks; r++)
        for (uint32_t i = 0; l->runs[r].device && i < l->runs[r].plan->nslices; i++) {
            struct slice_time *t = &launch_times_shown(l, r)[i];
            if (t->start_ns < l->span_shown.started_ns)
                *t = (struct slice_time){0}; /* this one did not get there */
        }
    return 0;
}

/* Estimated work that makes another thread for a part worth while: giving it work and taking the results takes half a microsecond. */
#define SHARE_NS 1500

/* The helpers for an inline launch, and how many threads share each part (*shares). NULL: no helpers, because the work is too small, or they
 * would spin on cores that the engine and the clients need. */
static struct helpers *inline_helpers(const struct launch *l, int *shares)
{
    struct worker *w = l->worker;
    int clients = (int)w->nclients > l->nranks ? (int)w->nclients : l->nranks, cores = w->cores - clients;
    struct error e;

    *shares = 1;
    if (!l->is_long || l->nparts < 2 || !w->config.spin_us || l->nparts > cores)
        return NULL;
    while (2 * *shares <= CPU_SHARES && 2 * *shares <= l->products && 2 * *shares * l->nparts <= cores &&
           2 * *shares * l->nparts <= HELPERS_PARTS && l->work_ns >= 2.0 * *shares * l->nparts * SHARE_NS)
        *shares *= 2;
    error_clear(&e);
    if (!w->helpers_tried)
        device_cpu_engine_release(w); /* new threads may run where the engine may */
    if (!w->helpers_tried && helpers_open(w->ndevices * CPU_SHARES - 1, w->config.spin_us, &w->helpers, &e))
        log_warning("small operators take longer: %s", e.text);
    w->helpers_tried = true;
    return w->helpers;
}

void device_cpu_run_inline(struct launch *l)
{
    /* Wake sleeping helpers only if operators follow each other so fast that the next one is likely to find them awake. */
    bool rouse = l->began_ns - l->comm->turn_ns < (uint64_t)l->worker->config.spin_us * 1000u;

    assert(l->inline_ && l->comm->ops == &device_cpu);
    engine_place(l->worker, NULL);
    struct helpers *helpers = inline_helpers(l, &l->shares);
    l->aided = helpers != NULL;
    cpu_inline_execute(l, helpers, rouse);
}

/* ---- memory: shared where a client imports it, and charged to the user ----
 *
 * Whole huge pages wherever the kernel has some: reading a matrix takes a tenth less time, rows at random places much less, and
 * making and first touching the memory a tenth. For shared memory they are asked for one by one, by collapsing: of what the
 * administrator can set for shared memory's huge pages (never, usually) only "deny" is in its way, and where a huge page
 * holds nothing but one small one, there is next to nothing to copy. What is left over gets small pages.
 */

#define HUGE_SLOW_NS                                                                                                           \
    20000000u /* stop collapsing when a huge page takes this long: memory is fragmented, and other clients wait */

static uint64_t page_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static uint64_t thread_busy_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Collapse the memory into huge pages from its beginning, until the kernel has no more. */
static void memory_enlarge_pages(struct device *d, const struct device_memory *m, int fd)
{
    unsigned char *data = m->data;

    for (uint64_t at = 0; at + HUGE_BYTES <= m->bytes; at += HUGE_BYTES) {
        uint64_t start = thread_busy_ns();
        if (fallocate(fd, 0, (off_t)at, 1))
            return; /* no memory: whoever comes next says so */
        if (madvise(data + at, HUGE_BYTES, MADV_COLLAPSE)) {
            log_debug("device %d: %llu of %llu bytes have huge pages: %s", d->index, (unsigned long long)at,
                      (unsigned long long)m->bytes, strerror(errno));
            return;
        }
        if (thread_busy_ns() - start > HUGE_SLOW_NS)
            return;
    }
}

/* Always fresh from the kernel, so always zero; sealed, so that no client can shrink what is mapped here. */
static int shared_make(struct device *d, struct device_memory *m, int *fd)
{
    int memory = memfd_create("fccd-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING), status = 0;

    if (memory < 0)
        return -errno;
    if (ftruncate(memory, (off_t)m->bytes) || fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
        (m->data = huge_map(m->bytes, MAP_SHARED, memory)) == MAP_FAILED) {
        status = -errno;
    } else {
        memory_enlarge_pages(d, m, memory);
        /* All of it: a full node is an error here and now, not a SIGBUS in a kernel later. */
        if (fallocate(memory, 0, 0, (off_t)m->bytes)) {
            status = errno == ENOSPC ? -ENOMEM : -errno;
            (void)munmap(m->data, m->bytes);
        }
    }
    if (status)
        (void)close(memory);
    else
        *fd = memory;
    return status;
}

/* Pages come when they are first written. In a control group with a limit they come now: what was found to be free now may be gone then,
 * and there is no error then, but the process's end. */
static int private_make(struct device_memory *m, bool now)
{
    m->data = huge_map(m->bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (m->data == MAP_FAILED)
        return -errno;
    if (m->bytes >= HUGE_BYTES)
        (void)madvise(m->data, m->bytes, MADV_HUGEPAGE); /* advice: where the kernel has none, nothing is lost but time */
    if (now && madvise(m->data, m->bytes, MADV_POPULATE_WRITE) && errno != EINVAL) { /* EINVAL: Linux before 5.14 */
        int status = errno == EFAULT || errno == EAGAIN ? -ENOMEM : -errno;
        (void)munmap(m->data, m->bytes);
        return status;
    }
    return 0;
}

static int cpu_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e)
{
    struct device_memory m = {.bytes = page_round(bytes), .kind = FCC_MEMORY_HOST};
    int status = worker_memory_charge(d->worker, m.bytes, e);

    if (status)
        return status;
    status = fd ? shared_make(d, &m, fd) : private_make(&m, d->worker->memory_limited);
    if (status) {
        worker_memory_release(d->worker, m.bytes);
        return error_set(e, status, "%llu bytes: %s", (unsigned long long)bytes, strerror(-status));
    }
    *out = m;
    return 0;
}

static void cpu_memory_free(struct device *d, struct device_memory *m)
{
    views_forget(d->worker->views, m->data, m->bytes);
    (void)munmap(m->data, m->bytes);
    worker_memory_release(d->worker, m->bytes);
}

static int cpu_comm_open(struct device *d, struct device_comm *c, struct error *e)
{
    (void)d;
    c->shared = aligned_alloc(64, 64); /* a cache line of its own: it is looked at all the time */
    if (c->shared)
        *c->shared = (struct comm_shared){0};
    return c->shared ? 0 : error_set(e, -ENOMEM, "no memory for a communicator");
}

static void cpu_comm_close(struct device *d, struct device_comm *c)
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
