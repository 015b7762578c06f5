/* SPDX-License-Identifier: MIT
 *
 * gpu_parts.c - the parts of a launch, one for each GPU, into the GPUs' queues: what their kernels are told, and what they stand
 * behind.
 */
#include "gpu_parts.h"

#include "gpu_node.h"
#include "gpu_nodes.h"
#include "nodes.h"
#include "proxy.h"

static int part_make(struct launch *l, struct launch_part *p, struct error *e)
{
    struct gpus *g = p->device->state;
    struct gpu_run runs[GPU_MAX_RUNS];
    uint64_t flags[FCC_MAX_RANKS];
    struct gpu_shape shape;
    int status = 0;

    if (p->gpu)
        return 0;
    for (int r = 0; r < l->nranks; r++)
        flags[r] = (uint64_t)(uintptr_t)l->comm->members[r].flags.data;
    for (int i = 0; i < p->nruns && status == 0; i++)
        status = gpu_run_make(l->runs[p->ranks[i]].plan, &runs[i], e);
    if (status)
        return status;
    gpu_shape_make(l->problem, l->runs[0].plan, &shape);
    return g->plugin->launch_make(p->device->index, &shape, flags, runs, p->nruns, &p->gpu, e);
}

/* The calls' argument: where everything is now. */
static int part_fill(struct launch *l, struct launch_part *p, struct gpu_call *call, struct error *e)
{
    uint64_t shared = shared_of(l->comm)->address;
    uint64_t told = shared + offsetof(struct gpu_shared, told) + l->epoch % AHEAD * sizeof(struct gpu_told);
    int ranks[GPU_MAX_RUNS];

    *call = (struct gpu_call){
        .epoch = l->epoch,
        .stamp = l->stamp,
        .slots_at = l->stamp % 2 * l->comm->slots_bytes,
        .done = shared + offsetof(struct gpu_shared, done) +
                ((uint64_t)l->step * GPU_MAX_GPUS + (uint64_t)p->device->index) * sizeof(uint64_t),
        .span = told + (l->first_step ? offsetof(struct gpu_told, span) : offsetof(struct gpu_told, span_later)) +
                (uint64_t)p->device->index * 2 * sizeof(uint64_t),
    };
    for (int i = 0; i < p->nruns; i++) {
        int r = ranks[i] = p->ranks[i];
        call->in[i].failure = told + offsetof(struct gpu_told, failures) + (uint64_t)r * sizeof(struct gpu_failure);
        if (l->step != GPU_STEP_WAIT || !l->streams[r].value)
            continue; /* the last kernel tells the streams */
        call->in[i].stream_word = l->streams[r].finished_address;
        call->in[i].stream_value = l->streams[r].value;
    }
    int status = gpu_call_fill(((struct gpus *)p->device->state)->plugin, p->gpu, l->args, l->nranks, ranks, p->nruns, call, e);
    if (!status && l->comm->nodes)
        gpus_nodes_fill(l, p->device, &call->nodes);
    return status;
}

/* What a part waits for. First the other GPUs' parts of the launch before, if it may still be running: that is over before the
 * ranks' streams can have seen its end, so it costs no time. Then the streams. */
static int part_words(const struct launch *l, const struct launch_part *p, uint64_t words[], uint32_t values[])
{
    uint64_t done = shared_of(l->comm)->address + offsetof(struct gpu_shared, done[GPU_STEP_WAIT]);
    int n = 0;

    for (int i = 0; l->comm->current != l && i < l->nparts; i++) {
        if (&l->parts[i] == p)
            continue;
        words[n] = done + l->parts[i].gpu_index * sizeof(uint64_t); /* little-endian: its lower half */
        values[n++] = (uint32_t)(l->epoch - 1);
    }
    for (int r = 0; r < l->nranks; r++) {
        if (!l->streams[r].value)
            continue;
        words[n] = l->streams[r].started_address;
        values[n++] = l->streams[r].value;
    }
    return n;
}

/* A launch on its way into the GPUs' queues. Each part's thread writes its own error. */
struct start {
    struct launch *launch;
    bool waits;
    struct error errors[GPU_MAX_GPUS];
};

static void part_start(void *argument, int i)
{
    struct start *start = argument;
    struct launch *l = start->launch;
    struct launch_part *p = &l->parts[i];
    const struct gpu_plugin *plugin = ((struct gpus *)p->device->state)->plugin;
    uint64_t staging[FCC_MAX_RANKS], slots[FCC_MAX_RANKS], words[GPU_MAX_WORDS];
    uint32_t values[GPU_MAX_WORDS];
    struct error *e = &start->errors[i];
    struct gpu_call call;

    if (e->status || part_fill(l, p, &call, e))
        return;
    for (int r = 0; r < l->nranks; r++) {
        staging[r] = (uint64_t)(uintptr_t)l->staging[r];
        slots[r] = (uint64_t)(uintptr_t)l->comm->members[r].slots.data;
    }
    (void)plugin->launch_start(p->gpu, &call, staging, slots, words, values, start->waits ? part_words(l, p, words, values) : 0,
                               e);
}

void gpu_parts_start(struct launch *l, bool waits)
{
    struct start start;
    bool failed = false;

    start.launch = l;
    start.waits = waits;

    if (l->comm->nodes)
        proxy_stay_awake(nodes_proxy(l->worker), true); /* until they have left */
    for (int i = 0; i < l->nparts; i++) {
        start.errors[i].status = 0;
        (void)part_make(l, &l->parts[i], &start.errors[i]);
    }
    gpu_start_each(l->worker->gpus->starters, l->nparts, part_start, &start);
    for (int i = 0; i < l->nparts; i++) {
        struct launch_part *p = &l->parts[i];
        p->absent = start.errors[i].status != 0;
        if (!p->absent)
            continue;
        failed = true;
        launch_fail(l, p->ranks[0], &start.errors[i]);
        gpu_watch_suspect(l->worker->gpus->watch, 1u << p->device->index);
    }
    if (failed && l == l->comm->current)
        gpus_launch_abort(l);
}
