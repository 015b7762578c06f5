/* SPDX-License-Identifier: MIT
 *
 * launch.c - makes launches with their plans, and frees them.
 */
#include "daemon/worker/device/launch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/engine/account.h"
#include "kernels/plan/spec.h"

/* From LONG_NS on helpers take part; giving them work takes half a microsecond. */
#define LONG_NS 2000.0

void launch_free(struct launch *l)
{
    assert(!l->running);
    if (l->nparts)
        l->comm->ops->launch_release(l->parts[0].device, l);
    free(l->streams);
    free(l->submissions);
    free(l->stamps);
    for (int r = 0; r < l->nranks; r++) {
        plan_free(l->runs[r].plan);
        free((void *)l->runs[r].group_left);
        free(l->runs[r].times[0]);
        free(l->runs[r].times[1]);
        if (l->added)
            free(l->added[r]);
        for (int step = 0; step < GPU_STEPS; step++)
            free(l->runs[r].awaited[step].flags);
    }
    free(l->parts);
    free(l->args);
    free(l->ranks);
    free((void *)l->staging);
    free((void *)l->added);
    problem_free(l->problem);
    free(l->class);
    worker_small_release(l->worker, l->charged);
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
        p->nruns++;
    }
    int first = 0;
    for (struct launch_part *p = l->parts; p < l->parts + l->nparts; first += p++->nruns) {
        int n = 0;
        p->ranks = l->ranks + first;
        for (int r = 0; n < p->nruns; r++)
            if (l->runs[r].device == p->device)
                p->ranks[n++] = (uint16_t)r;
    }
}

/* Zeroed memory that shares no cache line with any other. */
static void *lines_alloc(size_t bytes)
{
    size_t whole = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, whole);

    return p ? memset(p, 0, whole) : NULL;
}

void launch_groups_set(struct launch_run *run)
{
    for (uint32_t g = 0; g < run->plan->ngroups; g++)
        atomic_store_explicit(&run->group_left[g], run->plan->groups[g].slices, memory_order_relaxed);
    for (uint32_t i = 0; i < run->plan->added_tiles; i++)
        run->run.added[run->run.rank][i].added = 0;
}

static int products_count(const struct plan *plan)
{
    int n = 0;

    for (uint32_t i = 0; i < plan->nslices; i++)
        n += plan->slices[i].kind == SLICE_COMPUTE || plan->slices[i].kind == SLICE_COMPUTE_PUT;
    return n;
}

static int run_make(struct launch *l, struct device_comm *c, int r, struct error *e)
{
    struct launch_run *run = &l->runs[r];
    struct schedule schedule = l->schedule;

    if (c->ranks[r].device)
        schedule.workgroups = c->ranks[r].device->workgroups;
    int status = plan_make(l->problem, r, &schedule, &run->plan, e);

    if (status)
        return status;
    assert(run->plan);
    run->device = c->ranks[r].device; /* NULL, and no flags: another node's */
    run->flags = (_Atomic uint64_t *)(void *)c->ranks[r].flags.data;
    run->group_left = lines_alloc((run->plan->ngroups + 1) * sizeof(run->group_left[0]));
    for (int i = 0; i < 2; i++)
        run->times[i] = lines_alloc((run->plan->nslices + 1) * sizeof(run->times[i][0]));
    run->run = (struct run){
        .plan = run->plan, .problem = l->problem, .rank = r, .args = l->args, .staging = l->staging, .added = l->added};
    if (run->plan->added_tiles)
        l->added[r] = lines_alloc(run->plan->added_tiles * sizeof(l->added[r][0]));
    if ((run->plan->added_tiles && !l->added[r]) || !run->group_left || !run->times[0] || !run->times[1])
        return error_set(e, -ENOMEM, "no memory for a plan of %u slices", run->plan->nslices);
    added_tiles_init(l->added[r], run->plan->added_tiles);
    launch_groups_set(run);
    l->starts_early |= plan_starts_early(run->plan);
    int products = products_count(run->plan);
    l->products = r == 0 || products < l->products ? products : l->products;
    return 0;
}

static bool arrays_alloc(struct launch *l)
{
    size_t n = (size_t)l->nranks;

    l->args = calloc(n, sizeof(l->args[0]));
    l->staging = calloc(n, sizeof(l->staging[0]));
    l->added = calloc(n, sizeof(void *));
    l->ranks = calloc(n, sizeof(l->ranks[0]));
    l->parts = lines_alloc(n * sizeof(l->parts[0]));
    l->streams = calloc(n, sizeof(l->streams[0]));
    l->submissions = calloc(n, sizeof(void *));
    l->stamps = calloc(n, sizeof(l->stamps[0]));
    return l->stamps && l->args && l->staging && l->added && l->ranks && l->parts && l->streams && l->submissions;
}

static int runs_make(struct launch *l, struct device_comm *c, struct error *e)
{
    struct work sum = {0};
    int status = 0;

    for (int r = 0; !status && r < c->nranks; r++) {
        struct work work = plan_work(l->problem, r);
        sum.bytes += work.bytes;
        sum.flops += work.flops;
        status = run_make(l, c, r, e);
    }
    l->work_ns = work_core_ns(sum, l->problem->dtype);
    return status;
}

/* Over nodes: whether the engine is to run it. Waking workgroups and being woken by them takes longer than a small operator; a collective of one
 * rank keeps one core busy at most, and that the engine's, as it sends and receives; but for what its epilogue computes. */
static bool runs_stepwise(const struct launch *l)
{
    struct work sum = {0};
    int here = 0;

    for (int r = 0; r < l->nranks; r++) {
        if (!l->runs[r].device)
            continue;
        struct work work = plan_work(l->problem, r);
        sum.bytes += work.bytes;
        sum.flops += work.flops;
        here++;
    }
    return work_core_ns(sum, l->problem->dtype) < WORK_INLINE_NS ||
           (here == 1 && op_spec(l->problem->op)->compute == COMPUTE_VECTOR && !l->problem->epilogue.cols);
}

/* An estimate of a launch's memory; its plans are the largest part. */
static int launch_charge(struct launch *l, struct error *e)
{
    uint64_t bytes = sizeof(*l) + problem_bytes(l->problem);
    struct error why = {0};

    for (int r = 0; r < l->nranks; r++) {
        const struct plan *p = l->runs[r].plan;
        bytes += sizeof(l->runs[r]) + sizeof(l->args[0]) + sizeof(l->parts[0]) + sizeof(*p);
        bytes += p->nslices * (sizeof(p->slices[0]) + 2 * sizeof(l->runs[r].times[0][0]));
        bytes += p->added_tiles * sizeof(l->added[r][0]);
        bytes += p->ngroups * (sizeof(p->groups[0]) + sizeof(l->runs[r].group_left[0]));
    }
    if (worker_small_charge(l->worker, bytes, &why))
        return error_set(e, why.status, "its plans: %s", why.text);
    l->charged = bytes;
    return 0;
}

/* A launch with neither problem nor plans. NULL: no memory. */
static struct launch *launch_new(struct device_comm *c, const struct launch_ops *ops)
{
    struct launch *l = lines_alloc(sizeof(*l) + (size_t)c->nranks * sizeof(l->runs[0]));

    if (!l)
        return NULL;
    l->ops = ops;
    l->comm = c;
    l->worker = c->worker;
    l->nranks = c->nranks;
    l->status = &c->shared->status;
    l->finished.launch = l;
    if (arrays_alloc(l))
        return l;
    launch_free(l);
    return NULL;
}

struct launch *launch_make_bound(struct device_comm *c, const struct launch_ops *ops)
{
    struct launch *l = launch_new(c, ops);

    for (int r = 0; l && r < c->nranks; r++)
        l->runs[r].device = c->ranks[r].device;
    if (l)
        parts_make(l);
    return l;
}

struct launch *launch_make(struct device_comm *c, const struct problem *problem, const struct schedule *schedule,
                           const struct launch_ops *ops, struct error *e)
{
    struct launch *l = launch_new(c, ops);

    if (l)
        l->problem = problem_copy(problem);
    if (!l || !l->problem) {
        (void)error_set(e, -ENOMEM, "no memory for a launch");
        if (l)
            launch_free(l);
        return NULL;
    }
    l->schedule = *schedule;
    l->schedule.target = c->ops->number == FCC_DEVICE_CPU ? PLAN_CPU : PLAN_GPU;
    int status = runs_make(l, c, e);
    if (!status)
        status = launch_charge(l, e);
    if (!status)
        parts_make(l);
    if (!status && c->over_nodes && l->schedule.target == PLAN_GPU)
        status = gpus_steps_make(l, e);
    if (status) {
        launch_free(l);
        return NULL;
    }
    l->inline_ = l->schedule.target == PLAN_CPU && !c->over_nodes && l->work_ns < WORK_INLINE_NS;
    l->stepwise = l->schedule.target == PLAN_CPU && c->over_nodes && runs_stepwise(l);
    l->is_long = l->work_ns >= LONG_NS;
    return l;
}

void launch_fail(struct launch *l, int rank, const struct error *e)
{
    if (!atomic_exchange_explicit(&l->failed, 1, memory_order_relaxed))
        (void)error_set(&l->error, e->status, "rank %d: %s: %s", rank, op_name(l->problem->op), e->text);
    /* If an abort has already set the status word, the communicator's reason is kept. */
    int32_t none = 0;
    (void)atomic_compare_exchange_strong_explicit(l->status, &none, e->status, memory_order_relaxed, memory_order_relaxed);
}
