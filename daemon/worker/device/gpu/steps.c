/* SPDX-License-Identifier: MIT
 *
 * steps.c - communicators over several nodes whose ranks are on GPUs.
 *
 * What goes to other nodes and comes from there, and by which memory, is nodes/landings.c.
 *
 * Steps. A kernel of such an operator waits for no other node; for GPUs here it may, as on one node. The operator is up to three
 * kernels on each GPU, one after the other:
 *   send     all slices that wait for nothing, or for slices of ranks here: they compute and put, and add up what a node's ranks put
 *   reduce   ... that wait for other nodes' slices (and for those of ranks here) and add them up
 *   wait     the last: results are there, are handed on to other ranks here, streams are told
 * (Adding up a node's, and handing on, is what hierarchical plans do: kernels/plan/exchange/reduce_nodes.c.) A step begins when the one before
 * has ended on all GPUs here, and when the flags that other nodes raise for its slices have arrived. That is so of the first
 * one, too: where no rank here has anything to send it is no send (gpu_launch()). Its kernel stands behind all copies that
 * were enqueued before (launch_start()). So its slices need not look at flags, but for those that GPUs here raise in the same
 * step.
 *
 * Why that is right. A flag that a step's slices wait for is raised by a rank here, by a slice of an earlier step, whose
 * kernel has ended (`done`, with release, was seen with acquire, and the next kernel is started after that); or by a rank
 * elsewhere: then the proxy has enqueued the copies of what came before it, then stored the flag in `arrived` (release), which
 * gpus_step_may_begin() has seen (acquire): so the kernel is enqueued after those copies, and stands behind them. Slices that
 * wait for what their own step does, which is for ranks here only, look at flags themselves (gpu_slice_looks()): all of the
 * first step that wait, and of the last those that wait for what another rank hands on. What a rank hands on it reads from its
 * own y, into which its own GPU's copies have stored it.
 *
 * Why nothing deadlocks. A kernel waits for slices of its own step's kernels, which all GPUs here have been given together,
 * each in the same order with all others, as on one node; or for room in its FIFO; and that for the proxy and the links, which
 * wait for no kernel: what comes is received into landing places whatever the GPUs do. So each kernel that runs ends, however
 * operators of several communicators follow each other on a GPU, here and elsewhere: nodes need no common order.
 *
 * What is late. Nothing of an earlier turn comes after its DONE (nodes/nodes.c); of an operator that failed there may still be copies on their
 * way, for which no kernel has waited. The next turn's kernels stand behind the copies to their own GPU, but they also store into the memory of
 * the other GPUs here, perhaps where such a copy is about to come. So after a failure the next turn's first kernels are launched when
 * all copies to these GPUs are done (late_await()); and what adapters have written is flushed at DONE. What comes to the same landing
 * place before may get into such a copy; its own copy follows it.
 *
 * The proxy cannot be woken by a GPU. It stays awake while such kernels run (proxy_stay_awake()), and they do not wait for other nodes.
 */
#include "daemon/worker/device/gpu/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "proto/base/log.h"

static_assert(FCC_MAX_RANKS <= 64, "a bit each in gpu_nodes.remote");

/* ---- steps ---- */

static enum gpu_step step_of(const struct slice *s)
{
    if (s->kind == SLICE_WAIT || s->kind == SLICE_FORWARD)
        return GPU_STEP_WAIT;
    return s->kind == SLICE_REDUCE ? GPU_STEP_REDUCE : GPU_STEP_SEND;
}

/* Mark the flags that ranks elsewhere raise at a rank. */
static void remote_flags_mark(const struct launch *l, int rank, bool marks[])
{
    for (int r = 0; r < l->nranks; r++) {
        const struct plan *plan = l->runs[r].plan;
        for (uint32_t g = 0; !l->runs[r].device && g < plan->ngroups; g++)
            if (plan_reaches(plan, plan->groups[g].dst, rank))
                marks[plan->groups[g].flag] = true;
    }
}

/* Those of them that the slices of a step wait for; each once, in the first step that does. */
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

/* Of copies only, so soon. Those of its last turn have all been enqueued: their DONE has come, or this turn would not begin. */
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
        /* Either thread may be behind the other one: flags only grow, so that only costs another look. */
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
