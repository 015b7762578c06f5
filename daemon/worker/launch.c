/* SPDX-License-Identifier: MIT
 *
 * launch.c - one operator of all ranks: match the ranks' requests, take or make the plans, start, finish.
 *
 * Plans depend on the problem and the schedule only, so finished launches are kept, with their plans, and used again when
 * the same problem comes: then an operator costs no planning.
 */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "gpu_nodes.h"
#include "nodes.h"

#define CACHE_MAX 32 /* launches kept by a communicator; several of one problem where several run at a time */

/* An operator whose work is estimated to take one core less than this is run by the engine itself: waking the workgroups
 * and being woken by them would take longer. The rates are those of one core, whose second-level cache holds CACHE_BYTES. */
#define INLINE_NS 40000.0
#define HELPED_NS 2000.0 /* ... and by its helpers, from here on: to give them something takes half a microsecond */
#define CACHE_BYTES (1 << 20)
#define CACHE_BYTES_PER_NS 50.0
#define MEMORY_BYTES_PER_NS 10.0
#define FLOPS_PER_NS 80.0
#define HALF_FLOPS_PER_NS 8.0 /* f16 and bf16 are converted first */

/* The bytes of a problem that mean something: rows of the counts matrix beyond the ranks do not. */
static size_t problem_bytes(enum fcc_op op, int nranks)
{
    switch (op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        return offsetof(struct problem, embedding) + sizeof(((struct problem *)0)->embedding);
    case FCC_OP_GEMV_ALL_REDUCE:
        return offsetof(struct problem, gemv) + sizeof(((struct problem *)0)->gemv);
    case FCC_OP_GEMM_ALL_TO_ALL:
        return offsetof(struct problem, gemm.rows) + (size_t)nranks * sizeof(((struct problem *)0)->gemm.rows[0]);
    case FCC_OP_NOOP:
    case FCC_OP_COUNT:
        break;
    }
    return offsetof(struct problem, embedding);
}

/* ---- making and keeping ---- */

void launch_free(struct launch *l)
{
    if (l->nparts)
        l->comm->ops->launch_release(l->parts[0].device, l);
    free(l->streams);
    free(l->submissions);
    for (int r = 0; r < l->nranks; r++) {
        plan_free(l->runs[r].plan);
        free((void *)l->runs[r].group_left);
        free(l->runs[r].times[0]);
        free(l->runs[r].times[1]);
        for (int step = 0; step < GPU_STEPS; step++)
            free(l->runs[r].awaited[step].flags);
    }
    free(l->parts);
    free(l->args);
    free((void *)l->staging);
    free(l->problem);
    free(l);
}

static void parts_make(struct launch *l)
{
    for (int r = 0; r < l->nranks; r++) {
        struct launch_part *p = l->parts;
        if (!l->runs[r].device)
            continue; /* on another node */
        while (p < l->parts + l->nparts && p->device != l->runs[r].device)
            p++;
        if (p == l->parts + l->nparts) {
            l->nparts++;
            p->launch = l;
            p->device = l->runs[r].device;
        }
        p->ranks[p->nruns++] = (uint16_t)r;
    }
}

/* Zeroed memory that shares no cache line with any other. */
static void *lines_alloc(size_t bytes)
{
    size_t whole = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, whole);

    return p ? memset(p, 0, whole) : NULL;
}

static void groups_set(struct launch_run *run)
{
    for (uint32_t g = 0; g < run->plan->ngroups; g++)
        atomic_store_explicit(&run->group_left[g], run->plan->groups[g].slices, memory_order_relaxed);
}

static int products_count(const struct plan *plan)
{
    int n = 0;

    for (uint32_t i = 0; i < plan->nslices; i++)
        n += plan->slices[i].kind == SLICE_COMPUTE || plan->slices[i].kind == SLICE_COMPUTE_PUT;
    return n;
}

static int run_make(struct launch *l, struct comm *c, int r, struct error *e)
{
    struct launch_run *run = &l->runs[r];
    struct schedule schedule = l->schedule;

    if (c->members[r].device)
        schedule.workgroups = c->members[r].device->workgroups;
    int status = plan_make(l->problem, r, &schedule, &run->plan, e);

    if (status)
        return status;
    assert(run->plan);
    run->device = c->members[r].device; /* NULL, and no flags: another node's */
    run->flags = (_Atomic uint64_t *)(void *)c->members[r].flags.data;
    run->group_left = lines_alloc((run->plan->ngroups + 1) * sizeof(run->group_left[0]));
    for (int i = 0; i < 2; i++)
        run->times[i] = lines_alloc((run->plan->nslices + 1) * sizeof(run->times[i][0]));
    run->run = (struct run){.plan = run->plan, .problem = l->problem, .rank = r, .args = l->args, .staging = l->staging};
    if (!run->group_left || !run->times[0] || !run->times[1])
        return error_set(e, -ENOMEM, "no memory for a plan of %u slices", run->plan->nslices);
    groups_set(run);
    int products = products_count(run->plan);
    l->products = r == 0 || products < l->products ? products : l->products;
    return 0;
}

/* A guess at how long one core takes. */
static double work_ns(struct work w, enum fcc_dtype dtype)
{
    double bytes_per_ns = w.bytes <= CACHE_BYTES ? CACHE_BYTES_PER_NS : MEMORY_BYTES_PER_NS;
    return w.bytes / bytes_per_ns + w.flops / (dtype == FCC_F32 ? FLOPS_PER_NS : HALF_FLOPS_PER_NS);
}

static struct launch *launch_make(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e)
{
    size_t n = (size_t)c->nranks;
    struct launch *l = lines_alloc(sizeof(*l) + n * sizeof(l->runs[0]));
    struct work sum = {0};
    int status = 0;

    if (!l) {
        (void)error_set(e, -ENOMEM, "no memory for a launch");
        return NULL;
    }
    l->worker = c->worker;
    l->comm = c;
    l->nranks = c->nranks;
    l->schedule.kind = kind;
    l->schedule.route = route;
    l->schedule.target = c->ops->number == FCC_DEVICE_CPU ? PLAN_CPU : PLAN_GPU;
    l->status = &c->shared->status;
    l->problem = malloc(sizeof(*l->problem));
    l->args = calloc(n, sizeof(l->args[0]));
    l->staging = calloc(n, sizeof(l->staging[0]));
    l->parts = lines_alloc(n * sizeof(l->parts[0]));
    l->streams = calloc(n, sizeof(l->streams[0]));
    l->submissions = calloc(n, sizeof(void *));
    if (!l->problem || !l->args || !l->staging || !l->parts || !l->streams || !l->submissions)
        status = error_set(e, -ENOMEM, "no memory for a launch");
    else
        memcpy(l->problem, c->problem, sizeof(*l->problem));
    for (int r = 0; !status && r < c->nranks; r++) {
        struct work work = plan_work(l->problem, r);
        sum.bytes += work.bytes;
        sum.flops += work.flops;
        status = run_make(l, c, r, e);
    }
    if (!status)
        parts_make(l);
    if (!status && c->nodes && l->schedule.target == PLAN_GPU)
        status = gpus_steps_make(l, e);
    if (status) {
        launch_free(l);
        return NULL;
    }
    l->work_ns = work_ns(sum, l->problem->dtype);
    l->inline_ = l->schedule.target == PLAN_CPU && !c->nodes && l->work_ns < INLINE_NS;
    l->helped = l->inline_ && l->nparts > 1 && l->work_ns >= HELPED_NS;
    return l;
}

/* Keep at most CACHE_MAX, the most recently used first; c->last is the first, or behind noop's. */
static void cache_trim(struct comm *c)
{
    struct launch **at = &c->cache;

    for (int i = 0; *at && i < CACHE_MAX; i++)
        at = &(*at)->next_cached;
    while (*at) {
        struct launch *l = *at;
        *at = l->next_cached;
        launch_free(l);
    }
}

static void cache_add(struct comm *c, struct launch *l)
{
    l->next_cached = c->cache;
    c->cache = l;
    cache_trim(c);
}

/* A launch with this problem's plans: a kept one, or a new one. It is taken out of the cache. */
static struct launch *launch_get(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e)
{
    size_t bytes = problem_bytes(c->problem->op, c->nranks);

    for (struct launch **at = &c->cache; *at; at = &(*at)->next_cached) {
        struct launch *l = *at;
        if (l->schedule.kind == kind && l->schedule.route == route && l->problem->op == c->problem->op &&
            !memcmp(l->problem, c->problem, bytes)) {
            *at = l->next_cached;
            l->next_cached = NULL;
            return l;
        }
    }
    return launch_make(c, kind, route, e);
}

/* ---- beginning ---- */

static int staging_make(struct member *m, uint64_t bytes, struct error *e)
{
    if (m->remote) {
        shadow_free(&m->staging);
        return shadow_make(m->comm, bytes, &m->staging, e);
    }
    if (m->comm->nodes && m->staging.data)
        nodes_region_remove(m->comm->worker, m->comm->nodes->number, m->rank, NET_STAGING);
    device_memory_free(m->device, &m->staging);
    int status = device_memory_alloc(m->device, bytes, &m->staging, NULL, e);
    if (status == 0 && m->comm->nodes)
        status = nodes_region_add(m->comm, m->rank, NET_STAGING, &m->staging, m->staging.bytes, e);
    return status;
}

static int staging_prepare(struct comm *c, const struct launch *l, struct error *e)
{
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        uint64_t needed = l->runs[r].plan->staging_bytes;
        if (needed > m->staging.bytes) {
            struct error why = {0};
            if (c->current)
                return -EAGAIN; /* its kernels use what there is */
            if (staging_make(m, needed, &why))
                return error_set(e, why.status, "rank %d: staging memory: %s", r, why.text);
        }
        if (l->staging[r] != m->staging.data) /* who runs it has these pointers in his caches */
            l->staging[r] = m->staging.data;
    }
    return 0;
}

/* Slots, for an operator that uses them. Their words carry a stamp, which counts the operators that have used this memory: it
 * was made zeroed, stamps begin at 1, and it is made anew before they run out, so no word is ever taken for another operator's.
 * Odd and even stamps have a half each. So a rank may begin with n + 1 while another still reads what it got for n. Nobody
 * begins with n + 2 before it has got every rank's words of n + 1, that is, before every rank has done with n, as each runs
 * its operators in order; whatever other operators lie between. Nothing is in flight when the memory is freed: an operator
 * that needs more begins when the ones before have finished on all ranks (-EAGAIN until then). */
static int slots_prepare(struct comm *c, struct launch *l, struct error *e)
{
    uint64_t needed = 0;

    l->stamp = 0;
    for (int r = 0; r < c->nranks; r++)
        needed = l->runs[r].plan->slots_bytes > needed ? l->runs[r].plan->slots_bytes : needed;
    if (!needed)
        return 0;
    if (needed > c->slots_bytes || c->stamp == UINT32_MAX) {
        if (c->current)
            return -EAGAIN;
        uint64_t bytes = needed > c->slots_bytes ? needed : c->slots_bytes;
        c->slots_bytes = 0;
        for (int r = 0; r < c->nranks; r++) {
            struct member *m = &c->members[r];
            struct error why = {0};
            device_memory_free(m->device, &m->slots);
            if (device_memory_alloc(m->device, 2 * bytes, &m->slots, NULL, &why))
                return error_set(e, why.status, "rank %d: staging memory: %s", r, why.text);
        }
        c->slots_bytes = bytes;
        c->stamp = 0;
    }
    l->stamp = ++c->stamp;
    return 0;
}

/* Counters are as they were, but after a failure. A GPU's are there. */
static void launch_reset(struct launch *l)
{
    for (int r = 0; r < l->nranks && !l->inline_; r++)
        atomic_store_explicit(&l->runs[r].next, 0, memory_order_relaxed);
    if (l->error.status)
        for (int r = 0; r < l->nranks; r++)
            groups_set(&l->runs[r]);
    l->begun = l->left = false;
    atomic_store_explicit(&l->failed, 0, memory_order_relaxed);
    atomic_store_explicit(&l->parts_left, (uint32_t)l->nparts, memory_order_relaxed);
    l->error.status = 0;
}

/* The ranks' requests. Most are what they were the last time, and then are left in the caches of who runs them. */
static void args_keep(struct launch *l, const struct op_args args[])
{
    for (int r = 0; r < l->nranks; r++)
        if (!op_args_equal(&l->args[r], &args[r]))
            op_args_copy(&l->args[r], &args[r]);
}

/* Compare the ranks' requests and fill in c->problem. */
static int problem_match(struct comm *c, const struct op_args args[], struct error *e)
{
    enum fcc_op op = args[0].op;
    struct error why;

    error_clear(&why);
    memset(c->problem, 0, problem_bytes(op, c->nranks));
    c->problem->op = op;
    c->problem->nranks = c->nranks;
    for (int r = 0; r < c->nranks; r++)
        c->problem->node_of[r] = c->members[r].node;
    int status = op_get(op)->match(args, c->nranks, c->problem, &why);
    return status ? error_set(e, status, "%s: %s", op_name(op), why.text) : 0;
}

/* Where there are not enough cores for all, those who would spin for the result let the workgroups have them. */
static void crowd_join(struct comm *c, struct launch *l)
{
    struct worker *w = c->worker;
    unsigned threads = w->nclients + 1;

    if (c->ops->number != FCC_DEVICE_CPU)
        return; /* its workgroups need no cores */
    for (int p = 0; p < l->nparts; p++)
        threads += l->parts[p].device->workgroups;
    l->crowded = threads > (unsigned)w->cores;
    w->crowded += l->crowded;
    for (int r = 0; l->crowded && r < c->nranks; r++) {
        const struct submission *sub = l->submissions[r];
        if (sub->session && sub->slot != FCC_NO_SLOT)
            slot_running(sub->session, sub->slot);
    }
}

/* The ranks' next submissions are this launch's from now on. */
static void running_add(struct comm *c, struct launch *l)
{
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        l->submissions[r] = m->next;
        m->next = TAILQ_NEXT(m->next, link);
    }
    l->running = true;
    l->following = NULL;
    if (c->current)
        c->newest->following = l;
    else
        c->current = l;
    c->newest = l;
    c->running++;
}

static void running_remove(struct comm *c, struct launch *l)
{
    assert(l == c->current && l->running);
    l->running = false;
    c->current = l->following;
    if (!c->current)
        c->newest = NULL;
    c->running--;
}

int launch_begin(struct comm *c, struct error *e)
{
    struct op_args args[FCC_MAX_RANKS];
    struct launch *l;

    assert(c->nranks > 0);
    for (int r = 0; r < c->nranks; r++)
        op_args_copy(&args[r], &c->members[r].next->args);
    int status = problem_match(c, args, e);
    if (status)
        return status;
    bool automatic = args[0].schedule == FCC_SCHEDULE_AUTO;
    struct tune_class class = {0};
    if (automatic)
        class = tune_class_of(c->problem);
    enum fcc_schedule_kind kind = automatic ? tune_choose(c->tune, &class) : args[0].schedule;
    l = launch_get(c, kind, args[0].route, e);
    if (!l)
        return e->status;
    status = staging_prepare(c, l, e);
    if (status == 0)
        status = slots_prepare(c, l, e);
    if (status == 0 && c->nodes)
        status = nodes_launch_open(l, e);
    if (status == -EAGAIN) {
        cache_add(c, l);
        return status;
    }
    if (status) {
        if (c->last == l)
            c->last = NULL;
        launch_free(l);
        if (c->nodes) /* the other nodes begin it */
            comm_abort(c, status, "%s", e->text);
        return status;
    }
    args_keep(l, args);
    launch_reset(l);
    running_add(c, l);
    l->automatic = automatic;
    l->class = class;
    l->epoch = ++c->epoch;
    l->serial = ++c->worker->launches;
    l->span.number = c->operators;
    l->span.started_ns = clock_ns();
    if (l->inline_) {
        device_cpu_run_inline(l);
        launch_finish(l);
        return 0;
    }
    crowd_join(c, l);
    comm_deadline_set(c);
    if (c->nodes && !nodes_staged(c, l))
        return 0; /* it is started when they have */
    device_launch(l);
    if (c->nodes)
        nodes_launch_started(l);
    return 0;
}

/* ---- the end ---- */

void launch_fail(struct launch *l, int rank, const struct error *e)
{
    if (!atomic_exchange_explicit(&l->failed, 1, memory_order_relaxed))
        (void)error_set(&l->error, e->status, "rank %d: %s: %s", rank, op_name(l->problem->op), e->text);
    /* An abort may have set the word: then the communicator's own reason stands. */
    int32_t none = 0;
    (void)atomic_compare_exchange_strong_explicit(l->status, &none, e->status, memory_order_relaxed, memory_order_relaxed);
}

static void ranks_tell(struct comm *c, const struct launch *l)
{
    const struct op *op = op_get(l->problem->op);
    const struct error *e = c->state == COMM_ABORTED ? &c->error : &l->error;

    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct submission *sub = l->submissions[r];
        int64_t values[FCC_MAX_RANKS];
        int n = e->status ? 0 : op->values(l->problem, r, values);
        assert(sub == TAILQ_FIRST(&m->queue));
        TAILQ_REMOVE(&m->queue, sub, link);
        m->queued--;
        submission_tell(sub, e->status, e->text, values, n);
        submission_free(sub);
    }
}

bool launch_returned(struct launch *l)
{
    if (!l->comm->ops->launch_collect(l->parts[0].device, l))
        return false;
    launch_finish(l);
    return true;
}

void launch_finish(struct launch *l)
{
    struct comm *c = l->comm;

    l->span.finished_ns = clock_ns();
    if (c->nodes)
        nodes_launch_close(l);
    c->worker->crowded -= l->crowded;
    l->crowded = false;
    if (l->automatic && !l->error.status && c->state == COMM_ACTIVE) {
        struct tune_sample sample = {.class = l->class,
                                     .kind = l->schedule.kind,
                                     .ns = l->busy_ns ? l->busy_ns : l->span.finished_ns - l->span.started_ns};
        if (!c->nodes)
            tune_record(c->tune, &sample);
        else if (!c->members[0].remote)
            nodes_measured(c, &sample);
    }
    l->span_shown = l->span;
    l->turn ^= 1; /* what was written is shown. A GPU's times are fetched when somebody asks */
    running_remove(c, l);
    c->turn_ns = l->span.finished_ns;
    if (l->problem->op != FCC_OP_NOOP) /* which has nothing to show */
        c->last = l;
    cache_add(c, l);
    ranks_tell(c, l);
    if (c->nodes && l->error.status && c->state == COMM_ACTIVE)
        nodes_launch_failed(l);
    if (c->nodes)
        nodes_turn_ended(c);
    if (c->state == COMM_ACTIVE && atomic_load_explicit(&c->shared->status, memory_order_relaxed))
        atomic_store_explicit(&c->shared->status, 0, memory_order_relaxed); /* the failure was this operator's alone */
    if (c->state == COMM_ACTIVE && c->current && atomic_load_explicit(&c->current->failed, memory_order_relaxed))
        gpus_launch_abort(c->current); /* it has failed already; but what lets it leave would have let this one leave too */
    if (l->problem->op != FCC_OP_NOOP || l->error.status)
        trace_waiters_answer(c, &l->error);
}
