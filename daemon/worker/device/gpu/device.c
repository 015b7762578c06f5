/* SPDX-License-Identifier: MIT
 *
 * device.c - GPUs, through a plug-in (kernels/gpu/abi.h): memory that all of them can address, and operators as one kernel
 * per GPU.
 *
 * Stream order. An operator on clients' streams begins on no GPU before all its ranks' streams have come to it. Usually the GPU itself waits
 * (stream memory operations): the operator is enqueued at once, without a round trip through the CPU. But a GPU's queue has one order. An
 * operator that waits for a client's stream blocks the operators behind it, and that stream may wait for one of those, if it is another
 * communicator's. So with several communicators, and where GPUs cannot wait, the operator is gated: the watching thread polls the streams'
 * words, and the engine enqueues the operator when all have come. With one communicator an operator never depends on a later one, because
 * each rank submits its operators in the order of its streams. The engine and its helpers (helpers.h) enqueue the kernels of all parts
 * together, one operator after the other, so all GPUs have the same order.
 *
 * Independent start. Notifications from other GPUs arrive late. So some operators start on a GPU as soon as the streams of its own ranks have
 * come, and wait for no other GPU before that:
 *   - Operators that send only packets (plan_starts_alone(): gemv_all_reduce in one step, fused). They wait neither for the other ranks'
 *     streams nor for the other GPUs' ends of the previous operator. The kernel waits for the others' packets anyway; before that it
 *     writes only its own ranks' results and packets, whose stamps allow this (slots_prepare()). Such operators have no flags: a flag that
 *     another GPU raises late, for an earlier operator that has failed, could overwrite one of theirs.
 *   - Operators whose kernel waits for both before it stores to other ranks or raises their flags (gpu_waits). These are products whose rows
 *     are put, if they can spare some multiprocessors, and a noop, which stores nothing. Usually both have come by then.
 * Such a kernel may run long before a late rank's stream comes, and that stream may wait for work on this GPU. So it leaves some
 * multiprocessors free (gpu_multiprocessors_beside()). With several communicators the operator is gated. GPU_BEGIN=together turns
 * independent starts off.
 *
 * Ahead. While operator n of a communicator is in the GPUs' queues, n + 1 may be enqueued behind it, so that after n only the client's stream
 * is left to wait for: up to AHEAD launches, besides runs of bound operators, which the ranks have enqueued themselves. Unless n + 1 starts
 * independently, it must not begin on one GPU before n has ended on all. Streams do not ensure that, because a rank may have used another
 * stream for n. So on each GPU n + 1 waits for the done words of n on the other GPUs. The last workgroup stores its word (release, system
 * scope) after everything that n reads or writes there, so n + 1 behaves as if it were enqueued after n:
 *   - No two operators use staging memory, flags or results at the same time. Flags are epochs, and only grow.
 *   - The plug-in's state of a launch (plans, counters, times, addresses of staging memory) belongs to one struct launch. A running launch is
 *     not in the cache, so a problem that runs twice at a time has two launches.
 *   - Kernels report to the engine in struct gpu_told: each running launch has its own; a run of a bound operator has none.
 *   - Staging memory does not move while anything runs (comm/turn.c).
 * An operator that fails by its data stores its own epoch as the ranks' failure epoch, which does not affect n + 1. An operator that could not
 * be enqueued on every GPU is made to leave when n is over, and nothing is enqueued behind it. The end of a communicator stores the newest
 * epoch. Nothing that a stream waits for is queued behind an operator that waits for that stream, unless a program's streams come to a
 * communicator's operators in another order than it submits them; such a program waits for ever in any case.
 *
 * Memory shared by kernels and the engine is host memory mapped for the GPUs: struct gpu_shared of a communicator, and the session memory.
 * Words that only GPUs wait for are in the GPUs' memory where possible (words_gpus): the streams' words (stream.c), and behind each rank's
 * flags the done words of the other GPUs. None of this is unmapped while a kernel that might access it is in flight.
 *
 * A lost context stays lost: the worker tells its clients and ends, and the next connection gets a new worker.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/device/gpu/code/code.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/leave.h"
#include "daemon/worker/device/gpu/parts.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/device/gpu/stream.h"
#include "daemon/worker/engine/account.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

static int gpu_open(struct device *d, struct error *e)
{
    struct gpus *g = d->worker->gpus;
    bool ipc = !strcmp(d->worker->config.gpu_sharing, "ipc");
    int status = g->plugin->open(1u << d->index, ipc, e);

    if (status)
        return status;
    g->open |= 1u << d->index;
    d->state = g;
    return 0;
}

static void gpu_close(struct device *d)
{
    (void)d; /* the plug-in closes them together: gpus_close() */
}

/* ---- memory ---- */

static int gpu_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e)
{
    const struct gpu_plugin *plugin = ((struct gpus *)d->state)->plugin;
    struct gpu_memory m;
    int status = worker_gpu_memory_charge(d->worker, bytes, e);

    if (status)
        return status;
    status = plugin->memory_alloc(d->index, bytes, &m, fd, e);
    if (status) {
        worker_gpu_memory_release(d->worker, bytes);
        gpu_watch_suspect(d->worker->gpus->watch, 1u << d->index);
        return status;
    }
    /* The driver gives out whole pages of its own, of 2 MiB for example. */
    status = m.bytes > bytes ? worker_gpu_memory_charge(d->worker, m.bytes - bytes, e) : 0;
    if (status) {
        plugin->memory_free(&m);
        if (fd)
            (void)close(*fd);
        worker_gpu_memory_release(d->worker, bytes);
        return status;
    }
    *out = (struct device_memory){
        .data = (unsigned char *)(uintptr_t)m.address, .bytes = m.bytes, .kind = (enum fcc_memory_kind)m.kind, .gpu = m};
    return 0;
}

static void gpu_memory_free(struct device *d, struct device_memory *m)
{
    struct error ignored = {0}; /* on failure the context is lost, and nothing is stored any more */

    (void)stores_settle(d->worker->gpus, 1u << d->index, &ignored);
    d->worker->gpus->plugin->memory_free(&m->gpu);
    worker_gpu_memory_release(d->worker, m->bytes);
}

static int gpu_comm_open(struct device *d, struct device_comm *c, struct error *e)
{
    size_t bytes = gpu_page_round(sizeof(struct gpu_shared));
    struct gpu_shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (s == MAP_FAILED)
        return error_set(e, -ENOMEM, "no memory for a communicator");
    /* Before a rank is here no GPU need be open: gpus_comm_open() */
    int status = d->state ? d->worker->gpus->plugin->host_register(s, bytes, &s->address, e) : 0;
    if (status) {
        (void)munmap(s, bytes);
        return status;
    }
    c->shared = &s->common;
    return 0;
}

int gpus_comm_open(struct device_comm *c, struct error *e)
{
    struct gpu_shared *s = shared_of(c);

    return s->address ? 0 : c->worker->gpus->plugin->host_register(s, gpu_page_round(sizeof(*s)), &s->address, e);
}

static void gpu_comm_close(struct device *d, struct device_comm *c)
{
    struct gpu_shared *s = shared_of(c);

    if (s->address)
        d->worker->gpus->plugin->host_unregister(s);
    (void)munmap(s, gpu_page_round(sizeof(*s)));
    c->shared = NULL;
}

/* ---- launching ---- */

/* Whether one more launch may run. Launches AHEAD apart report in the same struct gpu_told, so the oldest that the worker has launched must not
 * be AHEAD before the new one. */
static bool has_room(const struct device_comm *c)
{
    const struct launch *l = c->current;

    while (l && l->bound)
        l = l->following;
    return !l || c->newest->epoch + 1 - l->epoch < AHEAD;
}

/* No launch is enqueued behind a gated one, or behind one that has failed: parts that were not enqueued never report their end. Nor while
 * fccctl waits for an operator's times, which the next run would overwrite; nor where the epochs' lower halves, which GPUs compare, wrap; nor
 * over several nodes, where other nodes decide when a turn begins; nor a program's step whose kernel is to be loaded before it (code.h). */
static bool gpu_launch_follows(const struct device_comm *c, const struct op_args *next)
{
    const struct launch *l = c->newest;

    return !c->over_nodes && has_room(c) && l->worker->gpus->all_wait && c->exclusive && !l->gated &&
           !atomic_load_explicit(&l->failed, memory_order_relaxed) && !c->traced &&
           (l->epoch < EPOCHS_AHEAD || (uint32_t)(l->epoch + EPOCHS_AHEAD) >= 2 * EPOCHS_AHEAD) &&
           gpu_code_may_follow(l->worker->gpus, next, l->nranks);
}

/* Set the launch's struct gpu_told to "nothing reported". The done words get the epoch before: GPUs compare epochs cyclically, and a step
 * that few launches have would otherwise leave too old a value. A GPU that still waits there for the launch AHEAD before sees it reached. */
static void told_begin(struct launch *l)
{
    struct gpu_told *told = told_of(l);

    for (int r = 0; r < l->nranks; r++)
        told->failures[r].kind = GPU_FAILURE_NONE;
    for (int step = 0; step < GPU_STEPS; step++)
        for (int p = 0; p < l->nparts; p++)
            atomic_store_explicit(&told->done[step][l->parts[p].gpu_index], gpu_done_make((uint32_t)l->epoch - 1, 0),
                                  memory_order_relaxed);
}

/* Choose the launch's lanes. With several communicators hand-overs cannot be measured, and with words in host memory a hand-over costs more
 * than lanes can save: then the first lanes are used. */
static void lanes_choose(struct launch *l, int streams)
{
    struct gpu_lanes *lanes = &shared_of(l->comm)->lanes;
    const struct gpus *g = l->worker->gpus;
    uint32_t gpus = 0;
    bool can = streams && l->comm->words_gpus && l->comm->exclusive;

    for (int i = 0; i < l->nparts; i++) {
        gpus |= 1u << l->parts[i].device->index;
        can = can && g->descriptions[l->parts[i].device->index].lanes > 1;
    }
    l->behind = l->comm->current != l;
    l->tries_lanes = can;
    l->lanes = 0;
    if (can) {
        lanes_begin(lanes, gpus);
        l->lanes = lanes->use;
    }
}

/* The ranks' own processes have enqueued the kernels of a run of a bound operator. */
static void bound_launch(struct gpus *g, struct launch *l)
{
    l->gated = l->tries_lanes = l->passed = false;
    gpu_watch_add(g->watch, l);
}

static void gpu_launch(struct device *d, struct launch *l)
{
    struct gpus *g = d->state;

    for (int i = 0; i < l->nparts; i++)
        l->parts[i].gpu_index = (unsigned)l->parts[i].device->index;
    l->step = GPU_STEP_WAIT;
    l->begun = l->first_step = true;
    g->in_flight++;
    if (l->bound) {
        bound_launch(g, l);
        return;
    }
    int streams = streams_prepare(l);
    told_begin(l);
    lanes_choose(l, streams);
    if (l->comm->over_nodes)
        gpus_steps_begin(l);
    /* Over nodes no kernel is enqueued that waits for anything but the GPUs here. Where no rank here has anything to send the first
     * step waits for other nodes already. */
    l->gated =
        l->comm->over_nodes ? streams || !gpus_step_may_begin(l, l->step) : streams && (!g->all_wait || !l->comm->exclusive);
    if (!l->gated)
        gpu_parts_start(l, true);
    gpu_watch_add(g->watch, l);
}

/* Whether a rank's kernel has reported a failure; all kernels have left. */
static bool has_failed(const struct launch *l)
{
    const struct gpu_told *told = told_of(l);

    for (int r = 0; r < l->nranks; r++)
        if (told->failures[r].kind != GPU_FAILURE_NONE)
            return true;
    return false;
}

/* Over nodes, when the kernels of l->step have left: whether the engine is to go on with the launch. */
static bool step_is_due(struct launch *l)
{
    enum gpu_step next = gpus_step_next(l);

    return next == GPU_STEPS || atomic_load_explicit(l->status, memory_order_relaxed) || has_failed(l) ||
           gpus_step_may_begin(l, next);
}

/* Whether a gated launch may begin, or need not begin any more. */
static bool gate_is_due(struct launch *l)
{
    if (atomic_load_explicit(l->status, memory_order_relaxed))
        return true;
    return streams_have_come(l) && (!l->comm->over_nodes || gpus_step_may_begin(l, l->step));
}

bool gpu_launch_is_due(struct launch *l)
{
    struct gpu_told *told = told_of(l);

    if (l->bound)
        return kernels_have_ended(l);
    if (l->gated)
        return gate_is_due(l);
    for (int p = 0; p < l->nparts; p++)
        if (!l->parts[p].absent &&
            !gpu_done_reached(atomic_load_explicit(&told->done[l->step][l->parts[p].gpu_index], memory_order_acquire),
                              l->epoch))
            return false;
    return !l->comm->over_nodes || step_is_due(l);
}

bool gpus_launch_take(struct launch *l)
{
    return l->begun && !l->left && gpu_launch_is_due(l) && gpu_watch_take(l->worker->gpus->watch, l);
}

/* The launch's kernels have left; over nodes, those of one step. True: the launch is over. False: its next step has been started. */
static bool kernels_end(struct launch *l)
{
    const struct gpu_told *told = told_of(l);

    gpu_share_end(l);
    for (int r = 0; r < l->nranks; r++) {
        struct error e = {0};
        if (gpu_failure_explain(&told->failures[r], &e))
            launch_fail(l, r, &e);
    }
    if (!l->comm->over_nodes)
        return true;
    l->ops->kernels(l, false);
    enum gpu_step next = gpus_step_next(l);
    if (next == GPU_STEPS || atomic_load_explicit(l->status, memory_order_relaxed))
        return true;
    l->step = next;
    l->first_step = false;
    gpu_parts_start(l, false);
    gpu_watch_add(l->worker->gpus->watch, l);
    return false;
}

/* How long the kernels ran: the longest of all GPUs; or, with independent starts, the shortest, that of the GPU that began last, so that
 * waiting for it does not count. */
static uint64_t busy_ns(const struct launch *l)
{
    struct gpu_told *told = told_of(l);
    uint64_t least = UINT64_MAX, most = 0;

    for (int i = 0; i < l->nparts; i++) {
        uint64_t done = atomic_load_explicit(&told->done[l->step][l->parts[i].gpu_index], memory_order_relaxed);
        uint64_t ns = l->parts[i].absent ? 0 : gpu_done_ticks(done);
        least = ns < least ? ns : least;
        most = ns > most ? ns : most;
    }
    return l->alone ? least : most;
}

static void lanes_learn(struct launch *l, bool behind)
{
    struct gpu_lanes *lanes = &shared_of(l->comm)->lanes;
    bool was_trying = lanes_are_tried(lanes);

    lanes_note(lanes, l->lanes, behind, clock_ns(), l->busy_ns);
    if (was_trying && !lanes_are_tried(lanes))
        log_debug("comm %u: its GPUs' second lanes 0x%x of 0x%x are used: a hand-over takes %llu ns (before: 0x%x)",
                  l->comm->number, lanes->best, lanes->gpus, (unsigned long long)lanes->best_ns, lanes->before);
}

static bool gpu_launch_collect(struct device *d, struct launch *l)
{
    struct gpus *g = d->state;
    bool was_gated = l->gated;

    if (!l->begun) { /* over nodes: the launch was aborted before all nodes had made their staging memory */
        gpu_launch_has_left(l);
        return true;
    }
    if (!l->left && l->gated && !atomic_load_explicit(l->status, memory_order_relaxed)) {
        l->gated = false;
        gpu_parts_start(l, false);
        gpu_watch_add(g->watch, l);
        return false;
    }
    l->gated = false;
    if (!l->left && !l->bound) {
        if (!was_gated && !kernels_end(l))
            return false;
        l->busy_ns = was_gated ? 0 : busy_ns(l);
        if (l->tries_lanes)
            lanes_learn(l, l->behind && !was_gated);
    }
    if (l->comm->over_nodes && !l->left) {
        l->ops->ended(l); /* it comes back when all that it has pushed has been sent */
        return false;
    }
    streams_restore(l);
    gpu_launch_has_left(l);
    if (--g->in_flight == 0)
        gpus_retired_free(g);
    return true;
}

static void gpu_launch_release(struct device *d, struct launch *l)
{
    for (int p = 0; p < l->nparts; p++)
        if (l->parts[p].gpu)
            d->worker->gpus->plugin->launch_free(l->parts[p].gpu);
}

static int gpu_times_fetch(struct device *d, struct launch *l, struct error *e)
{
    const struct gpu_plugin *plugin = d->worker->gpus->plugin;
    int status = 0;

    for (int p = 0; p < l->nparts; p++)
        for (int i = 0; i < l->parts[p].nruns && status == 0 && l->parts[p].gpu; i++)
            status = plugin->launch_times(l->parts[p].gpu, i, launch_times_shown(l, l->parts[p].ranks[i]), e);
    return status;
}

const struct device_ops gpu_device_ops = {
    .kind = "gpu",
    .number = FCC_DEVICE_GPU,
    .open = gpu_open,
    .memory_alloc = gpu_memory_alloc,
    .memory_free = gpu_memory_free,
    .comm_open = gpu_comm_open,
    .comm_close = gpu_comm_close,
    .launch_follows = gpu_launch_follows,
    .launch = gpu_launch,
    .launch_collect = gpu_launch_collect,
    .launch_release = gpu_launch_release,
    .times_fetch = gpu_times_fetch,
    .close = gpu_close,
};
