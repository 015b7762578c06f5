/* SPDX-License-Identifier: MIT
 *
 * steps.c - communicators over several nodes whose ranks are on GPUs.
 *
 * How data travels to and from other nodes is described in nodes/gpu_data.c.
 *
 * Steps. Kernels never wait for another node; they may wait for GPUs of this node. An operator is up to three successive kernels on each GPU:
 *   send     slices that wait for nothing, or for ranks here: they compute, put, and (hierarchical plans) add up the node's partial sums
 *   reduce   slices that wait for slices of other nodes, and add them up
 *   wait     always the last: tiles of rows from other nodes are computed (gather plans), results are complete, are handed on to other ranks
 *            here (hierarchical plans), and streams are told
 * (kernels/plan/exchange/reduce_nodes.c has the hierarchical plans.) A step begins when the step before has ended on all GPUs here and the
 * flags that other nodes raise for its slices have arrived. If no rank here has anything to send, the first step is not `send`
 * (gpu_launch()). Each kernel is enqueued behind all earlier copies to its GPU (launch_start()). So slices poll only flags that GPUs here
 * raise in the same step.
 *
 * Correctness. A flag that a step's slices wait for is raised here or on another node. Here: by a slice of an earlier step, whose kernel has
 * ended (`done`: release, acquire) before the next kernel is started. Elsewhere: the proxy enqueues the copies of the data before the flag,
 * then stores the flag in `arrived` (release), which gpus_step_may_begin() loads (acquire); so the kernel is enqueued behind those copies.
 * Slices that wait for ranks here in the same step poll flags themselves (gpu_slice_looks()): in the first step all that wait, in the last
 * those that wait for handed-on data. A rank hands on data from its own y, into which its own GPU's copies have stored it.
 *
 * No deadlock. A kernel waits for kernels of its own step, which all GPUs here get together and in the same order, as on one node; or for room
 * in its FIFO, that is, for the proxy and the links, which wait for no kernel: data is received into bounce buffers whatever the GPUs do. So
 * each kernel ends, in whatever order the nodes run operators of several communicators.
 *
 * Late copies. No data of an earlier turn arrives after its DONE (nodes/nodes.c). But copies for an operator that failed may still be under
 * way, because no kernel has waited for them. The next turn's kernels run behind the copies to their own GPU, but also store into other GPUs'
 * memory, perhaps where such a copy will store. So after a failure the next turn's first kernels are launched when all copies to these GPUs
 * have ended (late_await()); direct writes of adapters are flushed at DONE. A late copy may contain newer data for the same place; that
 * data's own copy follows.
 *
 * A GPU cannot wake the proxy, so the proxy stays awake while such kernels run (proxy_stay_awake()).
 */
#include "daemon/worker/device/gpu/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "proto/base/log.h"

static_assert(GPU_MAX_RANKS <= 64, "a bit each in gpu_nodes.remote");

/* ---- steps ---- */

static enum gpu_step step_of(const struct slice *s)
{
    if (s->kind == SLICE_WAIT || s->kind == SLICE_FORWARD || (s->kind == SLICE_COMPUTE_PUT && s->wait_count && !s->is_here))
        return GPU_STEP_WAIT; /* a tile that waits for rows of other nodes: kernels/plan/exchange/gather.c */
    return s->kind == SLICE_REDUCE ? GPU_STEP_REDUCE : GPU_STEP_SEND;
}

/* Mark the flags that remote ranks raise for a rank. */
static void remote_flags_mark(const struct launch *l, int rank, bool marks[])
{
    for (int r = 0; r < l->nranks; r++) {
        const struct plan *plan = l->runs[r].plan;
        for (uint32_t g = 0; !l->runs[r].device && g < plan->ngroups; g++)
            if (plan_reaches(plan, plan->groups[g].dst, rank))
                marks[plan->groups[g].flag] = true;
    }
}

/* Of these flags, the ones that slices of a step wait for, and no earlier step does. */
static int awaited_make(struct launch_run *run, enum gpu_step step, bool marks[], struct error *e)
{
    struct awaited_flags *a = &run->awaited[step];

    a->flags = calloc(PLAN_MAX_FLAGS, sizeof(a->flags[0]));
    if (!a->flags)
        return error_set(e, -ENOMEM, "no memory for a launch");
    for (uint32_t i = 0; i < run->plan->nslices; i++) {
        const struct slice *s = &run->plan->slices[i];
        for (uint32_t k = 0; step_of(s) == step && k < s->wait_count; k++) {
            uint32_t flag = s->wait_first + k * s->wait_stride;
            if (marks[flag])
                a->flags[a->n++] = flag;
            marks[flag] = false;
        }
    }
    uint32_t *fit = realloc(a->flags, (a->n + 1) * sizeof(a->flags[0]));
    a->flags = fit ? fit : a->flags;
    return 0;
}

int gpus_steps_make(struct launch *l, struct error *e)
{
    bool *marks = calloc(PLAN_MAX_FLAGS, sizeof(marks[0]));
    int status = 0;

    if (!marks)
        return error_set(e, -ENOMEM, "no memory for a launch");
    l->steps = 1u << GPU_STEP_WAIT;
    for (int r = 0; !status && r < l->nranks; r++) {
        struct launch_run *run = &l->runs[r];
        if (!run->device)
            continue;
        for (uint32_t i = 0; i < run->plan->nslices; i++)
            l->steps |= 1u << step_of(&run->plan->slices[i]);
        memset(marks, 0, PLAN_MAX_FLAGS * sizeof(marks[0]));
        remote_flags_mark(l, r, marks);
        for (enum gpu_step step = GPU_STEP_SEND; !status && step < GPU_STEPS; step++)
            status = awaited_make(run, step, marks, e);
    }
    free(marks);
    return status;
}

static enum gpu_step step_from(const struct launch *l, enum gpu_step step)
{
    while (step < GPU_STEPS && !(l->steps & 1u << step))
        step++;
    return step;
}

/* Wait for the copies of the last turn, which end soon. All have been enqueued: this turn begins after that turn's DONE. */
static void late_await(const struct launch *l)
{
    for (int i = 0; i < l->nparts; i++) {
        const struct device *d = l->parts[i].device;
        struct error e;
        if (d->worker->gpus->plugin->copies_await(d->index, &e)) /* its context is lost: it copies nothing */
            log_warning("copies from other nodes: %s", e.text);
    }
    l->comm->late = false;
}

void gpus_steps_begin(struct launch *l)
{
    if (l->comm->late)
        late_await(l);
    for (int r = 0; r < l->nranks; r++)
        for (int step = 0; step < GPU_STEPS; step++)
            atomic_store_explicit(&l->runs[r].awaited[step].come, 0, memory_order_relaxed);
    l->step = step_from(l, GPU_STEP_SEND);
}

enum gpu_step gpus_step_next(const struct launch *l)
{
    return step_from(l, l->step + 1);
}

bool gpus_step_may_begin(struct launch *l, enum gpu_step step)
{
    for (int r = 0; r < l->nranks; r++) {
        struct awaited_flags *a = &l->runs[r].awaited[step];
        _Atomic uint64_t *arrived = l->comm->ranks[r].arrived;
        uint32_t come = atomic_load_explicit(&a->come, memory_order_acquire);
        while (come < a->n && atomic_load_explicit(&arrived[a->flags[come]], memory_order_acquire) >= l->epoch)
            come++;
        /* Engine and watching thread may overwrite each other's count with a smaller one. That only costs another look: flags only grow. */
        atomic_store_explicit(&a->come, come, memory_order_release);
        if (come < a->n)
            return false;
    }
    return true;
}

void gpus_nodes_fill(const struct launch *l, const struct device *d, struct gpu_nodes *out)
{
    static const uint32_t first[GPU_STEPS + 1] = {GPU_PHASE_FREE, GPU_PHASE_REDUCE, GPU_PHASE_FORWARD, GPU_PHASES};

    out->fifo = d->worker->gpus->sending[d->index].fifo;
    out->remote = 0;
    for (int r = 0; r < l->nranks; r++)
        out->remote |= (uint64_t)(l->runs[r].device == NULL) << r;
    out->number = l->nodes_number;
    out->phase_first = first[l->step];
    out->phase_next = first[l->step + 1];
    out->later = !l->first_step;
}
