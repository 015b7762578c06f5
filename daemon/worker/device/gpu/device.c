/* SPDX-License-Identifier: MIT
 *
 * device.c - GPUs, through a plug-in (kernels/gpu/abi.h): memory that all of them can address, and operators as one kernel
 * per GPU.
 *
 * Stream order. An operator that has its place on clients' streams begins on no GPU before all its ranks' streams have come
 * to it. Usually the GPU itself waits for that (stream memory operations): the operator is enqueued at once and costs no
 * round trip through the CPU. But one GPU's queue has one order, so an operator in front of it that waits for a client's
 * stream holds back the next one, and that stream may be waiting for the next one's result, if that is another
 * communicator's. So with several communicators (and where GPUs cannot wait) the operator is held back here, gated: the
 * watching thread looks at the streams' words, and the engine enqueues the operator when all have come. With one communicator
 * an operator that was enqueued never depends on a later one: each rank submits its operators in the order of its streams.
 * Kernels of all parts are enqueued together, by this thread and its helpers (helpers.h), and one operator's before the next
 * one's, so all GPUs have the same order of operators.
 *
 * Alone. What other GPUs' memory tells comes late, so some operators begin on a GPU when the streams of its own ranks have come,
 * and a hand-over costs them no word of another GPU:
 *   - what sends nothing but words in slots (plan_starts_alone(): gemv_all_reduce in one step, fused). It does not wait for the other ranks'
 *     streams at all, nor for the other GPUs' ends of the operator before: the kernel waits for the others' words anyway, and what it writes
 *     before these come are its own ranks' results and slots, whose stamps are made for that (slots_prepare()). Flags it has
 *     none: one that another GPU raises late, for an operator before that has failed, could go over one of its own.
 *   - what waits for both itself, before it stores anything at other ranks or raises their flags (gpu_waits: products whose rows are put, where that
 *     can do without some multiprocessors; a noop, which has nothing to store). By then they have long come.
 * Such a kernel may be there for long before a late rank's stream comes. It leaves some of the multiprocessors to others
 * (gpu_multiprocessors_beside()), as what that stream waits for may have to run on this GPU; and where several communicators take
 * turns all streams have come before (gated). GPU_BEGIN=together is for jobs that need more.
 *
 * Ahead. While operator n of a communicator is in the GPUs' queues, n + 1 may be put behind it (up to AHEAD of them, and up to
 * GRANTED_AHEAD of those that the ranks have put there), so that when n has ended the client's stream is all that is left to wait for. n +
 * 1 (but one that begins alone) must not begin on one GPU before n has ended on all of them, and the streams alone do not see to that: a
 * rank may have used another one for n. So on each GPU n + 1 waits for the done words of n, too: those of the other GPUs, because its own
 * has one order. The last workgroup writes its word (release, system scope) after everything that n has read or written there, so what
 * follows is as if n + 1 had been enqueued when n was over:
 *   - staging memory, flags, the ranks' results: not touched by two operators at a time. Flags are epochs, and only grow.
 *   - what a plug-in keeps for a launch (plans, counters, times, where staging lies) belongs to one struct launch, and one that
 *     runs is not in the cache: of one problem that runs twice at a time there are two.
 *   - what kernels tell the engine is written into struct gpu_told: one for each launch that runs; a granted one has none.
 *   - staging memory does not move while anything runs (comm/turn.c).
 * An operator that fails by its data tells all ranks its own epoch, and n + 1 does not mind that. One that could not be
 * enqueued on every GPU is made to leave when n is over, and nothing is put behind it. The end of a communicator is the newest
 * epoch. What a stream waits for never stands behind what waits for that stream, but for a program whose streams come to its
 * communicator's operators in another order than it has submitted them: those would have waited for ever before, too.
 *
 * What kernels and the engine share lies in host memory that the GPUs see: struct gpu_shared for a communicator, and the
 * clients' session memory. What only GPUs wait for lies in their own memory, where it can: the streams' words (stream.c), and
 * behind each rank's flags what the other GPUs tell of the ends of their parts (comm.words_gpus says for both that it can).
 * None of it is unmapped while any kernel that might touch it is in flight.
 *
 * Contexts that are lost stay lost: the worker then says so to its clients and ends; the next connection gets a fresh one.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/leave.h"
#include "daemon/worker/device/gpu/parts.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/device/gpu/stream.h"
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
    struct gpu_memory m;
    int status = ((struct gpus *)d->state)->plugin->memory_alloc(d->index, bytes, &m, fd, e);

    if (status) {
        gpu_watch_suspect(d->worker->gpus->watch, 1u << d->index);
        return status;
    }
    *out = (struct device_memory){
        .data = (unsigned char *)(uintptr_t)m.address, .bytes = m.bytes, .kind = (enum fcc_memory_kind)m.kind, .gpu = m};
    return 0;
}

static void gpu_memory_free(struct device *d, struct device_memory *m)
{
    stores_settle_all(d->worker->gpus, d->index);
    d->worker->gpus->plugin->memory_free(&m->gpu);
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

/* Whether one more may run, be it granted or not. The oldest that was launched here is told of in the same place as the one AHEAD
 * behind it. */
static bool has_room(const struct device_comm *c)
{
    const struct launch *l = c->current;

    while (l && l->granted)
        l = l->following;
    return c->running < GRANTED_AHEAD && (!l || c->newest->epoch + 1 - l->epoch < AHEAD);
}

/* Not behind one that is held back here, or that a GPU has not taken: its part would not say that it is done. Nor while
 * somebody waits to see an operator's times: the next one's would write over them. Nor where the epochs' lower halves, which
 * are what GPUs compare, come to their end. Nor over nodes, where turns begin when other nodes say so. */
static bool gpu_launch_follows(const struct device_comm *c)
{
    const struct launch *l = c->newest;

    return !c->over_nodes && has_room(c) && l->worker->gpus->all_wait && c->exclusive && !l->gated &&
           !atomic_load_explicit(&l->failed, memory_order_relaxed) && !c->traced &&
           (l->epoch < GRANTED_AHEAD || (uint32_t)(l->epoch + GRANTED_AHEAD) >= 2 * GRANTED_AHEAD);
}

/* Nothing has been told of it, and nothing that its kernels tell is older than it: GPUs compare epochs cyclically, and over nodes a step
 * need not be in every launch. What a GPU still waits for there is of the launch AHEAD before, and has been reached by this, too. */
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

/* Choose its lanes. Where several communicators take turns the GPUs' queues are not theirs alone, and where words are in the host's memory
 * a hand-over costs more than lanes give. */
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

static void gpu_launch(struct device *d, struct launch *l)
{
    struct gpus *g = d->state;
    int streams = streams_prepare(l);

    for (int i = 0; i < l->nparts; i++)
        l->parts[i].gpu_index = (unsigned)l->parts[i].device->index;
    told_begin(l);
    lanes_choose(l, streams);
    l->step = GPU_STEP_WAIT;
    if (l->granted) {
        l->begun = l->first_step = true;
        l->gated = l->tries_lanes = l->automatic = false;
        g->in_flight++;
        gpu_watch_add(g->watch, l);
        return;
    }
    if (l->comm->over_nodes)
        gpus_steps_begin(l);
    l->begun = l->first_step = true;
    g->in_flight++;
    /* Over nodes no kernel is enqueued that waits for anything but the GPUs here. Where no rank here has anything to send the first
     * step waits for other nodes already. */
    l->gated =
        l->comm->over_nodes ? streams || !gpus_step_may_begin(l, l->step) : streams && (!g->all_wait || !l->comm->exclusive);
    if (!l->gated)
        gpu_parts_start(l, true);
    gpu_watch_add(g->watch, l);
}

/* Has a rank's kernel found something wrong? They have left. */
static bool has_failed(const struct launch *l)
{
    const struct gpu_told *told = told_of(l);

    for (int r = 0; r < l->nranks; r++)
        if (told->failures[r].kind != GPU_FAILURE_NONE)
            return true;
    return false;
}

/* Over nodes: the kernels of its step have left. Is there something to do for it? */
static bool step_is_due(struct launch *l)
{
    enum gpu_step next = gpus_step_next(l);

    return next == GPU_STEPS || atomic_load_explicit(l->status, memory_order_relaxed) || has_failed(l) ||
           gpus_step_may_begin(l, next);
}

/* Nothing that it is held back for is missing, or it need not begin. */
static bool gate_is_due(struct launch *l)
{
    if (atomic_load_explicit(l->status, memory_order_relaxed))
        return true;
    return streams_have_come(l) && (!l->comm->over_nodes || gpus_step_may_begin(l, l->step));
}

bool gpu_launch_is_due(struct launch *l)
{
    struct gpu_told *told = told_of(l);

    if (l->granted)
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

/* Its kernels have left (over nodes: those of one step): true if that was all, or if the others need not come. */
static bool kernels_end(struct launch *l)
{
    const struct gpu_told *told = told_of(l);

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

/* How long it took: on the GPU where it took longest; or, where each has begun alone, on the one that has begun last, so that waiting
 * for it does not count. */
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

    if (!l->begun) { /* over nodes: it was aborted before all had room for it */
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
    if (!l->left && !l->granted) {
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
