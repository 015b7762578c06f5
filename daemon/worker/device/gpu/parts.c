/* SPDX-License-Identifier: MIT
 *
 * parts.c - enqueues the parts of a launch, one for each GPU: the kernels' arguments, and the words that each GPU waits for first.
 */
#include "daemon/worker/device/gpu/parts.h"

#include <string.h>

#include "daemon/worker/device/gpu/code/code.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/share.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/device/gpu/stream.h"

/* The GPUs' address of a launch's struct gpu_told. */
static uint64_t told_address(const struct device_comm *c, uint64_t epoch)
{
    return shared_of(c)->address + offsetof(struct gpu_shared, told) + epoch % AHEAD * sizeof(struct gpu_told);
}

static uint64_t done_address(const struct device_comm *c, uint64_t epoch, enum gpu_step step, unsigned gpu)
{
    return told_address(c, epoch) + offsetof(struct gpu_told, done) + ((uint64_t)step * GPU_MAX_GPUS + gpu) * sizeof(uint64_t);
}

/* The done word of q's GPU in the memory of p's GPU. */
static uint64_t peer_address(const struct launch *l, const struct launch_part *p, const struct launch_part *q)
{
    return (uint64_t)(uintptr_t)l->comm->ranks[p->ranks[0]].flags.data + (GPU_FLAG_DONE + q->gpu_index) * sizeof(uint64_t);
}

static int part_make(struct launch *l, struct launch_part *p, struct error *e)
{
    struct gpus *g = p->device->state;
    struct gpu_run runs[GPU_MAX_RUNS];
    uint64_t flags[GPU_MAX_RANKS];
    struct gpu_shape shape;
    int status = 0;

    if (p->gpu)
        return 0;
    for (int r = 0; r < l->nranks; r++)
        flags[r] = (uint64_t)(uintptr_t)l->comm->ranks[r].flags.data;
    for (int i = 0; i < p->nruns && status == 0; i++)
        status = gpu_run_make(l->runs[p->ranks[i]].plan, &runs[i], e);
    if (status)
        return status;
    gpu_shape_make(l->problem, l->runs[0].plan, &shape);
    return g->plugin->launch_make(p->device->index, &shape, flags, runs, p->nruns, &p->gpu, e);
}

/* The arguments of a part's kernel in this run. */
static int part_fill(struct launch *l, struct launch_part *p, struct gpu_factor_scales scales[], struct gpu_call *call,
                     struct error *e)
{
    uint64_t told = told_address(l->comm, l->epoch);
    int ranks[GPU_MAX_RUNS];

    *call = (struct gpu_call){
        .epoch = l->epoch,
        .stamp = l->stamp,
        .slots_at = l->stamp % 2 * l->comm->slots_bytes,
        .end.done = done_address(l->comm, l->epoch, l->step, p->gpu_index),
    };
    if (l->step == GPU_STEP_WAIT) /* the last kernel tells the streams */
        streams_tell(l, p, &call->end);
    for (int q = 0; l->comm->words_gpus && q < l->nparts; q++)
        if (&l->parts[q] != p)
            call->end.peers[call->end.npeers++] = peer_address(l, &l->parts[q], p);
    for (int i = 0; i < p->nruns; i++) {
        int r = ranks[i] = p->ranks[i];
        call->in[i].failure = told + offsetof(struct gpu_told, failures) + (uint64_t)r * sizeof(struct gpu_failure);
    }
    int status =
        gpu_call_fill(((struct gpus *)p->device->state)->plugin, p->gpu, l->problem, l->args, ranks, p->nruns, scales, call, e);
    if (!status && l->comm->over_nodes)
        gpus_nodes_fill(l, p->device, &call->nodes);
    return status;
}

static bool may_begin_alone(const struct launch *l)
{
    return strcmp(l->worker->config.gpu_begin, "together") != 0;
}

/* Whether kernels send only packets to other GPUs, and so need not wait for them (device.c: independent start). */
static bool sends_only_words(const struct launch *l)
{
    return plan_starts_alone(l->runs[0].plan) && may_begin_alone(l);
}

/* The running launch before l, which is not the communicator's current one. */
static const struct launch *before_of(const struct launch *l)
{
    const struct launch *q = l->comm->current;

    while (q->following != l)
        q = q->following;
    return q;
}

/* The words that a part waits for: the streams of its own ranks; then, unless it sends only packets, the other ranks' streams, and the other
 * GPUs' parts of the launch before if that may still run. (A run of a bound operator ends on a rank before that rank's stream comes to the
 * next operator: client/stream/repeated.c.) Those parts end before the ranks' streams can come, so that wait costs no time. */
static void part_waits(const struct launch *l, const struct launch_part *p, struct gpu_waits *out)
{
    out->before = out->count = streams_await(l, p, true, out->words, out->values, 0);
    if (sends_only_words(l))
        return;
    out->count = streams_await(l, p, false, out->words, out->values, out->count);
    for (int i = 0; l->comm->current != l && !before_of(l)->bound && i < l->nparts; i++) {
        const struct launch_part *q = &l->parts[i];
        if (q == p)
            continue;
        /* little-endian: its lower half */
        out->words[out->count] =
            l->comm->words_gpus ? peer_address(l, p, q) : done_address(l->comm, l->epoch - 1, GPU_STEP_WAIT, q->gpu_index);
        out->values[out->count++] = (uint32_t)(l->epoch - 1);
    }
    if (!l->comm->words_gpus || !may_begin_alone(l)) /* without words_gpus the words are in host memory */
        out->before = out->count;
}

/* The argument of part_start(). Each part's thread writes its own error. */
struct start {
    struct launch *launch;
    bool waits;
    int part_of[GPU_MAX_GPUS];
    bool alone[GPU_MAX_GPUS];          /* parts that do not wait for other GPUs before they begin */
    struct error errors[GPU_MAX_GPUS]; /* of parts */
};

static bool part_start(void *argument, int gpu)
{
    struct start *start = argument;
    struct launch *l = start->launch;
    int i = start->part_of[gpu];
    struct launch_part *p = &l->parts[i];
    const struct gpu_plugin *plugin = ((struct gpus *)p->device->state)->plugin;
    uint64_t staging[GPU_MAX_RANKS], slots[GPU_MAX_RANKS];
    struct gpu_waits waits;
    struct error *e = &start->errors[i];
    struct gpu_factor_scales scales[GPU_MAX_RUNS];
    struct gpu_call call;

    if (e->status || part_fill(l, p, scales, &call, e))
        return true;
    for (int r = 0; r < l->nranks; r++) {
        staging[r] = (uint64_t)(uintptr_t)l->staging[r];
        slots[r] = (uint64_t)(uintptr_t)l->comm->ranks[r].slots.data;
    }
    waits.count = waits.before = 0;
    waits.in_kernel = false;
    if (start->waits)
        part_waits(l, p, &waits);
    (void)plugin->launch_start(p->gpu, &call, staging, slots, &waits, l->lanes >> p->device->index & 1u, e);
    start->alone[i] = waits.in_kernel;
    return true;
}

static_assert(GPU_MAX_GPUS <= HELPERS_PARTS, "a part for each");

void gpu_parts_start(struct launch *l, bool waits)
{
    struct start start;
    uint32_t gpus = 0;
    bool failed = false;

    start.launch = l;
    start.waits = waits;
    gpu_share_begin(l);
    if (l->comm->over_nodes)
        l->ops->kernels(l, true);
    for (int i = 0; i < l->nparts; i++) {
        int gpu = l->parts[i].device->index;
        start.part_of[gpu] = i;
        gpus |= 1u << gpu;
        start.errors[i].status = 0;
        start.alone[i] = false;
        if (part_make(l, &l->parts[i], &start.errors[i]))
            continue;
        gpu_code_choose(l, &l->parts[i]);
        (void)stores_settle(l->worker->gpus, 1u << gpu, &start.errors[i]);
    }
    helpers_run(l->worker->gpus->helpers, gpus, true, part_start, &start);
    l->alone = sends_only_words(l);
    for (int i = 0; i < l->nparts; i++) {
        struct launch_part *p = &l->parts[i];
        l->alone = l->alone || start.alone[i];
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
